"""Lines of text for people: wrapped, aligned, and coloured where the output is a terminal that shows colours.

Text of a log is made harmless before it is laid out. Each symbol has an ASCII equivalent for outputs without Unicode,
and no meaning is carried by colour alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

import click

from tuner.cli.tables import plain

NARROWEST, WIDEST = 60, 140
"""Least and greatest width of a line, in characters. Longer lines are hard to read, however wide the terminal is."""
IN_A_PIPE = 100
_LEAST = 10
"""Characters of the last column at least, however wide the others are."""
_ASCII = str.maketrans({
    "│": "|", "┌": "+", "└": "+", "─": "-", "✗": "x", "▼": "v", "·": "-", "→": ">", "×": "x", "…": "~", "✓": "+",
})  # fmt: skip
_STYLES = {
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "good": {"fg": "green"},
    "note": {"fg": "cyan"},
    "dim": {"dim": True},
    "strong": {"bold": True},
}


@dataclass(frozen=True)
class Paper:
    """The width, colours and characters that an output can show."""

    width: int = IN_A_PIPE
    colour: bool = False
    ascii: bool = False
    whole_words: bool = False
    """True: a word that is longer than a line stays whole: it is a path mostly, which is copied."""

    @classmethod
    def of(cls, stream: TextIO | None = None) -> Paper:
        """Return the paper of an output stream; None for the standard output."""
        out: TextIO | None = sys.stdout if stream is None else stream
        if out is None:  # the parent process closed it
            return cls()
        screen = out.isatty()
        colour = screen and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns - 1 if screen or os.environ.get("COLUMNS") else IN_A_PIPE
        letters = (out.encoding or "ascii").lower().replace("-", "").startswith("utf")
        return cls(width=min(max(width, NARROWEST), WIDEST), colour=colour, ascii=not letters)

    def ink(self, text: str, style: str = "") -> str:
        """Return a text in a colour, where the output shows colours."""
        return click.style(text, **_STYLES[style]) if style and self.colour and text else text  # type: ignore[arg-type]

    def letters(self, text: str) -> str:
        """Return a text in the characters that the output can show."""
        if self.ascii:
            return text.translate(_ASCII).encode("ascii", "replace").decode()
        return text.encode("utf-8", "replace").decode()

    def wrapped(self, text: str, *, indent: str = "", label: str = "", hang: int = 0) -> Iterator[str]:
        """Yield a text as lines, the first behind a label and the others aligned with its text.

        Args:
            text: Our own text or text of a log; made harmless here.
            indent: Put before every line.
            label: Put before the first line, padded to `hang`.
            hang: Width of the label's column, in characters.
        """
        room = max(20, self.width - len(indent) - hang)
        lines = self._broken(plain(text), room) or [""]
        for number, line in enumerate(lines):
            head = self.ink(label.ljust(hang), "dim") if number == 0 else " " * hang
            yield self.letters(f"{indent}{head}{line}".rstrip())

    def _broken(self, text: str, width: int, *, hyphens: bool = False) -> list[str]:
        """Break a text into lines between words; also after a hyphen where `hyphens` is true."""
        return textwrap.wrap(text, width, break_long_words=not self.whole_words, break_on_hyphens=hyphens)

    def rule(self, title: str = "", style: str = "", corner: str = "") -> str:
        """Return a horizontal rule with a title at its left; a title that is too long keeps its end."""
        most = self.width - len(corner) - 2
        title = title if len(title) <= most else "…" + title[1 - most :]
        start = f"{corner} {title} " if title else corner
        rest = max(0, self.width - len(start))
        return self.letters(self.ink(start, style) + self.ink("─" * rest, style if corner else "dim"))

    def columns(self, rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), gap: int = 2) -> Iterator[str]:
        """Yield rows of cells, each column as wide as its widest cell; columns in `left` flush left, the others right.

        The last column may have any length: it is continued below itself at the end of a line, and moves below the
        other
        columns where they leave no room.
        """
        if not rows:
            return
        count = max(len(row) for row in rows)
        widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count - 1)]
        if sum(widths) + gap * len(widths) + _LEAST > self.width:
            gap = 1
        for row in rows:
            cells = [
                cell.ljust(width) if i in left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=False))
            ]
            head = (" " * gap).join([*cells, ""])
            last, room, below = "".join(row[count - 1 :]), self.width - len(head), " " * len(head)
            if room < _LEAST:
                yield self.letters(head.rstrip())
                head = below = "    "
                room = self.width - len(head)
                if not last:
                    continue
            for number, part in enumerate(self._broken(last, room, hyphens=not self.whole_words) or [""]):
                yield self.letters(f"{head if number == 0 else below}{part}".rstrip())
