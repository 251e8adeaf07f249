"""The command line of the simulated server, resolved into server args as in the played version."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.simhost.engine import flags, memory
from tuner.simhost.engine.models import KIMI, MODELS, Model

DATA = Path(__file__).parent / "data"
VERSIONS = ("0.5.9", "0.5.23")
GPUS = 8


@dataclass(frozen=True)
class Spec:
    """Everything that an engine process needs to know; sent as JSON by the host process."""

    version: str
    argv: list[str]
    """The command line as the simulated /proc shows it, with interpreter and module."""
    env: dict[str, str]
    cwd: str
    run_dir: str
    """Folder in which the process publishes its state for the simulated kernel."""
    seed: int = 0
    pace: float = 30.0
    """Simulated seconds per real second, during the start."""
    speed: float = 1.0
    """Simulated seconds per real second, in waits after the start."""
    up_s: float | None = None
    """Age of the server in seconds: the log then holds its past. None for a server that starts now."""
    older: list[dict[str, Any]] = field(default_factory=list)
    """Earlier runs to write logs of, as objects with log, spec, started_at, served_s."""
    traffic: str = "office"
    foreign: dict[int, int] = field(default_factory=dict)
    """Bytes of a foreign process on each GPU when this server starts."""
    foreign_pid: int = 0
    """PID of that foreign process."""
    capacity_bytes: int = 0
    faults: dict[str, float] = field(default_factory=dict)
    """Faults by name, each with a parameter.

    hang_capture: captures done before the hang; big_prefill and rank_killed: seconds after ready. Those that an
    environment asks for are in `faults`.
    """
    launched: bool = False
    """True for a server that someone on the host started; False for one of the scenario."""
    gpu_state: str = ""
    """File in which the simulated driver tells who holds memory; empty: `foreign` holds for good."""

    @classmethod
    def read(cls, text: str) -> Spec:
        """Decode a spec from JSON."""
        data: dict[str, Any] = json.loads(text)
        return cls.of(data)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Spec:
        """Return a spec from JSON data, whose keys are strings."""
        return cls(**{**data, "foreign": {int(gpu): size for gpu, size in data["foreign"].items()}})


@dataclass(frozen=True)
class Config:
    """Resolved server args, and those on which the simulation depends as properties."""

    version: str
    args: dict[str, Any]
    given: frozenset[str]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def new(self) -> bool:
        """Return whether the version is 0.5.23, not 0.5.9."""
        return self.version != "0.5.9"

    @property
    def tp(self) -> int:
        """Return the number of ranks."""
        return int(self.args["tp_size"])

    @property
    def context_length(self) -> int:
        """Return the most tokens of a request."""
        return int(self.args["context_length"] or self.model.context)

    @property
    def model(self) -> Model:
        """Return the LLM."""
        return MODELS.get(str(self.args["model_path"]), KIMI)

    @property
    def kv_bytes_per_value(self) -> int:
        """Return the bytes of one value in the KV pool."""
        return 1 if str(self.args["kv_cache_dtype"]).startswith(("fp8", "mxfp8")) else 2

    @property
    def kv_dtype(self) -> str:
        """Return the KV pool's type as torch names it."""
        wanted = str(self.args["kv_cache_dtype"])
        names = {"fp8_e5m2": "torch.float8_e5m2", "fp8_e4m3": "torch.float8_e4m3fn", "mxfp8": "torch.float8_e4m3fn"}
        return names.get(wanted, "torch.bfloat16")

    @property
    def cell_bytes(self) -> int:
        """Return the KV bytes of one token on each rank."""
        model = self.model
        size = model.cell_bytes // (self.tp if model.split else 1)
        return size * self.kv_bytes_per_value // 2

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of each rank's weights."""
        return self.model.weights_bytes // self.tp

    @property
    def gpus(self) -> list[int]:
        """Return the GPU of each rank; -1 where the rank has none."""
        visible = list(range(GPUS))
        words = self.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if all(word.strip().isdigit() for word in words):
            visible = [int(word) for word in words if int(word) < GPUS]
        indexes = [int(self.args["base_gpu_id"]) + rank * int(self.args["gpu_id_step"]) for rank in range(self.tp)]
        return [visible[index] if index < len(visible) else -1 for index in indexes]

    @property
    def chunk(self) -> int:
        """Return the most tokens of a prefill chunk."""
        size = int(self.args["chunked_prefill_size"])
        return size if size > 0 else int(self.args["max_prefill_tokens"])

    @property
    def fraction(self) -> float:
        """Return mem_fraction_static."""
        return float(self.args["mem_fraction_static"])

    @property
    def graph_max_bs(self) -> int:
        """Return the largest batch size that has a decode graph."""
        return max(self.graph_sizes, default=0)

    @property
    def graph_sizes(self) -> list[int]:
        """Return the batch sizes that have a decode graph, ascending; empty where graphs are off."""
        if self.args["disable_cuda_graph"] is True:
            return []
        if not self.new:
            return list(self.args["cuda_graph_bs"])
        decode = self.args["cuda_graph_config"]["decode"]
        return [] if decode["backend"] == "disabled" else list(decode["bs"])

    @property
    def prefill_graphs(self) -> bool:
        """Return whether prefill graphs are captured (0.5.14 and later)."""
        if not self.new or self.args["disable_cuda_graph"] is True:
            return False
        prefill = self.args["cuda_graph_config"]["prefill"]
        return prefill["backend"] != "disabled" and bool(prefill["bs"])

    @property
    def speculative(self) -> bool:
        """Return whether a draft model proposes tokens."""
        return self.args["speculative_algorithm"] is not None

    @property
    def custom_all_reduce(self) -> bool:
        """Return whether custom all-reduce is forced on PCIe: a locally patched build; no release has the variable."""
        return bool(self.args.get("_force_custom_ar"))

    def dump(self) -> str:
        """Return the value of the `server_args=` line."""
        public = {key: value for key, value in self.args.items() if not key.startswith("_")}
        if self.new:
            for key in ("api_key", "admin_api_key"):
                if public[key]:
                    public[key] = "[REDACTED]"
            return repr(public)
        return "ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in public.items()) + ")"

    def public(self) -> dict[str, Any]:
        """Return the args as /server_info reports them."""
        return {key: value for key, value in self.args.items() if not key.startswith("_")}


