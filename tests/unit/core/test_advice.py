"""Advice from numbers, and what tells a server that stands still from one that is slow."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from tuner.core import hang
from tuner.core.advice import advise
from tuner.core.explaining import advised
from tuner.core.reduce import initial
from tuner.domain.events import GpuTable
from tuner.domain.findings import Confidence, Finding, Severity
from tuner.domain.gpu import GpuInfo, GpuSample
from tuner.domain.history import UsualTimes
from tuner.domain.server import LogSource, Member, Phase, SeriesPoint, ServerIdentity
from tuner.domain.starts import Figure, Start
from tuner.domain.state import (
    ExplainState,
    ForeignProcess,
    HostState,
    LogState,
    PhaseRecord,
    RankState,
    ServerMetrics,
    ServerState,
)
from tuner.engines import load_engines

ENGINES = load_engines()
NOW, MONO = 1_772_000_000.0, 10_000.0
RANKS = 4


def series(*values: float, every: float = 1.0, end: float = MONO) -> tuple[SeriesPoint, ...]:
    return tuple(SeriesPoint(end - every * (len(values) - 1 - i), value) for i, value in enumerate(values))


def steady(value: float, seconds: int = 90) -> tuple[SeriesPoint, ...]:
    return series(*[value] * seconds)


def host(*loads: float, used: int = 60 << 30, **changes: Any) -> HostState:
    """A host whose GPUs have done the same for a minute and a half."""
    state = initial("box")
    samples = tuple(GpuSample(index=i, memory_used_bytes=used, utilization_ratio=load) for i, load in enumerate(loads))
    gpus = tuple(GpuInfo(index=i, uuid=f"GPU-{i}", name="H200", memory_total_bytes=80 << 30) for i in range(RANKS))
    return msgspec.structs.replace(
        state, mono=MONO, now=NOW, samples=samples, gpu_table=GpuTable(source="pynvml", gpus=gpus),
        gpu_series={i: steady(load) for i, load in enumerate(loads)}, **changes,
    )  # fmt: skip


def server(phase: Phase = Phase.READY, **changes: Any) -> ServerState:
    members = tuple(Member(pid=11 + i, ppid=10, start_ticks=1, title=f"sglang::scheduler_TP{i}") for i in range(RANKS))
    identity = ServerIdentity(key="k", engine="sglang", pid=10, start_ticks=1, members=members, argv=("sglang",))
    ranks = tuple(RankState(tag=f"TP{i}", gpu=i, pid=11 + i) for i in range(RANKS))
    fields: dict[str, Any] = {
        "identity": identity, "phase": phase, "ranks": ranks, "settings": {"tp_size": RANKS},
        "start": Start(engine="sglang", version="0.5.9", settings={"tp_size": RANKS}, last=777),
    }  # fmt: skip
    return ServerState(**{**fields, **changes})


def starting(
    silent: float, took: float, *, phase: Phase = Phase.GRAPH_CAPTURE,
    done: int | None = None, total: int | None = None, usual: tuple[float, float] | None = None, **changes: Any,
) -> ServerState:  # fmt: skip
    """A start that has been in a phase for so long, and silent for the last part of it."""
    record = PhaseRecord(phase=phase, started=NOW - took, done=done, total=total)
    times = UsualTimes(starts=3, phases_s={phase: usual}) if usual else UsualTimes()
    log = LogState(grown_at=MONO - silent, said_at=MONO - silent, end=1000)
    return server(phase, phases=(record,), usual=times, log=log, **changes)


def found(state: HostState, server: ServerState) -> dict[str, Finding]:
    return {each.cause: each for each in advise(state, server, ENGINES[server.identity.engine])}


# --- Queue, pool, cache ------------------------------------------------------------------------------


def waiting(running: float, queued: float, usage: float, **changes: Any) -> ServerState:
    numbers = {"running": steady(running), "queued": steady(queued), "token_usage": steady(usage)}
    live = ServerMetrics(running=int(running), queued=int(queued), token_usage_ratio=usage)
    return server(series=numbers, metrics=live, **changes)


def test_a_limit_of_running_requests_that_is_reached_while_the_pool_has_room() -> None:
    limits = {"max_running_requests": Figure(16.0, 5)}
    start = Start(engine="sglang", version="0.5.9", limits=limits)
    advice = found(host(*[0.8] * 4), waiting(16, 5, 0.4, start=start))
    assert set(advice) == {"requests-capped"}
    (remedy,) = advice["requests-capped"].remedies
    assert (remedy.knob, remedy.move, remedy.flag) == ("max_running_requests", "raise", "--max-running-requests")
    assert advice["requests-capped"].severity is Severity.INFO


def test_a_queue_below_the_limit_and_the_pool_is_the_schedulers() -> None:
    advice = found(host(*[0.8] * 4), waiting(8, 5, 0.4))
    assert set(advice) == {"scheduler-conservative"}
    assert advice["scheduler-conservative"].remedies[0].move == "lower"


@pytest.mark.parametrize(("running", "queued", "usage"), [(1, 1, 0.1), (8, 0, 0.4), (8, 5, 0.97), (1, 0, 0.0)])
def test_nothing_is_said_of_single_requests_empty_queues_and_full_pools(
    running: float, queued: float, usage: float
) -> None:
    assert found(host(*[0.8] * 4), waiting(running, queued, usage)) == {}


def test_half_a_minute_of_waiting_says_nothing_yet() -> None:
    numbers = {name: steady(value, 20) for name, value in (("running", 8.0), ("queued", 5.0), ("token_usage", 0.4))}
    assert found(host(*[0.8] * 4), server(series=numbers)) == {}


def test_requests_that_share_prefixes_and_wait() -> None:
    busy = waiting(8, 5, 0.95)
    busy = msgspec.structs.replace(busy, metrics=msgspec.structs.replace(busy.metrics, cache_hit_ratio=0.6))
    advice = found(host(*[0.8] * 4), busy)
    assert set(advice) == {"prefix-order"}
    assert advice["prefix-order"].confidence is Confidence.LOW
    ordered = msgspec.structs.replace(busy, settings={"schedule_policy": "lpm"})
    assert found(host(*[0.8] * 4), ordered) == {}


def test_vllm_is_told_in_its_own_words_and_not_of_what_it_does_not_have() -> None:
    identity = msgspec.structs.replace(server().identity, engine="vllm")
    start = Start(engine="vllm", version="0.32.0")
    busy = waiting(8, 5, 0.4, identity=identity, start=start, settings={"max_num_seqs": 8})
    advice = found(host(*[0.8] * 4), busy)
    assert set(advice) == {"requests-capped"}
    assert advice["requests-capped"].remedies[0].flag == "--max-num-seqs"


# --- Tenants ------------------------------------------------------------------------------


def test_a_tenant_of_a_servers_gpu_is_named_before_anything_fails() -> None:
    tenant = ForeignProcess(pid=4711, gpu=2, memory_bytes=3 << 30, user="alice", command="python train.py")
    small = ForeignProcess(pid=1, gpu=2, memory_bytes=300 << 20, user="root", command="Xorg")
    advice = found(host(*[0.5] * 4, foreign=(tenant, small)), server())
    finding = advice["foreign-process-on-gpu"]
    assert (finding.severity, finding.ranks) == (Severity.INFO, (2,))
    assert "pid 4711 of alice (python train.py) holds 3.00 GiB of GPU 2" in finding.explanation
    assert "Xorg" not in finding.explanation
    assert {each.what: each.value for each in finding.evidence} == {"pid 4711 on GPU 2": 3.0, "free on GPU 2": 20.0}


def test_a_tenant_of_another_gpu_is_nobodys_business() -> None:
    tenant = ForeignProcess(pid=4711, gpu=7, memory_bytes=30 << 30)
    assert found(host(*[0.5] * 4, foreign=(tenant,)), server()) == {}


# --- A start that stands still ------------------------------------------------------------------------------


def test_ranks_that_spin_and_wait_for_others_that_do_nothing() -> None:
    still = starting(60.0, 70.0, done=11, total=20)
    finding = found(host(1.0, 0.0, 1.0, 0.0), still)["graph-capture-hang"]
    assert (finding.ranks, finding.phase, finding.confidence) == ((1, 3), "graph-capture", Confidence.MEDIUM)
    assert "TP1, TP3 do nothing while TP0, TP2 spin" in finding.explanation
    assert finding.at == 777
    look = next(each for each in finding.remedies if each.knob == "py-spy")
    assert (look.value, look.why) == ("py-spy dump --pid 12", "where TP1 waits; then 14 (TP3)")


@pytest.mark.parametrize(
    ("loads", "silent", "took", "done", "usual"),
    [
        ((1.0, 0.0, 1.0, 0.0), 30.0, 40.0, 11, None),  # not long enough
        ((1.0, 0.0, 1.0, 0.0), 60.0, 120.0, 11, None),  # its steps take seconds
        ((0.0, 0.0, 0.0, 0.0), 60.0, 70.0, 11, None),  # compiling on the CPU
        ((0.6, 0.5, 0.7, 0.4), 200.0, 290.0, 11, None),  # they work
        ((1.0, 0.0, 0.5, 0.0), 200.0, 290.0, 11, None),
        ((0.0, 0.0, 0.0, 0.0), 250.0, 260.0, None, None),  # as long as is common
        ((0.0, 0.0, 0.0, 0.0), 250.0, 290.0, 11, (200.0, 240.0)),  # slow, and it always was
        ((1.0, 1.0, 1.0, 1.0), 170.0, 180.0, 11, (50.0, 80.0)),
    ],
)
def test_slow_starts_are_not_called_a_hang(
    loads: tuple[float, ...], silent: float, took: float, done: int | None, usual: tuple[float, float] | None
) -> None:
    assert found(host(*loads), starting(silent, took, done=done, total=20, usual=usual)) == {}


@pytest.mark.parametrize(
    ("loads", "silent", "took", "usual", "confidence"),
    [
        ((1.0, 1.0, 1.0, 1.0), 60.0, 70.0, None, Confidence.MEDIUM),
        ((0.0, 0.0, 0.0, 0.0), 310.0, 330.0, None, Confidence.LOW),
        ((0.0, 0.0, 0.0, 0.0), 240.0, 250.0, (50.0, 80.0), Confidence.MEDIUM),
        ((1.0, 1.0, 1.0, 1.0), 240.0, 250.0, (50.0, 80.0), Confidence.MEDIUM),
    ],
)
def test_silence_beyond_what_is_usual_is_a_hang(
    loads: tuple[float, ...], silent: float, took: float, usual: tuple[float, float] | None, confidence: Confidence
) -> None:
    finding = found(host(*loads), starting(silent, took, done=11, total=20, usual=usual))["graph-capture-hang"]
    assert finding.confidence is confidence
    assert ("Earlier starts" in finding.explanation) == (usual is not None)


def test_memory_that_grows_is_no_hang() -> None:
    still = starting(700.0, 710.0, phase=Phase.WEIGHT_LOAD)
    assert set(found(host(*[0.0] * 4), still)) == {"start-hang"}
    loading = msgspec.structs.replace(still, explain=ExplainState(still_since=MONO - 5))
    assert found(host(*[0.0] * 4), loading) == {}


def test_a_log_that_is_still_being_read_is_not_silent() -> None:
    still = starting(700.0, 710.0, phase=Phase.WEIGHT_LOAD)
    source = LogSource(kind="file", path="/log")
    behind = msgspec.structs.replace(still.log, backlog_end=5_000, source=source)
    for log in (behind, LogState()):
        assert found(host(*[0.0] * 4), msgspec.structs.replace(still, log=log)) == {}


def stopped(state: ServerState, *tags: str) -> ServerState:
    members = tuple(
        msgspec.structs.replace(member, state="T" if member.title.endswith(tags) else "S")
        for member in state.identity.members
    )
    return msgspec.structs.replace(state, identity=msgspec.structs.replace(state.identity, members=members))


def test_a_rank_that_was_stopped_is_named_at_once() -> None:
    halted = stopped(starting(12.0, 20.0, done=11, total=20), "TP2")
    finding = found(host(1.0, 1.0, 0.0, 1.0), halted)["graph-capture-hang"]
    assert (finding.ranks, finding.confidence) == ((2,), Confidence.HIGH)
    assert "TP2 (pid 13) is stopped" in finding.explanation
    assert any(each.value == "kill -CONT 13" for each in finding.remedies)
    assert found(host(1.0, 1.0, 0.0, 1.0), stopped(starting(5.0, 20.0), "TP2")) == {}


# --- A server that stands still ------------------------------------------------------------------------------


def serving(silent: float, running: float, tok_s: float) -> ServerState:
    numbers = {"running": steady(running, 200), "tok_s": steady(tok_s, 200)}
    return server(series=numbers, log=LogState(grown_at=MONO - silent, said_at=MONO - silent, end=1000))


def test_requests_that_get_no_token_while_ranks_spin() -> None:
    finding = found(host(1.0, 1.0, 0.0, 1.0), serving(90.0, 4, 0.0))["watchdog-hang"]
    assert (finding.ranks, finding.severity) == ((2,), Severity.ERROR)
    assert "4 requests run, and for 90 s no token came" in finding.explanation


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("hung", [90, 300])
def test_a_server_that_was_idle_before_it_hung_is_told(engine: str, hung: int) -> None:
    """Of an idle server every reading is zero, and none of that is work."""
    before = [0.0] * 120
    numbers = {"running": series(*before, *[1.0] * hung), "tok_s": series(*before, *[0.0] * hung)}
    identity = msgspec.structs.replace(server().identity, engine=engine)
    quiet = msgspec.structs.replace(serving(hung + 120.0, 1, 0.0), series=numbers, identity=identity)
    finding = found(host(1.0, 1.0, 0.0, 1.0), quiet)["watchdog-hang"]
    assert finding.explanation.startswith(f"1 request runs, and for {hung} s no token came")
    just_asked = {name: series(*before, *[value] * 30) for name, value in (("running", 1.0), ("tok_s", 0.0))}
    assert found(host(1.0, 1.0, 0.0, 1.0), msgspec.structs.replace(quiet, series=just_asked)) == {}
    gone_idle = {**numbers, "running": (*numbers["running"][:-1], SeriesPoint(MONO, 0.0))}
    assert found(host(1.0, 1.0, 0.0, 1.0), msgspec.structs.replace(quiet, series=gone_idle)) == {}


def test_a_stopped_rank_of_a_serving_server() -> None:
    finding = found(host(1.0, 1.0, 0.0, 1.0), stopped(serving(15.0, 4, 0.0), "TP1"))["watchdog-hang"]
    assert (finding.ranks, finding.confidence) == ((1,), Confidence.HIGH)


@pytest.mark.parametrize(("running", "tok_s"), [(0, 0.0), (4, 12.0)])
def test_a_part_that_stays_stopped_is_told_whether_or_not_the_numbers_show_who_waits(
    running: float, tok_s: float
) -> None:
    """vLLM counts a request once it was in a step; SGLang makes tokens while its detokenizer stands."""
    sglang, since = ENGINES["sglang"], host(0.0, 0.0, 0.0, 0.0)
    look = msgspec.structs.replace(since, mono=MONO - 12.0)
    idle = advised(look, stopped(serving(15.0, running, tok_s), "TP1"), sglang)
    assert idle.findings == ()
    finding = advised(since, idle, sglang).findings[0]
    assert (finding.cause, finding.ranks, finding.confidence) == ("watchdog-hang", (1,), Confidence.HIGH)
    assert finding.explanation == "TP1 (pid 12) is stopped, as by SIGSTOP or a debugger. Whatever needs it waits."
    goes_on = msgspec.structs.replace(idle, identity=server().identity)
    assert advised(since, goes_on, sglang).findings == ()
    other = stopped(goes_on, "TP2")
    assert advised(since, other, sglang).findings == (), "another one, since now"


def test_complaints_of_what_answers_http_hide_no_hang() -> None:
    hung = stopped(serving(15.0, 4, 0.0), "TP1")
    loud = msgspec.structs.replace(hung.log, grown_at=MONO, said_at=MONO, worked_at=MONO - 15.0)
    assert set(found(host(1.0, 1.0, 0.0, 1.0), msgspec.structs.replace(hung, log=loud))) == {"watchdog-hang"}


def test_a_server_that_is_stopped_as_a_whole_answers_no_more_and_is_told_all_the_same() -> None:
    numbers = {"running": series(*[3.0] * 60, end=MONO - 15.0), "tok_s": series(*[40.0] * 60, end=MONO - 15.0)}
    halted = stopped(msgspec.structs.replace(serving(15.0, 3, 0.0), series=numbers), "TP0", "TP1", "TP2", "TP3")
    finding = found(host(0.0, 0.0, 0.0, 0.0), halted)["watchdog-hang"]
    assert (finding.ranks, finding.confidence) == ((0, 1, 2, 3), Confidence.HIGH)
    assert finding.explanation.startswith("3 requests run, and for 15 s no token came")
    gone_quiet = msgspec.structs.replace(halted, identity=server().identity)
    assert found(host(0.0, 0.0, 0.0, 0.0), gone_quiet) == {}, "it does not answer, and nobody stopped it"


def test_a_stopped_leader_takes_no_requests_and_is_told_though_its_log_cannot_be_read() -> None:
    numbers = {"running": series(*[3.0] * 60, end=MONO - 15.0), "tok_s": series(*[40.0] * 60, end=MONO - 15.0)}
    leader = Member(pid=10, ppid=1, start_ticks=1, title="python -m sglang.launch_server", state="T")
    helper = Member(pid=99, ppid=10, start_ticks=1, title="ninja", state="T")
    identity = msgspec.structs.replace(server().identity, members=(leader, helper, *server().identity.members))
    halted = msgspec.structs.replace(serving(15.0, 3, 0.0), identity=identity, series=numbers, log=LogState())
    untold = msgspec.structs.replace(
        halted, series={"running": numbers["running"][-1:]}, metrics=ServerMetrics(at=MONO - 15.0)
    )
    assert set(found(host(0.5, 0.0, 0.5, 0.0), untold)) == {"watchdog-hang"}, "it had just begun when it was stopped"
    finding = found(host(0.5, 0.0, 0.5, 0.0), halted)["watchdog-hang"]
    assert (finding.ranks, finding.confidence) == (None, Confidence.HIGH)
    assert "Its leader (pid 10) is stopped" in finding.explanation
    assert [each.value for each in finding.remedies] == ["kill -CONT 10"]


def test_a_long_prompt_that_fills_the_pool_is_no_hang() -> None:
    slow = serving(90.0, 1, 0.0)
    filling = {**slow.series, "token_usage": series(*[i / 400 for i in range(200)])}
    assert found(host(1.0, 1.0, 0.0, 1.0), msgspec.structs.replace(slow, series=filling)) == {}


@pytest.mark.parametrize(
    ("loads", "silent", "running", "tok_s"),
    [
        ((1.0, 1.0, 0.0, 1.0), 30.0, 4, 0.0),  # not long
        ((1.0, 1.0, 0.0, 1.0), 90.0, 0, 0.0),  # nobody asks
        ((1.0, 1.0, 0.0, 1.0), 90.0, 4, 12.0),  # tokens come; only the log is silent
        ((0.5, 0.6, 0.7, 0.6), 90.0, 4, 0.0),  # a long prefill
        ((0.0, 0.0, 0.0, 0.0), 90.0, 4, 0.0),  # its numbers are old
    ],
)
def test_a_server_that_is_idle_slow_or_silent_is_no_hang(
    loads: tuple[float, ...], silent: float, running: float, tok_s: float
) -> None:
    assert found(host(*loads), serving(silent, running, tok_s)) == {}


def test_what_has_ended_is_given_no_advice() -> None:
    for phase in (Phase.STOPPED, Phase.FAILED, Phase.STOPPING, Phase.UNKNOWN):
        assert found(host(1.0, 1.0, 0.0, 1.0), msgspec.structs.replace(serving(90.0, 4, 0.0), phase=phase)) == {}


@pytest.mark.parametrize("loads", itertools.product((0.0, 0.5, 1.0), repeat=2))
def test_gpus_are_called_idle_or_spinning_only_when_each_is(loads: tuple[float, float]) -> None:
    two = msgspec.structs.replace(server(), ranks=server().ranks[:2])
    work = hang._work(host(*loads), two)
    assert (work is None) == (0.5 in loads)


def test_without_a_wall_clock_no_phase_is_timed() -> None:
    blind = msgspec.structs.replace(host(1.0, 0.0, 1.0, 0.0), now=None)
    assert found(blind, starting(60.0, 70.0, done=11, total=20)) == {}


def test_what_is_broken_stands_before_what_is_only_worth_knowing() -> None:
    note = Finding(cause="custom-ar-disabled-pcie", severity=Severity.INFO)
    still = starting(60.0, 70.0, done=11, total=20)
    state, sglang = host(1.0, 0.0, 1.0, 0.0), ENGINES["sglang"]
    seen = msgspec.structs.replace(
        advised(state, still, sglang).explain, diagnosed=(note,), advised_at=None, still_since=MONO - 100.0
    )
    shown = advised(state, msgspec.structs.replace(still, explain=seen), sglang).findings
    assert [each.cause for each in shown] == ["graph-capture-hang", "custom-ar-disabled-pcie"]
