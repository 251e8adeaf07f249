"""The sections of the Tune screen, as lines."""

from __future__ import annotations

import msgspec

from tests.support import states
from tests.unit.core.test_runs import ME
from tuner.core.tuning import tune
from tuner.domain.tuning import Wish
from tuner.engines import load_engines
from tuner.widgets.glyphs import UNICODE
from tuner.widgets.spans import text_of
from tuner.widgets.tune_page import View, sections


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
