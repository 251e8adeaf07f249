"""Lines as values: pieces of text, each with the name of a style.

What a screen says is composed of such values and tested without a terminal. Remote text passes through `clean`, is
never parsed as markup, and is measured in terminal cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

from tuner.core import logtext

Span = tuple[str, str]
"""A text and the name of its style in `rows.LOOKS`."""
Line = tuple[Span, ...]


def clean(text: str) -> str:
    """Return remote text fit to be shown on one line: no control sequences, tabs as spaces."""
    if text.isascii() and text.isprintable():
        return text
    return logtext.clean(text).replace("\t", "    ").replace("\n", " ")


def width_of(line: Iterable[Span]) -> int:
    """Return the width of a line, in cells."""
    return sum(text_width(text) for text, _ in line)


def text_width(text: str) -> int:
    """Return the width of a text, in cells."""
    return len(text) if text.isascii() else cell_len(text)


def text_of(line: Iterable[Span]) -> str:
    """Return the text of a line, without styles."""
    return "".join(text for text, _ in line)


def clip(text: str, width: int, ellipsis: str = "…") -> str:
    """Cut a text to a width in cells; a cut is marked by an ellipsis."""
    if width <= 0:
        return ""
    if (len(text) if text.isascii() else cell_len(text)) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ellipsis if width > 1 else ellipsis


def clip_line(line: Sequence[Span], width: int, ellipsis: str = "…") -> Line:
    """Cut a line to a width in cells; a cut is marked by an ellipsis."""
    if width_of(line) <= width:
        return tuple(line)
    kept: list[Span] = []
    left = width
    for text, style in line:
        cells = cell_len(text)
        if cells >= left:
            # One cell more than fits makes `clip` mark the cut also where a piece ends exactly at the edge.
            kept.append((clip(text + " ", left, ellipsis) if cells == left else clip(text, left, ellipsis), style))
            break
        kept.append((text, style))
        left -= cells
    return tuple(kept)


def spread(left: Sequence[Span], right: Sequence[Span], width: int, ellipsis: str = "…") -> Line:
    """Return one line with a left and a right part; the left part is cut where both do not fit."""
    room = width - width_of(right) - 2
    if not right or room < 8:
        return clip_line(left, width, ellipsis)
    kept = clip_line(left, room, ellipsis)
    return (*kept, (" " * (width - width_of(kept) - width_of(right)), "text"), *right)


def fit(parts: Sequence[Sequence[Span]], width: int, separator: Span) -> Line:
    """Join the parts that fit entirely, in order; a part that does not fit is left out and never cut."""
    line: list[Span] = []
    used = 0
    for part in parts:
        cells = width_of(part)
        if not cells:
            continue
        extra = width_of((separator,)) if line else 0
        if used + extra + cells > width:
            continue
        if line:
            line.append(separator)
        line.extend(part)
        used += extra + cells
    return tuple(line)


def wrap_parts(parts: Sequence[Sequence[Span]], width: int, separator: Span, indent: int = 0) -> list[Line]:
    """Join parts into as many lines as needed, breaking only between parts."""
    lines: list[Line] = []
    line: list[Span] = []
    used = 0
    for part in parts:
        cells = width_of(part)
        extra = width_of((separator,))
        if line and used + extra + cells > width:
            lines.append(tuple(line))
            line, used = [(" " * indent, "text")], indent
        elif line:
            line.append(separator)
            used += extra
        line.extend(part)
        used += cells
    if line:
        lines.append(tuple(line))
    return lines


def dim_lines(text: str, width: int) -> list[Line]:
    """Return a text as dim lines, broken between words, with a margin of one cell on either side."""
    return [((f" {chunk}", "dim"),) for chunk in wrap_words(text, width - 2)]


def wrap_words(text: str, width: int) -> list[str]:
    """Break a text into lines between words; a word that is longer than a line is broken at its end."""
    lines = [""]
    for word in text.split():
        while cell_len(word) > width:
            # A path may be longer than a line.
            room = width - (cell_len(lines[-1]) + 1 if lines[-1] else 0)
            if room < width // 4:
                lines.append("")
                continue
            head = chop_cells(word, room)[0]
            lines[-1] = f"{lines[-1]} {head}" if lines[-1] else head
            word = word[len(head) :]
            lines.append("")
        if not lines[-1]:
            lines[-1] = word
        elif cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines if lines[-1] or len(lines) == 1 else lines[:-1]
