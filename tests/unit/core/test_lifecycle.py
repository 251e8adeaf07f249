"""Server phases: playbooks of facts in, and the phase that must follow."""

import pytest

from tuner.core import facts as f
from tuner.core import lifecycle
from tuner.domain.logs import LogFact
from tuner.domain.server import Member, Phase, ServerIdentity
from tuner.domain.state import RankMemory, RankState, ServerState
from tuner.units import from_gib

STARTED_AT = 1_772_000_000.0
ZONE = 3600.0 * 9
"""The log's clock is nine hours ahead of the epoch's."""


def identity(**changes: object) -> ServerIdentity:
    fields: dict = {"key": "10:99", "engine": "sglang", "pid": 10, "start_ticks": 99, "started_at": STARTED_AT}
    return ServerIdentity(**{**fields, **changes})


def fact(kind: str, at: float, rank: str | None = None, **fields: object) -> LogFact:
    return LogFact(kind=kind, rank=rank, at=STARTED_AT + ZONE + at, text=kind, fields=dict(fields))


def play(*facts: LogFact, server: ServerState | None = None) -> ServerState:
    server = server or ServerState(identity=identity())
    for item in facts:
        server = lifecycle.apply_fact(server, item)
    return server


START = (
    fact(f.ARGS, 3, settings={"tp_size": 2}),
    fact(f.PHASE_BEGIN, 30, "TP1", phase="dist-init"),
    fact(f.PHASE_BEGIN, 31, "TP0", phase="dist-init"),
    fact(f.PHASE_BEGIN, 40, "TP0", phase="weight-load"),
    fact(f.PROGRESS, 45, phase="weight-load", done=3, total=64),
    fact(f.WEIGHTS, 90, "TP1", used_gib=72.33),
    fact(f.WEIGHTS, 95, "TP0", used_gib=72.33),
    fact(f.KV_POOL, 96, "TP0", tokens=159277, kv_gib=10.42),
    fact(f.PHASE_BEGIN, 97, "TP0", phase="graph-capture"),
    fact(f.GRAPHS, 120, "TP0", used_gib=2.6),
    fact(f.HTTP_UP, 121),
)
READY = (*START, fact(f.READY, 130))


def test_a_start_goes_through_its_phases_with_times_in_host_time() -> None:
    server = play(*READY)
    assert server.phase is Phase.READY
    assert [(r.phase, r.started - STARTED_AT) for r in server.phases] == [
        (Phase.ARGS, 0.0),
        (Phase.DIST_INIT, 30.0),
        (Phase.WEIGHT_LOAD, 40.0),
        (Phase.KV_ALLOC, 95.0),
        (Phase.GRAPH_CAPTURE, 97.0),
        (Phase.WARMUP, 121.0),
    ]
    assert server.started_in_s == 130.0
    assert server.kv_tokens == 159277


def test_progress_is_shown_within_its_phase() -> None:
    server = play(*START[:5])
    assert (server.phase, server.phases[-1].done, server.phases[-1].total) == (Phase.WEIGHT_LOAD, 3, 64)


def test_a_bar_that_stands_behind_another_ranks_line_is_progress_all_the_same() -> None:
    """It has no prefix; the line before it was of TP1."""
    server = play(*START[:5], fact(f.PROGRESS, 50, "TP1", phase="weight-load", done=9, total=64))
    assert (server.phase, server.phases[-1].done, server.phases[-1].total) == (Phase.WEIGHT_LOAD, 9, 64)


def test_a_lagging_rank_does_not_pull_the_server_back() -> None:
    server = play(*START[:9], fact(f.PROGRESS, 98, "TP1", phase="weight-load", done=60, total=64))
    assert server.phase is Phase.GRAPH_CAPTURE
    assert next(r for r in server.ranks if r.tag == "TP1").phase is Phase.WEIGHT_LOAD


def test_a_rank_is_past_its_weights_once_its_pool_is_told_and_has_no_phase_in_the_warm_up() -> None:
    def phases(server: ServerState) -> dict[str, Phase]:
        return {rank.tag: rank.phase for rank in server.ranks}

    loading = (fact(f.PHASE_BEGIN, 40, "TP0", phase="weight-load"), fact(f.PHASE_BEGIN, 40, "TP1", phase="weight-load"))
    server = play(*START[:1], *loading, fact(f.KV_POOL, 96, "TP0", kv_gib=10.0), fact(f.POOL_END, 96, "TP1"))
    assert phases(server) == {"TP0": Phase.KV_ALLOC, "TP1": Phase.KV_ALLOC}
    server = play(fact(f.PHASE_BEGIN, 97, "TP0", phase="graph-capture"), fact(f.KV_POOL, 98, "TP0"), server=server)
    assert phases(server) == {"TP0": Phase.GRAPH_CAPTURE, "TP1": Phase.KV_ALLOC}
    server = play(fact(f.HTTP_UP, 121), fact(f.PHASE_END, 122, "TP1", phase="graph-capture"), server=server)
    assert phases(server) == {"TP0": Phase.UNKNOWN, "TP1": Phase.UNKNOWN}


