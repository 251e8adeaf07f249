"""Remedies that move the memory fraction, or the cap that takes its place, within its safe interval.

Too low a fraction leaves no KV pool, too high a one no memory for graphs and passes; each proposal is checked against
both ends.
"""

from __future__ import annotations

from msgspec import Struct

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import option
from tuner.core.forecast import CAPTURE_SPARE, LEAST_SPARE_GIB, MOST
from tuner.core.share import OF_FREE, Share, asked, down, effective, pool_of, share_of, up
from tuner.domain.findings import Evidence, Move, Remedy
from tuner.domain.starts import Start

TOO_MUCH = 0.95
"""Minimum fraction from which the weights count as not fitting: on any card too little is left beside them."""
_TOO_CLOSE = 5e-5
"""Distance of a proposal from the minimum fraction: at the minimum itself the pool is empty."""


class Asked(Struct, frozen=True):
    """The requested fraction and the effective one of a start."""

    knob: str
    """Name of the fraction's server arg."""
    value: float
    """Requested fraction."""
    effective: float
    """Effective fraction."""
    why: str = ""
    """Why the two differ, in words; empty if they do not."""
    multiplied_by: str = ""
    """Server arg whose value makes the engine multiply the fraction; empty if none does."""
    told: Evidence | None = None
    """The log line that states the effective fraction; None if only the line of server args does, or none."""

    @property
    def factor(self) -> float:
        """Effective fraction divided by the requested one; 1.0 if the requested one is 0."""
        return self.effective / self.value if self.value else 1.0


def asked_of(case: Case) -> Asked | None:
    """Return the requested and the effective fraction of a start; None if the log tells neither.

    An engine may multiply the fraction without saying so.
    """
    start, told = case.start, case.engine.effective_fraction(case.start)
    if told is None:
        return None
    named = asked(start)
    knob = named[0] if named is not None else case.share.knob if case.share is not None else case.named(OF_FREE)
    if told.said is None or told.said == told.value:
        return Asked(knob, told.value, told.value)
    elsewhere = told.at is not None and told.at != start.settings_at
    line = Evidence(what=f"effective {knob}", value=told.value, at=told.at) if elsewhere else None
    return Asked(knob, told.said, told.value, told.how, told.multiplied_by, line)


class Interval(Struct, frozen=True):
    """Safe interval of the fraction as the operator types it, before the engine multiplies it."""

    low: float
    """Lower end, rounded to four digits; at or below it there is no pool."""
    high: float
    """Upper end, at most `MOST`; above it graphs and passes do not fit."""
    whole: float | None = None
    """Least fraction, three digits, whose pool holds one request of `context` tokens; None if unknown or above 1."""
    context: int = 0
    """Tokens of the longest request; 0 if unknown."""
    estimated: bool = False
    """Whether the upper end rests on estimates alone."""

    @property
    def empty(self) -> bool:
        """True if no fraction is safe."""
        return self.low >= self.high


def interval(case: Case, factor: float = 1.0) -> Interval | None:
    """Return the safe interval of the fraction; None if the log lacks the memory figures for it.

    Args:
        case: The start.
        factor: Effective fraction divided by the requested one (`Asked.factor`).
    """
    if case.share is None:
        return None
    forecast = case.engine.forecast(case.start, {}, case.past)
    high = 1 - _spare(case.share) if forecast.f_max is None else forecast.f_max
    # vLLM refuses a pool that does not hold one whole request, which its formula of the share does not count.
    low = max(case.share.f_min, forecast.f_min or 0.0)
    whole = None if forecast.f_whole is None or forecast.f_whole > factor else up(forecast.f_whole / factor)
    return Interval(round(low / factor, 4), min(high / factor, MOST), whole, forecast.context or 0, forecast.estimated)


def _full(bounds: Interval, most: float) -> float | None:
    """Return the least fraction that holds a request of full length; None if it is unknown or above `most`."""
    return bounds.whole if bounds.whole is not None and bounds.whole <= most else None


def _serves(bounds: Interval, share: Share, value: float, most: float, factor: float) -> str:
    """Return in words from which fraction on a request of full length fits, or what fits instead; empty if unknown."""
    if bounds.whole is None:
        return ""
    if bounds.whole <= most:
        return f"; from {bounds.whole:g} on it holds one request of the full {bounds.context:,} tokens"
    fits = bounds.context * share.pool(value * factor) / share.pool(bounds.whole * factor)
    return (
        f"; one request of the full {bounds.context:,} tokens would need {bounds.whole:g}, so give a context length of"
        f" at most about {int(fits / 1000) * 1000:,}"
        if fits >= 1000 else f"; one request of the full {bounds.context:,} tokens would need {bounds.whole:g}"
    )  # fmt: skip


def _spare(share: Share) -> float:
    return max(2 * LEAST_SPARE_GIB / share.slope, CAPTURE_SPARE)


