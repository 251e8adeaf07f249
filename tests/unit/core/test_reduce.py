"""The fold: events in, states out, and what stays shared."""

import random
from typing import Any

import msgspec
import pytest

from tests.support.plain_engine import PlainEngine
from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.commands import KeepMemory, KeepStart, LookUpStarts
from tuner.domain.gpu import GpuInfo, GpuProcess, GpuSample, ProcessInfo
from tuner.domain.history import UsualTimes
from tuner.domain.link import LinkPhase
from tuner.domain.server import LogSource, Member, Phase, ServerIdentity
from tuner.domain.state import HostState
from tuner.units import GIB

ENGINES = {"plain": PlainEngine()}
BORN = 1_772_000_000.0
KEY = "10:99"


def members(*tags: str) -> tuple[Member, ...]:
    return tuple(Member(pid=11 + i, ppid=10, start_ticks=1, title=tag) for i, tag in enumerate(tags))


def identity(**changes: Any) -> ServerIdentity:
    fields: dict[str, Any] = {
        "key": KEY,
        "engine": "plain",
        "pid": 10,
        "start_ticks": 99,
        "started_at": BORN,
        "argv": ("plain", "llama"),
        "env": {},
        "members": members("TP0", "TP1"),
        "log": LogSource(kind="file", path="/log", device=1, inode=2),
    }
    return ServerIdentity(**{**fields, **changes})


HELLO = e.ProbeHello(
    seq=1, mono=100.0, protocol=1, python="3.11", pid=1, uid=0, hostname="h", boot_id="b", at=BORN + 60
)
TABLE = e.GpuTable(
    seq=2, mono=100.1, source="pynvml", gpus=tuple(GpuInfo(index=i, uuid=f"GPU-{i}", name="H200") for i in range(2))
)
SEEN = e.ServerSeen(seq=3, mono=100.2, server=identity())
LOG = f"""@{BORN + 1:.0f} !args
@{BORN + 5:.0f} TP0 !phase-begin phase=weight-load
@{BORN + 5:.0f} TP1 !phase-begin phase=weight-load
@{BORN + 20:.0f} TP0 !weights used_gib=60
@{BORN + 20:.0f} TP1 !weights used_gib=60
@{BORN + 21:.0f} TP0 !kv-pool kv_gib=10 tokens=1000
@{BORN + 21:.0f} TP1 !kv-pool kv_gib=10 tokens=1000
  a line without prefix
@{BORN + 30:.0f} !http-up
@{BORN + 31:.0f} !ready
"""


def run(*events: e.AnyEvent, state: HostState | None = None) -> tuple[HostState, list[Any]]:
    state = state or initial("box")
    commands: list[Any] = []
    for event in events:
        state, more = reduce(state, event, ENGINES)
        commands += more
    return state, commands


def log(text: str, offset: int = 0, **changes: Any) -> e.LogBytes:
    return e.LogBytes(**{"key": KEY, "offset": offset, "end": offset + len(text.encode()), "data": text, **changes})


def opened(size: int = 0, **changes: Any) -> e.LogOpened:
    return e.LogOpened(**{"key": KEY, "reason": "start", "path": "/log", "size": size, **changes})


def test_a_server_is_adopted_with_what_the_process_table_tells() -> None:
    state, commands = run(HELLO, TABLE, SEEN)
    (server,) = state.servers
    assert (server.engine_title, server.model, server.phase) == ("Plain", "llama", Phase.UNKNOWN)
    assert [(r.tag, r.pid, r.gpu) for r in server.ranks] == [("TP0", 11, 0), ("TP1", 12, 1)]
    assert commands == [LookUpStarts(key=KEY, engine="plain", model="llama", began_at=BORN)]
    assert state.now == pytest.approx(BORN + 60.2)


def test_a_whole_start_is_read_from_its_log_and_remembered() -> None:
    state, commands = run(HELLO, TABLE, SEEN, opened(len(LOG)), log(LOG))
    (server,) = state.servers
    assert server.phase is Phase.READY
    assert server.kv_tokens == 1000
    assert server.started_in_s == pytest.approx(31.0)
    assert server.ranks[0].memory.weights_bytes == 60 * GIB
    (kept,) = [c for c in commands if isinstance(c, KeepStart)]
    assert kept.record.outcome == "ready"
    assert kept.record.phases_s[Phase.WEIGHT_LOAD] == pytest.approx(15.0)
    assert kept.record.source == "/log"


