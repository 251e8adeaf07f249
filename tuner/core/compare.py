"""Two starts side by side: what differed, ranked by what it explains, and what changed without mattering.

The KV pool is a linear function of the fraction, with two coefficients that the start's memory decides (`core.share`).
So whether the fraction, or the memory, turned one outcome into the other is arithmetic: insert the other start's
value, leave the rest, and see whether there is a pool. A difference that can only act through memory, and moved less
of it than is missing, is acquitted by the same arithmetic. Where a start failed of something else, the remedies of
its finding name the knobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from tuner.core import share as shares
from tuner.core.differences import arguments, llm, measures, missing, unlike, variables, versions
from tuner.core.engine import Engine
from tuner.core.redact import mask
from tuner.core.share import Share, pool_of, share_of
from tuner.core.weighing import LIKELY, WORDS, Contrast, follows, judge
from tuner.domain.comparison import Comparison, Difference, Group, Measure, Origin, Role, Side
from tuner.domain.findings import Finding, Outcome, Severity
from tuner.domain.knobs import Part
from tuner.domain.starts import Start

T = TypeVar("T")
_ROLES = (Role.EXPLAINS, Role.POSSIBLE, Role.FOLLOWS, Role.ACQUITTED, Role.NOISE)
_GROUPS = tuple(Group)
_OTHER_GPU = 0.15
"""Share of a rank's memory: GPUs of the same kind never differ by more."""


def compare(
    good: Start,
    bad: Start,
    engine: Engine | None = None,
    findings: Sequence[Finding] = (),
    failed_in: tuple[str, str] = ("", ""),
) -> Comparison:
    """Compare two starts.

    Args:
        good: The baseline: the one that worked, or the first one named.
        bad: The one that is judged.
        engine: The engine of both; it knows how versions change a fraction after printing it. None: not known, or two.
        findings: Those of `findings_that_weigh`, the root cause first: their remedies name the knobs that matter.
        failed_in: `failed_phase` of the findings of both; empty: the furthest phase is named instead.
    """
    case = Contrast(
        good=_side(good, engine, failed_in[0]),
        bad=_side(bad, engine, failed_in[1]),
        good_share=share_of(good),
        bad_share=share_of(bad),
        findings=tuple(each for each in findings if each.severity in (Severity.FATAL, Severity.ERROR)),
        measures=tuple(measures(good, bad)),
        knobs=None if engine is None else engine.knobs(),
    )
    same_engine = not (good.engine and bad.engine) or good.engine == bad.engine
    found = [*variables(good, bad), *versions(good, bad)]
    if same_engine:
        found += [each for each in arguments(good, bad) if each.name not in shares.KNOBS]
    judged = [judge(each, case) for each in found]
    judged += _fraction(good, bad, case) if same_engine else []
    judged += [follows(each, case) for each in case.measures if unlike(each) or missing(each, good, bad)]
    obstacles = tuple(_obstacles(good, bad, case.measures))
    if obstacles:
        judged = [_unproven(each) for each in judged]
    comparison = Comparison(
        good=case.good,
        bad=case.bad,
        obstacles=obstacles,
        differences=tuple(sorted(_parts_before_sum(judged, case), key=_rank)),
        measures=case.measures,
    )
    return _masked(msgspec.structs.replace(comparison, summary=_summary(comparison, case)))


def findings_that_weigh(
    good: Start, bad: Start, of_good: Sequence[Finding], of_bad: Sequence[Finding]
) -> tuple[Finding, ...]:
    """Return the findings of the baseline if it alone failed, else those of the start that is judged."""
    only_good = good.outcome is Outcome.FAILED and bad.outcome is not Outcome.FAILED
    return tuple(of_good if only_good else of_bad)


def same_llm(one: Start, other: Start) -> bool:
    """Return whether two starts serve the same LLM; True if one of the logs does not name it."""
    return one.model is None or other.model is None or llm(one.model) == llm(other.model)


def _masked(comparison: Comparison) -> Comparison:
    """Return the comparison with its secrets masked."""
    replace = msgspec.structs.replace
    return replace(
        comparison,
        good=replace(comparison.good, model=_harmless(comparison.good.model)),
        bad=replace(comparison.bad, model=_harmless(comparison.bad.model)),
        obstacles=tuple(mask(text) for text in comparison.obstacles),
        summary=mask(comparison.summary),
        differences=tuple(
            replace(each, good=_harmless(each.good), bad=_harmless(each.bad), note=mask(each.note))
            for each in comparison.differences
        ),
    )


def _harmless(value: T) -> T | str:
    return mask(value) if isinstance(value, str) else value


