"""Log lines as values: text that was read, and facts that were recognised in it."""

from __future__ import annotations

import enum
from typing import Any

from msgspec import Struct


class Level(enum.IntEnum):
    """Severity. SGLang prints none, so its engine derives it from the text."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class LogLine(Struct, frozen=True, gc=False):
    """One line as shown: control sequences stripped, progress bars reduced to their last state."""

    offset: int
    """Its place: the offset of its first byte in a followed log, the line number in a file that is read whole."""
    text: str
    """The whole line without its end, cut at 64 KiB with a marker; never markup."""
    rank: str | None = None
    """`TP0`, `DP1 TP3`, ..., as the engine spells it; None for the main process."""
    level: Level = Level.INFO
    fold: int = 0
    """Equal for lines that differ only in time and rank; 0 where there is nothing to compare."""
    continued: bool = False
    """Belongs to the line before (traceback body, multi-line message)."""
    marker: bool = False
    """Written by us, not by the server: rotation, truncation, dropped lines."""


class LogBlock(Struct, frozen=True, gc=False):
    """Lines that arrived together. Blocks are shared between snapshots and never copied."""

    start: int
    end: int
    """Byte offsets of the first byte and after the last one."""
    lines: tuple[LogLine, ...]


class LogFact(Struct, frozen=True, kw_only=True, gc=False):
    """Something a log format recognised. `kind` is one of `core.facts`; `fields` holds its values."""

    kind: str
    rank: str | None = None
    offset: int = 0
    at: float | None = None
    """The line's own time as seconds since an epoch of the log's zone: only differences mean something."""
    format: str = ""
    """Id of the format that matched."""
    text: str = ""
    """The message without prefix."""
    fields: dict[str, Any] = {}


class LogHit(Struct, frozen=True, array_like=True, gc=False):
    """One search result on the host."""

    offset: int
    text: str
