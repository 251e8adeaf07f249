"""What a leader that crashed left behind is no server, though its log ends in full work."""

from __future__ import annotations

import pytest

from tests.golden.summary import LOGS
from tuner.core.reduce import initial, reduce
from tuner.core.snapshot import missing
from tuner.domain import events as e
from tuner.domain.gpu import GpuInfo
from tuner.domain.server import LogSource, Member, Phase, ServerIdentity
from tuner.domain.state import HostState
from tuner.engines import load_engines

ENGINES = load_engines()
KEY = "101:7"
SGLANG = ("sglang/0.5.16/h200-base.log", ("sglang::scheduler_TP0",))
VLLM = ("vllm/0.32.0/cpu-leader-sigkill.log", ("VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"))
EVIDENCE = "its leader has ended; ranks are left over"


def seen(titles: tuple[str, ...], log: str, dead: int = 0) -> e.ServerSeen:
    members = tuple(
        Member(pid=101 + i, ppid=1 if i == 0 else 101, start_ticks=7, title=title, state="SZ"[i >= len(titles) - dead])
        for i, title in enumerate(titles)
    )
    identity = ServerIdentity(
        key=KEY, engine=log.partition("/")[0], pid=101, start_ticks=7, port=30000, members=members, orphaned=True,
        log=LogSource(kind="file", path="/log"),
    )  # fmt: skip
    return e.ServerSeen(server=identity)


def fold(*events: e.AnyEvent, state: HostState | None = None) -> HostState:
    state = state or initial("box")
    for event in events:
        state, commands = reduce(state, event, ENGINES)
        assert not any("KeepStart" in type(command).__name__ for command in commands), "no start of its own"
    return state


def watched(log: str, titles: tuple[str, ...]) -> HostState:
    text = (LOGS / log).read_text("utf-8")
    size = len(text.encode())
    return fold(
        e.ProbeHello(seq=1, mono=1.0, protocol=1, python="3.11", pid=1, uid=0, hostname="h", at=1_790_000_000.0),
        seen(titles, log),
        e.ScanEnded(),
        e.GpuTable(gpus=(GpuInfo(index=0, uuid="GPU-0", name="H200"),)),
        e.GpuSamples(samples=()),
        e.GpuProcesses(processes=()),
        e.LogOpened(key=KEY, reason="start", path="/log", size=size),
        e.LogBytes(key=KEY, offset=0, end=size, data=text),
    )


@pytest.mark.parametrize(("log", "titles"), [SGLANG, VLLM])
def test_ranks_without_a_leader_are_left_over_whatever_the_log_says(log: str, titles: tuple[str, ...]) -> None:
    (server,) = watched(log, titles).servers
    assert (server.phase, server.phase_evidence) == (Phase.FAILED, EVIDENCE)
    assert server.left_pids == tuple(range(101, 101 + len(titles)))
    assert not server.gone
    assert [rank.alive for rank in server.ranks if rank.pid is not None] == [True] * max(1, len(titles) - 1)


@pytest.mark.parametrize(("log", "titles"), [SGLANG, VLLM])
def test_nothing_is_waited_for_of_what_is_left_over(log: str, titles: tuple[str, ...]) -> None:
    assert not missing(watched(log, titles))


def test_whoever_of_it_ends_is_left_over_no_more() -> None:
    log, titles = VLLM
    state = fold(seen(titles, log, dead=1), state=watched(log, titles))
    (server,) = state.servers
    assert (server.left_pids, server.errors, server.phase_evidence) == ((101, 102), (), EVIDENCE)
    (server,) = fold(e.ServerGone(key=KEY, left=(102,)), state=state).servers
    assert (server.left_pids, server.phase_evidence) == ((102,), EVIDENCE)
    (server,) = fold(e.ServerGone(key=KEY), state=state).servers
    assert (server.phase, server.left_pids, server.gone) == (Phase.FAILED, (), True)
    assert server.phase_evidence == "what its leader left over has ended too"
