"""One host, for as long as somebody looks at it: connects, starts the probe, folds what it says, connects again.

`link` is one connection, `stream` turns its bytes into events, `requests` pairs questions with answers; here events
become state, and ended connections become new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tuner import transports
from tuner.core.engine import Engine
from tuner.core.redact import mask
from tuner.core.reduce import initial, reduce
from tuner.core.snapshot import missing
from tuner.domain import commands as c
from tuner.domain import events as e
from tuner.domain.link import LinkPhase, Target
from tuner.domain.plan import ProbePlan
from tuner.domain.state import HostState
from tuner.errors import ConnectionFailed, TunerError
from tuner.paths import history_file
from tuner.session.link import End, Link, Timing
from tuner.session.recorder import Recorder
from tuner.session.requests import Requests
from tuner.session.stream import Stream
from tuner.session.tasks import spawn
from tuner.store.history import History
from tuner.store.journal import Journal
from tuner.transports import Ask, Transport

CHORES_S = 2.0
"""For what is still to be written when a session ends."""


class Session:
    """One host.

    Args:
        target: Whom it is about.
        transport: Makes a new connection for each attempt.
        engines: By name.
        ask: Puts questions to the operator.
        journal: Where events are written.
        history: Where starts are kept and looked up.
        plan: What the probe is told; the engines' own plans without it.
        retry: Connect again, until closed. Without it `run` ends with the first connection.
        timing: How patient.
    """

    def __init__(
        self,
        target: Target,
        transport: Callable[[], Transport],
        engines: Mapping[str, Engine],
        *,
        ask: Ask,
        journal: Journal | None = None,
        history: History | None = None,
        plan: ProbePlan | None = None,
        retry: bool = True,
        timing: Timing | None = None,
    ) -> None:
        self.target: Final = target
        self.player: Any = getattr(transport, "player", None)
        """The controls of a recording (`transports.replay.Player`); None for a host."""
        self.state = initial(self.player.header.host if self.player else target.name)
        """The newest."""
        self.failure: Exception | None = None
        """A fault of ours that ended the session."""
        self._transport = transport
        self._engines = engines
        self._ask = ask
        self._recorder = Recorder(journal, lambda problem: self._trouble("journal", str(problem)))
        self._history = history
        self._plan = plan or plan_for(engines)
        self._retry = retry
        self._timing = timing or Timing()
        self._stream = Stream(recorded=self.player is not None)
        self._link: Link | None = None
        self._watchers: set[asyncio.Event] = set()
        self._problems: list[e.ProblemSeen] = []
        self._chores: asyncio.Queue[c.AnyCommand] = asyncio.Queue()
        self._requests = Requests(self._send)
        self._now_please = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False

    # What others may ask of it.

    async def run(self) -> None:
        """Work until `aclose`, or without `retry` until the connection ends. Raises nothing for a lost link."""
        self._started = True
        chores = spawn(self._do_chores(), name=f"chores {self.target.name}")
        try:
            await self._keep_connected()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHORES_S):
                    await self._chores.join()
        except Exception as error:
            # Ours, not the host's: it must be seen, and it must be heard.
            self.failure = error
            words = str(error) if isinstance(error, TunerError) else f"A bug in gputuner: {error!r}"
            self.state = msgspec.structs.replace(
                self.state,
                link=msgspec.structs.replace(self.state.link, phase=LinkPhase.DOWN, reason=mask(words), final=True),
            )
            raise
        finally:
            chores.cancel()
            await asyncio.gather(chores, return_exceptions=True)
            await self._recorder.close()
            self._ended.set()
            self._tell_watchers()

    async def snapshots(self) -> AsyncIterator[HostState]:
        """The state whenever it changed, at most five times a second, the newest only; ends with the session."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        loop = asyncio.get_running_loop()
        shown: HostState | None = None
        shown_at = -self._timing.frame
        try:
            while True:
                changed.clear()
                wait: float | None = None
                if self.state is not shown:
                    wait = shown_at + self._timing.frame - loop.time()
                    first = shown is None or (not missing(self.state) and missing(shown))
                    if wait <= 0 or first or self._ended.is_set():
                        shown, shown_at = self.state, loop.time()
                        yield shown
                        continue
                elif self._ended.is_set():
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await changed.wait()
        finally:
            self._watchers.discard(changed)

    def reconnect(self) -> None:
        """Try now, whatever the back-off says; also after a final failure."""
        self._now_please.set()

    def search(
        self,
        key: str,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = True,
        limit: int = 500,
        before: int | None = None,
    ) -> AsyncIterator[e.SearchResult]:
        """Search a log on the host, newest hits first.

        Args:
            key: Of the server.
            pattern: Plain text, or a regular expression.
            regex: The pattern is one.
            ignore_case: As it says.
            limit: Of hits.
            before: Offset from which to go backwards; None: the log's end.

        Yields:
            Hits as they are found. The last result has `done`; when the link is lost it has an `error` too. Leaving
            the loop earlier ends the search on the host.
        """
        return self._requests.search(key, pattern, regex=regex, ignore_case=ignore_case, limit=limit, before=before)

    async def read_log(self, key: str, offset: int, length: int) -> e.ReadResult:
        """Read a part of a log on the host; `error` says why it could not be read.

        Of the line in which `offset` lies only the end comes, its newline: a secret may be cut there. So the part may
        begin later than was asked for.
        """
        return await self._requests.read(key, offset, length)

    async def checks(self) -> e.CheckResult:
        """Facts about the host for `doctor`.

        Raises:
            ConnectionFailed: the host is not connected, the link was lost before the answer, or none came in 15 s.
        """
        return await self._requests.checks()

    async def aclose(self) -> None:
        """End the session: the probe is told good-bye. Returns when `run` has ended. Safe to call twice."""
        self._closing.set()
        if self._started:
            await self._ended.wait()
        else:
            await self._recorder.close()

    # Connecting.

    async def _keep_connected(self) -> None:
        attempt = 0
        reason: str | None = None
        while not self._closing.is_set():
            attempt += 1
            began = time.monotonic()
            self._now_please.clear()
            self._say(self._trying(), reason=reason, attempt=attempt)
            end = await self._unless_closing(self._connection())
            if end is None:
                return
            # The other side's words may be in it.
            reason = mask(end.reason)
            if end.done:
                if self.player is not None and not self.player.rewound:
                    self._say(LinkPhase.DOWN, reason=reason, final=True)
                if not self._retry:
                    return
                if self.player is None or not self.player.rewound:
                    await self._wait(None)
                if self.player is not None:
                    # A recording is played from its start, and a state is the sum of its past.
                    self.state = initial(self.state.name)
                    self._stream = Stream(recorded=True)
                continue
            if end.lived >= self._timing.steady:
                attempt = 0
            if end.final or not self._retry:
                self._say(LinkPhase.DOWN, reason=reason, attempt=attempt, final=True)
                if not self._retry:
                    return
                await self._wait(None)
                attempt = 0
                continue
            # Counted from the beginning of the attempt: one that ran into its time-out has waited already.
            backoff = self._timing.backoff
            wait = backoff[min(attempt, len(backoff) - 1)]
            if not end.lived:
                wait = max(backoff[0], began + wait - time.monotonic())
            self._say(self._trying(), reason=reason, attempt=attempt, retry_in_s=wait)
            await self._wait(wait)

    def _trying(self) -> LinkPhase:
        return LinkPhase.RECONNECTING if self.state.hello is not None else LinkPhase.CONNECTING

    async def _wait(self, seconds: float | None) -> None:
        """Wait, but not when the operator wants it now or the session ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._unless_closing(self._now_please.wait())

    async def _unless_closing(self, work: Any) -> Any:
        """The result of a coroutine; None when the session was closed meanwhile, and the coroutine is cancelled."""
        task = spawn(work, name=f"link {self.target.name}")
        closing = spawn(self._closing.wait(), name=f"closing {self.target.name}")
        try:
            await asyncio.wait([task, closing], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            for pending in (task, closing):
                pending.cancel()
            await asyncio.gather(task, closing, return_exceptions=True)

    async def _connection(self) -> End:
        """Connect, run the probe and listen, once."""
        self._link = Link(
            self._transport(),
            self._ask,
            self._stream,
            self._plan,
            self._timing,
            live=self.player is None,
            happened=self._happened,
            flush=self._recorder.keep_up,
        )
        try:
            return await self._link.run()
        finally:
            self._link = None
            self._requests.lost()

    async def _send(self, order: Mapping[str, Any]) -> None:
        if self._link is None:
            raise ConnectionFailed("Not connected", self.target.name)
        await self._link.send(order)

    # Folding.

    def _say(self, phase: LinkPhase, **fields: Any) -> None:
        self._happened(e.LinkChanged(phase=phase, **fields))
        self._recorder.write()

    def _happened(self, event: e.AnyEvent) -> None:
        """The one place where the state changes: journal first, then fold, then tell."""
        if isinstance(event, e.SearchResult | e.ReadResult | e.CheckResult):
            self._requests.deliver(event)
        self._recorder.note(event)
        try:
            self.state, commands = reduce(self.state, event, self._engines)
        except TunerError:
            raise  # a data file is wrong: nothing can be read without it, and its owner can mend it
        except Exception as error:
            commands = self._passed_over(event, error)
        for command in commands:
            self._chores.put_nowait(command)
        if isinstance(event, e.ProbeHello):
            # A new probe begins with a clean sheet; what is wrong on this side still is.
            for problem in self._problems:
                self._happened(problem)
        self._tell_watchers()

    def _passed_over(self, event: e.AnyEvent, error: Exception) -> tuple[c.AnyCommand, ...]:
        """One event that cannot be folded must not cost the operator the whole host."""
        if not any(problem.subject == "fold" for problem in self._problems):
            logging.getLogger(__name__).error("an event of %s was passed over", self.target.name, exc_info=error)
            self._trouble("probe-error", mask(f"{type(event).__name__}: {error!r}"), "fold")
        return ()

    def _trouble(self, code: str, detail: str, subject: str = "") -> None:
        """Something is wrong on this side of the link; said once, and the session goes on."""
        problem = e.ProblemSeen(code=code, subject=subject, detail=detail)
        self._problems.append(problem)
        self._happened(problem)

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def _do_chores(self) -> None:
        """What the core asked for, one after the other; disk work in a thread."""
        while True:
            command = await self._chores.get()
            try:
                if self._history is not None:
                    await self._do(command, self._history)
            finally:
                self._chores.task_done()

    async def _do(self, command: c.AnyCommand, history: History) -> None:
        match command:
            case c.KeepStart(record=record) | c.KeepMemory(record=record):
                await asyncio.to_thread(history.keep, record)
            case c.LookUpStarts():
                alike = (self.state.name, command.engine, command.model, command.began_at)
                usual, starts = await asyncio.to_thread(history.look_up, *alike)
                self._happened(e.HistoryFound(key=command.key, usual=usual, starts=starts))
        if history.problem:
            self._trouble("history", history.problem)
            history.problem = None


def open_session(
    target: Target,
    *,
    ask: Ask,
    record: Path | None = None,
    speed: float = 1.0,
    retry: bool = True,
    plan: ProbePlan | None = None,
    timing: Timing | None = None,
) -> Session:
    """A session with everything it needs, from a target.

    Args:
        target: Whom it is about.
        ask: Puts questions to the operator.
        record: Write a journal there.
        speed: Of a recording; 0 is as fast as possible.
        retry: Connect again when the link is lost.
        plan: Instead of the engines' own.
        timing: How patient.

    Raises:
        JournalError: the journal cannot be written, or the recording cannot be read or is of another version.
        UsageProblem: no transport serves such a target.
        CatalogError: an engine's data files are wrong.
    """
    from tuner.engines import load_engines

    engines = load_engines()
    for engine in engines.values():
        # Reads its data files: what is wrong there is said before anything is connected.
        engine.facts("", engine.prefix(""), 0)
    recorded = target.scheme == "replay"
    if recorded:
        target = msgspec.structs.replace(target, options={"speed": str(speed), **target.options})
    return Session(
        target,
        transports.opener(target),
        engines,
        ask=ask,
        journal=Journal(record, target.name, time.time()) if record is not None else None,
        # A recording must neither add to the history nor be changed by it.
        history=None if recorded else History(Path(target.options.get("history") or history_file())),
        plan=plan or plan_for(engines),
        retry=retry,
        timing=timing,
    )


def plan_for(engines: Mapping[str, Engine] | None = None) -> ProbePlan:
    """What the probe is told to look for: what each engine wants.

    Args:
        engines: By name; all there are without it.
    """
    if engines is None:
        from tuner.engines import load_engines

        engines = load_engines()
    return ProbePlan(engines=tuple(engine.plan() for engine in engines.values()))
