"""A wish put together: recipe, preset, what changes, forecast, checks, order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support import states
from tests.unit.core.test_runs import ME, OLD, record, with_runs
from tuner.core.tuning import tune
from tuner.domain.preflight import Check, Verdict
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.domain.runs import Lease, Leftover, Operator, ProcessId, RunOutcome
from tuner.domain.server import Member
from tuner.domain.state import HostState
from tuner.domain.tuning import Tuning, Wish
from tuner.engines import load_engines

ENGINES = load_engines()
REPLACE = msgspec.structs.replace
PRESETS = {
    "two": Preset(id="two", title="Two channels", why="w", env={"NCCL_MAX_NCHANNELS": "2"}, path="two.toml"),
    "more": Preset(
        id="more", title="More", why="w", extends=("two",), args={"max_running_requests": 64}, path="more.toml"
    ),
    "low": Preset(id="low", title="Low", why="w", args={"mem_fraction_static": 0.5}, path="low.toml"),
    "vllm": Preset(id="vllm", title="V", why="w", engine="vllm", args={"enforce_eager": True}, path="vllm.toml"),
}


def tuned(state: HostState, wish: Wish, **more: Any) -> Tuning:
    return tune(state, wish, ENGINES, PRESETS, run="run-9", operator=ME, **more)


def refusing(tuning: Tuning) -> list[str]:
    return [check.id for check in tuning.checks if check.verdict is Verdict.FAIL]


def test_a_preset_and_overrides_become_one_start_and_one_order() -> None:
    state = states.serving()
    made = tuned(state, Wish(server=states.KEY, preset="more", overrides={"max_running_requests": 32}))
    assert made.launch is not None
    assert made.order is not None
    argv = made.launch.argv
    assert argv[: len(states.ARGV) - 2] == states.ARGV[:-2]
    assert argv[argv.index("--max-running-requests") + 1] == "32"
    assert made.launch.env["NCCL_MAX_NCHANNELS"] == "2"
    moved = {change.name: (change.now, change.then) for change in made.changes if change.changed}
    assert moved["max_running_requests"] == (48, 32)
    assert {str(value) for value in moved["NCCL_MAX_NCHANNELS"]} == {"16", "2"}
    assert (made.order.run, made.order.operator) == ("run-9", ME)
    assert made.order.start is not None
    assert (made.order.start.argv, made.order.start.preset) == (argv, "more")
    assert made.order.stop is not None
    assert made.ask is not None
    assert made.ask.key == states.KEY


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "PATH"])
@pytest.mark.parametrize("local", [True, False])
def test_a_preset_of_the_working_folder_that_chooses_code_is_warned_of(name: str, local: bool) -> None:
    path = "presets/evil.toml"
    evil = Preset(
        id="evil",
        title="E",
        why="w",
        env={name: "/tmp/x"},
        path=path,
        lines={f"env.{name}": 5},
        local=(path,) if local else (),
    )
    top = Preset(id="top", title="T", why="w", extends=("evil",), env={"NCCL_MAX_NCHANNELS": "2"}, path="mine.toml")
    for wanted in ("evil", "top"):
        made = tune(
            states.serving(),
            Wish(server=states.KEY, preset=wanted),
            ENGINES,
            {"evil": evil, "top": top},
            run="run-9",
            operator=ME,
        )
        warned = [each.detail for each in made.checks if each.id == "preset" and each.verdict is Verdict.WARN]
        assert len(warned) == local
        assert all(f"presets/evil.toml:5 sets {name}," in detail for detail in warned)


def test_a_recipe_of_another_host_is_noted() -> None:
    state = states.serving()
    for host, noted in ((f"root@{state.name}", False), (state.name, False), ("root@gpu-box-9", True)):
        recipe = Recipe(name="r", host=host, engine="sglang", command=states.ARGV[:3], args=states.ARGV[3:])
        made = tuned(state, Wish(server=states.KEY, recipe=recipe))
        assert made.launch is not None
        assert ("the recipe r is of root@gpu-box-9, another host" in made.launch.notes) is noted


def test_the_bare_recipe_changes_nothing() -> None:
    made = tuned(states.serving(), Wish(server=states.KEY))
    assert made.launch is not None
    assert made.launch.argv == states.ARGV
    assert [change for change in made.changes if change.changed] == []
    assert made.refused == ()


def test_a_stop_alone_starts_nothing() -> None:
    made = tuned(states.serving(), Wish(server=states.KEY, start=False, drain_s=30.0))
    assert made.order is not None
    assert (made.order.start, made.launch) == (None, None)
    assert made.order.back is not None
    assert made.order.back.like == f"server:{states.KEY}", "so that it can be had again"
    other = REPLACE(states.serving(), hello=REPLACE(states.serving().hello, uid=1000))
    assert tuned(other, Wish(server=states.KEY, start=False)).order.back is None, "its environment cannot be read"
    assert made.order.stop is not None
    assert made.order.stop.steps[0].wait_s == 30.0


@pytest.mark.parametrize(
    ("wish", "refused"),
    [
        (Wish(server=states.KEY, preset="nope"), ["preset"]),
        (Wish(server=states.KEY, preset="vllm"), ["preset"]),
        (Wish(server="1:1", start=False), ["server"]),
        (Wish(server="1:1"), ["server", "preset"]),
        (Wish(), ["preset"]),
        (Wish(server=states.KEY, again="run-77"), ["preset"]),
    ],
)
def test_what_cannot_be_put_together_refuses_with_a_reason(wish: Wish, refused: list[str]) -> None:
    made = tuned(states.serving(), wish)
    assert set(refused) <= set(refusing(made))
    assert made.order is None
    assert all(made.refused)


def test_why_it_is_refused_is_said_in_sentences() -> None:
    check = Check(id="llm", title="LLM", verdict=Verdict.FAIL, detail="/m does not exist", way_out="correct the path")
    assert Tuning(wish=Wish(), checks=(check,)).refused == ("LLM: /m does not exist. Correct the path",)


def test_a_start_that_does_not_fit_is_refused_unless_the_operator_overrules_the_forecast() -> None:
    state = states.explained()
    gone = state.servers[0]
    assert gone.gone
    good = with_runs(state, record(1, new=ProcessId(pid=gone.identity.pid, start_ticks=gone.identity.start_ticks)))
    wish = Wish(server=gone.identity.key, preset="low")
    made = tuned(good, wish)
    assert refusing(made) == ["memory"]
    assert made.planned is not None
    tried = tuned(good, REPLACE(wish, ignore_forecast=True))
    assert tried.refused == ()
    assert tried.order is not None


def test_a_server_that_ended_is_started_as_it_was_with_the_secrets_of_its_run() -> None:
    state = states.explained()
    gone = state.servers[0].identity
    own = ProcessId(pid=gone.pid, start_ticks=gone.start_ticks)
    wish = Wish(server=gone.key, overrides={"mem_fraction_static": 0.88})
    made = tuned(with_runs(state, record(1, new=own, outcome=RunOutcome.FAILED)), wish)
    assert made.refused == ()
    assert made.order is not None
    assert made.order.stop is None
    assert made.order.start is not None
    assert made.order.start.like == "run:run-1"
    alone = tuned(state, wish)
    assert refusing(alone) == ["secrets"]
    seen = tuned(REPLACE(state, seen=frozenset({gone.key})), wish)
    assert refusing(seen) == []
    assert seen.launch is not None
    assert seen.launch.like == f"server:{gone.key}", "this probe has seen it, and remembers its secrets"


def test_what_fits_after_a_failure_is_offered_with_its_interval() -> None:
    state = states.explained()
    made = tuned(state, Wish(server=state.servers[0].identity.key, overrides={"mem_fraction_static": 0.88}))
    assert made.planned is not None
    assert made.planned.then.f_min is not None
    assert made.planned.then.f_max is not None
    assert made.planned.then.f_min < 0.88 < made.planned.then.f_max
    assert "memory" not in refusing(made)


def test_another_operator_or_a_run_that_goes_on_refuses_it() -> None:
    state = states.serving()
    other = REPLACE(state, lease=Lease(holder=Operator(session="s2", name="bob"), beat_at=states.WALL))
    assert refusing(tuned(other, Wish(server=states.KEY))) == ["lease"]
    busy = with_runs(state, record(1, supervised=True))
    assert refusing(tuned(busy, Wish(server=states.KEY))) == ["run"]
    left = tuned(with_runs(state, record(1)), Wish(server=states.KEY))
    assert [check.verdict for check in left.checks if check.id == "run"] == [Verdict.WARN]
    assert left.refused == ()


def test_a_stopped_server_of_which_nothing_is_left_is_still_asked_whether_it_serves() -> None:
    """Its command line is on the host; which engine it has is told by the run that had started it."""
    leader = ProcessId(pid=77, start_ticks=8)
    began = record(1, outcome=RunOutcome.READY, new=leader, argv=states.ARGV, port=30000, back="x")
    stopped = record(2, outcome=RunOutcome.STOPPED, old=leader, port=30000, back="what run 1 started")
    state = with_runs(msgspec.structs.replace(states.serving(), servers=()), stopped, began)
    order = tuned(state, Wish(server="", again="back:run-2")).order
    assert order is not None
    assert order.start is not None
    assert order.start.health is not None
    assert order.start.first_token is not None


def test_an_earlier_run_is_started_again_exactly_as_it_was() -> None:
    state = states.serving()
    argv = (*states.ARGV[:-2], "--max-running-requests", "8", *states.ARGV[-2:])
    run = record(1, new=OLD, outcome=RunOutcome.READY, argv=argv, port=30000, preset="p", title="P", back="old")
    known = with_runs(state, run)
    made = tuned(known, Wish(server=states.KEY, again="run-1"))
    assert made.order is not None
    assert made.order.start is not None
    assert (made.order.start.argv, made.order.start.like, made.order.start.preset) == (argv, "run:run-1", "p")
    assert {change.name: change.then for change in made.changes if change.changed} == {"max_running_requests": 8}
    before = tuned(known, Wish(server=states.KEY, again="back:run-1"))
    assert before.order is not None
    assert before.order.start is not None
    assert (before.order.start.argv, before.order.start.like, before.order.start.title) == ((), "back:run-1", "old")
    assert before.planned is None


def test_what_a_service_manager_kept_is_started_again_by_it_and_not_beside_it() -> None:
    run = record(1, new=OLD, outcome=RunOutcome.READY, argv=states.ARGV, port=30000, back="the server as it was")
    state = with_runs(states.serving(), run)
    facts = {"start": {"refused": None, "manager": ["systemctl", "start", "llm.service"]}}
    made = tuned(state, Wish(server=states.KEY, again="back:run-1"), facts=facts)
    assert made.order is not None
    assert made.order.start is not None
    assert (made.order.start.manager, made.order.start.argv) == (("systemctl", "start", "llm.service"), ())
    (check,) = [each for each in made.checks if each.id == "start"]
    assert (check.verdict, "`systemctl start llm.service`" in check.detail) == (Verdict.OK, True)
    other = tuned(state, Wish(server=states.KEY, overrides={"max_running_requests": 8}), facts=facts)
    assert other.order is not None
    assert other.order.start is not None
    assert other.order.start.manager == ()


def test_nothing_starts_in_the_place_of_a_server_that_is_about_to_come_back() -> None:
    state = states.failed()
    gone = state.servers[0]
    wish = Wish(server=gone.identity.key, overrides={"mem_fraction_static": 0.85})
    made = tuned(state, wish)
    assert made.ask is not None
    assert (made.ask.key, made.ask.ended) == ("", gone.identity.key)
    back = {"by": "systemd", "unit": "llm.service", "restart": "always"}
    assert "manager" in refusing(tuned(state, wish, facts={"returning": back}))
    assert "manager" not in refusing(tuned(state, wish, facts={"returning": {"by": None}}))


def test_flags_that_the_installed_engine_lacks_refuse_it_but_not_those_that_the_running_one_took() -> None:
    state = states.serving()
    known = frozenset(
        {"--model-path", "--tp-size", "--mem-fraction-static", "--host", "--port", "--max-running-requests"}
    )
    made = tuned(state, Wish(server=states.KEY, overrides={"max_running_requests": 4}), flags=known)
    assert "flags" not in refusing(made)
    lacking = tuned(state, Wish(server=states.KEY, overrides={"kv_cache_dtype": "fp8_e5m2"}), flags=known)
    assert refusing(lacking) == ["flags"]


def test_the_installed_version_decides_how_a_knob_is_spelled() -> None:
    state = states.serving()
    wish = Wish(server=states.KEY, overrides={"cuda_graph_max_bs": 64})
    old = tuned(state, wish)
    new = tuned(state, wish, facts={"version": {"package": "sglang", "version": "0.5.23"}})
    assert old.launch is not None
    assert new.launch is not None
    assert "--cuda-graph-max-bs" in old.launch.argv
    assert "--cuda-graph-max-bs-decode" in new.launch.argv
    assert (old.version, new.version) == ("0.5.9", "0.5.23")


# What a preset is laid over.


def started(state: HostState, wish: Wish) -> HostState:
    """Return the state in which a run has started what a wish orders, on the server of the state."""
    made = tuned(state, wish)
    assert made.order is not None
    start = made.order.start
    assert start is not None
    server = state.servers[0]
    env = {**(server.identity.env or {}), **start.env}
    for name in start.unset:
        env.pop(name, None)
    identity = REPLACE(server.identity, argv=start.argv, env=env)
    own = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    number = len(state.runs)
    run = record(
        number, new=own, outcome=RunOutcome.READY, preset=start.preset, title=start.title, recipe=start.recipe,
        argv=start.argv, env=start.env, port=start.port, cwd=start.cwd,
    )  # fmt: skip
    known = with_runs(REPLACE(state, runs=()), *state.runs, run)
    return REPLACE(known, servers=(REPLACE(server, identity=identity), *state.servers[1:]))


def test_presets_replace_each_other_and_do_not_add_up() -> None:
    state = started(states.serving(), Wish(server=states.KEY, preset="more"))
    made = tuned(state, Wish(server=states.KEY, preset="low"))
    assert made.launch is not None
    assert "--max-running-requests" not in made.launch.argv
    assert made.launch.argv[made.launch.argv.index("--mem-fraction-static") + 1] == "0.5"
    assert made.launch.env["NCCL_MAX_NCHANNELS"] == "16", "as before any preset"
    moved = {change.name: change.then for change in made.changes if change.changed}
    assert moved["max_running_requests"] is None
    bare = tuned(state, Wish(server=states.KEY, bare=True))
    assert bare.launch is not None
    assert (bare.launch.argv, bare.launch.preset) == (states.ARGV, "")
    again = started(state, Wish(server=states.KEY, preset="low"))
    back = tuned(again, Wish(server=states.KEY, preset="more"))
    first = tuned(states.serving(), Wish(server=states.KEY, preset="more"))
    assert back.launch is not None
    assert first.launch is not None
    assert (back.launch.argv, back.launch.env) == (first.launch.argv, first.launch.env)


def test_after_a_way_back_the_next_preset_is_laid_over_the_recipe_too() -> None:
    state = started(states.serving(), Wish(server=states.KEY, preset="more"))
    failed = tuned(state, Wish(server=states.KEY, preset="two")).order
    assert failed is not None
    assert failed.back is not None
    identity = state.servers[0].identity
    run = record(
        9, new=ProcessId(pid=identity.pid, start_ticks=identity.start_ticks), outcome=RunOutcome.BACK, going_back=True,
        preset="two", argv=identity.argv, port=identity.port, back=failed.back.title, back_preset=failed.back.preset,
        back_recipe=failed.back.recipe,
    )  # fmt: skip
    gone_back = with_runs(REPLACE(state, runs=()), run)
    made = tuned(gone_back, Wish(server=states.KEY, preset="low"))
    assert made.launch is not None
    assert "--max-running-requests" not in made.launch.argv
    kept = tuned(gone_back, Wish(server=states.KEY, overrides={"mem_fraction_static": 0.86}))
    assert kept.launch is not None
    assert (kept.launch.preset, kept.launch.title) == ("more", "more with mem_fraction_static 0.86")
    again = tuned(REPLACE(gone_back, servers=()), Wish(again="run-9"))
    assert again.order is not None
    assert again.order.start is not None
    assert (again.order.start.preset, again.order.start.recipe) == ("more", failed.back.recipe)


def test_overrides_alone_are_laid_over_the_server_as_it_runs() -> None:
    state = started(states.serving(), Wish(server=states.KEY, preset="more"))
    made = tuned(state, Wish(server=states.KEY, overrides={"mem_fraction_static": 0.86}))
    assert made.launch is not None
    argv = made.launch.argv
    assert argv[argv.index("--max-running-requests") + 1] == "64"
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.86"
    assert made.launch.env["NCCL_MAX_NCHANNELS"] == "2"
    assert made.launch.preset == "more"
    assert made.launch.title == "more with mem_fraction_static 0.86"
    later = started(state, Wish(server=states.KEY, overrides={"mem_fraction_static": 0.86}))
    low = tuned(later, Wish(server=states.KEY, preset="two"))
    assert low.launch is not None
    assert "0.88" in low.launch.argv, "the recipe is still the first one"


def left_behind(*, seen_die: bool) -> HostState:
    """Return a host on which the leader of a run's server was killed, and its workers go on."""
    state = started(states.serving(), Wish(server=states.KEY, preset="more"))
    server = state.servers[0]
    workers = tuple(
        Member(pid=pid, ppid=1, start_ticks=9_000_000 + pid, title="VLLM::Worker_TP0") for pid in (501, 502)
    )
    if seen_die:
        identity = REPLACE(server.identity, members=workers)
        dead = REPLACE(server, identity=identity, gone=True, left_pids=(501, 502), left_key="501:9000501")
        return REPLACE(state, servers=(dead,))
    identity = REPLACE(
        server.identity, key="501:9000501", pid=501, start_ticks=9_000_501, members=workers, orphaned=True, argv=("X",)
    )
    left = tuple(
        Leftover(pid=each.pid, start_ticks=each.start_ticks, uid=0, title=each.title, ours=True) for each in workers
    )
    ended = REPLACE(state.runs[0], leftovers=left, exit_code=-9)
    return REPLACE(state, servers=(REPLACE(server, identity=identity),), runs=(ended,))


