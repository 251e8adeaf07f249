"""A forecast as plain values: the `plan` of `diagnose --json` and of `gputuner plan --json`.

The field names are an interface for scripts, as those of `core.report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from tuner.core.report_comparison import digits
from tuner.core.share import KNOBS, down
from tuner.domain.findings import Finding, Meaning, Move, Severity
from tuner.domain.forecast import Fit, Forecast, ForecastRow, Source
from tuner.units import GIB

Told = TypeVar("Told", Forecast, "PlanReport")


class PlanRow(Struct, frozen=True, kw_only=True):
    """One purpose of one rank's memory in the forecast."""

    rank: int
    what: str
    gib: float | None
    tokens: int | None
    source: Source
    error_gib: float | None
    note: str


class PlanReport(Struct, frozen=True, kw_only=True):
    """The forecast of the same start, and the interval in which its fraction is safe."""

    fit: Fit
    fraction: float | None
    f_min: float | None
    f_max: float | None
    kv_tokens: int | None
    rows: tuple[PlanRow, ...]
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]
    sure: bool = False
    estimated: bool = False
    context: int | None = None
    f_whole: float | None = None


def plan_report(forecast: Forecast | None) -> PlanReport:
    """Return a forecast with its sizes in GiB; None gives an empty one whose fit is unknown."""
    if forecast is None:
        return PlanReport(
            fit=Fit.UNKNOWN, fraction=None, f_min=None, f_max=None, kv_tokens=None, rows=(), warnings=(), unknown=()
        )
    return PlanReport(
        fit=forecast.fit,
        fraction=forecast.fraction,
        f_min=digits(forecast.f_min),
        f_max=digits(forecast.f_max),
        kv_tokens=forecast.kv_tokens,
        rows=tuple(_row(row) for row in forecast.rows),
        warnings=forecast.warnings,
        unknown=forecast.unknown,
        sure=forecast.sure,
        estimated=forecast.estimated,
        context=forecast.context,
        f_whole=forecast.f_whole,
    )


def as_seen(plan: Told, findings: Sequence[Finding], changes: Iterable[str] = ()) -> Told:
    """Narrow the safe interval by what a failure has shown: a pass that did not fit needs more than was forecast.

    Args:
        plan: Forecast of the start that failed, perhaps with changes.
        findings: Those of the start, the root cause first.
        changes: Canonical names of the changed knobs: the failure tells nothing of a start with more than another
            fraction.
    """
    if not findings or findings[0].severity is not Severity.FATAL or plan.f_max is None or set(changes) - set(KNOBS):
        return plan
    moves = [each for each in findings[0].remedies if each.knob in KNOBS]
    meanings = {each.meaning for each in findings[0].evidence}
    if not moves and Meaning.FAILED_ALLOCATION in meanings:
        return msgspec.structs.replace(plan, f_max=None, fit=Fit.UNKNOWN, sure=False)
    lowered = [each for each in moves if each.move is Move.LOWER]
    most = next((each.max for each in lowered if each.max is not None), None)
    # Bounds of a fraction that the engine multiplies are of the requested one, those of the plan of the effective one.
    if most is None or Meaning.MULTIPLIED_FRACTION in meanings:
        return plan
    most = min(down(float(most)), plan.f_max)
    fit = Fit.TOO_HIGH if plan.fraction is not None and plan.fraction > most else plan.fit
    return msgspec.structs.replace(plan, f_max=most, fit=fit, sure=plan.sure and fit is plan.fit)


def _row(row: ForecastRow) -> PlanRow:
    return PlanRow(
        rank=row.rank,
        what=row.what,
        gib=None if row.size_bytes is None else round(row.size_bytes / GIB, 3),
        tokens=row.tokens,
        source=row.source,
        error_gib=None if row.error_bytes is None else round(row.error_bytes / GIB, 3),
        note=row.note,
    )
