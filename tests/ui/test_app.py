from __future__ import annotations

import asyncio
import gc
import inspect
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette, Provider, SearchIcon
from textual.containers import VerticalScroll
from textual.widgets import OptionList, Static

from tests.support import states
from tests.support.sessions import FakeSession
from tuner.app import TunerApp
from tuner.domain.link import HostKeyQuestion, LinkPhase, SecretQuestion
from tuner.domain.server import Phase
from tuner.domain.state import LinkState
from tuner.errors import ConnectionFailed
from tuner.messages import SnapshotUpdated
from tuner.screens import SCREENS
from tuner.screens.ahead import collect, collect_by_hand
from tuner.screens.commands import HostCommands, KeyCommands, ScreenCommands, SearchCommands, ThemeCommands
from tuner.screens.dialogs import ErrorDialog, HostKeyDialog, SecretDialog
from tuner.screens.help import HelpScreen, all_keys, markdown
from tuner.widgets.keybar import KeyBar
from tuner.widgets.rows import Rows
from tuner.widgets.tabs import HostTabs
from tuner.widgets.themes import THEMES

AppOn = Callable[..., tuple[Any, list[FakeSession]]]
KEYS = Path(__file__).parents[2] / "docs" / "keys.md"


async def test_a_thousand_states_cost_few_handlings(app_on: AppOn) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        handled: list[float] = []
        original = app.on_snapshot_updated

        def counting(message: SnapshotUpdated) -> None:
            handled.append(message.state.mono)
            original(message)

        app.on_snapshot_updated = counting
        for at in range(1000):
            app.post_message(SnapshotUpdated("root@gpu-box-1", states.REPLACE(session.state, mono=states.MONO + at)))
        await pilot.pause()
        assert app.snapshot.mono == states.MONO + 999
        assert len(handled) < 20


async def test_old_numbers_are_dimmed_and_dated_and_nothing_is_blanked(app_on: AppOn, clock: Any) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        table = app.screen.query_one("#table", Rows)
        before = table.lines[2:]
        clock.now += 12
        session.push(states.stale())
        await pilot.pause()
        assert table.lines[2:] == before
        assert "as of 12 s ago" in table.text
        assert table._dimmed
        clock.now += 5
        app._second()
        await pilot.pause()
        assert "as of 17 s ago" in table.text
        assert "R Reconnect" in app.screen.query_one(KeyBar).text
        await pilot.press("R")
        await pilot.pause()
        assert session.reconnects == 1
        session.push(states.serving())
        await pilot.pause()
        assert "as of" not in table.text
        assert not table._dimmed
        assert "Reconnect" not in app.screen.query_one(KeyBar).text


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_what_no_longer_comes_is_dated_although_the_link_is_up(app_on: AppOn, size: tuple[int, int]) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        table = app.screen.query_one("#table", Rows)
        load = app.screen.query_one("#chart" if size[0] > 100 else "#phases", Rows)
        assert "as of" not in table.text + load.text
        session.push(states.silent())
        await pilot.pause()
        assert "GPU numbers as of 9 s ago" in table.text
        assert "as of 9 s ago" in load.text
        assert "● up" in app.screen.query_one("#status", Rows).text
        session.push(states.REPLACE(states.serving(), mono=states.MONO + 4))
        await pilot.pause()
        assert "as of" not in table.text + load.text


async def test_two_recordings_of_one_host_are_two(app_on: AppOn) -> None:
    app, sessions = app_on(states.serving(), states.failed())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        assert "root@gpu-box-1 (2) ● ✖ failed" in app.screen.query_one(HostTabs).text
        await pilot.press("right_square_bracket", "l", "slash", "x", "enter")
        await pilot.pause()
        assert [len(session.searched) for session in sessions] == [0, 1]
        sessions[1].push(states.serving())
        await pilot.pause()
        assert app.snapshot.name == "root@gpu-box-1 (2)"
        assert app.snapshot.servers[0].phase is Phase.READY