def larger_pool(case: Case, why: str, *, need_gib: float = 0.0, tokens: float | None = None) -> Remedy | None:
    """Propose a larger KV pool: by a higher cap if a cap bounds the pool, else by a higher fraction.

    Args:
        case: The start.
        why: What the change does for this failure.
        need_gib: Least size of the pool, GiB; 0: any.
        tokens: The same least size in tokens, used if `max_total_tokens` is the cap; None: any.
    """
    cap = case.engine.cap(case.start)
    if cap is None:
        return raised(case, asked_of(case), need_gib=need_gib, why=why)
    knob = case.engine.knobs().find(cap)
    counted = knob is not None and knob.unit == "tokens"
    least = int(tokens) if tokens is not None and counted else None
    words = f"{why}: it, and not the fraction, bounds the KV pool; unset, the memory does"
    return case.remedy(cap, Move.RAISE, words, least=least) or option(case, cap, _flag(cap), Move.RAISE, words)


def _flag(knob: str) -> str:
    return f"--{knob.replace('_', '-')}"


def raised(case: Case, told: Asked | None, *, need_gib: float = 0.0, why: str = "") -> Remedy | None:
    """Propose a higher fraction that yields a large enough pool; None if no safe fraction does.

    Args:
        case: The start.
        told: The fraction of the start; None if unknown.
        need_gib: Least size of the pool, GiB; 0: any.
        why: Reason to print in place of the default one.
    """
    factor = told.factor if told is not None else 1.0
    bounds = interval(case, factor)
    if bounds is None or case.share is None:
        knob = told.knob if told is not None else case.named(OF_FREE)
        return case.remedy(knob, Move.RAISE, why or "the pool needs room")
    low = case.share.fraction(need_gib) / factor if need_gib else bounds.low
    least = up(max(low, told.value if told is not None else 0.0) + _TOO_CLOSE)
    most = down(bounds.high)
    if least >= most:
        return None
    floor, least = least, max(least, _full(bounds, most) or 0.0)
    # In the middle of the interval the pool and the rest both have room; a pool that was merely too small takes it all.
    all_of_it = not need_gib and pool_of(case.start) is not None
    good = _known_good(case)
    value = good if good is not None and least < good <= most else most if all_of_it else round((least + most) / 2, 2)
    value = value if least < value <= most else least
    pool = case.share.pool(value * factor)
    reason = why or f"above {low:.4f} there is a pool at all"
    if told is None or bounds.whole is None or bounds.whole > told.value:
        reason += _serves(bounds, case.share, value, most, factor)
    sure = ", by estimate," if bounds.estimated else ""
    end = "no more is advised" if bounds.high >= MOST else f"above {most:g}{sure} graphs and passes no longer fit"
    text = f"{reason}; {value:g} gives {pool:.1f} GiB, and {end}"
    knob = told.knob if told is not None else case.share.knob
    return case.remedy(knob, Move.RAISE, text, value=value, least=floor, most=most, serves=least)


def lowered(case: Case, told: Asked | None, lacking_gib: float, spare: float, why: str = "") -> Remedy | None:
    """Propose a lower fraction at which the failed allocation fits, and by the forecast everything else too.

    If a cap bounds the pool, the cap is lowered instead of the fraction.

    Args:
        case: The start.
        told: The fraction of the start; None if unknown.
        lacking_gib: GiB by which the failed allocation exceeded the free memory.
        spare: Additional memory to keep free, as a share of what was free before the weights; at least
            `LEAST_SPARE_GIB` is kept.
        why: Reason to print in place of the default one.

    Returns:
        None if the fraction is unknown, or if no pool would be left.
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
    least = up((share.f_min / told.factor if bounds is None else bounds.low) + _TOO_CLOSE)
    if most <= least:
        return None
    spared = (told.effective - most * told.factor) * share.slope - lacking_gib
    reason = why or f"{lacking_gib:.2f} GiB were lacking; with {spared:.1f} GiB to spare {most:g} leaves enough"
    text = f"{reason}, and still a pool of {share.pool(most * told.factor):.1f} GiB"
    full = None
    if bounds is not None:
        text += _serves(bounds, share, most, most, told.factor)
        full = _full(bounds, most)
    return case.remedy(told.knob, Move.LOWER, text, value=most, least=least, most=most, serves=full)


def _known_good(case: Case) -> float | None:
    """Return the effective fraction of the newest past start that tells one, rounded to two digits."""
    for start in case.past:
        known = _effective(start)
        if known is not None:
            return round(known, 2)
    return None


def _effective(start: Start) -> float | None:
    return effective(start, share_of(start))


def smaller_weights(case: Case) -> list[Remedy | None]:
    """Return remedies that shrink the weights per GPU, for starts that no fraction can rescue."""
    tp = case.setting("tp_size", "tensor_parallel_size")
    more = tp * 2 if isinstance(tp, int) else None
    knob = "tp_size"
    return [
        case.remedy(knob, Move.RAISE, "the weights are divided among more GPUs", value=more),
        case.remedy("quantization", Move.SET, "a quantised checkpoint is smaller"),
        case.remedy("cpu_offload_gb", Move.RAISE, "part of the weights stays in host memory, and is slow"),
    ]
