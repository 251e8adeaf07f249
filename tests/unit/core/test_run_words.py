"""What is said of a run at each of its steps."""

from __future__ import annotations

import pytest

from tests.unit.core.test_runs import OLD, record
from tuner.core.run_words import STEP_DOING, STEP_NAMES, progress, way_on
from tuner.core.runs import UNTOUCHED
from tuner.domain.runs import RunStep


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
    assert (way_on(record(1, old=OLD, step=step)) == "nothing was touched yet") is (step in UNTOUCHED)
