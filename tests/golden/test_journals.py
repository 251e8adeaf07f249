"""Journals of real servers on real GPUs, folded as the dashboard folds them.

Two and four H200 (NVLink), SGLang 0.5.16, a Llama of 68e9 parameters with dummy weights at --tp 2 and --tp 4. What the
driver's own tool printed at the same time stands here as figures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.core.reduce import initial, reduce
from tuner.domain.events import HttpAnswer
from tuner.domain.server import Phase
from tuner.domain.state import HostState
from tuner.engines import load_engines
from tuner.store.journal import read_events
from tuner.units import GIB, MIB

JOURNALS = Path(__file__).parent / "journals"
START = JOURNALS / "sglang-0.5.16-2xH200-start-load-stop.ndjson"
FOUR = JOURNALS / "sglang-0.5.16-4xH200-start-load-stop-kv-oom.ndjson"
KILLED = JOURNALS / "sglang-0.5.16-2xH200-tenant-rank-killed.ndjson"


def states(path: Path) -> Iterator[tuple[float, HostState]]:
    engines = load_engines()
    state = initial("h200")
    for at, event in read_events(path):
        state, _ = reduce(state, event, engines)
        yield at, state


@pytest.fixture(scope="module")
def start() -> list[tuple[float, HostState]]:
    return list(states(START))


@pytest.fixture(scope="module")
def four() -> list[tuple[float, HostState]]:
    return list(states(FOUR))


@pytest.fixture(scope="module")
def killed() -> list[tuple[float, HostState]]:
    return list(states(KILLED))


def serving(history: list[tuple[float, HostState]]) -> HostState:
    """The last state in which the server was ready and the driver told its processes."""
    return next(
        state
        for _, state in reversed(history)
        if state.servers and state.servers[0].phase is Phase.READY and state.servers[0].ranks[0].memory.total_bytes
    )


def test_each_ranks_memory_adds_up_to_what_the_driver_says(start: list[tuple[float, HostState]]) -> None:
    """`nvidia-smi --query-compute-apps` said 126,408 MiB for each rank while it served, after the first load."""
    server = serving(start).servers[0]
    assert [(r.tag, r.gpu) for r in server.ranks] == [("TP0", 0), ("TP1", 1)]
    for rank in server.ranks:
        m = rank.memory
        terms = (m.weights_bytes, m.kv_bytes, m.graphs_bytes, m.context_bytes, m.other_bytes)
        assert all(term is not None for term in terms)
        assert sum(term or 0 for term in terms) == pytest.approx(126_408 * MIB, rel=0.02)
        assert m.total_bytes == pytest.approx(126_408 * MIB, rel=0.001)
        assert (m.weights_bytes or 0) / GIB == pytest.approx(64.26, abs=0.01)
        assert (m.kv_bytes or 0) / GIB == pytest.approx(53.21, abs=0.02)
        assert (m.graphs_bytes or 0) / GIB == pytest.approx(2.98, abs=0.01)


def test_the_start_is_followed_to_the_end(start: list[tuple[float, HostState]]) -> None:
    seen: list[Phase] = []
    for _, state in start:
        if state.servers and (not seen or seen[-1] is not state.servers[0].phase):
            seen.append(state.servers[0].phase)
    assert seen == [
        Phase.UNKNOWN,
        Phase.ARGS,
        Phase.DIST_INIT,
        Phase.WEIGHT_LOAD,
        Phase.KV_ALLOC,
        Phase.GRAPH_CAPTURE,
        Phase.WARMUP,
        Phase.READY,
        Phase.STOPPING,
        Phase.STOPPED,
    ]
    last = start[-1][1].servers[0]
    assert last.version == "0.5.16"
    assert last.kv_tokens == 348_715
    assert last.gone
    assert last.started_in_s == pytest.approx(204, abs=3)
    assert not last.errors


def test_the_load_is_seen_in_the_metrics(start: list[tuple[float, HostState]]) -> None:
    """The client measured 193, 752 and 1,434 tok/s at 4, 16 and 32 streams over about ten seconds each."""
    points = start[-1][1].servers[0].series["tok_s"]
    assert max(point.value for point in points) == pytest.approx(1434, rel=0.15)
    running = start[-1][1].servers[0].series["running"]
    assert {4, 16, 32} <= {round(point.value) for point in running}


def test_what_the_gpus_are(start: list[tuple[float, HostState]]) -> None:
    table = start[-1][1].gpu_table
    assert table is not None
    assert table.topology == (("X", "NV18"), ("NV18", "X"))
    assert [gpu.memory_total_bytes for gpu in table.gpus] == [143_771 * MIB] * 2
    assert not [state for _, state in start if state.problems]


def test_a_tenant_and_a_rank_that_was_killed(killed: list[tuple[float, HostState]]) -> None:
    """Another process held 3,682 MiB of GPU 1; then TP1 was killed with SIGKILL while eight requests ran."""
    tenants = {(p.gpu, p.memory_bytes) for _, state in killed for p in state.foreign}
    assert (1, 3682 * MIB) in tenants
    last = killed[-1][1].servers[0]
    assert last.phase is Phase.FAILED
    assert last.errors[0].ranks == ("TP1",)
    assert "died without an error of its own" in last.errors[0].text
    assert any("Connection closed by peer" in error.text for error in last.errors)
    assert last.identity.env is not None
    assert last.identity.env["NCCL_MAX_NCHANNELS"] == "2"


def test_four_ranks_add_up_to_what_the_driver_says(four: list[tuple[float, HostState]]) -> None:
    """`nvidia-smi --query-compute-apps` said this of the four ranks, before the load."""
    told = {0: 126_122 * MIB, 1: 126_218 * MIB, 2: 126_218 * MIB, 3: 125_738 * MIB}
    server = serving(four).servers[0]
    assert [(r.tag, r.gpu, r.pid) for r in server.ranks] == [
        ("TP0", 0, 1260), ("TP1", 1, 1261), ("TP2", 2, 1262), ("TP3", 3, 1263),
    ]  # fmt: skip
    for rank in server.ranks:
        m = rank.memory
        terms = (m.weights_bytes, m.kv_bytes, m.graphs_bytes, m.context_bytes, m.other_bytes)
        assert all(term is not None for term in terms)
        assert sum(term or 0 for term in terms) == pytest.approx(told[rank.gpu or 0], rel=0.02)
        assert m.total_bytes == pytest.approx(told[rank.gpu or 0], rel=0.001)


def test_an_idle_server_is_asked_seldom_and_a_load_is_seen_at_once(four: list[tuple[float, HostState]]) -> None:
    """The client measured 2,296 tok/s at 32 streams for eleven seconds."""
    answers = [at for at, event in read_events(FOUR) if isinstance(event, HttpAnswer) and event.endpoint == "metrics"]
    pauses = [later - at for at, later in itertools.pairwise(answers)]
    assert max(pauses) == pytest.approx(10, abs=1)
    assert sum(pause < 2.5 for pause in pauses) > 12
    server = next(s for s in four[-1][1].servers if s.identity.pid == 1029)
    assert max(point.value for point in server.series["tok_s"]) == pytest.approx(2296, rel=0.15)


def test_a_start_that_ran_out_of_memory_follows_one_that_served(four: list[tuple[float, HostState]]) -> None:
    """--mem-fraction-static 0.995: two ranks had no room for the KV pool, a third none for cuBLAS."""
    failed, stopped = four[-1][1].servers
    assert (failed.phase, stopped.phase) == (Phase.FAILED, Phase.STOPPED)
    assert failed.gone
    assert "--mem-fraction-static 0.995" in " ".join(failed.identity.argv)
    told = {error.text.partition(". Tried")[0]: error.ranks for error in failed.errors}
    assert told["CUDA out of memory"] == ("TP1", "TP2")
    assert not failed.left_pids
    for rank in failed.ranks:
        assert rank.memory.total_bytes is None
        assert (rank.last_memory.weights_bytes or 0) / GIB == pytest.approx(32.14, abs=0.01), (
            "kept for whoever asks why"
        )
