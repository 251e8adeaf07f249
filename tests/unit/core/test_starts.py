"""What a start tells of itself."""

from __future__ import annotations

from tests.support.small_logs import findings, raised, sglang, start_of
from tuner.domain.findings import Outcome
from tuner.domain.starts import Start


def test_a_start_worked_where_its_log_says_ready_or_shows_that_it_served() -> None:
    assert Start(engine="sglang", ready_at=7, outcome=Outcome.FAILED).worked
    assert Start(engine="sglang", outcome=Outcome.READY).worked
    assert not Start(engine="sglang", outcome=Outcome.RUNNING).worked


INTERRUPTED = (
    'Traceback (most recent call last):\n  File "/usr/lib/python3.12/runpy.py", line 198, in _run_module_as_main\n'
    "    return _run_code(code, main_globals, None,\nKeyboardInterrupt\n"
)
FAILED = raised("TP0", ("srt/a.py", "run"), error="RuntimeError: other")


def test_ctrl_c_while_loading_stops_a_start_and_hides_no_failure_before_it() -> None:
    head = sglang("weight-load")
    assert start_of(head + INTERRUPTED).outcome is Outcome.STOPPED
    assert findings(head + INTERRUPTED) == ()
    assert start_of(head + INTERRUPTED + FAILED).outcome is Outcome.STOPPED
    assert start_of(head + FAILED + INTERRUPTED).outcome is Outcome.FAILED
