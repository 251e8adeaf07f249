"""The command line of the simulated server, resolved into server args as the played version resolves them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.simhost.engine import memory

DATA = Path(__file__).parent / "data"
VERSIONS = ("0.5.9", "0.5.23")
NATIVE_CONTEXT = 262_144
"""What the LLM's own configuration says."""

_ALIASES = {"tp": "tp_size", "tensor_parallel_size": "tp_size", "model": "model_path", "dp": "dp_size"}


@dataclass(frozen=True)
class Spec:
    """Everything an engine process is told. Travels as JSON from the host process."""

    version: str
    argv: list[str]
    """What the simulated host's /proc shows, interpreter and module included."""
    env: dict[str, str]
    cwd: str
    run_dir: str
    """Where the process publishes itself for the simulated kernel."""
    seed: int = 0
    pace: float = 30.0
    """Simulated seconds of the start per real second."""
    speed: float = 1.0
    """Simulated seconds of waits after the start per real second."""
    up_s: float | None = None
    """The server is this old already: the log holds its whole past at true pace."""
    older: list[dict[str, Any]] = field(default_factory=list)
    """Runs of the past to write logs of: log, spec, started_at, served_s."""
    traffic: str = "office"
    foreign: dict[int, int] = field(default_factory=dict)
    """Bytes of others by GPU when this server starts."""
    foreign_pid: int = 0
    """Whose they are."""
    capacity_bytes: int = 0
    faults: dict[str, float] = field(default_factory=dict)
    """What goes wrong, by name, with a parameter: hang_capture (captures done), big_prefill (seconds after ready),
    rank_killed (seconds after ready)."""

    @classmethod
    def read(cls, text: str) -> Spec:
        """Decode from JSON."""
        data: dict[str, Any] = json.loads(text)
        return cls.of(data)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Spec:
        """From JSON data, whose keys are texts."""
        return cls(**{**data, "foreign": {int(gpu): size for gpu, size in data["foreign"].items()}})


@dataclass(frozen=True)
class Config:
    """Resolved server args, and the few the simulation acts on by name."""

    version: str
    args: dict[str, Any]
    given: frozenset[str]

    @property
    def new(self) -> bool:
        """0.5.23 rather than 0.5.9."""
        return self.version != "0.5.9"

    @property
    def tp(self) -> int:
        """Number of ranks."""
        return int(self.args["tp_size"])

    @property
    def context_length(self) -> int:
        """Longest request."""
        return int(self.args["context_length"] or NATIVE_CONTEXT)

    @property
    def fraction(self) -> float:
        """mem_fraction_static."""
        return float(self.args["mem_fraction_static"])

    @property
    def graph_max_bs(self) -> int:
        """Largest batch with a decode graph."""
        if self.new:
            return int(self.args["cuda_graph_config"]["decode"]["max_bs"])
        return int(self.args["cuda_graph_max_bs"])

    @property
    def prefill_graphs(self) -> bool:
        """Prefill graphs are captured (0.5.14 and later)."""
        return self.new and self.args["cuda_graph_config"]["prefill"]["backend"] != "disabled"

    @property
    def speculative(self) -> bool:
        """A draft proposes tokens."""
        return self.args["speculative_algorithm"] is not None

    @property
    def custom_all_reduce(self) -> bool:
        """The locally patched build forces custom all-reduce on PCIe (no release knows the variable)."""
        return bool(self.args.get("_force_custom_ar"))

    def dump(self) -> str:
        """The `server_args=` line's value."""
        public = {key: value for key, value in self.args.items() if not key.startswith("_")}
        if self.new:
            for key in ("api_key", "admin_api_key"):
                if public[key]:
                    public[key] = "[REDACTED]"
            return repr(public)
        return "ServerArgs(" + ", ".join(f"{key}={value!r}" for key, value in public.items()) + ")"

    def public(self) -> dict[str, Any]:
        """The args as /server_info gives them."""
        return {key: value for key, value in self.args.items() if not key.startswith("_")}


def resolve(spec: Spec) -> Config:
    """Read argv as the engine would; unknown flags end with status 2, as argparse does.

    Raises:
        SystemExit: With the message argparse prints.
    """
    args: dict[str, Any] = json.loads((DATA / f"args-{spec.version}.json").read_text())
    given: set[str] = set()
    words = iter(spec.argv[spec.argv.index("-m") + 2 :] if "-m" in spec.argv else spec.argv[1:])
    pending = next(words, None)
    while pending is not None:
        name, _, inline = pending.removeprefix("--").partition("=")
        key = _ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
        key, target = _graph_alias(spec.version, key)
        if target not in args:
            raise SystemExit(f"launch_server.py: error: unrecognized arguments: {pending}")
        value = inline or None
        following = next(words, None)
        if value is None and following is not None and not following.startswith("--"):
            value, following = following, next(words, None)
        _set(args, key, _literal(value))
        given.add(key)
        pending = following
    _finish(args, given, spec)
    return Config(spec.version, args, frozenset(given))


def _graph_alias(version: str, key: str) -> tuple[str, str]:
    """0.5.14 renamed the graph flags; the settings themselves moved into one JSON setting."""
    if version != "0.5.9" and key in ("cuda_graph_max_bs_decode", "cuda_graph_backend_prefill"):
        return key, "cuda_graph_config"
    return key, key


def _set(args: dict[str, Any], key: str, value: object) -> None:
    args[key] = value
    if key == "cuda_graph_max_bs_decode":
        args["cuda_graph_config"]["decode"]["max_bs"] = value
    elif key == "cuda_graph_backend_prefill":
        args["cuda_graph_config"]["prefill"]["backend"] = value


def _literal(value: str | None) -> object:
    if value is None:
        return True
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _finish(args: dict[str, Any], given: set[str], spec: Spec) -> None:
    if "tokenizer_path" not in given:
        args["tokenizer_path"] = args["model_path"]
    if "served_model_name" not in given:
        args["served_model_name"] = args["model_path"]
    if spec.version == "0.5.9":
        args["cuda_graph_bs"] = memory.graph_sizes(args["cuda_graph_max_bs"])
    else:
        graphs = args["cuda_graph_config"]
        graphs["decode"]["bs"] = memory.graph_sizes(graphs["decode"]["max_bs"])
        graphs["prefill"]["bs"] = memory.prefill_graph_sizes(args["chunked_prefill_size"])
    args["random_seed"] = 20_260_226 + spec.seed
    args["_force_custom_ar"] = spec.env.get("SGLANG_FORCE_CUSTOM_AR_PCIE") == "1"
