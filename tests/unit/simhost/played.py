"""A simulated server played in memory: no process, no clock, hours in milliseconds."""

from __future__ import annotations

from typing import Any

from tuner.simhost import gpus, scenarios
from tuner.simhost.engine.config import Spec, resolve
from tuner.simhost.engine.server import Server

T0 = 1_772_100_000.0


def spec(version: str = "0.5.9", fraction: float = 0.88, *flags: str, **options: Any) -> Spec:
    """What a server is told, with the flags of the base run."""
    launch = scenarios.Launch("x", fraction, options.pop("env", {}))
    words = scenarios.argv("/v/bin/python", launch, version, 30_000, metrics=True, api_key=None, extra=flags)
    defaults: dict[str, Any] = {
        "env": launch.env, "cwd": "/root", "run_dir": "/nowhere", "pace": 1.0, "capacity_bytes": gpus.CAPACITY_BYTES,
    }  # fmt: skip
    return Spec(version=version, argv=words, **{**defaults, **options})


def server(version: str = "0.5.9", fraction: float = 0.88, *flags: str, **options: Any) -> Server:
    """A server that has not started."""
    told = spec(version, fraction, *flags, **options)
    return Server(told, resolve(told), -1, None)


def log_of(played: Server) -> str:
    """What it said."""
    return "".join(played.pending or ())