def test_however_the_log_is_cut_the_state_is_the_same() -> None:
    whole, _ = run(HELLO, TABLE, SEEN, opened(len(LOG)), log(LOG))
    rng = random.Random(7)
    for _ in range(50):
        cuts = sorted(rng.sample(range(1, len(LOG)), rng.randint(1, 6)))
        pieces = [LOG[a:b] for a, b in zip([0, *cuts], [*cuts, len(LOG)], strict=True)]
        events, offset = [], 0
        for piece in pieces:
            events.append(log(piece, offset))
            offset += len(piece)
        parts, _ = run(HELLO, TABLE, SEEN, opened(len(LOG)), *events)
        a, b = parts.servers[0], whole.servers[0]
        assert [x for block in a.log.blocks for x in block.lines] == [x for block in b.log.blocks for x in block.lines]
        assert (a.phase, a.phases, a.ranks, a.facts) == (b.phase, b.phases, b.ranks, b.facts)


def test_the_start_section_is_not_read_twice() -> None:
    head = log(LOG, head=True)
    tail = log(LOG[-60:] + "@1772000099 more\n", len(LOG) - 60)
    state, _ = run(HELLO, TABLE, SEEN, opened(len(LOG)), head, tail)
    assert len([x for x in state.servers[0].facts if x.kind == "ready"]) == 1


def test_a_line_torn_before_a_gap_ends_there() -> None:
    state, _ = run(HELLO, SEEN, opened(900), log("first\nto", head=True), log("second\n", 500, head=True))
    texts = [x.text for block in state.servers[0].log.blocks for x in block.lines]
    assert texts == ["first", "to", "second"]


def test_backlog_does_not_pretend_to_be_live() -> None:
    line = f"@{BORN + 40:.0f} TP0 !decode tok_s=89 running=4\n"
    state, _ = run(HELLO, SEEN, opened(len(line)), log(line))
    assert state.servers[0].metrics.tok_s is None
    state, _ = run(log(line, len(line)), log(line, 2 * len(line)), state=state)
    assert state.servers[0].metrics.tok_s == 89


def test_memory_adds_up_with_the_driver() -> None:
    held = e.GpuProcesses(
        processes=(GpuProcess(0, 11, 80 * GIB), GpuProcess(1, 12, 79 * GIB), GpuProcess(1, 9120, 2 * GIB)),
        infos=(ProcessInfo(pid=9120, user="alice", command="python train.py"),),
    )
    state, _ = run(HELLO, TABLE, SEEN, opened(len(LOG)), log(LOG), held)
    first = state.servers[0].ranks[0].memory
    assert first.total_bytes == 80 * GIB
    terms = (first.weights_bytes, first.kv_bytes, first.other_bytes)
    assert sum(t for t in terms if t is not None) == first.total_bytes
    (foreign,) = state.foreign
    assert (foreign.pid, foreign.gpu, foreign.user) == (9120, 1, "alice")


def test_http_terms_and_readiness() -> None:
    info = e.HttpAnswer(key=KEY, endpoint="info", status=200, body={"ready": True, "weights": 7, "version": "9"})
    state, _ = run(HELLO, TABLE, SEEN, info)
    server = state.servers[0]
    assert (server.phase, server.version) == (Phase.READY, "9")
    assert {r.memory.weights_bytes for r in server.ranks} == {7}


@pytest.mark.parametrize(("watched", "took"), [(True, 12.0), (False, 0.0)])
def test_a_warm_up_that_an_answer_ends_took_until_then_where_it_was_watched(watched: bool, took: float) -> None:
    """The line that says it comes a moment after the answer. One that began before us may have ended at any time."""
    up = LOG[: LOG.index("!ready") - len("@1772000000 ")]
    hello = HELLO if not watched else msgspec.structs.replace(HELLO, at=BORN + 20)
    answer = e.HttpAnswer(key=KEY, endpoint="info", status=200, seq=9, mono=122.0, body={"ready": True})
    state, _ = run(hello, TABLE, SEEN, opened(), log(up), answer)
    (server,) = state.servers
    assert (server.phase, server.phase_evidence) == (Phase.READY, "/info answers 200")
    assert server.phases[-1].ended is not None
    assert server.phases[-1].ended - server.phases[-1].started == pytest.approx(took)


