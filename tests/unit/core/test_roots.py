"""The root failure, where a log is longer than what is kept of its text."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from tests.support.small_logs import ENGINES, raised, sglang, start_of, verdict
from tuner.core import reading
from tuner.core.diagnosis.case import Case
from tuner.core.roots import root_of

FORERUNNER = "[2026-03-01 10:01:00 TP0] NCCL WARN Cuda failure 'out of memory'\n"
OTHER = "[2026-03-01 10:02:00 TP0] something else\n"
RAISED = raised("TP0", ("srt/a.py", "run"), error="RuntimeError: other")
LIMIT = "Resource temporarily unavailable (src/thread.cpp:241)\n"
CRASH = "Fatal Python error: Aborted\n"


@pytest.mark.parametrize("kept", [10, 20_000])
def test_a_line_long_before_an_exception_is_not_its_forerunner(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(reading, "KEPT_LINES", kept)
    for between, is_root in ((5, False), (500, True)):
        start = start_of(sglang("serving") + FORERUNNER + OTHER * between + RAISED)
        assert len(start.places) > len(start.lines) or kept > 10
        root = root_of(start)
        assert root is not None
        assert (root.sign is not None) is is_root


@pytest.mark.parametrize("kept", [10, 20_000])
def test_what_stands_just_before_a_crash(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(reading, "KEPT_LINES", kept)
    near, far = (start_of(sglang("serving") + LIMIT + OTHER * n + CRASH) for n in (0, 5))
    for start, found in ((near, True), (far, False)):
        case = Case(start, root_of(start), ENGINES["sglang"])
        crash = case.sign("native-crash")
        assert crash is not None
        assert (case.just_before(crash, "threads-exhausted") is not None) is found
    assert verdict(sglang("serving") + LIMIT + CRASH).cause == "process-limits"


def _steps(failures: int) -> int:
    """Calls that the search for the root takes in a log of so many exceptions."""
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    start = start_of(sglang("serving", tp=1) + raised("", ("srt/a.py", "run"), error=error) * failures)
    assert len(start.failures) == failures
    count = 0

    def counted(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(counted)
    try:
        assert root_of(start) is not None
    finally:
        sys.setprofile(None)
    return count


def test_ten_times_the_exceptions_take_hardly_more_than_ten_times_the_steps() -> None:
    assert _steps(1_000) < 15 * _steps(100)
