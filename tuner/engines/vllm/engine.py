"""The vLLM engine, checked for 0.8 to 0.33; later versions may be read less completely."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tuner.core import facts as f
from tuner.core.engine import LinePrefix, RankPlace
from tuner.domain.events import HttpAnswer
from tuner.domain.forecast import Effective, Forecast
from tuner.domain.knobs import KnobKind, KnobType
from tuner.domain.layout import Layout
from tuner.domain.logs import Level, LogFact
from tuner.domain.plan import EnginePlan
from tuner.domain.readings import Reading
from tuner.domain.recipe import CommandLine
from tuner.domain.server import Member, ServerIdentity
from tuner.domain.starts import Start
from tuner.engines.argv import as_int, command_line, read_arguments, read_flags
from tuner.engines.folder import INHERITED, EngineFolder
from tuner.engines.vllm import forecast, http, lines, memory
from tuner.engines.vllm.routine import ROUTINE
from tuner.engines.vllm.versions import TRAITS

_PYTHON = r"^\S*python[\d.]*(?:\s+-(?!m\s)\S+(?:\s+(?!-)\S+)??)*"
_LEADERS = (
    r"^(?:\S*python[\d.]*\s+)?(?:\S*/)?vllm\s+serve(?:\s|$)",
    _PYTHON + r"\s+-m\s+vllm(?:\.entrypoints\.cli\.main)?\s+serve(?:\s|$)",
    _PYTHON + r"\s+-m\s+vllm\.entrypoints\.openai\.api_server(?:\s|$)",
)
_TITLES = (r"^VLLM::",)
_WORKER = re.compile(r"^VLLM::Worker(?P<tags>(?:_[A-Z]+\d+)*)(?:\s|$)")
_CORE = re.compile(r"^VLLM::EngineCore(?:_DP(?P<dp>\d+))?(?:\s|$)")
_TAG = re.compile(r"([A-Z]+)(\d+)")

_ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "q": "quantization",
    "sc": "speculative_config",
    "cc": "compilation_config",
    "O": "optimization_level",
    "device_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory": "kv_cache_memory_bytes",
}
_LISTS = frozenset((
    "allowed_media_domains", "api_key", "collect_detailed_traces", "cpu_offload_params", "ignore_patterns",
    "kv_cache_dtype_skip_layers", "logits_processors", "lora_modules", "lora_target_modules", "numa_bind_cpus",
    "numa_bind_nodes", "offload_params", "prompt_adapters", "served_model_name", "sleep_preserve_parameter_names",
))  # fmt: skip
"""Flags of `vllm serve` that take any number of words: vLLM 0.32.0, engine/arg_utils.py and cli_args.py."""
_SWITCHES = (
    "aggregate_engine_logging", "allow_credentials", "allow_deprecated_quantization", "cohere_is_reasoning_model",
    "cudagraph_metrics", "data_parallel_external_lb", "data_parallel_hybrid_lb",
    "data_parallel_multi_port_external_lb", "dcp_q_replicate", "dpe", "dph", "dpm",
    "exclude_tools_when_tool_choice_none", "fail_on_environ_validation", "fully_sharded_loras", "grpc", "headless",
    "interleave_mm_strings", "jit_monitor_verbose", "kv_cache_metrics", "kv_sharing_fast_prefill",
    "language_model_only", "log_error_stack", "long_prefill_token_threshold_adaptive", "mm_device_do_normalize",
    "mm_encoder_only", "ray_workers_use_nsight", "return_sampling_mask", "return_tokens_as_token_ids",
    "scheduler_reserve_full_isl", "skip_tokenizer_init", "sleep_mode_offload_cudagraph", "specialize_active_lora",
    "swa_bounded_replay", "tokens_only",
)  # fmt: skip
"""Flags of `vllm serve` that take no word although their names do not begin like a switch's: vLLM 0.32.0."""
_WORDS = dict.fromkeys(_SWITCHES, 0) | {"disable_access_log_for_endpoints": 1, "device_ids": 1}
"""Number of words of flags whose names tell another one."""

