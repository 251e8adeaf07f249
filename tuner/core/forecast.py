"""Parts of every engine's forecast: rows with source and error, the safe interval, the verdict."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.knobs import KnobTable
from tuner.core.quantity import to_gib
from tuner.core.share import down, line_of
from tuner.domain.forecast import Fit, Forecast, ForecastRow, Source
from tuner.domain.starts import Figure, RankStory, Start
from tuner.units import GIB

HEADROOM_GIB = 1.0
"""GiB that must stay free beside graphs and the largest activation need: workspaces, fragmentation, the unmeasured."""
MOST = 0.99
"""Largest fraction that is ever called safe, whatever the arithmetic allows."""
CAPTURE_SPARE = 0.07
"""Spare memory to keep when a graph capture failed, as a share of what was free before the weights. A capture usually
fails at its first and largest batch size, and the remaining sizes need more."""
FORWARD_SPARE = 0.05
"""Spare memory to keep when a forward pass failed, as a share of what was free before the weights."""
LEAST_SPARE_GIB = 1.0
"""Lower bound of the spare memory, GiB, whatever the shares above yield."""
_LEAST_ROOM = 0.01
"""Least width of a safe interval. Where the errors alone make it narrower, the expected values bound it."""
LITTLE_GIB = 4.0
"""GiB left after the graphs below which a forecast warns."""
_LEAST_GIB, _MOST_GIB = 1e-3, 1 << 16
_MOST_TOKENS = 1 << 44
AFTER_POOL = frozenset({"autotune", "graph-capture", "warmup", "prefill", "decode", "runtime"})
"""Phases in which a failed allocation shows what is needed beside the static share."""
LEAST_TOKENS = 32_768
"""Tokens of the KV pool below which a start whose context length is unknown does not surely fit: 32,768 is the context
of the smaller ones among current LLMs, and more than the largest default prefill step (16,384)."""
_SAME_CELL = 0.02
"""Relative difference up to which two starts hold equally many bytes of a token on all ranks together."""
ACTIVATION_KIB = 192
"""KiB of activations per token of a prefill step: 1.5 GiB for 8,192 tokens; large models measured 0.6 to 2.4."""


class Row(Struct, frozen=True):
    """GiB for one purpose with source and error, not yet tied to a rank."""

    gib: float
    source: Source = Source.MEASURED
    error: float = 0.0
    note: str = ""

    @classmethod
    def of(cls, figure: Figure | None, scale: float = 1.0, scaled: str = "") -> Row:
        """Make a row of a measured figure; a scaled one is an estimate, off by a tenth of the change."""
        value = 0.0 if figure is None else figure.value
        if scale == 1.0:
            return cls(value)
        new = value * scale
        return cls(new, Source.ESTIMATE, abs(new - value) / 10, f"{value:.2f} GiB, {scaled}")

    def plus(self, other: Row) -> Row:
        """Add another row; the less reliable source counts."""
        order = (Source.MEASURED, Source.FORMULA, Source.ESTIMATE)
        parts = [each for each in (self, other) if each.gib or each.note] or [self]
        source = max((each.source for each in parts), key=order.index)
        note = "; ".join(each.note for each in parts if each.note)
        return Row(self.gib + other.gib, source, self.error + other.error, note)

    def row(self, rank: int, what: str, tokens: int | None = None) -> ForecastRow:
        """Return the row of a forecast for one rank."""
        return ForecastRow(
            rank=rank,
            what=what,
            size_bytes=in_bytes(self.gib),
            tokens=tokens,
            source=self.source,
            error_bytes=in_bytes(self.error) if self.error else None,
            note=self.note,
        )


def sound(start: Start) -> Start:
    """Return the start without figures that are impossible, so that the rest can be divided by."""
    return msgspec.structs.replace(start, ranks=tuple(_sound(rank) for rank in start.ranks))


def _sound(rank: RankStory) -> RankStory:
    bad = {
        name: None
        for name in rank.__struct_fields__
        if isinstance(figure := getattr(rank, name), Figure) and not _real(name, figure.value)
    }
    graphs = tuple(graph for graph in rank.graphs if graph.used_gib is None or _real("graphs", graph.used_gib))
    return msgspec.structs.replace(rank, graphs=graphs, **bad)


def _real(name: str, value: float) -> bool:
    """Return whether a figure is possible: finite, not negative, not huge; divisors and tokens above zero."""
    if not math.isfinite(value) or value < 0:
        return False
    if name == "kv_tokens":
        return 0 < value < _MOST_TOKENS
    return value < _MOST_GIB and (value > _LEAST_GIB or name not in ("before_weights", "total_gib"))


def in_bytes(gib: float) -> int | None:
    """Convert GiB to bytes; None if not finite or beyond 2**20 GiB."""
    return round(gib * GIB) if math.isfinite(gib) and abs(gib) < 1 << 20 else None


def activation_gib(tokens: int) -> float:
    """Return GiB of activations of a pass of so many tokens, by the rule of thumb."""
    return tokens * ACTIVATION_KIB / (1 << 20)


def activation_need(starts: Iterable[Start], tokens: int, prefix_gib: float = 0.0) -> Row:
    """Return what a forward pass takes beside everything static: the most that was seen, or a larger estimate.

    Args:
        starts: Starts whose ranks may have measured it.
        tokens: Tokens of the longest prefill step.
        prefix_gib: GiB that the part of a long prompt before the step may take in addition. It counts as error, since
            few starts have served such a prompt.
    """
    seen = [rank.activation_gib.value for start in starts for rank in start.ranks if rank.activation_gib is not None]
    estimate = activation_gib(max(tokens, 2048))
    if seen and max(seen) >= estimate:
        error = max(0.0, estimate + prefix_gib - max(seen)) if prefix_gib else 0.0
        return Row(max(seen), Source.MEASURED, error, "the most that was seen while serving")
    note = f"{tokens} tokens x {ACTIVATION_KIB} KiB" + (f"; {max(seen):.2f} GiB were seen" if seen else "")
    return Row(estimate, Source.ESTIMATE, math.hypot(max(0.5, estimate * 0.6), prefix_gib), note)


def shortage_gib(start: Start, phases: Container[str] = AFTER_POOL) -> float | None:
    """Return GiB that a start at least lacked when it ran out of memory in one of `phases`; None if it did not.

    Failures while other processes held memory are left out: how much this start needs does not follow from them.
    """
    if not any("out of memory" in failure.message and failure.phase in phases for failure in start.failures):
        return None
    lacking = []
    for sign in start.signs:
        tried, free = (to_gib(sign.fields.get(name)) for name in ("tried", "free"))
        if sign.id == "cuda-oom" and not sign.fields.get("others") and tried is not None and free is not None:
            lacking.append(max(0.0, tried - free))
    return max(lacking, default=None)


def spare_gib(start: Start, total: float) -> float:
    """Return GiB to keep beyond what a start lacked that ran out of memory; `total` is free before the weights."""
    captures = any("out of memory" in each.message and each.phase == "graph-capture" for each in start.failures)
    return max(LEAST_SPARE_GIB, total * (CAPTURE_SPARE if captures else FORWARD_SPARE))


class Interval(Struct, frozen=True):
    """The fractions in effect at which a start fits."""

    f_min: float | None = None
    """`1 - A/T` to four digits, at least 0: at or below it there is no pool. None if unknown."""
    f_max: float | None = None
    """Largest safe fraction, three digits: all errors may come true, and 1 GiB still stays free. None if unknown."""
    likely: float | None = None
    """Largest fraction by the expected values, three digits: the same without the errors. None if unknown."""
    doubtful: bool = False
    """Whether no fraction is safe once all errors come true: then `f_max` is `likely`."""


def interval(total: float, available: float, beside: float, error: float = 0.0, needed: float = 0.0) -> Interval:
    """Return the interval of a server whose pool is `A - T x (1 - f)`.

    Args:
        total: T in GiB, of which the fraction is a share.
        available: A in GiB, the pool at a fraction of 1.
        beside: GiB that must fit beside the static share, headroom included.
        error: GiB by which `beside` may be too low.
        needed: GiB to leave beside the static share for safety, because less has failed; 0.0 if nothing has.
    """
    if not (math.isfinite(total) and total > 0 and math.isfinite(available)):
        return Interval()
    return bounded(
        max(0.0, round(line_of(total, available).f_min, 4)), 1 - beside / total,
        1 - max(beside + max(0.0, error), needed) / total,
    )  # fmt: skip


def bounded(f_min: float, likely: float, safe: float) -> Interval:
    """Return the interval with these ends, rounded and within 0 and `MOST`; `likely` replaces an end that is too low.

    Args:
        f_min: Lower end.
        likely: Upper end by the expected values.
        safe: Upper end with all errors; at most `likely`.
    """
    likely, safe = (max(0.0, min(MOST, down(each))) for each in (likely, min(safe, likely)))
    doubtful = likely > safe < f_min + _LEAST_ROOM
    return Interval(f_min, likely if doubtful else safe, likely, doubtful)


def verdict(
    fraction: float | None,
    ends: Interval,
    tokens: int | None,
    *,
    rows: Sequence[ForecastRow] = (),
    warnings: Sequence[str] = (),
    unknown: Sequence[str] = (),
    doubts: Sequence[str] = (),
    changed: Mapping[str, tuple[object, object]] | None = None,
    helps: str = "",
    estimated: bool = False,
    context: int | None = None,
    f_whole: float | None = None,
    capped: bool = False,
) -> Forecast:
    """Build the forecast with its verdict: what does not fit is told before what is not known.

    Args:
        fraction: The one in effect; None if unknown.
        ends: The fractions at which the start fits.
        tokens: Tokens of the KV pool; None if unknown.
        rows: Memory by rank and purpose.
        warnings: What is worth knowing of a start that fits.
        unknown: Numbers that are missing, in words: without them nothing fits for certain.
        doubts: Warnings because of which the start does not surely fit.
        changed: Old and new value of the knobs that differ.
        helps: What would make room where no fraction works.
        estimated: No start has shown graphs or passes of the LLM.
        context: Tokens of the longest request; None if unknown.
        f_whole: Least fraction whose pool holds one request of `context` tokens; None if unknown or above 1.
        capped: A cap on its tokens bounds the pool, so that no formula tells the largest fraction.
    """
    fit, f_min, f_max = Fit.FITS, ends.f_min, ends.likely
    if f_min is not None and f_max is not None and f_min >= f_max:
        fit = Fit.NOWHERE
        warnings = [*warnings, f"to make room: {helps}"] if helps else warnings
    elif fraction is None or f_min is None:
        fit = Fit.UNKNOWN
    elif fraction <= f_min or (tokens is not None and tokens <= 0):
        fit = Fit.TOO_LOW
    elif f_max is not None and fraction > f_max + 1e-9:
        fit = Fit.TOO_HIGH
    elif tokens is None or (f_max is None and not capped):
        fit = Fit.UNKNOWN
    if fit is Fit.FITS and unknown:
        fit = Fit.UNKNOWN
    if fit is Fit.FITS and not context and tokens is not None and tokens < LEAST_TOKENS:
        doubts = [*doubts, f"no log tells the context length: the pool holds no request of more than {tokens:,} tokens"]
    return Forecast(
        fit=fit,
        rows=tuple(rows),
        fraction=fraction,
        f_min=f_min,
        f_max=ends.f_max,
        sure=fit is Fit.FITS and not doubts and not ends.doubtful and _within(fraction, ends.f_max, capped=capped),
        estimated=estimated,
        kv_tokens=tokens,
        context=context,
        f_whole=f_whole,
        warnings=tuple(dict.fromkeys([*doubts, *warnings])),
        changed=dict(changed or {}),
        unknown=tuple(dict.fromkeys(unknown)),
    )


def _within(fraction: float | None, f_max: float | None, *, capped: bool) -> bool:
    return fraction is not None and (capped if f_max is None else fraction <= f_max + 1e-9)


def differences(start: Start, changes: Mapping[str, Any], knobs: KnobTable) -> dict[str, tuple[object, object]]:
    """Return the knobs that differ from a start: old and new value, by canonical name in alphabetical order."""
    moved: dict[str, tuple[object, object]] = {}
    for name in sorted(changes):
        old = start.env.get(name, knobs.value(start.settings, name, start.version))
        if old != changes[name]:
            moved[name] = (old, changes[name])
    return moved


def heads_doubts(ranks: int, tried: Iterable[int]) -> list[str]:
    """Return in words that the LLM's heads may not divide by `ranks`; empty if starts have shown that they do.

    Engines refuse a `tp` that does not divide the attention heads: SGLang by an assertion in the model's own code, vLLM
    in `ModelConfig.verify_with_parallel_config`. No log tells their number, and that of most LLMs is a power of two.

    Args:
        ranks: Ranks that are to divide the heads of one request: `tp_size`, or with DP attention `tp_size / dp_size`.
        tried: The same of starts of the LLM.
    """
    if _divides(ranks, tried):
        return []
    near = 1 << ranks.bit_length() - 1
    return [
        f"the LLM's attention heads must divide by {ranks}, or the engine refuses to start. No log tells their number;"
        f" {near} or {2 * near} divides that of most LLMs"
    ]


def widths_doubts(tp: int, tried: Iterable[int]) -> list[str]:
    """Return in words that the widths of the LLM's layers may not divide by `tp`; empty if starts have shown it.

    With DP attention fewer than `tp` ranks divide the heads, but all of them divide the other layers.

    Args:
        tp: Ranks that are to divide the layers.
        tried: The same of starts of the LLM.
    """
    if _divides(tp, tried):
        return []
    return [f"the widths of the LLM's layers must divide by {tp}, or the engine refuses to start. No log tells them"]


def _divides(ranks: int, tried: Iterable[int]) -> bool:
    return ranks < 1 or ranks & (ranks - 1) == 0 or any(each % ranks == 0 for each in tried)


def copies_doubts(ranks: int, had: tuple[int, float], shown: Iterable[tuple[int, float]]) -> list[str]:
    """Return in words that some of `ranks` ranks may hold copies of KV heads; empty if starts have shown that none do.

    KV heads are divided among at most as many ranks as there are heads. Further ranks hold copies, and their pools hold
    no more tokens. No log tells the number of KV heads; latent attention (MLA) has none to divide.

    Args:
        ranks: Ranks that are to divide the KV heads of one request.
        had: The same of the start that the forecast is made from, and its bytes of a token on one rank.
        shown: The same of other starts of the LLM, in equally large elements and layers. Where a token took as many
            bytes on all ranks together as in `had`, no rank held copies.
    """
    whole = had[0] * had[1]
    most = max((each for each, cell in shown if abs(each * cell - whole) <= _SAME_CELL * whole), default=0)
    if ranks <= max(had[0], most):
        return []
    return [
        f"with fewer KV heads than {ranks} ranks hold copies of them, and the pool holds fewer tokens: down to"
        f" {max(had[0], most) / ranks:.0%} of these"
    ]


def more_ranks(world: int, had: int) -> list[str]:
    """Return in words that a start with `world` ranks needs more GPUs than the `had` ranks of the earlier one."""
    if world <= had:
        return []
    return [f"{_more(world)}; the start it is made from shows {had}"]


def divided(ranks: int, had: int) -> str:
    """Return in words among how many ranks weights are divided, and among how many they were."""
    return f"on 1 rank instead of {had}" if ranks == 1 else f"divided by {ranks} ranks instead of {had}"


def on_gpus(forecast: Forecast, gpus: int | None, nodes: int = 1, had: int = 0) -> Forecast:
    """Return the forecast as it holds on the host, if it has more ranks than the start it is made from.

    A start with no more ranks than an earlier one has room on as many GPUs as that had, wherever they are.

    Args:
        forecast: The forecast.
        gpus: GPUs of the host; None if unknown.
        nodes: Hosts of the start to come, each with as many GPUs.
        had: Ranks of the start that the forecast is made from. More than the hosts have GPUs: there are hosts that no
            setting tells, such as Ray's, and nothing is held against them.
    """
    ranks = len({row.rank for row in forecast.rows})
    rest = tuple(each for each in forecast.warnings if not each.startswith(_more(ranks)))
    if gpus is None or had > gpus * max(nodes, 1) or len(rest) == len(forecast.warnings):
        return forecast
    if ranks <= gpus * max(nodes, 1):
        return msgspec.structs.replace(forecast, warnings=rest)
    told = f"{_more(ranks)}, and " + (
        f"the host has {gpus}" if nodes <= 1 else f"{nodes} such hosts have {gpus * nodes}"
    )
    return msgspec.structs.replace(forecast, sure=False, warnings=(told, *rest))


def _more(ranks: int) -> str:
    return f"{ranks} ranks need as many GPUs"


def notes(start: Start, changes: Mapping[str, Any], knobs: KnobTable) -> list[str]:
    """Return remarks on knobs that are unknown, that the version lacks, or that do harm."""
    said: list[str] = []
    for name in sorted(changes):
        knob = knobs.find(name)
        if knob is None:
            said.append(f"{name} is not known and moves nothing here")
            continue
        absent = knobs.absent(name, start.version)
        if absent:
            said.append(f"{name} changes nothing in {start.version}: {absent}")
        said += [
            f"{name}={changes[name]} {hazard.outcome.words}: {hazard.why}"
            for hazard in knobs.hazards(name, changes[name], start.version)
        ]
    return said


def not_forecast(start: Start, changes: Mapping[str, Any], knobs: KnobTable) -> list[str]:
    """Return in words the changed knobs that this version has and whose memory no forecast knows: nothing is sure."""
    return [
        f"what {name} does to memory is not forecast"
        for name in differences(start, changes, knobs)
        if (knob := knobs.find(name)) is not None and not knob.forecast and not knobs.absent(name, start.version)
    ]
