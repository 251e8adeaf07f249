"""The story of a start and all findings in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.containers import VerticalScroll

from tests.support import changing, explained, states
from tests.support.sessions import FakeSession
from tuner.domain.findings import Outcome
from tuner.domain.runs import ProcessId, RunStep
from tuner.domain.server import Phase
from tuner.domain.starts import Figure, Start
from tuner.domain.state import HostState
from tuner.engines import load_engines
from tuner.widgets.glyphs import UNICODE
from tuner.widgets.keybar import KeyBar
from tuner.widgets.log_view import LogView
from tuner.widgets.rows import Rows
from tuner.widgets.spans import text_of, width_of
from tuner.widgets.start_story import story_lines

AppOn = Callable[..., tuple[Any, list[FakeSession]]]
NARROW, WIDE = (80, 24), (160, 48)


def story(start: Start, width: int = 160, **more: Any) -> list[str]:
    lines = story_lines(start, width, UNICODE, engine=load_engines()[start.engine].title, **more)
    assert all(width_of(line) <= width for line in lines), width
    return [text_of(line).rstrip() for line in lines]


def with_server(state: HostState, **changes: Any) -> HostState:
    return states.REPLACE(state, servers=(states.REPLACE(state.servers[0], **changes),))


def shown(app: Any) -> str:
    return app.screen.query_one("#story", Rows).text


def test_every_rank_has_its_seconds_and_its_memory() -> None:
    lines = story(explained.good_start())
    assert lines[0] == " ✔ READY · SGLang 0.5.9 · 8 ranks · fraction 0.88 · base-88.log"
    assert lines[1].split() == ["seconds", "GiB"]
    assert lines[2].split()[:7] == ["rank", "args", "dist", "weights", "kv", "graphs", "warm-up"]
    row = next(line for line in lines if line.startswith(" TP3"))
    numbers = "2.0 2.1 8:34 0.8 1:11 8.0 94.04 1.16 72.33 21.71 10.42 159,277 2.60 8.69"
    assert row.split()[1:] == numbers.split()
    assert len(lines) == 3 + 8


def test_a_phase_in_two_parts_took_both() -> None:
    """Decode and prefill graphs are captured one after the other, and what is usual counts both."""
    start = explained.good_start()
    ranks = []
    for rank in start.ranks:
        graphs = next(at for at, span in enumerate(rank.phases) if span.phase is Phase.GRAPH_CAPTURE)
        more = states.REPLACE(rank.phases[graphs], seconds=100.0)
        ranks.append(states.REPLACE(rank, phases=(*rank.phases[: graphs + 1], more, *rank.phases[graphs + 1 :])))
    row = next(line for line in story(states.REPLACE(start, ranks=tuple(ranks))) if line.startswith(" TP3"))
    assert row.split()[5] == "2:51", "71 s and 100 s"


def test_where_there_is_little_room_the_halves_stand_below_each_other() -> None:
    lines = story(explained.good_start(), 80)
    assert [line for line in lines if line.startswith(" rank")] == [lines[2], lines[13]]


def test_the_phase_in_which_a_rank_failed_has_a_sign() -> None:
    lines = story(explained.failed_start())
    assert lines[0].startswith(" ✖ FAILED in kv-alloc")
    assert all("✖" in line for line in lines if line.startswith(" TP"))


def test_ranks_that_are_alike_share_a_row() -> None:
    lines = story(explained.failed_start(), 80, folded=True)
    assert [line.split("  ")[0] for line in lines if line.startswith((" TP", " all"))] == [
        " TP0-4, 6-7",
        " TP5",
        " TP0-4, 6-7",
        " TP5",
    ]
    assert any(line.startswith(" all 8") for line in story(explained.good_start(), folded=True))


@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_number_is_cut_where_the_ranks_have_long_names(width: int) -> None:
    """A table moves closer together first, then its last columns go below."""
    start = explained.good_start()
    ranks = [states.REPLACE(rank, draft_kv_gib=Figure(0.46, 1)) for rank in start.ranks]
    for number in (2, 4):
        ranks[number] = states.REPLACE(ranks[number], before_weights=Figure(88.1, 1))
    lines = story(states.REPLACE(start, ranks=tuple(ranks)), width, folded=True)
    assert any(line.startswith(" TP0-1, 3, 5-7") for line in lines)
    words = " ".join(lines).split()
    for number in ("94.04", "88.10", "1.16", "72.33", "21.71", "10.42", "0.46", "159,277", "2.60", "8.69", "8:34"):
        assert number in words


def test_what_a_rank_has_that_others_have_not_stands_out() -> None:
    start = explained.good_start()
    odd = states.REPLACE(start.ranks[2], before_weights=Figure(88.1, 1))
    lines = story_lines(states.REPLACE(start, ranks=(*start.ranks[:2], odd, *start.ranks[3:])), 160, UNICODE)
    marked = [(text.strip(), style) for line in lines for text, style in line if style == "warn"]
    assert marked == [("88.10", "warn")]


def test_a_running_start_and_one_whose_end_is_missing_say_so() -> None:
    start = explained.failed_start()
    running = story(states.REPLACE(start, outcome=Outcome.RUNNING))
    assert running[0].startswith(" ▶ STARTING")
    assert "▶" in running[3]
    assert story(states.REPLACE(start, outcome=Outcome.UNKNOWN))[0].startswith(" ◐ END NOT SEEN")
    inferred = states.REPLACE(start, version="0.5.3 to 0.5.9", version_inferred=True)
    assert "0.5.3 to 0.5.9, by its wording" in story(inferred)[0]


def test_usual_times_stand_below() -> None:
    server = states.serving().servers[0]
    assert any(line.startswith(" usually  2.0-3.0") for line in story(explained.good_start(), server=server))


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_story_and_cards_are_there_in_full(app_on: AppOn, size: tuple[int, int]) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=size) as pilot:
        await pilot.press("x")
        await pilot.pause()
        text = shown(app)
        for part in (
            "✖ FAILED in kv-alloc · SGLang 0.5.9",
            "mem-fraction-too-low",
            "env-ignored",
            "refuted by",
            "▲ wrong",
        ):
            assert part in text
        assert "unfolds" not in text


async def test_keys_go_from_line_to_line_and_card_to_card(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("x")
        await pilot.pause()
        box = app.screen.query_one("#story-box", VerticalScroll)
        chosen = []
        for _ in range(5):
            lines = shown(app).splitlines()
            row = next(at for at, line in enumerate(lines) if "▌" in line)
            assert box.scroll_y <= row < box.scroll_y + box.size.height, "what is chosen is on the screen"
            chosen.append(" ".join(lines[row].split()[1:3]))
            await pilot.press("down")
            await pilot.pause()
        assert chosen[:2] == ["A raise", "evidence TP5"]
        assert chosen[-1] == "A unset"
        await pilot.press("A")
        assert app.clipboard == "unset SGLANG_CUSTOM_ALLREDUCE_ALGO"
        await pilot.press("p")
        await pilot.pause()
        await pilot.press("A")
        assert app.clipboard == "--mem-fraction-static 0.88"
        await pilot.press("home")
        assert box.scroll_y == 0
        await pilot.press("pagedown", "end")
        assert box.scroll_y == box.max_scroll_y


async def test_enter_goes_to_the_line_of_the_log(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("x", "down", "down", "enter")
        await pilot.pause()
        await pilot.pause()
        assert app.current_mode == "logs"
        current = app.screen.query_one(LogView).current_row()
        assert current is not None
        assert "avail mem=21.70" in current[0].text


async def test_ranks_fold_and_unfold(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("x")
        await pilot.pause()
        assert " TP0-4, 6-7" in shown(app)
        await pilot.press("z")
        await pilot.pause()
        assert " TP6 " in shown(app)


async def test_empty_states_are_words(app_on: AppOn) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("x")
        await pilot.pause()
        assert "the log does not tell how it started" in shown(app)
        assert "Its line" not in app.screen.query_one(KeyBar).text
        for state, words in (
            (with_server(states.serving(), start=explained.good_start()), "✔ nothing is wrong"),
            (with_server(states.starting(), start=explained.good_start()), "✔ nothing is wrong so far"),
            (with_server(states.failed(), start=explained.failed_start()), "no cause was found in its log"),
            (states.empty(), "no server, so nothing to explain"),
        ):
            session.push(state)
            await pilot.pause()
            assert words in shown(app)
            await pilot.press("down", "up", "n", "enter", "A", "y")


async def test_the_key_bar_counts_findings(app_on: AppOn) -> None:
    app, (session,) = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "x 2 findings" in app.screen.query_one(KeyBar).text
        session.push(states.serving())
        await pilot.pause()
        assert "x Findings" in app.screen.query_one(KeyBar).text


async def test_a_failure_is_told_on_other_screens(app_on: AppOn) -> None:
    app, (session, other) = app_on(states.serving(), states.REPLACE(states.serving(), name="root@gpu-box-2"))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("i")
        await pilot.pause()
        session.push(states.explained())
        await pilot.pause()
        assert [toast.message for toast in app._notifications] == [
            "SGLang kimi-k2.5-int4 failed in kv-alloc: mem-fraction-too-low. Press x to see why"
        ]
        other.push(states.REPLACE(states.explained(), name="root@gpu-box-2"))
        await pilot.pause()
        assert [toast.message for toast in app._notifications][1:] == [
            "root@gpu-box-2: SGLang kimi-k2.5-int4 failed in kv-alloc: mem-fraction-too-low"
        ]


async def test_what_a_run_stops_has_not_failed(app_on: AppOn) -> None:
    serving, dead = states.serving(), states.explained()
    identity = serving.servers[0].identity
    old = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    app, (session,) = app_on(serving)
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("i")
        for step, told in ((RunStep.STOP, 0), (RunStep.CHECK, 1)):
            session.push(states.REPLACE(serving, runs=()))
            await pilot.pause()
            session.push(states.REPLACE(dead, runs=(changing.run(old=old, step=step),)))
            await pilot.pause()
            assert len([each for each in app._notifications if " failed in " in each.message]) == told


async def test_a_failure_before_we_came_is_no_news(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("i")
        await pilot.pause()
        assert list(app._notifications) == []


async def test_a_click_on_the_card_opens_all_findings(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        await pilot.click("#card", offset=(10, 1))
        await pilot.pause()
        assert app.current_mode == "findings"


async def test_copying_copies_story_and_findings(app_on: AppOn) -> None:
    app, _ = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("x", "y")
        await pilot.pause()
        for part in ("FAILED in kv-alloc", "TP5", "raise --mem-fraction-static to 0.88", "env-ignored"):
            assert part in app.clipboard


async def test_numbers_that_change_leave_the_reader_where_they_are(app_on: AppOn) -> None:
    app, (session,) = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("x", *["down"] * 6)
        await pilot.pause()
        box = app.screen.query_one("#story-box", VerticalScroll)
        chosen = [line for line in shown(app).splitlines() if "▌" in line]
        top = box.scroll_y
        root, note = session.state.servers[0].findings
        news = (explained.graphs_off(), states.REPLACE(root, explanation=f"{root.explanation} Again."), note)
        session.push(with_server(session.state, findings=(news[1], note)))
        await pilot.pause()
        assert [line for line in shown(app).splitlines() if "▌" in line] == chosen
        assert box.scroll_y == top
        session.push(with_server(session.state, findings=news))
        await pilot.pause()
        assert [line for line in shown(app).splitlines() if "▌" in line] == chosen, "the same finding is chosen"


async def test_a_worse_finding_that_comes_late_is_chosen_until_the_reader_chooses(app_on: AppOn) -> None:
    state = states.explained()
    worst, note = state.servers[0].findings
    app, (session,) = app_on(with_server(state, findings=(note,)))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("x")
        await pilot.pause()
        session.push(with_server(state, findings=(worst, note)))
        await pilot.pause()
        await pilot.press("A")
        assert app.clipboard == "--mem-fraction-static 0.88"
        await pilot.press("n")
        session.push(with_server(state, findings=(explained.graphs_off(), worst, note)))
        await pilot.pause()
        await pilot.press("A")
        assert app.clipboard == "unset SGLANG_CUSTOM_ALLREDUCE_ALGO", "the reader's choice stays"
