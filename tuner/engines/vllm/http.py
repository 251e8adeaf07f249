"""vLLM's HTTP endpoints: which are asked, and what their answers mean.

All of them are cheap: `/metrics` is always on, and `/health` generates no token. `/health` keeps answering 200 when a
worker hangs or dies, so it proves readiness and nothing else. No answer tells GPU memory or anything per rank; the size
of the KV pool is in the labels of `vllm:cache_config_info`.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.domain.events import HttpAnswer
from tuner.domain.plan import NUMBERS_EVERY_S, NUMBERS_IDLE_S, EndpointPlan
from tuner.domain.readings import Reading
from tuner.engines import series as s
from tuner.units import whole

_SUMS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "queued",
    "vllm:generation_tokens_total": "realtime_decode_tokens_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:num_preemptions_total": "retracted_total",
    "vllm:request_success_total": "requests_total",
    "vllm:time_to_first_token_seconds_sum": "ttft_sum",
    "vllm:time_to_first_token_seconds_count": "ttft_count",
    "vllm:inter_token_latency_seconds_sum": "itl_sum",
    "vllm:inter_token_latency_seconds_count": "itl_count",
    "vllm:spec_decode_num_drafts_total": "spec_drafts_total",
    "vllm:spec_decode_num_accepted_tokens_total": "spec_accepted_total",
}
"""Series that are summed over engines (data parallel replicas), with the metric each becomes."""
_OLDER = {
    "vllm:time_per_output_token_seconds_sum": "itl_sum",
    "vllm:time_per_output_token_seconds_count": "itl_count",
}
"""Series names up to 0.10.0, used if the newer ones are missing."""
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""Series of the KV cache usage, a ratio despite the name; the second one exists up to 0.11."""
_HITS = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
)
_CONFIG = "vllm:cache_config_info"

ENDPOINTS = (
    EndpointPlan(
        id="metrics",
        paths=("/metrics",),
        every_s=NUMBERS_EVERY_S,
        idle_s=NUMBERS_IDLE_S,
        parse="prometheus",
        series=(*_SUMS, *_OLDER, *_USAGE, *(name for pair in _HITS for name in pair), _CONFIG),
    ),
    EndpointPlan(id="version", paths=("/version",), every_s=60.0, idle_s=600.0, quiet=True),
    EndpointPlan(id="models", paths=("/v1/models",), every_s=60.0, idle_s=600.0, auth=True, quiet=True),
    EndpointPlan(id="ready", paths=("/health",), every_s=10.0, idle_s=60.0, parse="status", quiet=True),
)


def read(answer: HttpAnswer) -> Reading:
    """Interpret an HTTP answer; one of an unknown endpoint or of unexpected form gives an empty reading."""
    if answer.status is None:
        return Reading()
    if answer.endpoint == "ready":
        return Reading(ready=True if answer.status == 200 else False if answer.status == 503 else None)
    if answer.status != 200:
        return Reading()
    if answer.endpoint == "metrics":
        return _metrics({name: value for name, value in (answer.series or {}).items() if value is not None})
    body = answer.body
    if answer.endpoint == "version" and isinstance(body, dict):
        return Reading(version=_text(body.get("version")))
    if answer.endpoint == "models" and isinstance(body, dict):
        return _models(body)
    return Reading()


def _metrics(series: dict[str, float]) -> Reading:
    samples = s.read_series(series)
    values: dict[str, float] = {}
    for name, key in (*_SUMS.items(), *_OLDER.items()):
        engines = s.per_replica(samples.get(name, ()), "engine", ())
        if engines and key not in values:
            values[key] = sum(engines)
    for name in _USAGE:
        usage = s.mean(s.per_replica(samples.get(name, ()), "engine", ()))
        if usage is not None:
            values["token_usage"] = usage
            break
    for hits, queries in _HITS:
        asked = sum(s.per_replica(samples.get(queries, ()), "engine", ()))
        if asked > 0:
            values["cache_hit"] = sum(s.per_replica(samples.get(hits, ()), "engine", ())) / asked
            break
    sizes = _pool_sizes(samples.get(_CONFIG, []))
    if sizes:
        values["max_total_tokens"] = float(sum(sizes))
        if "token_usage" in values:
            values["used_tokens"] = round(values["token_usage"] * sum(sizes))
    models = {
        sample.labels["model_name"] for found in samples.values() for sample in found if sample.labels.get("model_name")
    }
    return Reading(
        model=next(iter(models)) if len(models) == 1 else None,
        metrics=values or None,
        kv_tokens=sizes[0] if sizes else None,
    )


def _pool_sizes(configs: list[s.Sample]) -> list[int]:
    """Return the tokens of each engine's KV pool: as stated since 0.24, else blocks times block size."""
    sizes: dict[str, int] = {}
    for config in configs:
        labels = config.labels
        tokens = _whole(labels.get("kv_cache_size_tokens"))
        blocks, block_size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
        if tokens is None and blocks is not None and block_size is not None:
            tokens = blocks * block_size
        if tokens:
            sizes[labels.get("engine", "")] = tokens
    return [size for _, size in sorted(sizes.items())]


def _models(body: dict[str, Any]) -> Reading:
    data = body.get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    # Adapters have a parent; the first entry without one is the LLM that was loaded.
    base = next((entry for entry in entries if not entry.get("parent")), None)
    if base is None:
        return Reading()
    length = base.get("max_model_len")
    settings = {"max_model_len": length} if isinstance(length, int) and not isinstance(length, bool) else None
    return Reading(model=_text(base.get("root")) or _text(base.get("id")), settings=settings)


def _whole(text: str | None) -> int | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return whole(number)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
