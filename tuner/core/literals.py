"""Reads server args from the text of a log line: a dataclass repr, a dict repr or a `key=value` list, whole or torn.

Engines print their settings as Python source. Whatever cannot be read as a literal is kept as text, and a line
that was cut ends the dictionary early; nothing here raises.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from tuner.core.redact import mask_json

_OPENER = re.compile(r"\s*(?:[A-Za-z_][\w.]*\s*)?[({]")
_KEY = re.compile(r"\s*(?:'(?P<quoted>[^'\\]+)'\s*:|(?P<bare>[A-Za-z_]\w*)\s*=)\s*")
# One step of a value: a whole string, a bracket, or a run of anything else but commas.
_STEP = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\[({]|[\])}]|,|[^'\"\[\](){},]+|.", re.DOTALL)
_ESCAPE = re.compile(r"\\([4-7][0-7]{2}|.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\\'\"abfnrtv01234567xNuU\n")
_OPENERS = frozenset("([{")
_CLOSERS = frozenset(")]}")


def parse_settings(text: str) -> dict[str, Any]:
    """Read settings from text that begins with or after `Name(`, `{` or the first key.

    Args:
        text: `ServerArgs(model_path='x', tp_size=8)`, `{'model_path': 'x'}` or `model='x', dtype=torch.bfloat16`.

    Returns:
        Values by name, secrets masked. A value that is no literal is its text. What follows a tear is left out.
    """
    opener = _OPENER.match(text)
    position = opener.end() if opener is not None else 0
    settings: dict[str, Any] = {}
    unclosed: set[str] = set()
    while (key := _KEY.match(text, position)) is not None:
        end, whole = _value_end(text, key.end(), unclosed)
        if end == len(text) and (opener is not None or not whole):
            break
        name = key["quoted"] or key["bare"]
        settings[name] = _literal(text[key.end() : end].strip())
        if text[end : end + 1] != ",":
            break
        position = end + 1
    masked: dict[str, Any] = mask_json(settings)
    return masked


def _value_end(text: str, start: int, unclosed: set[str]) -> tuple[int, bool]:
    """Return where a value ends, and whether all quotes and brackets in it are closed.

    A quote that is never closed is put into `unclosed`, so that the text after it is not read again for each later one.
    """
    depth = 0
    whole = True
    position = start
    while position < len(text):
        piece = text[position]
        if piece not in unclosed and (step := _STEP.match(text, position)):
            piece = step.group()
        if piece in _OPENERS:
            depth += 1
        elif piece in _CLOSERS:
            if depth == 0:
                return position, whole
            depth -= 1
        elif piece == "," and depth == 0:
            return position, whole
        elif piece in "'\"":
            whole = False
            unclosed.add(piece)
        position += len(piece)
    return len(text), whole and depth == 0


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(_ESCAPE.sub(_escaped, text) if "\\" in text else text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _escaped(found: re.Match[str]) -> str:
    """Keep a backslash that is no escape of Python's as the character it is: the compiler would warn of it."""
    return found[0] if found[1] in _KNOWN_ESCAPES else f"\\{found[0]}"
