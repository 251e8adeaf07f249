"""Words for the values of a change, shared by the command line and the screens."""

from __future__ import annotations

from typing import Any

from tuner.core.remedies import as_typed


def value_words(value: Any) -> str:
    """Return a value of a knob in a few words: `0.88`, `on`, `1 2 4`, `not set`; an empty text is `''`."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(as_typed(each) or "''" for each in value)
    return as_typed(value) or "''" if isinstance(value, str | int | float) else str(value)
