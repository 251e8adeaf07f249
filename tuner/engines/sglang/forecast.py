"""Forecast the memory of an SGLang start from an earlier one; docs/forecast.md explains the terms.

T is the free memory before the weights, A the free memory when the KV pool is sized, f the fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core import fit
from tuner.core.forecast import (
    HEADROOM_GIB,
    activation_need,
    differences,
    interval,
    notes,
    shortage_gib,
    sound,
    verdict,
)
from tuner.core.knobs import KnobTable
from tuner.core.share import least_value, line_of
from tuner.core.versions import since
from tuner.domain.forecast import Forecast
from tuner.domain.starts import RankStory, Start
from tuner.engines.sglang import memory
from tuner.engines.sglang.automatic import card_mib, new_fraction
from tuner.engines.sglang.graphs import graphs_of, same_model
from tuner.engines.sglang.links import shift
from tuner.engines.sglang.rows import Plan, Terms, draft_share, rank_rows, warnings_of
from tuner.engines.sglang.shape import Shape, changed, same_draft, shape_of
from tuner.units import GIB

_MOST_BESIDE = 0.25
"""Largest share of T needed beside the static share that is attributed to the fraction. More than that is one request's
logits or a leak."""
_MOST_KEPT = 4.0
"""Largest plausible draft pool in bytes per byte of the target's: a draft of the same LLM had 1.0, EAGLE's 0.03."""
_MOST_ASSUMED = 0.07
"""Share of T assumed to be needed beside the pool, head-room included and at least 2 GiB, if no start has allocated a
pool: at f = 0.93 of an H200 40 layers worked with chunks of 16,384 and graphs to 256."""
_HIDDEN_GIB = 0.12
"""Upper bound of T minus its printed value, GiB, since T is read shortly before the line that prints it: 0.03 and 0.10
GiB more were free on two H200 hosts."""
_HIDDEN_ERROR_GIB = 0.03
"""Least error of that difference, GiB: the pools of twenty starts on one H200 imply 0.09 to 0.12 within rounding."""
_LOADED_ERROR_GIB = 0.05
"""Error of weights that another start loaded, GiB: five starts with 4 layers on two H200 loaded 3.69 to 3.73, fourteen
with 80 all 64.26."""
_SCALED_ERROR = 0.1
"""Error as a share of the weights that move to or from other ranks, since embeddings and shared parts are not divided.
Measured halves were up to 1.5 % more than a half on two H200."""


def forecast(base: Start, changes: Mapping[str, Any], past: Sequence[Start], knobs: KnobTable) -> Forecast:
    """Forecast the memory of a start like `base` with some knobs changed.

    Args:
        base: A start whose memory is known, preferably one that became ready.
        changes: New value by canonical knob name; None lets SGLang choose.
        past: Other starts of the same LLM on this host, which improve the estimates.
        knobs: SGLang's knobs.
    """
    base, past = sound(base), [sound(start) for start in past]
    gpu_mib, _ = card_mib(base)
    old = shape_of(base, gpu_mib)
    new = changed(old, changes, gpu_mib)
    fraction, why = new_fraction(base, old, new, changes)
    said = [*notes(base, changes, knobs), *why]
    moved = differences(base, changes, knobs)
    total, available = memory.before_weights(base), memory.when_sized(base)
    cell = fit.cell_bytes(base) or next((c for s in past if same_model(base, s) if (c := fit.cell_bytes(s))), None)
    unknown = [
        *(["free memory before the weights: the line `Load weight begin` tells it"] if total is None else []),
        *(["free memory after the weights: the line `Load weight end` tells it"] if available is None else []),
        *(["the fraction: the line of arguments, or a KV pool, tells it"] if fraction is None else []),
        *(["bytes of a token: a start that allocated its KV pool tells them"] if cell is None else []),
    ]
    drafted = _drafted(base, past, old, new)
    if new.drafts and drafted is None:
        unknown.append("the draft's weights and pool: a start with speculation tells them")
    if total is None or available is None or total <= 0:
        return verdict(fraction, None, None, None, unknown=unknown, changed=moved, warnings=said)
    terms = _terms(base, past, old, new, total, available, cell, drafted, fraction)
    plan = _plan(base, past, old, new, terms, cell, fraction, drafted)
    rows, beside, left = rank_rows(plan)
    lacked, note = _lacked(base, old, new, total)
    said += note
    if cell is None:
        # No start has allocated its pool, so what is needed beside it is assumed; it must not rule out a good fraction.
        beside = min(beside, max(HEADROOM_GIB, _MOST_ASSUMED * terms.total - HEADROOM_GIB))
    f_min, f_max = interval(terms.total, terms.available, max(beside, lacked) + HEADROOM_GIB)
    if new.cap is not None and plan.tokens >= new.cap - new.page and left >= HEADROOM_GIB:
        f_max = 1.0
    sized = fraction is not None and cell is not None
    return verdict(
        fraction, f_min, f_max, plan.tokens if sized else None, rows=rows if sized else (), unknown=unknown,
        changed=moved, warnings=[*said, *(warnings_of(plan) if sized else ())], helps=_helps(new),
    )  # fmt: skip


def _lacked(base: Start, old: Shape, new: Shape, total: float) -> tuple[float, list[str]]:
    """Return the least GiB that a start which ran out of memory would have needed beside the static share, and notes.

    The number only holds for at least as many graphs and as long a chunk; for less it is 0.0, and only the note counts.
    """
    effective, shortage = memory.effective_fraction(base), shortage_gib(base)
    if effective is None or shortage is None or memory.capped(base):
        return 0.0, []
    needed = total * (1 - effective.value) + shortage
    if needed > total * _MOST_BESIDE:
        return 0.0, []
    note = f"the start it is made from ran out of memory: {needed:.2f} GiB beside the static share were not enough"
    alike = new.tp == old.tp and all(more >= less for less, more in zip(_sizes(old), _sizes(new), strict=True))
    return (needed if alike else 0.0), [note]


def _sizes(shape: Shape) -> tuple[int, ...]:
    chunk = shape.chunk if shape.chunk > 0 else shape.max_prefill
    return len(shape.decode_sizes), max(shape.decode_sizes, default=0), shape.prefill_graphs, chunk, shape.drafts


def _plan(
    base: Start, past: Sequence[Start], old: Shape, new: Shape, terms: Terms, cell: fit.Cell | None,
    fraction: float | None, drafted: Start | None,
) -> Plan:  # fmt: skip
    graphs = graphs_of(base, past, old, new, drafted)
    activation = activation_need((base, *past), new.chunk if new.chunk > 0 else new.max_prefill)
    each = 0.0 if cell is None else cell.value * terms.cell_scale
    context = new.context or 0

    def tokens_of(pool: float) -> int:
        return fit.tokens_for(pool * terms.kv_share, each * (1 + terms.draft_share), new.page, new.cap)

    def slots_of(tokens: int) -> int:
        return memory.request_slots(new.version, tokens, context, new.requests, new.dp if new.dp_attention else 1)

    pool = 0.0
    if fraction is not None:
        # f_min follows from the printed numbers, so above it there must be a pool whatever the error of T.
        told = line_of(terms.total, terms.available).pool(fraction) + terms.rounding
        pool = told - terms.hidden * (1 - fraction)
        pool = pool if pool > 0 else told
    most = terms.available - graphs.decode.gib - activation.gib - HEADROOM_GIB
    tokens = tokens_of(pool)
    return Plan(
        base=base,
        old=old,
        new=new,
        terms=terms,
        graphs=graphs,
        draft=_draft_rank(drafted) if new.drafts else None,
        activation=activation,
        fraction=fraction or 0.0,
        pool=pool,
        cell=each,
        cell_error=0.0 if cell is None else cell.error,
        tokens=tokens,
        slots=slots_of(tokens),
        table=memory.request_table_gib(slots_of(tokens), context, new.draft_tokens),
        most_table=memory.request_table_gib(slots_of(tokens_of(most)), context, new.draft_tokens),
    )


def _terms(
    base: Start, past: Sequence[Start], old: Shape, new: Shape, total: float, available: float, cell: fit.Cell | None,
    drafted: Start | None, fraction: float | None,
) -> Terms:  # fmt: skip
    gain = shift(base, past, old, new, total)
    scale = old.world / new.world
    weakest = min(base.ranks, key=lambda rank: rank.after_weights.value if rank.after_weights else available)
    weights = 0.0 if weakest.weights_gib is None else weakest.weights_gib.value
    loaded = None if scale == 1.0 else _loaded(base, past, new)
    gained = weights * (1 - scale) if loaded is None else weights - loaded
    error = (abs(gained) * _SCALED_ERROR if loaded is None else _LOADED_ERROR_GIB) + gain.error
    if memory.counts(base) and drafted is not base:
        gained += _draft_weights(base if old.drafts else None) - _draft_weights(drafted)
    elif memory.counts(base) and old.drafts and not new.drafts:
        gained += _draft_weights(base)
    effective = memory.effective_fraction(base)
    hidden, unsure, rounding = _calibration(base, old, total, available, cell)
    if unsure is None or effective is None:
        unsure, moved = _HIDDEN_GIB, 1 - (fraction or 0.0)
    else:
        moved = abs((fraction or 0.0) - effective.value)
    return Terms(
        total=total + gain.gib,
        available=available + gain.gib + gained,
        hidden=hidden,
        rounding=rounding,
        unsure=unsure * moved,
        shift=gain,
        weights_scale=scale,
        weights=loaded,
        cell_scale=new.kv_bytes
        / old.kv_bytes
        * (1.0 if new.latent else old.attention_tp / new.attention_tp)
        * old.pp
        / new.pp,
        draft_share=_kept_for_draft(drafted) if memory.counts(base) and new.drafts else 0.0,
        kv_share=_kv_share(weakest, old, new),
        error=error,
    )


def _loaded(base: Start, past: Sequence[Start], new: Shape) -> float | None:
    """Return the largest weights of a rank, GiB, of a past start with as many ranks; None if there is none."""
    kind = [base.setting(name) for name in ("quantization", "dtype")]
    for start in past:
        shape = shape_of(start, None)
        alike = (shape.tp, shape.pp) == (new.tp, new.pp) and shape.dp_attention == new.dp_attention
        if alike and same_model(base, start) and [start.setting(name) for name in ("quantization", "dtype")] == kind:
            told = [rank.weights_gib.value for rank in start.ranks if rank.weights_gib is not None]
            if told:
                return max(told)
    return None


def _drafted(base: Start, past: Sequence[Start], old: Shape, new: Shape) -> Start | None:
    """Return a start that shows the draft's memory: `base`, or a past one with as many ranks; None if none does.

    Only a start with the same draft counts; another algorithm has another draft.
    """
    if old.drafts and (not new.drafts or same_draft(old, new)):
        return base
    for start in past if new.drafts else ():
        if (
            same_model(base, start)
            and _draft_rank(start) is not None
            and len(start.ranks) == new.world
            and same_draft(shape_of(start, None), new)
        ):
            return start
    return None


def _kept_for_draft(drafted: Start | None) -> float:
    """Return the bytes kept for the draft's pool for each byte of the target's pool.

    SGLang reserves them by the number of layers, whatever the draft really takes.
    """
    rank, fraction = _draft_rank(drafted), None if drafted is None else memory.effective_fraction(drafted)
    if drafted is None or rank is None or rank.kv_gib is None or rank.kv_gib.value <= 0:
        return 0.0
    total, available = memory.before_weights(drafted), memory.when_sized(drafted)
    taken = draft_share(rank)
    if fraction is None or total is None or available is None or memory.capped(drafted):
        return taken
    kept = line_of(total, available).pool(fraction.value) / rank.kv_gib.value - 1
    return kept if taken - 0.01 <= kept <= _MOST_KEPT else taken


def _draft_weights(start: Start | None) -> float:
    rank = _draft_rank(start)
    return 0.0 if rank is None or rank.draft_weights_gib is None else rank.draft_weights_gib.value


def _draft_rank(start: Start | None) -> RankStory | None:
    if start is None:
        return None
    return next((rank for rank in start.ranks if rank.draft_weights_gib is not None), None)


def _calibration(
    base: Start, old: Shape, total: float, available: float, cell: fit.Cell | None
) -> tuple[float, float | None, float]:
    """Estimate the errors of the printed A and T from the pool that was allocated.

    T is read before the line that prints it, when a little more was free: `off = rounding - hidden x (1 - f)`.

    Returns:
        T minus its printed value (`hidden`), the error of that, and the rounding of A and T, all in GiB. The error is
        None, and the others are 0.0, if no pool of the start shows them.
    """
    effective, tokens = memory.effective_fraction(base), least_value(base.ranks, lambda rank: rank.kv_tokens)
    plain = not (old.drafts or old.pp > 1 or any(rank.mamba_gib is not None for rank in base.ranks))
    if effective is None or tokens is None or cell is None or memory.capped(base) or not plain:
        return 0.0, None, 0.0
    fraction = effective.value
    limit, beside = fit.rounded_pool_error(total, fraction), max(1 - fraction, 1e-3)
    off = tokens * cell.value / GIB - line_of(total, available).pool(fraction)
    hidden = max(0.0, min(_HIDDEN_GIB, -off / beside))
    unsure = max(_HIDDEN_ERROR_GIB, min(_HIDDEN_GIB, (limit + tokens * cell.value / GIB * cell.error) / beside))
    return hidden, unsure, max(-limit, min(limit, off + hidden * (1 - fraction)))


def _kv_share(rank: RankStory, old: Shape, new: Shape) -> float:
    """Return the KV pool's share of the memory that it divides with states of linear attention; 1.0 without them."""
    if rank.mamba_gib is None or rank.kv_gib is None or rank.mamba_gib.value <= 0:
        return 1.0
    if new.mamba_ratio is not None and new.mamba_ratio != old.mamba_ratio:
        return 1 / (1 + max(0.0, new.mamba_ratio))
    return rank.kv_gib.value / (rank.kv_gib.value + rank.mamba_gib.value)


def _helps(shape: Shape) -> str:
    """Return, in words, the changes that would make room if no fraction works."""
    ways = ["more GPUs (tp_size, pp_size) or smaller weights"]
    if shape.decode_sizes and max(shape.decode_sizes) > 8:
        ways.append(f"a smaller cuda_graph_max_bs than {max(shape.decode_sizes)}")
    if shape.prefill_graphs and since(shape.version, "0.5.4"):
        ways.append("no prefill CUDA graphs")
    if shape.chunk > 2048 or shape.chunk <= 0:
        ways.append("a smaller chunked_prefill_size")
    if shape.drafts:
        ways.append("no speculation")
    ways.append("a shorter context_length or fewer max_running_requests")
    return ", ".join(ways)
