"""The session of one host: connects, folds the probe's events into a state, and connects again after a lost link.

`link` is one connection, `stream` turns its bytes into events, `requests` pairs requests with answers; this module
folds the events and replaces ended connections.
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
from tuner.domain.acts import AnyAct, Clean
from tuner.domain.link import LinkPhase, Target
from tuner.domain.plan import ProbePlan
from tuner.domain.preflight import PreflightAsk
from tuner.domain.state import HostState
from tuner.errors import ConnectionFailed, TunerError
from tuner.paths import history_file
from tuner.session.acts import Acts, this_operator
from tuner.session.chores import Chores
from tuner.session.link import End, Link, Timing
from tuner.session.plans import plan_for
from tuner.session.preflight import Preflight
from tuner.session.recorder import Recorder
from tuner.session.requests import Answer, Requests
from tuner.session.stream import Stream
from tuner.session.tasks import spawn
from tuner.store.history import History
from tuner.store.journal import Journal
from tuner.transports import Ask, Transport


class Session:
    """The session of one host.

    Args:
        target: The host.
        transport: Function that makes a new transport for each attempt.
        engines: Engines by name.
        ask: Function that puts a question to the operator.
        journal: Journal to which events are written; None: none.
        history: History in which starts are kept and looked up; None: none.
        plan: Plan for the probe; None: made of the engines' plans.
        retry: Connect again until closed. If False, `run` ends with the first connection.
        timing: Time limits; None: the defaults.
        read_only: Refuse everything that changes the host.
        dry_run: Send nothing that changes the host.
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
        read_only: bool = False,
        dry_run: bool = False,
    ) -> None:
        self.target: Final = target
        self.player: Any = getattr(transport, "player", None)
        """Controls of a recording (`transports.replay.Player`); None for a host."""
        self.state = initial(self.player.header.host if self.player else target.name)
        """Newest state of the host."""
        self.failure: Exception | None = None
        """Fault of gputuner that ended the session; None if there was none."""
        self._transport = transport
        self._engines = engines
        self._ask = ask
        self._recorder = Recorder(journal, lambda problem: self._trouble("journal", str(problem)))
        self._plan = plan or plan_for(engines)
        self._retry = retry
        self._timing = timing or Timing()
        self._stream = Stream(recorded=self.player is not None)
        self._link: Link | None = None
        self._watchers: set[asyncio.Event] = set()
        self._problems: list[e.ProblemSeen] = []
        self._chores = Chores(history, lambda: self.state.name, self._happened, self._trouble)
        self._requests = Requests(self._send)
        self._preflight = Preflight(self._requests.preflight, lambda: self.state)
        self.operator: Final = this_operator()
        """Who acts in this session."""
        self.read_only: Final = read_only or self.player is not None
        """Whether everything that changes the host is refused; so it is for a recording."""
        self._acts = Acts(
            self._requests.order,
            lambda: self.state,
            self.operator,
            read_only=self.read_only,
            dry_run=dry_run,
        )
        self._now_please = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False

    # Public interface.

    async def run(self) -> None:
        """Run until `aclose`, or without `retry` until the connection ends. A lost link raises nothing."""
        self._started = True
        self._chores.start()
        try:
            await self._keep_connected()
            await self._chores.finish()
        except Exception as error:
            # A fault of gputuner, not of the host: show it on the screen and raise it.
            self.failure = error
            words = str(error) if isinstance(error, TunerError) else f"A bug in gputuner: {error!r}"
            self.state = msgspec.structs.replace(
                self.state,
                link=msgspec.structs.replace(self.state.link, phase=LinkPhase.DOWN, reason=mask(words), final=True),
            )
            raise
        finally:
            await self._chores.stop()
            await self._recorder.close()
            self._ended.set()
            self._tell_watchers()

    async def snapshots(self) -> AsyncIterator[HostState]:
        """Yield the newest state after each change, at most once per `Timing.frame`; end with the session."""
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
        """Connect now, without waiting for the back-off; works after a final failure too."""
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
            key: Key of the server.
            pattern: Plain text, or a regular expression.
            regex: Whether the pattern is a regular expression.
            ignore_case: Whether upper and lower case are equal.
            limit: Largest number of hits.
            before: Byte offset from which to search backwards; None: the log's end.

        Yields:
            Hits as they are found. The last result has `done` set, and `error` too if the link was lost. Leaving the
            loop earlier ends the search on the host.
        """
        return self._requests.search(key, pattern, regex=regex, ignore_case=ignore_case, limit=limit, before=before)

    async def read_log(self, key: str, offset: int, length: int) -> e.ReadResult:
        """Read `length` bytes of a log on the host from a byte offset; `error` says why they could not be read.

        A line that begins before `offset` is left out up to its newline, since a secret may be cut there. The part may
        thus begin later than requested.
        """
        return await self._requests.read(key, offset, length)

    async def checks(self) -> e.CheckResult:
        """Ask the probe for the facts about the host for `doctor`.

        Raises:
            ConnectionFailed: The host is not connected, the link was lost before the answer, or none came in 15 s.
        """
        return await self._requests.checks()

    async def act(self, act: AnyAct, *, confirmed: bool) -> e.Acted:
        """Have the host do something; see `session.acts.Acts.act`. Nothing is raised."""
        done = await self._acts.act(act, confirmed=confirmed)
        if isinstance(act, Clean) and done.error is None:
            self._happened(e.HostCleaned())
        return done

    async def preflight(self, ask: PreflightAsk) -> e.PreflightResult:
        """Ask the probe for the facts that are checked before a switch. It only reads.

        Raises:
            ConnectionFailed: The host is not connected, the link was lost before the answer, or none came in 100 s.
        """
        return await self._preflight.facts(ask)

    async def aclose(self) -> None:
        """End the session and the probe; return when `run` has ended. Safe to call twice."""
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
            # The reason may contain text from the host.
            reason = mask(end.reason)
            if end.done:
                if self.player is not None and not self.player.rewound:
                    self._say(LinkPhase.DOWN, reason=reason, final=True)
                if not self._retry:
                    return
                if self.player is None or not self.player.rewound:
                    await self._wait(None)
                if self.player is not None:
                    # A recording is played from its start again, so the state must begin anew too.
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
            # The back-off counts from the beginning of the attempt: one that timed out has waited already.
            backoff = self._timing.backoff
            wait = backoff[min(attempt, len(backoff) - 1)]
            if not end.lived:
                wait = max(backoff[0], began + wait - time.monotonic())
            self._say(self._trying(), reason=reason, attempt=attempt, retry_in_s=wait)
            await self._wait(wait)

    def _trying(self) -> LinkPhase:
        return LinkPhase.RECONNECTING if self.state.hello is not None else LinkPhase.CONNECTING

    async def _wait(self, seconds: float | None) -> None:
        """Wait some seconds (None: for ever), or until `reconnect` or `aclose` is called."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._unless_closing(self._now_please.wait())

    async def _unless_closing(self, work: Any) -> Any:
        """Return the result of a coroutine; if the session is closed meanwhile, cancel it and return None."""
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
        """Run one connection to its end."""
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
        """Write an event to the journal, fold it and wake the watchers; the state changes nowhere else."""
        if isinstance(event, Answer):
            self._requests.deliver(event)
        self._recorder.note(event)
        try:
            self.state, commands = reduce(self.state, event, self._engines)
        except TunerError:
            raise  # a data file is invalid: nothing can be read without it
        except Exception as error:
            commands = self._passed_over(event, error)
        self._chores.add(commands)
        if isinstance(event, e.ProbeHello):
            # The hello of a new probe clears all problems; repeat those of this side, which persist.
            for problem in self._problems:
                self._happened(problem)
        self._tell_watchers()

    def _passed_over(self, event: e.AnyEvent, error: Exception) -> tuple[c.AnyCommand, ...]:
        """Report an event that cannot be folded, once, and go on: the other events of the host still count."""
        if not any(problem.subject == "fold" for problem in self._problems):
            logging.getLogger(__name__).error("an event of %s was passed over", self.target.name, exc_info=error)
            self._trouble("probe-error", mask(f"{type(event).__name__}: {error!r}"), "fold")
        return ()

    def _trouble(self, code: str, detail: str, subject: str = "") -> None:
        """Report a problem on this side of the link as an event; the session goes on."""
        problem = e.ProblemSeen(code=code, subject=subject, detail=detail)
        self._problems.append(problem)
        self._happened(problem)

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()


def open_session(
    target: Target,
    *,
    ask: Ask,
    record: Path | None = None,
    speed: float = 1.0,
    retry: bool = True,
    plan: ProbePlan | None = None,
    timing: Timing | None = None,
    read_only: bool = False,
    dry_run: bool = False,
) -> Session:
    """Build the session of a target with everything it needs.

    Args:
        target: The host or recording.
        ask: Function that puts a question to the operator.
        record: Path of a journal to write; None: none.
        speed: Speed of a recording relative to the original; 0: as fast as possible.
        retry: Connect again when the link is lost.
        plan: Plan for the probe; None: made of the engines' plans.
        timing: Time limits; None: the defaults.
        read_only: Refuse everything that changes the host.
        dry_run: Send nothing that changes the host.

    Raises:
        JournalError: The journal cannot be written, or the recording cannot be read or has an unsupported version.
        UsageProblem: No transport has the target's scheme.
        CatalogError: An engine's data files are invalid.
    """
    from tuner.engines import load_engines

    engines = load_engines()
    for engine in engines.values():
        # Reads the engine's data files, so that errors in them are reported before anything is connected.
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
        read_only=read_only,
        dry_run=dry_run,
    )
