"""Where a rank's GPU memory went: the terms the engine tells, and the rest, adding up to what the driver counts."""

from __future__ import annotations

import msgspec

from tuner.core import facts as f
from tuner.domain.gpu import GpuProcess
from tuner.domain.logs import LogFact
from tuner.domain.readings import MemoryTerms
from tuner.domain.server import Phase
from tuner.domain.state import RankMemory, RankState
from tuner.units import GIB, from_gib


def terms_from_fact(terms: MemoryTerms, fact: LogFact) -> MemoryTerms:
    """Fold one log fact of a rank into its memory terms.

    A second set of weights of the same rank is the draft model's (every SGLang version loads it with the same two
    lines), and draft graphs likewise: both live on the card at once, so they add up.
    """
    fields = fact.fields
    if fact.kind == f.WEIGHTS and fields.get("used_gib") is not None:
        # A model of a few megabytes can show a negative difference between two readings of free memory.
        return msgspec.structs.replace(terms, weights_bytes=_more(terms.weights_bytes, max(0.0, fields["used_gib"])))
    if fact.kind == f.KV_POOL and fields.get("kv_gib") is not None:
        # A hybrid model allocates several pools, a draft model its own: they add up until the next weights.
        return msgspec.structs.replace(terms, kv_bytes=_more(terms.kv_bytes, fields["kv_gib"]))
    if fact.kind == f.GRAPHS and fields.get("used_gib") is not None:
        return msgspec.structs.replace(terms, graphs_bytes=_more(terms.graphs_bytes, fields["used_gib"]))
    if fact.kind == f.PHASE_END and fields.get("phase") == Phase.DIST_INIT and fields.get("used_gib"):
        return msgspec.structs.replace(terms, context_bytes=_bytes(fields["used_gib"], terms.context_bytes))
    if fact.kind == f.MEMORY:
        consumed = fields.get("consumed_gib")
        if consumed is not None and terms.weights_bytes is not None:
            # vLLM 0.28 and later print weights and what is not torch's as one; the weights alone were printed before.
            fields = {**fields, "non_torch_gib": max(0.0, consumed - terms.weights_bytes / GIB)}
        return MemoryTerms(
            weights_bytes=_bytes(fields.get("weights_gib"), terms.weights_bytes),
            kv_bytes=_bytes(fields.get("kv_gib"), terms.kv_bytes),
            graphs_bytes=_bytes(fields.get("graphs_gib"), terms.graphs_bytes),
            activation_bytes=_bytes(fields.get("activation_gib"), terms.activation_bytes),
            context_bytes=_bytes(fields.get("non_torch_gib"), terms.context_bytes),
        )
    return terms


def combine(rank: RankState, processes: tuple[GpuProcess, ...]) -> RankMemory:
    """Combine a rank's memory by purpose from HTTP answers, log and driver.

    Each term comes from the engine's HTTP answer where it gives one, else from the log; of the two figures for
    graphs the larger counts, because SGLang 0.5.16 leaves prefill graphs out of `memory_usage.graph`.
    `other_bytes` is what the driver counts for the process beyond the terms. Terms that exceed the driver's figure
    (an engine's figures are rounded, and can describe memory that was freed since) are kept and `other_bytes` is 0,
    so that the error is visible in the sum rather than hidden.
    """
    http, log = rank.http_terms, rank.log_terms
    weights = _first(http.weights_bytes, log.weights_bytes)
    kv = _first(http.kv_bytes, log.kv_bytes)
    graphs = max((g for g in (http.graphs_bytes, log.graphs_bytes) if g is not None), default=None)
    context = _first(http.context_bytes, log.context_bytes)
    used = [p.used_bytes for p in processes if p.pid == rank.pid and p.gpu == rank.gpu]
    total = used[0] if used else None
    known = [term for term in (weights, kv, graphs, context) if term is not None]
    other = max(0, total - sum(known)) if total is not None else None
    sources = []
    if http != MemoryTerms():
        sources.append("http")
    if log != MemoryTerms():
        sources.append("log")
    if total is not None:
        sources.append("nvml")
    return RankMemory(
        weights_bytes=weights,
        kv_bytes=kv,
        graphs_bytes=graphs,
        context_bytes=context,
        other_bytes=other,
        total_bytes=total,
        source="+".join(sources),
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _bytes(value_gib: float | None, default: int | None) -> int | None:
    size = None if value_gib is None else from_gib(value_gib)
    return default if size is None else size


def _more(held_bytes: int | None, value_gib: float) -> int | None:
    size = from_gib(value_gib)
    return held_bytes if size is None else (held_bytes or 0) + size
