"""Find the line of each key in a TOML document, which the parser does not tell, so that an error names its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAME = r"(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|[A-Za-z0-9_-]+)"
_PATH = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_KEY = re.compile(rf"\s*({_PATH})\s*=")
_HEAD = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]")
_TOKEN = re.compile(r"\"\"\"|'''|\"(?:\\.|[^\"\\])*\"|'[^']*'|#.*|[\[\]{}]|.", re.DOTALL)


def key_lines(text: str) -> dict[str, int]:
    """Return the line number of each key by its dotted path; of tables and arrays of tables, of the first header.

    Args:
        text: A valid TOML document; of an invalid one the result is incomplete.
    """
    lines: dict[str, int] = {}
    for number, path in _keys(text):
        lines.setdefault(path, number)
    return lines


def item_line(text: str, item: str, first: int) -> int:
    """Return the line, from `first` on, on which a string stands in quotes; `first` if it is not found."""
    for number, line in enumerate(text.splitlines(), 1):
        if number >= first and re.search(rf"[\"']{re.escape(item)}[\"']", line):
            return number
    return first


def _keys(text: str) -> Iterator[tuple[int, str]]:
    table = ""
    quote, depth = "", 0
    """The kind of the multi-line string that is open, and the number of open brackets."""
    for number, line in enumerate(text.splitlines(), 1):
        rest = line
        if not quote and not depth:
            head = _HEAD.match(line)
            if head is not None:
                table = _plain(head[1])
                yield number, table
                continue
            key = _KEY.match(line)
            if key is None:
                continue
            path = f"{table}.{_plain(key[1])}" if table else _plain(key[1])
            yield number, path
            rest = line[key.end() :]
            if rest.lstrip().startswith("{"):
                yield from ((number, f"{path}.{name}") for name in _inline(rest))
        quote, depth = _after(rest, quote, depth)


def _after(text: str, quote: str, depth: int) -> tuple[str, int]:
    """Return the open multi-line string and the open brackets after one line."""
    if quote:
        _, closed, text = text.partition(quote)
        if not closed:
            return quote, depth
    for token in _TOKEN.findall(text):
        if token in ('"""', "'''"):
            return _after(text.partition(token)[2], token, depth)
        depth += (token in ("[", "{")) - (token in ("]", "}"))
    return "", max(depth, 0)


def _inline(text: str) -> Iterator[str]:
    """Yield the keys of an inline table."""
    for found in re.finditer(rf"(?:[{{,]\s*)({_PATH})\s*=", text):
        yield _plain(found[1])


def _plain(path: str) -> str:
    return ".".join(part.strip("\"'") for part in re.findall(_NAME, path))
