"""One host, for as long as somebody looks at it: connects, starts the probe, folds what it says, connects again.

One task reads and folds; everything else that happens (a ping's time, a chore's answer) is small and goes through the
same fold. Nothing is queued in between: while the fold is busy nobody reads, the SSH window closes, and the probe
waits or, for samples, sends only the newest. So no log line is dropped here and memory does not grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tuner import transports
from tuner.core.engine import Engine
from tuner.core.reduce import initial, reduce
from tuner.core.snapshot import complete
from tuner.domain import commands as c
from tuner.domain import events as e
from tuner.domain.link import LinkPhase, Target
from tuner.domain.plan import ProbePlan
from tuner.domain.state import HostState
from tuner.errors import ConnectionFailed, ProbeFailed, ProtocolMismatch, TunerError
from tuner.paths import history_file
from tuner.probe import bootstrap
from tuner.probe.wire import Incoming, NeedNvml
from tuner.session.nvml import binding
from tuner.session.stream import Stream
from tuner.session.tasks import spawn
from tuner.store.history import History
from tuner.store.journal import Journal
from tuner.transports import Ask, RemoteProcess, Transport

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How patient a session is. All in seconds."""

    tick: float = 0.25
    """Longest time without looking at the clocks."""
    ping: float = 2.0
    stale: float = 5.0
    """Without a byte for so long, what is shown is called old."""
    lost: float = 10.0
    """Without a byte for so long, a new connection is made. Waiting longer would leave it to TCP, whose next attempt
    may be as far away as the silence was long."""
    hello: float = 20.0
    """For the probe's first line."""
    backoff: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    """From the beginning of one attempt to the next."""
    steady: float = 10.0
    """A connection that lived so long was good: the next one begins with the shortest wait."""
    frame: float = 0.2
    """Between two snapshots."""
    slice: float = 0.008
    """Longest work before others get their turn."""
    asleep: float = 15.0
    """The wall clock ran so far ahead of ours: this machine was asleep, and the probe has ended since."""


