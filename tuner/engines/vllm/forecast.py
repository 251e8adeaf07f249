"""Forecast the memory of a vLLM start from an earlier one; docs/forecast.md explains the terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.fit import ROUNDING_GIB, Capture, element_bytes, fit_captures
from tuner.core.forecast import (
    ACTIVATION_KIB,
    HEADROOM_GIB,
    Interval,
    Row,
    activation_gib,
    bounded,
    copies_doubts,
    differences,
    divided,
    heads_doubts,
    in_bytes,
    more_ranks,
    not_forecast,
    notes,
    shortage_gib,
    sound,
    spare_gib,
    verdict,
)
from tuner.core.knobs import KnobTable
from tuner.core.share import ON_CPU, least_value, on_cpu, up
from tuner.domain.forecast import Forecast, ForecastRow, Source
from tuner.domain.starts import Figure, RankStory, Start
from tuner.engines.argv import as_int
from tuner.engines.vllm import memory
from tuner.units import GIB

_MIB_PER_SEQUENCE = 0.5
"""Size of one sequence's 32-bit logits with a vocabulary of 128k, MiB."""
_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "block_size": 16}
_MOST_TOKENS = 1 << 32
"""Most tokens or requests that a setting may name; contexts of some LLMs have ten million."""


class _Start(Struct, frozen=True, kw_only=True):
    """The settings of a start that decide its memory."""

    share: float
    """`gpu_memory_utilization`."""
    kv_bytes_given: int | None
    """`kv_cache_memory_bytes`; None if it was not given."""
    tp: int
    context: int | None
    """`max_model_len`, tokens; None if unknown."""
    sequences: int
    """`max_num_seqs`."""
    batched: int
    """`max_num_batched_tokens`."""
    block: int
    """Tokens of a KV block."""
    element: float
    """Bytes of one element of the KV cache."""
    graphs: int
    """Number of CUDA graph sizes; 0 without graphs."""
    counted: bool
    """Whether an estimate of the graphs is subtracted from the KV cache."""
    speculates: bool
    """Whether speculative decoding is configured."""


def forecast(base: Start, changes: Mapping[str, Any], past: Sequence[Start], knobs: KnobTable) -> Forecast:
    """Forecast the memory of a start like `base` with some knobs changed.

    Args:
        base: A start whose memory is known.
        changes: New value by canonical knob name; None lets vLLM choose.
        past: Other starts of the same LLM on this host, which improve the estimates.
        knobs: vLLM's knobs.
    """
    base, past = sound(base), [sound(start) for start in past]
    old, new = _read(base, {}, knobs), _read(base, changes, knobs)
    moved, said = differences(base, changes, knobs), notes(base, changes, knobs)
    said.extend(_unknown_dtype(changes.get("kv_cache_dtype")))
    doubts = not_forecast(base, changes, knobs)
    if on_cpu(base):
        return verdict(new.share, Interval(), None, unknown=[ON_CPU], changed=moved, warnings=said)
    totals = [rank.total_gib.value for start in (base, *past) for rank in start.ranks if rank.total_gib is not None]
    total, cell = (min(totals) if totals else None), memory.cell(base)
    told = _told(base.ranks)
    ranks = told if new.tp == old.tp else told[:1] * new.tp
    spent = [_spent(base, rank, old, new, total) for rank in ranks]
    unknown = [
        *(["the card's memory: the line `Free memory on device`, or a live host, tells it"] if total is None else []),
        *(["bytes of a token: a start that sized its KV cache tells them"] if cell is None else []),
        *(["what is used beside the KV cache: the line `Available KV cache memory` tells it"]
          if any(each is None for each in spent) else []),
        *(["the draft's memory: a start with speculation tells it"] if new.speculates and not old.speculates else []),
    ]  # fmt: skip
    known = [each for each in spent if each is not None]
    if total is None or not known:
        return verdict(new.share, Interval(), None, unknown=unknown, doubts=doubts, changed=moved, warnings=said)
    captures = _captures([(base, old), *((start, _read(start, {}, knobs)) for start in past)])
    graphs = _graphs(captures, new)
    counted = (graphs.gib if new.counted else 0.0) - (_graphs(captures, old).gib if old.counted else 0.0)
    used = max(known) + counted
    pool = memory.requested_gib(base.version, total, new.share) - used
    share = new.share
    if new.kv_bytes_given is not None:
        pool = new.kv_bytes_given / GIB
        share = round((used + pool) / total, 4)
        said.append(
            "the size of the KV cache is given: gpu_memory_utilization plays no part in it;"
            f" {share:g} would give as much"
        )
    each = None if cell is None else cell * new.element / old.element * old.tp / new.tp
    tokens = None if each is None else max(0, int(pool * GIB / each)) // new.block * new.block
    whole = 0.0 if each is None or new.context is None else new.context * each / GIB
    f_min = max(0.0, up((used + whole) / total, 4))
    ends = _ends(base, old, new, total, f_min, graphs)
    rows: list[ForecastRow] = []
    for number, (rank, mine) in enumerate(zip(ranks, spent, strict=True)):
        rows += _rows(rank, number, old, new, total, used if mine is None else mine + counted, pool, tokens, graphs)
    if tokens is not None and new.context and 0 < tokens < new.context:
        said.append(
            f"the KV cache holds {tokens:,} tokens, fewer than one request of {new.context:,}: vLLM refuses to start"
        )
    doubts += _doubts(base, past, new, cell, knobs)
    error = max((row.error_bytes or 0 for row in rows if row.what == "kv_pool"), default=0) / GIB
    if 0 < pool - whole < error and moved:
        doubts.append(f"{pool - whole:.2f} GiB more than one request of full length needs, and off by {error:.2f}")
    said += more_ranks(new.tp, old.tp)
    return verdict(
        share, ends, tokens, rows=rows if tokens is not None else (), unknown=unknown, changed=moved,
        warnings=said, helps="a shorter context_length, 8-bit KV, more GPUs (tp_size), fewer max_num_batched_tokens",
        doubts=doubts, context=new.context, f_whole=up(f_min) if whole and f_min < 1 else None,
    )  # fmt: skip


