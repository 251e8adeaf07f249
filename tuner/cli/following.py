"""Follow a run to its end, line by line. It goes on without this process: a lost link is connected again and told."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tuner.cli.ask import TerminalAsk
from tuner.cli.tables import plain
from tuner.core import run_words as words
from tuner.domain.acts import CancelRun
from tuner.domain.findings import Finding
from tuner.domain.link import LinkPhase
from tuner.domain.runs import ProcessId, RunOutcome, RunRecord, StepRecord
from tuner.domain.state import HostState, ServerState
from tuner.errors import sentences
from tuner.session.session import Session
from tuner.session.tasks import spawn

FINDINGS_S = 8.0
"""Longest wait for the diagnosis of a start that failed, seconds: its log may still be on its way."""
ORPHAN_S = 5.0
"""Seconds for which a run may be without a living supervisor before it counts as interrupted: one that was just started
is not seen yet."""
UNREACHED_S = 600.0
"""Seconds without a connection after which a run is followed no longer: a host that reboots is back before that."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass
class Followed:
    """What came of a run."""

    run: RunRecord | None = None
    """Its last record; None: it never began."""
    findings: tuple[Finding, ...] = ()
    """Findings about the server that it started and that failed, the root cause first."""
    left: bool = False
    """Whether the operator left before its end."""
    lost: str = ""
    """Why it is not followed to its end, in words; empty: it is."""
    unreached: bool = False
    """True: it is not followed to its end because the host cannot be reached."""


