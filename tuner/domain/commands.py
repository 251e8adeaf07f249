"""What the core asks the shell to do after an event. The shell's answers are events again."""

from __future__ import annotations

from msgspec import Struct

from tuner.domain.history import MemoryRecord, StartRecord


class Command(Struct, frozen=True, kw_only=True):
    """Base of all commands."""


class KeepStart(Command, frozen=True, kw_only=True):
    """Store a start in the history."""

    record: StartRecord


class KeepMemory(Command, frozen=True, kw_only=True):
    """Store what a start measured of its memory; an earlier record of the same start is replaced."""

    record: MemoryRecord


class LookUpStarts(Command, frozen=True, kw_only=True):
    """Find what earlier starts of the same engine and LLM on this host took; answered by `HistoryFound`."""

    key: str
    engine: str
    model: str | None
    began_at: float | None = None
    """Host wall clock, seconds since the epoch, at which the server's own process began: its start is left out."""


AnyCommand = KeepStart | KeepMemory | LookUpStarts
