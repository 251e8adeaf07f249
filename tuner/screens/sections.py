"""Parts of the Details screen: sections of lines, and the breaking of long lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.cells import chop_cells

from tuner.core.doctor import Check, Verdict
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.spans import Line, clean, text_width, width_of

_KEY_WIDTH = 26
_VALUE_AT = _KEY_WIDTH + 4
"""The column in which values begin."""


class Section:
    """A heading with its lines."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: list[Line] = []

    def pair(self, key: str, value: Any) -> None:
        """Add a named value; None is shown as `n/a`."""
        text = "n/a" if value is None else clean(value if isinstance(value, str) else json.dumps(value, default=str))
        self.lines.append(((f"   {clean(key):<{_KEY_WIDTH}} ", "dim"), (text, "dim" if value is None else "text")))

    def verdict(self, check: Check, glyphs: Glyphs) -> None:
        """Add the result of a check: verdict, value, and what a failure costs."""
        sign, style = {
            Verdict.OK: (glyphs.ok, "ok"),
            Verdict.WARN: (glyphs.warn, "warn"),
            Verdict.MISSING: (glyphs.bad, "bad"),
        }[check.verdict]
        words = f"{check.value}: {check.cost}" if check.cost else check.value
        name = f"   {clean(check.what):<{_KEY_WIDTH - 2}} "
        self.lines.append(((name, "dim"), (f"{sign} ", style), (clean(words), "text")))

    def sign(self, key: str, text: str, good: bool | None, glyphs: Glyphs) -> None:
        """Add a statement that is true, false, or neither (None); without a key it continues the line before."""
        sign, style = {True: (glyphs.ok, "ok"), False: (glyphs.bad, "dim"), None: (glyphs.dash if key else "?", "dim")}[
            good
        ]
        name = f"   {clean(key):<{_KEY_WIDTH - 2}} "
        self.lines.append(((name, "dim"), (f"{sign} ", style), (clean(text), "text" if key else "dim")))

    def line(self, text: str, style: str = "text") -> None:
        """Add a line of text."""
        self.lines.append(((f"   {text}", style),))


def broken(line: Line, width: int) -> list[Line]:
    """Break a line that is too long; its last piece is continued under its own beginning.

    A long name is put on a line of its own, so that values keep their column.
    """
    *before, (text, style) = line
    indent = width_of(before)
    if len(before) == 1 and indent > _VALUE_AT:
        return [tuple(before), *broken(((" " * _VALUE_AT, "text"), (text, style)), width)]
    if width_of(line) < width:
        return [line]
    chunks = pieces(text, max(20, width - indent - 2))
    return [(*before, (chunks[0], style)), *(((" " * indent, "text"), (chunk, style)) for chunk in chunks[1:])]


def pieces(text: str, room: int) -> list[str]:
    """Cut a text into pieces of at most `room` cells, at a space where one is in the second half of a piece."""
    found: list[str] = []
    while text_width(text) > room:
        head = chop_cells(text[:room], room)[0]
        space = head.rfind(" ") + 1
        if room < 2 * space:
            head = head[:space]
        found.append(head)
        text = text[len(head) :]
    return [*found, text]


def argv_lines(argv: Sequence[str]) -> list[str]:
    """Return a command as lines with one flag and its value each, so that a long one can be read."""
    lines: list[str] = []
    for word in argv:
        if word.startswith("-") or not lines or not lines[-1].startswith("-") or " " in lines[-1]:
            lines.append(clean(word))
        else:
            lines[-1] += f" {clean(word)}"
    return lines
