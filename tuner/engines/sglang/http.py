"""SGLang's HTTP endpoints: which are asked, how often, and what their answers mean.

`/health` is never asked: each call generates a token and prints two log lines. `/ready` (0.5.20) costs nothing. There
are 18 metrics in 0.4.6 and 177 in 0.5.23. Sizes named gb are GiB.
"""

from __future__ import annotations

from typing import Any

from tuner.core.redact import mask_json
from tuner.domain.events import HttpAnswer
from tuner.domain.plan import NUMBERS_EVERY_S, NUMBERS_IDLE_S, EndpointPlan
from tuner.domain.readings import MemoryTerms, Reading
from tuner.engines import series as s
from tuner.engines.argv import as_int
from tuner.units import from_gib, real, whole

_SUMS = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "queued",
    "sglang:num_used_tokens": "used_tokens",
    "sglang:max_total_num_tokens": "max_total_tokens",
    "sglang:gen_throughput": "tok_s",
    "sglang:num_retracted_requests_total": "retracted_total",
    "sglang:generation_tokens_total": "generation_tokens_total",
    "sglang:prompt_tokens_total": "prompt_tokens_total",
    "sglang:num_requests_total": "requests_total",
    "sglang:time_to_first_token_seconds_sum": "ttft_sum",
    "sglang:time_to_first_token_seconds_count": "ttft_count",
    "sglang:inter_token_latency_seconds_sum": "itl_sum",
    "sglang:inter_token_latency_seconds_count": "itl_count",
}
"""Series that are summed over replicas, with the metric each becomes."""
_MEANS = {
    "sglang:token_usage": "token_usage",
    "sglang:cache_hit_rate": "cache_hit",
    "sglang:spec_accept_length": "accept_length",
}
_MEMORY = {
    "sglang:weight_memory_usage_gb": "weights_bytes",
    "sglang:kv_cache_memory_usage_gb": "kv_bytes",
    "sglang:graph_memory_usage_gb": "graphs_bytes",
}
"""Series of GPU memory per rank (since 0.5.23); that of graphs is split by phase, and summed."""
_REALTIME = "sglang:realtime_tokens_total"

_RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")
_STATE_KEYS = ("memory_usage",)
"""Keys kept of each internal state. The rest repeats all server args or changes with the load; without it an answer
stays equal and is sent only once."""
_LOAD_KEYS = (
    "num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "token_usage", "gen_throughput",
    "cache_hit_rate", "memory", "speculative",
)  # fmt: skip
"""Keys kept of each replica's load; the time among the others would make every answer differ from the last."""
_NOT_SETTINGS = frozenset(
    {"internal_states", "version", "status", "max_total_num_tokens", "max_req_input_len", "startup_time",
     "launch_command", "memory_usage", "last_gen_throughput", "avg_spec_accept_length", "env", "environment",
     "token_capacity"}
)  # fmt: skip

# Every request adds a line to the server's access log, so endpoints are asked no more often than the screen needs, and
# those of an idle server rarely.
ENDPOINTS = (
    EndpointPlan(
        id="metrics",
        paths=("/metrics",),
        every_s=NUMBERS_EVERY_S,
        idle_s=NUMBERS_IDLE_S,
        parse="prometheus",
        series=(*_SUMS, *_MEANS, *_MEMORY, _REALTIME),
        quiet=True,
    ),
    EndpointPlan(
        id="loads",
        paths=("/v1/loads", "/get_load"),
        every_s=NUMBERS_EVERY_S,
        idle_s=NUMBERS_IDLE_S,
        unless="metrics",
        auth=True,
        quiet=True,
        drop=("timestamp", "accelerator", "num_accelerators", "ts_tic"),
        keep={"loads": _LOAD_KEYS},
    ),
    EndpointPlan(
        id="info",
        paths=("/server_info", "/get_server_info"),
        every_s=30.0,
        idle_s=300.0,
        timeout_s=10.0,
        auth=True,
        drop=(
            "api_key", "admin_api_key", "ssl_keyfile_password", "env", "environment", "launch_command",
            "startup_time", "last_gen_throughput", "avg_spec_accept_length", "piecewise_cuda_graph_tokens",
            "hicache_object_layout",
        ),
        keep={"internal_states": _STATE_KEYS},
    ),
    EndpointPlan(id="ready", paths=("/ready",), every_s=10.0, idle_s=60.0, parse="status", auth=True, quiet=True),
)  # fmt: skip


