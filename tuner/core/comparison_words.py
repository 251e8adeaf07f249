"""Words for the comparison of two starts, shared by the command line and the screens."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from msgspec import Struct

from tuner.domain.comparison import Comparison, Difference, Group, Measure, Origin, Role, Side, Value
from tuner.domain.findings import Outcome
from tuner.units import format_seconds, format_small

TITLES = {
    Role.EXPLAINS: "what explains it",
    Role.POSSIBLE: "what may have a part in it",
    Role.ACQUITTED: "changed, and not the reason",
    Role.NOISE: "differs between any two starts",
}
"""Headings of the lists of differences, in order; consequences are in the tables only."""
HALF_KNOWN = "shown by one log only, and not the reason"
"""Heading of acquitted differences of which one log says nothing: whether they changed is unknown."""
GROUPS = {
    Group.PHASE: "phases, seconds of the slowest rank",
    Group.MEMORY: "memory, GiB of the weakest rank",
    Group.POOL: "KV pool",
    Group.GRAPHS: "CUDA graphs",
    Group.LIMIT: "limits",
}
"""Headings of the tables of numbers, in order."""
MOST = 20
"""Most differences of a role that are shown; the rest are counted."""
_NAMES = {
    "total": "the card",
    "communicators": "NCCL, all-reduce",
    "before weights": "free before weights",
    "after weights": "free after weights",
    "after pool": "free after pool",
    "at ready": "free at ready",
}
_ECHOES = frozenset({"max_total_num_tokens", "available_gpu_mem"})
"""Limits that repeat a row of another table."""
_ORIGINS = {Origin.GIVEN: " (given)", Origin.EFFECTIVE: " (in effect)"}
_ODD_RANKS = 2


class Row(Struct, frozen=True):
    """One difference: its name, both values, and a note where it says something new."""

    name: str
    values: tuple[str, str]
    note: str = ""


def obstacles(comparison: Comparison) -> Iterator[str]:
    """Yield the reasons why the two starts do not compare."""
    for text in comparison.obstacles:
        yield f"These two do not compare: {text}"


def sections(comparison: Comparison) -> Iterator[tuple[Role, str, tuple[Difference, ...]]]:
    """Yield role, heading and differences of each list that has any.

    Differences that only one log mentions and nothing weighs are left out.
    """
    for role, title in TITLES.items():
        if role is Role.POSSIBLE and comparison.obstacles:
            title = "what differs"
        found = [each for each in comparison.of(role) if not each.untold]
        half = [each for each in found if role is Role.ACQUITTED and each.half_known]
        for heading, part in ((title, [each for each in found if each not in half]), (HALF_KNOWN, half)):
            if part:
                yield role, heading, tuple(part)


def alike(comparison: Comparison, group: Group) -> str:
    """Return what to say of arguments, variables or versions of which no difference is listed."""
    good, bad = comparison.good, comparison.bad
    if group is Group.VERSION:
        if good.version is None or bad.version is None:
            return "not in both logs"
        return "the same in both" if good.version == bad.version else "may be the same"
    if group is Group.ARGUMENT and not (good.shows_arguments and bad.shows_arguments):
        return "not in both logs"
    if any(each.group is group for each in comparison.differences):
        return "no difference in what both logs show"
    return "the same in both"


def rows(comparison: Comparison, found: Sequence[Difference]) -> Iterator[Row]:
    """Yield a row per difference, without notes that repeat the summary or the row above."""
    last = ""
    for each in found:
        note = "" if each.note == last or each.note in comparison.summary else each.note
        last = each.note
        yield Row(name_of(each), values(each), note)


def sides(comparison: Comparison) -> Iterator[Row]:
    """Yield the rows that describe the two starts; what neither log tells is left out."""
    lines = (
        ("engine", lambda side: " ".join(part for part in (side.engine, side.version) if part)),
        ("LLM", lambda side: (side.model or "").rstrip("/").rpartition("/")[2]),
        ("ranks", lambda side: str(side.ranks) if side.ranks else ""),
        ("outcome", _outcome),
        ("fraction", _fraction),
        ("least fraction", lambda side: "" if side.f_min is None else f"{side.f_min:.4f}"),
        ("KV pool, weakest rank", _pool),
    )
    for name, of in lines:
        cells = (of(comparison.good), of(comparison.bad))
        if any(cells):
            yield Row(name, cells)


def measured(comparison: Comparison, group: Group) -> tuple[Measure, ...]:
    """Return the measures of a table."""
    return tuple(each for each in comparison.measures if each.group is group and each.name not in _ECHOES)


def name_of(each: Difference | Measure) -> str:
    """Return the name of a row."""
    return _NAMES.get(each.name, each.name) if each.group is Group.MEMORY else each.name


def values(each: Difference) -> tuple[str, str]:
    """Return both values as text, with their origin where it matters."""
    return _side(each.good, each.good_origin, each.unit), _side(each.bad, each.bad_origin, each.unit)


def numbers(measure: Measure, good: float | None, bad: float | None) -> tuple[str, str]:
    """Return both values of a table's row as text; the unit is left out where the heading has it."""
    bare = measure.group in (Group.PHASE, Group.MEMORY)
    if measure.group is Group.POOL and measure.unit == "GiB":
        return _pool_size(good), _pool_size(bad)
    return number(good, measure.unit, bare=bare), number(bad, measure.unit, bare=bare)