_PLAN = EnginePlan(
    name="vllm",
    leaders=_LEADERS,
    titles=_TITLES,
    package="vllm",
    default_port=8000,
    api_key_env=("VLLM_API_KEY",),
    rank_env=("CUDA_VISIBLE_DEVICES", *INHERITED),
    tls_flags=("--ssl-certfile", "--ssl_certfile"),
    endpoints=http.ENDPOINTS,
    start_markers=(
        "  version ", "  model   ", "server version ", "args: {", "args: Namespace(", "LLM engine (v",
        "distributed_init_method=", "is using nccl==", "is assigned as DP rank", "Starting to load model",
        "Loading model from scratch", "Loading weights took", "loading took", "weights took",
        "torch.compile", "Compiling a graph for", "KV cache memory", "for KV cache on node", "KV cache size",
        "Capturing CUDA graph", "Graph capturing finished", "CUDA graph pool memory", "Actual usage is",
        "model weights take", "init engine (profile", "Starting vLLM", "Application startup complete.",
        "failed to start.", "hit an exception.", "Error: ", ": error: ", "died unexpectedly", "Value error, ",
        "Exception: ", "Failed: Cuda error",
    ),
    log_end_marker="Application startup complete.",
)  # fmt: skip


class VLLM(EngineFolder):
    """vLLM as an implementation of `core.engine.Engine`, where the methods are described."""

    name = "vllm"
    title = "vLLM"

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent, TRAITS, lines.split, lines.torn)

    def plan(self) -> EnginePlan:
        """Return what the probe looks for and which endpoints it asks."""
        return _PLAN

    def prefix(self, text: str) -> LinePrefix:
        """Split a line into prefix and message."""
        return lines.split(text)

    def message(self, text: str, prefix: LinePrefix) -> str:
        """Return a line without its prefix; of a JSON record, its message."""
        return lines.message_of(text, prefix)

    def level(self, message: str) -> Level:
        """Return the severity of output that is not a log record, by its words."""
        return lines.level(message)

    def interesting(self, text: str) -> bool:
        """Return whether `facts` could find any in a line; a cheap test."""
        start = lines.quick_start(text)
        return start < 0 or self._reader.interesting(text, start)

    def routine(self) -> bytes:
        """Return a regular expression of the routine lines."""
        return ROUTINE

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> Sequence[LogFact]:
        """Return the facts that a line states."""
        if prefix.prefixed and prefix.message_start == 0:
            # This is a JSON record, whose message is inside the object.
            found = super().facts(lines.message_of(text, prefix), prefix, offset)
        else:
            found = super().facts(text, prefix, offset)
        if found and found[0].kind == f.STATS and found[0].fields.get("engine"):
            # One process prints the statistics of all replicas. Engine 0 gets no tag: most servers have no other.
            return [msgspec.structs.replace(found[0], rank=f"DP{found[0].fields['engine']}")]
        if found and prefix.rank is not None and "EngineCore_" in text:
            return [fact if _is_of_a_worker(fact) else msgspec.structs.replace(fact, rank=None) for fact in found]
        return found

    def read(self, answer: HttpAnswer) -> Reading:
        """Interpret an HTTP answer."""
        return http.read(answer)

    def model(self, identity: ServerIdentity) -> str | None:
        """Return the LLM of the command line: `--model`, or the positional argument of `serve`; None if neither."""
        model = self.settings_from_argv(identity).get("model")
        return model if isinstance(model, str) else None

    def settings_from_argv(self, identity: ServerIdentity) -> dict[str, Any]:
        """Return the flags of the command line by the name of the engine arg they set."""
        first, positional = _first_argument(identity.argv)
        if first is None:
            return {}
        rest = identity.argv[first:]
        return read_flags(rest, _ALIASES, positional=positional, takes=self._takes, lists=_LISTS)

    def command_line(self, argv: Sequence[str]) -> CommandLine:
        """Take a command line apart; after `serve`, one word is the LLM's."""
        first, positional = _first_argument(argv)
        rest = argv[first:]
        found = read_arguments(rest, _ALIASES, positional=positional, takes=self._takes, lists=_LISTS)
        return command_line(argv, first, found)

    @functools.cached_property
    def _takes(self) -> dict[str, int]:
        """Number of values that each known flag takes; flags with lists are left out, since they take any number."""
        return _WORDS | {
            spelled.text.lstrip("-").replace("-", "_"): 0 if knob.type is KnobType.BOOL else 1
            for knob in self.knobs().values()
            if knob.kind is KnobKind.FLAG and knob.type is not KnobType.INTS
            for spelled in knob.spellings
        }

    def effective_fraction(self, start: Start) -> Effective | None:
        """Return the memory utilisation that a start ran or failed with; None if nothing tells it."""
        return memory.effective_fraction(start)

    def cap(self, start: Start) -> str | None:
        """Return the knob that bounds the KV cache in place of the utilisation; None if the utilisation does."""
        return memory.cap(start)

    def forecast(self, base: Start, changes: Mapping[str, Any], past: Sequence[Start] = ()) -> Forecast:
        """Forecast the memory of a start like `base` with some knobs changed."""
        return forecast.forecast(base, changes, past, self.knobs())

    def layout(self, settings: dict[str, Any]) -> Layout:
        """Return the sizes of parallelism that server args ask for; replicas never share ranks."""
        sizes = (settings.get(f"{name}_parallel_size") for name in ("tensor", "pipeline", "data"))
        tp, pp, dp = (as_int(size, 1) for size in sizes)
        return Layout(tp=tp, pp=pp, dp=dp)

    def ranks(self, identity: ServerIdentity, settings: dict[str, Any]) -> Sequence[RankPlace]:
        """Return the ranks by process title: workers, or engine cores if they have no workers.

        Before processes have titles, the ranks follow from the server args and have no PID.
        """
        known = {**self.settings_from_argv(identity), **settings}
        tp_size = max(as_int(known.get("tensor_parallel_size"), 1), 1)
        world = tp_size * max(as_int(known.get("pipeline_parallel_size"), 1), 1)
        cores = {m.pid: found["dp"] for m in identity.members if (found := _CORE.match(m.title)) is not None}
        places: dict[str, RankPlace] = {}
        for member in identity.members:
            found = _WORKER.match(member.title)
            if found is not None:
                numbers = _numbers(member, found["tags"], cores)
                _add(places, numbers, member.pid, tp_size, world)
        if not places:
            for pid, replica in cores.items():
                _add(places, {} if replica is None else {"DP": int(replica)}, pid, tp_size, world)
        if places:
            return sorted(places.values(), key=lambda place: [int(n) for _, n in _TAG.findall(place.tag)])
        return _ordered_ranks(known, tp_size, world)


