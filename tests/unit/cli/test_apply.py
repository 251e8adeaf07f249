"""A change from its order on: what is told, and with which exit code it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.support import states
from tests.support.facts import until
from tests.support.sessions import FakeSession
from tests.unit.core.test_runs import later_server, record
from tuner.cli import apply
from tuner.cli.apply import FACTS_S, _Change, clean_words, fitting_command
from tuner.cli.ask import TerminalAsk
from tuner.cli.change_lines import end_lines, finding_lines
from tuner.cli.change_report import Printer, Told, ended
from tuner.cli.following import Followed
from tuner.cli.paper import Paper
from tuner.cli.wishes import Options
from tuner.core.tuning import tune
from tuner.domain.acts import AnyAct, ResumeRun
from tuner.domain.events import Acted
from tuner.domain.forecast import Fit, Forecast
from tuner.domain.link import Target
from tuner.domain.planning import Planned
from tuner.domain.preflight import Check, Verdict
from tuner.domain.runs import Lease, Operator, ProcessId, RunOutcome, RunStep
from tuner.domain.state import HostState
from tuner.domain.tuning import Tuning, Wish
from tuner.engines import load_engines
from tuner.errors import UsageProblem
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


class Hesitating:
    """An operator who agrees after a while, during which the server ends."""

    def __init__(self, session: FakeSession, clock: list[float], seconds: float) -> None:
        self._session, self._clock, self._seconds = session, clock, seconds

    async def question(self, text: str, prompt: str) -> str:
        self._clock[0] += self._seconds
        gone = msgspec.structs.replace(self._session.state.servers[0], gone=True)
        self._session.state = msgspec.structs.replace(self._session.state, servers=(gone,))
        return "y"


def change(session: FakeSession, ask: Any, **options: Any) -> Any:
    printer = Printer(as_json=True)
    return _Change(cast("Any", session), ask, printer, Options(start=False, **options), {}, None)


@pytest.mark.parametrize(("seconds", "sent"), [(FACTS_S - 1.0, True), (FACTS_S + 1.0, False)])
async def test_an_order_that_was_confirmed_late_is_made_anew(
    seconds: float, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(apply, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    session = FakeSession(states.serving(), facts={}, acted=Acted(id=1, error="no"))
    told = await change(session, Hesitating(session, clock, seconds)).carried_out(session.state)
    assert (len(session.acts) == 1) is sent
    assert ("nothing to stop" in told.reason) is not sent
    assert told.code == 1


async def test_a_dry_run_with_a_lease_to_take_over_shows_the_order_and_takes_nothing() -> None:
    lease = Lease(holder=Operator(session="s2", name="bob"), beat_at=states.WALL)
    session = FakeSession(msgspec.structs.replace(states.serving(), lease=lease), facts={})
    told = await change(session, None, dry_run=True, take_over=True).carried_out(session.state)
    assert (told.outcome, session.acts) == ("dry-run", [])
    assert told.sent["stop"]["leader"]["pid"] == states.serving().servers[0].identity.pid


def test_where_nothing_was_interrupted_the_way_on_is_named() -> None:
    state = states.serving()
    assert apply._nothing_to_resume(msgspec.structs.replace(state, runs=())) == (
        f"no run was interrupted there. `gputuner apply {state.name} --back` goes back from a switch that has ended"
    )
    going_on = msgspec.structs.replace(state, runs=(record(1, outcome=RunOutcome.RUNNING, supervised=True),))
    assert f"`gputuner snapshot {state.name}` shows" in apply._nothing_to_resume(going_on)


def test_an_interrupted_run_is_not_resumed_beside_a_server_that_came_since() -> None:
    state = later_server()
    left, option, told = apply.resumption(state, back=False)
    assert (left is not None, option) == (True, None)
    assert "was started since" in told
    assert f"gputuner stop {state.name} --server" in told
    alone = msgspec.structs.replace(state, servers=())
    for back, wanted in ((False, "finish"), (True, "back")):
        _, option, told = apply.resumption(alone, back=back)
        assert option is not None
        assert (option.id, told.startswith("switching to fast: interrupted while")) == (wanted, True)


def test_before_cleaning_it_is_said_that_the_way_back_goes_too() -> None:
    state = states.serving()
    assert "way back is lost" in clean_words(msgspec.structs.replace(state, runs=(record(1),)))
    assert "way back" not in clean_words(msgspec.structs.replace(state, runs=()))


def test_a_long_line_about_a_run_is_broken_between_words_and_indented(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/data/" + "x" * 120
    printer = Printer(as_json=False)
    printer.paper = Paper(width=60)
    printer.say(f"   16.0 s  loading failed after 16.0 s: the server was ended by SIGKILL after 16 s, log {path}")
    printer.say("")
    assert capsys.readouterr().out.splitlines() == [
        "   16.0 s  loading failed after 16.0 s: the server was ended",
        "           by SIGKILL after 16 s, log",
        f"           {path}",
        "",
    ]


def test_no_path_is_broken_in_what_a_change_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    path = "/data/" + "folder-" * 10 + "/20261130-101523-a1b2c3d4.log"
    paper = Printer(as_json=False).paper
    lines = [*paper.wrapped(f"the log is {path}, on the host", label="log", hang=10)]
    assert [line.strip() for line in lines[1:]] == [path + ",", "on the host"]
    failed = record(1, outcome=RunOutcome.FAILED, log=path)
    assert any(path in line for line in finding_lines((), failed, paper))


def test_that_nothing_was_interrupted_is_told_before_a_confirmation_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = FakeSession(msgspec.structs.replace(states.serving(), runs=()))

    @contextlib.asynccontextmanager
    async def connected(*_: Any, **__: Any) -> AsyncIterator[tuple[FakeSession, TerminalAsk]]:
        yield session, TerminalAsk()

    async def settled(*_: Any, **__: Any) -> HostState:
        return session.state

    monkeypatch.setattr(apply, "connected", connected)
    monkeypatch.setattr(apply, "settled", settled)
    monkeypatch.setattr(TerminalAsk, "there", lambda self: False)
    target = Target(name="box", scheme="local")
    assert apply.resume(target, back=False, options=Options()) == 1
    assert "no run was interrupted there" in capsys.readouterr().out
    left = msgspec.structs.replace(record(1, outcome=RunOutcome.RUNNING, supervised=False), began_at=states.WALL)
    session.state = msgspec.structs.replace(session.state, runs=(left,))
    with pytest.raises(UsageProblem, match="must be confirmed"):
        apply.resume(target, back=False, options=Options())
    assert session.acts == []


async def test_the_question_names_the_checks_to_look_at() -> None:
    class Declining:
        text = ""

        async def question(self, text: str, prompt: str) -> str:
            self.text = text
            return "n"

    ask = Declining()
    session = FakeSession(states.serving(), facts={})
    told = await change(session, ask).carried_out(session.state)
    assert [each.verdict for each in told.tuning.checks if each.title in ("Rights", "Manager")] == [Verdict.UNKNOWN] * 2
    assert "\n2 checks to look at: Rights, Manager" in ask.text


@pytest.mark.parametrize(("outcome", "told"), [(RunOutcome.STOPPED, False), (RunOutcome.CANCELLED, True)])
def test_a_server_that_was_stopped_is_not_said_to_run(
    outcome: RunOutcome, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    state = states.serving()
    identity = state.servers[0].identity
    old = ProcessId(pid=identity.pid, start_ticks=identity.start_ticks)
    run = record(1, outcome=outcome, step=RunStep.MEMORY, old=old)
    state = msgspec.structs.replace(state, runs=(run,))
    ended(Told(host="box", followed=Followed(run=run), state=state), Printer(as_json=False), as_json=False)
    assert (f"runs now: pid {identity.pid}" in capsys.readouterr().out) is told


def test_who_cancelled_a_run_is_told() -> None:
    cancelled = record(1, cancelled_by=Operator(session="s", name="root", machine="vm"))
    assert [" ".join(line.split()) for line in end_lines(cancelled, Paper())] == ["cancelled by root@vm"]


def planned_badly(**fields: Any) -> Tuning:
    tuning = tune(states.serving(), Wish(), load_engines(), {}, run="r", operator=Operator(session="s", name="mia"))
    plan = Forecast(**{"fit": Fit.TOO_HIGH, "fraction": 0.97, "f_min": 0.6, "f_max": 0.8274, "sure": True, **fields})
    check = Check(id="memory", title="Memory forecast", verdict=Verdict.FAIL, detail="DOES NOT FIT")
    planned = Planned(base=cast("Any", None), knobs=(), now=plan, then=plan)
    return msgspec.structs.replace(tuning, engine="sglang", planned=planned, checks=(check,))


def test_a_forecast_that_refuses_names_the_command_that_fits() -> None:
    options = Options(preset="graphs-512", overrides=("--mem-fraction-static=0.97", "max_running_requests=64"))

    def command(tuning: Tuning) -> tuple[str, ...]:
        return fitting_command("box", tuning, options, load_engines())

    assert command(planned_badly()) == (
        "try: gputuner apply box graphs-512 --set max_running_requests=64 --set mem_fraction_static=0.827, "
        "or --ignore-forecast",
    )
    assert command(planned_badly(f_max=0.55)) == ()
    assert command(planned_badly(f_max=None)) == ()
    another = Check(id="port", title="Port", verdict=Verdict.FAIL, detail="taken")
    made = planned_badly()
    assert command(msgspec.structs.replace(made, checks=(*made.checks, another))) == ()


def test_ones_own_dashboard_is_told_as_such_and_the_way_out_is_named() -> None:
    holder = Operator(session="s1", name="mia", machine="laptop")
    state = msgspec.structs.replace(states.serving(), lease=Lease(holder=holder))
    server = state.servers[0].identity.key

    def lease(me: Operator) -> Check:
        made = tune(state, Wish(server=server), load_engines(), {}, run="r", operator=me)
        return next(each for each in made.checks if each.id == "lease")

    own = lease(Operator(session="s2", name="mia", machine="laptop"))
    assert own.detail.startswith("your own dashboard in another terminal (mia@laptop) holds the lease")
    assert "--take-over" in own.way_out
    assert own.way_out.startswith("press L on its Tune screen to give it back")
    assert lease(Operator(session="s2", name="bob", machine="laptop")).detail.startswith("mia@laptop holds the lease")
