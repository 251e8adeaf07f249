"""Parts of every engine's forecast: rows with source and error, the safe interval, the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
LITTLE_GIB = 4.0
"""GiB left after the graphs below which a forecast warns."""
_LEAST_GIB, _MOST_GIB = 1e-3, 1 << 16
_MOST_TOKENS = 1 << 44
_AFTER_POOL = frozenset({"autotune", "graph-capture", "warmup", "prefill", "decode", "runtime"})
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


def activation_need(starts: Iterable[Start], tokens: int) -> Row:
    """Return what a forward pass takes beside everything static: the most that was seen, or a larger estimate.

    Args:
        starts: Starts whose ranks may have measured it.
        tokens: Tokens of the longest prefill step.
    """
    seen = [rank.activation_gib.value for start in starts for rank in start.ranks if rank.activation_gib is not None]
    estimate = activation_gib(max(tokens, 2048))
    if seen and max(seen) >= estimate:
        return Row(max(seen), Source.MEASURED, 0.0, "the most that was seen while serving")
    note = f"{tokens} tokens x {ACTIVATION_KIB} KiB" + (f"; {max(seen):.2f} GiB were seen" if seen else "")
    return Row(estimate, Source.ESTIMATE, max(0.5, estimate * 0.6), note)


def shortage_gib(start: Start) -> float | None:
    """Return GiB that a start at least lacked when it ran out of memory after its pool; None if it did not.

    Failures while other processes held memory are left out: how much this start needs does not follow from them.
    """
    if not any("out of memory" in failure.message and failure.phase in _AFTER_POOL for failure in start.failures):
        return None
    lacking = []
    for sign in start.signs:
        tried, free = (to_gib(sign.fields.get(name)) for name in ("tried", "free"))
        if sign.id == "cuda-oom" and not sign.fields.get("others") and tried is not None and free is not None:
            lacking.append(max(0.0, tried - free))
    return max(lacking, default=None)


def interval(total: float, available: float, beside: float) -> tuple[float | None, float | None]:
    """Return f_min and f_max of a server whose pool is `A - T x (1 - f)`.

    Args:
        total: T in GiB, of which the fraction is a share.
        available: A in GiB, the pool at a fraction of 1.
        beside: GiB that must fit beside the static share, headroom included.

    Returns:
        f_min to four digits, at least 0; f_max rounded down to three, within 0 and 1; None for both without a valid T.
    """
    if not (math.isfinite(total) and total > 0 and math.isfinite(available)):
        return None, None
    f_min = round(line_of(total, available).f_min, 4)
    return max(0.0, f_min), max(0.0, min(1.0, down(1 - beside / total)))


def verdict(
    fraction: float | None,
    f_min: float | None,
    f_max: float | None,
    tokens: int | None,
    *,
    rows: Sequence[ForecastRow] = (),
    warnings: Sequence[str] = (),
    unknown: Sequence[str] = (),
    changed: Mapping[str, tuple[object, object]] | None = None,
    helps: str = "",
) -> Forecast:
    """Build the forecast with its verdict: what does not fit is told before what is not known."""
    fit = Fit.FITS
    if f_min is not None and f_max is not None and f_min >= f_max:
        fit = Fit.NOWHERE
        warnings = [*warnings, f"to make room: {helps}"] if helps else warnings
    elif fraction is None or f_min is None:
        fit = Fit.UNKNOWN
    elif fraction <= f_min:
        fit = Fit.TOO_LOW
    elif tokens is None or f_max is None:
        fit = Fit.UNKNOWN
    elif tokens <= 0:
        fit = Fit.TOO_LOW
    elif fraction > f_max + 1e-9:
        fit = Fit.TOO_HIGH
    if fit is Fit.FITS and unknown:
        fit = Fit.UNKNOWN
    return Forecast(
        fit=fit,
        rows=tuple(rows),
        fraction=fraction,
        f_min=f_min,
        f_max=f_max,
        kv_tokens=tokens,
        warnings=tuple(dict.fromkeys(warnings)),
        changed=dict(changed or {}),
        unknown=tuple(dict.fromkeys(unknown)),
    )


def differences(start: Start, changes: Mapping[str, Any], knobs: KnobTable) -> dict[str, tuple[object, object]]:
    """Return the knobs that differ from a start: old and new value, by canonical name in alphabetical order."""
    moved: dict[str, tuple[object, object]] = {}
    for name in sorted(changes):
        old = start.env.get(name, knobs.value(start.settings, name, start.version))
        if old != changes[name]:
            moved[name] = (old, changes[name])
    return moved


def notes(start: Start, changes: Mapping[str, Any], knobs: KnobTable) -> list[str]:
    """Return remarks on knobs that are unknown, that the version lacks, that are not forecast, or that do harm."""
    said: list[str] = []
    for name in sorted(changes):
        knob = knobs.find(name)
        if knob is None:
            said.append(f"{name} is not known and moves nothing here")
            continue
        absent = knobs.absent(name, start.version)
        if absent:
            said.append(f"{name} changes nothing in {start.version}: {absent}")
        elif not knob.forecast:
            said.append(f"what {name} does to memory is not forecast")
        said += [
            f"{name}={hazard.value} can {hazard.outcome}: {hazard.why}"
            for hazard in knobs.hazards(name, changes[name], start.version)
        ]
    return said
