"""The rows of a forecast: memory by purpose on each rank, and what remains free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from tuner.core import fit
from tuner.core.forecast import LITTLE_GIB, Row, divided, in_bytes
from tuner.domain.forecast import ForecastRow, Source
from tuner.domain.starts import RankStory, Start
from tuner.engines.sglang import memory
from tuner.engines.sglang.graphs import Graphs
from tuner.engines.sglang.shape import GATE_GIB, Shape
from tuner.units import GIB

_CONTEXT_GIB = 0.5
"""Assumed size of a CUDA context, GiB."""
_UNSEEN = Row(0.3, Source.ESTIMATE, 0.3, "allocator rounding and small buffers")
"""Row `other` for a start whose log does not show it."""
_LEAST_ACTIVATION_GIB = 0.6
"""Least activation beyond the prefill graphs, GiB: 0.56 was seen under load on two H200."""
_ACTIVATION_ERROR_GIB = 0.5
"""Error of the activation beyond the prefill graphs, GiB, without a long prompt's earlier chunks."""
_STRANGE_GIB = 4.0
"""Unexplained memory, GiB, from which another process is suspected: up to 2.5 was seen with nobody else on the GPU."""
_STAGES_DIFFER = 0.02
"""Relative difference from which the cells of pipeline stages count as different."""
_TOLD_GIB = 0.02
"""Least difference of T from its printed value, GiB, that the note of the pool mentions."""
_TABLE_SEEN_GIB = 0.05
"""GiB by which a measured request table must be below its formula for the measurement to be quoted."""


class Terms(Struct, frozen=True, kw_only=True):
    """The terms of the pool's formula for the start to come, GiB."""

    total: float
    """T, the free memory before the weights."""
    available: float
    """A, the free memory when the pool is sized."""
    hidden: float = 0.0
    """T minus its printed value."""
    unsure: float = 0.0
    """Error of the pool that follows from `hidden`."""
    rounding: float = 0.0
    """Error of the pool from the rounding of A and T, as the pool of the earlier start shows it."""
    shift: Row
    """Change of T from the start that the forecast is made from."""
    weights_scale: float = 1.0
    """Weights of a rank divided by those of the earlier start."""
    weights: float | None = None
    """Weights of a rank as another start loaded them on as many ranks; None: they are scaled."""
    cell_scale: float = 1.0
    """Bytes of a token on a rank divided by those of the earlier start."""
    draft_share: float = 0.0
    """Bytes of the draft's pool for each byte of the target's, if both come out of one budget."""
    kv_share: float = 1.0
    """KV pool's share of the budget that it divides with states of linear attention."""
    error: float = 0.0
    """Error of A."""


class Plan(Struct, frozen=True, kw_only=True):
    """Everything that is the same for all ranks of the start to come."""

    base: Start
    """The start that the forecast is made from."""
    old: Shape
    """Shape of `base`."""
    new: Shape
    """Shape of the start to come."""
    alike: tuple[tuple[Start, Shape], ...]
    """Earlier starts of the LLM with as many ranks, and their shapes."""
    terms: Terms
    graphs: Graphs
    draft: RankStory | None
    """A rank of an earlier start that had the draft of the start to come; None without one."""
    activation: Row
    prefix: float
    """GiB that earlier chunks of a long prompt may take while a later one runs; part of the error of `activation`."""
    fraction: float
    """Effective fraction; 0.0 if unknown."""
    pool: float
    """Size of the pool by the formula, GiB."""
    cell: float
    """Bytes of a token of the target's pool."""
    cell_error: float
    """Relative error of `cell`."""
    tokens: int
    """Tokens of the pool."""
    slots: int
    """Requests in the request table."""
    table: float
    """Size of the request table, GiB."""
    most_table: float
    """Size of the request table with the largest pool that fits, GiB."""


class _Rank(Struct, frozen=True, kw_only=True):
    """The memory of one rank by purpose, GiB."""

    number: int
    """Global rank."""
    free: float
    """Free memory before the weights."""
    weights: Row
    kv: float
    draft_weights: float
    draft_kv: float
    mamba: float
    table: float
    """Request table."""
    most_table: float
    """Request table with the largest pool that fits."""
    other: Row
    context: Row

    def after_pool(self, plan: Plan) -> float:
        """Return the free GiB once the pools are allocated; from 0.5.14 on the draft is loaded by then."""
        draft = self.draft_weights + self.draft_kv if memory.counts(plan.base) else 0.0
        return self.free - self.weights.gib - self.kv - self.mamba - draft - self.table - self.other.gib

    def late(self, plan: Plan) -> float:
        """Return the GiB that the draft takes after the target's graphs (up to 0.5.13); later versions: 0.0."""
        return 0.0 if memory.counts(plan.base) else self.draft_weights + self.draft_kv


