"""Starts of the demo's engine, played in memory, and what the product says of them beforehand.

The engine (`tuner/simhost/engine`) computes its memory itself; it shares no code with the forecast. The forecast goes
the whole way of `gputuner apply`: the log of a start that worked is folded as a probe tells it, a preset is laid over
that server, and the engine is then started with the command line and the environment that the host would be ordered.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.unit.simhost.played import T0, log_of
from tuner.catalog import read_preset
from tuner.core.engine import Engine
from tuner.core.reduce import initial, reduce
from tuner.core.tuning import tune
from tuner.domain import events as e
from tuner.domain.gpu import GpuInfo
from tuner.domain.presets import Preset
from tuner.domain.recipe import Launch
from tuner.domain.runs import Operator
from tuner.domain.server import LogSource, Manager, ServerIdentity
from tuner.domain.state import HostState
from tuner.domain.tuning import Tuning, Wish
from tuner.engines import load_engines
from tuner.paths import presets_dir
from tuner.simhost import gpus, scenarios
from tuner.simhost.engine.config import GPUS, Spec, resolve
from tuner.simhost.engine.server import Server
from tuner.simhost.engine.start import StartFailed
from tuner.simhost.engine.traffic import Request

KEY, PID, TICKS = "700:4200", 700, 4200
LOG = LogSource(kind="file", path="/root/logs/base.log", device=1, inode=2)
ENGINES: Mapping[str, Engine] = load_engines()
OPERATOR = Operator(session="s", name="ada")
_SPARE_TOKENS = 256
"""Tokens of the pool that the longest prompt leaves free."""


class Played(NamedTuple):
    """How a start of the demo's engine went."""

    server: Server
    failed: str
    """Where it failed: `pool`, `pool-oom`, `capture`, ...; `serving` in the longest prompt; empty: nowhere."""
    free_bytes: int = 0
    """Least free bytes of any rank after the longest prompt."""

    @property
    def works(self) -> bool:
        """Whether it becomes ready, and serves the longest prompt that its pool and its context length hold."""
        return not self.failed


def presets() -> dict[str, Preset]:
    """Return the presets that come with the product, not yet composed."""
    return {path.stem: read_preset(path) for path in sorted(presets_dir().glob("*.toml"))}


def launches() -> dict[str, scenarios.Launch]:
    """Return every launch of every scenario of the demo, once for each command line and environment."""
    found: dict[tuple[float, tuple[tuple[str, str], ...]], scenarios.Launch] = {}
    for name in scenarios.SCENARIOS:
        plan = scenarios.plan(name)
        for launch in (*(old.launch for old in plan.older), *(step.launch for step in plan.steps)):
            assert not launch.words
            found.setdefault((launch.fraction, tuple(sorted(launch.env.items()))), launch)
    return {launch.name: launch for launch in found.values()}


def play(version: str, argv: Sequence[str], env: Mapping[str, str]) -> Played:
    """Start the demo's engine, and give it the longest prompt that it can serve."""
    spec = Spec(version=version, argv=list(argv), env=dict(env), cwd="/root", run_dir="/nowhere", pace=1.0,
                traffic="none", capacity_bytes=gpus.CAPACITY_BYTES)  # fmt: skip
    server = Server(spec, resolve(spec), -1, None)
    try:
        server.replay(T0, T0 + 900)
    except StartFailed as failed:
        return Played(server, failed.where)
    serving, box = server.serving, server.machine.box
    assert serving is not None
    died: list[int] = []
    serving.on_memory = lambda rank, lacking: died.append(rank)
    prompt = min(server.config.context_length, server.machine.tokens) - _SPARE_TOKENS
    if prompt > 0:
        serving.submit(Request("long", prompt, 0, 8, serving.now, path="/v1/chat/completions", port=51_234))
        until = serving.now
        while serving.active and not died:
            until += 60.0
            serving.advance(until)
    return Played(server, "serving" if died else "", box.least_free())


@functools.cache
def served(version: str, fraction: float) -> tuple[HostState, str]:
    """Return a host on which a server of the demo serves at this fraction, and the log of that start."""
    argv = scenarios.argv(
        "/v/bin/python", scenarios.Launch("base", fraction), version, 30_000, metrics=True, api_key=None
    )
    played = play(version, argv, {})
    assert played.works, "what is forecast from is a start that worked"
    log = log_of(played.server)
    identity = ServerIdentity(
        key=KEY, engine="sglang", pid=PID, start_ticks=TICKS, started_at=T0, uid=0, user="root", argv=tuple(argv),
        env={"HOME": "/root", "PATH": "/bin"}, cwd="/root", interpreter="/v/bin/python", version=version, port=30_000,
        manager=Manager(kind="shell", name="bash"), log=LOG,
    )  # fmt: skip
    size = len(log.encode())
    cards = tuple(
        GpuInfo(index=index, uuid=f"GPU-{index}", name="NVIDIA RTX PRO 6000", memory_total_bytes=gpus.TOTAL_BYTES)
        for index in range(GPUS)
    )
    state = initial("demo")
    for event in (
        e.GpuTable(gpus=cards),
        e.ServerSeen(server=identity),
        e.LogOpened(key=KEY, reason="start", path=LOG.path, device=LOG.device, inode=LOG.inode, size=size),
        e.LogBytes(key=KEY, offset=0, end=size, data=log),
        e.ScanEnded(),
    ):
        state, _ = reduce(state, event, ENGINES)
    return state, log


def proposed(state: HostState, version: str, preset: Preset, overrides: Mapping[str, Any]) -> Tuning:
    """Return what `gputuner apply` makes of a preset and overrides for the server of such a host."""
    known = {**presets(), preset.id: preset}
    wish = Wish(server=KEY, preset=preset.id, overrides=dict(overrides), ignore_forecast=True)
    return tune(state, wish, ENGINES, known, run="run-1", operator=OPERATOR)


def started(version: str, launch: Launch) -> Played:
    """Start the demo's engine as the host would be ordered."""
    return play(version, launch.argv, launch.env)