def _doubts(base: Start, past: Sequence[Start], new: _Start, cell: float | None, knobs: KnobTable) -> list[str]:
    """Return in words why the LLM may not be divided among so many ranks as the forecast assumes; empty if it is."""
    starts = [(start, _read(start, {}, knobs)) for start in (base, *past)]
    doubts = heads_doubts(new.tp, [read.tp for _, read in starts])
    if cell is None:
        return doubts
    old = starts[0][1]
    shown = [
        (read.tp, each * old.element / read.element)
        for start, read in starts
        if _stages(start, knobs) == _stages(base, knobs) and (each := memory.cell(start)) is not None
    ]
    return doubts + copies_doubts(new.tp, (old.tp, cell), shown)


def _stages(start: Start, knobs: KnobTable) -> int:
    return as_int(knobs.value(start.settings, "pp_size", start.version), 1)


def _read(start: Start, changes: Mapping[str, Any], knobs: KnobTable) -> _Start:
    def value(name: str) -> Any:
        if name in changes:
            return changes[name]
        return knobs.value(start.given, name, start.version) or knobs.value(start.settings, name, start.version)

    share = value("gpu_memory_utilization")
    sequences = as_int(value("max_running_requests"), _DEFAULTS["max_num_seqs"], _MOST_TOKENS)
    batched = as_int(value("max_num_batched_tokens"), _DEFAULTS["max_num_batched_tokens"], _MOST_TOKENS)
    context = as_int(value("context_length") or start.setting("max_seq_len"), 0, _MOST_TOKENS)
    given = value("kv_cache_memory_bytes")
    env = {**start.env, **{name: each for name, each in changes.items() if name.isupper()}}
    listed, largest = value("cuda_graph_bs"), value("cuda_graph_max_bs")
    if value("enforce_eager"):
        count = 0
    elif isinstance(listed, (list, tuple)) and listed:
        count = len(listed)
    else:
        count = len(memory.graph_sizes(as_int(largest, memory.largest_graph(sequences, batched))))
    return _Start(
        share=memory.share_of(share, start.version),
        kv_bytes_given=given if isinstance(given, int) and given > 0 else None,
        tp=max(1, as_int(value("tp_size"), 1)),
        context=context if context > 0 else None,
        sequences=max(1, sequences),
        batched=max(1, batched),
        block=max(1, as_int(value("page_size"), _DEFAULTS["block_size"])),
        element=element_bytes(value("kv_cache_dtype")) or 2.0,
        graphs=count,
        counted=memory.graphs_counted(start.version, env),
        speculates=bool(value("speculative_config")),
    )


def _unknown_dtype(dtype: Any) -> list[str]:
    """Return a warning if a KV data type is unknown; empty if it is known. New versions add types."""
    text = str(dtype).lower()
    if dtype is None or text.startswith("auto") or element_bytes(text) is not None:
        return []
    return [f"{text} is no data type known here: 2 bytes for each element are reckoned with"]


def _told(ranks: tuple[RankStory, ...]) -> tuple[RankStory, ...]:
    """Return the ranks with missing weights and activations filled in from the first rank that printed them.

    They are equal on all ranks, and often only the first one prints them.
    """
    figures = {
        name: next((figure for rank in ranks if (figure := getattr(rank, name)) is not None), None)
        for name in ("weights_gib", "activation_gib")
    }
    return tuple(
        msgspec.structs.replace(
            rank, **{name: figure for name, figure in figures.items() if getattr(rank, name) is None}
        )
        for rank in ranks
    )