class Beside(Struct, frozen=True):
    """What the worst rank needs beside the static share, GiB, without headroom."""

    gib: float
    error: float
    """By how much it may be too low; the parts' errors are independent of each other."""
    left: float
    """GiB that the worst rank has left."""


def rank_rows(plan: Plan) -> tuple[list[ForecastRow], Beside]:
    """Build the rows of all ranks, and what the worst of them needs beside the static share."""
    rows: list[ForecastRow] = []
    needs, left = [(0.0, 0.0)], []
    for rank in _ranks(plan):
        captured, off = _captured(plan, rank)
        activation = _activation(plan, captures_prefill=plan.graphs.prefill.gib > 0 and not off)
        remains = rank.after_pool(plan) - rank.late(plan) - captured.gib - activation.gib
        left.append(remains)
        # SGLang drops gated prefill graphs when memory is short, so they do not bound the fraction.
        bound, errors = captured.gib + activation.gib, (captured.error, activation.error)
        if plan.new.gate:
            errors = (plan.graphs.decode.error + plan.graphs.draft.error, plan.activation.error)
        if plan.new.gate and not off:
            bound += plan.activation.gib - activation.gib - plan.graphs.prefill.gib
        need = rank.most_table + rank.other.gib + rank.late(plan) + bound
        needs.append((need, math.hypot(rank.other.error, *errors)))
        rows += _rows(plan, rank, captured, activation, remains)
    gib, error = max(needs, key=sum)
    return rows, Beside(gib, error, min(left, default=0.0))


def warnings_of(plan: Plan) -> Iterator[str]:
    """Yield warnings about a start to come, even if it fits."""
    ranks = list(_ranks(plan))
    strange = max((rank.other.gib for rank in ranks), default=0.0)
    if strange > _STRANGE_GIB:
        yield (
            f"{strange:.2f} GiB went after the KV pool that no line explains, and are reckoned with: if another process"
            " took them, plan from the log of another start"
        )
    worst = min(ranks, key=lambda rank: rank.after_pool(plan), default=None)
    if worst is not None and plan.tokens > 0:
        captured, off = _captured(plan, worst)
        free = worst.after_pool(plan)
        if off:
            yield (
                f"SGLang switches prefill CUDA graphs off: {free:.2f} GiB are free after the KV pool,"
                f" {GATE_GIB:.0f} are needed"
            )
        elif plan.graphs.prefill.gib > 0 and plan.new.gate and _at_gate(plan, worst):
            yield (
                f"SGLang may switch prefill CUDA graphs off: about {free:.2f} GiB are free after the KV pool,"
                f" {GATE_GIB:.0f} are needed"
            )
        elif 0 < free - worst.late(plan) - captured.gib < LITTLE_GIB:
            yield f"less than {LITTLE_GIB:.0f} GiB are left after the graphs"
    if plan.new.context and 0 < plan.tokens < plan.new.context:
        yield f"the pool holds {plan.tokens:,} tokens, fewer than one request of {plan.new.context:,}"
    asked = plan.new.requests
    if asked and plan.tokens > 0 and plan.slots < asked // (plan.new.dp if plan.new.dp_attention else 1):
        yield f"only {plan.slots:,} of {asked:,} requests can run: the pool holds {plan.tokens:,} tokens"


def _ranks(plan: Plan) -> Iterator[_Rank]:
    base, old, new = plan.base, plan.old, plan.new
    stories = base.ranks
    if new.world != old.world or not stories:
        poorest = min(stories, key=lambda rank: rank.after_weights.value if rank.after_weights else 0.0, default=None)
        template = poorest or RankStory(tag="TP0", number=0)
        stories = tuple(msgspec.structs.replace(template, number=number) for number in range(min(new.world, 1024)))
    for story in stories:
        free = plan.terms.total - plan.terms.shift.gib if story.before_weights is None else story.before_weights.value
        kv = _kv(plan, story)
        draft_weights, draft_kv = _draft(plan, kv)
        share = plan.terms.kv_share
        other, part = _other(story, base, old)
        if other is _UNSEEN:
            other, part = _seen_before(story, plan.alike)
        yield _Rank(
            number=story.number,
            free=free + plan.terms.shift.gib,
            weights=_weights(plan, story),
            kv=kv,
            draft_weights=draft_weights,
            draft_kv=draft_kv,
            mamba=kv * (1 / share - 1) if 0 < share < 1 else 0.0,
            table=plan.table * part,
            most_table=plan.most_table * part,
            other=other,
            context=_context(plan, story),
        )


