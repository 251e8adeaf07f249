from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from textual.events import Key
from textual.selection import Selection
from textual.widgets import Input, OptionList

from tests.support import states
from tests.support.sessions import FakeSession
from tuner.domain.events import ReadResult, SearchResult
from tuner.domain.logs import Level, LogBlock, LogHit, LogLine
from tuner.domain.state import HostState, LogState
from tuner.messages import SearchProgressed
from tuner.screens.dialogs import LineDialog
from tuner.widgets.log_index import line_of
from tuner.widgets.log_view import LogView
from tuner.widgets.rows import Rows
from tuner.widgets.search_panel import SearchPanel

AppOn = Callable[..., tuple[Any, list[FakeSession]]]


def with_log(log: LogState, state: HostState | None = None) -> HostState:
    state = state or states.serving()
    return states.REPLACE(state, servers=(states.REPLACE(state.servers[0], log=log),))


def drawn(view: LogView) -> list[str]:
    return [view.render_line(y).text for y in range(view.size.height)]


def view_of(app: Any) -> LogView:
    return app.screen.query_one(LogView)


def block_at(start: int, count: int, text: str = "line") -> LogBlock:
    lines = tuple(LogLine(offset=start + 10 * at, text=f"{text} {start + 10 * at}") for at in range(count))
    return LogBlock(start=start, end=start + 10 * count, lines=lines)


def grown(log: LogState, block: LogBlock, keep: int | None = None) -> LogState:
    blocks = (*log.blocks, block)[-keep if keep else None :]
    total = log.lines_total + len(block.lines)
    return states.REPLACE(log, blocks=blocks, start=blocks[0].start, end=block.end, size=block.end, lines_total=total)


async def test_follows_and_stands_still_when_the_reader_looks_back(app_on: AppOn) -> None:
    log = states.log_of(states.serving_log(60))
    app, (session,) = app_on(with_log(log))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        view = view_of(app)
        assert view.following
        await pilot.press("up", "up")
        before = drawn(view)
        log = grown(log, block_at(log.end, 50))
        session.push(with_log(log))
        await pilot.pause()
        assert [line[:-1] for line in drawn(view)] == [line[:-1] for line in before]
        assert "52 behind" in app.screen.query_one("#filters", Rows).text
        await pilot.press("F")
        await pilot.pause()
        assert f"line {log.end - 10}" in drawn(view)[-1]
        assert "following" in app.screen.query_one("#filters", Rows).text


async def test_what_the_reader_looks_at_is_not_dropped_under_them(app_on: AppOn) -> None:
    log = LogState(blocks=(block_at(0, 100),), end=1000, lines_total=100)
    app, (session,) = app_on(with_log(log))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "home")
        await pilot.pause()
        view = view_of(app)
        before = drawn(view)
        for _ in range(8):
            log = grown(log, block_at(log.end, 100), keep=3)
            session.push(with_log(log))
            await pilot.pause()
        assert [line[:20] for line in drawn(view)] == [line[:20] for line in before]
        assert "newer" in app.screen.query_one("#filters", Rows).text
        await pilot.press("end")
        await pilot.pause()
        assert f"line {log.end - 10}" in drawn(view)[-1]
        assert len(view.index.rows) == 300


async def test_a_burst_loses_nothing(app_on: AppOn) -> None:
    log = LogState(blocks=(block_at(0, 10),), end=100, lines_total=10)
    app, (session,) = app_on(with_log(log))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        for _ in range(10):
            log = grown(log, block_at(log.end, 4000))
            session.push(with_log(log))
            await pilot.pause()
        view = view_of(app)
        assert [line_of(row).offset for row in view.index.rows] == list(range(0, log.end, 10))
        assert f"line {log.end - 10}" in drawn(view)[-1]


async def test_filter_by_text_as_one_types(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "f", *"PREFILL")
        await pilot.pause()
        view = view_of(app)
        assert all("Prefill" in line_of(row).text or "prefill" in line_of(row).text for row in view.index.rows)
        assert len(view.index.rows) == 8
        await pilot.press("enter")
        await pilot.pause()
        assert view.has_focus
        assert len(view.index.rows) == 8
        await pilot.press("escape")
        await pilot.pause()
        assert len(view.index.rows) > 60


