"""The scenarios of the simulated host, by name: servers that run, start, fail and are replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

START_PACE = 30.0
"""Simulated seconds of a start per real second: at speed 1 a start of ten minutes takes twenty seconds."""
GIB = 1 << 30

SCENARIOS = {
    "healthy": "a server that has been up for two hours, with users",
    "start": "a start that becomes ready, and serves",
    "low-fraction": "a start with --mem-fraction-static 0.55 that fails when the KV pool is sized",
    "oom-capture": "a start with 0.97 that runs out of memory while CUDA graphs are captured",
    "oom-prefill": "a server at 0.94 that dies in a long prompt",
    "foreign-tenant": "someone else's training holds memory of one GPU, and more and more of it",
    "rank-killed": "a rank is killed while the server serves",
    "hang-capture": "a start that stops in graph capture without a word",
    "story": "the case gputuner was born from: 0.88 works, 0.55 and 0.50 do not, 0.88 works again",
}


@dataclass(frozen=True)
class Launch:
    """One start of a server."""

    name: str
    """Name of its log, without extension."""
    fraction: float = 0.88
    env: dict[str, str] = field(default_factory=dict)
    up_s: float | None = None
    """Age in seconds of a server that runs already; None for one that starts now."""
    traffic: str = "office"
    faults: dict[str, float] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """Its command line behind the interpreter; empty: that of the scenario's server."""


@dataclass(frozen=True)
class OldRun:
    """An earlier run, of which only the log is left."""

    launch: Launch
    ago_s: float
    served_s: float


@dataclass(frozen=True)
class Step:
    """One launch of a scenario."""

    launch: Launch
    serve_s: float | None = None
    """Seconds of serving after which it is stopped; None: it ends by itself."""
    pause_s: float = 0.0
    """Seconds between its end and the next launch."""


@dataclass(frozen=True)
class Tenant:
    """A foreign process on a GPU."""

    gpu: int = 2
    used_bytes: int = int(2.4 * GIB)
    growth_bytes_s: int = 6 << 20
    most_bytes: int = int(5.5 * GIB)


@dataclass(frozen=True)
class Plan:
    """The launches, earlier runs and foreign process of a scenario."""

    steps: tuple[Step, ...] = ()
    repeat: bool = False
    older: tuple[OldRun, ...] = ()
    tenant: Tenant | None = None


_BASE = Launch("base-88")
_DAY = 86_400.0
_OLDER = (
    OldRun(replace(_BASE, name="base-88-3"), 3.2 * _DAY, 1_150.0),
    OldRun(replace(_BASE, name="base-88-2"), 1.9 * _DAY, 900.0),
    OldRun(replace(_BASE, name="base-88-1"), 0.8 * _DAY, 1_020.0),
)
_FEW_CHANNELS = {"NCCL_MAX_NCHANNELS": "2", "NCCL_MIN_NCHANNELS": "2", "NCCL_BUFFSIZE": "131072"}
_CUSTOM_AR = {"SGLANG_FORCE_CUSTOM_AR_PCIE": "1", "SGLANG_CUSTOM_ALLREDUCE_ALGO": "1stage"}


def plan(name: str) -> Plan:
    """Return the plan of a scenario.

    Raises:
        KeyError: There is no scenario of that name.
    """
    solo = replace(_BASE, traffic="solo")
    plans = {
        "healthy": Plan((Step(replace(_BASE, up_s=7_463.0)),), older=_OLDER),
        "start": Plan((Step(_BASE),), older=_OLDER),
        "low-fraction": Plan((Step(Launch("frac-055", 0.55)),), older=_OLDER),
        "oom-capture": Plan((Step(Launch("frac-097", 0.97)),), older=_OLDER),
        "oom-prefill": Plan((Step(Launch("frac-094", 0.94, up_s=923.0, faults={"big_prefill": 20.0})),), older=_OLDER),
        "foreign-tenant": Plan((Step(replace(_BASE, up_s=3_623.0)),), older=_OLDER, tenant=Tenant()),
        "rank-killed": Plan((Step(replace(_BASE, up_s=2_123.0, faults={"rank_killed": 20.0})),), older=_OLDER),
        "hang-capture": Plan((Step(Launch("base-88", faults={"hang_capture": 11.0})),), older=_OLDER),
        "story": Plan(
            (
                Step(Launch("frac-055-nccl-2ch", 0.55, _FEW_CHANNELS, traffic="solo"), pause_s=12.0),
                Step(Launch("frac-055-custom-ar", 0.55, _CUSTOM_AR, traffic="solo"), pause_s=12.0),
                Step(Launch("frac-050", 0.50, traffic="solo"), pause_s=12.0),
                Step(solo, serve_s=90.0, pause_s=12.0),
            ),
            repeat=True,
            older=(OldRun(replace(solo, name="base-88-good"), 1.1 * _DAY, 1_200.0),),
        ),
    }
    return plans[name]


def argv(python: str, launch: Launch, version: str, port: int, *, metrics: bool, api_key: str | None,
         extra: tuple[str, ...] = ()) -> list[str]:  # fmt: skip
    """Return the command line of a launch, with the flags of the version."""
    graphs = "--cuda-graph-max-bs" if version == "0.5.9" else "--cuda-graph-max-bs-decode"
    words = [
        python, "-m", "sglang.launch_server", "--model-path", "/models/kimi-k2.5-int4", "--tp", "8",
        "--mem-fraction-static", f"{launch.fraction:.2f}", graphs, "128", "--context-length", "131072",
        "--trust-remote-code", "--served-model-name", "kimi-k2.5-int4", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    if metrics:
        words.append("--enable-metrics")
    if api_key:
        words += ["--api-key", api_key]
    return [*words, *extra]
