"""Forecast the memory of an SGLang start from an earlier one; docs/forecast.md explains the terms.

T is the free memory before the weights, A the free memory when the KV pool is sized, f the fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core import fit
from tuner.core.forecast import (
    HEADROOM_GIB,
    Interval,
    activation_need,
    copies_doubts,
    differences,
    heads_doubts,
    interval,
    more_ranks,
    not_forecast,
    notes,
    shortage_gib,
    sound,
    spare_gib,
    verdict,
    widths_doubts,
)
from tuner.core.knobs import KnobTable
from tuner.core.share import ON_CPU, least_value, line_of, on_cpu, up
from tuner.core.versions import since
from tuner.domain.forecast import Forecast, Source
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
_MAYBE_LATENT = 4
"""Ranks from which an LLM of unknown attention may be one with latent attention and many heads on each rank."""
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
    alike = [start for start in past if same_model(base, start)]
    latent = next((told for start in (base, *alike) if (told := memory.latent(start)) is not None), None)
    old = shape_of(base, gpu_mib, latent=latent)
    new = changed(old, changes, gpu_mib)
    fraction, why = new_fraction(base, old, new, changes)
    said = [*notes(base, changes, knobs), *why]
    moved, doubts = differences(base, changes, knobs), not_forecast(base, changes, knobs)
    total, available = memory.before_weights(base), memory.when_sized(base)
    if on_cpu(base):
        return verdict(fraction, Interval(), None, unknown=[ON_CPU], doubts=doubts, changed=moved, warnings=said)
    cell = fit.cell_bytes(base) or _cell_of(alike, old, gpu_mib, latent)
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
        return verdict(fraction, Interval(), None, unknown=unknown, doubts=doubts, changed=moved, warnings=said)
    terms = _terms(base, past, old, new, total, available, cell, drafted, fraction)
    plan = _plan(base, past, old, new, terms, cell, fraction, drafted, latent)
    rows, need = rank_rows(plan)
    lacked, enough, note = _lacked(base, old, new, total)
    said += note
    beside = need.gib
    if cell is None:
        # No start has allocated its pool, so what is needed beside it is assumed; it must not rule out a good fraction.
        beside = min(beside, max(HEADROOM_GIB, _MOST_ASSUMED * terms.total - HEADROOM_GIB))
    # What a start lacked after its pool, and the spare memory on top, are a measurement in place of the errors; of more
    # graphs or a longer chunk than it had it measures nothing.
    measured = lacked and _sizes(old) == _sizes(new)
    error = 0.0 if measured else need.error + need.gib - beside
    ends = interval(terms.total, terms.available, max(beside, lacked) + HEADROOM_GIB, error, enough)
    capped = new.cap is not None and plan.tokens >= new.cap - new.page and need.left >= HEADROOM_GIB
    if capped:
        said.append(f"max_total_tokens={new.cap} bounds the KV pool, not the fraction")
        ends = Interval(ends.f_min)
    doubts += _doubts(base, alike, old, new, cell)
    said += more_ranks(new.world, old.world)
    if 0 < plan.pool < terms.error + terms.unsure:
        doubts.append(f"a KV pool of {plan.pool:.2f} GiB is less than the error of what is free for it")
    if capped and need.left < HEADROOM_GIB + need.error:
        doubts.append(f"{need.left:.2f} GiB are left, and {need.error:.2f} may be needed more")
    sized = fraction is not None and cell is not None
    return verdict(
        fraction, ends, plan.tokens if sized else None, rows=rows if sized else (), unknown=unknown,
        doubts=doubts, changed=moved, warnings=[*said, *(warnings_of(plan) if sized else ())], helps=_helps(new),
        estimated=not plan.graphs.seen and plan.activation.source is not Source.MEASURED,
        context=new.context or None, f_whole=_whole(plan), capped=capped,
    )  # fmt: skip


def _doubts(base: Start, alike: Sequence[Start], old: Shape, new: Shape, cell: fit.Cell | None) -> list[str]:
    """Return in words why the LLM may not be divided among so many ranks as the forecast assumes; empty if it is."""
    tried = [old, *(shape_of(start, None) for start in alike)]
    doubts = heads_doubts(new.attention_tp, [shape.attention_tp for shape in tried])
    if new.dp_attention:
        doubts = doubts or widths_doubts(new.tp, [shape.tp for shape in tried])
    if new.latent or cell is None:
        return doubts
    own = fit.cell_bytes(base)
    shown = [
        (shape.attention_tp, each.value * old.kv_bytes / shape.kv_bytes)
        for start, shape in zip((base, *alike), tried, strict=True)
        if shape.pp == old.pp and (each := fit.cell_bytes(start)) is not None
    ]
    had = (old.attention_tp, (own or cell).value)
    return doubts + copies_doubts(new.attention_tp, had, shown)


def _cell_of(alike: Sequence[Start], old: Shape, gpu_mib: float | None, latent: bool | None) -> fit.Cell | None:
    """Return the cell of the newest start that tells one, as it would be on the ranks and in the KV type of `old`."""
    for start in alike:
        cell = fit.cell_bytes(start)
        if cell is not None:
            scale = _cell_scale(shape_of(start, gpu_mib, latent=latent), old)
            return fit.Cell(cell.value * scale, cell.error)
    return None


def _cell_scale(old: Shape, new: Shape) -> float:
    """Return the bytes of a token on a rank of one shape divided by those of another."""
    heads = 1.0 if new.latent else old.attention_tp / new.attention_tp
    return new.kv_bytes / old.kv_bytes * heads * old.pp / new.pp


def _whole(plan: Plan) -> float | None:
    """Return the least fraction, three digits, whose pool holds one request of full length; None if none does."""
    context, page, terms = plan.new.context or 0, max(plan.new.page, 1), plan.terms
    if plan.cell <= 0 or context <= 0 or (plan.new.cap is not None and plan.new.cap < context) or terms.kv_share <= 0:
        return None
    pool = -(-context // page) * page * plan.cell * (1 + terms.draft_share) / terms.kv_share / GIB
    fraction = up(1 - (terms.available + terms.rounding - pool) / (terms.total + terms.hidden))
    return fraction if 0 < fraction <= 1 else None


def _lacked(base: Start, old: Shape, new: Shape, total: float) -> tuple[float, float, list[str]]:
    """Return what a start that ran out of memory would have needed beside the static share, in GiB, and notes.

    The first number is the least it needed, the second is safe. They only hold for at least as many graphs and as long
    a chunk; for less both are 0.0, and only the notes count.
    """
    effective = memory.effective_fraction(base)
    shortage = shortage_gib(base)
    of_pool = shortage_gib(base, ("kv-alloc",)) if shortage is None else None
    lacking = of_pool if shortage is None else shortage
    if effective is None or lacking is None or memory.capped(base):
        return 0.0, 0.0, []
    needed = total * (1 - effective.value) + lacking
    alike = new.tp == old.tp and all(more >= less for less, more in zip(_sizes(old), _sizes(new), strict=True))
    enough = needed + spare_gib(base, total) if alike else 0.0
    if needed > total * _MOST_BESIDE:
        return 0.0, 0.0, []
    if shortage is None:
        return 0.0, enough, []
    note = f"the start it is made from ran out of memory: {needed:.2f} GiB beside the static share were not enough"
    return (needed if alike else 0.0), enough, [note]


def _sizes(shape: Shape) -> tuple[int, ...]:
    chunk = shape.chunk if shape.chunk > 0 else shape.max_prefill
    return len(shape.decode_sizes), max(shape.decode_sizes, default=0), shape.prefill_graphs, chunk, shape.drafts


def _plan(
    base: Start, past: Sequence[Start], old: Shape, new: Shape, terms: Terms, cell: fit.Cell | None,
    fraction: float | None, drafted: Start | None, latent: bool | None,
) -> Plan:  # fmt: skip
    graphs = graphs_of(base, past, old, new, drafted)
    chunk = new.chunk if new.chunk > 0 else new.max_prefill
    prefix = memory.prefix_gib(latent, new.context, chunk) if latent or new.world >= _MAYBE_LATENT else 0.0
    activation = activation_need((base, *past), chunk, prefix)
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
        alike=tuple(
            (start, shape)
            for start in past
            if same_model(base, start) and (shape := shape_of(start, None)).world == new.world
        ),
        terms=terms,
        graphs=graphs,
        draft=_draft_rank(drafted) if new.drafts else None,
        activation=activation,
        prefix=prefix,
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
        cell_scale=_cell_scale(old, new),
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
