"""The transport that replays a journal as if its host were there, at any speed.

The "program" outputs the journal's lines at their times, as the probe would. What is written to it is ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from tuner.core import journal
from tuner.domain.link import Target
from tuner.errors import ConnectionFailed, JournalError, TunerError
from tuner.transports import Ask

SCHEME = "replay"

_LAST_BYTES = 1 << 20
"""Number of bytes at the end of a journal in which its last entry is searched."""
_LONGEST_PAUSE_S = 86_400.0
"""Largest plausible time between two entries, seconds."""
_LONGEST_LEAP = 1_000_000
"""Largest plausible gap between the sequence numbers of two events of one probe."""


def opener(target: Target) -> ReplayOpener:
    """Return the opener for the journal at path `target.host`; its transports share one player."""
    return ReplayOpener(Player(Path(target.host), speed=float(target.options.get("speed", "1"))))


class Player:
    """The controls of a replay: speed, pause and position. They may be used at any time.

    Args:
        path: Path of the journal.
        speed: Speed relative to the original; 0: as fast as the entries are read.

    Raises:
        JournalError: The file cannot be read, is not a journal, or has an unsupported version.
    """

    def __init__(self, path: Path, *, speed: float = 1.0) -> None:
        self.path = path
        self.header = _header(path)
        self.duration = _duration(path)
        """Time of the last entry, seconds since the journal's start."""
        self.position = 0.0
        """Time up to which the journal was played, seconds since its start."""
        self.paused = False
        self._speed = speed
        self._target = -1.0
        """Position of the last `seek`: entries up to it are due at once."""
        self._anchor: float | None = None
        """Time of the event loop's clock at which `position` was reached; None: not set since the last change."""
        self._turned = asyncio.Event()
        self.rewound = False
        """Whether an earlier position was requested, so that the journal has to be played from its start again."""

    @property
    def speed(self) -> float:
        """Speed relative to the original; 0: as fast as the entries are read."""
        return self._speed

    @speed.setter
    def speed(self, value: float) -> None:
        self._speed = max(0.0, value)
        self._anchor = None
        self._turned.set()

    def pause(self) -> None:
        """Pause the replay."""
        self.paused = True
        self._turned.set()

    def resume(self) -> None:
        """Continue after `pause`."""
        self.paused = False
        self._anchor = None
        self._turned.set()

    def seek(self, position: float) -> None:
        """Go to a position, in seconds since the journal's start.

        For an earlier one the journal is played from its start again, since a state results from all earlier events.
        """
        self._target = min(max(0.0, position), self.duration)
        self.rewound = self._target < self.position
        self._turned.set()

    def start(self) -> Generator[journal.Entry, None, None]:
        """Return the entries from the first one on; those up to the last `seek` are due at once."""
        self.position = 0.0
        self.rewound = False
        self._anchor = None
        return _entries(self.path)

    async def wait_for(self, at: float) -> bool:
        """Wait until the entry at time `at` is due; return False if the journal must be played from its start again."""
        loop = asyncio.get_running_loop()
        while not self.rewound:
            self._turned.clear()
            if at <= self._target:
                break
            delay: float | None = None
            if not self.paused:
                if self._speed == 0:
                    break
                if self._anchor is None:
                    self._anchor = loop.time()
                delay = (at - self.position) / self._speed - (loop.time() - self._anchor)
                if delay <= 0:
                    break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._turned.wait()
        if self.rewound:
            return False
        # Continue from the time at which the entry was due, not from now, so that delays do not add up.
        if self._anchor is not None and at > self._target and self._speed:
            self._anchor += (at - self.position) / self._speed
        self.position = max(self.position, at)
        if at <= self._target:
            self._anchor = None
        return True


class ReplayOpener:
    """Makes transports that replay one journal, with a common player."""

    def __init__(self, player: Player) -> None:
        self.player = player

    def __call__(self) -> ReplayTransport:
        """Return a transport that plays the journal from its start."""
        return ReplayTransport(self.player)


