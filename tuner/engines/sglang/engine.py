"""The SGLang engine, checked for 0.4.6 to 0.5.23; later versions may be read less completely."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.core.engine import LinePrefix, RankPlace
from tuner.domain.events import HttpAnswer
from tuner.domain.forecast import Effective, Forecast
from tuner.domain.layout import Layout
from tuner.domain.logs import Level
from tuner.domain.plan import EnginePlan
from tuner.domain.readings import Reading
from tuner.domain.recipe import CommandLine
from tuner.domain.server import ServerIdentity
from tuner.domain.starts import Start
from tuner.engines.argv import as_int, command_line, read_arguments, read_flags
from tuner.engines.folder import INHERITED, EngineFolder
from tuner.engines.sglang import forecast, http, lines, memory
from tuner.engines.sglang.routine import ROUTINE
from tuner.engines.sglang.versions import TRAITS

_PYTHON = r"^\S*python[\d.]*(?:\s+-(?!m\s)\S+(?:\s+(?!-)\S+)??)*"
_LEADERS = (
    _PYTHON + r"\s+-m\s+sglang\.launch_server(?:\s|$)",
    _PYTHON + r"\s+-m\s+sglang(?:\.cli\.main)?\s+serve(?:\s|$)",
    _PYTHON + r"\s+\S*/sglang/launch_server\.py(?:\s|$)",
    r"^(?:\S*python[\d.]*\s+)?(?:\S*/)?sglang\s+serve(?:\s|$)",
)
_TITLES = (r"^sglang::",)
_SCHEDULER = re.compile(r"^\[?sglang::scheduler(?P<tags>(?:[_ ](?:ATTN_CP|MOE_DP|DP|PP|TP|EP)\d+)*)\]?(?:\s|$)")
_TAG = re.compile(r"(ATTN_CP|MOE_DP|DP|PP|TP|EP)(\d+)")
_ENTRY = re.compile(r"(?:^|/)(?:sglang\.launch_server|launch_server\.py)$")

_ALIASES = {
    "model": "model_path",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "tokenizer": "tokenizer_path",
}

_PLAN = EnginePlan(
    name="sglang",
    leaders=_LEADERS,
    titles=_TITLES,
    package="sglang",
    default_port=30000,
    rank_env=("CUDA_VISIBLE_DEVICES", "SGLANG_DP_RANK", *INHERITED),
    tls_flags=("--ssl-certfile",),
    endpoints=http.ENDPOINTS,
    start_markers=(
        "server_args=", "Init torch distributed", "Init parallel", "is using nccl==", "Load weight",
        "KV Cache ", "Mamba Cache", "Post-capture KV", "Memory pool end", " graph begin", " graph end", " autotune",
        "DeepGEMM JIT", "max_total_num_tokens=", "Uvicorn running on ", "larger than the profiled", "graph because",
        "graph is disabled because", "The server is fired up", "hit an exception", "Not enough memory",
        "OutOfMemoryError", "error while attempting to bind", "eceived sigquit", ": error: ", "Error: ",
        "Exception: ", "Initialization failed",
    ),
    log_end_marker="The server is fired up and ready to roll",
)  # fmt: skip


class SGLang(EngineFolder):
    """SGLang as an implementation of `core.engine.Engine`, where the methods are described."""

    name = "sglang"
    title = "SGLang"

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent, TRAITS, lines.split, lines.torn)

    def plan(self) -> EnginePlan:
        """Return what the probe looks for and which endpoints it asks."""
        return _PLAN

    def prefix(self, text: str) -> LinePrefix:
        """Split a line into prefix and message."""
        return lines.split(text)

    def message(self, text: str, prefix: LinePrefix) -> str:
        """Return a line without its prefix."""
        return text[prefix.message_start :]

    def level(self, message: str) -> Level:
        """Return the severity of a message by its words; SGLang prints no levels."""
        return lines.level(message)

    def interesting(self, text: str) -> bool:
        """Return whether `facts` could find any in a line; a cheap test."""
        start = lines.quick_start(text)
        return start < 0 or self._reader.interesting(text, start)

    def routine(self) -> bytes:
        """Return a regular expression of the routine lines."""
        return ROUTINE

    def read(self, answer: HttpAnswer) -> Reading:
        """Interpret an HTTP answer."""
        return http.read(answer)

    def model(self, identity: ServerIdentity) -> str | None:
        """Return `--model-path` of the command line; None if it is not given."""
        model = self.settings_from_argv(identity).get("model_path")
        return model if isinstance(model, str) else None

    def settings_from_argv(self, identity: ServerIdentity) -> dict[str, Any]:
        """Return the flags of the command line by the name of the server arg they set."""
        first = _first_argument(identity.argv)
        return {} if first is None else read_flags(identity.argv[first:], _ALIASES)

    def command_line(self, argv: Sequence[str]) -> CommandLine:
        """Take a command line apart; every word after a flag is a value of it."""
        first = _first_argument(argv)
        return command_line(argv, first, read_arguments(argv[first:], _ALIASES))

    def effective_fraction(self, start: Start) -> Effective | None:
        """Return the effective fraction of a start; None if nothing tells it."""
        return memory.effective_fraction(start)

    def cap(self, start: Start) -> str | None:
        """Return the knob that bounds the KV pool in place of the fraction; None if the fraction does."""
        return "max_total_tokens" if memory.capped(start) else None

    def forecast(self, base: Start, changes: Mapping[str, Any], past: Sequence[Start] = ()) -> Forecast:
        """Forecast the memory of a start like `base` with some knobs changed."""
        return forecast.forecast(base, changes, past, self.knobs())

    def layout(self, settings: dict[str, Any]) -> Layout:
        """Return the sizes of parallelism that server args ask for."""
        tp, pp = (as_int(settings.get(name), 1) for name in ("tp_size", "pp_size"))
        replicas, shared = _replicas(settings)
        return Layout(tp=tp, pp=pp, dp=replicas, shared=shared)

    def ranks(self, identity: ServerIdentity, settings: dict[str, Any]) -> Sequence[RankPlace]:
        """Return the ranks by the titles of the scheduler processes.

        Before processes have titles, the ranks follow from the server args and have no PID.
        """
        known = {**self.settings_from_argv(identity), **settings}
        places: dict[str, RankPlace] = {}
        for member in identity.members:
            found = _SCHEDULER.match(member.title)
            if found is not None:
                numbers = {name: int(number) for name, number in _TAG.findall(found["tags"])}
                tag = " ".join(f"{name}{number}" for name, number in numbers.items()) or "TP0"
                places[tag] = RankPlace(tag=tag, pid=member.pid, visible_index=_visible_index(numbers, known))
        if places:
            return sorted(places.values(), key=lambda place: _order(place.tag))
        return _ordered_ranks(known)


def _first_argument(argv: Sequence[str]) -> int | None:
    """Return the index of the first argument; None if the command line does not run SGLang."""
    for index, argument in enumerate(argv):
        if _ENTRY.search(argument) or (argument == "serve" and index):
            return index + 1
    return None


def _order(tag: str) -> list[tuple[str, int]]:
    return [(name, int(number)) for name, number in _TAG.findall(tag)]


def _replicas(settings: dict[str, Any]) -> tuple[int, bool]:
    """Return the number of data parallel replicas, and whether they share the TP ranks (attention DP)."""
    attention = as_int(settings.get("attn_dp_size"), 1)
    shared = bool(settings.get("enable_dp_attention")) or attention > 1
    return max(as_int(settings.get("dp_size"), 1), attention), shared


def _visible_index(numbers: dict[str, int], settings: dict[str, Any]) -> int:
    """Return a rank's index into the visible devices by SGLang's placement formula (unchanged 0.4.6 to 0.5.23)."""
    tp_size, pp_size = as_int(settings.get("tp_size"), 1), as_int(settings.get("pp_size"), 1)
    nodes = max(as_int(settings.get("nnodes"), 1), 1)
    step = as_int(settings.get("gpu_id_step"), 1)
    tp_per_node = max(tp_size // max(nodes // max(pp_size, 1), 1), 1)
    pp_per_node = max(pp_size // nodes, 1)
    index = as_int(settings.get("base_gpu_id"), 0)
    index += (numbers.get("PP", 0) % pp_per_node) * tp_per_node
    index += (numbers.get("TP", 0) % tp_per_node) * step
    replicas, shared = _replicas(settings)
    if replicas > 1 and not shared:
        index += numbers.get("DP", 0) * tp_size * pp_size * step
    return index


def _ordered_ranks(settings: dict[str, Any]) -> list[RankPlace]:
    """Return the ranks that the server args imply, for one node with plain tensor, pipeline and data parallelism.

    Empty for other layouts, whose ranks are only known once their processes have titles.
    """
    sizes = [as_int(settings.get(name), 1) for name in ("ep_size", "nnodes", "attn_cp_size", "moe_dp_size")]
    tp_size, pp_size = as_int(settings.get("tp_size"), 1), as_int(settings.get("pp_size"), 1)
    replicas, shared = _replicas(settings)
    if not settings or max(sizes) > 1 or shared or not 0 < tp_size * pp_size * replicas <= 1024:
        return []
    places = []
    for dp in range(replicas):
        for pp in range(pp_size):
            for tp in range(tp_size):
                numbers = {
                    name: number
                    for name, number, size in (("DP", dp, replicas), ("PP", pp, pp_size), ("TP", tp, tp_size))
                    if size > 1
                }
                tag = " ".join(f"{name}{number}" for name, number in numbers.items()) or "TP0"
                places.append(RankPlace(tag=tag, visible_index=_visible_index(numbers, settings)))
    return places
