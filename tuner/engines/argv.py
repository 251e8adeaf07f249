"""Flags of a command line as server args. No parser of the engine is imitated: unknown flags are kept by name."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

_GREATEST = 1 << 20
_LONGEST = 40
"""Characters of a number."""


def read_flags(
    argv: Sequence[str], aliases: Mapping[str, str], *, positional: str = "", takes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Flags by canonical (underscored) name.

    A flag without value is True, several values are a list, the last mention wins. Values are numbers where they
    look like numbers.

    Args:
        argv: The command line.
        aliases: Other spellings, without dashes and underscored, to the canonical name.
        positional: Name of the one argument without a flag; empty: there is none, and words are the flag's before them.
        takes: How many words a flag takes, by canonical name. Of any other flag's numbers a word that is none ends
            the list where `positional` is wanted.
    """
    flags: dict[str, Any] = {}
    name: str | None = None
    values: list[Any] = []
    loose: list[Any] = []
    for argument in argv:
        if argument.startswith("-") and not _is_number(argument) and len(argument) > 1:
            _store(flags, name, values)
            flag, equals, value = argument.partition("=")
            name = _canonical(flag, aliases)
            values = [_value(value)] if equals else []
            continue
        value = _value(argument)
        if positional and (name is None or _has_all(name, values, value, takes or {})):
            loose.append(argument)
        elif name is not None:
            values.append(value)
    _store(flags, name, values)
    if loose:
        flags.setdefault(positional, loose[0])
    return flags


def _has_all(name: str, values: Sequence[Any], word: Any, takes: Mapping[str, int]) -> bool:
    """Whether a flag with these values cannot take another word."""
    if name in takes or name.startswith("no_"):
        return len(values) >= takes.get(name, 0)
    return bool(values) and isinstance(word, str) and not any(isinstance(value, str) for value in values)


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
