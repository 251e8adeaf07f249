"""Proposals about the fraction: above what the pool needs, below what the rest needs, never wrong the other way."""

from __future__ import annotations

from msgspec import Struct

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import option
from tuner.core.share import KNOBS, Share, asked, down, effective, pool_of, share_of, up
from tuner.domain.findings import Evidence, Move, Remedy
from tuner.domain.starts import Start

CAPTURE_SPARE = 0.07
FORWARD_SPARE = 0.05
"""Of what is free before the weights: what is kept for the captures and passes behind the one that failed. A capture
fails at its first and largest batch size as a rule, and the sizes behind it want more."""
LEAST_SPARE_GIB = 1.0
TOO_MUCH = 0.95
"""A minimum above this leaves too little for anything else on every card: the weights do not fit."""
_TOO_CLOSE = 5e-5
"""At the minimum itself the pool is empty."""
MOST = 0.99
"""Nothing above it is advised, whatever the sums allow."""


class Asked(Struct, frozen=True):
    """The fraction that was asked for and the one in effect."""

    knob: str
    value: float
    effective: float
    why: str = ""
    """What makes the two differ, in words."""
    multiplied_by: str = ""
    """The setting whose value multiplies it."""
    told: Evidence | None = None
    """Where the log says the effective one."""

    @property
    def factor(self) -> float:
        """Effective of asked."""
        return self.effective / self.value if self.value else 1.0


def asked_of(case: Case) -> Asked | None:
    """The fraction of a start, with the multipliers that its engine applies behind the operator's back."""
    start, told = case.start, case.engine.effective_fraction(case.start)
    if told is None:
        return None
    named = asked(start)
    knob = named[0] if named is not None else case.share.knob if case.share is not None else KNOBS[0]
    if told.said is None or told.said == told.value:
        return Asked(knob, told.value, told.value)
    elsewhere = told.at is not None and told.at != start.settings_at
    line = Evidence(what=f"effective {knob}", value=told.value, at=told.at) if elsewhere else None
    return Asked(knob, told.said, told.value, told.how, told.multiplied_by, line)


class Interval(Struct, frozen=True):
    """Where a fraction is safe."""

    low: float
    """1 - A/T of what the operator would give, multipliers undone; four digits."""
    high: float

    @property
    def empty(self) -> bool:
        """No fraction works."""
        return self.low >= self.high


def interval(case: Case, factor: float = 1.0) -> Interval | None:
    """The safe interval of the fraction as the operator gives it; None where the log does not tell."""
    if case.share is None:
        return None
    forecast = case.engine.forecast(case.start, {}, case.past)
    high = 1 - _spare(case.share) if forecast.f_max is None else forecast.f_max
    return Interval(round(case.share.f_min / factor, 4), min(high / factor, MOST))


def _spare(share: Share) -> float:
    return max(2 * LEAST_SPARE_GIB / share.slope, CAPTURE_SPARE)


def larger_pool(case: Case, why: str, *, need_gib: float = 0.0, tokens: float | None = None) -> Remedy | None:
    """Give the KV pool more: by the fraction, or by the cap where that and not the fraction bounds it.

    Args:
        case: The start.
        why: What it does for this failure.
        need_gib: What the pool must hold at least.
        tokens: The same as tokens.
    """
    cap = case.engine.cap(case.start)
    if cap is None:
        return raised(case, asked_of(case), need_gib=need_gib, why=why)
    least = None if tokens is None or cap != "max_total_tokens" else int(tokens)
    words = f"{why}: it, and not the fraction, bounds the KV pool; unset, the memory does"
    return case.remedy(cap, Move.RAISE, words, least=least) or option(case, cap, _flag(cap), Move.RAISE, words)


def _flag(knob: str) -> str:
    return f"--{knob.replace('_', '-')}"