def _spent(base: Start, rank: RankStory, old: _Start, new: _Start, total: float | None) -> float | None:
    """Return the GiB that a rank uses beside the KV cache: as measured in `base`, adjusted for the changed knobs.

    None if `base` does not tell it.
    """
    known = rank if rank.total_gib is not None or total is None else _with_total(rank, total)
    measured = memory.not_kv_gib(base, known)
    if measured is None or old.kv_bytes_given is not None:
        parts = [figure.value for figure in (rank.weights_gib, rank.activation_gib, rank.non_torch_gib) if figure]
        if len(parts) < 2:
            return None
        measured = sum(parts)
    weights = 0.0 if rank.weights_gib is None else rank.weights_gib.value
    measured += weights * (old.tp / new.tp - 1)
    activation = _activation(rank, old)
    measured += activation * (new.batched / old.batched - 1)
    return measured + (new.sequences - old.sequences) * _MIB_PER_SEQUENCE / 1024


def _with_total(rank: RankStory, total: float) -> RankStory:
    return RankStory(**{name: getattr(rank, name) for name in rank.__struct_fields__} | {"total_gib": Figure(total, 0)})


def _activation(rank: RankStory, old: _Start) -> float:
    return activation_gib(old.batched) if rank.activation_gib is None else rank.activation_gib.value


def _captures(starts: Iterable[tuple[Start, _Start]]) -> list[Capture]:
    """Return number and memory of the CUDA graphs of each start that captured any."""
    return [
        Capture(read.graphs, read.graphs, max(rank.graphs_gib or 0.0 for rank in start.ranks))
        for start, read in starts
        if any(rank.graphs_gib for rank in start.ranks)
    ]


def _graphs(captures: Sequence[Capture], new: _Start) -> Row:
    found = fit_captures(captures, new.graphs)
    if found is None:
        return Row(0.5, Source.ESTIMATE, 0.5, "no graphs were seen")
    return Row(found.gib, Source.MEASURED if found.measured else Source.ESTIMATE, found.error_gib, found.note)


def _ends(base: Start, old: _Start, new: _Start, total: float, f_min: float, graphs: Row) -> Interval:
    """Return the interval of the utilisation.

    It is bounded by what is free when a worker starts, by room for graphs that vLLM does not count and headroom, and by
    what a start with as many graphs and tokens lacked.
    """
    free = least_value(base.ranks, lambda rank: rank.before_weights)
    beside = HEADROOM_GIB if new.counted else HEADROOM_GIB + graphs.gib
    most = 1.0 if free is None else free / total
    likely = min(most, 1 - beside / total)
    safe = min(most, 1 - (beside + (0.0 if new.counted else graphs.error)) / total)
    lacking, effective = shortage_gib(base), memory.effective_fraction(base)
    alike = (new.tp, new.graphs >= old.graphs, new.batched >= old.batched) == (old.tp, True, True)
    if lacking is not None and effective is not None and alike:
        # A measurement, and no error: what this start had it would have again.
        likely = min(likely, effective.value - lacking / total)
        safe = min(safe, effective.value - (lacking + spare_gib(base, total)) / total)
    return bounded(f_min, likely, safe)


def _rows(
    rank: RankStory, number: int, old: _Start, new: _Start, total: float, used: float, pool: float,
    tokens: int | None, graphs: Row,
) -> list[ForecastRow]:  # fmt: skip
    weights = Row.of(rank.weights_gib, old.tp / new.tp, divided(new.tp, old.tp))
    before = _activation(rank, old)
    activation = before * new.batched / old.batched
    scaled = abs(activation - before) / 2
    measured = rank.activation_gib is not None and new.batched == old.batched
    kv = max(0.0, pool)
    other = max(0.0, used - weights.gib - activation - (graphs.gib if new.counted else 0.0))
    beside = 0.0 if new.counted else graphs.gib
    note = (
        f"{new.kv_bytes_given:,} bytes as given"
        if new.kv_bytes_given is not None
        else f"{new.share:.4g} x {total:.2f} - {used:.2f} = {pool:.2f} GiB"
    )
    return [
        weights.row(number, "weights"),
        ForecastRow(
            rank=number, what="kv_pool", size_bytes=in_bytes(kv), tokens=tokens, source=Source.FORMULA,
            error_bytes=in_bytes(2 * ROUNDING_GIB + weights.error + graphs.error + scaled), note=note,
        ),
        graphs.row(number, "graphs"),
        Row(
            activation, Source.MEASURED if measured else Source.ESTIMATE, 0.0 if measured else activation / 2,
            f"{new.batched} tokens x {ACTIVATION_KIB} KiB" if rank.activation_gib is None else "the profile run's peak",
        ).row(number, "activation"),
        Row(other, Source.MEASURED, 0.1, "context, communicators and what the profile run left").row(number, "context"),
        Row(total - kv - max(used, 0.0) - beside, Source.ESTIMATE, graphs.error + 0.2, "what remains").row(
            number, "free"
        ),
    ]  # fmt: skip