def test_answers_that_come_while_the_log_is_still_read_end_no_phase_of_it() -> None:
    """Several endpoints answer at once, and the log's head comes in pieces between them."""
    ready = e.HttpAnswer(key=KEY, endpoint="info", status=200, mono=1.0, body={"ready": True})
    loading = LOG[: LOG.index("@1772000021")]
    rest = LOG[len(loading) :]
    state, _ = run(HELLO, TABLE, SEEN, opened(len(LOG)), ready, log(loading), ready, ready)
    assert state.servers[0].phase is Phase.KV_ALLOC
    state, _ = run(log(rest, len(loading)), state=state)
    (server,) = state.servers
    assert (server.phase, server.started_in_s) == (Phase.READY, 31.0)
    assert [record.phase for record in server.phases][-2:] == [Phase.KV_ALLOC, Phase.WARMUP]


def test_a_server_that_answers_for_long_is_ready_though_its_log_is_never_read_to_its_end() -> None:
    early, late = (
        e.HttpAnswer(key=KEY, endpoint="info", status=200, mono=mono, body={"ready": True}) for mono in (1.0, 12.0)
    )
    state, _ = run(HELLO, TABLE, SEEN, opened(1 << 40), early, late)
    assert (state.servers[0].phase, state.servers[0].phase_evidence) == (Phase.READY, "/info answers 200")


def test_series_arrive_as_changes_only() -> None:
    first = e.HttpAnswer(key=KEY, mono=1, endpoint="metrics", status=200, series={"tok_s": 50.0, "running": 2.0})
    second = e.HttpAnswer(key=KEY, mono=2, endpoint="metrics", status=200, series={"tok_s": 60.0})
    state, _ = run(HELLO, SEEN, first, second)
    assert (state.servers[0].metrics.tok_s, state.servers[0].metrics.running) == (60.0, 2)


def test_an_answer_that_is_the_same_as_the_last_one_is_a_reading_too() -> None:
    first = e.HttpAnswer(key=KEY, mono=1, endpoint="loads", status=200, body={"tok_s": 0.0, "running": 0.0})
    same = e.HttpAnswer(key=KEY, mono=3, endpoint="loads", status=200, next_s=4.0)
    state, _ = run(HELLO, SEEN, first, same)
    numbers = state.servers[0].metrics
    assert (numbers.at, numbers.next_s, numbers.tok_s, numbers.running) == (3, 4.0, 0.0, 0)
    state, _ = run(e.HttpAnswer(key=KEY, mono=7, endpoint="other", status=200), state=state)
    assert state.servers[0].metrics.at == 3


def test_series_are_not_taken_for_the_numbers_of_an_answer_without_a_body() -> None:
    first = e.HttpAnswer(key=KEY, mono=1, endpoint="metrics", status=200, series={"tok_s": 50.0})
    state, _ = run(HELLO, SEEN, first, e.HttpAnswer(key=KEY, mono=3, endpoint="metrics", status=200))
    assert (state.servers[0].metrics.source, state.servers[0].metrics.at) == ("metrics", 1)
    loads = e.HttpAnswer(key=KEY, mono=4, endpoint="loads", status=200, body={"tok_s": 0.0})
    again, _ = run(loads, HELLO, state=state)
    assert (again.servers[0].http_series, again.servers[0].http_numbers) == ({}, {})


def test_a_refused_answer_is_one_line_and_goes_away() -> None:
    refused = e.HttpAnswer(key=KEY, endpoint="metrics", status=401, error="Unauthorized")
    state, _ = run(HELLO, SEEN, refused)
    assert state.servers[0].http_problem == "the server wants its API key"
    state, _ = run(e.HttpAnswer(key=KEY, endpoint="metrics", status=200, series={"tok_s": 1.0}), state=state)
    assert state.servers[0].http_problem is None


def test_a_server_that_died_is_still_described() -> None:
    state, _ = run(HELLO, TABLE, SEEN, opened(), log(LOG), e.ServerGone(key=KEY, at=BORN + 90))
    (server,) = state.servers
    assert server.gone
    assert server.phase is Phase.FAILED
    assert server.identity.argv == ("plain", "llama")


def test_argv_and_environment_survive_a_process_that_can_no_longer_be_read() -> None:
    first = e.ServerSeen(server=identity(env={"A": "1"}))
    later = e.ServerSeen(server=identity(env=None, argv=()))
    state, _ = run(HELLO, first, later)
    assert state.servers[0].identity.env == {"A": "1"}
    assert state.servers[0].identity.argv == ("plain", "llama")


def test_a_reconnect_finds_what_ended_meanwhile() -> None:
    state, _ = run(HELLO, SEEN, e.ScanEnded(seq=4))
    again = e.ProbeHello(
        seq=1, mono=400.0, protocol=1, python="3.11", pid=2, uid=0, hostname="h", boot_id="b", at=BORN + 360
    )
    state, _ = run(again, state=state)
    assert not state.scanned
    assert not state.servers[0].gone
    state, _ = run(e.ScanEnded(seq=2), state=state)
    assert state.servers[0].gone


