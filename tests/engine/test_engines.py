"""Real servers, watched: recognised, followed from the first line, measured under load, and seen to end."""

from __future__ import annotations

import asyncio
import getpass
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.engine.servers import Server, Sglang, Vllm, members, titles
from tests.engine.watching import snapshot, watching
from tuner.domain.plan import ProbePlan
from tuner.domain.server import START_PHASES, Phase
from tuner.domain.state import RankState, ServerState

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ENGINES = {
    "sglang": (Sglang, ("--enable-metrics",), "0.5.23", "sglang::scheduler_TP{}"),
    "vllm": (Vllm, (), "0.32.0", "VLLM::Worker_TP{}"),
}


def serving(server: ServerState) -> bool:
    """Return whether requests run and tokens come."""
    return (server.metrics.tok_s or 0) > 0 and (server.metrics.running or 0) > 0


def rank(server: ServerState, tag: str) -> RankState:
    """Return a rank by its tag."""
    return next(rank for rank in server.ranks if rank.tag == tag)


async def load_until(server: Server, wait: object) -> ServerState:
    """Keep a few requests running until `wait`, an awaitable, is done; return its result."""
    context = server.load()
    received = await asyncio.to_thread(context.__enter__)
    try:
        state: ServerState = await wait  # type: ignore[misc]
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
    assert received
    return state


@pytest.mark.parametrize("name", ENGINES)
async def test_a_server_is_followed_from_its_start_to_its_end(name: str, engines: Path, tmp_path: Path) -> None:
    kind, options, version, title = ENGINES[name]
    async with watching() as watch:
        await watch.until(lambda state: state.scanned)
        with kind(engines / name, tmp_path / "server.log", *options) as server:
            # The server is seen while it starts.
            seen = await watch.server(server, lambda s: s.phase.starting, 60)
            assert seen.identity.engine == name
            assert seen.identity.user == getpass.getuser()
            assert seen.identity.log is not None
            assert seen.identity.log.path == str(server.log)
            assert list(seen.identity.argv)[-len(server.argv()[1:]) :] == server.argv()[1:]

            # Ready is told of this process, and not before it answers.
            ready = await watch.server(server, lambda s: s.phase is Phase.READY, 180)
            await asyncio.to_thread(server.wait_ready, 5)
            phases = [phase for phase in watch.phases[server.pid] if phase in START_PHASES]
            assert len(phases) >= 3, phases
            assert [START_PHASES.index(p) for p in phases] == sorted(START_PHASES.index(p) for p in phases)
            assert {Phase.WEIGHT_LOAD, Phase.KV_ALLOC} <= {record.phase for record in ready.phases}
            assert ready.started_in_s is not None
            assert 5 < ready.started_in_s < 200

            # Version, LLM and ranks.
            full = await watch.server(server, lambda s: s.version and s.model and len(s.ranks) == 2 and s.kv_tokens)
            assert (full.version or "").startswith(version)
            assert full.model == str(server.model)
            running = titles(server.pid)
            assert {rank.tag: rank.pid for rank in full.ranks} == {f"TP{i}": running[title.format(i)] for i in range(2)}
            assert all(rank.gpu is None for rank in full.ranks), "there is no GPU here, and none is guessed"

            # Under load: numbers from its metrics, the same through the installed command.
            loaded = await load_until(server, watch.server(server, serving))
            assert loaded.metrics.source == "metrics"
            reading = await asyncio.to_thread(snapshot, tmp_path / "tmp")
            (printed,) = [s for s in reading["servers"] if s["pid"] == server.pid]
            assert (printed["engine"], printed["phase"], printed["port"]) == (name, "ready", server.port)
            assert printed["version"].startswith(version)
            assert [rank["tag"] for rank in printed["ranks"]] == ["TP0", "TP1"]
            assert printed["kv_tokens"] == full.kv_tokens
            assert printed["log"]["path"] == str(server.log)

            # It ends as asked.
            server.send(signal.SIGTERM)
            ended = await watch.server(server, lambda s: s.phase.ended, 60)
            assert ended.phase is Phase.STOPPED, ended.phase_evidence
            assert ended.identity.argv == seen.identity.argv, "what died can still be described"
        if name == "sglang":
            # Each of these requests would have generated a token.
            assert "GET /health" not in server.log.read_text()


@pytest.mark.parametrize("name", ENGINES)
async def test_a_killed_rank_is_a_failure_and_log_lines_alone_tell_the_speed(
    name: str, engines: Path, tmp_path: Path
) -> None:
    kind, _, _, title = ENGINES[name]
    with kind(engines / name, tmp_path / "server.log") as server:
        await asyncio.to_thread(server.wait_ready)
        # A server that ran before us, without any HTTP requests.
        async with watching(plan=without_http()) as watch:
            adopted = await watch.server(server, lambda s: s.phase is Phase.READY)
            assert adopted.model == str(server.model)
            loaded = await load_until(server, watch.server(server, serving))
            assert loaded.metrics.source == "log"
            victim = titles(server.pid)[title.format(1)]
            server.send(signal.SIGKILL, victim)
            dead = await watch.server(server, lambda s: s.phase is Phase.FAILED and not rank(s, "TP1").alive, 120)
            assert rank(dead, "TP1").pid == victim


async def test_without_its_metrics_sglang_is_asked_for_its_load(engines: Path, tmp_path: Path) -> None:
    with Sglang(engines / "sglang", tmp_path / "server.log") as server:
        await asyncio.to_thread(server.wait_ready)
        async with watching() as watch:
            loaded = await load_until(server, watch.server(server, serving))
            assert loaded.metrics.source in ("loads", "log")
        assert "GET /health" not in server.log.read_text()
        assert members(server.pid), "a session that ends leaves the server alone"
        ours = psutil.Process().children(recursive=True)
        assert {child.pid for child in ours} <= set(members(server.pid)), "and takes the probe with it"


def without_http() -> ProbePlan:
    """Return the usual plan without HTTP endpoints."""
    from tuner.session.plans import plan_for

    plan = plan_for()
    bare = tuple(msgspec.structs.replace(engine, endpoints=()) for engine in plan.engines)
    return msgspec.structs.replace(plan, engines=bare)