async def test_a_screen_that_comes_is_painted_at_once(app_on: AppOn, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        held: list[float] = []
        original = app.set_timer

        def watched(delay: float, *more: Any, **options: Any) -> Any:
            if options.get("name") == "delay_update":
                held.append(delay)
            return original(delay, *more, **options)

        monkeypatch.setattr(app, "set_timer", watched)
        await pilot.press("l")
        await pilot.pause()
        # The library's own 50 ms would be all that a key may take.
        assert len(held) == 1
        assert held[0] <= 0.01


async def test_several_hosts_have_tabs_and_a_dead_one_stalls_nobody(app_on: AppOn) -> None:
    other = states.REPLACE(states.failed(), name="root@gpu-box-2")
    app, sessions = app_on(states.down(), other, states.serving())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        tabs = app.screen.query_one(HostTabs)
        assert "[root@gpu-box-9 ○ down]" in tabs.text
        assert "root@gpu-box-2 ● ✖ failed" in tabs.text
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert app.host == "root@gpu-box-2"
        assert "FAILED while allocating KV" in app.screen.query_one("#notes", Rows).text
        await pilot.press("left_square_bracket", "left_square_bracket")
        await pilot.pause()
        assert app.host == "root@gpu-box-1"
        sessions[1].push(states.REPLACE(other, link=LinkState(phase=LinkPhase.STALE)))
        await pilot.pause()
        assert "root@gpu-box-2 ◐ stale" in tabs.text
        await pilot.click(HostTabs, offset=(4, 0))
        await pilot.pause()
        assert app.host == "root@gpu-box-9"


async def test_many_hosts_on_a_narrow_screen_keep_the_chosen_one_in_sight(app_on: AppOn) -> None:
    app, _ = app_on(*(states.REPLACE(states.serving(), name=f"root@gpu-box-{at:02d}") for at in range(12)))
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(12):
            await pilot.pause()
            assert f"[{app.host} ● ✔" in app.screen.query_one(HostTabs).text
            await pilot.press("right_square_bracket")


async def test_the_next_attempt_counts_down(app_on: AppOn, clock: Any) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        session.push(states.stale())
        await pilot.pause()
        assert "reconnecting, attempt 3 in 4 s" in app.screen.query_one("#status", Rows).text
        clock.now += 3
        app._second()
        await pilot.pause()
        assert "reconnecting, attempt 3 in 1 s" in app.screen.query_one("#status", Rows).text


async def test_one_host_needs_no_tab(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.screen.query_one(HostTabs).size.height == 0


async def test_the_next_server_of_a_host(app_on: AppOn) -> None:
    app, _ = app_on(states.two_servers())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        assert "SGLang 0.5.9" in app.screen.query_one("#status", Rows).text
        await pilot.press("full_stop")
        await pilot.pause()
        assert "vLLM 0.32.0" in app.screen.query_one("#status", Rows).text
        assert "[vLLM Qwen/Qwen3-32B :8000] ✔ READY" in app.screen.query_one("#servers", Rows).text


async def test_the_next_server_key_is_hidden_where_there_is_one(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        assert "Next server" not in app.screen.query_one(KeyBar).text


async def test_a_host_key_is_asked_for_and_enter_refuses(app_on: AppOn) -> None:
    app, _ = app_on(states.connecting())
    question = HostKeyQuestion(
        target="root@gpu-box-1", host="gpu-box-1", port=2222, key_type="ssh-ed25519", fingerprint="SHA256:abc/[red]def"
    )
    async with app.run_test(size=(80, 24)) as pilot:
        for key, expected in (("s", "save"), ("o", "once"), ("enter", "refuse"), ("escape", "refuse")):
            waiting = asyncio.ensure_future(app.ask(question))
            await pilot.pause()
            assert isinstance(app.screen, HostKeyDialog)
            assert str(app.screen.query(Static)[0].content) == "root@gpu-box-1: is this gpu-box-1 port 2222?"
            await pilot.press(key)
            assert await waiting == expected


async def test_a_password_is_asked_for_masked_and_handed_on(app_on: AppOn) -> None:
    app, _ = app_on(states.connecting())
    question = SecretQuestion(target="root@gpu-box-1", kind="password", prompt="root@gpu-box-1's password:", attempt=2)
    async with app.run_test(size=(80, 24)) as pilot:
        waiting = asyncio.ensure_future(app.ask(question))
        await pilot.pause()
        assert isinstance(app.screen, SecretDialog)
        await pilot.press(*"hunter2")
        assert "hunter2" not in app.export_screenshot()
        await pilot.press("enter")
        assert await waiting == "hunter2"
        waiting = asyncio.ensure_future(app.ask(question))
        await pilot.pause()
        await pilot.press("escape")
        assert await waiting is None


@pytest.mark.parametrize(
    ("kind", "attempt", "title", "words"),
    [
        ("keyboard-interactive", 1, "root@10.0.0.7:2222 asks for a password", "sent to the host"),
        ("password", 2, "root@10.0.0.7:2222 asks for a password", "That was wrong"),
        ("passphrase", 1, "The key for root@10.0.0.7:2222 is locked", "neither sent nor kept"),
    ],
)
async def test_a_secrets_dialog_says_who_asks_and_where_it_goes(
    app_on: AppOn, kind: str, attempt: int, title: str, words: str
) -> None:
    app, _ = app_on(states.connecting())
    question = SecretQuestion(target="pwd", host="root@10.0.0.7:2222", kind=kind, prompt="Password: ", attempt=attempt)
    async with app.run_test(size=(80, 24)) as pilot:
        waiting = asyncio.ensure_future(app.ask(question))
        await pilot.pause()
        texts = [str(static.content) for static in app.screen.query(Static)]
        assert texts[0] == title
        assert words in " ".join(texts)
        assert ("sent to the host" in " ".join(texts)) == (kind != "passphrase")
        await pilot.press("escape")
        assert await waiting is None


async def test_questions_come_one_at_a_time(app_on: AppOn) -> None:
    app, _ = app_on(states.connecting())
    question = SecretQuestion(target="a", kind="password", prompt="p")
    async with app.run_test(size=(80, 24)) as pilot:
        first, second = (asyncio.ensure_future(app.ask(question)) for _ in range(2))
        await pilot.pause()
        assert len(app.screen_stack) == 2
        await pilot.press("a", "enter")
        assert await first == "a"
        await pilot.pause()
        assert len(app.screen_stack) == 2
        await pilot.press("b", "enter")
        assert await second == "b"


async def test_a_cancelled_question_closes_its_dialog(app_on: AppOn) -> None:
    app, _ = app_on(states.connecting())
    async with app.run_test(size=(80, 24)) as pilot:
        waiting = asyncio.ensure_future(app.ask(SecretQuestion(target="a", kind="password", prompt="p")))
        await pilot.pause()
        waiting.cancel()
        await pilot.pause()
        assert len(app.screen_stack) == 1


async def test_sessions_may_be_made_with_the_apps_own_question_desk() -> None:
    asked: list[Any] = []

    def make(ask: Any) -> list[FakeSession]:
        asked.append(ask)
        return [FakeSession(states.serving())]

    app = TunerApp(make)
    assert asked == [app.ask]
    assert list(app.sessions) == ["root@gpu-box-1"]


async def test_a_session_that_fails_is_shown(app_on: AppOn) -> None:
    error = ConnectionFailed("The host refused us", "Permission denied (publickey)", "Load a key into ssh-agent")
    app, _ = app_on(FakeSession(states.down(), error=error), states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, ErrorDialog)
        assert app.screen.heading == "The host refused us"
        assert app.screen.hint == "Load a key into ssh-agent"
        await pilot.press("escape")
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert app.host == "root@gpu-box-1"


async def test_quitting_closes_the_sessions(app_on: AppOn) -> None:
    app, sessions = app_on(states.serving(), states.down())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
    assert all(session.closed.is_set() for session in sessions)


async def wait_for(pilot: Any, fact: Callable[[], bool]) -> None:
    """Until something is so."""
    for _ in range(200):
        if fact():
            return
        await pilot.pause(0.01)
    raise AssertionError("it never came true")


class Player:
    """Controls of a recording."""

    def __init__(self) -> None:
        self.paused = False
        self.speed = 1.0
        self.position = 75.0
        self.duration = 600.0

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def seek(self, position: float) -> None:
        self.position = position


async def test_a_replay_can_be_paused_and_sped_up(app_on: AppOn) -> None:
    session = FakeSession(states.serving())
    session.player = Player()
    app, _ = app_on(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        line = app.screen.query_one("#replay", Rows)
        assert "playing  1:15 of 10:00  at 1x" in line.text
        assert line.text.endswith("space pause  < > 10 s  - + speed")
        await pilot.press("space", "plus", "plus")
        await pilot.pause()
        assert "paused" in line.text
        assert "at 4x" in line.text
        assert "space goes on" in line.text
        session.player.speed, session.player.position, session.player.duration = 0.0, 6000.0, 6001.0
        app._second()
        await pilot.pause()
        assert len(line.text) <= 80
        assert line.text.endswith("- + speed")
        session.player.speed, session.player.position, session.player.duration = 4.0, 75.0, 600.0
        await pilot.press("minus", "space")
        await pilot.pause()
        assert "playing  1:15 of 10:00  at 2x" in line.text


async def test_the_end_of_a_recording_is_no_lost_host(app_on: AppOn, clock: Any) -> None:
    session = FakeSession(states.serving())
    session.player = Player()
    app, _ = app_on(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("less_than_sign")
        assert session.player.position == 65.0
        await pilot.press("greater_than_sign", "greater_than_sign")
        assert session.player.position == 85.0
        assert session.reconnects == 0
        over = LinkState(phase=LinkPhase.DOWN, reason="The recording ends here", final=True)
        session.push(states.REPLACE(states.serving(), link=over))
        clock.now += 60
        app._second()
        await pilot.pause()
        texts = [rows.text for rows in app.screen.query(Rows)]
        assert "end of the recording" in app.screen.query_one("#status", Rows).text
        assert "end of the recording, 10:00" in app.screen.query_one("#replay", Rows).text
        assert not any("as of" in text or "old numbers" in text or "link down" in text for text in texts)
        assert not app.screen.query_one("#table", Rows)._dimmed
        assert "R Play again" in app.screen.query_one(KeyBar).text
        await pilot.press("i", "greater_than_sign")
        await pilot.pause()
        assert "end of the recording" in app.screen.query_one("#status", Rows).text
        assert "link down" not in app.screen.query_one("#details", Rows).text
        assert (session.player.position, session.reconnects) == (85.0, 0), "there is nothing behind its end"
        await pilot.press("less_than_sign")
        assert (session.player.position, session.reconnects) == (75.0, 1)
        await pilot.press("R")
        assert session.reconnects == 2


async def test_a_recording_that_ended_is_no_host_that_is_down(app_on: AppOn) -> None:
    session = FakeSession(states.REPLACE(states.serving(), link=LinkState(phase=LinkPhase.DOWN, final=True)))
    session.player = Player()
    app, _ = app_on(session, states.REPLACE(states.failed(), name="root@gpu-box-2"))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        assert "[root@gpu-box-1 ○ ended" in app.screen.query_one(HostTabs).text
        shown = {name: about async for name, about in listed(KeyCommands, app)}
        assert "Play again" in shown
        assert "Reconnect" not in shown
        assert "reconnect" not in " ".join(shown.values()).lower()
        await pilot.press("question_mark")
        await pilot.pause()
        keys = app.screen.query_one("#help-rows", Rows).text
        assert "Play an ended replay from its beginning" in keys
        assert "Try the link" not in keys


async def listed(provider: type[Provider], app: TunerApp) -> AsyncIterator[tuple[str, str]]:
    """Names and descriptions of what a provider offers."""
    made = provider(app.screen)
    async for hit in made.discover():
        yield str(hit.text), str(hit.help)


async def test_other_screens_are_there_before_their_keys_are_pressed(app_on: AppOn) -> None:
    app, _ = app_on(states.serving(), ahead_s=0.001)
    async with app.run_test(size=(80, 24)) as pilot:
        await built(pilot)
        assert app.current_mode == "overview"
        assert "TP7" in app.screen.query_one("#table", Rows).text
        for name, key in (("logs", "l"), ("details", "i")):
            (screen,) = app.get_screen_stack(name)
            await pilot.press(key)
            await pilot.pause()
            assert app.screen is screen


async def test_a_key_that_is_pressed_while_screens_are_built_is_not_lost(app_on: AppOn) -> None:
    app, _ = app_on(states.serving(), ahead_s=0.001)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "v")
        await built(pilot)
        assert app.current_mode == "logs"
        assert "level warning+" in app.screen.query_one("#filters", Rows).text


async def test_nothing_is_built_under_a_question(app_on: AppOn) -> None:
    app, _ = app_on(states.serving(), ahead_s=0.001)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        help_screen = app.screen
        seen: list[Any] = []
        app.mode_change_signal.subscribe(help_screen, seen.append)
        while app.ahead.put_off < 2:
            await pilot.pause(0.02)
        assert app.screen is help_screen
        assert seen == []
        await pilot.press("escape")
        await built(pilot)


async def test_styles_are_not_read_anew_at_the_key_that_shows_a_screen(
    app_on: AppOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = app_on(states.serving(), ahead_s=0.001)
    styled: list[str] = []
    refresh_css = app.refresh_css
    monkeypatch.setattr(app, "refresh_css", lambda *args, **more: (styled.append(app.current_mode), refresh_css()))
    async with app.run_test(size=(80, 24)) as pilot:
        await built(pilot)
        assert {"logs", "details"} <= set(styled)
        styled.clear()
        for key in ("l", "i", "o"):
            await pilot.press(key)
            await pilot.pause()
        assert styled == []


async def test_what_is_loaded_is_frozen_and_the_clock_collects_the_rest(app_on: AppOn) -> None:
    before = gc.get_threshold()
    try:
        gc.collect()  # what earlier tests left would be frozen too, and its end counted against what this one adds
        collect_by_hand()
        frozen = gc.get_freeze_count()
        app, _ = app_on(states.serving(), ahead_s=0.001)
        async with app.run_test(size=(80, 24)) as pilot:
            await built(pilot)
            assert gc.get_freeze_count() > frozen + 1000
            for _ in range(40):
                gc.collect(1)
            app._second()
            assert gc.get_count()[2] == 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def built(pilot: Any) -> None:
    """Until every screen is there and the first one is shown again."""
    await asyncio.wait_for(pilot.app.ahead.done.wait(), 20)
    await pilot.pause()


def test_old_objects_are_collected_when_nobody_waits() -> None:
    before = gc.get_threshold()
    gc.collect()
    try:
        collect_by_hand()
        gc.collect(1)
        collect()
        assert gc.get_count()[2] > 0, "not due yet"
        for _ in range(40):
            gc.collect(1)
        assert gc.get_count()[2] > 30, "not by itself"
        collect()
        assert gc.get_count()[2] == 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def test_copying_goes_through_the_terminal(app_on: AppOn) -> None:
    app, _ = app_on(states.failed())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        count = len(app.clipboard.splitlines())
        assert [note.message for note in app._notifications] == [f"Copied ranks and problems, {count} lines"]
        assert "FAILED while allocating KV" in app.clipboard
        assert "TP7" in app.clipboard


async def test_themes_are_ours_and_the_librarys(app_on: AppOn) -> None:
    app, _ = app_on(states.serving(), theme="gputuner-light")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for name in ("gputuner-contrast", "nord", "textual-light", "gputuner-dark"):
            app.theme = name
            await pilot.pause()
            assert app.current_theme.name == name


async def test_a_keymap_replaces_keys_also_in_the_help(app_on: AppOn) -> None:
    app, _ = app_on(states.serving(), keymap={"screen.logs": "Z", "help": "h"})
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("Z")
        await pilot.pause()
        assert app.current_mode == "logs"
        await pilot.press("h")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        rows = [
            line for line in app.screen.query_one("#help-rows", Rows).text.splitlines() if line.strip().startswith("Z ")
        ]
        assert len(rows) == 1
        await pilot.press("escape")
        assert app.current_mode == "logs"


async def test_the_palette_finds_screens_hosts_servers_themes_keys_and_text(app_on: AppOn) -> None:
    app, _ = app_on(states.two_servers(), states.down())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()

        async def run(provider: type[Provider], typed: str) -> None:
            hits = [hit async for hit in provider(app.screen).search(typed)]
            result = max(hits, key=lambda hit: hit.score).command()
            if inspect.isawaitable(result):
                await result
            await pilot.pause()

        await run(HostCommands, "server vllm")
        assert app.server_key == "51000:9190000"
        await run(ThemeCommands, "theme gputuner-contrast")
        assert app.theme == "gputuner-contrast"
        await run(SearchCommands, "search batch")
        assert app.current_mode == "logs"
        assert "batch" in app.screen.query_one("#hits-head", Rows).text
        await run(KeyCommands, "wrap")
        assert app.screen.view.wrap
        await run(ScreenCommands, "go to details")
        assert app.current_mode == "details"
        await run(HostCommands, "host root@gpu-box-9")
        assert app.host == "root@gpu-box-9"
        assert len([hit async for hit in ScreenCommands(app.screen).discover()]) == len(SCREENS)
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)


async def test_the_palette_names_keys_once_and_lists_our_themes(app_on: AppOn) -> None:
    app, _ = app_on(states.serving(), keymap={"logs.wrap": "u"})
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        shown = [str(hit.prompt) async for hit in KeyCommands(app.screen).discover()]
        assert "Wrap  u" in shown
        assert [name for name in shown if name.startswith(("Up", "Down"))] == ["Up  up k", "Down  down j"]
        assert shown.index("Search  /") < shown.index("Up  up k")
        assert "Go to Details  i" in [str(hit.prompt) async for hit in ScreenCommands(app.screen).discover()]
        assert {name async for name, _ in listed(ThemeCommands, app)} == {f"Theme {theme.name}" for theme in THEMES}
        assert "Theme nord" in [str(hit.prompt) async for hit in ThemeCommands(app.screen).search("nord")]
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert app.screen.query_one(SearchIcon).icon.isascii()


async def test_a_key_that_does_nothing_here_says_why(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        for key, why in (("full_stop", "No other server here"), ("left_square_bracket", "Only one host"),
                         ("right_square_bracket", "Only one host"), ("R", "The link is up")):  # fmt: skip
            app.clear_notifications()
            await pilot.press(key)
            await pilot.pause()
            assert [note.message for note in app._notifications] == [why]


@pytest.mark.parametrize(
    ("size", "scrolls", "most"), [((80, 24), True, 16), ((160, 24), True, 30), ((160, 90), False, 60)]
)
async def test_the_help_uses_the_room_there_is(app_on: AppOn, size: tuple[int, int], scrolls: bool, most: int) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=size) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        box, rows = app.screen.query_one(VerticalScroll), app.screen.query_one("#help-rows", Rows)
        assert (box.max_scroll_y > 0) is scrolls
        seen = "\n".join(rows.text.splitlines()[: box.size.height])
        assert sum(key.tooltip in seen for _, keys in all_keys(app.BINDINGS, {}) for key in keys) >= most
        assert app.screen.query_one(".dialog-foot").region.bottom < size[1]


async def test_ctrl_c_names_the_key_that_quits_once(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+c", "ctrl+c", "ctrl+c")
        await pilot.pause()
        assert [toast.message for toast in app._notifications] == ["Press q to quit"]


async def test_the_help_begins_with_the_screens_own_keys_and_leaves_idle_ones_out(app_on: AppOn) -> None:
    session = FakeSession(states.serving())
    app, _ = app_on(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "question_mark")
        await pilot.pause()
        lines = app.screen.query_one("#help-rows", Rows).text.splitlines()
        assert [line for line in lines if line and not line.startswith(" ")][:3] == ["Logs", "In a log", "Everywhere"]
        assert not any("eplay" in line or "The next host" in line for line in lines)
        await pilot.press("escape")
        session.player = Player()
        await pilot.press("question_mark")
        await pilot.pause()
        assert "Pause a replay" in app.screen.query_one("#help-rows", Rows).text


async def test_the_palette_over_the_help_is_that_of_the_screen_below_with_themes_last(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "question_mark", "ctrl+p")
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        await wait_for(pilot, lambda: app.screen.query_one(OptionList).option_count > 20)
        options = app.screen.query_one(OptionList)
        texts = [str(options.get_option_at_index(at).hit.text) for at in range(options.option_count)]
        assert texts[0] == "Go to Overview"
        assert "Fold" in texts
        themes = [at for at, text in enumerate(texts) if text.startswith("Theme ")]
        assert themes == list(range(len(texts) - len(themes), len(texts)))


async def test_keys_can_be_clicked(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        bar = app.screen.query_one(KeyBar)
        await pilot.click(KeyBar, offset=(bar.text.index("Logs"), 0))
        await pilot.pause()
        assert app.current_mode == "logs"


def test_every_binding_has_id_and_description() -> None:
    from tuner.widgets.log_view import LogView

    for bindings in (TunerApp.BINDINGS, LogView.BINDINGS, *(entry.screen.BINDINGS for entry in SCREENS)):
        for binding in bindings:
            assert binding.id
            assert binding.description
            assert binding.tooltip


def test_keys_md_is_generated_from_the_bindings() -> None:
    text = markdown(all_keys(TunerApp.BINDINGS, {}))
    if os.environ.get("UPDATE_DOCS"):
        KEYS.write_text(text)
    assert KEYS.read_text() == text, "run: UPDATE_DOCS=1 pytest tests/ui/test_app.py -k keys_md"


def test_no_key_means_two_things_on_one_screen() -> None:
    from tuner.screens.base import TunerScreen
    from tuner.screens.explained import FINDING_KEYS, Explained
    from tuner.widgets.log_view import LogView

    # A recording is played again with the key that reconnects a host: no screen shows both.
    common = [binding for binding in (*TunerApp.BINDINGS, *TunerScreen.BINDINGS) if binding.id != "replay.again"]
    everywhere = [key for binding in common for key in binding.key.split(",")]
    for entry in SCREENS:
        own = [key for binding in entry.screen.BINDINGS for key in binding.key.split(",")]
        own += [key for binding in LogView.BINDINGS for key in binding.key.split(",")] if entry.name == "logs" else []
        if issubclass(entry.screen, Explained):
            own += [key for binding in FINDING_KEYS for key in binding.key.split(",")]
        keys = everywhere + own
        assert sorted(keys) == sorted(set(keys)), entry.name


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
