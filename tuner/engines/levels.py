"""Severity by level name of Python's `logging`, as both engines and uvicorn print it."""

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
"""First four characters of the level names: a cheap test before any regular expression is tried."""
