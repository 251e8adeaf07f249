"""Keys that come in one burst, as from a paste or a slow link, and faults while a secret is on screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from textual import events
from textual.command import CommandPalette
from textual.widgets import Input, OptionList

from tests.support import states
from tests.support.sessions import FakeSession
from tuner.domain.link import HostKeyQuestion, SecretQuestion
from tuner.domain.logs import LogLine
from tuner.errors import ConnectionFailed
from tuner.screens.commands import Palette
from tuner.screens.dialogs import ErrorDialog, HostKeyDialog, LineDialog, SecretDialog
from tuner.screens.help import HelpScreen
from tuner.widgets.glyphs import UNICODE

AppOn = Callable[..., tuple[Any, list[FakeSession]]]
SECRET = "hunter2pw"
PASSWORD = SecretQuestion(target="root@gpu-box-1", kind="password", prompt="password:")
HOST_KEY = HostKeyQuestion(target="a", host="a", port=22, key_type="ssh-ed25519", fingerprint="SHA256:abc")


def burst(app: Any, *keys: str) -> None:
    """All keys before the app handles the first, as a terminal's driver hands them on."""
    for key in keys:
        app.post_message(events.Key(key, "\r" if key == "enter" else key if len(key) == 1 else None))


async def settled(pilot: Any) -> None:
    """Until what a burst set going has come to rest."""
    for _ in range(5):
        await pilot.pause()


async def until(pilot: Any, fact: Callable[[], bool]) -> None:
    """Until something is so."""
    for _ in range(300):
        if fact():
            return
        await pilot.pause(0.01)
    raise AssertionError("it never came true")


@pytest.mark.parametrize("second", ["enter", "escape"])
async def test_a_secret_that_is_sent_twice_is_sent_once(app_on: AppOn, second: str) -> None:
    app, _ = app_on(states.connecting())
    async with app.run_test(size=(80, 24)) as pilot:
        waiting = asyncio.ensure_future(app.ask(PASSWORD))
        await until(pilot, lambda: isinstance(app.screen, SecretDialog))
        field = app.screen.query_one(Input)
        await pilot.press(*SECRET)
        burst(app, "enter", second)
        await settled(pilot)
        assert await waiting in (SECRET, None if second == "escape" else SECRET)
        assert second == "escape" or field.value == ""
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize("keys", [("enter", "enter"), ("escape", "escape"), ("r", "r"), ("s", "o")])
async def test_a_host_key_is_answered_once(app_on: AppOn, keys: tuple[str, str]) -> None:
    app, _ = app_on(states.connecting())
    async with app.run_test(size=(80, 24)) as pilot:
        waiting = asyncio.ensure_future(app.ask(HOST_KEY))
        await until(pilot, lambda: isinstance(app.screen, HostKeyDialog))
        burst(app, *keys)
        await settled(pilot)
        assert await waiting == ("save" if keys[0] == "s" else "refuse")
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize(("keys", "times"), [(("escape",), 3), (("enter",), 2), (("escape", "enter"), 1)])
async def test_dialogs_close_once(app_on: AppOn, keys: tuple[str, ...], times: int) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        for dialog in (LineDialog(LogLine(0, "text"), (), UNICODE), ErrorDialog(ConnectionFailed("No"))):
            app.push_screen(dialog)
            await until(pilot, lambda shown=dialog: app.screen is shown)
            burst(app, *keys * times)
            await settled(pilot)
            assert len(app.screen_stack) == 1


async def test_help_is_closed_once(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        help_screen = app.screen
        help_screen.action_close()
        help_screen.action_close()
        await settled(pilot)
        assert len(app.screen_stack) == 1


async def test_a_question_below_another_screen_is_not_answered_for_it(app_on: AppOn) -> None:
    app, _ = app_on(states.connecting())
    async with app.run_test(size=(80, 24)) as pilot:
        waiting = asyncio.ensure_future(app.ask(PASSWORD))
        await until(pilot, lambda: isinstance(app.screen, SecretDialog))
        app.push_screen(ErrorDialog(ConnectionFailed("No")))
        await until(pilot, lambda: isinstance(app.screen, ErrorDialog))
        waiting.cancel()
        await settled(pilot)
        assert isinstance(app.screen, ErrorDialog)
        await pilot.press("escape")
        await settled(pilot)
        assert len(app.screen_stack) == 1, "nobody waits for an answer any more"


async def opened(pilot: Any) -> OptionList:
    """The list of an open palette."""
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
    options: OptionList = pilot.app.screen.query_one(OptionList)
    await until(pilot, lambda: options.option_count > 0 and options.highlighted is not None)
    return options


@pytest.mark.parametrize("keys", [("enter", "enter"), ("enter", "escape"), ("enter", "enter", "enter", "escape")])
async def test_a_command_that_is_chosen_twice_runs_once(
    app_on: AppOn, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = app_on(states.serving())
    shown: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        show = app.action_show

        async def counted(name: str) -> None:
            shown.append(name)
            await show(name)

        monkeypatch.setattr(app, "action_show", counted)
        await opened(pilot)
        burst(app, *keys)
        await settled(pilot)
        assert len(app.screen_stack) == 1
        assert shown == (["overview"] if "escape" not in keys else shown)
        assert len(shown) <= 1


@pytest.mark.parametrize("key", ["enter", "escape", "pageup", "pagedown", "up", "down", "ctrl+home", "ctrl+end"])
async def test_keys_right_after_the_one_that_opens_the_palette(app_on: AppOn, key: str) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        burst(app, "ctrl+p", key, key)
        await settled(pilot)
        assert app.is_running


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_no_page_is_turned_before_the_list_is_laid_out(app_on: AppOn, direction: str) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        options = await opened(pilot)
        app.screen.query_one("#--container").display = False
        await until(pilot, lambda: not options.scrollable_content_region)
        options.clear_options().add_options(["one", "two"])
        options.highlighted = 0
        await pilot.press(f"page{direction}")
        assert options.highlighted == 0
        app.screen.query_one("#--container").display = True
        await until(pilot, lambda: bool(options.scrollable_content_region))
        await pilot.press("pagedown")
        assert options.highlighted == 1


@pytest.mark.parametrize("size", [(1, 1), (4, 24), (5, 24), (6, 24), (12, 10), (79, 24), (80, 23)])
async def test_the_palette_leaves_a_terminal_that_is_too_small(app_on: AppOn, size: tuple[int, int]) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.resize_terminal(*size)
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await pilot.press("ctrl+p")
        await settled(pilot)
        assert len(app.screen_stack) == 1
        assert app.screen.has_class("-too-small")
        await pilot.resize_terminal(80, 24)
        await opened(pilot)
        assert isinstance(app.screen, Palette)


async def test_a_fault_prints_no_locals(
    app_on: AppOn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = app_on(states.connecting())

    def fault(dialog: SecretDialog, result: str | None = None) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(SecretDialog, "dismiss", fault)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        async with app.run_test(size=(80, 24)) as pilot:
            waiting = asyncio.ensure_future(app.ask(PASSWORD))
            await until(pilot, lambda: isinstance(app.screen, SecretDialog))
            await pilot.press(*SECRET, "enter")
            await pilot.pause()
    waiting.cancel()
    printed = capsys.readouterr()
    assert "a fault of ours" in printed.err
    assert SECRET not in printed.out + printed.err
