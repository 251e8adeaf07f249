"""The level names of Python's logging, which both engines and uvicorn print."""

from __future__ import annotations

from tuner.domain.logs import Level

LEVELS = {
    "DEBUG": Level.DEBUG,
    "INFO": Level.INFO,
    "WARNING": Level.WARNING,
    "ERROR": Level.ERROR,
    "CRITICAL": Level.ERROR,
}

LEVEL_HEADS = frozenset(name[:4] for name in LEVELS)
"""Four characters tell that no level follows, before any expression is tried."""
