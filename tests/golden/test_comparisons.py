"""Every log that is kept here, held against itself and against others: nothing breaks, and nothing is made up."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.support.golden_starts import GOLDEN, last_start
from tuner.cli import side_by_side, story
from tuner.cli.paper import Paper
from tuner.core.compare import compare
from tuner.core.report import as_data, report
from tuner.core.report_comparison import report_comparison
from tuner.domain.comparison import Role
from tuner.domain.findings import Outcome

LOGS = sorted(
    str(path.relative_to(GOLDEN)) for folder in ("corpus", "real", "case") for path in (GOLDEN / folder).rglob("*.log")
)
NARROW = Paper(width=79)


def locate(at: int) -> tuple[str, int]:
    return "server.log", at


def narrow(lines: list[str]) -> None:
    assert max(map(len, lines)) <= NARROW.width, max(lines, key=len)


@pytest.mark.parametrize("name", LOGS)
def test_a_start_and_itself(name: str) -> None:
    start = last_start(name)
    comparison = compare(start, start)
    assert comparison.differences == ()
    assert comparison.obstacles == ()
    made = report(start, (), None, locate, comparison=report_comparison(comparison, locate, locate))
    json.dumps(as_data(made), allow_nan=False)
    narrow(list(story.lines(made, NARROW)))


@pytest.mark.parametrize(("one", "other"), list(itertools.pairwise([*LOGS, LOGS[0]])))
def test_two_starts_of_any_kind(one: str, other: str) -> None:
    for pair in ((one, other), (other, one)):
        good, bad = map(last_start, pair)
        comparison = compare(good, bad)
        made = report_comparison(comparison, locate, locate, noise=True)
        json.dumps(as_data(made), allow_nan=False)
        narrow(list(side_by_side.lines(comparison, NARROW, noise=True)))
        if good.outcome is Outcome.FAILED and bad.outcome is Outcome.FAILED:
            assert not comparison.explaining, "both failed: nothing turned one outcome into the other"
        if comparison.obstacles:
            assert not comparison.of(Role.EXPLAINS, Role.ACQUITTED), "they do not compare"
