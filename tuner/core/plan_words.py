"""Words for the memory forecast of a start, shared by the command line and the screens."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.core.report_plan import PlanReport
from tuner.core.share import ON_CPU
from tuner.domain.forecast import Fit, Forecast

Told = Forecast | PlanReport
"""A forecast, or the report of one, which has the same fields."""
PURPOSES = {
    "weights": "weights",
    "draft_weights": "draft",
    "kv_pool": "KV pool",
    "draft_kv_pool": "draft KV",
    "mamba": "linear attn",
    "request_table": "requests",
    "other": "other",
    "graphs": "CUDA graphs",
    "context": "context",
    "activation": "activations",
    "free": "left",
}
"""Names of the rows of a forecast, in order; eleven letters at most, for the column."""
_BEFORE_POOL = ("weights", "draft_weights", "kv_pool")
_ONE = 0.0015
"""Fractions that differ by less are one at three digits."""
_ALIKE_GIB = 0.1
"""GiB by which the sizes of ranks may differ that are shown as one."""


def happens(fit: Fit, what: str) -> bool:
    """Return whether a start gets as far as a purpose: nothing follows a pool that cannot be."""
    return fit not in (Fit.TOO_LOW, Fit.NOWHERE) or what in _BEFORE_POOL


def least_whole(plan: Told) -> float | None:
    """Return the least safe fraction whose KV pool holds one request of full length; None if all or none do."""
    if plan.f_whole is None or plan.f_min is None or plan.f_max is None:
        return None
    return plan.f_whole if plan.f_min < plan.f_whole <= plan.f_max else None


def short(plan: Told) -> bool:
    """Return whether a start that fits has too small a KV pool for one request of full length."""
    return (
        plan.fit is Fit.FITS and bool(plan.context and plan.kv_tokens) and (plan.kv_tokens or 0) < (plan.context or 0)
    )


def good(plan: Told) -> bool:
    """Return whether a start surely fits and can serve one request of full length."""
    return plan.fit is Fit.FITS and plan.sure and not short(plan)


def verdict(plan: Told) -> str:
    """Return the verdict of a forecast in capitals: `STARTS` where it fits, but no request of full length does."""
    if plan.fit is Fit.UNKNOWN:
        return "NOT KNOWN"
    if plan.fit is not Fit.FITS:
        return "DOES NOT FIT"
    return ("STARTS" if short(plan) else "FITS") + ("" if plan.sure else ", NOT SURELY")


def whole(plan: Told) -> str:
    """Return in words from which fraction on one request of full length fits; empty where that is not known."""
    if plan.context is None or plan.kv_tokens is None:
        return ""
    request = f"one request of the full {plan.context:,} tokens"
    if plan.f_whole is None or (plan.f_max is not None and plan.f_whole > plan.f_max):
        most = "" if plan.f_whole is None else f" (it would need {plan.f_whole:g})"
        return f"at no safe fraction it holds {request}{most}"
    if plan.f_min is not None and plan.f_whole - plan.f_min < _ONE:
        return ""
    return f"from {plan.f_whole:g} on it holds {request}"


def reason(plan: Told) -> str:
    """Return why a start fits or does not, in words."""
    at = "" if plan.fraction is None else f"{plan.fraction:.4g}"
    low = "?" if plan.f_min is None else f"{plan.f_min:.4f}"
    high = "?" if plan.f_max is None else f"{plan.f_max:.3f}"
    match plan.fit:
        case Fit.FITS:
            text = f"at a fraction of {at}" + (f": {plan.kv_tokens:,} tokens of KV" if plan.kv_tokens else "")
            if short(plan):
                text += ", too few for one request of full length"
            over = plan.f_max is not None and plan.fraction is not None and plan.fraction > plan.f_max + 1e-9
            return text + (f". Up to {high} it fits even if all errors come true" if over and not plan.sure else "")
        case Fit.TOO_LOW:
            return f"refused at {at}: the least fraction that leaves room for a KV pool is just above {low}"
        case Fit.TOO_HIGH:
            return f"{at} leaves too little beside the pool: graphs, activations and 1 GiB surely fit up to {high}"
        case Fit.NOWHERE if plan.f_min is not None and plan.f_min >= 1:
            return "no fraction works: the weights alone take more than is free"
        case Fit.NOWHERE:
            return (
                f"no fraction works: the pool needs more than {low}, and above {high} graphs and activations do not fit"
            )
        case Fit.UNKNOWN if plan.fraction is not None and plan.f_min is not None and plan.f_max is not None:
            where = f"lies above {high}, the largest safe one" if plan.fraction > plan.f_max else "should fit"
            return f"{at} {where}, but the logs do not tell enough to be certain"
        case Fit.UNKNOWN:
            return ON_CPU if ON_CPU in plan.unknown else "the logs do not tell enough"


def missing(plan: Told) -> tuple[str, ...]:
    """Return what more logs would have to tell, in words; that a server runs on a CPU is no such thing."""
    return tuple(each for each in plan.unknown if each != ON_CPU)


def alike(sizes: Mapping[int, Mapping[str, float | None]]) -> list[list[int]]:
    """Group the ranks whose sizes differ by at most `_ALIKE_GIB` in every purpose.

    Args:
        sizes: GiB by rank and purpose; None: not known.
    """
    groups: list[list[int]] = []
    for rank, mine in sizes.items():
        for group in groups:
            first = sizes[group[0]]
            if first.keys() == mine.keys() and all(_near(first[what], mine[what]) for what in mine):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return groups


def _near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _ALIKE_GIB
