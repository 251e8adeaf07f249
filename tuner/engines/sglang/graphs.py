"""Estimate the memory of CUDA graphs of a start to come from graphs that earlier starts captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from tuner.core.fit import PREFILL_GRAPH_GIB, Capture, Estimate, fit_captures, fit_prefill
from tuner.core.forecast import Row
from tuner.domain.forecast import Source
from tuner.domain.starts import Start
from tuner.engines.sglang.shape import Shape, shape_of

_PREFILL = ("prefill", "piecewise")
_SHARED_GIB = 1.5
"""Memory that prefill graphs share, GiB, if none was seen: 40 layers had 1.0 for 4,096 tokens and 2.0 for 8,192."""
_LINK_PREFILL_GIB = 1.0
"""Error of prefill graphs, GiB, if no start with the same links is known. Without custom all-reduce graphs hold NCCL's
buffers: 1.0 GiB more for prefill graphs on two H200. The same is allowed for another number of ranks."""
_LINK_DECODE_GIB = 0.25
"""The corresponding error of decode graphs, GiB: 0.15 to 0.25 more on two H200."""


_UNSEEN_ERROR_GIB, _UNSEEN_ERROR_OF_MANY_GIB = 1.0, 2.5
"""Error of decode graphs that no start has shown, GiB, on one GPU and on several: with NCCL's buffers in them 1.8 to
2.8 were printed on two to eight GPUs, 3.6 once."""
_SEEN_GRAPHS = 20
"""Number of graphs behind those sizes; each holds buffers of its own, so more of them are further off."""


class Graphs(Struct, frozen=True):
    """Memory of the CUDA graphs of one rank, by purpose."""

    decode: Row
    prefill: Row
    draft: Row
    """Graphs of the draft model."""
    seen: bool = True
    """Whether a start has shown graphs of the LLM."""


def graphs_of(base: Start, past: Sequence[Start], old: Shape, new: Shape, drafted: Start | None = None) -> Graphs:
    """Estimate the memory of the graphs that a start of a new shape captures.

    Args:
        base: The start that the forecast is made from.
        past: Other starts, which may have captured graphs of the same LLM.
        old: Shape of `base`.
        new: Shape of the start to come.
        drafted: The start that shows the draft's memory; None if there is none.
    """
    alike = [(base, old), *_alike(base, past, old, new)]
    same = [(start, shape) for start, shape in alike if same_links(shape, new) and shape.world == new.world]
    # A start with the same links that captured nothing, as one that failed before, tells nothing of graphs.
    seen, decode_error = _captures(same, decode=True), 0.0
    if not seen:
        seen, decode_error = _captures(alike, decode=True), 0.0 if same == alike else _LINK_DECODE_GIB
    seen_prefill, prefill_error = _captures(same, decode=False), 0.0
    if not seen_prefill:
        seen_prefill, prefill_error = _captures(alike, decode=False), 0.0 if same == alike else _LINK_PREFILL_GIB
    longest = max(new.prefill_sizes, default=0) if new.prefill_graphs else 0
    # The measured graphs contain the buffers, so scaling by the number of graphs scales the error of the buffers too.
    times = max((len(new.decode_sizes) / each.sizes for each in seen), default=1.0)
    decode = _row(
        fit_captures(seen, len(new.decode_sizes), max(new.decode_sizes, default=0)), decode_error * max(1.0, times)
    )
    prefill = _row(fit_prefill(seen_prefill, len(new.prefill_sizes), longest), prefill_error)
    if decode is None:
        largest = max(new.decode_sizes, default=0)
        error = _UNSEEN_ERROR_GIB
        if new.world > 1:
            error = _UNSEEN_ERROR_OF_MANY_GIB * max(1.0, len(new.decode_sizes) / _SEEN_GRAPHS)
        decode = Row(
            largest * 2 / 1024, Source.ESTIMATE, error, f"2 MiB for each of {largest} requests, as SGLang reserves"
        )
    if prefill is None:
        count = len(new.prefill_sizes)
        prefill = Row(
            _SHARED_GIB + count * PREFILL_GRAPH_GIB, Source.ESTIMATE, _SHARED_GIB + prefill_error,
            f"none was seen: {count} prefill graphs",
        )  # fmt: skip
    return Graphs(decode, prefill, _draft(drafted, new), seen=bool(seen))


def same_links(one: Shape, other: Shape) -> bool:
    """Return whether two starts have the same all-reduce, NCCL buffers and symmetric memory."""
    return (
        one.custom_all_reduce == other.custom_all_reduce
        and one.channels == other.channels
        and one.buffer_bytes == other.buffer_bytes
        and one.symmetric_gib == other.symmetric_gib
    )


def same_model(one: Start, other: Start) -> bool:
    """Return whether two starts serve the same LLM with the same engine."""
    return one.engine == other.engine and one.model is not None and one.model == other.model


def _alike(base: Start, past: Sequence[Start], old: Shape, new: Shape) -> Iterator[tuple[Start, Shape]]:
    for start in past:
        if start is base or not same_model(base, start):
            continue
        shape = shape_of(start, None)
        if (shape.tp, shape.pp, shape.latent) in {(new.tp, new.pp, old.latent), (old.tp, old.pp, old.latent)}:
            yield start, shape


def _captures(starts: Iterable[tuple[Start, Shape]], *, decode: bool) -> list[Capture]:
    """Return number and memory of the captured graphs of each start, on the rank where they took the most."""
    captures = []
    for start, shape in starts:
        sizes = shape.decode_sizes if decode else shape.prefill_sizes
        found = [
            (graph.used_gib, graph.sizes or sizes)
            for rank in start.ranks
            for graph in rank.graphs
            if graph.used_gib is not None and ("draft" not in graph.what) and (graph.what in _PREFILL) != decode
        ]
        if found:
            used, listed = max(found, key=lambda each: each[0])
            if listed:
                captures.append(Capture(len(listed), max(listed), max(0.0, used)))
    return captures


def _row(estimate: Estimate | None, more_error: float) -> Row | None:
    if estimate is None:
        return None
    if estimate.gib <= 0:
        return Row(0.0)
    source = Source.MEASURED if estimate.measured and not more_error else Source.ESTIMATE
    return Row(estimate.gib, source, estimate.error_gib + more_error, estimate.note)


def _draft(drafted: Start | None, new: Shape) -> Row:
    if not new.drafts or drafted is None:
        return Row(0.0)
    used = [
        sum(graph.used_gib for graph in rank.graphs if "draft" in graph.what and graph.used_gib is not None)
        for rank in drafted.ranks
    ]
    return Row(max(used, default=0.0))