def read(answer: HttpAnswer) -> Reading:
    """Interpret an HTTP answer; one of an unknown endpoint or of unexpected form gives an empty reading."""
    if answer.status is None:
        return Reading()
    if answer.endpoint == "ready":
        return Reading(ready=True if answer.status == 200 else False if answer.status == 503 else None)
    if answer.status in (401, 403):
        return Reading(
            problem=f"SGLang wants its API key for {answer.endpoint} and none was found in its arguments or "
            "environment; live numbers need --enable-metrics, which stays open"
        )
    if answer.status != 200:
        return Reading()
    if answer.endpoint == "metrics":
        return _metrics({name: value for name, value in (answer.series or {}).items() if value is not None})
    if answer.endpoint == "loads":
        return _loads(answer.body)
    if answer.endpoint == "info" and isinstance(answer.body, dict):
        return _info(answer.body)
    return Reading()


def _metrics(series: dict[str, float]) -> Reading:
    samples = s.read_series(series)
    values: dict[str, float] = {}
    for name, key in _SUMS.items():
        replicas = s.per_replica(samples.get(name, ()), "dp_rank", _RANKS)
        if replicas:
            values[key] = sum(replicas)
    for name, key in _MEANS.items():
        replicas = s.per_replica(samples.get(name, ()), "dp_rank", _RANKS)
        if key == "accept_length":
            # An idle replica exports 0, which must not lower the mean.
            replicas = [value for value in replicas if value]
        average = s.mean(replicas)
        if average is not None:
            values[key] = average
    _drop_idle_speculation(values)
    modes: dict[str, list[s.Sample]] = {}
    for sample in samples.get(_REALTIME, ()):
        modes.setdefault(sample.labels.get("mode", ""), []).append(sample)
    for mode, key in (("decode", "realtime_decode_tokens_total"), ("prefill_compute", "realtime_prefill_tokens_total")):
        if mode in modes:
            values[key] = sum(s.per_replica(modes[mode], "dp_rank", _RANKS))
    pools = s.per_replica(samples.get("sglang:max_total_num_tokens", ()), "dp_rank", _RANKS)
    models = {sample.labels.get("model_name") for found in samples.values() for sample in found} - {None, ""}
    return Reading(
        # Requests are counted when they end, and the first one is the warm-up's, so one request means ready.
        ready=True if values.get("requests_total", 0.0) >= 1 or values.get("tok_s", 0.0) > 0 else None,
        model=next(iter(models)) if len(models) == 1 else None,
        metrics=values or None,
        memory=_rank_memory(samples),
        kv_tokens=whole(pools[0]) if pools else None,
    )


def _drop_idle_speculation(values: dict[str, float]) -> None:
    """Remove an acceptance length below 1, which is impossible: 0 is exported without speculation."""
    if values.get("accept_length", 1.0) < 1.0:
        del values["accept_length"]


def _rank_memory(samples: dict[str, list[s.Sample]]) -> dict[str, MemoryTerms] | None:
    found = [(key, sample) for name, key in _MEMORY.items() for sample in samples.get(name, ())]
    if not found:
        return None
    # As in the log, a tag names a dimension only if its size is above 1.
    wide = [
        label
        for label in ("pp_rank", "tp_rank", "moe_ep_rank")
        if any(x.labels.get(label, "0") != "0" for _, x in found)
    ]
    terms: dict[str, dict[str, float]] = {}
    for key, sample in found:
        labels = sample.labels
        parts = [f"DP{labels['dp_rank']}"] if labels.get("dp_rank", "").isdecimal() else []
        parts += [f"{_TAGS[label]}{labels.get(label, '0')}" for label in wide]
        rank = terms.setdefault(" ".join(parts) or "TP0", {})
        rank[key] = rank.get(key, 0.0) + sample.value
    return {tag: MemoryTerms(**{key: from_gib(gib) for key, gib in rank.items()}) for tag, rank in terms.items()}


_MOST_RANKS = 4096
_TAGS = {"pp_rank": "PP", "tp_rank": "TP", "moe_ep_rank": "EP"}


