"""Read server args from a command line without imitating the engine's parser: unknown flags are kept by name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from typing import Any

_GREATEST = 1 << 20
"""Largest absolute value accepted as a size; larger ones are taken for garbage."""
_LONGEST = 40
"""Largest number of characters of a number."""
_SWITCHES = ("enable_", "disable_", "trust_", "no_", "async_", "use_")
"""Beginnings of the names of flags that take no value, where nothing else is known of them."""


def read_flags(
    argv: Sequence[str],
    aliases: Mapping[str, str],
    *,
    positional: str = "",
    takes: Mapping[str, int] | None = None,
    lists: Collection[str] = (),
) -> dict[str, Any]:
    """Return the flags of a command line by canonical (underscored) name.

    A flag without a value is True, one with several values is a list. If a flag is repeated, the last one wins. Values
    that look like numbers become numbers.

    Args:
        argv: The command line after the program.
        aliases: Canonical name by other spelling, without leading dashes and with underscores.
        positional: Name of the one argument without a flag. If empty, there is none, and every word is a value of the
            flag before it.
        takes: Number of values that a flag takes, by canonical name; used with `positional`.
        lists: Canonical names of flags that take all words up to the next flag; used with `positional`. A flag that is
            in neither is a switch where its name begins like one (`enable_`, `no_`, ...). Others take all words up to
            the next flag; if their values are numbers, only up to a word that is none; if their first value is none,
            only that one while the positional argument is missing.
    """
    takes = takes or {}
    given = any(_canonical(word.partition("=")[0], aliases) == positional for word in argv if word.startswith("-"))
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
        if positional and (
            name is None or (name not in lists and _has_all(name, values, value, takes, missing=not (loose or given)))
        ):
            loose.append(argument)
        elif name is not None:
            values.append(value)
    _store(flags, name, values)
    if loose:
        flags.setdefault(positional, loose[0])
    return flags


def _has_all(name: str, values: Sequence[Any], word: Any, takes: Mapping[str, int], *, missing: bool) -> bool:
    """Return whether a flag that has `values` takes no further word; `missing`: the positional argument is."""
    if name in takes or name.startswith(_SWITCHES):
        return len(values) >= takes.get(name, 0)
    if not values:
        return False
    if isinstance(values[0], str):
        return missing
    return isinstance(word, str) and not any(isinstance(value, str) for value in values)


def as_int(value: Any, default: int, most: int = _GREATEST) -> int:
    """Convert a setting to int; return `default` if it is no number, or above `most`, the largest size."""
    if isinstance(value, bool) or value is None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if abs(number) <= most else default


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
