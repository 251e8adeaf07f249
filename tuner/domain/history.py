"""Starts that were seen before, so that a phase can be shown beside what it usually takes."""

from __future__ import annotations

from msgspec import Struct

from tuner.domain.server import Phase
from tuner.domain.starts import Start


class StartRecord(Struct, frozen=True, kw_only=True):
    """One start of a server, from first line to ready or failure."""

    host: str
    engine: str
    version: str | None = None
    model: str | None = None
    started_at: float
    """Host wall clock, seconds since the epoch, at which its process began, or of its first line if only that is
    known."""
    by_log: bool = False
    """True: `started_at` is the first line's time, and the process began earlier."""
    source: str = ""
    """Path of the log; with `started_at` it is the identity of a start."""
    outcome: str = "ready"
    """`ready` or `failed`."""
    total_s: float | None = None
    """Seconds from the first phase to ready; None if it never was."""
    phases_s: dict[Phase, float] = {}
    """Seconds of each phase that has ended."""


class MemoryRecord(Struct, frozen=True, kw_only=True):
    """What one start that worked measured of its memory."""

    host: str
    engine: str
    model: str | None = None
    started_at: float
    """As in `StartRecord`."""
    by_log: bool = False
    """As in `StartRecord`."""
    source: str = ""
    """As in `StartRecord`."""
    start: Start
    """Its figures and the settings that decide memory; no lines."""


class UsualTimes(Struct, frozen=True, kw_only=True):
    """The least and the most seconds that earlier successful starts took, by phase and in all."""

    starts: int = 0
    total_s: tuple[float, float] | None = None
    phases_s: dict[Phase, tuple[float, float]] = {}
