"""The JSON answers of the simulated server, in the shapes of SGLang 0.5.9 and 0.5.23."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from tuner.simhost.engine.memory import gib
from tuner.simhost.engine.traffic import Request

if TYPE_CHECKING:
    from tuner.simhost.engine.server import Server

_GRAPHS = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")


def server_info(server: Server) -> dict[str, Any]:
    """Return the answer to /server_info: resolved args, limits, and the scheduler's state."""
    args, machine = server.config.public(), server.machine
    held = machine.box.ranks[0]
    throughput = server.serving.throughput if server.serving else 0.0
    memory: dict[str, Any] = {"weight": round(gib(held.weights), 3), "kvcache": round(gib(held.kv), 3)}
    state = dict(args)
    if server.config.new:
        sizes = {"prefill": held.prefill_graphs, "decode": held.graphs}
        memory |= {
            "startup_available": round(gib(server.startup_free[0]), 3),
            "token_capacity": machine.tokens,
            "token_capacity_swa": None,
            "graph": {phase: round(gib(sizes.get(phase, 0)), 3) for phase in _GRAPHS},
        }
        state["world_size"] = server.config.tp
    else:
        memory = {
            "weight": round(gib(held.weights), 2),
            "kvcache": round(gib(held.kv), 2),
            "token_capacity": machine.tokens,
            "graph": round(gib(held.graphs), 2),
        }
    state |= {
        "last_gen_throughput": throughput,
        "memory_usage": memory,
        "effective_max_running_requests_per_dp": machine.max_running,
    }
    if server.serving is not None and server.serving.accept is not None:
        state["avg_spec_accept_length"] = server.serving.accept
    extra: dict[str, Any] = {
        "status": "ready",
        "max_total_num_tokens": machine.tokens,
        "max_req_input_len": min(server.config.context_length, machine.tokens) - 6,
    }
    if server.config.new:
        took = machine.timings
        extra |= {
            "launch_command": " ".join(server.spec.argv[3:]),
            "startup_time": {
                "load_weight": took.get("load_weight", 0.0),
                "kv_cache_allocation": took.get("kv_cache_allocation", 0.0),
                "cuda_graph": {phase: took.get(phase, 0.0) for phase in _GRAPHS},
            },
            "frontend": "python",
        }
    return {**args, **extra, "internal_states": [state], "version": server.config.version}


def model_info(server: Server) -> dict[str, Any]:
    """Return the answer to /model_info."""
    args = server.config.args
    return {
        "model_path": args["model_path"],
        "tokenizer_path": args["tokenizer_path"],
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": True,
        "has_audio_understanding": False,
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
    }


def models(server: Server) -> dict[str, Any]:
    """Return the answer to /v1/models."""
    name = server.config.args["served_model_name"]
    card = {
        "id": name,
        "object": "model",
        "created": int(server.ready_at),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": server.config.context_length,
    }
    return {"object": "list", "data": [card]}


def loads(server: Server) -> dict[str, Any]:
    """Return the answer to /v1/loads in 0.5.23."""
    serving, machine = server.serving, server.machine
    running, waiting = (len(serving.running), len(serving.waiting)) if serving else (0, 0)
    used = serving.used if serving else 0
    held = machine.box.ranks[0]
    load = {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting,
        "num_used_tokens": used,
        "max_total_num_tokens": machine.tokens,
        "token_usage": round(used / machine.tokens, 4),
        "gen_throughput": round(serving.throughput, 2) if serving and running else 0.0,
        "cache_hit_rate": round(serving.hit_rate, 4) if serving else 0.0,
        "utilization": 0.0,
        "max_running_requests": machine.max_running,
        "memory": {
            "weight_gb": round(gib(held.weights), 3),
            "kv_cache_gb": round(gib(held.kv), 3),
            "graph_gb": round(gib(held.graphs + held.prefill_graphs), 3),
            "token_capacity": machine.tokens,
        },
        "queues": {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0},
    }
    if serving is not None and serving.accept is not None:
        load["speculative"] = {"accept_length": serving.accept, "accept_rate": serving.accept / 4}
    return {
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
        "version": server.config.version,
        "dp_rank_count": 1,
        "loads": [load],
        "aggregate": {
            "total_running_reqs": running,
            "total_waiting_reqs": waiting,
            "total_reqs": running + waiting,
            "avg_token_usage": load["token_usage"],
            "avg_throughput": load["gen_throughput"],
            "avg_utilization": 0.0,
        },
    }


def get_load(server: Server) -> list[dict[str, Any]]:
    """Return the answer to /get_load in 0.5.9."""
    serving = server.serving
    waiting = len(serving.waiting) if serving else 0
    active = serving.active if serving else 0
    return [
        {
            "dp_rank": 0,
            "num_reqs": active,
            "num_waiting_reqs": waiting,
            "num_tokens": serving.used if serving else 0,
            "ts_tic": time.monotonic(),
        }
    ]


def completion(server: Server, path: str, request: Request, words: str) -> dict[str, Any]:
    """Return the answer to a request that is not streamed."""
    usage = _usage(request)
    if path == "/generate":
        return {"text": words, "meta_info": _meta(request)}
    name = server.config.args["served_model_name"]
    chat = path.endswith("/chat/completions")
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length", "matched_stop": None}
    choice |= {"message": {"role": "assistant", "content": words}} if chat else {"text": words}
    kind = "chat.completion" if chat else "text_completion"
    return {
        "id": request.rid,
        "object": kind,
        "created": int(request.arrived),
        "model": name,
        "choices": [choice],
        "usage": usage,
        "metadata": {"weight_version": "default"},
    }


async def stream(
    server: Server, path: str, asked: dict[str, Any], request: Request, chunks: AsyncIterator[list[str]]
) -> AsyncIterator[bytes]:
    """Yield server-sent events as tokens come; /generate repeats the whole text each time, as the real one does."""
    name, chat = server.config.args["served_model_name"], path.endswith("/chat/completions")
    said = ""
    options = asked.get("stream_options") or {}
    async for part in chunks:
        said += "".join(part)
        if path == "/generate":
            yield _event({"text": said, "meta_info": _meta(request)})
            continue
        ended = request.generated >= request.output
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length" if ended else None}
        choice |= {"delta": {"content": "".join(part)}} if chat else {"text": "".join(part)}
        yield _event(
            {
                "id": request.rid,
                "object": "chat.completion.chunk" if chat else "text_completion",
                "created": int(request.arrived),
                "model": name,
                "choices": [choice],
                "usage": _usage(request) if options.get("continuous_usage_stats") else None,
            }
        )
    if path != "/generate" and options.get("include_usage"):
        kind = "chat.completion.chunk" if chat else "text_completion"
        yield _event({"id": request.rid, "object": kind, "created": int(request.arrived), "model": name,
                      "choices": [], "usage": _usage(request)})  # fmt: skip
    yield b"data: [DONE]\n\n"


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _usage(request: Request) -> dict[str, Any]:
    return {
        "prompt_tokens": request.prompt,
        "total_tokens": request.prompt + request.generated,
        "completion_tokens": request.generated,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def _meta(request: Request) -> dict[str, Any]:
    ended = request.generated >= request.output
    return {
        "id": request.rid,
        "finish_reason": {"type": "length", "length": request.output} if ended else None,
        "prompt_tokens": request.prompt,
        "weight_version": "default",
        "total_retractions": 0,
        "completion_tokens": request.generated,
        "cached_tokens": request.cached,
        "e2e_latency": (request.finished or time.time()) - request.arrived,
    }
