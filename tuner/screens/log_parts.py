"""Older parts of a log, fetched from the host: what to request next, and where the lines of an answer belong."""

from __future__ import annotations

from msgspec import Struct

from tuner.domain.logs import LogBlock
from tuner.domain.state import LogState, ServerState
from tuner.messages import LogPartArrived
from tuner.widgets.log_view import LogView

PART_BYTES = 262_144
"""Bytes that are fetched at a time."""
OLDER_LINES_MAX = 20_000
"""Most fetched lines kept in front of the live part; search leads farther back."""


class Wanted(Struct, frozen=True):
    """Bytes to fetch, and the purpose: `hit`, `older` or `newer`."""

    purpose: str
    offset: int
    length: int


def held(log: LogState, offset: int) -> LogBlock | None:
    """Return the block that holds a byte offset; None where none does: a long log has a gap before its tail."""
    return next((block for block in reversed(log.blocks) if block.start <= offset < block.end), None)


class LogParts:
    """The parts of one log that are shown besides its live end."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._asked: set[str] = set()
        self._part: tuple[int, int] | None = None
        """First and end byte offset of the part that is shown apart; None while none is."""
        self.about = 0
        """Byte offset to go to when a requested part arrives."""

    def around(self, offset: int) -> Wanted | None:
        """Return the request for the part around a hit."""
        self.about = offset
        return self._want("hit", max(0, offset - PART_BYTES // 2), PART_BYTES)

    def older(self, server: ServerState) -> Wanted | None:
        """Return the request for the part before the oldest line shown; None if there is none or it was requested."""
        view = self._view
        if view.index.building:
            return None
        start = view.index.start if view.index is not view.live or view.live.fetched else server.log.start
        offset = max(0, start - PART_BYTES)
        return self._want("older", offset, start - offset)

    @property
    def full(self) -> bool:
        """Return whether no more lines may be kept in front of the live part."""
        view = self._view
        return view.index is view.live and sum(len(each.lines) for each in view.live.fetched) >= OLDER_LINES_MAX

    def reached_live(self, server: ServerState) -> int | None:
        """Return the offset at which the part shown apart meets the lines in memory; None while it does not."""
        return self._part[1] if self._part is not None and held(server.log, self._part[1]) else None

    def newer(self) -> Wanted | None:
        """Return the request for the part that follows the one shown apart."""
        return self._want("newer", self._part[1], PART_BYTES) if self._part else None

    def _want(self, purpose: str, offset: int, length: int) -> Wanted | None:
        if purpose in self._asked or length <= 0:
            return None
        self._asked.add(purpose)
        return Wanted(purpose, offset, length)

    def arrived(self, answer: LogPartArrived) -> None:
        """Show the lines of an answer where they belong."""
        self._asked.discard(answer.purpose)
        view, lines = self._view, answer.lines
        if not lines:
            return
        apart = view.index is not view.live
        if answer.purpose == "hit":
            self._part = (lines[0].offset, answer.end)
            view.show_part(lines, self.about)
        elif answer.purpose == "older":
            view.index.prepend(lines)
            if apart and self._part is not None:
                self._part = (lines[0].offset, self._part[1])
            view.repaint()
        elif apart and self._part is not None:
            view.index.extend(lines)
            self._part = (self._part[0], answer.end)
            view.repaint()
