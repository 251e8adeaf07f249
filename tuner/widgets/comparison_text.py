"""How two starts differ, as lines: what explains the outcome first, then phase by phase and rank by rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from tuner.domain.comparison import Comparison, Difference, Group, Measure, Origin, RankPair, Role, Side, Value
from tuner.domain.findings import Outcome
from tuner.units import format_duration
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.notes import ranges
from tuner.widgets.spans import Line, clean, clip, width_of, wrap_words

_ROLES = {
    Role.EXPLAINS: ("what explains it", "bad"),
    Role.POSSIBLE: ("what may have a part in it", "warn"),
    Role.ACQUITTED: ("changed, and not the reason", "ok"),
    Role.NOISE: ("differ between any two starts", "dim"),
}
"""The kinds that have a list of their own; what follows from others is in the tables below."""
_GROUPS = {
    Group.ARGUMENT: "arguments",
    Group.ENVIRONMENT: "environment",
    Group.VERSION: "versions",
    Group.PHASE: "phases, seconds of the slowest rank",
    Group.MEMORY: "memory, GiB of the weakest rank",
    Group.POOL: "KV pool",
    Group.GRAPHS: "CUDA graphs",
    Group.LIMIT: "limits",
}
_NAMES = {
    "total": "the card",
    "communicators": "NCCL, all-reduce",
    "before weights": "free before weights",
    "after weights": "free after weights",
    "after pool": "free after pool",
    "at ready": "free at ready",
}
_ECHOES = frozenset({"max_total_num_tokens", "available_gpu_mem"})
"""Limits that repeat a row above."""
_TELLING = ("NCCL", "SGL", "VLLM", "CUDA", "TORCH", "PYTORCH", "FLASHINFER", "TRITON", "NVSHMEM")
"""How variables begin that engines and their libraries read."""
_MOST = 20
_INDENT = 3


class Told(Struct, frozen=True):
    """The text, and where its sections begin."""

    lines: tuple[Line, ...]
    headings: tuple[int, ...]


class _Page:
    """Lines as they are put together; the columns are the same in all of it."""

    def __init__(self, comparison: Comparison, names: tuple[str, str], width: int, glyphs: Glyphs) -> None:
        self.comparison, self.names, self.width, self.glyphs = comparison, names, width, glyphs
        longest = max((len(each.name) for each in comparison.differences), default=0)
        self.name = max(22, min(longest + 2, width * 2 // 5))
        self.value = max(14, min(28, (width - self.name - _INDENT - 14) // 2))
        self.lines: list[Line] = []
        self.headings: list[int] = []

    def heading(self, text: str, style: str = "strong") -> None:
        """A section begins."""
        if self.lines:
            self.lines.append(())
        self.headings.append(len(self.lines))
        self.lines.append(((f" {text}", style),))

    def words(self, text: str, style: str = "text", indent: int = 1) -> None:
        """A text over as many lines as it takes."""
        for chunk in wrap_words(clean(text), self.width - indent - 1):
            self.lines.append(((" " * indent, "text"), (chunk, style)))

    def row(
        self, name: str, values: Sequence[str], beside: str = "", style: str = "text", *, right: bool = False
    ) -> None:
        """A name, two values and what is beside them."""
        ellipsis = self.glyphs.ellipsis
        label = clip(clean(name), self.name, ellipsis)
        cells = [clip(clean(value), self.value, ellipsis) for value in values]
        padded = [cell.rjust(self.value) if right else cell.ljust(self.value) for cell in cells]
        line: Line = (
            (" " * _INDENT + label + " " * (self.name - width_of(((label, ""),))), "dim" if style == "text" else style),
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
    """The whole comparison.

    Args:
        comparison: What `core.compare` found.
        names: Of the baseline and of the other one.
        width: Cells of a line.
        glyphs: Signs to draw with.
        noise: With what differs between any two starts.
        each_rank: With the numbers of every rank.
    """
    page = _Page(comparison, names, width, glyphs)
    if comparison.summary:
        page.words(comparison.summary, "strong")
    for text in comparison.obstacles:
        page.words(f"{glyphs.warn} these two do not compare: {text}", "warn")
    page.lines.append(())
    page.row("", names, style="head")
    for role, (title, style) in _ROLES.items():
        found = tuple(each for each in comparison.of(role) if not _untold(each))
        _role(page, found, title, style, shown=role is not Role.NOISE or noise)
    page.heading("the two starts")
    for what, cells in _sides(comparison.good, comparison.bad):
        page.row(what, cells, style="strong" if what == "outcome" else "text")
    for group, title in _GROUPS.items():
        _group(page, group, title, each_rank=each_rank)
    return Told(tuple(page.lines), tuple(page.headings))


def _role(page: _Page, found: Sequence[Difference], title: str, style: str, *, shown: bool) -> None:
    if not found:
        return
    sign = {"bad": page.glyphs.bad, "warn": page.glyphs.warn, "ok": page.glyphs.ok}.get(style, page.glyphs.note)
    if not shown:
        words = "one more thing differs, as between any two starts" if len(found) == 1 else f"{len(found)} more {title}"
        page.heading(f"{sign} {words}", style)
        return
    page.heading(f"{sign} {title}", style)
    last = ""
    for each in found[:_MOST]:
        page.row(_named(each.group, each.name), (_side(each, good=True), _side(each, good=False)), style="strong")
        if each.note and each.note != last and each.note not in page.comparison.summary:
            page.words(each.note, "dim", indent=_INDENT + 3)
        last = each.note
    if len(found) > _MOST:
        page.words(f"and {len(found) - _MOST} more", "dim", indent=_INDENT)


def _group(page: _Page, group: Group, title: str, *, each_rank: bool) -> None:
    """All that differs of a kind, or all that both starts tell of it."""
    measures = [each for each in page.comparison.measures if each.group is group and each.name not in _ECHOES]
    others = [each for each in page.comparison.differences if each.group is group and not _untold(each)]
    if group in (Group.ARGUMENT, Group.ENVIRONMENT, Group.VERSION):
        wanted = [each for each in others if each.role is not Role.NOISE]
        if not wanted:
            page.heading(
                f"{title}: the same in both" if not others else f"{title}: nothing that matters differs", "dim"
            )
            return
        page.heading(title)
        for each in sorted(wanted, key=lambda each: each.name):
            page.row(each.name, (_side(each, good=True), _side(each, good=False)))
        return
    if not measures:
        return
    page.heading(title)
    for measure in measures:
        values = _numbers(measure, measure.good, measure.bad)
        odd = measure.good is None or measure.bad is None or _unlike(measure)
        page.row(_named(group, measure.name), values, _beside(measure), "strong" if odd else "text", right=True)
        if each_rank and len(measure.pairs) > 1:
            for cells, ranks in _alike(measure).items():
                words = f"  all {len(ranks)} alike" if len(ranks) == len(measure.pairs) else f"  rank {ranges(ranks)}"
                page.row(words, cells, style="dim", right=True)


def _untold(each: Difference) -> bool:
    """What only one of the two tells is no difference that anybody knows of, unless it is a variable that matters."""
    if Origin.UNKNOWN not in (each.good_origin, each.bad_origin):
        return False
    return each.role is Role.NOISE or (each.group is Group.ENVIRONMENT and not each.name.startswith(_TELLING))


def _alike(measure: Measure) -> dict[tuple[str, str], list[int]]:
    """Ranks by their numbers as they are shown."""
    found: dict[tuple[str, str], list[int]] = {}
    for pair in measure.pairs:
        cells = _numbers(measure, pair.good, pair.bad)
        found.setdefault(cells, []).append(pair.rank)
    return found


def _numbers(measure: Measure, good: float | None, bad: float | None) -> tuple[str, str]:
    """Both sides; the unit stands in the heading where all rows have the same."""
    unit = f" {measure.unit}" if measure.group in (Group.POOL, Group.GRAPHS) and measure.unit in ("s", "GiB") else ""
    one, other = number_text(good, measure.unit), number_text(bad, measure.unit)
    return one if good is None else one + unit, other if bad is None else other + unit


def _named(group: Group, name: str) -> str:
    return _NAMES.get(name, name) if group is Group.MEMORY else name


def _unlike(measure: Measure) -> bool:
    good, bad = measure.good or 0.0, measure.bad or 0.0
    return abs(good - bad) > max(0.05 * abs(good), 0.05 if measure.unit == "GiB" else 0.5)


def _sides(good: Side, bad: Side) -> Iterator[tuple[str, tuple[str, str]]]:
    """What tells the two starts apart; a row that both leave empty is left out."""
    rows = (
        ("engine", lambda side: " ".join(part for part in (side.engine, side.version) if part)),
        ("LLM", lambda side: (side.model or "").rstrip("/").rpartition("/")[2]),
        ("ranks", lambda side: str(side.ranks) if side.ranks else ""),
        ("outcome", _outcome),
        ("fraction", _fraction),
        ("least fraction", lambda side: "" if side.f_min is None else f"{side.f_min:.4f}"),
        ("KV pool, weakest rank", lambda side: "" if side.pool_gib is None else f"{side.pool_gib:.2f} GiB"),
    )
    for what, of in rows:
        cells = (of(good), of(bad))
        if any(cells):
            yield what, cells


def _outcome(side: Side) -> str:
    if side.outcome is Outcome.FAILED:
        return "FAILED while serving" if side.phase == "ready" else f"FAILED in {side.phase}"
    return str(side.outcome)


def _fraction(side: Side) -> str:
    if side.fraction is None:
        return ""
    return f"{side.fraction:g}{' by its pool' if side.fraction_origin is Origin.EFFECTIVE else ''}"


def _side(each: Difference, *, good: bool) -> str:
    value, origin = (each.good, each.good_origin) if good else (each.bad, each.bad_origin)
    if value is None:
        return "not told" if origin is Origin.UNKNOWN else "not set"
    words = {Origin.GIVEN: " (given)", Origin.EFFECTIVE: " (in effect)"}.get(origin, "")
    return value_text(value, each.unit) + words


def value_text(value: Value, unit: str = "") -> str:
    """A value of one side."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        many = len(value) > 4
        return f"{len(value)} from {min(value)} to {max(value)}" if many else ", ".join(str(each) for each in value)
    if isinstance(value, int | float) and unit:
        return number_text(value, unit)
    return str(value)