class Follower:
    """Follows one run. It is made before the order is sent.

    Args:
        session: The session of its host.
        ask: Asks the operator.
        run: Id of the run.
        say: Called with each line.
        unattended: True: an interrupt cancels the run and goes back, without a question.
        ended: Returns whether the host is known to exist no longer, as a demo whose process has ended.
    """

    def __init__(
        self,
        session: Session,
        ask: TerminalAsk,
        run: str,
        say: Callable[[str], None],
        *,
        unattended: bool,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._session = session
        self._ask = ask
        self._run = run
        self._say = say
        self._unattended = unattended
        self._ended = ended
        self._told: set[tuple[int, str]] = set()
        self._up = True
        self._failed: tuple[int, int] | None = None
        self._hello = session.state.hello
        self._interrupts = 0
        self._ordered = asyncio.Event()
        self._task: asyncio.Task[object] | None = None

    @contextlib.contextmanager
    def minding_interrupts(self) -> Iterator[None]:
        """Take interrupts as a wish to cancel the run, from before its order is sent until it is left."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    @property
    def left(self) -> bool:
        """Whether the operator has interrupted twice, which leaves the run to itself."""
        return self._interrupts > 1

    async def follow(self) -> Followed:
        """Tell each step until the run has ended, the operator leaves, or the host cannot be reached any more."""
        self._ordered.set()
        try:
            return await self._to_the_end()
        except asyncio.CancelledError:
            if not self.left:
                raise
            return Followed(run=self._record(), left=True)

    async def _to_the_end(self) -> Followed:
        try:
            async with asyncio.timeout(None) as limit:
                return await self._watched(limit)
        except TimeoutError:
            why = self._session.state.link.reason
            minutes = f"no connection for {UNREACHED_S / 60:.0f} minutes"
            return self._unreached(f"{minutes} ({why})" if why else minutes)

    def _unreached(self, why: str, what: str = "the run goes on at the host as far as is known") -> Followed:
        return Followed(run=self._record(), lost=f"{why}: {what}", unreached=True)

    async def _watched(self, limit: asyncio.Timeout) -> Followed:
        """Tell each step until the end; `limit` is set while there is no connection."""
        orphaned: float | None = None
        clock = asyncio.get_running_loop().time
        async for state in self._session.snapshots():
            if (lost := self._link(state)) is not None:
                return self._unreached(lost)
            if self._up:
                limit.reschedule(None)
            elif await asyncio.to_thread(self._ended):
                return self._unreached("the demo has ended", "what became of the run is not known")
            elif limit.when() is None:
                limit.reschedule(clock() + UNREACHED_S)
            run = self._record()
            if run is None:
                if self._missing(state):
                    return Followed(lost="the order did not arrive, or was refused: the host has no such run")
                continue
            self._tell(run, state)
            if run.outcome is not RunOutcome.RUNNING:
                return Followed(run=run, findings=await self._findings(run))
            if run.supervised or not self._up:
                orphaned = None
            elif orphaned is None:
                orphaned = clock()
            elif clock() - orphaned > ORPHAN_S:
                return Followed(run=run, lost=f"its supervisor is gone: {words.way_on(state, run)}")
        return self._unreached(self._session.state.link.reason or "the session has ended")

    def _record(self) -> RunRecord | None:
        return next((run for run in self._session.state.runs if run.id == self._run), None)

    def _missing(self, state: HostState) -> bool:
        """Return whether the host does not have the run: a probe that was started after the order does not tell it."""
        return state.link.phase is LinkPhase.UP and state.scanned and state.hello is not self._hello

    def _link(self, state: HostState) -> str | None:
        """Tell a link that was lost or came back; return why there will be none any more."""
        link = state.link
        if link.final and link.phase is LinkPhase.DOWN:
            return link.reason or "the host cannot be reached"
        up = link.phase in (LinkPhase.UP, LinkPhase.STALE)
        if up is not self._up:
            self._up = up
            lost = f"the link was lost ({link.reason}): the run goes on at the host, connecting again"
            self._say("connected again" if up else lost)
        return None

    def _tell(self, run: RunRecord, state: HostState) -> None:
        self._tell_steps(run, state)
        if run.new is not None:
            if not run.going_back:
                self._failed = (run.new.pid, run.new.start_ticks)
            self._once(f"           started: pid {run.new.pid}" + (f", log {run.log}" if run.log else ""))
            self._tell_phases(run.new, state)
        if run.failure and not any(step.failed == run.failure for step in run.steps):
            self._once(f"           failed: {run.failure}")

    def _tell_phases(self, new: ProcessId, state: HostState) -> None:
        """Tell each phase of the new server's start that has ended: loading may take half an hour."""
        own = (new.pid, new.start_ticks)
        server = next((x for x in state.servers if (x.identity.pid, x.identity.start_ticks) == own), None)
        for phase in server.phases if server is not None else ():
            if phase.ended is not None and phase.phase.starting:
                done = f", {phase.done} of {phase.total}" if phase.done is not None and phase.total else ""
                took = max(0.0, phase.ended - phase.started)
                self._once(f"           pid {new.pid}: {phase.phase} took {took:.1f} s{done}")

    def _once(self, line: str) -> None:
        if (-1, line) not in self._told:
            self._told.add((-1, line))
            self._say(plain(line))

    def _tell_steps(self, run: RunRecord, state: HostState) -> None:
        for number, step in enumerate(run.steps):
            last = number == len(run.steps) - 1
            for key, line in _step_lines(run, number, step, state, last=last):
                if (number, key) not in self._told:
                    self._told.add((number, key))
                    self._say(plain(line))

    async def _findings(self, run: RunRecord) -> tuple[Finding, ...]:
        """Return the findings of the server that failed to start, as soon as there are some."""
        if run.outcome not in (RunOutcome.FAILED, RunOutcome.BACK) or run.cancelled_by is not None:
            return ()
        found: tuple[Finding, ...] = ()
        if run.failed is not None:
            self._failed = (run.failed.pid, run.failed.start_ticks)
        if self._failed is None:
            return found
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINDINGS_S):
                async for state in self._session.snapshots():
                    server = self._server(state)
                    found = server.findings if server is not None else ()
                    if found and server is not None and not server.explain.due:
                        break
        return found

    def _server(self, state: HostState) -> ServerState | None:
        return next(
            (x for x in state.servers if (x.identity.pid, x.identity.start_ticks) == self._failed),
            None,
        )

    # Interrupts.

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            spawn(self._cancel(), name="cancel the run")
        elif self._task is not None:
            self._task.cancel()

    async def _cancel(self) -> None:
        back = True
        if not self._unattended:
            text = "\nThe run goes on at the host. Interrupt once more to leave it to itself."
            prompt = "Cancel it? back (to what ran before), stop (start nothing), no [no]: "
            answer = (await self._ask.question(text, prompt) or "").strip().lower()
            if not answer or answer[0] not in "bs":
                self._interrupts = 0
                self._say("not cancelled")
                return
            back = answer[0] == "b"
        await self._ordered.wait()
        done = await self._session.act(CancelRun(run=self._run, back=back), confirmed=True)
        if done.error is None:
            self._say("cancelled: " + ("going back to what ran before" if back else "nothing is started in its place"))
        else:
            self._say(sentences(f"could not be cancelled: {done.error}", done.hint))
            self._interrupts = 0


def _step_lines(
    run: RunRecord, number: int, step: StepRecord, state: HostState, *, last: bool
) -> Iterator[tuple[str, str]]:
    """Yield lines about a step, each with a key under which it is told once: numbers that count down are no news."""
    name = ("back: " if step.back else "") + words.STEP_NAMES[step.step]
    at = max(0.0, step.at - run.began_at)
    if step.ended is not None:
        took = max(0.0, step.ended - step.at)
        if step.failed:
            yield "end", f"{at + took:7.1f} s  {name} failed after {took:.1f} s: {step.failed}"
            return
        yield "end", f"{at + took:7.1f} s  {name} done in {took:.1f} s" + (f": {step.detail}" if step.detail else "")
        return
    detail = step.detail or (run.detail if last else "")
    # The record is written at once when something happens within a step.
    now = max(at, run.updated_at - run.began_at) if last and detail else at
    left = words.left_s(run, state.now) if last else None
    more = f"{detail}, {words.wait_words(left)} at most" if detail and left is not None else detail
    yield _NUMBER.sub("#", detail), f"{now:7.1f} s  {name}" + (f": {more}" if more else "")
