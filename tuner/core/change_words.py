"""Words for the values of a change, shared by the command line and the screens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.core.remedies import as_typed
from tuner.domain.tuning import Change

_SOURCES = {
    "argv": "from its arguments",
    "environment": "from its environment",
    "settings": "resolved by the engine",
    "file": "set by a file",
    "log": "as its log says",
    "default": "the default",
}
"""`Change.source` in words."""


def value_words(value: Any) -> str:
    """Return a value of a knob in a few words: `0.88`, `on`, `1 2 4`, `not set`; an empty text is `''`."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(as_typed(each) or "''" for each in value)
    return as_typed(value) or "''" if isinstance(value, str | int | float) else str(value)


def then_words(change: Change, words: Callable[[Any], str] = value_words) -> str:
    """Return the value after a change; where it is left to the engine, the default if that is known.

    Args:
        change: The change.
        words: How a value is written.
    """
    if change.then is None and change.default is not None:
        return f"{words(change.default)} (default)"
    return words(change.then)


def source_words(change: Change) -> str:
    """Return where the present value of a change comes from: `now from its arguments`; empty if no server runs."""
    words = _SOURCES.get(change.source, change.source)
    return f"now {words}" if words and change.changed else words
