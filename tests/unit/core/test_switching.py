"""The order for a host: what is stopped and how, what is started, what is gone back to."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import states
from tests.unit.core.test_runs import ME, OLD, record, with_runs
from tuner.core.respawn import Keeper
from tuner.core.switching import launch_order, switch_order
from tuner.domain.recipe import Launch
from tuner.domain.runs import ProcessId, RunOutcome, SwitchOrder
from tuner.domain.server import LogSource, Phase
from tuner.domain.state import HostState, ServerState
from tuner.engines import load_engines

ENGINES = load_engines()
REPLACE = msgspec.structs.replace
ARGV = ("/opt/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/x", "--tp-size", "4")


def launch(**more: Any) -> Launch:
    return Launch(argv=ARGV, port=30000, like=f"server:{states.KEY}", preset="fast", title="Fast", **more)


def order(state: HostState, wanted: Launch | None, server: ServerState | None = None, **more: Any) -> SwitchOrder:
    return switch_order(state, server, wanted, ENGINES, run="run-9", operator=ME, **more)


def changed(state: HostState, **more: Any) -> tuple[HostState, ServerState]:
    server = REPLACE(state.servers[0], **more)
    return REPLACE(state, servers=(server, *state.servers[1:])), server


def test_what_is_stopped_is_named_by_identity_with_its_gpus() -> None:
    state = states.serving()
    stop = order(state, None, state.servers[0]).stop
    assert stop is not None
    assert stop.boot_id == "b"
    assert (stop.leader.pid, stop.leader.start_ticks, stop.leader.uid) == (48211, 8190000, 0)
    assert [each.pid for each in stop.members] == [48377 + rank for rank in range(8)]
    assert stop.gpus == tuple(info.uuid for info in states.infos(8))
    assert stop.port == 30000


def test_what_the_ranks_say_they_allocated_is_sent_where_all_ranks_of_a_gpu_say_it() -> None:
    state = states.serving()
    first, second, third, *_ = state.servers[0].ranks
    ranks = (
        REPLACE(first, memory=REPLACE(first.memory, weights_bytes=5, kv_bytes=7)),
        REPLACE(second, memory=REPLACE(second.memory, weights_bytes=5, kv_bytes=None)),
        REPLACE(third, memory=REPLACE(third.memory, weights_bytes=1, kv_bytes=2)),
        REPLACE(third, memory=REPLACE(third.memory, weights_bytes=3, kv_bytes=4)),
    )
    state, server = changed(state, ranks=ranks)
    stop = order(state, None, server).stop
    assert stop is not None
    uuids = [info.uuid for info in states.infos(8)]
    assert stop.claimed == {uuids[0]: 12, uuids[2]: 10}


def test_only_gpus_of_the_server_are_watched_and_no_zombie_is_a_member() -> None:
    state, server = changed(states.serving())
    dead = tuple(REPLACE(member, state="Z") for member in server.identity.members[5:])
    identity = REPLACE(server.identity, members=(*server.identity.members[:5], *dead))
    state, server = changed(state, identity=identity, ranks=server.ranks[:4])
    kept = {member.pid for member in identity.members}
    state = REPLACE(state, processes=tuple(each for each in state.processes if each.gpu < 4 or each.pid not in kept))
    stop = order(state, None, server).stop
    assert stop is not None
    assert stop.gpus == tuple(info.uuid for info in states.infos(4))
    assert [each.pid for each in stop.members] == [48377 + rank for rank in range(4)]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(("phase", "ladder"), [(Phase.READY, "serving"), (Phase.WEIGHT_LOAD, "loading"),
                                               (Phase.FAILED, "loading"), (Phase.STOPPING, "serving")])  # fmt: skip
def test_the_ladder_is_that_of_engine_and_phase(engine: str, phase: Phase, ladder: str) -> None:
    state, server = changed(states.serving(), phase=phase)
    state, server = changed(state, identity=REPLACE(server.identity, engine=engine))
    stop = order(state, None, server).stop
    assert stop is not None
    assert stop.steps == getattr(ENGINES[engine].behaviour().stopping, ladder)


def test_a_drain_is_the_first_term_where_the_engine_drains_and_a_wait_where_it_does_not() -> None:
    state, server = changed(states.serving())
    usual = ENGINES["sglang"].behaviour().stopping.serving
    sglang = order(state, None, server, drain_s=120.0).stop
    assert sglang is not None
    assert (sglang.steps[0].wait_s, sglang.drain_s, sglang.drain) == (120.0, 0.0, ())
    assert sglang.steps[1:] == usual[1:]
    state, server = changed(state, identity=REPLACE(server.identity, engine="vllm"))
    vllm = order(state, None, server, drain_s=120.0).stop
    behaviour = ENGINES["vllm"].behaviour().stopping
    assert vllm is not None
    assert (vllm.steps, vllm.drain_s, vllm.drain) == (behaviour.serving, 120.0, behaviour.drain)


def test_one_that_still_loads_has_nothing_to_drain() -> None:
    state, server = changed(states.serving(), phase=Phase.WEIGHT_LOAD)
    stop = order(state, None, server, drain_s=120.0).stop
    assert stop is not None
    assert (stop.steps, stop.drain_s) == (ENGINES["sglang"].behaviour().stopping.loading, 0.0)


def test_a_manager_stops_it_and_starts_it_again_on_the_way_back() -> None:
    state = states.serving()
    keeper = Keeper(stop=("systemctl", "stop", "u"), start=("systemctl", "start", "u"), wait_s=120.0)
    made = order(state, launch(), state.servers[0], keeper=keeper, drain_s=60.0)
    assert made.stop is not None
    assert made.back is not None
    assert (made.stop.manager, made.stop.manager_wait_s, made.stop.drain_s) == (keeper.stop, 120.0, 60.0)
    assert made.back.manager == keeper.start
    assert made.start is not None
    assert made.start.manager == ()


def test_the_log_of_the_way_back_goes_where_it_went_before_if_that_folder_is_proven() -> None:
    state = states.serving()
    source = LogSource(kind="file", path="/data/logs/server.log")
    state, server = changed(state, log=REPLACE(state.servers[0].log, source=source))

    def folder(launch_: Launch, server: ServerState | None, state: HostState) -> str | None:
        back = order(state, launch_, server).back
        assert back is not None
        return back.log_dir

    assert folder(launch(log_dir="/data/logs"), server, state) == "/data/logs"
    assert folder(launch(log_dir="/other"), server, state) is None, "nobody looked whether it can be written"
    assert folder(launch(), server, state) is None
    ready = record(1, new=OLD, outcome=RunOutcome.READY, argv=ARGV, port=30000, log="/data/logs/run-1.log")
    assert folder(launch(log_dir="/data/logs"), None, with_runs(state, ready)) == "/data/logs"
    own = REPLACE(ready, log="/root/.gputuner/runs/run-1/server.log")
    assert folder(launch(log_dir="/data/logs"), None, with_runs(state, own)) is None


def test_the_start_says_how_one_learns_that_it_serves() -> None:
    start = launch_order(launch(), ENGINES["sglang"], usual_s=1_500.0)
    behaviour = ENGINES["sglang"].behaviour()
    assert (start.argv, start.port, start.ranks) == (ARGV, 30000, 4)
    assert start.titles == behaviour.starting.rank_titles
    assert start.parts == ("^sglang::",)
    assert (start.health, start.first_token) == (behaviour.starting.health, behaviour.starting.first_token)
    assert start.stop == behaviour.stopping.loading
    assert (start.usual_s, start.deadline_s) == (1_500.0, 6_000.0)


@pytest.mark.parametrize(
    ("words", "ranks", "token"),
    [
        (("--nnodes", "2"), None, True),
        (("--is-embedding",), 4, False),
        (("--dp-size", "2"), 8, True),
    ],
)
def test_what_cannot_be_seen_on_one_host_or_generates_nothing_is_not_waited_for(
    words: tuple[str, ...], ranks: int | None, token: bool
) -> None:
    start = launch_order(Launch(argv=(*ARGV, *words), port=1), ENGINES["sglang"])
    assert start.ranks == ranks
    assert (start.first_token is not None) is token


@pytest.mark.parametrize(
    ("engine", "words", "token"),
    [
        ("sglang", ("--is-embedding",), False),
        ("vllm", (), True),
        ("vllm", ("--task", "embed"), False),
        ("vllm", ("--runner", "pooling"), False),
        ("vllm", ("--runner", "generate"), True),
    ],
)
def test_which_server_args_mean_that_no_token_comes(engine: str, words: tuple[str, ...], token: bool) -> None:
    command = ("/venv/bin/vllm", "serve", "m") if engine == "vllm" else ARGV
    start = launch_order(Launch(argv=(*command, *words), port=1), ENGINES[engine])
    assert (start.first_token is not None) is token


@given(st.lists(st.sampled_from(["--api-key", "--x=***", "***", "a", "--token", "-t"]), max_size=8))
def test_whatever_is_masked_has_its_flag_among_the_secret_ones(words: list[str]) -> None:
    argv = (*ARGV, *words)
    start = launch_order(Launch(argv=argv, env={"A": "***", "B": "x"}), ENGINES["sglang"])
    assert "A" in start.secret_env
    assert "B" not in start.secret_env
    for before, word in itertools.pairwise(argv):
        if word == "***" and before.startswith("-"):
            assert before in start.secret_flags
        if word.endswith("=***"):
            assert word.partition("=")[0] in start.secret_flags


# The way back.


def test_a_server_that_serves_is_what_is_gone_back_to() -> None:
    state = states.serving()
    made = order(state, launch(), state.servers[0], auto_back=True)
    assert made.back is not None
    assert (made.back.like, made.back.argv) == (f"server:{states.KEY}", ())
    assert (made.back.port, made.back.ranks, made.auto_back) == (30000, 8, True)
    assert made.back.title == "the server as it was (pid 48211)"
    assert made.back.log_name == "run-9", "the supervisor adds that it is the way back"


def test_its_preset_is_told_where_gputuner_started_it() -> None:
    state = states.serving()
    own = ProcessId(pid=48211, start_ticks=8190000)
    state = with_runs(state, record(1, new=own, preset="base-88", title="Base", outcome=RunOutcome.READY))
    back = order(state, launch(), state.servers[0]).back
    assert back is not None
    assert (back.preset, back.title) == ("base-88", "Base")


def test_one_that_never_served_is_not_gone_back_to_if_a_good_one_is_known() -> None:
    good = record(1, outcome=RunOutcome.READY, port=30000, argv=ARGV, title="Good", preset="good")
    state, server = changed(states.serving(), phase=Phase.WEIGHT_LOAD)
    known = with_runs(state, good)
    back = order(known, launch(), server).back
    assert back is not None
    assert (back.like, back.preset, back.title, back.ranks) == ("run:run-1", "good", "Good", 4)
    unknown = order(state, launch(), server).back
    assert unknown is not None
    assert unknown.like == f"server:{states.KEY}"


def test_one_that_failed_is_never_gone_back_to() -> None:
    state, server = changed(states.serving(), phase=Phase.FAILED)
    made = order(state, launch(), server, auto_back=True)
    assert made.back is None
    assert not made.auto_back


def test_a_start_alone_goes_back_to_the_last_good_one_but_not_to_itself() -> None:
    state = REPLACE(states.serving(), servers=())
    good = record(1, outcome=RunOutcome.READY, port=30000, argv=ARGV, title="Good")
    known = with_runs(state, good)
    assert order(known, launch(), engine="sglang").stop is None
    back = order(known, launch(), engine="sglang").back
    assert back is not None
    assert back.like == "run:run-1"
    itself = Launch(argv=(), like="run:run-1", port=30000)
    assert order(known, itself, engine="sglang").back is None
    failed = record(2, outcome=RunOutcome.FAILED, port=30000, argv=ARGV, title="Bad", back="Good")
    once_more = Launch(argv=(), like="back:run-2", port=30000, title="Good")
    assert order(with_runs(state, good, failed), once_more, engine="sglang").back is None
    other = Launch(argv=(), like="back:run-2", port=30000, title="Better")
    assert order(with_runs(state, good, failed), other, engine="sglang").back is not None
    assert order(state, launch(), engine="sglang").back is None


def test_an_order_is_json_and_comes_back_equal() -> None:
    state = states.serving()
    made = order(state, launch(), state.servers[0], drain_s=5.0, auto_back=True)
    assert msgspec.json.decode(msgspec.json.encode(made), type=SwitchOrder) == made
