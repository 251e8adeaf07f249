"""A run is followed line by line, over lost links, until it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import msgspec
import pytest

from tests.support import states
from tests.support.facts import until
from tests.support.sessions import FakeSession
from tests.unit.core.test_runs import ME, NEW, OLD
from tuner.cli import following
from tuner.cli.following import Followed, Follower
from tuner.domain.acts import AnyAct, CancelRun
from tuner.domain.events import Acted
from tuner.domain.findings import Finding, Severity
from tuner.domain.link import LinkPhase
from tuner.domain.runs import RunOutcome, RunRecord, RunStep, StepRecord
from tuner.domain.server import Phase
from tuner.domain.state import HostState, LinkState
from tuner.session.tasks import spawn

REPLACE = msgspec.structs.replace
UP = REPLACE(states.serving(), link=LinkState(phase=LinkPhase.UP), runs=())


def run(*steps: StepRecord, **more: Any) -> RunRecord:
    fields = {"supervised": True, "old": OLD, "title": "Fast", **more}
    return RunRecord(id="run-1", operator=ME, began_at=100.0, updated_at=110.0, steps=steps, **fields)


def told(*records: RunRecord, state: HostState = UP) -> HostState:
    return REPLACE(state, runs=records)


STOP = StepRecord(step=RunStep.STOP, at=100.5)
STOPPED = REPLACE(STOP, ended=102.0, detail="TERM sent")
LOADING = StepRecord(step=RunStep.LOADING, at=102.0)
LOADED = REPLACE(LOADING, ended=108.0)


class Acting(FakeSession):
    """A session that remembers acts."""

    def __init__(self, state: HostState) -> None:
        super().__init__(state)
        self.acts: list[AnyAct] = []

    async def act(self, act: AnyAct, *, confirmed: bool) -> Acted:
        assert confirmed
        self.acts.append(act)
        return Acted(id=1)


class Answers:
    """An operator at a terminal who answers everything alike."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.asked = 0

    async def question(self, text: str, prompt: str) -> str | None:
        self.asked += 1
        return self.answer


class Following:
    def __init__(self, state: HostState, *, unattended: bool = True, answer: str | None = None, **more: Any) -> None:
        self.session = Acting(state)
        self.lines: list[str] = []
        self.ask = Answers(answer)
        follower: Any = Follower
        made = follower(self.session, self.ask, "run-1", self.lines.append, unattended=unattended, **more)

        async def follow() -> Followed:
            with made.minding_interrupts():
                followed: Followed = await made.follow()
                return followed

        self.task: asyncio.Task[Followed] = spawn(follow(), name="follow")

    async def push(self, state: HostState, line: str) -> None:
        """Tell a state, and wait until a line tells it."""
        self.session.push(state)
        await until(lambda: any(line in each for each in self.lines))

    async def end(self, state: HostState) -> Followed:
        self.session.push(state)
        async with asyncio.timeout(15):
            return await self.task


async def test_each_step_is_told_once_with_its_time_and_what_counts_down_is_no_news() -> None:
    at_work = Following(told(run(STOP, detail="9 processes live", until=states.WALL + 15)))
    await until(lambda: at_work.lines)
    for number in range(8, 0, -1):
        at_work.session.push(told(run(STOP, detail=f"{number} processes live", until=states.WALL + number)))
    await at_work.push(told(run(STOPPED, LOADING, new=NEW, log="/l")), "started: pid 200, log /l")
    followed = await at_work.end(told(run(STOPPED, LOADED, new=NEW, log="/l", outcome=RunOutcome.READY)))
    assert followed.run is not None
    assert (followed.run.outcome, followed.lost, followed.left) == (RunOutcome.READY, "", False)
    assert len([line for line in at_work.lines if "processes live" in line]) == 1
    assert [line.split("s  ")[1] for line in at_work.lines if " done in " in line] == [
        "stop done in 1.5 s: TERM sent",
        "loading done in 6.0 s",
    ]


