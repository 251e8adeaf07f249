"""The differences between two starts as lines: what explains the outcome first, then phase by phase, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tuner.core import comparison_words as words
from tuner.domain.comparison import Comparison, Difference, Group, Measure, Role
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.notes import ranges
from tuner.widgets.spans import Line, clean, clip, text_width, width_of, wrap_words

_STYLES = {Role.EXPLAINS: "bad", Role.POSSIBLE: "warn", Role.ACQUITTED: "ok", Role.NOISE: "dim"}
_LISTS = {Group.ARGUMENT: "arguments", Group.ENVIRONMENT: "environment", Group.VERSION: "versions"}
"""Title of each group whose differences have no numbers and are listed by name."""
_INDENT = 3


class Told(Struct, frozen=True):
    """The lines of a comparison, and the indexes of those that are section headings."""

    lines: tuple[Line, ...]
    headings: tuple[int, ...]


class _Page:
    """Collects the lines of a comparison; the columns have the same width throughout."""

    def __init__(self, comparison: Comparison, names: tuple[str, str], width: int, glyphs: Glyphs) -> None:
        self.comparison, self.names, self.width, self.glyphs = comparison, names, width, glyphs
        longest = max((len(each.name) for each in comparison.differences), default=0)
        self.name = max(22, min(longest + 2, width * 2 // 5))
        self.value = max(14, min(28, (width - self.name - _INDENT - 14) // 2))
        self.lines: list[Line] = []
        self.headings: list[int] = []

    def heading(self, text: str, style: str = "strong") -> None:
        """Begin a section."""
        if self.lines:
            self.lines.append(())
        self.headings.append(len(self.lines))
        self.lines.append(((f" {text}", style),))

    def words(self, text: str, style: str = "text", indent: int = 1) -> None:
        """Add a text, wrapped to the width."""
        for chunk in wrap_words(clean(text), self.width - indent - 1):
            self.lines.append(((" " * indent, "text"), (chunk, style)))

    def row(
        self, name: str, values: Sequence[str], beside: str = "", style: str = "text", *, right: bool = False
    ) -> None:
        """Add a row: a name, two values, and a remark beside them."""
        ellipsis = self.glyphs.ellipsis
        label = clip(clean(name), self.name, ellipsis)
        cells = [clip(clean(value), self.value, ellipsis) for value in values]
        padded = [cell.rjust(self.value) if right else cell.ljust(self.value) for cell in cells]
        line: Line = (
            (" " * _INDENT + label + " " * (self.name - text_width(label)), "dim" if style == "text" else style),
            (f"{padded[0]}  ", style if style in ("dim", "head") else "text"),
            (padded[1], style),
        )
        room = self.width - width_of(line) - 2
        if beside and room >= 8:
            line = (*line, (f"  {clip(beside, room, ellipsis)}", "dim"))
        self.lines.append(line)


def told(
    comparison: Comparison,
    names: tuple[str, str],
    width: int,
    glyphs: Glyphs,
    *,
    noise: bool = False,
    each_rank: bool = False,
) -> Told:
    """Return the whole comparison as lines.

    Args:
        comparison: The result of `core.compare`.
        names: Names of the baseline and of the other start.
        width: Width of a line, in cells.
        glyphs: Symbols to draw with.
        noise: Show differences that any two starts have as well.
        each_rank: Show the numbers of every rank.
    """
    page = _Page(comparison, names, width, glyphs)
    if comparison.summary:
        page.words(comparison.summary, "strong")
    for text in words.obstacles(comparison):
        page.words(f"{glyphs.warn} {text}", "warn")
    page.lines.append(())
    page.row("", names, style="head")
    for role, title, found in words.sections(comparison):
        _role(page, found, title, _STYLES[role], shown=role is not Role.NOISE or noise)
    page.heading("the two starts")
    for row in words.sides(comparison):
        page.row(row.name, row.values, style="strong" if row.name == "outcome" else "text")
    for group, title in _LISTS.items():
        _list(page, group, title)
    for group, title in words.GROUPS.items():
        _table(page, group, title, each_rank=each_rank)
    return Told(tuple(page.lines), tuple(page.headings))


def _role(page: _Page, found: Sequence[Difference], title: str, style: str, *, shown: bool) -> None:
    sign = {"bad": page.glyphs.bad, "warn": page.glyphs.warn, "ok": page.glyphs.ok}.get(style, page.glyphs.note)
    if not shown:
        one, many = "one more thing differs", f"{len(found)} more differ"
        page.heading(f"{sign} {one if len(found) == 1 else many}, as between any two starts", style)
        return
    page.heading(f"{sign} {title}", style)
    for row in words.rows(page.comparison, found[: words.MOST]):
        page.row(row.name, row.values, style="strong")
        if row.note:
            page.words(row.note, "dim", indent=_INDENT + 3)
    if len(found) > words.MOST:
        page.words(f"and {len(found) - words.MOST} more", "dim", indent=_INDENT)


def _list(page: _Page, group: Group, title: str) -> None:
    """Add the differences of one group, except noise."""
    found = [each for each in page.comparison.differences if each.group is group]
    told = [each for each in found if not each.untold]
    wanted = [each for each in told if each.role is not Role.NOISE]
    if not wanted:
        what = "nothing that matters differs" if told else words.alike(page.comparison, group)
        page.heading(f"{title}: {what}", "dim")
        return
    page.heading(title)
    for each in sorted(wanted, key=lambda each: each.name):
        page.row(each.name, words.values(each))


def _table(page: _Page, group: Group, title: str, *, each_rank: bool) -> None:
    """Add the measured numbers of one group."""
    measures = words.measured(page.comparison, group)
    if not measures:
        return
    page.heading(title)
    for measure in measures:
        values = words.numbers(measure, measure.good, measure.bad)
        beside = words.beside(measure, comparable=not page.comparison.obstacles)
        odd = measure.good is None or measure.bad is None or _striking(measure)
        page.row(words.name_of(measure), values, beside, "strong" if odd else "text", right=True)
        if each_rank and len(measure.pairs) > 1:
            for cells, ranks in _alike(measure).items():
                name = f"  all {len(ranks)} alike" if len(ranks) == len(measure.pairs) else f"  rank {ranges(ranks)}"
                page.row(name, cells, style="dim", right=True)


def _alike(measure: Measure) -> dict[tuple[str, str], list[int]]:
    """Return the ranks that show equal numbers, keyed by the two texts."""
    found: dict[tuple[str, str], list[int]] = {}
    for pair in measure.pairs:
        cells = words.numbers(measure, pair.good, pair.bad)
        found.setdefault(cells, []).append(pair.rank)
    return found


def _striking(measure: Measure) -> bool:
    """Return whether a row is drawn strong: its numbers differ by more than those of two equal starts usually do."""
    good, bad = measure.good or 0.0, measure.bad or 0.0
    return abs(good - bad) > max(0.05 * abs(good), 0.05 if measure.unit == "GiB" else 0.5)
