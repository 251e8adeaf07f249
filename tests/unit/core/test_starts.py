"""What a start tells of itself."""

from __future__ import annotations

from tuner.domain.findings import Outcome
from tuner.domain.starts import Start


def test_a_start_worked_where_its_log_says_ready_or_shows_that_it_served() -> None:
    assert Start(engine="sglang", ready_at=7, outcome=Outcome.FAILED).worked
    assert Start(engine="sglang", outcome=Outcome.READY).worked
    assert not Start(engine="sglang", outcome=Outcome.RUNNING).worked
