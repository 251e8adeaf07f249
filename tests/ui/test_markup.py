"""What another operator, a host or a log says is text, and never markup."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.support import changing, states
from tests.ui.test_tune import WIDE, AppOn, press, told, tuned
from tuner import app, screens
from tuner.screens.dialogs import Modal

NAMES = ("eve[/]", "eve[@click=app.quit]x[/]", "eve[bold]")


@pytest.mark.parametrize("name", NAMES)
async def test_the_name_of_who_holds_the_lease_is_shown_as_it_is(app_on: AppOn, name: str) -> None:
    state = changing.leased()
    lease = state.lease
    assert lease.holder is not None
    lease = states.REPLACE(lease, holder=states.REPLACE(lease.holder, name=name))
    shown_app, host = tuned(app_on, states.REPLACE(state, lease=lease))
    async with shown_app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "enter")
        assert host.acts == []
        shown: Any = [toast.message for toast in shown_app._notifications]
        assert any(name in message for message in shown)
        assert not any(toast.markup for toast in shown_app._notifications if name in toast.message)
        assert told(shown_app)
        await press(pilot, "L")  # its question withdraws what was told
        assert isinstance(shown_app.screen, Modal)
        assert name in shown_app.screen.query_one("#confirm-title").render().plain


def test_every_notification_whose_words_are_not_ours_alone_says_that_it_is_no_markup() -> None:
    """A literal is ours; all that is put together or handed on may hold text of a host."""
    for path in [*Path(screens.__file__).parent.glob("*.py"), Path(app.__file__)]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("self.notify", "self.app.notify"):
                ours = all(isinstance(each, ast.Constant) for each in call.args)
                plain = any(each.arg == "markup" and ast.unparse(each.value) == "False" for each in call.keywords)
                assert ours or plain or _of_literals(call.args[0]), f"{path.name}:{call.lineno}"


def _of_literals(words: ast.expr) -> bool:
    return isinstance(words, ast.IfExp) and all(isinstance(each, ast.Constant) for each in (words.body, words.orelse))