def raised(case: Case, told: Asked | None, *, need_gib: float = 0.0, why: str = "") -> Remedy | None:
    """Raise the fraction above what it is, so that the pool holds what is needed; None where no fraction does.

    Args:
        case: The start.
        told: The fraction it had.
        need_gib: What the pool must hold at least.
        why: Instead of the usual words.
    """
    factor = told.factor if told is not None else 1.0
    bounds = interval(case, factor)
    if bounds is None or case.share is None:
        knob = told.knob if told is not None else case.named(KNOBS[0])
        return case.remedy(knob, Move.RAISE, why or "the pool needs room")
    low = case.share.fraction(need_gib) / factor if need_gib else bounds.low
    least = up(max(low, told.value if told is not None else 0.0) + _TOO_CLOSE)
    most = down(bounds.high)
    if least >= most:
        return None
    # Between the ends both have room. A pool that was merely too small takes all there is.
    whole = not need_gib and pool_of(case.start) is not None
    good = _known_good(case)
    value = good if good is not None and least < good <= most else most if whole else round((least + most) / 2, 2)
    value = value if least < value <= most else least
    pool = case.share.pool(value * factor)
    reason = why or f"above {low:.4f} there is a pool at all"
    end = "no more is advised" if bounds.high >= MOST else f"above {most:g} graphs and passes no longer fit"
    text = f"{reason}; {value:g} gives {pool:.1f} GiB, and {end}"
    knob = told.knob if told is not None else case.share.knob
    return case.remedy(knob, Move.RAISE, text, value=value, least=least, most=most)


def lowered(case: Case, told: Asked | None, lacking_gib: float, spare: float, why: str = "") -> Remedy | None:
    """Lower the fraction so that what failed fits, and by the forecast all else; None where the pool would be gone.

    Where a cap and not the fraction bounds the pool, lower that.

    Args:
        case: The start.
        told: The fraction it had.
        lacking_gib: What the failed allocation lacked.
        spare: Share of the free memory to keep beside.
        why: Instead of the usual words.
    """
    cap = case.engine.cap(case.start)
    if cap is not None:
        words = f"{why or 'more stays free beside the pool'}: it, and not the fraction, bounds the KV pool"
        return case.remedy(cap, Move.LOWER, words) or option(case, cap, _flag(cap), Move.LOWER, words)
    if told is None:
        return None
    share = case.share
    if share is None:
        return case.remedy(
            told.knob, Move.LOWER, why or "more stays free beside the static share", most=down(told.value - 0.05)
        )
    room = lacking_gib + max(LEAST_SPARE_GIB, spare * share.slope)
    bounds = interval(case, told.factor)
    most = (told.effective - room / share.slope) / told.factor
    most = down(most if bounds is None else min(most, bounds.high))
    least = up(share.f_min / told.factor + _TOO_CLOSE)
    if most <= least:
        return None
    spared = (told.effective - most * told.factor) * share.slope - lacking_gib
    reason = why or f"{lacking_gib:.2f} GiB were lacking; with {spared:.1f} GiB to spare {most:g} leaves enough"
    text = f"{reason}, and still a pool of {share.pool(most * told.factor):.1f} GiB"
    return case.remedy(told.knob, Move.LOWER, text, value=most, least=least, most=most)


def _known_good(case: Case) -> float | None:
    """The effective fraction of the newest good start."""
    for start in case.past:
        known = _effective(start)
        if known is not None:
            return round(known, 2)
    return None


def _effective(start: Start) -> float | None:
    return effective(start, share_of(start))


def smaller_weights(case: Case) -> list[Remedy | None]:
    """What helps when no fraction does."""
    tp = case.setting("tp_size", "tensor_parallel_size")
    more = tp * 2 if isinstance(tp, int) else None
    knob = "tp_size"
    return [
        case.remedy(knob, Move.RAISE, "the weights are divided among more GPUs", value=more),
        case.remedy("quantization", Move.SET, "a quantised checkpoint is smaller"),
        case.remedy("cpu_offload_gb", Move.RAISE, "part of the weights stays in host memory, and is slow"),
    ]