def _weights(plan: Plan, story: RankStory) -> Row:
    if plan.terms.weights is not None:
        return Row(plan.terms.weights, note=f"as {plan.new.world} ranks loaded them before")
    split = divided(plan.new.world, plan.old.world)
    return Row.of(story.weights_gib, plan.terms.weights_scale, split)


def _kv(plan: Plan, story: RankStory) -> float:
    """Return the KV pool of a rank, GiB; pipeline stages hold different layers and so have different cells."""
    cell = plan.cell
    told = story.kv_gib is not None and story.kv_tokens is not None and story.kv_tokens.value > 0
    if plan.old.pp > 1 and told and story.kv_gib is not None and story.kv_tokens is not None:
        own = story.kv_gib.value * GIB / story.kv_tokens.value * plan.terms.cell_scale
        cell = own if abs(own - cell) > _STAGES_DIFFER * cell else cell
    return plan.tokens * cell / GIB


def draft_share(rank: RankStory | None) -> float:
    """Return the bytes of the draft's pool for each byte of the target's; 0.0 without a draft."""
    if rank is None or rank.draft_kv_gib is None or rank.kv_gib is None or rank.kv_gib.value <= 0:
        return 0.0
    return rank.draft_kv_gib.value / rank.kv_gib.value


def _draft(plan: Plan, kv: float) -> tuple[float, float]:
    """Return weights and pool of the draft on a rank, GiB; zeros without a draft."""
    if plan.draft is None or plan.draft.draft_weights_gib is None:
        return 0.0, 0.0
    return plan.draft.draft_weights_gib.value * plan.terms.weights_scale, kv * draft_share(plan.draft)


def _other(story: RankStory, base: Start, old: Shape) -> tuple[Row, float]:
    """Return the memory of `base` that no term explains, and the share of its request table that the log shows.

    The former is rounding of the allocator, which changes with the size of the pool, and buffers of kernels.
    """
    end = story.available_at_ready or story.last_available
    static = memory.static_gib(story, with_draft=True)
    if story.after_weights is None or static is None or end is None or (not story.graphs and story.after_pool is None):
        return _UNSEEN, 1.0
    gone, table = (
        story.after_weights.value - static - end.value - (story.graphs_gib or 0.0),
        _table_of(base, old, story),
    )
    if not memory.counts(base) and story.draft_weights_gib is not None:
        gone -= story.draft_weights_gib.value
    part = max(0.0, min(1.0, gone / table)) if table > 0 else 1.0
    note = "allocator rounding and small buffers of the start it is made from"
    if gone - table > _STRANGE_GIB:
        note = "went in the start it is made from, and no line tells where"
    return Row(max(0.0, gone - table), Source.MEASURED, 0.3, note), part


def _seen_before(story: RankStory, starts: Sequence[tuple[Start, Shape]]) -> tuple[Row, float]:
    """Return the same of the first of some starts that shows it for this rank; a guess if none does."""
    for start, shape in starts:
        for rank in start.ranks:
            if rank.number == story.number and (found := _other(rank, start, shape))[0] is not _UNSEEN:
                return msgspec.structs.replace(found[0], note="allocator rounding of an earlier start"), found[1]
    return _UNSEEN, 1.0


def _table_of(base: Start, old: Shape, story: RankStory) -> float:
    tokens = 0 if story.kv_tokens is None else int(story.kv_tokens.value)
    slots = memory.request_slots(old.version, tokens, old.context or 0, old.requests, old.dp if old.dp_attention else 1)
    if "max_running_requests" in base.limits:
        slots = int(base.limits["max_running_requests"].value)
    return memory.request_table_gib(slots, old.context or 0, old.draft_tokens)


def _captured(plan: Plan, rank: _Rank) -> tuple[Row, bool]:
    """Return a rank's graphs, and whether SGLang leaves out the prefill graphs for lack of memory.

    If the free memory is too uncertain to tell, the prefill graphs' full size is added to the error.
    """
    prefill, free = plan.graphs.prefill, rank.after_pool(plan)
    gated = prefill.gib > 0 and plan.new.gate
    off = gated and free < GATE_GIB
    more = prefill.gib if gated and _at_gate(plan, rank) else 0.0
    if off:
        prefill = Row(0.0, Source.FORMULA, 0.0, f"prefill graphs off: {free:.2f} GiB free of {GATE_GIB:.0f}")
    if more:
        prefill = msgspec.structs.replace(prefill, source=Source.ESTIMATE, error=prefill.error + more)
    return plan.graphs.decode.plus(prefill).plus(plan.graphs.draft), off


