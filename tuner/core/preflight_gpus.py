"""Checks before a switch that look at the GPUs: who else is on them, and whether the memory suffices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.core import plan_words
from tuner.core.preflight_case import Case, check, fail
from tuner.core.share import OF_CARD, OF_FREE, ON_CPU
from tuner.domain.forecast import Fit, Forecast
from tuner.domain.preflight import Check, Verdict
from tuner.units import format_gib, real, whole

SMALL_TENANT_BYTES = 256 << 20
"""256 MiB: at most this is a monitor's or a desktop's context, and no other load."""
_WEIGHTS = ("weights", "draft_weights")
_BESIDE = ("graphs", "activation")
"""What must fit beside the static share."""


def tenants(case: Case) -> Iterator[Check]:
    """Yield who else holds memory on the GPUs of the new server."""
    fact = case.fact("holders")
    title = "GPU tenants"
    if _on_cpu(case):
        yield check("tenants", title, Verdict.OK, "the server runs on a CPU")
        return
    if fact.missing:
        yield fact.unknown("tenants", title)
        return
    gpus = case.gpus()
    sure = gpus is not None or case.takes_all()
    shares: dict[int, list[Mapping[str, Any]]] = {}
    for each in fact.maps("processes"):
        gpu = whole(each.get("gpu"))
        if gpu is not None and (gpus is None or gpu in gpus):
            shares.setdefault(gpu, []).append(each)
    large = False
    for gpu, there in sorted(shares.items()):
        held = [whole(each.get("bytes")) for each in there]
        total = None if None in held else sum(size or 0 for size in held)
        if total is not None and total < SMALL_TENANT_BYTES:
            continue
        large = True
        first = max(there, key=lambda each: whole(each.get("bytes")) or 0)
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        size = "memory" if total is None else f"{format_gib(total)} GiB"
        # What cannot be seen is in another container; or it is the server itself, by the number it has on the host.
        hidden = all(each.get("title") is None and each.get("user") is None for each in there)
        owner = "that cannot be seen from here" if hidden else f"of {first.get('user') or '?'}"
        detail = f"GPU {gpu}: pid {whole(first.get('pid'))} {owner}{more} holds {size}"
        detail += f" ({first.get('title')})" if first.get("title") else ""
        out = "have its owner end it, choose other GPUs, or lower the fraction; it is not touched from here"
        lacking = _lacking(case, gpu, total) if total is not None and sure and not hidden else ""
        if lacking:
            yield fail("tenants", title, f"{detail}: {lacking}", out)
        else:
            yield check("tenants", title, Verdict.WARN, detail, out)
    if not large:
        count = sum(len(there) for there in shares.values())
        few = f"{count} small ones, less than {SMALL_TENANT_BYTES >> 20} MiB a GPU" if count else "nobody else"
        yield check("tenants", title, Verdict.OK, few)


def _lacking(case: Case, gpu: int, tenants_bytes: int) -> str:
    """Return why a GPU has too little left beside its tenants, with the numbers; empty: it has enough, or is unknown.

    A fraction of the whole card is asked for at the start, and refused if less is free. One of the free memory shrinks
    with it: the weights must fit into the share, and graphs and activations beside it.
    """
    card = case.capacity_bytes(gpu)
    if card is None or case.engine is None:
        return ""
    left = card - tenants_bytes
    fraction = _fraction(case)
    knobs = case.engine.knobs()
    weights, beside = _need(case, _WEIGHTS), _need(case, _BESIDE)
    weights = weights or _weights_now(case, gpu)
    free = f"{format_gib(left)} GiB are left"
    if fraction is not None and OF_CARD in knobs and fraction * card > left:
        return f"{free}, and a fraction of {fraction:g} asks for {format_gib(round(fraction * card))} GiB"
    if weights is not None and weights > left:
        return f"{free}, and the weights take {format_gib(weights)} GiB"
    if fraction is None or OF_FREE not in knobs:
        return ""
    share = round(fraction * left)
    if weights is not None and weights >= share:
        return (
            f"{free}, {fraction:g} of which is {format_gib(share)} GiB, and the weights take {format_gib(weights)} GiB"
        )
    if beside is not None and beside > left - share:
        rest = f"{format_gib(left - share)} GiB for {format_gib(beside)} GiB of graphs and activations"
        return f"{free}, of which {fraction:g} leaves {rest}"
    return ""


def _fraction(case: Case) -> float | None:
    """Return the fraction of the new start, by its forecast or its arguments; None: not known."""
    if case.forecast is not None and case.forecast.fraction is not None:
        return case.forecast.fraction
    settings = case.settings()
    return next((found for name in (OF_FREE, OF_CARD) if (found := real(settings.get(name))) is not None), None)


def _need(case: Case, purposes: tuple[str, ...]) -> int | None:
    """Return the most that a rank needs for some purposes, as forecast; None: not known."""
    plan = case.forecast
    if plan is None or plan.fit is Fit.UNKNOWN:
        return None
    sums: dict[int, int] = {}
    for row in plan.rows:
        if row.what in purposes and row.size_bytes is not None:
            sums[row.rank] = sums.get(row.rank, 0) + row.size_bytes
    return max(sums.values(), default=None)


def _weights_now(case: Case, gpu: int) -> int | None:
    """Return the weights that the running server has on a GPU, if the new one has as many ranks; None: not known."""
    server = case.server
    if server is None or not case.same_engine or case.ranks() != len(server.ranks):
        return None
    return next((rank.memory.weights_bytes for rank in server.ranks if rank.gpu == gpu), None)


def memory(case: Case) -> Iterator[Check]:
    """Yield what the forecast says of the memory."""
    plan = case.forecast
    title = "Memory forecast"
    if plan is None:
        out = "`gputuner plan` forecasts it from the log of a start of this LLM"
        yield check("memory", title, Verdict.UNKNOWN, "the memory of this start is not forecast", out)
        return
    detail = f"{plan_words.verdict(plan)}: {plan_words.reason(plan)}"
    if _on_cpu(case):
        yield check("memory", title, Verdict.NOTE, ON_CPU)
    elif plan.fit is Fit.UNKNOWN:
        missing = "; ".join(plan_words.missing(plan))
        yield check("memory", title, Verdict.UNKNOWN, detail, f"missing: {missing}" if missing else "")
    elif plan.fit is not Fit.FITS:
        yield fail("memory", title, detail, _safe(plan))
    elif not plan_words.good(plan):
        doubt = _doubt(plan)
        way_out = "lower what takes memory, or try it: there is a way back" if doubt else _safe(plan)
        yield check("memory", title, Verdict.WARN, f"{detail}; {doubt}" if doubt else detail, way_out)
    else:
        yield check("memory", title, Verdict.OK, detail)


def _on_cpu(case: Case) -> bool:
    return case.forecast is not None and case.forecast.fit is Fit.UNKNOWN and ON_CPU in case.forecast.unknown


def _doubt(plan: Forecast) -> str:
    """Return why a start whose fraction is safe may fail all the same; empty for any other."""
    low, high, fraction = plan.f_min, plan.f_max, plan.fraction
    if plan.sure or low is None or high is None or fraction is None or not low < fraction <= high:
        return ""
    return next(iter(plan.warnings), "")


def _safe(plan: Forecast) -> str:
    """Return the safe interval of the fraction, in words."""
    if plan.f_min is None or plan.f_max is None:
        return "lower what takes memory: context, running requests, graphs"
    if plan.f_max <= plan.f_min:
        return "no fraction works: take fewer or smaller graphs, fewer requests, or more GPUs"
    least = plan_words.least_whole(plan)
    low = f"from {least:.3f}" if least is not None else f"above {plan.f_min:.4f}"
    return f"a fraction {low} up to {plan.f_max:.3f} is safe"
