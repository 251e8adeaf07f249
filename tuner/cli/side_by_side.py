"""A comparison of two starts as text in two columns; differences that explain the outcome come first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.cli.paper import Paper
from tuner.cli.tables import plain
from tuner.core import comparison_words as words
from tuner.domain.comparison import Comparison, Role

_READABLE = 24
"""Characters that a remark beside the numbers needs; with less room it stands below them."""
_INKS = {Role.EXPLAINS: "bad", Role.POSSIBLE: "warn", Role.ACQUITTED: "good", Role.NOISE: "dim"}


def lines(comparison: Comparison, paper: Paper, *, noise: bool = False) -> Iterator[str]:
    """Yield the whole comparison as text.

    Args:
        comparison: The two starts and their differences.
        paper: Lays out the lines.
        noise: Show differences that any two starts have as well.
    """
    table = _Columns(paper, comparison)
    yield from table.heads(_names(comparison))
    for row in words.sides(comparison):
        yield from table.row(row.name, row.values, "strong" if row.name == "outcome" else "")
    yield ""
    yield from _sentences(comparison, paper)
    yield from _differences(comparison, table, noise=noise)
    yield from _measures(comparison, table)


def against(comparison: Comparison, paper: Paper, *, noise: bool = False) -> Iterator[str]:
    """Yield the short form, which is printed below a diagnosis."""
    yield ""
    name = ", ".join(comparison.good.files) or "the baseline"
    yield paper.rule(plain(f"against {name}"), "strong")
    yield from _sentences(comparison, paper)
    table = _Columns(paper, comparison)
    rows = list(_differences(comparison, table, noise=noise))
    if rows:
        yield ""
        yield from table.heads(("baseline", "this start"))
        yield from rows


def _sentences(comparison: Comparison, paper: Paper) -> Iterator[str]:
    for text in words.obstacles(comparison):
        yield from (paper.ink(line, "warn") for line in paper.wrapped(text))
    if comparison.summary:
        yield from paper.wrapped(comparison.summary)


class _Columns:
    """The column widths of the comparison: a name, two values, and a remark; equal throughout the text."""

    def __init__(self, paper: Paper, comparison: Comparison) -> None:
        self.paper = paper
        longest = max((len(each.name) for each in comparison.differences), default=0)
        self.name = max(min(27, paper.width * 2 // 5), min(longest + 2, paper.width * 2 // 5))
        self.number = max(11, min(18, (paper.width - self.name) // 5))
        self.value = (paper.width - self.name - 4) // 2

    def heads(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the line of column headings; a name that is too long keeps its end."""
        cells = [name if len(name) <= self.value else "…" + name[1 - self.value :] for name in map(plain, names)]
        text = " " * (self.name + 2) + cells[0].ljust(self.value) + "  " + cells[1]
        yield self.paper.letters(self.paper.ink(text, "dim"))

    def row(self, name: str, values: Sequence[str], style: str = "") -> Iterator[str]:
        """Yield a row whose values are text, flush left."""
        cells = [_cut(plain(name), self.name).ljust(self.name), _cut(plain(values[0]), self.value).ljust(self.value)]
        text = "  ".join([*cells, _cut(plain(values[1]), self.value)]).rstrip()
        yield self.paper.letters(self.paper.ink(text, style))

    def numbers(self, name: str, values: Sequence[str], beside: str) -> Iterator[str]:
        """Yield a row whose values are numbers, flush right, with a remark beside or below."""
        cells = [_cut(plain(name), self.name).ljust(self.name), *(value.rjust(self.number) for value in values)]
        head = "  ".join(cells)
        if len(head) + 2 + len(beside) <= self.paper.width:
            yield self.paper.letters(f"{head}  {plain(beside) if beside else ''}".rstrip())
            return
        room = self.paper.width - len(head) - 2
        below = "      " if room < _READABLE else " " * (len(head) + 2)
        parts = list(self.paper.wrapped(beside, indent=below))
        yield self.paper.letters(head if room < _READABLE else f"{head}  {parts.pop(0).lstrip()}")
        yield from parts


def _differences(comparison: Comparison, table: _Columns, *, noise: bool) -> Iterator[str]:
    paper = table.paper
    for role, title, found in words.sections(comparison):
        if role is Role.NOISE and not noise:
            continue
        yield ""
        yield paper.ink(title, _INKS[role])
        for row in words.rows(comparison, found[: words.MOST]):
            yield from table.row(f"  {row.name}", row.values)
            if row.note:
                yield from paper.wrapped(row.note, indent="      ")
        if len(found) > words.MOST:
            yield f"  and {len(found) - words.MOST} more: --json has them all"


def _measures(comparison: Comparison, table: _Columns) -> Iterator[str]:
    for group, title in words.GROUPS.items():
        measures = words.measured(comparison, group)
        if not measures:
            continue
        yield ""
        yield table.paper.ink(title, "strong")
        for each in measures:
            cells = words.numbers(each, each.good, each.bad)
            yield from table.numbers(
                f"  {words.name_of(each)}", cells, words.beside(each, comparable=not comparison.obstacles)
            )


def _names(comparison: Comparison) -> tuple[str, str]:
    """Return the names of the two starts' files without the folders that both have in common."""
    both = ((comparison.good, "first"), (comparison.bad, "second"))
    short = [(", ".join(side.files) or word).rstrip("/").split("/") for side, word in both]
    while len(short[0]) > 1 and len(short[1]) > 1 and short[0][0] == short[1][0]:
        short = [parts[1:] for parts in short]
    return "/".join(short[0]), "/".join(short[1])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
