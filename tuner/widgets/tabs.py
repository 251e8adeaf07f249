"""The tab bar: one tab per host with its name and the states of link and server; hidden for a single host."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from textual import events
from textual.message import Message

from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase
from tuner.domain.state import HostState
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, Span, clean, width_of


class HostTab(Struct, frozen=True):
    """The contents of a tab."""

    name: str
    chosen: bool
    link: LinkPhase
    phase: Phase | None
    """Phase of the host's first server; None without a server."""
    ended: bool = False
    """The host is a recording that was played to its end."""

    @property
    def word(self) -> str:
        """Return the state of the link in a word; a recording at its end has none."""
        return "ended" if self.ended else str(self.link)


def tab_of(name: str, state: HostState, *, chosen: bool, ended: bool = False) -> HostTab:
    """Return the tab of a host."""
    phase = state.servers[0].phase if state.servers else None
    return HostTab(name, chosen, state.link.phase, phase, ended)


class HostTabs(Rows):
    """The tab bar."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, host: str) -> None:
            super().__init__()
            self.host = host

    ALLOW_SELECT = False

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._glyphs = glyphs
        self._ends: list[tuple[int, str]] = []

    def show_tabs(self, tabs: Sequence[HostTab]) -> None:
        """Show the tabs of these hosts; none for a single host."""
        if len(tabs) < 2:
            self.show([])
            return
        pieces = [self._piece(tab, words=True) for tab in tabs]
        if sum(width_of(piece) for piece in pieces) > self.app.size.width - 2:
            pieces = [self._piece(tab, words=False) for tab in tabs]
        chosen = next((at for at, tab in enumerate(tabs) if tab.chosen), 0)
        first, room = chosen, self.app.size.width - 6 - width_of(pieces[chosen])
        # Show as many neighbours of the chosen tab as fit.
        while first > 0 and width_of(pieces[first - 1]) <= room:
            first -= 1
            room -= width_of(pieces[first])
        spans: list[Span] = [(f"{self._glyphs.ellipsis} " if first else " ", "dim")]
        self._ends = []
        used = width_of(spans)
        for tab, piece in zip(tabs[first:], pieces[first:], strict=True):
            used += width_of(piece)
            if used > self.app.size.width - 2:
                spans.append((self._glyphs.ellipsis, "dim"))
                break
            spans += piece
            self._ends.append((used, tab.name))
        hint = "[ ] other host"
        if used + len(hint) < self.app.size.width:
            spans.append((hint, "dim"))
        self.show([tuple(spans)])

    def _piece(self, tab: HostTab, *, words: bool) -> Line:
        glyphs = self._glyphs
        style = "warn" if tab.ended else {LinkPhase.UP: "ok", LinkPhase.DOWN: "bad"}.get(tab.link, "warn")
        link = f" {tab.word}" if words and tab.link is not LinkPhase.UP else ""
        name = (f"[{clean(tab.name)}", "strong") if tab.chosen else (f" {clean(tab.name)}", "dim")
        spans: list[Span] = [name, (f" {glyphs.link(tab.link)}{link}", style)]
        if tab.phase is not None:
            style = "ok" if tab.phase is Phase.READY else "bad" if tab.phase is Phase.FAILED else "busy"
            word = f" {'starting' if tab.phase.starting else tab.phase}" if words else ""
            spans.append((f" {glyphs.phase(tab.phase)}{word}", style))
        return (*spans, ("]" if tab.chosen else " ", "strong"), ("  ", "text"))

    def on_click(self, event: events.Click) -> None:
        """Choose the tab under the mouse."""
        for end, name in self._ends:
            if event.x < end:
                self.post_message(self.Chosen(name))
                return