async def test_what_happens_within_a_step_is_told_with_the_time_at_which_it_happened() -> None:
    at_work = Following(told(run(STOP, detail="SIGTERM to the main process sent")))
    await until(lambda: at_work.lines)
    late = REPLACE(run(STOP, detail="SIGKILL to 11 processes sent"), updated_at=130.5)
    await at_work.push(told(late), "SIGKILL")
    assert at_work.lines[-1] == "   30.5 s  stop: SIGKILL to 11 processes sent"
    await at_work.end(told(run(STOPPED, outcome=RunOutcome.STOPPED)))


async def test_the_step_in_which_a_start_failed_says_so_and_those_after_it_keep_their_own_words() -> None:
    why = "the server was ended by SIGKILL after 16 s"
    failed = REPLACE(LOADED, detail="8 ranks live", failed=why)
    memory = StepRecord(step=RunStep.MEMORY, at=108.0, ended=110.0, detail="the GPU memory is back")
    at_work = Following(told(run(STOPPED, LOADING)))
    await at_work.end(told(run(STOPPED, failed, memory, outcome=RunOutcome.FAILED, failure=why)))
    assert any(line.endswith(f"loading failed after 6.0 s: {why}") for line in at_work.lines)
    assert any("memory done in 2.0 s: the GPU memory is back" in line for line in at_work.lines)
    assert len([line for line in at_work.lines if why in line]) == 1


async def test_the_phases_of_the_new_server_are_told_as_they_end() -> None:
    server = states.starting().servers[0]
    identity = REPLACE(server.identity, key="200:22", pid=NEW.pid, start_ticks=NEW.start_ticks)
    base = REPLACE(UP, servers=(REPLACE(server, identity=identity),))
    at_work = Following(told(run(STOPPED, LOADING, new=NEW), state=base))
    ended = [phase for phase in server.phases if phase.ended is not None]
    assert ended
    await until(lambda: any(f"pid 200: {ended[-1].phase} took" in line for line in at_work.lines))
    assert len([line for line in at_work.lines if " took " in line]) == len(ended)
    await at_work.end(told(run(STOPPED, LOADED, new=NEW, outcome=RunOutcome.READY), state=base))
    assert len([line for line in at_work.lines if " took " in line]) == len(ended)


async def test_a_lost_link_is_told_and_the_run_goes_on_being_followed() -> None:
    at_work = Following(told(run(STOP)))
    lost = told(run(STOP), state=REPLACE(UP, link=LinkState(phase=LinkPhase.RECONNECTING, reason="the wire broke")))
    await at_work.push(lost, "the wire broke")
    assert any("the wire broke): the run goes on at the host" in line for line in at_work.lines)
    await at_work.push(told(run(STOPPED, LOADING)), "connected again")
    assert (await at_work.end(told(run(STOPPED, LOADED, outcome=RunOutcome.READY)))).lost == ""


async def test_a_host_that_is_lost_for_good_is_not_waited_for() -> None:
    at_work = Following(told(run(STOP)))
    followed = await at_work.end(
        told(run(STOP), state=REPLACE(UP, link=LinkState(phase=LinkPhase.DOWN, reason="key changed", final=True)))
    )
    assert followed.unreached
    assert followed.lost == "key changed: the run goes on at the host as far as is known"
    assert followed.run is not None
    assert followed.run.outcome is RunOutcome.RUNNING


CUT = told(run(STOP), state=REPLACE(UP, link=LinkState(phase=LinkPhase.RECONNECTING, reason="the wire broke")))


async def test_a_host_without_a_connection_for_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "UNREACHED_S", 0.05)
    at_work = Following(told(run(STOP)))
    followed = await at_work.end(CUT)
    assert followed.unreached
    assert "(the wire broke): the run goes on at the host as far as is known" in followed.lost


async def test_a_connection_that_comes_back_is_given_its_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "UNREACHED_S", 0.3)
    at_work = Following(told(run(STOP)))
    await at_work.push(CUT, "the wire broke")
    await at_work.push(told(run(STOP)), "connected again")
    await asyncio.sleep(0.4)
    assert not at_work.task.done()
    assert (await at_work.end(told(run(STOPPED, LOADED, outcome=RunOutcome.READY)))).lost == ""