def _unproven(each: Difference) -> Difference:
    """Demote a difference of starts that do not compare: nothing explains or is acquitted."""
    doubtful = each.role in (Role.EXPLAINS, Role.ACQUITTED)
    return msgspec.structs.replace(each, role=Role.POSSIBLE) if doubtful else each


def _parts_before_sum(judged: Sequence[Difference], case: Contrast) -> Iterator[Difference]:
    """Demote "after weights" if one of its parts, or what decides what is loaded, already explains the outcome."""
    parts = any(
        each.explains and (each.name != "after weights" if each.group is Group.MEMORY else _loads(each, case))
        for each in judged
    )
    for each in judged:
        if parts and each.explains and each.group is Group.MEMORY and each.name == "after weights":
            yield msgspec.structs.replace(each, role=Role.FOLLOWS)
        else:
            yield each


def _loads(each: Difference, case: Contrast) -> bool:
    """Return whether an argument or variable decides what is loaded."""
    return Part.WEIGHTS in case.parts(each.name)


def _rank(each: Difference) -> tuple[int, float, int, str]:
    return _ROLES.index(each.role), -each.weight, _GROUPS.index(each.group), each.name


def _side(start: Start, engine: Engine | None, failed_in: str) -> Side:
    share = share_of(start)
    fraction, origin, note = _in_effect(start, share, engine)
    pool = pool_of(start)
    if pool is None and share is not None and fraction is not None:
        pool = share.pool(fraction)
    return Side(
        engine=start.engine,
        version=start.version,
        model=start.model,
        outcome=start.outcome,
        phase=str(start.phase),
        failed_in=failed_in,
        ranks=len(start.ranks),
        files=start.files,
        shows_arguments=bool(start.settings),
        fraction=fraction,
        fraction_origin=origin,
        fraction_note=note,
        pool_gib=pool,
        f_min=None if share is None or shares.on_cpu(start) else round(share.f_min, 4),
    )


def _in_effect(start: Start, share: Share | None, engine: Engine | None) -> tuple[float | None, Origin, str]:
    """Return the fraction a start ran with, its origin, and how it was found.

    The arguments decide, unless the pool that was allocated shows another value.
    """
    known = None if engine is None else engine.effective_fraction(start)
    if known is not None and known.said is None and pool_of(start) is None:
        return known.value, Origin.RESOLVED, known.how
    if known is not None and known.said is None:
        return shares.shortest(known.value, known.error), Origin.EFFECTIVE, known.how
    if known is not None and known.said is not None and abs(known.value - known.said) > shares.SAME:
        return shares.shortest(known.value, known.error), Origin.EFFECTIVE, f"{known.said:g} was asked for: {known.how}"
    asked, pool = shares.asked(start), pool_of(start)
    said = known.said if known is not None else None if asked is None else asked[1]
    told = share is not None and pool is not None and share.after is not None and share.before is not None
    if said is None:
        shown = shares.effective(start, share)
        if shown is None:
            return None, Origin.UNKNOWN, ""
        return shown, Origin.EFFECTIVE, _inferred(share, shown, pool) if told else ""
    confirmed = shares.effective(start, share) if told else None
    note = _inferred(share, confirmed, pool) if confirmed is not None and abs(confirmed - said) <= shares.SAME else ""
    given = asked is not None and asked[0] in start.given
    return said, Origin.GIVEN if given else Origin.RESOLVED, note


def _inferred(share: Share | None, fraction: float, pool: float | None) -> str:
    if share is None or share.after is None or share.before is None or pool is None:
        return ""
    return f"1 - ({share.after.value:.2f} - {pool:.2f}) / {share.before.value:.2f} = {fraction:g}"


def _fraction(good: Start, bad: Start, case: Contrast) -> list[Difference]:
    before, after = case.good.fraction, case.bad.fraction
    if before is None or after is None or abs(before - after) <= shares.SAME:
        return []
    share = case.bad_share or case.good_share
    names = [asked[0] for asked in (shares.asked(bad), shares.asked(good)) if asked is not None]
    difference = Difference(
        group=Group.ARGUMENT,
        name=names[0] if names else share.knob if share is not None else shares.KNOBS[0],
        good=before,
        bad=after,
        good_origin=case.good.fraction_origin,
        bad_origin=case.bad.fraction_origin,
        good_at=good.settings_at,
        bad_at=bad.settings_at,
        effect_gib=None if share is None else share.slope * (after - before),
    )
    return [judge(difference, case)]


