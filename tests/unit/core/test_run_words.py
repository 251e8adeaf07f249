"""What is said of a run at each of its steps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support import states
from tests.unit.core.test_runs import OLD, record
from tuner.core.run_words import STEP_DOING, STEP_NAMES, outcome, progress, way_on
from tuner.core.runs import UNTOUCHED
from tuner.domain.runs import RunOutcome, RunStep, StepRecord


def test_each_step_has_a_name_and_an_activity() -> None:
    assert set(STEP_NAMES) == set(STEP_DOING) == set(RunStep)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        # The supervisor tells a step when it begins to wait for it.
        (RunStep.HEALTH, "waiting for health, /health answers 503"),
        (RunStep.FIRST_TOKEN, "waiting for the first token, /health answers 503"),
    ],
)
def test_a_wait_is_told_by_what_is_awaited(step: RunStep, words: str) -> None:
    run = record(1, supervised=True, old=OLD, title="Fast", step=step, detail="/health answers 503")
    assert progress(run, None) == f"switching to Fast: {words}"


@pytest.mark.parametrize("step", list(RunStep))
def test_an_interrupted_run_says_whether_anything_was_touched(step: RunStep) -> None:
    run = record(1, old=OLD, step=step)
    assert (way_on(states.empty(), run) == "nothing was touched yet") is (step in UNTOUCHED)


def test_a_server_that_ends_later_does_not_lengthen_the_run_that_started_it() -> None:
    steps = (StepRecord(step=RunStep.STEADY, at=1014.0, ended=1018.0),)
    run = record(1, title="Fast", step=RunStep.END, outcome=RunOutcome.READY, steps=steps)
    assert outcome(replace(run, updated_at=5000.0)) == outcome(run) == "Fast serves, 0:17 after the order"
