"""Read server args from a command line without imitating the engine's parser: unknown flags are kept by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tuner.domain.recipe import Argument, CommandLine

_GREATEST = 1 << 20
"""Largest absolute value accepted as a size; larger ones are taken for garbage."""
_LONGEST = 40
"""Largest number of characters of a number."""
_BOOLEANS = ("true", "false")
_PYTHON = re.compile(r"(?:^|/)python[\d.]*$")
_PYTHON_TAKES = ("-m", "-X", "-W", "-c")
"""Options of Python that take a word."""
_PYTHON_ENDS = ("-m", "-c")
"""Options of Python behind which all words belong to the program."""
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
    flags: dict[str, Any] = {}
    loose: list[str] = []
    for each in read_arguments(argv, aliases, positional=positional, takes=takes, lists=lists):
        if each.name:
            values = [_value(value) for value in each.values]
            flags[each.name] = True if not values else values[0] if len(values) == 1 else values
        elif not each.flag:
            loose += each.words
    if positional and loose:
        flags.setdefault(positional, loose[0])
    return flags


def read_arguments(
    argv: Sequence[str],
    aliases: Mapping[str, str],
    *,
    positional: str = "",
    takes: Mapping[str, int] | None = None,
    lists: Collection[str] = (),
) -> tuple[Argument, ...]:
    """Return the arguments of a command line in order, each flag with its values; the arguments are `read_flags`'s."""
    takes = takes or {}
    given = any(_canonical(word.partition("=")[0], aliases) == positional for word in argv if _is_flag(word))
    found: list[Argument] = []
    words: list[str] = []
    name, values, missing = "", list[Any](), bool(positional) and not given
    for word in argv:
        if _is_flag(word):
            _close(found, name, words)
            flag, equals, value = word.partition("=")
            name, words = _canonical(flag, aliases), [word]
            values = [_value(value)] if equals else []
        elif words and not (
            positional
            and (
                "=" in words[0] or (name not in lists and _has_all(name, values, _value(word), takes, missing=missing))
            )
        ):
            words.append(word)
            values.append(_value(word))
        else:
            _close(found, name, words)
            words = []
            found.append(Argument(words=(word,)))
            missing = False
    _close(found, name, words)
    return tuple(found)


def command_line(argv: Sequence[str], first: int | None, arguments: Sequence[Argument] = ()) -> CommandLine:
    """Return a command line taken apart.

    Args:
        argv: The whole of it.
        first: Index of its first argument; None: what it runs is not known, so its arguments begin with the first flag
            that is none of Python's.
        arguments: The arguments from there on.
    """
    if first is not None:
        return CommandLine(command=tuple(argv[:first]), arguments=tuple(arguments))
    first = program_end(argv)
    return CommandLine(command=tuple(argv[:first]), arguments=read_arguments(argv[first:], {}), known=False)


def program_end(argv: Sequence[str]) -> int:
    """Return the index of the first word after a program that is not known: its first flag, after `python -m NAME`."""
    at = 1
    if argv and _PYTHON.search(argv[0]):
        while at < len(argv) and argv[at].startswith("-"):
            option = argv[at]
            at += 2 if option in _PYTHON_TAKES else 1
            if option in _PYTHON_ENDS:
                break
    return next((index for index in range(at, len(argv)) if _is_flag(argv[index])), len(argv))


def _close(found: list[Argument], name: str, words: Sequence[str]) -> None:
    """Append the flag whose words are complete; nothing while there is none."""
    if words:
        flag, equals, value = words[0].partition("=")
        values = (value, *words[1:]) if equals else tuple(words[1:])
        found.append(Argument(name=name, flag=flag, values=values, words=tuple(words)))


def _is_flag(word: str) -> bool:
    """Return whether argparse takes a word for a flag: it begins with a dash, and is no number and no sentence."""
    return word.startswith("-") and len(word) > 1 and not _is_number(word) and " " not in word.partition("=")[0]


def _has_all(name: str, values: Sequence[Any], word: Any, takes: Mapping[str, int], *, missing: bool) -> bool:
    """Return whether a flag that has `values` takes no further word; `missing`: the positional argument is."""
    if name in takes or name.startswith(_SWITCHES):
        wanted = takes.get(name, 0)
        # Switches of vLLM up to 0.8 take an optional word.
        return len(values) >= (wanted or int(str(word).lower() in _BOOLEANS))
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
    name, dot, key = flag.lstrip("-").replace("-", "_").partition(".")
    return aliases.get(name, name) + dot + key


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