@pytest.mark.parametrize("seen_die", [True, False])
@pytest.mark.parametrize("wish", [Wish(preset="low"), Wish(start=False), Wish(again="run-1")])
def test_what_a_dead_leader_left_behind_is_stopped_before_anything_starts(wish: Wish, seen_die: bool) -> None:
    state = left_behind(seen_die=seen_die)
    wish = REPLACE(wish, again=state.runs[0].id) if wish.again else wish
    if seen_die and wish.preset:
        wish = REPLACE(wish, server=states.KEY)
    made = tuned(state, wish)
    assert made.order is not None, made.refused
    stop = made.order.stop
    assert stop is not None
    assert (stop.leader.pid, stop.leader.start_ticks) == (501, 9_000_501)
    assert [each.pid for each in stop.members] == [502]
    assert (made.order.start is None) is (not wish.start)


def test_what_a_foreign_leader_left_behind_is_not_touched_unasked() -> None:
    state = left_behind(seen_die=False)
    runs_before = REPLACE(state.runs[0], leftovers=())
    made = tuned(REPLACE(state, runs=(runs_before,)), Wish(again=state.runs[0].id))
    assert made.order is not None
    assert made.order.stop is None


def test_where_no_server_is_known_the_newest_run_tells_how_one_is_started() -> None:
    ran = started(states.serving(), Wish(server=states.KEY, preset="more"))
    failed = REPLACE(ran.runs[0], outcome=RunOutcome.FAILED)
    state = REPLACE(with_runs(ran, failed), servers=())
    mended = tuned(state, Wish(overrides={"max_running_requests": 8}))
    assert mended.order is not None
    assert mended.order.start is not None
    assert mended.order.start.like == f"run:{failed.id}"
    assert mended.launch is not None
    assert mended.launch.argv[mended.launch.argv.index("--max-running-requests") + 1] == "8"
    other = tuned(state, Wish(preset="low"))
    assert other.launch is not None
    assert "--max-running-requests" not in other.launch.argv
    assert other.launch.env["NCCL_MAX_NCHANNELS"] == "16"
    assert other.refused == ()