async def test_a_demo_that_has_ended_is_not_connected_to_again() -> None:
    gone = False
    at_work = Following(told(run(STOP)), ended=lambda: gone)
    await at_work.push(CUT, "the wire broke")
    assert not at_work.task.done(), "only the link is lost"
    gone = True
    followed = await at_work.end(REPLACE(CUT, link=REPLACE(CUT.link, attempt=2)))
    assert followed.unreached
    assert followed.lost == "the demo has ended: what became of the run is not known"


async def test_an_order_that_never_arrived_is_told_after_the_next_look() -> None:
    at_work = Following(UP)
    cut = REPLACE(UP, link=LinkState(phase=LinkPhase.RECONNECTING, reason="the wire broke"))
    await at_work.push(cut, "the wire broke")
    assert UP.hello is not None
    anew = REPLACE(UP, hello=REPLACE(UP.hello, pid=7), scanned=False)
    await at_work.push(anew, "connected again")
    assert not at_work.task.done(), "the new probe has not looked yet"
    followed = await at_work.end(REPLACE(anew, scanned=True))
    assert followed.run is None
    assert "did not arrive" in followed.lost


async def test_a_run_that_the_new_probe_tells_had_begun() -> None:
    at_work = Following(UP)
    await at_work.push(REPLACE(UP, link=LinkState(phase=LinkPhase.RECONNECTING, reason="cut")), "cut")
    assert UP.hello is not None
    anew = REPLACE(UP, hello=REPLACE(UP.hello, pid=7))
    followed = await at_work.end(told(run(STOPPED, outcome=RunOutcome.READY), state=anew))
    assert (followed.lost, followed.run is not None) == ("", True)


async def test_the_findings_of_the_failed_start_are_awaited_even_after_going_back() -> None:
    failed = REPLACE(states.serving().servers[0], phase=Phase.FAILED, gone=True)
    identity = REPLACE(failed.identity, key="200:22", pid=NEW.pid, start_ticks=NEW.start_ticks)
    failed = REPLACE(failed, identity=identity)
    base = REPLACE(UP, servers=(*UP.servers, failed))
    at_work = Following(told(run(STOP), state=base))
    await until(lambda: at_work.lines)
    # The failed server is named by the record: the link may have been lost all the time that it lived.
    record = run(STOPPED, LOADED, new=OLD, failed=NEW, going_back=True, outcome=RunOutcome.BACK, failure="it ended")
    at_work.session.push(told(record, state=base))
    cause = Finding(cause="oom", severity=Severity.FATAL, title="Out of memory")
    known = REPLACE(base, servers=(*UP.servers, REPLACE(failed, findings=(cause,))))
    followed = await at_work.end(told(record, state=known))
    assert followed.findings == (cause,)
    assert any("failed: it ended" in line for line in at_work.lines)


@pytest.mark.parametrize(
    ("unattended", "answer", "back"),
    [(True, None, True), (False, "b", True), (False, "stop", False), (False, "", None), (False, None, None)],
)
async def test_an_interrupt_cancels_where_nobody_is_asked_and_asks_where_somebody_is(
    unattended: bool, answer: str | None, back: bool | None
) -> None:
    at_work = Following(told(run(STOP)), unattended=unattended, answer=answer)
    await until(lambda: at_work.lines)
    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: any("cancelled" in line for line in at_work.lines))
    assert at_work.session.acts == ([] if back is None else [CancelRun(run="run-1", back=back)])
    assert at_work.ask.asked == (0 if unattended else 1)
    assert not at_work.task.done(), "it is followed to its end all the same"
    followed = await at_work.end(told(run(STOPPED, outcome=RunOutcome.CANCELLED, cancelled_by=ME)))
    assert followed.run is not None
    assert not followed.left


async def test_a_second_interrupt_leaves_the_run_to_itself() -> None:
    at_work = Following(told(run(STOP)))
    await until(lambda: at_work.lines)
    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: at_work.session.acts)
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(15):
        followed = await at_work.task
    assert followed.left
    assert followed.run is not None
    assert followed.run.outcome is RunOutcome.RUNNING
