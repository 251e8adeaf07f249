"""Real servers that fail: what a session that watches them finds, and that it finds nothing else."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from tests.engine.servers import Server, Sglang, Vllm, titles
from tests.engine.watching import Watch, watching
from tuner.domain.findings import Confidence, Finding, Severity
from tuner.domain.server import Phase
from tuner.domain.state import ServerState

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

ENGINES = {"sglang": (Sglang, "sglang::scheduler_TP{}"), "vllm": (Vllm, "VLLM::Worker_TP{}")}


def failure(server: ServerState) -> Finding | None:
    """Return the fatal finding; None without one."""
    return next((each for each in server.findings if each.severity is Severity.FATAL), None)


def causes(server: ServerState) -> tuple[str, ...]:
    """Return the causes of all findings."""
    return tuple(each.cause for each in server.findings)


def line_of(server: ServerState, finding: Finding) -> str:
    """Return the line under which a finding is shown."""
    lines = (line for block in server.log.blocks for line in block.lines)
    return next(line.text for line in lines if line.offset == finding.at)


@pytest.mark.parametrize("name", ENGINES)
async def test_troubled_then_stopped_then_killed(name: str, engines: Path, tmp_path: Path) -> None:
    """One server for three tests, because a start takes half a minute."""
    kind, title = ENGINES[name]
    options = ("--enable-metrics",) if name == "sglang" else ()
    with kind(engines / name, tmp_path / "server.log", *options) as server:
        await asyncio.to_thread(server.wait_ready, 240)
        victim = titles(server.pid)[title.format(1)]
        async with watching() as watch:
            healthy = await watch.server(server, lambda s: s.phase is Phase.READY and s.explain.at is not None)
            assert failure(healthy) is None
            await refused_requests_and_clients_that_leave_are_no_failure(watch, server)
            await a_rank_that_is_stopped_under_load_is_a_hang_until_it_goes_on(watch, server, victim)
            await a_rank_that_is_killed_is_named(watch, server, victim)


async def refused_requests_and_clients_that_leave_are_no_failure(watch: Watch, server: Server) -> None:
    for _ in range(3):
        await asyncio.to_thread(server.trouble)
    assert "400" in server.tail()
    later = watch.session.state.mono + 12.0
    await watch.until(lambda state: state.mono >= later)
    served = await watch.server(server, lambda s: s.phase is Phase.READY)
    assert [each.cause for each in served.findings if each.severity in (Severity.FATAL, Severity.ERROR)] == []


async def a_rank_that_is_stopped_under_load_is_a_hang_until_it_goes_on(
    watch: Watch, server: Server, victim: int
) -> None:
    load = server.load(tokens=2000 if isinstance(server, Sglang) else 400)
    await asyncio.to_thread(load.__enter__)
    try:
        await watch.server(server, lambda s: (s.metrics.running or 0) > 0 and (s.metrics.tok_s or 0) > 0, 120)
        server.send(signal.SIGSTOP, victim)
        hung = await watch.server(server, lambda s: "watchdog-hang" in causes(s), 60)
        (found,) = [each for each in hung.findings if each.cause == "watchdog-hang"]
        assert (found.ranks, found.confidence) == ((1,), Confidence.HIGH)
        assert found.remedies[0].value == f"kill -CONT {victim}"
        server.send(signal.SIGCONT, victim)
        await watch.server(server, lambda s: "watchdog-hang" not in causes(s), 60)
    finally:
        server.send(signal.SIGCONT, victim)
        await asyncio.to_thread(load.__exit__, None, None, None)


async def a_rank_that_is_killed_is_named(watch: Watch, server: Server, victim: int) -> None:
    server.send(signal.SIGKILL, victim)
    dead = await watch.server(server, lambda s: failure(s) is not None and s.phase.ended, 120)
    found = failure(dead)
    assert found is not None
    assert (found.cause, found.ranks) == ("rank-died", (1,))
    assert found.confidence in (Confidence.HIGH, Confidence.MEDIUM)


@pytest.mark.parametrize("name", ENGINES)
async def test_a_leader_that_is_killed_leaves_no_word_and_is_one_server_with_what_it_left_over(
    name: str, engines: Path, tmp_path: Path
) -> None:
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
            if name == "vllm":  # its processes live on, and are recognised as left over
                left = await watch.server(server, lambda s: s.left_key is not None)
                assert len(left.left_pids) >= 3
                assert [each.identity.pid for each in watch.session.state.servers] == [server.pid]
                advice = failure(left)
                assert advice is not None
                assert advice.remedies[0].value == f"kill {' '.join(str(pid) for pid in left.left_pids)}"
                server.send(signal.SIGKILL, titles(server.pid)["VLLM::EngineCore"])
                await watch.server(server, lambda s: not s.left_pids, 60)


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
