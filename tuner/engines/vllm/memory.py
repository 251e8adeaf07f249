"""How vLLM divides GPU memory: `KV = U x T - everything else`.

U is `gpu_memory_utilization`, T the memory of the whole GPU; everything else is measured at the start. Up to 0.19 CUDA
graphs are outside U x T; from 0.20 an estimate of them is subtracted from the KV cache. Source:
`v1/worker/gpu_worker.py` and `v1/worker/utils.py` (0.32); for older versions see docs/forecast.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.core.share import least_value
from tuner.core.versions import since
from tuner.domain.forecast import Effective
from tuner.domain.starts import RankStory, Start
from tuner.units import GIB, real

_LARGEST_GRAPH = 512
"""Largest batch size of a CUDA graph that vLLM chooses by itself."""


def default_utilisation(version: str | None) -> float:
    """Return the default `gpu_memory_utilization` (U) of a version."""
    return 0.92 if since(version, "0.20") else 0.9


def utilisation(start: Start) -> float:
    """Return U of a start: as given, else the default of its version."""
    return share_of(start.given.get("gpu_memory_utilization", start.setting("gpu_memory_utilization")), start.version)


def share_of(said: object, version: str | None) -> float:
    """Return `said` if it is a valid U (above 0, at most 1), else the default of the version."""
    fraction = real(said)
    return fraction if fraction is not None and 0 < fraction <= 1 else default_utilisation(version)


def effective_fraction(start: Start) -> Effective | None:
    """Return U of a start, which vLLM never multiplies.

    None if the size of the KV cache was given instead, or if the log shows no args.
    """
    if not start.settings and not start.given:
        return None
    if start.given.get("kv_cache_memory_bytes") or start.setting("kv_cache_memory_bytes"):
        return None
    said = start.given.get("gpu_memory_utilization", start.setting("gpu_memory_utilization"))
    how = "its arguments" if said is not None else "the version's own default"
    return Effective(value=utilisation(start), said=said if isinstance(said, float) else None, how=how)


def cap(start: Start) -> str | None:
    """Return the knob given in place of U: the number of blocks or the size of the cache; None if neither."""
    given = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
    return next((name for name in given if start.given.get(name) or start.setting(name)), None)


def requested_gib(version: str | None, total_gib: float, share: float) -> float:
    """Return the GiB that U requests of a GPU: whole bytes, rounded down, from 0.14.1 on rounded up."""
    asked = total_gib * share * GIB
    return (math.ceil(asked) if since(version, "0.14.1") else int(asked)) / GIB


def graphs_counted(version: str | None, env: Mapping[str, Any]) -> bool:
    """Return whether an estimate of the CUDA graphs is subtracted from the KV cache."""
    told = env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    if told is None or not since(version, "0.18.1"):
        return since(version, "0.20")
    return str(told).lower() not in ("0", "false")


def graph_sizes(largest: int) -> list[int]:
    """Return the batch sizes of CUDA graphs up to `largest`: 1, 2, 4, then steps of 8 below 256, then of 16."""
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    return sizes + list(range(256, largest + 1, 16))


def largest_graph(max_num_seqs: int, max_num_batched_tokens: int | None, decode_tokens: int = 1) -> int:
    """Return the largest batch size with a CUDA graph if none is given."""
    largest = min(max_num_seqs * max(decode_tokens, 1) * 2, _LARGEST_GRAPH)
    return largest if max_num_batched_tokens is None else min(largest, max_num_batched_tokens)


def cache_tokens(start: Start) -> int | None:
    """Return the tokens of the KV cache, the least of all ranks, else the engine core's; None if neither is known."""
    told = least_value(start.ranks, lambda rank: rank.kv_tokens)
    if told is None and "max_total_num_tokens" in start.limits:
        told = start.limits["max_total_num_tokens"].value
    return None if told is None else int(told)


def cell(start: Start) -> float | None:
    """Return the bytes of one token of KV on the rank with the smallest cache; None if unknown."""
    size = least_value(start.ranks, lambda rank: rank.kv_gib)
    tokens = cache_tokens(start)
    return None if size is None or not tokens or size <= 0 else size * GIB / tokens


def not_kv_gib(start: Start, rank: RankStory) -> float | None:
    """Return the GiB that a rank used beside the KV cache: U x T minus the cache; None if either is unknown."""
    if rank.total_gib is None or rank.kv_gib is None:
        return None
    return requested_gib(start.version, rank.total_gib.value, utilisation(start)) - rank.kv_gib.value