@dataclass(frozen=True)
class _End:
    """Why a connection ended."""

    reason: str
    final: bool = False
    lived: float = 0.0
    """Seconds since the probe's first line; 0: it never came."""
    done: bool = False
    """It ended because all was said: one reading was asked for, or a recording is over."""


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
        self.player: Final = getattr(transport, "player", None)
        """The controls of a recording; None for a host."""
        self.state = initial(self.player.header.host if self.player else target.name)
        """The newest."""
        self._transport = transport
        self._engines = engines
        self._ask = ask
        self._journal = journal
        self._history = history
        self._plan = plan or plan_for(engines)
        self._retry = retry
        self._timing = timing or Timing()
        self._stream = Stream(recorded=self.player is not None)
        self._process: RemoteProcess | None = None
        self._began = time.monotonic()
        self._watchers: set[asyncio.Event] = set()
        self._chores: asyncio.Queue[c.AnyCommand] = asyncio.Queue()
        self._requests: dict[int, asyncio.Queue[Any]] = {}
        self._last_id = 0
        self._pings: dict[int, float] = {}
        self._traffic = (0.0, 0, 0)
        self._up_since: float | None = None
        self._yielded = 0.0
        self._now_please = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False

    # What others may ask of it.

    async def run(self) -> None:
        """Work until `aclose`, or without `retry` until the connection ends. Raises nothing for a lost link."""
        self._started = True
        helpers = [spawn(self._do_chores(), name=f"chores {self.target.name}")]
        try:
            await self._keep_connected()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if self._journal:
                self._journal.close()
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
                    first = shown is None or (complete(self.state) and not complete(shown))
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

    async def search(
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
        request: dict[str, Any] = {
            "op": "search",
            "key": key,
            "pattern": pattern,
            "regex": regex,
            "ignore_case": ignore_case,
            "limit": limit,
            "before": before,
        }
        number, answers = self._request()
        done = False
        try:
            try:
                await self._send({**request, "id": number})
            except ConnectionFailed as error:
                done = True
                yield e.SearchResult(id=number, done=True, error=str(error))
                return
            while not done:
                result = await answers.get()
                if result is None:
                    result = e.SearchResult(id=number, done=True, error="the connection was lost")
                done = result.done
                yield result
        finally:
            del self._requests[number]
            if not done:
                # Nobody may be there to hear it any more.
                with contextlib.suppress(ConnectionFailed):
                    await self._send({"op": "cancel", "id": number})

    async def read_log(self, key: str, offset: int, length: int) -> e.ReadResult:
        """Read a part of a log on the host; `error` says why it could not be read."""
        number, answers = self._request()
        try:
            await self._send({"op": "read", "id": number, "key": key, "offset": offset, "length": length})
            result = await answers.get()
        except ConnectionFailed as error:
            return e.ReadResult(id=number, error=str(error))
        finally:
            del self._requests[number]
        if not isinstance(result, e.ReadResult):
            return e.ReadResult(id=number, error="the connection was lost")
        return result

    async def checks(self) -> e.CheckResult:
        """Facts about the host for `doctor`.

        Raises:
            ConnectionFailed: the host is not connected, or the link was lost before the answer.
        """
        number, answers = self._request()
        try:
            await self._send({"op": "checks", "id": number})
            result = await answers.get()
        finally:
            del self._requests[number]
        if not isinstance(result, e.CheckResult):
            raise ConnectionFailed("The connection was lost", self.target.name)
        return result

    async def aclose(self) -> None:
        """End the session: the probe is told good-bye. Returns when `run` has ended. Safe to call twice."""
        self._closing.set()
        if self._started:
            await self._ended.wait()
        elif self._journal:
            self._journal.close()

    # Connecting.

    async def _keep_connected(self) -> None:
        attempt = 0
        reason: str | None = None
        while not self._closing.is_set():
            attempt += 1
            began = time.monotonic()
            self._now_please.clear()
            self._link(self._trying(), reason=reason, attempt=attempt)
            end = await self._unless_closing(self._connection())
            if end is None:
                return
            if end.done:
                if self.player is not None and self.player.rewound:
                    self.state = initial(self.state.name)
                    self._stream = Stream(recorded=True)
                    continue
                if self.player is not None:
                    self._link(LinkPhase.DOWN, reason=end.reason, final=True)
                if not self._retry or self._plan.once:
                    return
                await self._wait(None)
                continue
            reason = end.reason
            if end.lived >= self._timing.steady:
                attempt = 0
            if end.final or not self._retry:
                self._link(LinkPhase.DOWN, reason=reason, attempt=attempt, final=True)
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
            self._link(self._trying(), reason=reason, attempt=attempt, retry_in_s=wait)
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

    async def _connection(self) -> _End:
        """Connect, run the probe and listen, once."""
        transport = self._transport()
        process: RemoteProcess | None = None
        pinger: asyncio.Task[None] | None = None
        self._up_since = None
        try:
            await transport.connect(self._ask)
            process = await transport.spawn(bootstrap.argv())
            resume = self._stream.connect()
            if self.player is None:
                await self._begin(process, resume)
                pinger = spawn(self._ping(transport), name=f"pings {self.target.name}")
            return await self._listen(transport, process)
        except TunerError as error:
            return _End(str(error), final=getattr(error, "final", False), lived=self._lived())
        finally:
            self._process = None
            for answers in self._requests.values():
                answers.put_nowait(None)
            if pinger:
                pinger.cancel()
            await _close(transport, process)

    async def _begin(self, process: RemoteProcess, resume: Mapping[str, Any]) -> None:
        plan = msgspec.structs.replace(self._plan, resume=dict(resume))
        await process.write(bootstrap.payload())
        await process.write(_line({"op": "plan", **msgspec.to_builtins(plan)}))
        self._process = process

    async def _listen(self, transport: Transport, process: RemoteProcess) -> _End:
        """Read and fold until the stream ends, is silent for too long, or this machine slept."""
        timing = self._timing
        heard = looked = time.monotonic()
        walls = time.time()
        block: bytes | None
        while True:
            try:
                async with asyncio.timeout(timing.tick):
                    block = await process.read()
            except TimeoutError:
                block = None
            now = time.monotonic()
            slept = (time.time() - walls) - (now - looked)
            stood = now - looked > timing.stale
            looked, walls = now, time.time()
            if block == b"":
                return await self._ended_by_itself(process)
            if block:
                heard = now
                if self.state.link.phase is LinkPhase.STALE:
                    self._link(LinkPhase.UP, notes=transport.notes)
                await self._take(self._stream.feed(block, now), transport)
            await self._take(self._stream.idle(now), transport)
            self._flush()
            if self.player is not None:
                continue
            if slept > timing.asleep:
                return _End(f"This machine was asleep for {slept:.0f} s", lived=self._lived())
            if stood:
                # It was us who did nothing for a while: give what is waiting a chance to be read.
                heard = now
            silent = now - heard
            if self._up_since is None:
                if silent > timing.hello:
                    raise self._no_hello("The host said nothing", process, None)
            elif silent > timing.lost:
                return _End(f"No data for {silent:.0f} s", lived=self._lived())
            elif silent > timing.stale and self.state.link.phase is LinkPhase.UP:
                self._link(LinkPhase.STALE, reason=f"No data for {silent:.0f} s", notes=transport.notes)

    async def _take(self, events: Iterable[Incoming], transport: Transport) -> None:
        """Fold events, giving way to others now and then."""
        for event in events:
            match event:
                case NeedNvml():
                    await self._send_binding()
                    continue
                case e.ProbeHello():
                    self._hello(event, transport)
                case e.ProblemSeen(code="python-old") if self._up_since is None:
                    raise ProbeFailed(
                        "The host has no usable Python",
                        f"found {event.detail or 'none'}",
                        "Install Python 3.8 or later there",
                        final=True,
                    )
                case e.Pong(n=n):
                    self._measure(n, transport)
                case e.SearchResult() | e.ReadResult() | e.CheckResult() if event.id in self._requests:
                    self._requests[event.id].put_nowait(event)
            self._happened(event)
            if time.monotonic() - self._yielded > self._timing.slice:
                await asyncio.sleep(0)
                self._yielded = time.monotonic()

    def _hello(self, hello: e.ProbeHello, transport: Transport) -> None:
        if hello.protocol != e.PROTOCOL:
            raise ProtocolMismatch(
                "The probe speaks another protocol", f"{hello.protocol} instead of {e.PROTOCOL}", final=True
            )
        self._up_since = time.monotonic()
        self._traffic = (self._up_since, transport.received_bytes, transport.sent_bytes)
        if self.player is None or self.state.link.phase is not LinkPhase.UP:
            self._link(LinkPhase.UP, notes=transport.notes)

    async def _ended_by_itself(self, process: RemoteProcess) -> _End:
        """The stream ended: find out why."""
        if self.player is not None:
            return _End("The recording ends here", done=True)
        code: int | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                code = await process.wait()
        if self._up_since is None:
            if code is None:
                return _End("The connection was lost before the probe had started")
            raise self._no_hello("The probe did not start", process, code)
        if code == 0 and self._plan.once:
            return _End("One reading was asked for", lived=self._lived(), done=True)
        if code is None:
            return _End("The connection was lost", lived=self._lived())
        words = _last_line(process.errors())
        return _End(f"The probe ended with status {code}" + (f": {words}" if words else ""), lived=self._lived())

    def _no_hello(self, title: str, process: RemoteProcess, code: int | None) -> ProbeFailed:
        said = _last_line(process.errors()) or " ".join(self._stream.decoder.preamble)
        detail = ": ".join(part for part in (f"exit status {code}" if code is not None else "", said) if part)
        hint = "It needs sh and Python 3.8 or later; does `ssh HOST python3 --version` work?"
        return ProbeFailed(title, detail, hint, final=code is not None)

    def _lived(self) -> float:
        return time.monotonic() - self._up_since if self._up_since is not None else 0.0

    # Talking to the probe.

    async def _send(self, order: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or self._up_since is None:
            why = "A recording cannot be asked" if self.player is not None else "Not connected"
            raise ConnectionFailed(why, self.target.name)
        await process.write(_line(order))

    async def _send_binding(self) -> None:
        packed = await asyncio.to_thread(binding)
        if packed and self._process is not None:
            await self._process.write(_line({"op": "nvml", "z": packed}))

    async def _ping(self, transport: Transport) -> None:
        """Keep the probe alive and learn how far away it is."""
        number = 0
        self._pings.clear()
        with contextlib.suppress(ConnectionFailed):
            while self._process is not None:
                number += 1
                self._pings[number] = time.monotonic()
                await self._process.write(_line({"op": "ping", "n": number}))
                await asyncio.sleep(self._timing.ping)

    def _measure(self, number: int, transport: Transport) -> None:
        now = time.monotonic()
        sent = self._pings.pop(number, None)
        if sent is None:
            return
        for older in [n for n in self._pings if n < number]:
            del self._pings[older]
        since, received, written = self._traffic
        self._traffic = (now, transport.received_bytes, transport.sent_bytes)
        seconds = max(now - since, 0.001)
        self._happened(
            e.LinkMeasured(
                rtt_s=now - sent,
                received_bytes_s=(transport.received_bytes - received) / seconds,
                sent_bytes_s=(transport.sent_bytes - written) / seconds,
            )
        )

    def _request(self) -> tuple[int, asyncio.Queue[Any]]:
        self._last_id += 1
        answers: asyncio.Queue[Any] = asyncio.Queue()
        self._requests[self._last_id] = answers
        return self._last_id, answers

    # Folding.

    def _link(self, phase: LinkPhase, **fields: Any) -> None:
        self._happened(e.LinkChanged(phase=phase, **fields))
        self._flush()

    def _happened(self, event: e.AnyEvent) -> None:
        """The one place where the state changes: journal first, then fold, then tell."""
        if self._journal:
            self._journal.append(event, time.monotonic() - self._began)
        self.state, commands = reduce(self.state, event, self._engines)
        for command in commands:
            self._chores.put_nowait(command)
        self._tell_watchers()

    def _flush(self) -> None:
        if self._journal and (problem := self._journal.flush()):
            self._happened(e.ProblemSeen(code="journal", subject=str(self._journal.path), detail=str(problem)))

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def _do_chores(self) -> None:
        """What the core asked for, one after the other; disk work in a thread."""
        while True:
            command = await self._chores.get()
            history = self._history
            if history is None:
                continue
            match command:
                case c.KeepStart(record=record):
                    await asyncio.to_thread(history.keep, record)
                case c.LookUpStarts():
                    usual = await asyncio.to_thread(history.usual, self.state.name, command.engine, command.model)
                    self._happened(e.HistoryFound(key=command.key, usual=usual))
            if history.problem:
                self._happened(e.ProblemSeen(code="history", detail=history.problem))
                history.problem = None


def open_session(
    target: Target,
    *,
    ask: Ask,
    record: Path | None = None,
    speed: float = 1.0,
    once: bool = False,
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
        once: One full reading, then the session ends.
        retry: Connect again when the link is lost.
        plan: Instead of the engines' own.
        timing: How patient.

    Raises:
        JournalError: the journal cannot be written, or the recording cannot be read.
        ProtocolMismatch: the recording is of another version.
        UsageProblem: no transport serves such a target.
        CatalogError: an engine's data files are wrong.
    """
    from tuner.engines import load_engines

    engines = load_engines()
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
        history=None if recorded else History(history_file()),
        plan=plan or plan_for(engines, once=once),
        retry=retry and not once,
        timing=timing,
    )


def plan_for(engines: Mapping[str, Engine] | None = None, *, once: bool = False) -> ProbePlan:
    """What the probe is told to look for: what each engine wants.

    Args:
        engines: By name; all there are without it.
        once: One full reading, then the probe ends.
    """
    if engines is None:
        from tuner.engines import load_engines

        engines = load_engines()
    return ProbePlan(protocol=e.PROTOCOL, engines=tuple(engine.plan() for engine in engines.values()), once=once)


async def _close(transport: Transport, process: RemoteProcess | None) -> None:
    """Good-bye to the probe, then the channel, then the connection; none of it may take long."""
    with contextlib.suppress(TunerError, TimeoutError):
        async with asyncio.timeout(3.0):
            if process is not None:
                with contextlib.suppress(TunerError, TimeoutError):
                    async with asyncio.timeout(0.3):
                        await process.write(_line({"op": "bye"}))
                await process.aclose()
            await transport.aclose()


def _line(order: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(order) + b"\n"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