def test_a_reboot_ends_every_server_and_its_clock() -> None:
    sample = e.GpuSamples(seq=4, mono=101, samples=(GpuSample(0, 5, 0.5),))
    state, _ = run(HELLO, SEEN, sample)
    reboot = e.ProbeHello(
        seq=1, mono=3.0, protocol=1, python="3", pid=2, uid=0, hostname="h", boot_id="c", at=BORN + 999
    )
    state, _ = run(reboot, state=state)
    assert state.servers[0].gone
    assert state.gpu_series == {}


def test_lost_lines_are_counted() -> None:
    state, _ = run(HELLO, e.GpuSamples(seq=5, mono=101, samples=()))
    assert state.lost_lines == 3


def test_rotation_leaves_a_mark_and_a_new_generation() -> None:
    state, _ = run(HELLO, SEEN, opened(5), log("a b\nc"), opened(0, reason="rotated", inode=3), log("d\n"))
    held = state.servers[0].log
    assert held.generation == 1
    texts = [(x.text, x.marker) for block in held.blocks for x in block.lines]
    assert texts == [("a b", False), ("log was rotated", True), ("d", False)]


def test_bytes_that_were_not_sent_are_shown_as_such() -> None:
    state, _ = run(HELLO, SEEN, opened(9000), e.LogGap(key=KEY, offset=0, end=8000, reason="opened at its end"))
    held = state.servers[0].log
    assert held.dropped_bytes == 8000
    assert held.blocks[-1].lines[0].marker


def test_link_states_do_not_blank_the_host() -> None:
    state, _ = run(HELLO, TABLE, SEEN)
    lost, _ = run(e.LinkChanged(phase=LinkPhase.RECONNECTING, reason="connection lost", attempt=1), state=state)
    assert lost.servers is state.servers
    assert lost.link.phase is LinkPhase.RECONNECTING


def test_problems_are_told_once_and_cleared() -> None:
    state, _ = run(e.ProblemSeen(code="nvml-hang"), e.ProblemSeen(code="nvml-hang", detail="9 s"))
    assert [p.detail for p in state.problems] == ["9 s"]
    state, _ = run(e.ProblemSeen(code="nvml-hang", cleared=True), state=state)
    assert state.problems == ()


def test_an_old_log_becomes_history_without_touching_the_server() -> None:
    before, _ = run(HELLO, SEEN)
    old = f"@{BORN:.0f} !version model=llama\n" + LOG.replace(f"{BORN + 31:.0f}", f"{BORN + 41:.0f}")
    state, commands = run(e.OldLog(key=KEY, path="/old.log", size=len(old), data=old), state=before)
    assert state.servers is before.servers
    kept, memory, look_up = commands
    assert isinstance(kept, KeepStart)
    assert isinstance(memory, KeepMemory), "what the next start is forecast from"
    assert isinstance(look_up, LookUpStarts), "what is usual is known only now"
    assert kept.record.source == "/old.log"
    assert kept.record.total_s == pytest.approx(40.0)


@pytest.mark.parametrize("version", ["", f"@{BORN:.0f} !version model=qwen\n"])
def test_an_old_log_of_another_model_is_no_earlier_start_of_this_one(version: str) -> None:
    before, _ = run(HELLO, SEEN)
    data = version + LOG
    state, commands = run(e.OldLog(key=KEY, path="/old.log", size=len(data), data=data), state=before)
    assert state.servers is before.servers
    assert not commands


def test_history_is_shown_beside_the_start() -> None:
    usual = UsualTimes(starts=3, total_s=(590.0, 610.0))
    state, _ = run(HELLO, SEEN, e.HistoryFound(key=KEY, usual=usual))
    assert state.servers[0].usual is usual


def test_an_engine_this_version_does_not_know_is_shown_as_far_as_it_goes() -> None:
    state, _ = run(HELLO, e.ServerSeen(server=identity(engine="novel")), opened(3), log("hi\n"))
    (server,) = state.servers
    assert server.engine_title == "novel"
    assert [x.text for block in server.log.blocks for x in block.lines] == ["hi"]


def test_a_series_that_went_does_not_live_on() -> None:
    first = e.HttpAnswer(key=KEY, mono=1, endpoint="metrics", status=200, series={"tok_s": 50.0, "running": 2.0})
    gone = e.HttpAnswer(key=KEY, mono=2, endpoint="metrics", status=200, series={"running": None})
    state, _ = run(HELLO, SEEN, first, gone)
    assert (state.servers[0].metrics.tok_s, state.servers[0].metrics.running) == (50.0, None)
    again, _ = run(HELLO, state=state)
    assert again.servers[0].http_series == {}


