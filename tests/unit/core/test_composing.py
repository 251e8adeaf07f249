"""What an earlier run started, or would have gone back to, whichever engine it was."""

from __future__ import annotations

import msgspec
import pytest

from tests.support import states
from tests.unit.core.test_runs import ME, OLD, record, with_runs
from tuner.core.base_recipe import base_of, engine_of_run
from tuner.core.tuning import tune
from tuner.domain.preflight import Verdict
from tuner.domain.recipe import Recipe
from tuner.domain.runs import ProcessId, RunOutcome, RunRecord
from tuner.domain.state import HostState
from tuner.domain.tuning import Tuning, Wish
from tuner.engines import load_engines

ENGINES = load_engines()
VLLM = ("/venv/bin/vllm", "serve", "/models/llama", "--port", "8000", "--tensor-parallel-size", "2")
EMPTY = msgspec.structs.replace(states.serving(), servers=())


def tuned(state: HostState, wish: Wish) -> Tuning:
    return tune(state, wish, ENGINES, {}, run="run-9", operator=ME)


def recipe(engine: str) -> Recipe:
    return Recipe(name="r", host="h", engine=engine, command=("x",))


@pytest.mark.parametrize(
    ("run", "engine"),
    [
        (record(1, argv=VLLM), "vllm"),
        (record(1, argv=states.ARGV), "sglang"),
        (record(1, argv=("/opt/serve", "--port", "8000"), recipe=recipe("vllm")), "vllm"),
        # The recipe is that of the start that failed, the command line that of what was gone back to.
        (record(1, argv=("/opt/serve", "--port", "8000"), recipe=recipe("vllm"), going_back=True), None),
        (record(1, argv=states.ARGV, recipe=recipe("vllm"), going_back=True), "sglang"),
        (record(1, argv=("/opt/serve", "--port", "8000")), None),
        (record(1), None),
    ],
)
def test_the_program_tells_the_engine_of_a_run_and_not_the_flags(run: RunRecord, engine: str | None) -> None:
    found = engine_of_run(run, ENGINES)
    assert (found.name if found is not None else None) == engine


def test_an_earlier_run_of_vllm_is_asked_whether_it_serves_as_vllm_is() -> None:
    run = record(1, new=OLD, outcome=RunOutcome.READY, argv=VLLM, port=8000, title="V")
    made = tuned(with_runs(EMPTY, run), Wish(again="run-1"))
    assert made.order is not None
    assert made.order.start is not None
    assert (made.engine, made.order.start.port, made.order.start.ranks) == ("vllm", 8000, 2)
    assert made.order.start.health == ENGINES["vllm"].behaviour().starting.health
    assert base_of(with_runs(EMPTY, run), Wish(), None, ENGINES).recipe.engine == "vllm"


def test_what_another_engine_replaced_is_asked_as_its_own_engine_is() -> None:
    identity = states.serving().servers[0].identity
    old = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    switched = record(2, old=old, new=OLD, outcome=RunOutcome.FAILED, argv=VLLM, port=30000, back="SGLang as it was")
    seen = tuned(with_runs(states.serving(), switched), Wish(again="back:run-2"))
    assert seen.engine == "sglang"
    began = record(1, new=old, outcome=RunOutcome.READY, argv=states.ARGV, port=30000)
    known = tuned(with_runs(EMPTY, switched, began), Wish(again="back:run-2"))
    assert known.engine == "sglang"


def test_what_is_started_again_writes_its_log_where_it_did() -> None:
    before = record(1, new=OLD, outcome=RunOutcome.READY, argv=VLLM, port=30000, log="/data/logs/run-1.log", back="B")
    for again in ("run-1", "back:run-1"):
        made = tuned(with_runs(states.serving(), before), Wish(again=again))
        assert made.launch is not None
        assert (made.launch.log_dir, made.ask and made.ask.log_dir) == ("/data/logs", "/data/logs")
    own = msgspec.structs.replace(before, log="/root/.gputuner/runs/run-1/server.log")
    made = tuned(with_runs(states.serving(), own), Wish(again="run-1"))
    assert made.launch is not None
    assert made.launch.log_dir is None


def test_what_served_before_is_not_refused_by_a_forecast() -> None:
    state = states.explained()
    gone = state.servers[0]
    low = (*gone.identity.argv, "--mem-fraction-static", "0.5")
    run = record(1, new=OLD, outcome=RunOutcome.READY, argv=low, port=30000, title="Low")
    made = tuned(with_runs(state, run), Wish(server=gone.identity.key, again="run-1"))
    assert {check.verdict for check in made.checks if check.id == "memory"} == {Verdict.WARN}
    assert made.order is not None


def test_a_way_back_to_another_engine_is_asked_as_that_engine_is() -> None:
    state = states.explained()
    failed = state.servers[0]
    good = record(1, new=OLD, outcome=RunOutcome.READY, argv=VLLM, port=failed.identity.port, title="V")
    made = tuned(with_runs(state, good), Wish(server=failed.identity.key, ignore_forecast=True))
    assert made.order is not None
    assert made.order.back is not None
    assert (made.order.back.like, made.order.back.health) == (
        "run:run-1",
        ENGINES["vllm"].behaviour().starting.health,
    )


def test_a_number_of_a_recipe_with_a_unit_is_refused_before_anything_is_stopped() -> None:
    written = msgspec.structs.replace(
        recipe("sglang"),
        command=("/v/bin/python", "-m", "sglang.launch_server"),
        args=("--model-path", "/m", "--chunked-prefill-size", "4GiB"),
    )
    (check,) = [each for each in tuned(EMPTY, Wish(recipe=written)).checks if each.verdict is Verdict.FAIL]
    assert check.detail == "r: --chunked-prefill-size cannot be 4GiB"
    assert check.way_out == "A whole number of tokens is meant, not '4GiB'"
    override = Wish(recipe=written, overrides={"chunked_prefill_size": 4096})
    assert not [each for each in tuned(EMPTY, override).checks if each.verdict is Verdict.FAIL]
