"""The command line of the simulated server, resolved into server args as in the played version."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.simhost.engine import memory

DATA = Path(__file__).parent / "data"
VERSIONS = ("0.5.9", "0.5.23")
NATIVE_CONTEXT = 262_144
"""Context length in tokens, from the LLM's own configuration."""

_ALIASES = {"tp": "tp_size", "tensor_parallel_size": "tp_size", "model": "model_path", "dp": "dp_size"}


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
    """Age of the server in seconds: the log then holds its past at real pace. None for a server that starts now."""
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

    hang_capture: captures done before the hang; big_prefill and rank_killed: seconds after ready.
    """

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
        return int(self.args["context_length"] or NATIVE_CONTEXT)

    @property
    def fraction(self) -> float:
        """Return mem_fraction_static."""
        return float(self.args["mem_fraction_static"])

    @property
    def graph_max_bs(self) -> int:
        """Return the largest batch size that has a decode graph."""
        if self.new:
            return int(self.args["cuda_graph_config"]["decode"]["max_bs"])
        return int(self.args["cuda_graph_max_bs"])

    @property
    def prefill_graphs(self) -> bool:
        """Return whether prefill graphs are captured (0.5.14 and later)."""
        return self.new and self.args["cuda_graph_config"]["prefill"]["backend"] != "disabled"

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
    """Resolve the command line as the engine does; unknown flags end the process with status 2, as in argparse.

    Raises:
        SystemExit: With argparse's message.
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
    """Return flag and setting of a graph flag: 0.5.14 renamed flags and moved their settings into one JSON setting."""
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