_OF_WORKERS = frozenset({f.WEIGHTS, f.MEMORY, f.GRAPHS, f.PROGRESS, f.PHASE_BEGIN, f.PHASE_END})


def _first_argument(argv: Sequence[str]) -> tuple[int | None, str]:
    """Return the index of the first argument (None: it does not run vLLM), and the name of the one without a flag."""
    for index, argument in enumerate(argv):
        if argument == "serve" and index:
            return index + 1, "model"
        if argument.endswith(("api_server", "api_server.py")):
            return index + 1, ""
    return None, ""


def _is_of_a_worker(fact: LogFact) -> bool:
    """Return whether a fact printed by an engine core is about a single rank.

    A core without workers prints what a worker would. Everything else it prints is about all its ranks: from 0.10.2 to
    0.17 it is named `EngineCore_DP0` even without replicas.
    """
    return fact.kind in _OF_WORKERS and fact.format != "engine-ready"


def _numbers(worker: Member, tags: str, cores: dict[int, str | None]) -> dict[str, int]:
    """Return the rank numbers in a worker's title by kind of parallelism (`TP`, `PP`, `DP`).

    Replicas of a dense LLM give their workers equal titles; the parent process tells which replica it is.
    """
    numbers = {name: int(number) for name, number in _TAG.findall(tags)}
    replica = cores.get(worker.ppid)
    if "DP" not in numbers and replica is not None and len(cores) > 1:
        numbers = {"DP": int(replica), **numbers}
    return numbers


def _add(places: dict[str, RankPlace], numbers: dict[str, int], pid: int | None, tp_size: int, world: int) -> None:
    tag = " ".join(f"{name}{number}" for name, number in numbers.items()) or "TP0"
    index = numbers.get("DP", 0) * world + numbers.get("PP", 0) * tp_size + numbers.get("TP", 0)
    places[tag] = RankPlace(tag=tag, pid=pid, visible_index=index)


def _ordered_ranks(settings: dict[str, Any], tp_size: int, world: int) -> list[RankPlace]:
    replicas = max(as_int(settings.get("data_parallel_size"), 1), 1)
    if not settings or world * replicas > 1024:
        return []
    places: dict[str, RankPlace] = {}
    for dp in range(replicas):
        for rank in range(world):
            parts = (("DP", dp, replicas), ("PP", rank // tp_size, world // tp_size), ("TP", rank % tp_size, tp_size))
            _add(places, {name: number for name, number, size in parts if size > 1}, None, tp_size, world)
    return list(places.values())
