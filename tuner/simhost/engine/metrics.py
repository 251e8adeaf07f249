"""The /metrics answer of SGLang 0.5.9 and 0.5.23, with names, labels and types of real servers."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tuner.simhost.engine.memory import gib
from tuner.simhost.engine.serving import Histogram

if TYPE_CHECKING:
    from tuner.simhost.engine.server import Server

Labels = dict[str, str]

_ZERO_OLD = (
    "pending_prealloc_token_usage", "swa_token_usage", "mamba_usage", "num_grammar_queue_reqs",
    "num_running_reqs_offline_batch", "num_prefill_prealloc_queue_reqs", "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs", "kv_transfer_speed_gb_s",
    "kv_transfer_latency_ms", "kv_transfer_bootstrap_ms", "kv_transfer_alloc_ms", "kv_transfer_total_mb",
    "utilization", "engine_startup_time", "engine_load_weights_time", "num_unique_running_routing_keys",
)  # fmt: skip
_ZERO_NEW = (
    "num_grammar_queue_reqs", "swa_token_usage", "mamba_usage", "swa_available_tokens", "swa_evictable_tokens",
    "swa_used_tokens", "mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens", "spec_cap_length",
    "spec_block_accept_length", "spec_num_steps", "spec_num_draft_tokens", "num_prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs", "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs",
    "num_decode_host_receive_queue_reqs", "num_decode_deferred_kv_release_reqs", "pending_prealloc_token_usage",
    "prealloc_full_token_usage", "prealloc_swa_token_usage", "utilization", "num_unique_running_routing_keys",
)  # fmt: skip
_ROUTING = (0, 1, 2, 3, 5, 7, 10, 20, 50, 100, 200)
_PHASES = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")


class Text:
    """Collects lines of the Prometheus text format."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, kind: str) -> None:
        """Add the head of a family."""
        plain = name.removesuffix("_total") if kind == "counter" else name
        self.lines.append(f"# HELP sglang:{name} {plain.replace('_', ' ')}")
        self.lines.append(f"# TYPE sglang:{name} {kind}")

    def value(self, name: str, labels: Labels, value: float) -> None:
        """Add one sample."""
        inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
        shown = "NaN" if math.isnan(value) else repr(float(value))
        self.lines.append(f"sglang:{name}{{{inner}}} {shown}" if inner else f"sglang:{name} {shown}")

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        """Add a family of one gauge."""
        self.family(name, "gauge")
        self.value(name, labels, value)

    def counter(self, name: str, labels: Labels, value: float) -> None:
        """Add a family of one counter."""
        self.family(name, "counter")
        self.value(name, labels, value)

    def histogram(self, name: str, labels: Labels, data: Histogram) -> None:
        """Add a family of one histogram."""
        self.family(name, "histogram")
        total = 0
        self.value(f"{name}_sum", labels, data.total)
        for bound, count in zip((*data.bounds, math.inf), data.counts, strict=True):
            total += count
            self.value(f"{name}_bucket", {**labels, "le": "+Inf" if math.isinf(bound) else repr(bound)}, total)
        self.value(f"{name}_count", labels, data.number)


