"""What `gputuner compare --json` promises, and `diagnose --json` under `comparison`.

The keys are the field names here; `docs/diagnose.md` lists them. Secrets are masked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tuner.core.redact import mask
from tuner.domain.comparison import Comparison, Difference, Measure, Role, Side, Value
from tuner.domain.findings import Outcome

SCHEMA = 1
"""Version of the keys of both commands. Grows when a key is renamed, removed or changes its meaning; new keys do not
count."""

Locate = Callable[[int], tuple[str, int]]
"""Returns file and line (from 1) of a place in a log, as `Evidence.at` counts."""


class SideReport(Struct, frozen=True, kw_only=True):
    """One of two starts that are compared."""

    engine: str | None
    engine_version: str | None
    model: str | None
    outcome: Outcome
    phase: str
    ranks: int
    files: tuple[str, ...]
    fraction: float | None
    fraction_origin: str
    fraction_note: str
    pool_gib: float | None
    f_min: float | None


class PairReport(Struct, frozen=True, kw_only=True):
    """One number of one rank in both starts."""

    rank: int
    baseline: float | None
    this: float | None


class DifferenceReport(Struct, frozen=True, kw_only=True):
    """One thing that is not the same in two starts."""

    group: str
    name: str
    baseline: Value
    this: Value
    unit: str
    baseline_origin: str
    this_origin: str
    baseline_file: str | None
    baseline_line: int | None
    this_file: str | None
    this_line: int | None
    role: str
    explains: bool
    weight: float
    effect_gib: float | None
    ratio: float | None
    ranks: tuple[PairReport, ...]
    note: str


class MeasureReport(Struct, frozen=True, kw_only=True):
    """One number of the two starts, the same or not; None if a log does not tell it."""

    group: str
    name: str
    unit: str
    baseline: float | None
    this: float | None
    ratio: float | None
    ranks: tuple[PairReport, ...]


class ComparisonReport(Struct, frozen=True, kw_only=True):
    """Two starts side by side: `baseline` is the one that worked, or the first one named."""

    schema: int = SCHEMA
    baseline: SideReport
    this: SideReport
    comparable: bool
    obstacles: tuple[str, ...]
    summary: str
    differences: tuple[DifferenceReport, ...]
    acquitted: tuple[DifferenceReport, ...]
    measures: tuple[MeasureReport, ...]


def report_comparison(
    comparison: Comparison, locate_baseline: Locate, locate_this: Locate, *, noise: bool = False
) -> ComparisonReport:
    """Build the report of a comparison.

    Args:
        comparison: The comparison of the two starts.
        locate_baseline: Returns file and line of a place in the baseline's log.
        locate_this: Returns file and line of a place in the other log.
        noise: Also report what differs between any two starts.
    """
    differences = tuple(
        _difference(each, locate_baseline, locate_this)
        for each in comparison.differences
        if noise or each.role is not Role.NOISE
    )
    return ComparisonReport(
        baseline=_side(comparison.good),
        this=_side(comparison.bad),
        comparable=not comparison.obstacles,
        obstacles=comparison.obstacles,
        summary=mask(comparison.summary),
        differences=differences,
        acquitted=tuple(each for each in differences if each.role == Role.ACQUITTED),
        measures=tuple(_measure(each) for each in comparison.measures),
    )


def _side(side: Side) -> SideReport:
    return SideReport(
        engine=side.engine or None,
        engine_version=side.version,
        model=None if side.model is None else mask(side.model),
        outcome=side.outcome,
        phase=side.phase,
        ranks=side.ranks,
        files=side.files,
        fraction=digits(side.fraction),
        fraction_origin=side.fraction_origin,
        fraction_note=side.fraction_note,
        pool_gib=None if side.pool_gib is None else round(side.pool_gib, 2),
        f_min=digits(side.f_min),
    )


def _difference(difference: Difference, locate_baseline: Locate, locate_this: Locate) -> DifferenceReport:
    baseline_file, baseline_line = _place(difference.good_at, locate_baseline)
    this_file, this_line = _place(difference.bad_at, locate_this)
    return DifferenceReport(
        group=difference.group,
        name=difference.name,
        baseline=_shown(difference.good),
        this=_shown(difference.bad),
        unit=difference.unit,
        baseline_origin=difference.good_origin,
        this_origin=difference.bad_origin,
        baseline_file=baseline_file,
        baseline_line=baseline_line,
        this_file=this_file,
        this_line=this_line,
        role=difference.role,
        explains=difference.explains,
        weight=round(difference.weight, 3),
        effect_gib=None if difference.effect_gib is None else round(difference.effect_gib, 2),
        ratio=digits(difference.ratio),
        ranks=_pairs(difference),
        note=mask(difference.note),
    )


def _measure(measure: Measure) -> MeasureReport:
    return MeasureReport(
        group=measure.group,
        name=measure.name,
        unit=measure.unit,
        baseline=_shown(measure.good),
        this=_shown(measure.bad),
        ratio=digits(measure.ratio),
        ranks=_pairs(measure),
    )


def _pairs(of: Difference | Measure) -> tuple[PairReport, ...]:
    return tuple(PairReport(rank=pair.rank, baseline=_shown(pair.good), this=_shown(pair.bad)) for pair in of.pairs)


def _place(at: int | None, locate: Locate) -> tuple[str, int] | tuple[None, None]:
    return (None, None) if at is None else locate(at)


def _shown(value: Any) -> Any:
    """Return a value with secrets masked, and with four digits at most."""
    if isinstance(value, str):
        return mask(value)
    return round(value, 4) if isinstance(value, float) and math.isfinite(value) else value


def digits(value: float | None) -> float | None:
    """Round to four digits, as many as a fraction is shown with."""
    return None if value is None else round(value, 4)
