"""Findings where they are met: in the Overview and under their lines in the Logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import explained, states
from tests.support.sessions import FakeSession
from tuner.domain.events import ReadResult
from tuner.domain.findings import Severity
from tuner.domain.logs import LogBlock, LogLine
from tuner.domain.state import HostState, LogState
from tuner.widgets.keybar import KeyBar
from tuner.widgets.log_view import LogView
from tuner.widgets.rows import Rows

AppOn = Callable[..., tuple[Any, list[FakeSession]]]
NARROW, WIDE = (80, 24), (160, 48)


def drawn(view: LogView) -> list[str]:
    return [view.render_line(y).text.rstrip() for y in range(view.size.height)]


def log_of(app: Any) -> LogView:
    return app.screen.query_one(LogView)


def card_text(app: Any) -> str:
    return app.screen.query_one("#card", Rows).text


def with_server(state: HostState, **changes: Any) -> HostState:
    return states.REPLACE(state, servers=(states.REPLACE(state.servers[0], **changes),))


async def test_the_overview_shows_a_failure_at_once_on_a_small_screen(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        lines = card_text(app).splitlines()
        assert "✖ FAILED in kv-alloc · mem-fraction-too-low · all 8 ranks" in lines[0]
        assert "A copies --mem-fraction-static 0.88" in lines[-1]
        assert "FAILED while" not in app.screen.query_one("#notes", Rows).text, "said once"
        # Nothing is cut: the card, the log and the keys are all on the screen.
        assert app.screen.query_one("#card").region.bottom <= app.screen.query_one("#tail").region.y
        assert app.screen.query_one("#tail").region.height >= 4
        assert app.screen.query_one(KeyBar).region.bottom == 24


async def test_unfolding_makes_room_and_escape_folds(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("u")
        await pilot.pause()
        assert "more below" in card_text(app)
        assert app.screen.query_one("#tail").region.bottom <= 23
        assert app.screen.query_one("#tail").region.height >= 1
        for _ in range(20):
            await pilot.press("down")
        await pilot.pause()
        assert "weights on every rank." in card_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert len(card_text(app).splitlines()) == 4


async def test_on_a_tall_screen_a_failure_is_unfolded_by_itself_once(app_on: AppOn) -> None:
    app, (session,) = app_on(states.explained())
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        assert "FAILED while" not in app.screen.query_one("#notes", Rows).text, "said once"
        assert "refuted by" in card_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "refuted by" not in card_text(app)
        state = session.state
        more = (*state.servers[0].findings, explained.graphs_off())
        session.push(with_server(state, findings=more))
        await pilot.pause()
        assert "2 more findings" in card_text(app)
        assert "refuted by" not in card_text(app), "the operator folded it"


async def test_a_slowdown_takes_one_line_where_there_is_little_room(app_on: AppOn) -> None:
    app, _ = app_on(states.slowed())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert card_text(app).splitlines() == [card_text(app)]
        assert "▲ SLOW in graph-capture: Prefill CUDA graphs" in card_text(app)
        await pilot.press("u")
        await pilot.pause()
        assert "Mean TTFT about doubles." in " ".join(card_text(app).replace("│", " ").split())


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_a_note_has_no_card_and_no_keys_of_a_card(app_on: AppOn, size: tuple[int, int]) -> None:
    note = states.REPLACE(states.slowed().servers[0].findings[0], severity=Severity.INFO)
    app, _ = app_on(with_server(states.slowed(), findings=(note,)))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.press("u", "A", "enter")
        await pilot.pause()
        assert card_text(app) == ""
        assert app.current_mode == "overview"
        bar = app.screen.query_one(KeyBar).text
        assert "Unfold" not in bar
        assert "opies" not in bar
        assert "1 finding" in bar
        await pilot.press("x")
        await pilot.pause()
        assert "Prefill CUDA graphs" in app.screen.query_one("#story", Rows).text, "the Findings screen has it"


async def test_without_findings_there_is_no_card_and_no_key(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("u", "A", "enter", "up")
        await pilot.pause()
        assert card_text(app) == ""
        assert app.current_mode == "overview"
        assert "Unfold" not in app.screen.query_one(KeyBar).text
        assert "Remedy" not in app.screen.query_one(KeyBar).text


@pytest.mark.parametrize("keys", [(), ("l",)], ids=["overview", "logs"])
async def test_a_key_copies_a_remedy_and_the_key_bar_says_which(app_on: AppOn, keys: tuple[str, ...]) -> None:
    app, _ = app_on(FakeSession(states.explained(), read_only=True))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        assert "A copies --mem-fraction-static 0.88" in app.screen.query_one(KeyBar).text
        await pilot.press("A")
        assert app.clipboard == "--mem-fraction-static 0.88"
        await pilot.press("B")
        assert app.clipboard == "--mem-fraction-static 0.88", "nobody can type `a smaller LLM`"


async def test_enter_in_the_overview_goes_to_the_line(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        await pilot.pause()
        assert app.current_mode == "logs"
        current = log_of(app).current_row()
        assert current is not None
        assert current[0].text == states.FAILURE


async def test_in_the_log_a_card_stands_under_its_line(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("l")
        await pilot.pause()
        lines = drawn(log_of(app))
        at = next(index for index, line in enumerate(lines) if "RuntimeError: Not enough memory" in line)
        assert "FAILED in kv-alloc" in lines[at + 1]
        assert "A copies" in lines[at + 4]
        args = next(index for index, line in enumerate(lines) if "server_args" in line)
        assert "i NOTE · env-ignored" in lines[args + 1]


async def test_keys_move_in_an_unfolded_card_and_enter_jumps_to_the_evidence(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("l", "u")
        await pilot.pause()
        view = log_of(app)
        lines = drawn(view)
        top = next(index for index, line in enumerate(lines) if "FAILED in kv-alloc" in line)
        assert "RuntimeError: Not enough memory" in lines[top - 1]
        assert any("esc folds" in line for line in lines[top:]), "all of it is on the screen"
        await pilot.press("down", "down", "down", "enter")
        await pilot.pause()
        current = view.current_row()
        assert current is not None
        assert "avail mem=21.70" in current[0].text
        await pilot.press("escape")
        await pilot.pause()
        assert not any(card.unfolded for card in view.cards.values())


async def test_enter_on_a_remedy_copies_it(app_on: AppOn) -> None:
    app, _ = app_on(FakeSession(states.explained(), read_only=True))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("l", "u", "down", "enter")
        await pilot.pause()
        assert app.clipboard == "--mem-fraction-static 0.88"


async def test_the_cards_keys_are_those_of_the_current_line(app_on: AppOn) -> None:
    app, _ = app_on(FakeSession(states.slowed(), read_only=True))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("l", "home")
        await pilot.pause()
        await pilot.press("A")
        assert app.clipboard == "unset SGLANG_CUSTOM_ALLREDUCE_ALGO"
        await pilot.press("down")
        await pilot.press("A")
        assert app.clipboard == "--mem-fraction-static 0.87"


async def test_u_goes_to_a_card_that_is_far_back(app_on: AppOn) -> None:
    app, _ = app_on(states.slowed())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("l")
        await pilot.pause()
        assert not any("SLOW" in line for line in drawn(log_of(app)))
        await pilot.press("u")
        await pilot.pause()
        lines = drawn(log_of(app))
        assert any("SLOW in graph-capture" in line for line in lines)
        assert any("refuted by" in line for line in lines)


async def test_a_line_that_is_not_held_is_fetched_with_its_card(app_on: AppOn) -> None:
    lines = tuple(LogLine(offset=10_000 + 10 * at, text=f"line {at}") for at in range(200))
    log = LogState(blocks=(LogBlock(10_000, 12_000, lines),), start=10_000, end=12_000, size=12_000, lines_total=200)
    data = "".join(f"old {at:04d}\n" for at in range(1000))
    session = FakeSession(
        with_server(states.explained(), log=log, findings=(explained.too_low(at=4500),)),
        part=ReadResult(id=1, offset=0, end=9000, size=12_000, data=data),
    )
    app, _ = app_on(session)
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("l")
        await pilot.pause()
        view = log_of(app)
        assert view.cards == {}
        await pilot.press("u")
        for _ in range(5):
            await pilot.pause()
        assert session.read
        shown = drawn(view)
        at = next(index for index, line in enumerate(shown) if "old 0500" in line)
        assert "FAILED in kv-alloc" in shown[at + 1]
        await pilot.press("F")
        await pilot.pause()
        assert view.cards == {}, "the live end does not hold that line"


async def test_a_card_survives_filters_folding_wrap_and_growth(app_on: AppOn) -> None:
    app, (session,) = app_on(states.explained())
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("l")
        await pilot.pause()
        view = log_of(app)
        for key in ("z", "w", "v", "v", "v", "w"):
            await pilot.press(key)
            await pilot.pause()
            assert any("mem-fraction-too-low" in line for line in drawn(view)), key
        state = session.state
        log = state.servers[0].log
        new = tuple(LogLine(offset=log.end + 10 * at, text=f"more {at}") for at in range(5))
        grown = states.REPLACE(log, blocks=(*log.blocks, LogBlock(log.end, log.end + 50, new)), end=log.end + 50)
        session.push(with_server(state, log=grown))
        await pilot.press("escape", "escape")
        await pilot.pause()
        lines = drawn(view)
        at = next(index for index, line in enumerate(lines) if "RuntimeError: Not enough memory" in line)
        assert "FAILED in kv-alloc" in lines[at + 1]
        assert any("more 4" in line for line in lines)


async def test_the_last_line_can_be_reached_below_cards(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("l", "home")
        await pilot.pause()
        view = log_of(app)
        for _ in range(view.index.last - view.index.first - 1):
            await pilot.press("down")
        await pilot.pause()
        assert view.current == view.index.last - 1
        assert any(states.FAILURE[:40] in line for line in drawn(view))


async def test_growing_logs_cost_no_search_for_cards(app_on: AppOn, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner.widgets.log_index import LogIndex

    app, (session,) = app_on(states.slowed())
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("l")
        await pilot.pause()
        searched: list[int] = []
        original = LogIndex.at_offset

        def counting(self: LogIndex, offset: int) -> int | None:
            searched.append(offset)
            return original(self, offset)

        monkeypatch.setattr(LogIndex, "at_offset", counting)
        state = session.state
        log = state.servers[0].log
        for turn in range(20):
            new = tuple(LogLine(offset=log.end + 10 * at, text=f"turn {turn} line {at}") for at in range(200))
            log = states.REPLACE(log, blocks=(*log.blocks, LogBlock(log.end, log.end + 2000, new)), end=log.end + 2000)
            session.push(with_server(state, log=log))
            await pilot.pause()
        assert "turn 19 line 199" in drawn(log_of(app))[-1]
        assert searched == []