def _loads(body: Any) -> Reading:
    """Interpret `/v1/loads`, or `/get_load` of older versions, which only has requests and tokens.

    The replicas' numbers are summed here, since the answer's own `avg_throughput` is a mean over them.
    """
    if isinstance(body, list):
        rows = [row for row in body if isinstance(row, dict)]
        waiting, running = _total(rows, "num_waiting_reqs"), _total(rows, "num_reqs")
        values = {
            "running": None if running is None else running - (waiting or 0.0),
            "queued": waiting,
            "used_tokens": _total(rows, "num_tokens"),
        }
        return Reading(metrics=_present(values))
    if not isinstance(body, dict) or not isinstance(body.get("loads"), list):
        return Reading()
    rows = [row for row in body["loads"] if isinstance(row, dict)]
    speculative = [row["speculative"] for row in rows if isinstance(row.get("speculative"), dict)]
    used, size = _total(rows, "num_used_tokens"), _total(rows, "max_total_num_tokens")
    values = {
        "running": _total(rows, "num_running_reqs"),
        "queued": _total(rows, "num_waiting_reqs"),
        "used_tokens": used,
        "max_total_tokens": size,
        "token_usage": _average(rows, "token_usage"),
        "tok_s": _total(rows, "gen_throughput"),
        "cache_hit": _average(rows, "cache_hit_rate"),
        "accept_length": _average([row for row in speculative if row.get("accept_length")], "accept_length"),
    }
    metrics = _present(values)
    if metrics is not None:
        _drop_idle_speculation(metrics)
        _drop_unmeasured_speed(metrics)
    capacity = real(rows[0].get("max_total_num_tokens")) if rows else None
    return Reading(
        ready=True if (values["tok_s"] or 0.0) > 0 else None,
        version=_text(body.get("version")),
        metrics=metrics,
        memory=_replica_memory([_load_terms(row) for row in rows], {}),
        kv_tokens=whole(capacity),
    )


def _drop_unmeasured_speed(metrics: dict[str, float]) -> None:
    """Correct a throughput that contradicts the number of requests.

    Without --enable-metrics the scheduler measures no throughput and answers zero while it decodes: it is removed. With
    it the last throughput is repeated for up to 30 s after the last request ended: it is set to zero.
    """
    if metrics.get("running"):
        if not metrics.get("tok_s"):
            metrics.pop("tok_s", None)
    elif metrics.get("running") == 0 and metrics.get("queued") == 0 and "tok_s" in metrics:
        metrics["tok_s"] = 0.0


def _load_terms(row: dict[str, Any]) -> MemoryTerms | None:
    memory = row.get("memory")
    if not isinstance(memory, dict):
        return None
    return _terms(memory.get("weight_gb"), memory.get("kv_cache_gb"), memory.get("graph_gb"))


def _info(body: dict[str, Any]) -> Reading:
    states = body.get("internal_states")
    # 0.4.6 has a single state, whose keys are at the top level.
    rows = [row for row in states if isinstance(row, dict)] if isinstance(states, list) else [body]
    settings = {key: value for key, value in body.items() if key not in _NOT_SETTINGS}
    tokens = real(body.get("max_total_num_tokens"))
    return Reading(
        version=_text(body.get("version")),
        model=_text(body.get("model_path")),
        settings=mask_json(settings) or None,
        memory=_replica_memory([_state_terms(row) for row in rows], settings),
        kv_tokens=whole(tokens),
    )


def _state_terms(row: dict[str, Any]) -> MemoryTerms | None:
    memory = row.get("memory_usage")
    if not isinstance(memory, dict):
        return None
    return _terms(memory.get("weight"), memory.get("kvcache"), memory.get("graph"))


def _terms(weights: Any, kv: Any, graphs: Any) -> MemoryTerms | None:
    if isinstance(graphs, dict):
        parts = [value for value in map(real, graphs.values()) if value is not None]
        graphs = sum(parts) if parts else None
    sizes = [None if (gib := real(value)) is None else from_gib(gib) for value in (weights, kv, graphs)]
    if sizes == [None, None, None]:
        return None
    return MemoryTerms(weights_bytes=sizes[0], kv_bytes=sizes[1], graphs_bytes=sizes[2])


def _replica_memory(replicas: list[MemoryTerms | None], settings: dict[str, Any]) -> dict[str, MemoryTerms] | None:
    """Return the memory terms by rank tag; each replica's first rank answers for all ranks of the replica.

    With one replica the tag is empty and stands for every rank of the server.
    """
    if len(replicas) == 1:
        return None if replicas[0] is None else {"": replicas[0]}
    tp_size = as_int(settings.get("tp_size"), 1)
    attention = bool(settings.get("enable_dp_attention"))
    ranks = max(1, tp_size // len(replicas)) if attention else tp_size
    if ranks * len(replicas) > _MOST_RANKS:
        return None
    found: dict[str, MemoryTerms] = {}
    for index, terms in enumerate(replicas):
        if terms is None:
            continue
        first = index * ranks if attention else 0
        tags = [f"DP{index} TP{first + i}" for i in range(ranks)] if tp_size > 1 else [f"DP{index}"]
        found.update(dict.fromkeys(tags, terms))
    return found or None


def _total(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [value for value in (real(row.get(key)) for row in rows) if value is not None]
    return sum(values) if values else None


def _average(rows: list[dict[str, Any]], key: str) -> float | None:
    return s.mean([value for value in (real(row.get(key)) for row in rows) if value is not None])


def _present(values: dict[str, float | None]) -> dict[str, float] | None:
    return {key: value for key, value in values.items() if value is not None} or None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
