"""Decides what a difference of two starts has to do with the outcome: by arithmetic, or by a finding's remedies."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.differences import FREE
from tuner.core.knobs import KnobTable
from tuner.core.share import Share
from tuner.domain.comparison import Difference, Group, Measure, Origin, Role, Side
from tuner.domain.findings import Confidence, Finding, Move, Outcome, Remedy
from tuner.domain.knobs import Part
from tuner.domain.server import Phase
from tuner.units import real

NETWORK = re.compile(r"NCCL|CUSTOM_AR|ALL_?REDUCE|MSCCLPP|SYMM_MEM|NVLS|P2P|MNNVL|QUICK_REDUCE", re.IGNORECASE)
"""Names of settings that decide how ranks communicate: their memory is what distributed initialisation takes.
Libraries read many more such variables than a catalogue has, and custom builds have others; all have it in their
names."""

_LITTLE = 0.1
"""Share of what the pool lacks: a difference that moved less was not the reason."""
_SAME_POOL = 0.005
"""Share of the larger pool: two pools that differ by no more are equal."""
_UNPROVEN = {Group.VERSION: 0.5, Group.ARGUMENT: 0.3, Group.ENVIRONMENT: 0.25}
"""Weight of a difference that no number judges: another version changes more than an argument does, a variable less."""
REMEDIED = 0.9
"""Weight when the other start has the remedy's value, or lacks the cap."""
LIKELY = 0.6
"""Weight when a remedy is about it, or a number shows it, without proof that it was the reason."""


class Contrast(Struct, frozen=True, kw_only=True):
    """Two starts, with all that one difference is weighed by."""

    good: Side
    bad: Side
    good_share: Share | None
    bad_share: Share | None
    findings: tuple[Finding, ...]
    """Fatal and error findings of the start that failed, the root cause first."""
    measures: tuple[Measure, ...]
    knobs: KnobTable | None
    """Knobs of the engine of both; None: not known, or two engines."""

    def parts(self, name: str) -> tuple[Part, ...]:
        """Return the numbers in which a setting shows; a nested one shows where its top-level argument does."""
        knob = None if self.knobs is None else self.knobs.find(name.partition(".")[0])
        return () if knob is None else knob.effects.parts

    @property
    def failed(self) -> Side | None:
        """The side that failed while the other did not; None if both or neither failed."""
        if (self.good.outcome is Outcome.FAILED) == (self.bad.outcome is Outcome.FAILED):
            return None
        return self.bad if self.bad.outcome is Outcome.FAILED else self.good

    @property
    def both_work(self) -> bool:
        """Whether neither start failed."""
        return Outcome.FAILED not in (self.good.outcome, self.bad.outcome)

    @property
    def both_failed(self) -> bool:
        """Whether both starts failed, so that nothing turned one outcome into another."""
        return self.good.outcome is Outcome.FAILED and self.bad.outcome is Outcome.FAILED

    @property
    def failed_share(self) -> Share | None:
        """Static share of the side that failed; None if it is not known."""
        return self.bad_share if self.failed is self.bad else self.good_share if self.failed is self.good else None

    @property
    def other(self) -> Side:
        """The side that the failed one is compared with."""
        return self.good if self.failed is self.bad else self.bad

    @property
    def other_share(self) -> Share | None:
        """Static share of `other`; None if it is not known."""
        return self.good_share if self.failed is self.bad else self.bad_share

    @property
    def lack(self) -> float | None:
        """GiB that the failed side's pool lacks to be there at all; None if it failed of something else."""
        failed, share = self.failed, self.failed_share
        if failed is None or share is None or failed.fraction is None or failed.phase != Phase.KV_ALLOC:
            return None
        pool = share.pool(failed.fraction)
        return -pool if pool <= 0 else None

    @property
    def regained(self) -> float | None:
        """GiB of pool that the failed side would gain with the other's memory and its own fraction, if known."""
        failed, mine, other = self.failed, self.failed_share, self.other_share
        if failed is None or mine is None or other is None or failed.fraction is None:
            return None
        return other.pool(failed.fraction) - mine.pool(failed.fraction)

    @property
    def pool_gap(self) -> float | None:
        """GiB by which two allocated pools differ; None if they are equal, or a start failed."""
        pools = (self.good.pool_gib, self.bad.pool_gib)
        if not self.both_work or pools[0] is None or pools[1] is None or min(pools[0], pools[1]) <= 0:
            return None
        gap = pools[1] - pools[0]
        return gap if abs(gap) > _SAME_POOL * max(pools[0], pools[1]) else None

    def measure(self, group: Group, name: str) -> Measure | None:
        """Return a measure that both starts have; None if there is none."""
        found = (each for each in self.measures if each.group is group and each.name == name)
        return next((each for each in found if each.good is not None and each.bad is not None), None)


