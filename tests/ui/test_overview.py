"""What the Overview chooses to draw: which curve, which servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support import states
from tests.support.sessions import FakeSession
from tuner.domain.server import Phase, SeriesPoint
from tuner.domain.state import HostState
from tuner.widgets.chart import Chart
from tuner.widgets.keybar import KeyBar
from tuner.widgets.rows import Rows

AppOn = Callable[..., tuple[Any, list[FakeSession]]]


def with_series(**series: float) -> HostState:
    state = states.serving()
    told = {
        name: tuple(SeriesPoint(states.MONO - 590 + at, value) for at in range(0, 590, 5))
        for name, value in series.items()
    }
    return states.REPLACE(state, servers=(states.REPLACE(state.servers[0], series=told),))


async def test_a_key_draws_the_next_number_over_time(app_on: AppOn) -> None:
    app, _ = app_on(with_series(tok_s=89.5, running=4.0, token_usage=0.37))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        chart = app.screen.query_one(Chart)
        titles = []
        for _ in range(4):
            titles.append(chart.text.splitlines()[0].strip())
            await pilot.press("g")
            await pilot.pause()
        assert titles == [
            "tok/s  output, last 10 min",
            "running requests, last 10 min",
            "KV used  %, last 10 min",
            "tok/s  output, last 10 min",
        ]
        await pilot.press("g")
        await pilot.pause()
        assert "36┤" in chart.text, "37 %, not 0.37"


async def test_on_a_narrow_screen_the_sparkline_stands_beside_its_number(app_on: AppOn) -> None:
    app, _ = app_on(with_series(tok_s=89.5, running=4.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "89.5 ▅▅▅" in app.screen.query_one("#phases", Rows).text
        await pilot.press("g")
        await pilot.pause()
        text = app.screen.query_one("#phases", Rows).text
        assert "run   4 ▄▄▄" in text
        assert "89.5  run" in text


async def test_no_key_for_curves_where_there_is_one(app_on: AppOn) -> None:
    app, _ = app_on(with_series(tok_s=89.5))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        assert "Graph" not in app.screen.query_one(KeyBar).text


async def test_of_many_servers_that_ended_the_newest_are_named(app_on: AppOn) -> None:
    state = states.serving()
    now = state.servers[0]

    def ended(pid: int) -> Any:
        identity = states.REPLACE(now.identity, key=f"{pid}:1", pid=pid)
        return states.REPLACE(now, identity=identity, phase=Phase.FAILED, gone=True)

    app, _ = app_on(states.REPLACE(state, servers=(now, *(ended(pid) for pid in range(100, 106)))))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        servers = app.screen.query_one("#servers", Rows)
        assert servers.text.split() == [
            *("servers", "[SGLang", "kimi-k2.5-int4", ":30000]", "✔", "READY"),
            *("pid", "100", "✖", "FAILED", "pid", "101", "✖", "FAILED", "pid", "102", "✖", "FAILED"),
            *("…", "3", "earlier"),
        ]  # fmt: skip
        for _ in range(5):
            await pilot.press("full_stop")
            await pilot.pause()
        assert "[SGLang kimi-k2.5-int4 pid 104] ✖ FAILED" in servers.text
        assert "… 2 earlier" in servers.text
