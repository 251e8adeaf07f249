"""The product looks at the simulated host as at any other, and the two agree about what they each know alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tuner import simhost
from tuner.domain.link import Question, Target
from tuner.domain.server import Phase
from tuner.domain.state import HostState
from tuner.session.session import open_session
from tuner.simhost import SimHost
from tuner.simhost.engine.memory import GIB

VERSIONS = ("0.5.9", "0.5.23")


async def _nobody(question: Question) -> str | None:
    raise AssertionError(f"nothing is to be asked: {question}")


async def watch(host: SimHost, enough: Callable[[HostState], Any], seconds: float = 40.0) -> HostState:
    """The first state that is enough."""
    address = host.address
    target = Target(
        name="demo", host=address.host, port=address.port, user=address.user,
        options={"known_hosts": str(address.known_hosts), "identity": str(address.identity), "config": "none"},
    )  # fmt: skip
    session = open_session(target, ask=_nobody)
    async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
        tasks.create_task(session.run())
        try:
            async for state in session.snapshots():
                if enough(state):
                    return state
        finally:
            await session.aclose()
    raise AssertionError("the session ended")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_healthy_server(version: str) -> None:
    with simhost.start("healthy", version) as host:
        state = await watch(
            host,
            lambda s: s.servers and s.servers[0].metrics.tok_s and len(s.servers[0].ranks) == 8
            and s.servers[0].phase is Phase.READY and all(r.memory.total_bytes for r in s.servers[0].ranks),
        )  # fmt: skip
        fact = json.loads(next((host.address.dir / "run").glob("*.json")).read_text())
    server = state.servers[0]
    assert server.identity.pid == fact["pid"]
    assert server.version == version
    assert {rank.pid for rank in server.ranks} == {m["pid"] for m in fact["members"] if m["kind"] == "scheduler"}
    for number, rank in enumerate(server.ranks):
        assert (rank.tag, rank.gpu) == (f"TP{number}", number)
        memory = rank.memory
        assert memory.weights_bytes == pytest.approx(72.33 * GIB, abs=0.01 * GIB)
        assert memory.kv_bytes == pytest.approx(10.42 * GIB, abs=0.01 * GIB)
        terms = (memory.weights_bytes, memory.kv_bytes, memory.graphs_bytes, memory.context_bytes, memory.other_bytes)
        assert memory.total_bytes is not None
        assert sum(term or 0 for term in terms) == pytest.approx(memory.total_bytes, rel=0.02)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_start_that_fails(version: str) -> None:
    with simhost.start("low-fraction", version, speed=4.0) as host:
        state = await watch(host, lambda s: s.servers and s.servers[0].phase is Phase.FAILED)
    assert len(state.servers) == 1


@pytest.mark.parametrize("scenario", ["low-fraction", "oom-capture"])
async def test_gpus_are_read_on_when_their_server_has_ended(scenario: str) -> None:
    """The NVML binding was loaded through the server's own /proc entry, which is gone with it."""
    alarms = set()

    def over(state: HostState) -> bool:
        alarms.update(
            (p.code, p.subject, p.detail) for p in state.problems if p.code.startswith(("nvml", "gpu", "no-"))
        )
        freed = [s.memory_used_bytes is not None and s.memory_used_bytes < GIB for s in state.samples]
        return bool(state.servers) and state.servers[0].phase is Phase.FAILED and len(freed) == 8 and all(freed)

    with simhost.start(scenario, speed=4.0) as host:
        state = await watch(host, over)
    assert alarms == set()
    assert state.gpu_table is not None
    assert "pynvml" in (state.gpu_table.source or "")


async def test_someone_elses_memory() -> None:
    with simhost.start("foreign-tenant") as host:
        state = await watch(host, lambda s: s.servers and s.foreign and len(s.processes) == 9)
    foreign = state.foreign
    assert [process.gpu for process in foreign] == [2]
    assert foreign[0].memory_bytes is not None
    assert 2.3 * GIB < foreign[0].memory_bytes < 4 * GIB
    assert "train.py" in (foreign[0].command or "")


async def test_gpus_without_a_server() -> None:
    with simhost.start("healthy", no_server=True) as host:
        state = await watch(host, lambda s: s.scanned and len(s.samples) == 8 and s.gpu_table is not None)
        folder = str(host.address.dir)
    assert state.gpu_table is not None
    assert folder in (state.gpu_table.source or "")
    assert state.servers == ()