def judge(each: Difference, case: Contrast) -> Difference:
    """Decide what an argument, a variable or a version has to do with the outcome."""
    # A value of the other start is no remedy if that failed too.
    remedy = None if case.both_failed else _named(each, case.findings)
    if each.role is Role.NOISE and remedy is None:
        return each
    if each.effect_gib is not None:
        verdict = _by_fraction(each, case)
    elif remedy is not None:
        verdict = _by_remedy(each, remedy, case)
    elif case.lack is not None:
        verdict = _by_lack(each, case)
    else:
        verdict = _by_result(each, case)
    return verdict


def follows(measure: Measure, case: Contrast) -> Difference:
    """Turn a number that differs into a difference: a cause if memory alone makes the outcome, else a consequence."""
    role, weight, effect, note = Role.FOLLOWS, 0.0, None, ""
    if measure.group is Group.MEMORY and measure.good is not None and measure.bad is not None:
        free = measure.name in FREE
        effect = (measure.bad - measure.good) * (1 if free else -1)
        lack = case.lack
        gain = -effect if case.failed is case.bad else effect  # of the start that worked over the one that failed
        if measure.name in _BEFORE_POOL and lack is not None:
            weight = max(0.0, min(1.0, gain / lack)) if lack else 0.0
            role = Role.EXPLAINS if gain > lack else Role.ACQUITTED if gain < _LITTLE * lack else Role.POSSIBLE
            note = f"{_gap(measure)}: {abs(effect):.2f} GiB, the pool lacks {lack:.1f}"
        elif (part := _part_of_pool(measure.name, effect, case)) is not None:
            role, weight = Role.EXPLAINS, min(1.0, part)
            note = f"{_gap(measure)}: the pool moved by {case.pool_gap:+.2f} GiB"
        elif measure.name == "before weights" and case.failed is not None and gain > 1:
            role, weight = Role.POSSIBLE, 0.7
            note = f"{_gap(measure)}: another process holds memory on a GPU, or it is another GPU"
    elif measure.good is None or measure.bad is None:
        only = "this start" if measure.good is None else "the baseline"
        weight, note = 1.0, f"{_name(measure).removesuffix(' memory')}: captured in {only} only"
    elif measure.ratio is not None:
        weight = min(1.0, abs(measure.ratio - 1))
    return Difference(
        group=measure.group,
        name=measure.name,
        good=measure.good,
        bad=measure.bad,
        unit=measure.unit,
        role=role,
        weight=weight,
        effect_gib=effect,
        pairs=measure.pairs,
        note=note or _times(measure),
    )


def _part_of_pool(name: str, effect: float, case: Contrast) -> float | None:
    """Return the share of the change between two pools that this memory makes; None unless it is most of it."""
    gap = case.pool_gap
    if name not in ("communicators", "weights", "draft weights") or gap is None or not gap:
        return None
    part = effect / gap
    return part if 0.5 < part < 2 else None


_BEFORE_POOL = (
    "communicators",
    "before weights",
    "weights",
    "draft weights",
    "after weights",
    "activation",
    "non-torch",
)
WORDS = {
    "communicators": "NCCL and custom all-reduce",
    "before weights": "free before the weights",
    "after weights": "free after the weights",
    "weights": "the weights",
    "draft weights": "the draft model's weights",
    "activation": "activations",
    "non-torch": "memory that is not torch's",
}
"""Names of purposes of memory in a sentence."""