class ReplayTransport:
    """The transport to the host of a journal."""

    notes: tuple[str, ...] = ()

    def __init__(self, player: Player) -> None:
        self.player = player
        self.received_bytes = 0
        self.sent_bytes = 0

    async def connect(self, ask: Ask) -> None:
        """Check that the journal can still be read.

        Raises:
            ConnectionFailed: It cannot.
        """
        try:
            _header(self.player.path)
        except TunerError as error:
            raise ConnectionFailed(error.title, error.detail, error.hint, final=True) from error

    async def spawn(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> ReplayProcess:
        """Begin to play; the arguments are ignored, since there is only one program."""
        return ReplayProcess(self)

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


class ReplayProcess:
    """The journal as the output of a program."""

    def __init__(self, owner: ReplayTransport) -> None:
        self._owner = owner
        self._entries = owner.player.start()
        self._next: journal.Entry | None = None
        self._rest = b""
        self._ended = asyncio.Event()

    async def read(self, limit: int = 262_144) -> bytes:
        """Return the lines that are due, waiting for the first; empty at the end of the journal."""
        player = self._owner.player
        block = bytearray(self._rest)
        self._rest = b""
        while len(block) < limit and not self._ended.is_set():
            if self._next is None:
                try:
                    self._next = next(self._entries, None)
                except JournalError as error:
                    raise ConnectionFailed(error.title, error.detail, error.hint, final=True) from error
                if self._next is None:
                    self._ended.set()
                    break
            if block and not self._due(self._next.at):
                break
            if not await player.wait_for(self._next.at):
                self._ended.set()
                break
            block += bytes(self._next.e) + b"\n"
            self._next = None
        if len(block) > limit:
            self._rest = bytes(block[limit:])
            del block[limit:]
        self._owner.received_bytes += len(block)
        return bytes(block)

    def _due(self, at: float) -> bool:
        player = self._owner.player
        return not player.paused and (player.speed == 0 or at <= player.position)

    async def write(self, data: bytes) -> None:
        """Count the data and ignore it."""
        self._owner.sent_bytes += len(data)

    def errors(self) -> str:
        """Return an empty text: a journal has no stderr."""
        return ""

    def close_stdin(self) -> None:
        """Do nothing: there is no stdin."""

    async def wait(self) -> int | None:
        """Wait until the journal was played or closed, and return 0."""
        await self._ended.wait()
        return 0

    async def aclose(self) -> None:
        """Stop playing."""
        self._ended.set()
        self._entries.close()


def _header(path: Path) -> journal.Header:
    try:
        with path.open("rb") as file:
            return journal.parse_header(next(journal.read_lines(file, str(path)), b""), str(path))
    except OSError as error:
        raise JournalError("The journal cannot be read", f"{path}: {error.strerror}") from error


def _entries(path: Path) -> Generator[journal.Entry, None, None]:
    with path.open("rb") as file:
        yield from _sane(journal.entries(journal.read_lines(file, str(path)), str(path)))


def _sane(entries: Iterable[journal.Entry]) -> Generator[journal.Entry, None, None]:
    """Yield entries in order of time even if some are damaged, since all others would wait for one of the far future.

    The time of an entry is moved between those of its neighbours. An entry is left out if it is more than a day later
    than the one before it, or if its event's own clock or sequence number is implausible.
    """
    last: float | None = None
    known: _Head | None = None
    odd: _Head | None = None
    reading = (entry for entry in entries if math.isfinite(entry.at))
    this = next(reading, None)
    while this is not None:
        after = next(reading, None)
        if last is None:
            last = this.at if after is None else min(this.at, after.at)
        at = sorted((last, this.at, this.at if after is None else after.at))[1]
        head = _head_of(this)
        strange = _strange(head, known) and (
            odd is None or _strange(head, odd)
        )  # two successive ones that agree are plausible
        odd = head if strange else None
        if at - last <= _LONGEST_PAUSE_S and not strange:
            last = at
            known = head if head is not None and head.seq else known
            yield this if at == this.at else journal.Entry(at, this.e)
        this = after


class _Head(Struct):
    """Fields that every event of the probe has."""

    t: str = ""
    mono: float = 0.0
    seq: int = 0


_head = msgspec.json.Decoder(_Head)


def _head_of(entry: journal.Entry) -> _Head | None:
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        return _head.decode(entry.e)
    return None


def _strange(head: _Head | None, known: _Head | None) -> bool:
    """Return whether clock or sequence number of an event leap from those of `known`.

    Events without a number and a `hello` never count: a new probe may be of another boot.
    """
    if head is None or known is None or not head.seq or head.t == "hello":
        return False
    return abs(head.mono - known.mono) > _LONGEST_PAUSE_S or abs(head.seq - known.seq) > _LONGEST_LEAP


def _duration(path: Path) -> float:
    """Return the largest plausible time among the last entries of a journal, seconds since its start."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = file.read(_LAST_BYTES).split(b"\n")
    found = [entry for line in lines if (entry := journal.parse_entry(line)) is not None]
    return max((entry.at for entry in (_sane(found) if found else _entries(path))), default=0.0)