def render(server: Server) -> str:
    """Return the whole answer."""
    out = Text()
    model = {"model_name": str(server.config.args["served_model_name"])}
    rank0 = {"engine_type": "unified", **model, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    if server.config.new:
        _render_new(out, server, model, rank0)
    else:
        _render_old(out, server, model, rank0)
    _http(out, server)
    return "\n".join(out.lines) + "\n"


def _scheduler(server: Server) -> Iterator[tuple[str, float]]:
    """Yield the gauges that both versions have."""
    serving, tokens = server.serving, server.machine.tokens
    running = len(serving.running) if serving else 0
    used = serving.used if serving else 0
    yield "num_running_reqs", running
    yield "num_used_tokens", used
    yield "token_usage", used / tokens
    yield "decode_sum_seq_lens", sum(r.context for r in serving.running) if serving else 0
    yield "gen_throughput", serving.throughput if serving and running else 0.0
    yield "num_queue_reqs", len(serving.waiting) if serving else 0
    yield "cache_hit_rate", serving.hit_rate if serving else 0.0
    accept = serving.accept if serving and serving.accept else 0.0
    yield "spec_accept_length", accept
    yield "spec_accept_rate", accept / (4 if server.config.new else 3)
    yield "new_token_ratio", 0.6442 if running else 0.7
    yield "is_cuda_graph", 1.0 if running and running <= server.config.graph_max_bs else 0.0


def _render_old(out: Text, server: Server, model: Labels, rank0: Labels) -> None:
    serving, tokens = server.serving, server.machine.tokens
    if serving is not None:
        counters = serving.counters
        out.histogram("time_to_first_token_seconds", model, counters.ttft)
        out.histogram("e2e_request_latency_seconds", model, counters.e2e)
        out.histogram("inter_token_latency_seconds", model, counters.itl)
        out.histogram("queue_time_seconds", rank0, counters.queue)
    out.gauge("cache_config_info", {"num_pages": str(tokens), "page_size": "1"}, 1)
    out.gauge("max_total_num_tokens", rank0, tokens)
    for name, value in _scheduler(server):
        out.gauge(name, rank0, value)
    for name in _ZERO_OLD:
        out.gauge(name, rank0, 0)
    _routing(out, rank0)
    _counters(out, server, model, rank0)


def _render_new(out: Text, server: Server, model: Labels, rank0: Labels) -> None:
    serving, machine = server.serving, server.machine
    engine = {"engine_type": "unified", **model}
    streaming = {**engine, "is_streaming": "true"}
    if serving is not None:
        counters = serving.counters
        out.histogram("time_to_first_token_seconds", streaming, counters.ttft)
        out.histogram("e2e_request_latency_seconds", streaming, counters.e2e)
        out.histogram("request_time_per_output_token_seconds", streaming, counters.itl)
        out.histogram("inter_token_latency_seconds", engine, counters.itl)
        out.histogram("queue_time_seconds", rank0, counters.queue)
    out.family("startup_time_seconds", "gauge")
    for phase in ("load_weight", "kv_cache_allocation"):
        out.value("startup_time_seconds", {**engine, "phase": phase}, machine.timings.get(phase, 0.0))
    out.family("startup_cuda_graph_time_seconds", "gauge")
    for phase in _PHASES:
        out.value("startup_cuda_graph_time_seconds", {**engine, "phase": phase}, machine.timings.get(phase, 0.0))
    per_rank: dict[str, Callable[[int], float]] = {
        "max_total_num_tokens": lambda r: machine.tokens,
        "weight_memory_usage_gb": lambda r: gib(machine.box.ranks[r].weights),
        "kv_cache_memory_usage_gb": lambda r: gib(machine.box.ranks[r].kv),
        "page_size": lambda r: 1,
        "num_pages": lambda r: machine.tokens,
        "context_len": lambda r: server.config.context_length,
        "startup_available_gpu_memory_gb": lambda r: gib(server.startup_free[r]),
    }
    for name, value in per_rank.items():
        out.family(name, "gauge")
        for rank in range(server.config.tp):
            out.value(name, {**rank0, "tp_rank": str(rank)}, value(rank))
    out.family("graph_memory_usage_gb", "gauge")
    for rank in range(server.config.tp):
        held = machine.box.ranks[rank]
        sizes = {"prefill": held.prefill_graphs, "decode": held.graphs}
        for phase in _PHASES:
            labels = {**rank0, "tp_rank": str(rank), "phase": phase}
            out.value("graph_memory_usage_gb", labels, gib(sizes.get(phase, 0)))
    for name, number in _scheduler(server):
        out.gauge(name, rank0, number)
    used, evictable = (serving.used, serving.evictable) if serving else (0, 0)
    out.gauge("full_token_usage", rank0, used / machine.tokens)
    out.gauge("kv_available_tokens", rank0, machine.tokens - used - evictable)
    out.gauge("kv_evictable_tokens", rank0, evictable)
    out.gauge("kv_used_tokens", rank0, used)
    out.gauge("fwd_occupancy", rank0, math.nan)
    for name in _ZERO_NEW:
        out.gauge(name, rank0, 0)
    _routing(out, rank0)
    _counters(out, server, streaming, rank0)


def _routing(out: Text, rank0: Labels) -> None:
    bounds = [*map(str, _ROUTING), "+Inf"]
    for name in ("routing_key_running_req_count", "routing_key_all_req_count"):
        out.family(name, "gauge")
        for low, high in itertools.pairwise(bounds):
            out.value(name, {**rank0, "gt": low, "le": high}, 0)
    out.gauge("routing_keys_active", {}, 0)


def _counters(out: Text, server: Server, request: Labels, rank0: Labels) -> None:
    serving = server.serving
    if serving is None:
        return
    counters = serving.counters
    out.family("realtime_tokens_total", "counter")
    for mode, value in (
        ("prefill_compute", counters.realtime_prefill),
        ("decode", counters.realtime_decode),
        ("prefill_cache", counters.realtime_cache),
    ):
        out.value("realtime_tokens_total", {**rank0, "mode": mode}, value)
    out.family("cuda_graph_passes_total", "counter")
    full = "decode_cuda_graph" if server.config.new else "decode_full"
    out.value("cuda_graph_passes_total", {**rank0, "mode": full}, counters.graph_passes)
    out.value("cuda_graph_passes_total", {**rank0, "mode": "decode_none"}, counters.eager_passes)
    out.counter("prompt_tokens_total", request, counters.prompt)
    out.counter("generation_tokens_total", request, counters.generated)
    out.counter("num_requests_total", request, counters.requests)
    cached = {**request, "cache_source": "device"}
    cached.pop("is_streaming", None)
    out.counter("cached_tokens_total", cached, counters.cached)
    pid = {**rank0, "pid": str(server.family.scheduler(0).pid if server.family else os.getpid())}
    out.gauge("num_retracted_reqs", pid, 0)
    out.gauge("num_paused_reqs", pid, 0)
    out.counter("num_retracted_requests_total", rank0, counters.retracted)


def _http(out: Text, server: Server) -> None:
    out.family("http_requests_total", "counter")
    for (path, method), count in server.requests.items():
        out.value("http_requests_total", {"endpoint": path, "method": method}, count)
    out.family("http_responses_total", "counter")
    for (path, method, status), count in server.responses.items():
        labels = {"endpoint": path, "method": method, "status_code": status}
        out.value("http_responses_total", labels, count)