def _by_fraction(each: Difference, case: Contrast) -> Difference:
    failed, mine, lack = case.failed, case.failed_share, case.lack
    if lack is not None and failed is not None and mine is not None:
        mended = mine.pool(_fraction(case.other))
        told = mine.told(_fraction(failed))
        if mended > 0:
            note = (
                f"{told}, nothing is left for the pool; {_fraction(case.other):g} gives {mended:.2f} GiB."
                f" It must be above {mine.f_min:.4f}"
            )
            return _is(each, Role.EXPLAINS, 1.0, note)
        gain = mended + lack
        return _is(each, Role.POSSIBLE, max(0.0, gain / lack) if lack else 0.0, f"{told}; it moves {gain:.2f} of them")
    assert each.effect_gib is not None
    moved = f"it moves {abs(each.effect_gib):.2f} GiB"
    if failed is not None:
        remedy = _named(each, case.findings)
        if remedy is not None:
            return _by_remedy(each, remedy, case)
        return _is(each, Role.POSSIBLE, LIKELY, f"{moved} between the pool and what is left for graphs and activations")
    gap = case.pool_gap
    if gap is None:
        return _is(each, Role.POSSIBLE, 0.5, moved)
    part = each.effect_gib / gap
    note = f"{moved}; the pool went from {case.good.pool_gib:.2f} to {case.bad.pool_gib:.2f} GiB"
    return _is(each, Role.EXPLAINS if part > 0.5 else Role.POSSIBLE, max(0.0, min(1.0, part)), note)


def _by_remedy(each: Difference, remedy: Remedy, case: Contrast) -> Difference:
    """Weigh a knob that a remedy names: it explains if the other start has it as the remedy wants it."""
    forward = case.failed is not case.good
    lost, kept = (each.bad, each.good) if forward else (each.good, each.bad)
    finding = case.findings[0]
    cause = f"{finding.cause}, found in the start that failed"
    # If a finding is not sure, only its first remedy counts: the others are often tests.
    sure = finding.confidence is Confidence.HIGH or (
        finding.confidence is Confidence.MEDIUM and remedy is finding.remedies[0]
    )
    if sure and _mends(kept, lost, remedy):
        return _is(each, Role.EXPLAINS, REMEDIED, f"{cause}, is mended by what the other start has")
    other = "" if _mends(kept, lost, remedy) else ", but not to what the other start has"
    return _is(each, Role.POSSIBLE, LIKELY, f"a remedy of {cause}, is to change it{other}")


def _mends(kept: Any, lost: Any, remedy: Remedy) -> bool:
    numbers = real(kept) is not None and real(lost) is not None
    if numbers and remedy.min is not None and kept < remedy.min:
        return False
    if numbers and remedy.max is not None and kept > remedy.max:
        return False
    match remedy.move:
        case Move.RAISE:
            return bool(numbers and kept > lost)
        case Move.LOWER:
            return bool(numbers and kept < lost)
        case Move.SET:
            return bool(kept == remedy.value or (remedy.value is None and kept not in (None, False)))
        case Move.UNSET:
            return kept in (None, False, "", "0")
    return False


def _by_lack(each: Difference, case: Contrast) -> Difference:
    """Acquit whatever moved less than a tenth of the missing pool."""
    lack, regained = case.lack, case.regained
    assert lack is not None
    taken = case.measure(Group.MEMORY, "communicators")
    if NETWORK.search(each.name) and taken is not None and taken.good is not None and taken.bad is not None:
        moved = abs(taken.bad - taken.good)
        if moved < _LITTLE * lack:
            return _is(each, Role.ACQUITTED, moved / lack, f"{_gap(taken)}: {moved:.2f} GiB, the pool lacks {lack:.1f}")
    if regained is not None and regained < _LITTLE * lack:
        moved = max(0.0, regained)
        after = case.measure(Group.MEMORY, "after weights")
        text = f"{_gap(after)}: " if after is not None else ""
        return _is(each, Role.ACQUITTED, moved / lack, f"{text}at most {moved:.2f} GiB, the pool lacks {lack:.1f}")
    return _is(each, Role.POSSIBLE, _UNPROVEN[Group.ARGUMENT], "")


