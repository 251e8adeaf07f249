"""Flags of a command line as server args. No parser of the engine is imitated: unknown flags are kept by name."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

_GREATEST = 1 << 20
_LONGEST = 40
"""Characters of a number."""


def read_flags(argv: Sequence[str], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Flags by canonical (underscored) name.

    A flag without value is True, several values are a list, the last mention wins. Values are numbers where they
    look like numbers.

    Args:
        argv: The command line.
        aliases: Other spellings, without dashes and underscored, to the canonical name.
    """
    flags: dict[str, Any] = {}
    name: str | None = None
    values: list[Any] = []
    for argument in argv:
        if argument.startswith("-") and not _is_number(argument) and len(argument) > 1:
            _store(flags, name, values)
            flag, equals, value = argument.partition("=")
            name = _canonical(flag, aliases)
            values = [_value(value)] if equals else []
        elif name is not None:
            values.append(_value(argument))
    _store(flags, name, values)
    return flags


def as_int(value: Any, default: int) -> int:
    """A setting as whole number, whatever it came as; the default for one that is no size of any server."""
    if isinstance(value, bool) or value is None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if abs(number) <= _GREATEST else default


def _canonical(flag: str, aliases: Mapping[str, str]) -> str:
    name = flag.lstrip("-").replace("-", "_")
    return aliases.get(name, name)


def _store(flags: dict[str, Any], name: str | None, values: list[Any]) -> None:
    if name:
        flags[name] = True if not values else values[0] if len(values) == 1 else list(values)


def _value(text: str) -> Any:
    if _is_number(text):
        return ast.literal_eval(text.lstrip("+"))
    return text


def _is_number(text: str) -> bool:
    body = text[1:] if text[:1] in "+-" else text
    if not body or len(body) > _LONGEST or (not body[0].isdecimal() and body[0] != "."):
        return False
    if len(body) > 1 and body[0] == "0" and body[1].isdecimal():
        return False
    try:
        float(body)
    except ValueError:
        return False
    return body.isascii() and "_" not in body
