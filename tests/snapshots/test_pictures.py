"""How the screens look. Few: all but layout and colour has a cheaper test. Look at the report before updating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import explained, states
from tests.support.sessions import FakeSession, settled
from tuner.app import TunerApp
from tuner.screens import explain_requests

NARROW, WIDE = (80, 24), (160, 48)
CASES = {
    "overview-wide": ("serving", WIDE, (), {}),
    "overview-narrow": ("serving", NARROW, (), {}),
    "overview-starting": ("starting", NARROW, (), {}),
    "overview-failed": ("failed", NARROW, (), {}),
    "overview-stale": ("stale", NARROW, (), {}),
    "overview-empty": ("empty", NARROW, (), {}),
    "overview-silent": ("silent", WIDE, (), {}),
    "overview-shared": ("shared", NARROW, (), {}),
    "overview-ascii": ("serving", WIDE, (), {"ascii": True}),
    "logs-failed": ("failed", NARROW, ("l", "e"), {}),
    "overview-explained": ("explained", NARROW, (), {}),
    "overview-explained-wide": ("explained", WIDE, (), {}),
    "logs-explained": ("explained", NARROW, ("l",), {}),
    "logs-explained-unfolded": ("explained", NARROW, ("l", "u", "down", "down", "down"), {}),
    "logs-slowed-wide": ("slowed", WIDE, ("l", "home"), {}),
    "findings": ("explained", NARROW, ("x",), {}),
    "findings-wide": ("explained", WIDE, ("x", *["down"] * 6), {}),
    "findings-empty": ("serving", NARROW, ("x",), {}),
    "compare": ("compared", NARROW, ("d",), {}),
    "compare-wide": ("compared", WIDE, ("d", "z"), {}),
    "compare-choose": ("compared", NARROW, ("d", "c"), {}),
    "plan": ("slowed", NARROW, ("m", *"0.97", "enter"), {}),
    "plan-wide": ("slowed", WIDE, ("m", "right", "right", "down", "right"), {}),
    "plan-failed": ("compared", NARROW, ("m",), {}),
    "details": ("serving", NARROW, ("i",), {}),
    "help-light": ("serving", NARROW, ("question_mark",), {"theme": "gputuner-light"}),
}


@pytest.mark.parametrize("name", CASES)
def test_picture(snap_compare: Callable[..., bool], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, size, keys, options = CASES[name]
    if name.startswith("plan"):
        steady = explained.SteadyEngine(explain_requests.engines()["sglang"].knobs())
        monkeypatch.setattr(explain_requests, "engines", lambda: {"sglang": steady})
    app = TunerApp([FakeSession(states.ALL[state]())], clock=lambda: 0.0, **options)

    async def press(pilot: Any) -> None:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=press)