def _obstacles(good: Start, bad: Start, measured: Sequence[Measure]) -> list[str]:
    found = []
    if good.engine and bad.engine and good.engine != bad.engine:
        found.append(f"other engines: {good.engine} and {bad.engine}")
    if not same_llm(good, bad):
        found.append(f"other LLMs: {good.model} and {bad.model}")
    cards = [each for each in measured if each.name in ("total", "before weights") and each.pairs]
    for each in cards:
        pairs = [(pair.good, pair.bad) for pair in each.pairs if pair.good and pair.bad]
        # A foreign process takes memory from some ranks; another kind of GPU has another size on all of them.
        if pairs and all(abs(one - other) > _OTHER_GPU * max(one, other) for one, other in pairs):
            what = "GPUs of another size" if each.name == "total" else "other GPUs, or other processes on all of them"
            found.append(f"{what}: {each.good:.2f} and {each.bad:.2f} GiB {_SAID[each.name]}")
            break
    return found


_SAID = {"total": "in all", "before weights": "free before the weights"}


def _summary(comparison: Comparison, case: Contrast) -> str:
    explaining = comparison.explaining
    if comparison.obstacles:
        if all(each.untold for each in comparison.of(Role.POSSIBLE)):
            return ""
        return (
            f"What differs between {' and '.join(_words(side) for side in (case.good, case.bad))} is listed side by"
            " side; nothing of it is called a cause."
        )
    if case.failed is not None and explaining:
        first = explaining[0]
        # A remedy proves that the change helps; other settings that it names may have contributed.
        others = len(explaining) > 1 or (
            first.weight < 1.0 and any(each.weight >= LIKELY and each.note for each in comparison.of(Role.POSSIBLE))
        )
        alone = "matters most" if others else "is the only change that matters"
        return f"{_change(first)} {alone}: {first.note}"
    if case.failed is not None:
        told = [each for each in comparison.of(Role.POSSIBLE) if not each.untold]
        if not told:
            return (
                "The logs tell no difference that could explain it. What they do not tell may: files and packages"
                " that changed, other processes on the host, drivers."
            )
        names = ", ".join(each.name for each in told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")
        return f"No difference that the logs tell explains it by arithmetic. It may be one of {names}."
    roles = (Role.EXPLAINS, Role.POSSIBLE, Role.ACQUITTED)
    alike = all(each.role not in roles or each.untold for each in comparison.differences)
    same = _same(case) if alike else ""
    if case.good.outcome is Outcome.FAILED:
        good, bad = case.good.where, case.bad.where
        apart = f", the baseline{good} and the other{bad}" if good and bad else ""
        failed = f"Both failed{bad if good == bad else apart}."
        return f"{failed} {same}".rstrip()
    changed = ", ".join(_change(each) for each in explaining[:3])
    texts = (_ends(case), _pools(case), f"What changed it: {changed}." if changed else "", same)
    return " ".join(text for text in texts if text)


def _same(case: Contrast) -> str:
    if case.good.version != case.bad.version:
        return "The arguments and variables that both logs show are the same, and the versions may be."
    return "The arguments, variables and versions that both logs show are the same."


def _ends(case: Contrast) -> str:
    """Return how two starts ended of which none is known to have failed."""
    cut = [name for name, side in (("baseline", case.good), ("other start", case.bad)) if _cut(side)]
    if not cut:
        return "Neither failed."
    if len(cut) == 2:
        return "Whether they failed is unknown: both logs just end."
    return f"Whether the {cut[0]} failed is unknown: its log just ends."


def _cut(side: Side) -> bool:
    return side.outcome is Outcome.UNKNOWN


def _pools(case: Contrast) -> str:
    tokens = next((each for each in case.measures if each.group is Group.POOL and each.name == "tokens"), None)
    if tokens is None or tokens.good is None or tokens.bad is None:
        return ""
    if tokens.good == tokens.bad:
        return f"The KV pool holds {tokens.bad:,.0f} tokens in both."
    return f"The KV pool holds {tokens.bad:,.0f} tokens, the baseline's {tokens.good:,.0f}."


def _words(side: Side) -> str:
    if _cut(side):
        return "one whose log just ends"
    failed = side.outcome is Outcome.FAILED
    return f"one that failed{side.where}" if failed else "one that did not fail"


def _change(each: Difference) -> str:
    name = WORDS.get(each.name, each.name) if each.group is Group.MEMORY else each.name
    unit = f" {each.unit}" if each.unit else ""
    return f"{name} {_shown(each.good)} -> {_shown(each.bad)}{unit}"


def _shown(value: object) -> str:
    """Return a value as it stands in a sentence."""
    if value is None:
        return "not set"
    return f"{value:g}" if isinstance(value, float) else str(value)
