"""Runs and the lease, from events to what a screen says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.support import changing, states
from tuner.core import runs
from tuner.core.reduce import initial, reduce
from tuner.core.run_words import left_words, way_words
from tuner.core.tuning import tune
from tuner.domain import events as e
from tuner.domain.acts import EndLeftovers, ResumeRun
from tuner.domain.recipe import Recipe
from tuner.domain.runs import Lease, Leftover, MemoryBack, Operator, ProcessId, RunOutcome, RunRecord, RunStep
from tuner.domain.state import HostState
from tuner.domain.tuning import Wish
from tuner.engines import load_engines

ME = Operator(session="s1", name="ada", machine="laptop")
OLD, NEW = ProcessId(pid=100, start_ticks=11), ProcessId(pid=200, start_ticks=22)


def record(number: int, **more: Any) -> RunRecord:
    return RunRecord(id=f"run-{number}", operator=ME, began_at=1000.0 + number, updated_at=1000.0 + number, **more)


def folded(*happened: e.AnyEvent, state: HostState | None = None) -> HostState:
    state = state or initial("box")
    for event in happened:
        state, _ = reduce(state, event, {})
    return state


def told(*records: RunRecord) -> HostState:
    return folded(*(e.RunChanged(run=each) for each in records))


def test_runs_are_kept_newest_first_once_each_and_bounded() -> None:
    state = told(record(2), record(1), record(2, step=RunStep.STOP), record(3))
    assert [(run.id, run.step) for run in state.runs] == [
        ("run-3", RunStep.CHECK),
        ("run-2", RunStep.STOP),
        ("run-1", RunStep.CHECK),
    ]
    many = told(*(record(number) for number in range(50)))
    assert [run.id for run in many.runs] == [f"run-{number}" for number in range(49, 29, -1)]


def test_the_lease_is_the_last_one_told() -> None:
    other = Operator(session="s2", name="bob")
    state = folded(e.LeaseChanged(lease=Lease(holder=ME, mine=True)), e.LeaseChanged(lease=Lease(lost_to=other)))
    assert state.lease == Lease(lost_to=other)


def of_server(state: HostState, **more: Any) -> RunRecord:
    identity = state.servers[0].identity
    leader = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    return record(1, new=leader, preset="base-88", title="The base", outcome=RunOutcome.READY, alive=True, **more)


def with_runs(state: HostState, *records: RunRecord) -> HostState:
    return folded(*(e.RunChanged(run=each) for each in records), state=state)


def test_a_server_is_known_by_pid_and_start_never_by_pid_alone() -> None:
    state = states.serving()
    known = with_runs(state, of_server(state))
    assert runs.preset_of(known, known.servers[0]) == ("base-88", "The base")
    identity = state.servers[0].identity
    reused = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks + 1)
    strange = with_runs(state, record(1, new=reused, preset="base-88"))
    assert runs.run_of(strange, strange.servers[0]) is None
    assert runs.preset_of(strange, strange.servers[0]) == ("", "")


def test_a_wrapped_server_is_known_by_the_run_in_its_environment() -> None:
    state = states.serving()
    server = state.servers[0]
    identity = states.REPLACE(server.identity, env={"GPUTUNER_RUN": "run-1"})
    state = states.REPLACE(state, servers=(states.REPLACE(server, identity=identity),))
    known = with_runs(state, record(1, new=NEW, preset="wrapped", title="t"))
    assert runs.preset_of(known, known.servers[0]) == ("wrapped", "t")
    assert runs.server_of(known, known.runs[0]) is known.servers[0]


def test_what_was_gone_back_to_has_the_preset_it_was_first_started_with() -> None:
    state = states.serving()
    identity = state.servers[0].identity
    now = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    first = record(1, new=OLD, preset="base-88", title="The base", outcome=RunOutcome.READY)
    back = record(2, old=OLD, new=now, preset="bad", back="The base", going_back=True, outcome=RunOutcome.BACK)
    known = with_runs(state, first, back)
    assert runs.preset_of(known, known.servers[0]) == ("base-88", "The base")
    adopted = with_runs(state, back)
    assert runs.preset_of(adopted, adopted.servers[0]) == ("", "The base")


def test_what_was_gone_back_to_from_a_run_that_is_forgotten_keeps_its_preset_and_recipe() -> None:
    state = states.serving()
    recipe = Recipe(name="box", host="box", engine="sglang", command=("python",), args=())
    back = {"back": "first with x 1", "back_preset": "first", "back_recipe": recipe}
    run = msgspec.structs.replace(of_server(state), outcome=RunOutcome.BACK, going_back=True, **back)
    known = with_runs(state, run)
    assert runs.preset_of(known, known.servers[0]) == ("first", "first with x 1")
    assert runs.recipe_of(known, known.servers[0]) == recipe


def test_a_start_that_was_cancelled_has_not_failed() -> None:
    loading = changing.loading()
    server = loading.servers[0]
    leader = ProcessId(pid=server.identity.pid, start_ticks=server.identity.start_ticks)
    steps = changing.steps((RunStep.LAUNCH, 18, 19, ""), (RunStep.LOADING, 19, 30, ""), (RunStep.STOP, 30, None, ""))
    cancelled = record(1, new=leader, steps=steps, cancelled_by=Operator(session="s", name="root", machine="vm"))

    def phases(*happened: e.AnyEvent) -> list[str]:
        seen: list[str] = []
        state = msgspec.structs.replace(loading, runs=())
        for event in happened:
            state, _ = reduce(state, event, {})
            seen.append(str(state.servers[0].phase))
        return seen

    gone = e.ServerGone(key=server.identity.key, at=steps[-1].at + 5)
    ended = states.REPLACE(cancelled, outcome=RunOutcome.BACK, failed=leader, new=OLD, going_back=True)
    assert phases(e.RunChanged(run=cancelled), gone, e.RunChanged(run=ended)) == ["stopping", "stopped", "stopped"]
    assert phases(gone, e.RunChanged(run=ended)) == ["failed", "stopped"], "the record may come after the end"
    failed = states.REPLACE(ended, failure="exit code 1", cancelled_by=cancelled.cancelled_by)
    assert phases(gone, e.RunChanged(run=failed)) == ["failed", "failed"]
    serves = states.REPLACE(ended, failed=OLD, new=leader)
    assert phases(e.RunChanged(run=serves))[0] != "stopping", "what was gone back to serves on"


def test_last_good_is_the_newest_that_served_on_that_port() -> None:
    state = told(
        record(1, outcome=RunOutcome.READY, port=30000),
        record(2, outcome=RunOutcome.BACK, port=30000),
        record(3, outcome=RunOutcome.READY, port=31000),
        record(4, outcome=RunOutcome.FAILED, port=30000),
        record(5, port=30000, supervised=True),
    )

    def name(run: RunRecord | None) -> str | None:
        return None if run is None else run.id

    assert name(runs.last_good(state, 30000)) == "run-2"
    assert name(runs.last_good(state)) == "run-3"
    assert name(runs.last_good(state, 30000, before=state.runs[3])) == "run-1"
    assert runs.last_good(state, 32000) is None
    assert name(runs.active_run(state)) == "run-5"


@pytest.mark.parametrize(
    ("later", "left"),
    [
        ({"outcome": RunOutcome.READY, "port": 30000}, []),
        ({"outcome": RunOutcome.RUNNING, "supervised": True}, []),
        ({"outcome": RunOutcome.REFUSED, "port": 30000}, ["run-1"]),
        ({"outcome": RunOutcome.CANCELLED, "port": 30000}, ["run-1"]),
        ({"outcome": RunOutcome.READY, "port": 30001}, ["run-1"]),
    ],
)
def test_what_a_later_run_has_overtaken_is_neither_finished_nor_undone(later: dict[str, Any], left: list[str]) -> None:
    state = told(record(1, step=RunStep.STOP, port=30000, title="First"), record(2, **later))
    assert [each.run.id for each in runs.interrupted(state)] == left
    assert [each.id for each in state.runs if runs.overtaken(state, each)] == [x for x in ["run-1"] if x not in left]


def test_a_run_that_goes_on_is_not_interrupted() -> None:
    assert runs.interrupted(told(record(1, supervised=True), record(2, outcome=RunOutcome.READY))) == ()
    assert runs.active_run(told(record(1))) is None


@pytest.mark.parametrize(
    ("more", "ids", "words"),
    [
        ({"step": RunStep.CHECK, "back": "old"}, ["finish"], "nothing was touched yet"),
        ({"step": RunStep.STOP, "old": OLD, "back": "old"}, ["finish", "back"], "the old server is not seen any more"),
        ({"step": RunStep.LOADING, "new": NEW, "alive": True, "back": "old"}, ["finish", "back"], "pid 200"),
        ({"step": RunStep.LOADING, "new": NEW, "alive": True}, ["finish"], "lives"),
        ({"step": RunStep.LOADING, "new": NEW, "back": "old", "going_back": True}, ["finish"], "does not live"),
        (
            {"step": RunStep.MEMORY, "leftovers": (Leftover(pid=7, start_ticks=9, ours=True), Leftover(pid=8))},
            ["finish", "clean"],
            "nothing was started yet",
        ),
    ],
)
def test_an_interrupted_run_says_what_was_done_and_what_can_be(
    more: dict[str, Any], ids: list[str], words: str
) -> None:
    state = told(record(1, title="fast", **more))
    (found,) = runs.interrupted(state)
    assert [option.id for option in found.options] == ids
    assert words in left_words(state, found.run)
    for option in found.options:
        match option.id:
            case "finish":
                assert option.act == ResumeRun(run="run-1")
            case "back":
                assert option.act == ResumeRun(run="run-1", back=True)
            case "clean":
                assert option.act == EndLeftovers(run="run-1", processes=(ProcessId(pid=7, start_ticks=9),))


def hello(at: float) -> e.ProbeHello:
    return e.ProbeHello(protocol=1, python="3.11", pid=1, uid=0, hostname="h", boot_id="b", at=at, mono=at)


def test_after_a_lost_link_runs_stay_until_the_new_probe_has_not_told_them() -> None:
    holder = e.LeaseChanged(lease=Lease(holder=ME))
    state = folded(hello(1.0), e.RunChanged(run=record(1)), e.RunChanged(run=record(2)), holder, e.ScanEnded())
    again = folded(hello(9.0), e.RunChanged(run=record(2)), state=state)
    assert [run.id for run in again.runs] == ["run-2", "run-1"]
    assert again.lease.holder == ME
    after = folded(e.ScanEnded(), state=again)
    assert [run.id for run in after.runs] == ["run-2"]
    assert after.lease == Lease()


def test_a_cleaned_host_has_no_runs() -> None:
    assert folded(e.HostCleaned(), state=told(record(1), record(2))).runs == ()


# What can be gone back to.


def named(found: runs.Earlier | None) -> tuple[str, str] | None:
    return None if found is None else (found.again, found.title)


def test_from_a_good_server_one_goes_back_to_the_good_run_before_it() -> None:
    state = states.serving()
    first = record(0, new=OLD, outcome=RunOutcome.READY, port=30000, title="First", back="as it was")
    known = with_runs(state, first, of_server(state, port=30000, back="First"))
    assert named(runs.earlier(known, known.servers[0])) == ("run-0", "First")
    other_port = with_runs(state, states.REPLACE(first, port=1), of_server(state, port=30000, back="as it was"))
    assert named(runs.earlier(other_port, other_port.servers[0])) == ("back:run-1", "as it was")


def test_what_somebody_else_had_started_is_gone_back_to_before_an_older_run() -> None:
    """A unit was started by hand again after an earlier run, and then replaced."""
    state = states.serving()
    first = record(
        0, new=ProcessId(pid=OLD.pid + 1, start_ticks=5), outcome=RunOutcome.READY, port=30000, title="First"
    )
    known = with_runs(state, first, of_server(state, port=30000, old=OLD, back="the server as it was"))
    assert named(runs.earlier(known, known.servers[0])) == ("back:run-1", "the server as it was")


def test_a_server_that_has_ended_counts_as_none_for_the_way_back() -> None:
    state = states.serving()
    first = record(0, new=OLD, outcome=RunOutcome.READY, port=30000, title="First", back="as it was")
    own = of_server(state, port=30000, back="First")
    stopped = record(2, outcome=RunOutcome.STOPPED, port=30000, back="Second")
    known = with_runs(state, first, own, stopped)
    ended = states.REPLACE(known, servers=(states.REPLACE(known.servers[0], gone=True),))
    assert named(runs.earlier(ended, ended.servers[0])) == ("back:run-2", "Second")
    assert named(runs.earlier(ended, None)) == ("back:run-2", "Second")
    crashed = states.REPLACE(ended, runs=ended.runs[1:])
    assert named(runs.earlier(crashed, crashed.servers[0])) == named(runs.earlier(crashed, None))


def test_from_what_was_gone_back_to_one_goes_further_back_and_not_in_a_circle() -> None:
    state = states.serving()
    identity = state.servers[0].identity
    now = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    first = record(1, new=OLD, outcome=RunOutcome.READY, title="First", back="as it was")
    back = record(2, old=OLD, new=now, back="First", going_back=True, outcome=RunOutcome.BACK)
    known = with_runs(state, first, back)
    assert named(runs.earlier(known, known.servers[0])) == ("back:run-1", "as it was")


def test_from_what_became_ready_and_ended_one_goes_back_as_from_what_still_serves() -> None:
    state = states.serving()
    boot = "" if state.hello is None else state.hello.boot_id or ""
    first = record(0, new=OLD, outcome=RunOutcome.READY, port=30000, title="First", back="as it was")
    crashed = record(1, outcome=RunOutcome.READY, port=30000, title="Second", back="First", exit_code=-9, boot_id=boot)
    assert named(runs.earlier(with_runs(state, first, crashed), None)) == ("run-0", "First")
    assert named(runs.earlier(with_runs(state, crashed), None)) == ("back:run-1", "First")
    stopped = record(2, outcome=RunOutcome.STOPPED, port=30000, back="Second", boot_id=boot)
    assert named(runs.earlier(with_runs(state, first, crashed, stopped), None)) == ("back:run-2", "Second")
    before_boot = states.REPLACE(crashed, boot_id="another")
    assert named(runs.earlier(with_runs(state, first, before_boot), None)) == ("run-1", "Second")


def test_the_screen_goes_on_to_the_server_that_a_run_started() -> None:
    state = changing.loading()
    before = states.REPLACE(state, servers=())
    new = state.servers[0].identity.key
    assert runs.successor(before, state, None) == new
    assert runs.successor(before, state, "7:7") == new
    assert runs.successor(state, state, "7:7") is None, "once only: the operator may look at another"
    chosen = states.REPLACE(state.servers[0], identity=states.REPLACE(state.servers[0].identity, key="7:7", pid=7))
    both = states.REPLACE(state, servers=(chosen, *state.servers))
    assert runs.successor(before, both, "7:7") is None, "what is chosen lives"
    ended = states.REPLACE(both, servers=(states.REPLACE(chosen, gone=True), *state.servers))
    assert runs.successor(before, ended, "7:7") == new


def test_from_a_failed_or_foreign_server_one_goes_back_to_the_last_good_run() -> None:
    state = states.serving()
    good = record(1, new=OLD, outcome=RunOutcome.READY, port=30000, title="Good")
    known = with_runs(state, good)
    assert named(runs.earlier(known, known.servers[0])) == ("run-1", "Good")
    assert named(runs.earlier(known, None)) == ("run-1", "Good")
    identity = state.servers[0].identity
    own = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    failed = with_runs(known, record(2, new=own, outcome=RunOutcome.FAILED, port=30000))
    assert named(runs.earlier(failed, failed.servers[0])) == ("run-1", "Good")
    assert runs.earlier(state, state.servers[0]) is None
    had = with_runs(known, record(2, new=own, outcome=RunOutcome.FAILED, port=30000, back="as it was"))
    assert named(runs.earlier(had, had.servers[0])) == ("back:run-2", "as it was")
    stopped = with_runs(known, record(2, outcome=RunOutcome.STOPPED, port=30000, back="as it was"))
    assert named(runs.earlier(stopped, None)) == ("back:run-2", "as it was")
    refused = with_runs(known, record(2, outcome=RunOutcome.REFUSED, port=30000, back="as it was"))
    assert named(runs.earlier(refused, None)) == ("run-1", "Good")


def test_what_was_gone_back_to_is_started_again_as_the_way_back_of_its_run() -> None:
    assert runs.like(record(1, outcome=RunOutcome.READY)) == "run:run-1"
    assert runs.like(record(1, outcome=RunOutcome.BACK, going_back=True)) == "back:run-1"


def later_server(**run: Any) -> HostState:
    """A server on all GPUs, and a run that was interrupted before it was started."""
    state = states.serving()
    began = state.servers[0].identity.started_at
    assert began is not None
    held = (MemoryBack(gpu=3, before_bytes=1, held_bytes=1),)
    at = run.pop("began_at", began - 60)
    left = {"old": OLD, "port": 40_000, "step": RunStep.MEMORY, "title": "fast", "back": "old", "memory": held, **run}
    return with_runs(state, replace(record(1, **left), began_at=at))


@pytest.mark.parametrize("known", [{}, {"memory": (), "old": None}], ids=["gpus-known", "only-a-start"])
def test_a_server_that_came_since_on_the_same_gpus_is_in_the_way_of_an_interrupted_run(known: dict[str, Any]) -> None:
    state = later_server(**known)
    pid, port = state.servers[0].identity.pid, state.servers[0].identity.port
    why, way_out = way_words(state, state.runs[0])
    assert why.startswith(f"pid {pid} on port {port} was started since, and runs on GPU 0, 1, 2, 3, 4, 5, 6, 7")
    assert f"gputuner stop {state.name} --server {pid}" in way_out
    stop = Wish(server=states.KEY, start=False)
    checks = tune(state, stop, load_engines(), {}, run="r", operator=ME).checks
    (check,) = [each for each in checks if each.id == "run"]
    assert f"pid {pid} on port {port} was started since" in check.way_out


@pytest.mark.parametrize(
    "run",
    [
        {"began_at": states.WALL},
        {"memory": (MemoryBack(gpu=8, before_bytes=1, held_bytes=1),)},
        {"alive": True, "new": NEW},
        {"new": ProcessId(pid=48211, start_ticks=states.serving().servers[0].identity.start_ticks)},
    ],
    ids=["before", "other-gpus", "its-own-lives", "its-own"],
)
def test_another_server_is_not_in_the_way(run: dict[str, Any]) -> None:
    state = later_server(**run)
    assert runs.in_the_way(state, state.runs[0]) is None
    assert way_words(state, state.runs[0]) == ("", "")
