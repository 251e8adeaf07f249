"""How the screens look. Few: all but layout and colour has a cheaper test. Look at the report before updating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import changing, explained, states
from tests.support.sessions import FakeSession, settled
from tuner.app import TunerApp
from tuner.screens import explain_requests, tune_requests
from tuner.screens.tune import TuneScreen

NARROW, WIDE = (80, 24), (160, 48)
ASKED = ("tunable", "leased", "broken", "empty")
"""States in which the Tune screen asks the host about a choice."""
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
    "tune": ("tunable", NARROW, ("t", "2"), {}),
    "tune-wide": ("tunable", WIDE, ("t", "3", "n", *"mem_fr", "enter", *"0.9", "enter"), {}),
    "tune-empty": ("empty", NARROW, ("t",), {}),
    "tune-empty-wide": ("empty", WIDE, ("t",), {}),
    "tune-stale": ("change_stale", NARROW, ("t",), {}),
    "tune-stale-wide": ("change_stale", WIDE, ("t", "2"), {}),
    "tune-changing": ("loading", NARROW, ("t",), {}),
    "tune-changing-wide": ("changing", WIDE, ("t",), {}),
    "tune-failed": ("broken", NARROW, ("t",), {}),
    "tune-leased": ("leased", NARROW, ("t", "2", "tab", "tab", "tab"), {}),
    "tune-read-only-wide": ("tunable", WIDE, ("t", "5"), {"read_only": True}),
    "tune-confirm": ("tunable", NARROW, ("t", "2", "enter", "a"), {}),
    "tune-confirm-wide": ("tunable", WIDE, ("t", "2", "enter"), {}),
    "tune-ascii": ("loading", WIDE, ("t",), {"ascii": True}),
    "overview-changing": ("changing", NARROW, (), {}),
    "details": ("serving", NARROW, ("i",), {}),
    "help-light": ("serving", NARROW, ("question_mark",), {"theme": "gputuner-light"}),
}


@pytest.mark.parametrize("name", CASES)
def test_picture(snap_compare: Callable[..., bool], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, size, keys, options = CASES[name]
    if name.startswith(("plan", "tune")):
        real = explain_requests.engines()["sglang"]
        steady = explained.SteadyEngine(real.knobs(), real)
        monkeypatch.setattr(explain_requests, "engines", lambda: {"sglang": steady})
        monkeypatch.setattr(tune_requests, "engines", lambda: {"sglang": steady})
    options = dict(options)
    held = {**states.ALL, **changing.ALL}[state]()
    session = FakeSession(held, facts=changing.FACTS, read_only=options.pop("read_only", False))
    app = TunerApp([session], clock=lambda: 0.0, library=changing.FakeLibrary(), **options)

    async def press(pilot: Any) -> None:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        # The host is asked about a choice that rests, but not while it is changed.
        while isinstance(app.screen, TuneScreen) and state in ASKED and not app.screen.view.checked:
            await pilot.pause(0.02)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=press)