def test_ready_does_not_count_while_the_port_is_somebody_elses() -> None:
    """SGLang 0.5.23 prints its ready line after a bind error when an old server answers the warm-up."""
    server = ServerState(identity=identity(port=30000, ports=(26001,)))
    assert play(*READY, server=server).phase is Phase.WARMUP
    server = ServerState(identity=identity(port=30000, ports=(26001, 30000)))
    assert play(*READY, server=server).phase is Phase.READY


def test_an_error_while_starting_is_a_failed_start_with_all_its_ranks() -> None:
    errors = [fact(f.ERROR, 96 + i, f"TP{i}", summary="Not enough memory") for i in range(8)]
    server = play(*START[:7], *errors)
    assert server.phase is Phase.FAILED
    (entry,) = server.errors
    assert entry.ranks == tuple(f"TP{i}" for i in range(8))
    assert (entry.count, entry.phase, entry.at) == (8, Phase.KV_ALLOC, STARTED_AT + 96)


def test_the_exception_replaces_the_line_that_announces_it() -> None:
    announced = fact(f.ERROR, 96, "TP0", summary="Scheduler hit an exception", header=True)
    named = fact(f.ERROR, 96, "TP0", summary="Not enough memory")
    other = fact(f.ERROR, 97, "TP1", summary="Scheduler hit an exception", header=True)
    server = play(*START[:7], announced)
    assert (server.phase, server.phase_evidence) == (Phase.FAILED, "Scheduler hit an exception")
    server = play(named, other, fact(f.ERROR, 97, "TP1", summary="Not enough memory"), server=server)
    assert server.phase_evidence == "Not enough memory"
    assert [(e.text, e.ranks, e.count) for e in server.errors] == [("Not enough memory", ("TP0", "TP1"), 2)]


def test_a_tag_that_no_process_has_is_no_rank() -> None:
    ranks = (RankState(tag="TP0", pid=11), RankState(tag="TP1", pid=12))
    server = ServerState(identity=identity(), ranks=ranks)
    for tag in ("DP0", None):
        server = play(fact(f.KV_POOL, 50, tag, kv_gib=10.0, tokens=9), server=server)
    assert [r.tag for r in server.ranks] == ["TP0", "TP1"]
    assert all(r.log_terms.kv_bytes is None for r in server.ranks)


def test_a_second_set_of_weights_is_the_draft_model() -> None:
    drafted = (
        *START[:7],
        fact(f.PHASE_BEGIN, 95, "TP0", phase="weight-load"),
        fact(f.WEIGHTS, 99, "TP0", used_gib=4.0),
        *START[7:],
    )
    server = play(*drafted)
    phases = [record.phase for record in server.phases]
    assert phases[2:5] == [Phase.WEIGHT_LOAD, Phase.DRAFT_INIT, Phase.KV_ALLOC]
    assert server.ranks[0].log_terms.weights_bytes == from_gib(72.33) + from_gib(4.0)


def test_ranks_that_vanish_without_a_word_come_before_what_their_peers_say() -> None:
    ranks = tuple(RankState(tag=f"TP{i}", pid=11 + i) for i in range(3))
    left = tuple(Member(pid=11 + i, ppid=10, start_ticks=1, title="") for i in (0, 1))
    gloo = fact(f.ERROR, 300, "TP0", summary="Connection closed by peer", secondary=True)
    server = play(*READY, gloo, server=ServerState(identity=identity(), ranks=ranks))
    server = lifecycle.apply_members(server, identity(members=left))
    assert server.errors[0].ranks == ("TP2",)
    assert "TP2 (pid 13) died without an error of its own" in server.phase_evidence
    assert server.errors[1].text == "Connection closed by peer"
    again = lifecycle.apply_members(server, identity(members=left))
    assert again.errors == server.errors


def test_a_rank_that_only_the_log_knows_is_nobody_who_lived_on() -> None:
    """It died before the process table showed it, and what vanished then was ended by the launcher."""
    ranks = (RankState(tag="TP0", pid=11), RankState(tag="TP1"))
    server = play(*START[:3], server=ServerState(identity=identity(), ranks=ranks))
    server = lifecycle.apply_members(server, identity(members=()))
    assert [error.text for error in server.errors if error.silent] == []


def test_an_error_that_comes_later_than_the_deaths_it_explains() -> None:
    """The process table is looked at faster than a burst of tracebacks is read."""
    ranks = tuple(RankState(tag=f"TP{i}", pid=11 + i) for i in range(3))
    server = play(*START[:7], server=ServerState(identity=identity(), ranks=ranks))
    left = (Member(pid=11, ppid=10, start_ticks=1, title=""),)
    server = lifecycle.apply_members(server, identity(members=left))
    assert server.errors[0].silent
    server = play(fact(f.ERROR, 97, "TP2", summary="Not enough memory"), server=server)
    assert [(e.text, e.ranks) for e in server.errors] == [("Not enough memory", ("TP2",))]
    assert server.phase_evidence == "Not enough memory"
    assert lifecycle.apply_members(server, identity(members=())).errors == server.errors