def _at_gate(plan: Plan, rank: _Rank) -> bool:
    """Return whether the free memory after the pool is within its error of `GATE_GIB`, so the gate is uncertain."""
    return abs(rank.after_pool(plan) - GATE_GIB) < plan.terms.error + plan.terms.unsure + rank.other.error


def _activation(plan: Plan, *, captures_prefill: bool) -> Row:
    """Return the activation memory beyond the graphs; prefill graphs hold the activations of the steps they cover."""
    shared = plan.graphs.prefill.gib - len(plan.new.prefill_sizes) * fit.PREFILL_GRAPH_GIB
    if not captures_prefill or shared <= 0 or plan.activation.source is Source.MEASURED:
        return plan.activation
    value = max(_LEAST_ACTIVATION_GIB, plan.activation.gib - shared)
    error = math.hypot(_ACTIVATION_ERROR_GIB, plan.prefix)
    return Row(value, Source.ESTIMATE, error, "beyond what the prefill graphs hold")


def _context(plan: Plan, story: RankStory) -> Row:
    shift = plan.terms.shift
    if story.total_gib is not None and story.before_weights is not None:
        value = story.total_gib.value - story.before_weights.value - shift.gib
        return Row(
            max(0.0, value), shift.source, shift.error, shift.note or "card less what is free before the weights"
        )
    seen = 0.0 if story.communicators_gib is None else story.communicators_gib.value
    note = f"communicators {seen:.2f} GiB, CUDA context about {_CONTEXT_GIB}"
    if shift.note:
        note += f"; {shift.note}"
    return Row(max(0.0, seen - shift.gib) + _CONTEXT_GIB, Source.ESTIMATE, 0.3 + shift.error, note)


def _rows(plan: Plan, rank: _Rank, captured: Row, activation: Row, remains: float) -> Iterator[ForecastRow]:
    terms, number = plan.terms, rank.number
    error = fit.rounded_pool_error(terms.total, plan.fraction) + terms.error + rank.kv * plan.cell_error
    error += terms.unsure
    yield rank.weights.row(number, "weights")
    if rank.draft_weights:
        yield Row(rank.draft_weights).row(number, "draft_weights")
    yield ForecastRow(
        rank=number,
        what="kv_pool",
        size_bytes=in_bytes(rank.kv),
        tokens=plan.tokens,
        source=Source.FORMULA,
        error_bytes=in_bytes(error),
        note=_pool_note(plan),
    )
    if rank.draft_kv:
        yield Row(rank.draft_kv, Source.FORMULA, error).row(number, "draft_kv_pool")
    if rank.mamba:
        yield Row(rank.mamba, Source.FORMULA, error).row(number, "mamba")
    if not plan.new.context:
        note = f"{plan.slots:,} requests; no log tells the context length, 4 bytes of each token of which it takes"
        yield Row(rank.table, Source.ESTIMATE, 0.0, note).row(number, "request_table")
    elif rank.table < plan.table - _TABLE_SEEN_GIB:
        part = f"of which the start it is made from shows {rank.table / plan.table:.0%}"
        note = f"{_table_note(plan)} = {plan.table:.2f} GiB, {part}"
        yield Row(rank.table, Source.MEASURED, 0.0, note).row(number, "request_table")
    else:
        yield Row(rank.table, Source.FORMULA, 0.0, _table_note(plan)).row(number, "request_table")
    yield rank.other.row(number, "other")
    yield captured.row(number, "graphs")
    yield rank.context.row(number, "context")
    yield activation.row(number, "activation")
    unsure = error + rank.other.error + captured.error + activation.error
    yield Row(remains, Source.ESTIMATE, unsure, "what remains").row(number, "free")


def _table_note(plan: Plan) -> str:
    return f"{plan.slots:,} requests x ({plan.new.context or 0:,} + 4) x 4 bytes"


def _pool_note(plan: Plan) -> str:
    terms = plan.terms
    total = f"{terms.total:.2f}" if terms.hidden < _TOLD_GIB else f"({terms.total:.2f} + {terms.hidden:.2f})"
    text = f"{terms.available:.2f} - {total} x (1 - {plan.fraction:.4g}) = {plan.pool:.2f} GiB"
    if plan.new.cap is not None and 0 < plan.tokens == plan.new.cap // plan.new.page * plan.new.page:
        text += f", capped at {plan.new.cap:,} tokens"
    elif plan.cell > 0:
        text += f", / {plan.cell * (1 + terms.draft_share):,.0f} bytes a token"
    return text