def number_text(value: float | None, unit: str) -> str:
    """A number with its unit; seconds and GiB stand in the heading and have none."""
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:.1f}" if value < 60 else format_duration(value)
    if unit == "GiB":
        return f"{value:.2f}"
    text = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.2f}"
    return f"{text} {unit}" if unit and unit != "tokens" else text


def _beside(measure: Measure) -> str:
    """How the two compare, and the ranks that are not as the others."""
    parts: list[str] = []
    good, bad, times = measure.good, measure.bad, measure.ratio
    if good is not None and bad is not None and good != bad:
        if measure.unit == "GiB":
            parts += [f"{bad - good:+.2f}"] if abs(bad - good) >= 0.005 else []
        elif measure.unit == "s":
            parts += [f"x {times:.2f}"] if times is not None and abs(bad - good) >= 0.5 else []
        elif times is not None and abs(times - 1) >= 0.001:
            parts.append(f"{(times - 1) * 100:+.1f} %")
    odd = list(_odd(measure.pairs, measure.unit))
    parts += odd[:2] + ([f"{len(odd) - 2} more ranks differ"] if len(odd) > 2 else [])
    return "  ".join(parts)


def _odd(pairs: Sequence[RankPair], unit: str) -> Iterator[str]:
    """Ranks whose change is another than that of the rank in the middle."""
    known = [(pair, pair.bad - pair.good) for pair in pairs if pair.good is not None and pair.bad is not None]
    if len(known) < 3:
        return
    middle = sorted(gap for _, gap in known)[len(known) // 2]
    least = 1.0 if unit == "s" else 0.1
    for pair, gap in known:
        if abs(gap - middle) > max(least, 0.2 * abs(middle)):
            yield f"rank {pair.rank}: {number_text(pair.good, unit)} and {number_text(pair.bad, unit)}"