def test_the_dead_hold_no_memory() -> None:
    memory = RankMemory(total_bytes=80)
    ranks = tuple(RankState(tag=f"TP{i}", pid=11 + i, memory=memory) for i in range(2))
    server = ServerState(identity=identity(), ranks=ranks)
    left = (Member(pid=11, ppid=10, start_ticks=1, title=""),)
    assert [r.memory.total_bytes for r in lifecycle.apply_members(server, identity(members=left)).ranks] == [80, None]
    gone = lifecycle.apply_gone(server, (12,), None).ranks
    assert [r.memory.total_bytes for r in gone] == [None, 80]
    assert [r.last_memory.total_bytes for r in gone] == [80, None]
    assert lifecycle.dead(gone[0]) == gone[0], "what it held is not forgotten by asking twice"


def test_a_secondary_error_is_noted_and_decides_nothing() -> None:
    server = play(*START, fact(f.ERROR, 122, "TP1", summary="Connection closed by peer", secondary=True))
    assert server.phase is Phase.WARMUP
    assert len(server.errors) == 1


def test_an_error_while_serving_is_noted_only_unless_fatal() -> None:
    assert play(*READY, fact(f.ERROR, 200, summary="bad request")).phase is Phase.READY
    assert play(*READY, fact(f.ERROR, 200, summary="oom", fatal=True)).phase is Phase.FAILED


def test_children_that_die_of_a_wanted_stop_are_no_crash() -> None:
    server = play(*READY, fact(f.STOP_ASKED, 300, signal="SIGTERM"), fact(f.DIED, 301, exit_code=-15))
    assert server.phase is Phase.STOPPING
    assert lifecycle.apply_gone(server, (), STARTED_AT + 302).phase is Phase.STOPPED


def test_a_child_that_dies_unasked_is_a_failure() -> None:
    server = play(*READY, fact(f.DIED, 300, what="scheduler_0", exit_code=-9))
    assert server.phase is Phase.FAILED


def test_vanishing_without_a_word_is_a_failure_that_says_so() -> None:
    server = lifecycle.apply_gone(play(*READY), (), STARTED_AT + 500)
    assert server.phase is Phase.FAILED
    assert "without a word" in server.phase_evidence


def test_a_second_start_in_the_same_log_forgets_the_first() -> None:
    failed = play(*START[:7], fact(f.ERROR, 97, "TP0", summary="Not enough memory"))
    again = play(fact(f.ARGS, 200, settings={"mem_fraction_static": 0.88}), server=failed)
    assert (again.phase, again.errors, len(again.phases)) == (Phase.ARGS, (), 1)
    assert again.settings == {"mem_fraction_static": 0.88}
    assert all(r.log_terms.weights_bytes is None for r in again.ranks)


def test_a_second_args_line_of_the_same_start_only_adds() -> None:
    server = play(fact(f.ARGS, 1, settings={"a": 1}), fact(f.ARGS, 2, settings={"b": 2}))
    assert server.settings == {"a": 1, "b": 2}
    assert len(server.phases) == 1


def test_a_rank_that_left_the_process_table_is_dead_and_the_server_with_it() -> None:
    ranks = (RankState(tag="TP0", pid=11), RankState(tag="TP1", pid=12))
    members = (Member(pid=11, ppid=10, start_ticks=1, title="sglang::scheduler_TP0"),)
    server = play(*READY, server=ServerState(identity=identity(), ranks=ranks))
    server = lifecycle.apply_members(server, identity(members=members))
    assert [r.alive for r in server.ranks] == [True, False]
    assert server.phase is Phase.FAILED
    assert "TP1 (pid 12)" in server.phase_evidence


def test_a_zombie_is_not_alive() -> None:
    ranks = (RankState(tag="TP0", pid=11),)
    zombie = (Member(pid=11, ppid=10, start_ticks=1, title="", state="Z"),)
    server = lifecycle.apply_members(ServerState(identity=identity(), ranks=ranks), identity(members=zombie))
    assert server.ranks[0].alive is False


@pytest.mark.parametrize("kind", [f.DECODE, f.STATS])
def test_a_server_that_decodes_has_ended_its_start(kind: str) -> None:
    assert play(*START[:6], fact(kind, 200, "TP0", tok_s=80.0)).phase is Phase.READY


def test_rank_order_is_by_number_and_replica() -> None:
    assert sorted(["TP10", "TP2", "TP0"], key=lifecycle.rank_order) == ["TP0", "TP2", "TP10"]
    tags = ["DP1 TP0", "DP10 TP2", "DP0 TP1", "DP0 TP0"]
    assert sorted(tags, key=lifecycle.rank_order) == ["DP0 TP0", "DP0 TP1", "DP1 TP0", "DP10 TP2"]