def beside(measure: Measure, *, comparable: bool = True) -> str:
    """Return how much the number changed, and the ranks that changed otherwise than the rest.

    Args:
        measure: The number in both starts.
        comparable: Whether the starts compare; of those that do not, only the odd ranks are named.
    """
    parts: list[str] = []
    good, bad, times = measure.good, measure.bad, measure.ratio
    if comparable and good is not None and bad is not None and good != bad:
        if measure.unit == "GiB":
            parts += [f"{bad - good:+.2f}"] if abs(bad - good) >= 0.005 else []
        elif times is not None and measure.unit == "s":
            parts += [f"x {times:.2f}"] if abs(times - 1) >= 0.05 and abs(bad - good) >= 0.5 else []
        elif times is not None and abs(times - 1) >= 0.001:
            parts.append(f"{(times - 1) * 100:+.1f} %")
    odd = list(_odd(measure))
    parts += odd[:_ODD_RANKS] + ([f"{len(odd) - _ODD_RANKS} more ranks differ"] if len(odd) > _ODD_RANKS else [])
    return "  ".join(parts)


def _odd(measure: Measure) -> Iterator[str]:
    """Yield the ranks whose change deviates from the median of all; of two that differ, both."""
    known = [(pair, pair.bad - pair.good) for pair in measure.pairs if pair.good is not None and pair.bad is not None]
    if len(known) < 2:
        return
    middle = statistics.median(gap for _, gap in known)
    least = 1.0 if measure.unit == "s" else 0.1
    for pair, gap in known:
        if abs(gap - middle) > max(least, 0.2 * abs(middle)):
            yield f"rank {pair.rank} {' -> '.join(numbers(measure, pair.good, pair.bad))}"


def _side(value: Value, origin: Origin, unit: str) -> str:
    if value is None:
        return "not told" if origin is Origin.UNKNOWN else "not set"
    return value_of(value, unit) + _ORIGINS.get(origin, "")


def value_of(value: Value, unit: str = "") -> str:
    """Return a value of one side as text."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        many = len(value) > 4
        return f"{len(value)} from {min(value)} to {max(value)}" if many else ", ".join(map(str, value))
    if isinstance(value, int | float) and unit:
        return number(value, unit)
    return str(value)


def number(value: float | None, unit: str, *, bare: bool = False) -> str:
    """Return a number as text, with its unit unless `bare`; rows of tokens name the unit themselves."""
    if value is None:
        return "-"
    if unit == "s":
        return format_seconds(value, "" if bare else " s")
    if unit == "GiB":
        return f"{value:.2f}" if bare else format_small(value)
    text = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.2f}"
    return text if bare or unit in ("", "tokens") else f"{text} {unit}"


def _outcome(side: Side) -> str:
    if side.outcome is Outcome.FAILED:
        return f"FAILED{side.where}"
    return str(side.outcome)


def _fraction(side: Side) -> str:
    if side.fraction is None:
        return ""
    return f"{side.fraction:g}" + (" by its pool" if side.fraction_origin is Origin.EFFECTIVE else "")


def _pool(side: Side) -> str:
    if side.pool_gib is None:
        return ""
    return _pool_size(side.pool_gib) + (": none" if side.pool_gib < 0 else "")


def _pool_size(value_gib: float | None) -> str:
    """Return the size of a pool as text. A log that prints `0.0 GiB` has rounded a pool of some KiB or MiB."""
    return "< 0.1 GiB" if value_gib == 0 else number(value_gib, "GiB")
