"""What is found on the simulated host while it happens: over SSH, by the probe, out of logs that grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tuner import simhost
from tuner.cli.demo import target_of
from tuner.domain.findings import Confidence, Finding, Severity
from tuner.domain.link import Question
from tuner.domain.server import Phase
from tuner.domain.state import HostState, ServerState
from tuner.session.session import Session, open_session
from tuner.session.tasks import spawn
from tuner.simhost import SimHost

VERSIONS = ("0.5.9", "0.5.23")


async def _nobody(question: Question) -> str | None:
    raise AssertionError(f"nothing is to be asked: {question}")


@asynccontextmanager
async def session_with(host: SimHost) -> AsyncIterator[Session]:
    session = open_session(target_of(host.address), ask=_nobody)
    work = spawn(session.run(), name="session")
    try:
        yield session
    finally:
        await session.aclose()
        await work


async def watch(session: Session, enough: Callable[[HostState], Any], seconds: float = 60.0) -> HostState:
    """The first state that is enough; none may be wrong on the way."""
    async with asyncio.timeout(seconds):
        async for state in session.snapshots():
            if enough(state):
                return state
    raise AssertionError("the session ended")


def failures(server: ServerState) -> list[Finding]:
    return [each for each in server.findings if each.severity in (Severity.FATAL, Severity.ERROR)]


async def found(
    scenario: str, version: str, cause: str, *, speed: float = 20, seconds: float = 60.0, sure: bool = False
) -> tuple[Finding, ServerState]:
    """The finding of a scenario, once it is there, and the server it is about."""

    def shown(server: ServerState) -> list[Finding]:
        return [each for each in server.findings if each.cause == cause and (each.confidence == "high" or not sure)]

    async with simhost.start(scenario, version, speed=speed) as host, session_with(host) as session:
        state = await watch(session, lambda state: any(shown(server) for server in state.servers), seconds)
        server = next(server for server in state.servers if shown(server))
        assert [each.cause for each in failures(server) if each.cause != cause] == []
        return shown(server)[0], server


def told(finding: Finding) -> dict[str, Any]:
    return {each.what: each.value for each in finding.evidence}


@pytest.mark.parametrize("version", VERSIONS)
async def test_low_fraction(version: str) -> None:
    finding, server = await found("low-fraction", version, "mem-fraction-too-low")
    assert (finding.phase, finding.ranks, finding.confidence) == ("kv-alloc", tuple(range(8)), Confidence.HIGH)
    raised = next(each for each in finding.remedies if each.knob == "mem_fraction_static")
    assert raised.min == pytest.approx(0.769, abs=0.002)
    assert server.start is not None
    assert len(server.start.ranks) == 8
    assert finding.at is not None
    shown = next(line.text for block in server.log.blocks for line in block.lines if line.offset == finding.at)
    assert "memory" in shown.lower()


@pytest.mark.parametrize("version", VERSIONS)
async def test_oom_capture(version: str) -> None:
    finding, _ = await found("oom-capture", version, "mem-fraction-too-high-graph-capture")
    assert finding.phase == "graph-capture"
    assert any(each.knob == "mem_fraction_static" and each.move == "lower" for each in finding.remedies)


async def test_oom_prefill() -> None:
    finding, _ = await found("oom-prefill", "0.5.23", "mem-fraction-too-high-activation", speed=50)
    assert (finding.phase, finding.ranks) == ("prefill", (0,))


@pytest.mark.parametrize("version", VERSIONS)
async def test_foreign_tenant(version: str) -> None:
    finding, server = await found("foreign-tenant", version, "foreign-process-on-gpu")
    assert (finding.severity, finding.ranks, finding.confidence) == (Severity.INFO, (2,), Confidence.HIGH)
    assert "of alice" in finding.explanation
    assert "train.py" in finding.explanation
    assert server.phase is Phase.READY
    held = next(value for what, value in told(finding).items() if what.startswith("pid "))
    assert 2.3 < held < 5.6


async def test_rank_killed() -> None:
    """Its peers wait for a minute before they go, so that the process table shows who went first."""
    finding, _ = await found("rank-killed", "0.5.23", "rank-died", speed=3, sure=True)
    assert finding.ranks == (3,)
    assert "TP3 (pid" in finding.explanation


async def test_rank_killed_and_all_others_gone_before_anybody_looks() -> None:
    finding, _ = await found("rank-killed", "0.5.9", "rank-died")
    assert finding.ranks == (3,)


@pytest.mark.timeout(150)  # it takes three quarters of a minute until silence is too long
async def test_hang_capture() -> None:
    finding, server = await found("hang-capture", "0.5.23", "graph-capture-hang", speed=10, seconds=120)
    assert (finding.phase, finding.ranks, finding.severity) == ("graph-capture", (2, 5), Severity.ERROR)
    assert told(finding)["progress"] == "11 of 20"
    assert server.phase is Phase.GRAPH_CAPTURE
    assert "py-spy" in {each.knob for each in finding.remedies}


@pytest.mark.parametrize("version", VERSIONS)
async def test_healthy(version: str) -> None:
    """Looked at until the numbers of half a minute were judged."""
    async with simhost.start("healthy", version, speed=20) as host, session_with(host) as session:

        def enough(state: HostState) -> bool:
            (server,) = state.servers or (None,)
            if server is None:
                return False
            assert failures(server) == []
            assert all(each.severity is Severity.INFO for each in server.findings)
            return len(server.series.get("tok_s", ())) > 12 and server.explain.at is not None

        await watch(session, enough)


@pytest.mark.timeout(150)
async def test_start() -> None:
    """A start that becomes ready is never called a failure on its way."""
    async with simhost.start("start", "0.5.9", speed=10) as host, session_with(host) as session:

        def enough(state: HostState) -> bool:
            (server,) = state.servers or (None,)
            if server is None:
                return False
            assert failures(server) == []
            return server.phase is Phase.READY and server.explain.at is not None and bool(server.explain.lines)

        await watch(session, enough, 100)


@pytest.mark.timeout(150)
async def test_the_story_is_told_start_by_start() -> None:
    """0.55 and 0.50 fail of the fraction, whatever else was changed; 0.88 serves.

    The story goes round and round: a start that lives for half a second may be over before anybody looked.
    """
    async with simhost.start("story", "0.5.9", speed=20) as host, session_with(host) as session:

        def enough(state: HostState) -> bool:
            ready = [server for server in state.servers if server.phase is Phase.READY]
            ended = [server for server in whole(state) if server.phase is Phase.FAILED]
            told = {fraction(server) for server in ended if failures(server)}
            return bool(ready) and told == {"0.55", "0.50"} and all(failures(server) for server in ended)

        state = await watch(session, enough, 120)
    for server in whole(state):
        causes = [each.cause for each in failures(server)]
        assert causes == (["mem-fraction-too-low"] if fraction(server) != "0.88" else [])
        if causes:
            (remedy,) = (each for each in failures(server)[0].remedies if each.knob == "mem_fraction_static")
            least = told(failures(server)[0])["minimum fraction"]
            assert 0.7675 <= least <= 0.7695
            assert remedy.min is not None
            assert 0 < remedy.min - least < 0.002
            # Once the earlier start is known, what is safe holds one request of full length: 8.58 of 94 GiB.
            assert remedy.serves is None or 0 < remedy.serves - least - 8.58 / 94.04 < 0.002


def whole(state: HostState) -> list[ServerState]:
    """Those that were seen with their leader, and not only what it left over."""
    return [server for server in state.servers if not server.identity.orphaned]


def fraction(server: ServerState) -> str:
    """What it was started with."""
    argv = server.identity.argv
    return argv[argv.index("--mem-fraction-static") + 1]
