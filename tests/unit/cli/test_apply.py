"""A change from its order on: what is told, and with which exit code it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, cast

from tests.support import states
from tests.support.facts import until
from tests.support.sessions import FakeSession
from tuner.cli.apply import _Change
from tuner.cli.change_report import Printer, Told
from tuner.cli.wishes import Options
from tuner.domain.acts import AnyAct, ResumeRun
from tuner.domain.events import Acted
from tuner.session.tasks import spawn


class Silent(FakeSession):
    """A session whose host takes an order and does not answer."""

    def __init__(self) -> None:
        super().__init__(states.serving())
        self.acts: list[AnyAct] = []

    async def act(self, act: AnyAct, *, confirmed: bool) -> Acted:
        self.acts.append(act)
        await asyncio.Event().wait()
        raise AssertionError


async def test_two_interrupts_while_an_order_is_unanswered_leave_it_and_say_so() -> None:
    session = Silent()
    change: Any = _Change(cast("Any", session), cast("Any", None), Printer(as_json=True), Options(yes=True), {}, None)
    task = spawn(change.ordered(ResumeRun(run="run-1"), "run-1", Told(host="box")), name="change")
    await until(lambda: session.acts)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
    async with asyncio.timeout(15):
        told = await task
    assert (told.code, told.outcome) == (130, "left")
    assert "the run may go on at the host" in told.reason