def _by_result(each: Difference, case: Contrast) -> Difference:
    """Weigh a difference by the numbers in which it shows: if none of them moved, it did not make the outcome."""
    if _caps(each, case):
        return _is(each, Role.EXPLAINS, REMEDIED, "it caps the KV pool, whatever the fraction")
    network = NETWORK.search(each.name) is not None
    parts = case.parts(each.name)
    results = [_RESULTS[part] for part in _RESULTS if part in parts] + ([_TAKEN] if network else [])
    for group, names in results:
        changed = [m for m in (case.measure(group, name) for name in names or _names(case, group)) if m is not None]
        moved = [m for m in changed if _moved(m)]
        if moved:
            note = ", ".join(f"{_name(m)} {_told(m.good)} -> {_told(m.bad)} {m.unit}".rstrip() for m in moved)
            both_told = Origin.UNKNOWN not in (each.good_origin, each.bad_origin)
            if case.both_work and both_told:
                return _is(each, Role.EXPLAINS, 0.5, note)
            return _is(each, Role.POSSIBLE, LIKELY, note)
        if changed and case.both_work and not network:  # numbers of a start do not show the effect on speed
            note = ", ".join(f"{_name(m)} {_told(m.good)} {m.unit} in both".replace("  ", " ") for m in changed)
            return _is(each, Role.ACQUITTED, 0.0, note)
    weight = _UNPROVEN[each.group]
    asked = Origin.GIVEN in (each.good_origin, each.bad_origin)
    return _is(each, Role.POSSIBLE, weight + 0.1 * asked - 0.1 * ("." in each.name), each.note)


def _caps(each: Difference, case: Contrast) -> bool:
    """Return whether the pool was too small, and the failed start has a cap on it that the other does not have."""
    if case.failed is None or Part.CAP not in case.parts(each.name) or not case.findings:
        return False
    lost, kept = (each.bad, each.good) if case.failed is case.bad else (each.good, each.bad)
    return case.findings[0].cause in _SMALL_POOL and lost is not None and kept is None


_SMALL_POOL = ("context-exceeds-kv-pool", "kv-pool-exhausted", "mem-fraction-too-low")
_RESULTS: dict[Part, tuple[Group, tuple[str, ...]]] = {
    Part.GRAPHS: (Group.GRAPHS, ()),
    Part.CELL: (Group.POOL, ("bytes per token",)),
    Part.CAP: (Group.POOL, ("tokens",)),
}
"""Group and names of the measures in which a part shows; no names: all of the group."""
_TAKEN = (Group.MEMORY, ("communicators",))


def _names(case: Contrast, group: Group) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.name for each in case.measures if each.group is group and each.unit == "GiB"))


def _named(each: Difference, findings: tuple[Finding, ...]) -> Remedy | None:
    """Return the root cause's remedy that is about this argument or variable; None if there is none."""
    for finding in findings[:1]:
        for remedy in finding.remedies:
            flag = (remedy.flag or "").lstrip("-").partition("=")[0].partition(" ")[0].replace("-", "_")
            if each.name in (remedy.knob, flag, remedy.env) or (
                each.group is Group.VERSION and each.name == "engine" and remedy.knob == "version"
            ):
                return remedy
    return None


def _is(each: Difference, role: Role, weight: float, note: str) -> Difference:
    return msgspec.structs.replace(each, role=role, weight=weight, note=note)


def _fraction(side: Side) -> float:
    return 0.0 if side.fraction is None else side.fraction


def _moved(measure: Measure) -> bool:
    assert measure.good is not None and measure.bad is not None
    return abs(measure.bad - measure.good) > max(0.005, 0.01 * abs(measure.good))


def _gap(measure: Measure) -> str:
    return f"{_name(measure)} {_told(measure.bad)} against {_told(measure.good)} GiB"


def _name(measure: Measure) -> str:
    if measure.group is Group.GRAPHS:
        return f"graphs, {measure.name}"
    return WORDS.get(measure.name, measure.name)


def _told(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _times(measure: Measure) -> str:
    times = measure.ratio
    if measure.unit != "s" or times is None:
        return ""
    return f"{times:.1f} times as long" if times >= 1 else f"{1 / times:.1f} times faster"