async def test_filter_by_rank_and_level(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "p", "p")
        await pilot.pause()
        view = view_of(app)
        assert {line_of(row).rank for row in view.index.rows} == {"TP1"}
        assert "rank TP1" in app.screen.query_one("#filters", Rows).text
        await pilot.press("P", "P", "P")
        await pilot.pause()
        assert {line_of(row).rank for row in view.index.rows} == {None}
        assert "rank main" in app.screen.query_one("#filters", Rows).text
        await pilot.press("escape", "v")
        await pilot.pause()
        assert [line_of(row).level for row in view.index.rows] == [Level.WARNING]


def numbered(count: int, **more: Any) -> tuple[LogLine, ...]:
    return tuple(LogLine(offset=10 * at, text=f"line {at}", rank=f"TP{at % 2}", **more) for at in range(count))


def here(app: Any) -> str:
    current = view_of(app).current_row()
    return current[0].text if current else ""


async def built(app: Any, pilot: Any) -> None:
    await pilot.pause()
    while view_of(app).building:
        await pilot.pause(0.01)


@pytest.mark.parametrize("up", [2, 3000])
async def test_a_filter_keeps_the_reader_near_their_line_and_gives_it_back(app_on: AppOn, up: int) -> None:
    blocks = tuple(LogBlock(1000 * at, 1000 * at + 1000, numbered(5000)[100 * at : 100 * at + 100]) for at in range(50))
    app, _ = app_on(with_log(LogState(blocks=blocks, end=50_000, lines_total=5000)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await built(app, pilot)
        view = view_of(app)
        view.go_to(view.index.last - 1 - up)
        at = 4999 - up
        row = view.cursor - view._visible()[0][0]
        assert here(app) == f"line {at}"
        await pilot.press("f", "7")
        await built(app, pilot)
        assert here(app) == f"line {min((n for n in range(5000) if '7' in str(n)), key=lambda n: abs(n - at))}"
        await pilot.press("x")
        await built(app, pilot)
        assert not view.index.rows
        await pilot.press("escape", "escape")
        await built(app, pilot)
        assert here(app) == f"line {at}"
        assert view.cursor - view._visible()[0][0] == row
        await pilot.press("p")
        await built(app, pilot)
        assert here(app) == f"line {at - at % 2}"
        assert not view.following
        await pilot.press("p")
        await built(app, pilot)
        assert abs(int(here(app).removeprefix("line ")) - at) <= 1
        await pilot.press("escape")
        await built(app, pilot)
        assert here(app) == f"line {at}"
        await pilot.press("escape")
        assert view.following


async def test_a_filter_stays_in_the_older_part_that_is_read(app_on: AppOn) -> None:
    held = LogState(blocks=(block_at(5_000_000, 200),), start=5_000_000, end=5_002_000, lines_total=200)
    text = "torn\n" + "".join(f"[2026-11-29 11:00:00] old line {at}\n" for at in range(3000))
    part = ReadResult(id=1, offset=1_000_000, end=1_000_000 + len(text), size=5_002_000, data=text)
    app, _ = app_on(FakeSession(with_log(held), part=part))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        app.screen.go_to_offset(1_000_000 + text.index("[2026-11-29 11:00:00] old line 150\n"))
        await built(app, pilot)
        assert here(app) == "[2026-11-29 11:00:00] old line 150"
        await pilot.press("f", *"line", "space", *"149", "enter")
        await built(app, pilot)
        assert here(app) == "[2026-11-29 11:00:00] old line 149"
        assert "older part" in app.screen.query_one("#filters", Rows).text
        await pilot.press("escape")
        await built(app, pilot)
        assert here(app) == "[2026-11-29 11:00:00] old line 150"


async def test_requests_for_numbers_are_shown_when_asked_for(app_on: AppOn) -> None:
    poll = LogLine(offset=400, text="GET /metrics 200", level=Level.DEBUG)
    lines = [*numbered(20, level=Level.INFO), poll, LogLine(offset=500, text="last", level=Level.INFO)]
    found = SearchResult(id=1, hits=(LogHit(400, poll.text),), scanned_bytes=510, done=True)
    app, _ = app_on(FakeSession(with_log(states.log_of(lines)), found=(found,)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        head, view = app.screen.query_one("#filters", Rows), view_of(app)
        shown = []
        for _ in range(5):
            shown.append((head.text.split("level ")[1].split()[0], any("GET" in line for line in drawn(view))))
            await pilot.press("v")
            await pilot.pause()
        assert shown == [("info+", False), ("warning+", False), ("error", False), ("all", True), ("info+", False)]
        await pilot.press("escape", "slash", *"metrics", "enter")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert here(app) == poll.text, "one goes to a hit although it was filtered out"
        assert "level all" in head.text


async def test_folding_shows_count_and_the_odd_one_out(app_on: AppOn) -> None:
    app, _ = app_on(with_log(states.log_of(states.serving_log(0))))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        view = view_of(app)
        text = "\n".join(drawn(view))
        assert "×7, not TP5" in text
        assert "×8 ranks" in text
        assert "avail mem=21.70 GB" in text
        await pilot.press("z")
        await pilot.pause()
        assert "×" not in "\n".join(drawn(view))
        assert sum("Init torch" in line for line in drawn(view)) == 8


async def test_errors_are_walked_and_go_round(app_on: AppOn) -> None:
    lines = [states.line(f"[2026-11-29 11:00:{at:02d}] text", at * 40, fold=0) for at in range(60)]
    for at in (10, 40):
        lines[at] = states.line(f"[2026-11-29 11:00:{at:02d}] broken", at * 40, level=Level.ERROR, fold=0)
    app, _ = app_on(with_log(states.log_of(lines)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "e")
        view = view_of(app)
        offsets = []
        for key in ("e", "e", "E"):
            offsets.append(line_of(view.index[view.current]).offset)
            await pilot.press(key)
        offsets.append(line_of(view.index[view.current]).offset)
        assert offsets == [400, 1600, 400, 1600]
        assert any("✖ [2026-11-29 11:00:40] broken" in line for line in drawn(view))


async def test_search_finds_what_is_held_then_asks_the_host(app_on: AppOn) -> None:
    state = states.serving()
    log = state.servers[0].log
    last = log.blocks[-1].lines[-1]
    found = (
        SearchResult(id=1, hits=(LogHit(last.offset, last.text),), scanned_bytes=1000),
        SearchResult(id=1, hits=(LogHit(0, "[red]first[/red] line"),), scanned_bytes=2_000_000, done=True),
    )
    app, (session,) = app_on(FakeSession(state, found=found))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"load weight", "enter")
        await pilot.pause()
        view = view_of(app)
        assert "Load weight end" in line_of(view.index[view.current]).text
        assert session.searched == [(states.KEY, "load weight", False)]
        hits = app.screen.query_one(OptionList)
        assert hits.option_count == 2
        assert str(hits.get_option_at_index(1).prompt) == "[red]first[/red] line"
        assert "2 hits" in app.screen.query_one("#hits-head", Rows).text
        head = app.screen.query_one("#hits-head", Rows).text
        assert "2.0 MB searched" in head
        assert "enter go there  n N next  esc close" in head
        await pilot.press("down", "enter")
        await pilot.pause()
        assert line_of(view.index[view.current]).offset == 0
        await pilot.press("escape")
        assert view.pattern is None


async def test_a_search_without_its_host_counts_what_is_held(app_on: AppOn) -> None:
    failed = SearchResult(id=1, done=True, error="the link was lost")
    app, _ = app_on(FakeSession(with_log(states.log_of(numbered(30))), found=(failed,)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"LINE 2", "enter")
        await pilot.pause()
        head = app.screen.query_one("#hits-head", Rows).text
        assert '"LINE 2"  11 here, 0 on the host' in head
        assert "the link was lost" in head
        assert head.rstrip().endswith("esc close")
        app.screen.search("nowhere")
        await pilot.pause()
        assert "0 hits on the host" in app.screen.query_one("#hits-head", Rows).text


async def test_the_current_line_stays_in_sight_when_hits_take_room(app_on: AppOn) -> None:
    state = states.serving()
    hits = tuple(LogHit(at, f"hit {at}") for at in range(20))
    app, _ = app_on(FakeSession(state, found=(SearchResult(id=1, hits=hits, done=True),)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"decode batch", "enter")
        await pilot.pause()
        view = view_of(app)
        assert view.size.height < 15
        assert view.current in [row_id for row_id, _ in view._visible()]
        assert "not following" in app.screen.query_one("#filters", Rows).text


async def test_older_and_newer_hits(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"prefill batch", "enter")
        await pilot.pause()
        view = view_of(app)
        view.focus()
        first = view.current
        await pilot.press("n")
        second = view.current
        assert second < first
        assert "Prefill" in line_of(view.index[second]).text
        await pilot.press("N")
        assert view.current == first


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("a(", "unterminated subpattern"), ("a{99999999999999999999}", "too large"), ("(" * 3000 + ")" * 3000, "deep")],
)
async def test_a_broken_regular_expression_says_so(app_on: AppOn, pattern: str, why: str) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "ctrl+r")
        app.screen.search(pattern)
        await pilot.pause()
        assert session.searched == []
        said = list(app._notifications)[-1]
        assert said.severity == "error"
        assert why in said.message


async def test_only_the_host_tries_a_regular_expression_and_its_hits_are_walked(app_on: AppOn) -> None:
    lines = [LogLine(offset=40 * at, text="a" * 29 + "!") for at in range(40)]
    state = with_log(states.log_of(lines))
    hits = tuple(LogHit(40 * at, lines[at].text) for at in (30, 20, 10))
    app, (session,) = app_on(FakeSession(state, found=(SearchResult(id=1, hits=hits, done=True),)))
    async with app.run_test(size=(80, 24)) as pilot:
        # Tried here, this expression would take minutes on each of these lines.
        await pilot.press("l", "ctrl+r", "slash", *"(a+)+$", "enter")
        await pilot.pause()
        view = view_of(app)
        assert session.searched == [(states.KEY, "(a+)+$", True)]
        offsets = [line_of(view.index[view.current]).offset]
        for key in ("n", "n", "n", "N"):
            await pilot.press(key)
            await pilot.pause()
            offsets.append(line_of(view.index[view.current]).offset)
        assert offsets == [1200, 800, 400, 400, 800]
        assert [note.message for note in app._notifications][-1] == "No older hit was found"


async def test_hits_of_the_search_before_are_not_shown_in_the_new_one(app_on: AppOn) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        app.screen.search("old")
        await pilot.pause()
        panel = app.screen.query_one(SearchPanel)
        old = panel.asked
        app.screen.search("new")
        await pilot.pause()
        for asked, text in ((old, "an old line"), (panel.asked, "a new line")):
            app.screen.post_message(SearchProgressed(asked, (LogHit(0, text),), 1, done=False))
        await pilot.pause()
        hits = app.screen.query_one(OptionList)
        assert [str(hits.get_option_at_index(at).prompt) for at in range(hits.option_count)] == ["a new line"]
        session.push(states.REPLACE(session.state, servers=states.two_servers().servers[1:]))
        await pilot.pause()
        assert not panel.open, "hits of another server's log lead nowhere"


async def test_the_oldest_line_is_waited_for_in_slices(app_on: AppOn) -> None:
    blocks = tuple(block_at(1000 * at, 100) for at in range(100))
    app, _ = app_on(with_log(LogState(blocks=blocks, end=100_000, lines_total=10_000)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        view = view_of(app)
        while view.live.building:
            await pilot.pause(0.01)
        app.screen.action_fold()
        assert view.live.building
        view.action_oldest()
        assert view.live.building, "the key itself must not index all of it"
        while view.live.building or view.following:
            await pilot.pause(0.01)
        assert line_of(view.index[view.current]).offset == 0


async def test_a_hit_that_is_not_held_is_fetched_and_shown_apart(app_on: AppOn) -> None:
    held = LogState(blocks=(block_at(5_000_000, 200),), start=5_000_000, end=5_002_000, lines_total=200)
    text = "torn\n" + "".join(f"old line {at}\n" for at in range(300))
    part = ReadResult(id=1, offset=1_000_000, end=1_000_000 + len(text), size=5_002_000, data=text)
    hit = LogHit(1_000_000 + text.index("old line 150"), "old line 150")
    app, (session,) = app_on(
        FakeSession(with_log(held), found=(SearchResult(id=1, hits=(hit,), scanned_bytes=1, done=True),), part=part)
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"old line", "enter")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        view = view_of(app)
        assert session.read[0][0] == states.KEY
        assert session.read[0][1] < hit.offset < session.read[0][1] + session.read[0][2]
        assert line_of(view.index[view.current]).text == "old line 150"
        assert line_of(view.index.rows[0]).text == "old line 0", "the torn line is left out"
        assert "older part" in app.screen.query_one("#filters", Rows).text
        await pilot.press("F")
        await pilot.pause()
        assert "line 5001990" in drawn(view)[-1]


async def test_a_hit_in_the_hole_between_head_and_tail_is_fetched_and_its_marker_opens_it(app_on: AppOn) -> None:
    marker = LogLine(offset=1000, text="4 MB not shown: opened near its end", marker=True, level=Level.WARNING)
    blocks = (block_at(0, 100), LogBlock(1000, 1000, (marker,)), block_at(5_000_000, 100))
    log = LogState(blocks=blocks, start=0, end=5_001_000, lines_total=201)
    text = "torn\n" + "".join(f"hidden {at}\n" for at in range(100))
    part = ReadResult(id=1, offset=2_000_000, end=2_000_000 + len(text), size=5_001_000, data=text)
    app, (session,) = app_on(FakeSession(with_log(log), part=part))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        view, screen = view_of(app), app.screen
        screen.go_to_offset(2_000_500)
        await pilot.pause()
        assert len(session.read) == 1
        assert line_of(view.index[view.current]).text.startswith("hidden")
        screen.go_to_offset(500)
        await pilot.pause()
        assert len(session.read) == 1
        assert line_of(view.index[view.current]).text == "line 500"
        view.go_to(view.index.first + 100)
        await pilot.press("enter")
        await pilot.pause()
        assert session.read[1] == (states.KEY, 0, 262_144)
        assert "older part" in screen.query_one("#filters", Rows).text


async def test_scrolling_above_what_is_held_fetches_older_lines(app_on: AppOn) -> None:
    held = LogState(blocks=(block_at(100_000, 100),), start=100_000, end=101_000, lines_total=100)
    text = "".join(f"older {at}\n" for at in range(50))
    part = ReadResult(id=1, offset=0, end=len(text), size=101_000, data=text)
    app, (session,) = app_on(FakeSession(with_log(held), part=part))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "home")
        await pilot.pause()
        view = view_of(app)
        assert session.read == [(states.KEY, 0, 100_000)]
        assert line_of(view.index.rows[0]).text == "older 0"
        assert line_of(view.index[view.current]).text == "line 100000"
        await pilot.press("up")
        assert line_of(view.index[view.current]).text == "older 49"


async def test_a_fetch_that_fails_says_why(app_on: AppOn) -> None:
    held = LogState(blocks=(block_at(100_000, 100),), start=100_000, end=101_000, lines_total=100)
    app, _ = app_on(FakeSession(with_log(held), part=ReadResult(id=1, error="log vanished")))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "home")
        await pilot.pause()
        assert [note.message for note in app._notifications] == ["log vanished"]


async def test_long_lines_are_cut_slid_and_wrapped(app_on: AppOn) -> None:
    long = "".join(f"<{at:04d}>" for at in range(11_000))
    wide = "[x] " + "日本語" * 60
    lines = [LogLine(offset=0, text=long), LogLine(offset=70_000, text=wide)]
    app, _ = app_on(with_log(states.log_of(lines)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "home")
        await pilot.pause()
        view = view_of(app)
        assert drawn(view)[0].rstrip(" │█").endswith("…")
        await pilot.press("right")
        assert "<0007>" in drawn(view)[0]
        assert "<0000>" not in drawn(view)[0]
        await pilot.press("left", "w", "end")
        await pilot.pause()
        assert "語" in drawn(view)[-1]
        assert all(view.render_line(y).cell_length == view.size.width for y in range(view.size.height))


async def test_markers_are_rules(app_on: AppOn) -> None:
    lines = [LogLine(offset=0, text="a"), LogLine(offset=2, text="log was rotated", marker=True, level=Level.WARNING)]
    app, _ = app_on(with_log(states.log_of(lines)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        assert "─── log was rotated ─────" in drawn(view_of(app))[1]


async def test_remote_markup_and_control_sequences_are_only_text(app_on: AppOn) -> None:
    lines = [LogLine(offset=0, text="[bold red]x[/] [@click=app.quit]y[/] {a}")]
    app, _ = app_on(with_log(states.log_of(lines)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        assert "[bold red]x[/] [@click=app.quit]y[/] {a}" in drawn(view_of(app))[0]
        await pilot.press("up", "enter")
        await pilot.pause()
        assert isinstance(app.screen, LineDialog)
        assert app.screen.text == "[bold red]x[/] [@click=app.quit]y[/] {a}"


async def test_copy_line_screen_and_selection(app_on: AppOn) -> None:
    app, _ = app_on(with_log(states.log_of([LogLine(offset=10 * at, text=f"line {at}") for at in range(100)])))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "up", "y")
        await pilot.pause()
        assert app.clipboard == "line 98"
        await pilot.press("Y")
        assert app.clipboard.splitlines()[-1] == "line 99"
        assert len(app.clipboard.splitlines()) == 22
        view = view_of(app)
        await pilot.mouse_down(LogView, offset=(5, 2))
        await pilot.hover(LogView, offset=(9, 3))
        await pilot.mouse_up(LogView, offset=(9, 3))
        await pilot.pause()
        assert isinstance(view.text_selection, Selection)
        first = line_of(view.index[view._visible()[2][0]]).text
        await pilot.press("y")
        assert app.clipboard.splitlines()[0] == first[2:]
        assert len(app.clipboard.splitlines()) == 2


async def test_the_wheel_scrolls_and_comes_back_to_following(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        view = view_of(app)
        last = drawn(view)[-1]
        view.scroll_rows(-3)
        await pilot.pause()
        assert not view.following
        assert drawn(view)[-1] != last
        view.scroll_rows(3)
        await pilot.pause()
        assert view.following


async def test_a_click_makes_a_line_current_and_the_filters_answer_too(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        view = view_of(app)
        await pilot.click(LogView, offset=(20, 4))
        await pilot.pause()
        assert view.current == view._visible()[4][0]
        head = app.screen.query_one("#filters", Rows)
        await pilot.click("#filters", offset=(head.text.index("rank") + 1, 0))
        await pilot.pause()
        assert "rank TP0" in head.text


async def test_typing_does_not_press_keys(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "f", *"qwo?")
        await pilot.pause()
        assert app.is_running
        assert app.current_mode == "logs"
        assert app.screen.query_one("#entry", Input).value == "qwo?"


async def test_another_server_has_another_log(app_on: AppOn) -> None:
    state = states.two_servers()
    second = states.REPLACE(state.servers[1], log=states.log_of([LogLine(offset=0, text="of the second")]))
    app, _ = app_on(states.REPLACE(state, servers=(state.servers[0], second)))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("full_stop", "l")
        await pilot.pause()
        assert "of the second" in drawn(view_of(app))[0]


async def test_the_tail_of_the_overview_opens_the_log(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.click("#tail", offset=(20, 2))
        await pilot.pause()
        assert app.current_mode == "logs"


async def test_a_hit_far_to_the_right_is_shown_with_its_match(app_on: AppOn) -> None:
    hits = (LogHit(0, f"{'begin ' * 30}needle {'end ' * 30}"), LogHit(900, "a needle at once"))
    app, _ = app_on(FakeSession(states.serving(), found=(SearchResult(id=1, hits=hits, done=True),)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"needle", "enter")
        await pilot.pause()
        options = app.screen.query_one(OptionList)
        far, near = (str(options.get_option_at_index(at).prompt) for at in range(2))
        assert "needle" in far
        assert far[0] == far[-1] == "…"
        assert len(far) <= 76
        assert near == "a needle at once"


def type_in_one_go(app: Any, *keys: str) -> None:
    """As a terminal hands on what was typed while the app was busy."""
    for key in keys:
        character = {"slash": "/", "space": " "}.get(key, key if len(key) == 1 else None)
        app._driver.send_message(Key(key, character))


@pytest.mark.parametrize(
    ("screen", "key", "field"), [("l", "f", "#entry"), ("l", "slash", "#entry"), ("i", "slash", "#find")]
)
async def test_what_is_typed_right_after_a_field_is_opened_goes_into_it(
    app_on: AppOn, screen: str, key: str, field: str
) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(screen)
        await pilot.pause()
        type_in_one_go(app, key, "q", "f", "space", "q", "o")
        await pilot.pause()
        await pilot.pause()
        assert app.screen.query_one(field, Input).value == "qf qo"
        await pilot.press("escape", "escape")
        await pilot.pause()
        for typed in (key, *"qwertyuiop"):
            # One turn of the loop between keys: some are on their way to the log when the field gets the focus.
            type_in_one_go(app, typed)
            await asyncio.sleep(0)
        await pilot.pause()
        await pilot.pause()
        assert app.screen.query_one(field, Input).value == "qwertyuiop"
        assert app.current_mode in ("logs", "details")
        assert app.is_running
