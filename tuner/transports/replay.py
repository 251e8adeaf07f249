"""Plays a journal as if its host were there, at any speed.

The lines of the journal come out of the "program" as the probe's lines would, when their time has come. What is
written to it is ignored: nobody is there to answer.
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
_LONGEST_PAUSE_S = 86_400.0
_LONGEST_LEAP = 1_000_000
"""Lines of a probe that may be missing between two."""


def opener(target: Target) -> ReplayOpener:
    """Makes transports that play `target.host`, all of them with the same controls."""
    return ReplayOpener(Player(Path(target.host), speed=float(target.options.get("speed", "1"))))


class Player:
    """The controls: speed, pause, position. They may be used at any time.

    Args:
        path: Of the journal.
        speed: 1 is as it was, 10 is ten times as fast, 0 is as fast as it is asked for.

    Raises:
        JournalError: the file cannot be read, is no journal, or is of another version.
    """

    def __init__(self, path: Path, *, speed: float = 1.0) -> None:
        self.path = path
        self.header = _header(path)
        self.duration = _duration(path)
        """Seconds from the first to the last event."""
        self.position = 0.0
        """Seconds of the journal that were played."""
        self.paused = False
        self._speed = speed
        self._target = -1.0
        """Up to here as fast as asked."""
        self._anchor: float | None = None
        """When, by the loop's clock, `position` was right."""
        self._turned = asyncio.Event()
        self.rewound = False
        """The stream was ended because an earlier position is wanted: it has to be played again from the start."""

    @property
    def speed(self) -> float:
        """Seconds of the journal in a second; 0 is as fast as asked."""
        return self._speed

    @speed.setter
    def speed(self, value: float) -> None:
        self._speed = max(0.0, value)
        self._anchor = None
        self._turned.set()

    def pause(self) -> None:
        """Hold still."""
        self.paused = True
        self._turned.set()

    def resume(self) -> None:
        """Go on after `pause`."""
        self.paused = False
        self._anchor = None
        self._turned.set()

    def seek(self, position: float) -> None:
        """Go to a second of the journal. Backwards means from the start again, for a state is the sum of its past."""
        self._target = min(max(0.0, position), self.duration)
        self.rewound = self._target < self.position
        self._turned.set()

    def start(self) -> Generator[journal.Entry, None, None]:
        """Begin at the first entry, and go on to where `seek` asked for."""
        self.position = 0.0
        self.rewound = False
        self._anchor = None
        return _entries(self.path)

    async def wait_for(self, at: float) -> bool:
        """Wait until `at` is due. False: no more of this, play it again from the start."""
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
        # The clock runs on from when this was due, not from when it was noticed: no drift.
        if self._anchor is not None and at > self._target and self._speed:
            self._anchor += (at - self.position) / self._speed
        self.position = max(self.position, at)
        if at <= self._target:
            self._anchor = None
        return True


class ReplayOpener:
    """Makes transports to a recording."""

    def __init__(self, player: Player) -> None:
        self.player = player

    def __call__(self) -> ReplayTransport:
        """A transport that plays from the start."""
        return ReplayTransport(self.player)


class ReplayTransport:
    """A host that once was."""

    notes: tuple[str, ...] = ()

    def __init__(self, player: Player) -> None:
        self.player = player
        self.received_bytes = 0
        self.sent_bytes = 0

    async def connect(self, ask: Ask) -> None:
        """See that the file is still there."""
        try:
            _header(self.player.path)
        except TunerError as error:
            raise ConnectionFailed(error.title, error.detail, error.hint, final=True) from error

    async def spawn(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> ReplayProcess:
        """Begin to play; there is only one program."""
        return ReplayProcess(self)

    async def aclose(self) -> None:
        """Nothing to close."""


class ReplayProcess:
    """The recording as a program's output."""

    def __init__(self, owner: ReplayTransport) -> None:
        self._owner = owner
        self._entries = owner.player.start()
        self._next: journal.Entry | None = None
        self._rest = b""
        self._ended = asyncio.Event()

    async def read(self, limit: int = 262_144) -> bytes:
        """Lines whose time has come; empty at the end of the recording."""
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
        """Ignored."""
        self._owner.sent_bytes += len(data)

    def errors(self) -> str:
        """There are none."""
        return ""

    def close_stdin(self) -> None:
        """Ignored."""

    async def wait(self) -> int | None:
        """0 once all was played or closed."""
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
    """Entries in order of time, whatever was damaged: all that follows one of the far future would wait for it.

    An entry is due between the one before it and the one after it. One that is a day beyond the one before it, or
    whose event is by its own clock and number, is passed over.
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
        strange = _strange(head, known) and (odd is None or _strange(head, odd))  # two that agree are believed
        odd = head if strange else None
        if at - last <= _LONGEST_PAUSE_S and not strange:
            last = at
            known = head if head is not None and head.seq else known
            yield this if at == this.at else journal.Entry(at, this.e)
        this = after


class _Head(Struct):
    """What every event of the probe has."""

    t: str = ""
    mono: float = 0.0
    seq: int = 0


_head = msgspec.json.Decoder(_Head)


def _head_of(entry: journal.Entry) -> _Head | None:
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        return _head.decode(entry.e)
    return None


def _strange(head: _Head | None, known: _Head | None) -> bool:
    """A new probe (`hello`) may be of another boot; within one probe's life nothing leaps."""
    if head is None or known is None or not head.seq or head.t == "hello":
        return False
    return abs(head.mono - known.mono) > _LONGEST_PAUSE_S or abs(head.seq - known.seq) > _LONGEST_LEAP


def _duration(path: Path) -> float:
    """Time of the last good line, from the end of the file."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = file.read(_LAST_BYTES).split(b"\n")
    found = [entry for line in lines if (entry := journal.parse_entry(line)) is not None]
    return max((entry.at for entry in (_sane(found) if found else _entries(path))), default=0.0)