def resolve(spec: Spec) -> Config:
    """Resolve the command line as the engine does; what argparse refuses ends the process with status 2.

    Raises:
        SystemExit: After argparse's message on stderr.
    """
    args: dict[str, Any] = json.loads((DATA / f"args-{spec.version}.json").read_text())
    given = flags.given(spec.version, flags.words_of(spec.argv))
    graphs = given.pop("cuda_graph_config", None)
    args.update(given)
    if spec.version != "0.5.9":
        _graphs_of(args, given, graphs or {})
    _finish(args, set(given), spec)
    return Config(spec.version, args, frozenset(given), spec.env)


def _graphs_of(args: dict[str, Any], given: dict[str, Any], asked: dict[str, Any]) -> None:
    """Move graph flags into the one setting that holds them since 0.5.14. JSON beats flags, as there."""
    for phase, setting in args["cuda_graph_config"].items():
        for name in ("backend", "max_bs", "bs"):
            if f"cuda_graph_{name}_{phase}" in given:
                setting[name] = given[f"cuda_graph_{name}_{phase}"]
        setting.update(asked.get(phase) or {})
    if args["disable_prefill_cuda_graph"]:
        args["cuda_graph_config"]["prefill"]["backend"] = "disabled"
    if args["disable_decode_cuda_graph"]:
        args["cuda_graph_config"]["decode"]["backend"] = "disabled"


def _finish(args: dict[str, Any], given: set[str], spec: Spec) -> None:
    if "tokenizer_path" not in given:
        args["tokenizer_path"] = args["model_path"]
    if "served_model_name" not in given:
        args["served_model_name"] = args["model_path"]
    if spec.version == "0.5.9":
        args["cuda_graph_bs"] = (
            sorted(args["cuda_graph_bs"] or ())
            if "cuda_graph_bs" in given
            else (memory.graph_sizes(args["cuda_graph_max_bs"]))
        )
    else:
        graphs = args["cuda_graph_config"]
        graphs["decode"]["bs"] = sorted(graphs["decode"]["bs"]) or memory.graph_sizes(graphs["decode"]["max_bs"])
        most = min(args["chunked_prefill_size"], graphs["prefill"]["max_bs"])
        graphs["prefill"]["bs"] = sorted(graphs["prefill"]["bs"]) or memory.prefill_graph_sizes(most)
    args["random_seed"] = 20_260_226 + spec.seed
    args["_force_custom_ar"] = spec.env.get("SGLANG_FORCE_CUSTOM_AR_PCIE") == "1"