def test_the_same_xid_read_again_is_one() -> None:
    xid = e.GpuXid(bus_id="0000:11:00.0", xid=79, text="GPU has fallen off the bus", at=BORN)
    state, _ = run(HELLO, xid, xid, e.GpuXid(bus_id="0000:11:00.0", xid=79, text=xid.text, at=BORN + 0.2))
    assert len(state.xids) == 1
    state, _ = run(e.GpuXid(bus_id="0000:11:00.0", xid=79, text=xid.text, at=BORN + 60), state=state)
    assert len(state.xids) == 2


def test_a_line_that_docker_cut_is_whole_wherever_its_records_arrive() -> None:
    docker = e.ServerSeen(server=identity(log=LogSource(kind="docker-json", path="/log")))
    half = '{"log":"first half, ","stream":"stderr"}\n'
    rest = '{"log":"second half\\n","stream":"stderr"}\n'
    where = opened(0, kind="docker-json")
    state, _ = run(HELLO, docker, where, log(half), log(rest, len(half)))
    assert [x.text for block in state.servers[0].log.blocks for x in block.lines] == ["first half, second half"]


def cri(text: str) -> str:
    return "".join(f"2026-11-29T14:02:11.123456789Z stderr {line}\n" for line in text.splitlines())


def test_a_line_that_a_container_runtime_cut_is_whole_and_read() -> None:
    pod = e.ServerSeen(server=identity(log=LogSource(kind="cri", path="/log")))
    text = cri(f"P @{BORN + 50:.0f} TP0 !error sum") + cri("F mary=OOM") + cri("F next")
    state, _ = run(HELLO, pod, opened(0, kind="cri"), log(text))
    (server,) = state.servers
    assert [x.text for block in server.log.blocks for x in block.lines][-2:] == [
        f"@{BORN + 50:.0f} TP0 !error summary=OOM",
        "next",
    ]
    assert server.errors


def test_a_successor_in_the_same_file_does_not_erase_why_the_server_died() -> None:
    died = f"@{BORN + 50:.0f} TP0 !error summary=OOM\n"
    state, _ = run(HELLO, TABLE, SEEN, opened(), log(LOG[:-20]), log(died, len(LOG) - 20))
    state, _ = run(e.ServerGone(key=KEY, at=BORN + 51), state=state)
    before = state.servers[0]
    state, _ = run(log(LOG, 5000), log(LOG, 9000), state=state)
    after = state.servers[0]
    assert after.log.lines_total > before.log.lines_total
    assert (after.phase, after.errors, after.phases) == (before.phase, before.errors, before.phases)
    assert before.phase is Phase.FAILED


def test_an_answer_that_overtakes_the_log_does_not_hide_the_start() -> None:
    answer = e.HttpAnswer(key=KEY, endpoint="info", status=200, mono=101.0, body={"ready": True})
    half = LOG.index("  a line")
    whole = run(HELLO, SEEN, opened(len(LOG)), log(LOG), answer)[0].servers[0]
    behind, _ = run(HELLO, SEEN, opened(len(LOG)), log(LOG[:half]), answer)
    assert behind.servers[0].phase is not Phase.READY
    caught, _ = run(log(LOG[half:], half), state=behind)
    assert caught.servers[0].phase is Phase.READY
    assert [p.phase for p in caught.servers[0].phases] == [p.phase for p in whole.phases]
    assert len(whole.phases) >= 4
    skipped, _ = run(e.LogGap(key=KEY, offset=half, end=len(LOG), reason="far"), state=behind)
    assert skipped.servers[0].phase is Phase.READY, "the log has no more to say"
    again, _ = run(msgspec.structs.replace(answer, mono=112.0), state=behind)
    assert again.servers[0].phase is Phase.READY, "and nobody waits for a log that does not come"


def test_a_start_up_line_that_comes_in_pieces_is_searched_when_it_is_whole() -> None:
    """SGLang's arguments are one line of 19 kB, and the probe sends 8 kB at a time."""
    cut = LOG.index("!args") + 2
    pieces = (log(LOG[:cut], head=True), log(LOG[cut:], cut, head=True))
    state, _ = run(HELLO, SEEN, opened(len(LOG)), *pieces)
    assert state.servers[0].phases[0].phase is Phase.ARGS
