"""How vLLM divides a card: `KV = U x T - what else it uses`, U of the whole card, everything else measured at start.

Up to 0.19 CUDA graphs live beside U x T; from 0.20 an estimate of them is taken off the KV cache. Found in
`v1/worker/gpu_worker.py` and `v1/worker/utils.py` (0.32), and for older versions as docs/forecast.md says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.core.share import least_value
from tuner.core.versions import since
from tuner.domain.forecast import Effective
from tuner.domain.starts import RankStory, Start
from tuner.units import GIB

_LARGEST_GRAPH = 512


def default_utilisation(version: str | None) -> float:
    """U when none is given."""
    return 0.92 if since(version, "0.20") else 0.9


def utilisation(start: Start) -> float:
    """U of a start: as given, else its version's."""
    return share_of(start.given.get("gpu_memory_utilization", start.setting("gpu_memory_utilization")), start.version)


def share_of(said: object, version: str | None) -> float:
    """A U that was said, or the version's default where it is none."""
    if isinstance(said, (int, float)) and not isinstance(said, bool) and 0 < said <= 1:
        return float(said)
    return default_utilisation(version)


def effective_fraction(start: Start) -> Effective | None:
    """U, which nothing multiplies; None where the size of the KV cache was given instead, or nothing was read."""
    if not start.settings and not start.given:
        return None
    if start.given.get("kv_cache_memory_bytes") or start.setting("kv_cache_memory_bytes"):
        return None
    said = start.given.get("gpu_memory_utilization", start.setting("gpu_memory_utilization"))
    how = "its arguments" if said is not None else "the version's own default"
    return Effective(value=utilisation(start), said=said if isinstance(said, float) else None, how=how)


def cap(start: Start) -> str | None:
    """What was given in place of the utilisation: the number of blocks, or the cache's size."""
    given = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
    return next((name for name in given if start.given.get(name) or start.setting(name)), None)


def requested_gib(version: str | None, total_gib: float, share: float) -> float:
    """What U asks of a card: whole bytes, rounded up from 0.14.1 on."""
    asked = total_gib * share * GIB
    return (math.ceil(asked) if since(version, "0.14.1") else int(asked)) / GIB


def graphs_counted(version: str | None, env: Mapping[str, Any]) -> bool:
    """Whether an estimate of the CUDA graphs is taken off the KV cache."""
    told = env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    if told is None or not since(version, "0.18.1"):
        return since(version, "0.20")
    return str(told).lower() not in ("0", "false")


def graph_sizes(largest: int) -> list[int]:
    """Batch sizes of CUDA graphs up to a largest one: 1, 2, 4, then by 8 below 256, then by 16."""
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    return sizes + list(range(256, largest + 1, 16))


def largest_graph(max_num_seqs: int, max_num_batched_tokens: int | None, decode_tokens: int = 1) -> int:
    """The largest batch with a graph when none is given."""
    largest = min(max_num_seqs * max(decode_tokens, 1) * 2, _LARGEST_GRAPH)
    return largest if max_num_batched_tokens is None else min(largest, max_num_batched_tokens)


def cache_tokens(start: Start) -> int | None:
    """Tokens of the KV cache; the engine core tells them for all its ranks."""
    told = least_value(start.ranks, lambda rank: rank.kv_tokens)
    if told is None and "max_total_num_tokens" in start.limits:
        told = start.limits["max_total_num_tokens"].value
    return None if told is None else int(told)


def cell(start: Start) -> float | None:
    """Bytes of one token on the weakest rank."""
    size = least_value(start.ranks, lambda rank: rank.kv_gib)
    tokens = cache_tokens(start)
    return None if size is None or not tokens or size <= 0 else size * GIB / tokens


def not_kv_gib(start: Start, rank: RankStory) -> float | None:
    """What a rank used beside the KV cache, by what it left of U x T."""
    if rank.total_gib is None or rank.kv_gib is None:
        return None
    return requested_gib(start.version, rank.total_gib.value, utilisation(start)) - rank.kv_gib.value
