"""Real servers that fail: what a session that watches them finds, and that it finds nothing else."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from tests.engine.servers import Sglang, Vllm, titles
from tests.engine.watching import watching
from tuner.domain.findings import Confidence, Finding, Severity
from tuner.domain.server import Phase
from tuner.domain.state import ServerState

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

ENGINES = {"sglang": (Sglang, "sglang::scheduler_TP{}"), "vllm": (Vllm, "VLLM::Worker_TP{}")}


def failure(server: ServerState) -> Finding | None:
    """What it failed of."""
    return next((each for each in server.findings if each.severity is Severity.FATAL), None)


def line_of(server: ServerState, finding: Finding) -> str:
    """The line under which a finding is shown."""
    lines = (line for block in server.log.blocks for line in block.lines)
    return next(line.text for line in lines if line.offset == finding.at)


@pytest.mark.parametrize("name", ENGINES)
async def test_a_rank_that_is_killed_is_named(name: str, engines: Path, tmp_path: Path) -> None:
    kind, title = ENGINES[name]
    with kind(engines / name, tmp_path / "server.log") as server:
        await asyncio.to_thread(server.wait_ready, 240)
        async with watching() as watch:
            healthy = await watch.server(server, lambda s: s.phase is Phase.READY and s.explain.at is not None)
            assert failure(healthy) is None
            victim = titles(server.pid)[title.format(1)]
            server.send(signal.SIGKILL, victim)
            dead = await watch.server(server, lambda s: failure(s) is not None and s.phase.ended, 120)
            found = failure(dead)
            assert found is not None
            assert (found.cause, found.ranks) == ("rank-died", (1,))
            assert found.confidence in (Confidence.HIGH, Confidence.MEDIUM)


@pytest.mark.parametrize("name", ENGINES)
async def test_a_leader_that_is_killed_leaves_no_word_and_is_told_so(name: str, engines: Path, tmp_path: Path) -> None:
    kind, _ = ENGINES[name]
    with kind(engines / name, tmp_path / "server.log") as server:
        await asyncio.to_thread(server.wait_ready, 240)
        async with watching() as watch:
            await watch.server(server, lambda s: s.phase is Phase.READY)
            server.send(signal.SIGKILL)
            dead = await watch.server(server, lambda s: failure(s) is not None, 120)
            found = failure(dead)
            assert found is not None
            assert found.cause == "rank-died"


@pytest.mark.parametrize("name", ENGINES)
async def test_a_port_that_is_taken(name: str, engines: Path, tmp_path: Path) -> None:
    kind, _ = ENGINES[name]
    server = kind(engines / name, tmp_path / "server.log")
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.port))
        other.listen()
        async with watching() as watch:
            await watch.until(lambda state: state.scanned)
            with server:
                failed = await watch.server(server, lambda s: failure(s) is not None, 240)
                found = failure(failed)
                assert found is not None
                assert found.cause == "port-in-use"
                assert any(str(each.value) == str(server.port) for each in found.evidence)
                assert "in use" in line_of(failed, found)


@pytest.mark.parametrize("name", ENGINES)
async def test_a_flag_that_its_engine_does_not_have(name: str, engines: Path, tmp_path: Path) -> None:
    kind, _ = ENGINES[name]
    async with watching() as watch:
        await watch.until(lambda state: state.scanned)
        with kind(engines / name, tmp_path / "server.log", "--no-such-flag", "7") as server:
            failed = await watch.server(server, lambda s: failure(s) is not None, 120)
            found = failure(failed)
            assert found is not None
            assert (found.cause, found.phase) == ("bad-argument", "args")
            assert any("no-such-flag" in str(each.value) for each in found.evidence)
