"""A comparison of two starts as text for people: two columns, what explains the outcome first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tuner.cli.paper import Paper
from tuner.cli.tables import plain
from tuner.core.report_comparison import ComparisonReport, DifferenceReport, MeasureReport, PairReport, SideReport
from tuner.domain.comparison import Group, Origin, Role
from tuner.domain.findings import Outcome
from tuner.units import format_duration

_TITLES = {
    Role.EXPLAINS: ("what explains it", "bad"),
    Role.POSSIBLE: ("what may have a part in it", "warn"),
    Role.ACQUITTED: ("changed, and not the reason", "good"),
    Role.NOISE: ("differs between any two starts", "dim"),
}
_ORDER = (Role.EXPLAINS, Role.POSSIBLE, Role.ACQUITTED, Role.NOISE)
_GROUPS = {
    Group.PHASE: "phases, slowest rank",
    Group.MEMORY: "memory, weakest rank",
    Group.POOL: "KV pool",
    Group.GRAPHS: "CUDA graphs",
    Group.LIMIT: "limits",
}
_ORIGINS = {Origin.GIVEN: "given", Origin.EFFECTIVE: "in effect"}
_MOST = 20
"""Differences of one kind that are shown; more are counted."""
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


def lines(comparison: ComparisonReport, paper: Paper) -> Iterator[str]:
    """The whole comparison."""
    table = _Columns(paper, comparison)
    yield from table.heads(_names(comparison))
    for what, of in _SIDES:
        cells = (of(comparison.baseline), of(comparison.this))
        if any(cells):
            yield from table.row(what, cells, "strong" if what == "outcome" else "")
    yield ""
    yield from obstacles(comparison, paper)
    yield from paper.wrapped(comparison.summary)
    yield from _differences(comparison, table)
    yield from _measures(comparison.measures, table)


def against(comparison: ComparisonReport, paper: Paper) -> Iterator[str]:
    """The short form, beside a diagnosis."""
    yield ""
    name = ", ".join(comparison.baseline.files) or "the baseline"
    yield paper.rule(plain(f"against {name}"), "strong")
    yield from obstacles(comparison, paper)
    yield from paper.wrapped(comparison.summary)
    table = _Columns(paper, comparison)
    yield ""
    yield from table.heads(("baseline", "this start"))
    yield from _differences(comparison, table)


def obstacles(comparison: ComparisonReport, paper: Paper) -> Iterator[str]:
    """Why the two do not compare."""
    for text in comparison.obstacles:
        yield paper.ink(next(paper.wrapped(f"These two do not compare: {text}")), "warn")


class _Columns:
    """A name, two values, and what is beside them; the same widths in the whole text."""

    def __init__(self, paper: Paper, comparison: ComparisonReport) -> None:
        self.paper = paper
        longest = max((len(each.name) for each in comparison.differences), default=0)
        self.name = max(27, min(longest + 2, paper.width * 2 // 5))
        self.number = max(13, min(18, (paper.width - self.name) // 5))
        self.value = (paper.width - self.name - 4) // 2

    def heads(self, names: Sequence[str]) -> Iterator[str]:
        """Of the two columns; of a name that is too long, its end."""
        cells = [name if len(name) <= self.value else "…" + name[1 - self.value :] for name in map(plain, names)]
        text = " " * (self.name + 2) + cells[0].ljust(self.value) + "  " + cells[1]
        yield self.paper.letters(self.paper.ink(text, "dim"))

    def row(self, name: str, values: Sequence[str], style: str = "") -> Iterator[str]:
        """Words."""
        cells = [_cut(plain(name), self.name).ljust(self.name), _cut(plain(values[0]), self.value).ljust(self.value)]
        text = "  ".join([*cells, _cut(plain(values[1]), self.value)]).rstrip()
        yield self.paper.letters(self.paper.ink(text, style))

    def numbers(self, name: str, values: Sequence[str], beside: str) -> Iterator[str]:
        """Numbers, with what is beside them."""
        cells = [_cut(plain(name), self.name).ljust(self.name), *(value.rjust(self.number) for value in values)]
        head = "  ".join(cells)
        parts = list(self.paper.wrapped(beside, hang=len(head) + 2)) if beside else [""]
        yield self.paper.letters(f"{head}  {parts[0].lstrip()}".rstrip())
        yield from parts[1:]


def _differences(comparison: ComparisonReport, table: _Columns) -> Iterator[str]:
    paper = table.paper
    for role in _ORDER:
        found = [each for each in comparison.differences if each.role == role]
        if not found:
            continue
        title, ink = _TITLES[role]
        yield ""
        yield paper.ink(title, ink)
        told = ""
        for each in found[:_MOST]:
            note = "" if each.note == told or each.note in comparison.summary else each.note
            told = each.note
            name = _NAMES.get(each.name, each.name) if each.group == Group.MEMORY else each.name
            yield from table.row(f"  {name}", (_side(each, True), _side(each, False)))
            if note:
                yield from paper.wrapped(note, indent="      ")
        if len(found) > _MOST:
            yield f"  and {len(found) - _MOST} more: --json has them all"


def _measures(measures: Sequence[MeasureReport], table: _Columns) -> Iterator[str]:
    group = ""
    for each in measures:
        if each.name in _ECHOES:
            continue
        if each.group != group:
            group = each.group
            yield ""
            yield table.paper.ink(_GROUPS[Group(group)], "strong")
        name = _NAMES.get(each.name, each.name)
        values = (_number(each.baseline, each.unit), _number(each.this, each.unit))
        yield from table.numbers(f"  {name}", values, _beside(each))


def _beside(measure: MeasureReport) -> str:
    """How they compare, and the ranks that are not as the others."""
    parts = []
    good, bad, times = measure.baseline, measure.this, measure.ratio
    if good is not None and bad is not None and good != bad:
        if measure.unit == "GiB":
            parts.append(f"{bad - good:+.2f}" if abs(bad - good) >= 0.005 else "")
        elif times is not None and measure.unit == "s":
            parts.append(f"x {times:.2f}" if abs(times - 1) >= 0.05 and abs(bad - good) >= 0.5 else "")
        elif times is not None:
            parts.append(f"{(times - 1) * 100:+.1f} %" if abs(times - 1) >= 0.001 else "")
    odd = list(_odd(measure.ranks, measure.unit))
    parts += odd[:2] + ([f"{len(odd) - 2} more ranks differ"] if len(odd) > 2 else [])
    return "  ".join(part for part in parts if part)


def _odd(pairs: Sequence[PairReport], unit: str) -> Iterator[str]:
    """Ranks whose change is another than that of the rank in the middle."""
    known = [pair for pair in pairs if pair.baseline is not None and pair.this is not None]
    if len(known) < 2:
        return
    gaps = sorted((pair.this or 0.0) - (pair.baseline or 0.0) for pair in known)
    middle = gaps[len(gaps) // 2]
    least = 1.0 if unit == "s" else 0.1
    for pair in known:
        gap = (pair.this or 0.0) - (pair.baseline or 0.0)
        if abs(gap - middle) > max(least, 0.2 * abs(middle)):
            yield f"rank {pair.rank} {_number(pair.baseline, '')} > {_number(pair.this, '')}"


def _side(each: DifferenceReport, baseline: bool) -> str:
    value, origin = (each.baseline, each.baseline_origin) if baseline else (each.this, each.this_origin)
    if value is None:
        return "not told" if origin == Origin.UNKNOWN else "not set"
    words = f" ({_ORIGINS[Origin(origin)]})" if Origin(origin) in _ORIGINS else ""
    return _value(value, each.unit) + words


def _value(value: Any, unit: str = "") -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return f"{len(value)} from {min(value)} to {max(value)}" if len(value) > 4 else ", ".join(map(str, value))
    if isinstance(value, float | int) and unit:
        return _number(value, unit)
    return str(value)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:.1f} s" if value < 60 else format_duration(value)
    if unit == "GiB":
        return f"{value:.2f} GiB"
    text = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.2f}"
    return f"{text} {unit}".strip()


def _names(comparison: ComparisonReport) -> tuple[str, str]:
    """The files, without what leads to both."""
    names = [", ".join(side.files) or word for side, word in zip(_both(comparison), ("first", "second"), strict=True)]
    short = [name.rstrip("/").split("/") for name in names]
    while len(short[0]) > 1 and len(short[1]) > 1 and short[0][0] == short[1][0]:
        short = [parts[1:] for parts in short]
    return "/".join(short[0]), "/".join(short[1])


def _both(comparison: ComparisonReport) -> Iterable[SideReport]:
    return comparison.baseline, comparison.this


def _outcome(side: SideReport) -> str:
    if side.outcome is Outcome.FAILED:
        return "FAILED while serving" if side.phase == "ready" else f"FAILED in {side.phase}"
    return str(side.outcome)


def _fraction(side: SideReport) -> str:
    if side.fraction is None:
        return ""
    words = " by its pool" if side.fraction_origin == Origin.EFFECTIVE else ""
    return f"{side.fraction:g}{words}"


def _pool(side: SideReport) -> str:
    if side.pool_gib is None:
        return ""
    return f"{side.pool_gib:.2f} GiB" + (": none" if side.pool_gib <= 0 else "")


_SIDES: tuple[tuple[str, Any], ...] = (
    ("engine", lambda side: " ".join(part for part in (side.engine, side.engine_version) if part)),
    ("LLM", lambda side: "" if side.model is None else side.model.rstrip("/").rpartition("/")[2]),
    ("ranks", lambda side: str(side.ranks) if side.ranks else ""),
    ("outcome", _outcome),
    ("fraction", _fraction),
    ("least fraction", lambda side: "" if side.f_min is None else f"{side.f_min:.4f}"),
    ("KV pool, weakest rank", _pool),
)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
