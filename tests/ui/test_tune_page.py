"""The sections of the Tune screen, as lines."""

from __future__ import annotations

import msgspec

from tests.support import changing, states
from tests.unit.core.test_runs import ME
from tuner.core.tuning import tune
from tuner.domain.runs import RunOutcome
from tuner.domain.tuning import Wish
from tuner.engines import load_engines
from tuner.widgets.glyphs import UNICODE
from tuner.widgets.spans import text_of
from tuner.widgets.tune_page import View, run_keys, sections


def test_why_the_host_could_not_be_asked_stands_above_the_checks() -> None:
    state = states.serving()
    tuning = tune(state, Wish(server=states.KEY), load_engines(), {}, run="r", operator=ME)
    view = View(tuning=tuning)
    why = "The probe has not answered for 100 s"

    def checks(view: View) -> str:
        parts = sections(state, state.servers[0], view, 100, 40, UNICODE, alone=False)
        (lines,) = (part.lines for part in parts if part.name == "checks")
        return "\n".join(text_of(line) for line in lines)

    assert why not in checks(view)
    assert checks(msgspec.structs.replace(view, error=why)).startswith(f"   the host could not be asked: {why}")


def test_a_recipe_without_its_secret_has_one_way_out() -> None:
    recipe = msgspec.structs.replace(changing.RECIPE, like="", args=(*changing.RECIPE.args, "--api-key", "***"))
    refuses = {**changing.FACTS, "start": {"refused": "a secret cannot be had", "hint": "connect as another user"}}
    made = tune(states.empty(), Wish(recipe=recipe), load_engines(), {}, run="r", operator=ME, facts=refuses)
    (why,) = made.refused
    assert why.startswith("Secrets: ")


def test_only_a_run_that_stopped_something_is_gone_back_from() -> None:
    state = changing.broken()
    assert any(key.startswith("B ") for key in run_keys(state, changing.FAILED))
    refused = msgspec.structs.replace(changing.FAILED, outcome=RunOutcome.REFUSED)
    assert not any(key.startswith("B ") for key in run_keys(state, refused)), "what ran before runs still"
