"""Units, and numbers as people read them. Sizes are int bytes; GiB are for display and for figures of logs."""

from __future__ import annotations

import sys

GIB = 1 << 30
MIB = 1 << 20
MOST = 1 << 60
"""Largest plausible count of bytes or tokens; what exceeds it is garbage."""


def gib(value_bytes: int | float) -> float:
    """Convert bytes to GiB."""
    return value_bytes / GIB


def from_gib(value_gib: float) -> int | None:
    """Convert GiB to bytes, rounded; None if not finite or beyond `MOST`."""
    return whole(value_gib * GIB)


def real(value: object) -> float | None:
    """Return a number of a setting or an answer as float; None for anything else, a bool, infinity or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def whole(value: object) -> int | None:
    """Round a number of a setting or an answer; None for anything else, a bool, NaN and what is beyond `MOST`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST:
        return None
    return round(value)


def format_gib(value_bytes: int | None, width: int = 0) -> str:
    """Format bytes as GiB, right-aligned to `width`: `86.8`; `n/a` for None."""
    text = "n/a" if value_bytes is None else f"{value_bytes / GIB:.1f}"
    return text.rjust(width)


def format_small(value_gib: float) -> str:
    """Format GiB so that a small size is not shown as zero: `1.25 GiB`, `12.0 MiB`, `896.0 KiB`."""
    if abs(value_gib) >= 0.1 or value_gib == 0:
        return f"{value_gib:.2f} GiB"
    mib = value_gib * 1024
    return f"{mib:.1f} MiB" if abs(mib) >= 1 else f"{mib * 1024:.1f} KiB"


def format_bytes(value: int | float | None) -> str:
    """Format a size in decimal units, for traffic and files: `1.4 kB`, `3.2 MB`; `n/a` for None."""
    if value is None:
        return "n/a"
    size = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def format_duration(seconds: float | None) -> str:
    """Format seconds: `0:08`, `9:58`, `2h14m`, `3d 4h`; `n/a` for None."""
    if seconds is None:
        return "n/a"
    total = max(0, round(seconds))
    if total < 3600:
        return f"{total // 60}:{total % 60:02d}"
    if total < 86_400:
        return f"{total // 3600}h{total % 3600 // 60:02d}m"
    return f"{total // 86_400}d {total % 86_400 // 3600}h"


def format_seconds(seconds: float | None, unit: str = "") -> str:
    """Format seconds: below a minute `0.8` and `unit`, from then on `8:34` without it; `-` for None."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f}{unit}" if seconds < 60 else format_duration(seconds)
