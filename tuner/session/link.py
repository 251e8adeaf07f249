"""One connection to one host, from the attempt to its end: starts the probe, folds its events, watches for silence.

Nothing is queued between reading and folding. While the fold is busy nothing is read, the SSH window closes, and the
probe waits or, for samples, sends only the newest. So no log line is dropped here, and memory does not grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tuner.core.logtext import clean
from tuner.core.redact import mask
from tuner.domain import events as e
from tuner.domain.link import LinkPhase
from tuner.domain.plan import ProbePlan, TailFrom
from tuner.errors import CatalogError, ConnectionFailed, ProbeFailed, ProtocolMismatch, TunerError
from tuner.probe import bootstrap
from tuner.probe.wire import Incoming, NeedNvml
from tuner.session.nvml import binding
from tuner.session.stream import Stream
from tuner.session.tasks import spawn
from tuner.transports import Ask, RemoteProcess, Transport

EXIT_S = 2.0
"""Longest wait for the exit status after the stream has ended, seconds."""
BYE_S = 0.3
"""Longest wait for the order `bye` to be sent, seconds."""
MAX_PREAMBLE_BYTES = 256 << 10
"""Number of bytes that a login may print before the probe's first line; with more, the program is not the probe."""
GARBAGE_LINE_S = 0.001
"""Pause after each line that is not an event, seconds, so that a host which sends nothing else cannot occupy a core."""
MAX_REST_S = 1.0
"""Longest of these pauses at once, seconds."""
MAX_WORDS = 500
"""Number of characters kept of the last words of a program on the host, and of what comes instead of the probe."""
FIRST_WORDS = 80
"""Number of characters shown of what comes instead of the probe."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time limits and intervals of a session, in seconds unless noted."""

    tick: float = 0.25
    """Longest time between two checks of the clocks."""
    ping: float = 2.0
    """Interval between pings."""
    stale: float = 5.0
    """Silence after which the link counts as stale."""
    lost: float = 10.0
    """Silence after which the connection is closed and a new one made. Waiting longer would leave it to TCP, whose next
    retransmission may be as far away as the silence was long."""
    hello: float = 20.0
    """Longest wait for the probe's first line."""
    backoff: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0)
    """Intervals from the beginning of one attempt to the next; the last one repeats. With the time an attempt takes it
    stays below the 5 s in which a link must be back once the network is."""
    steady: float = 3.0
    """Lifetime from which a connection counts as good: after it the back-off begins with the shortest interval."""
    frame: float = 0.2
    """Interval between two snapshots."""
    slice: float = 0.004
    """Longest time of folding before the event loop runs other tasks."""
    turns: int = 8
    """Number of turns of the event loop given to other tasks then. A key passes through that many tasks until its
    effect is drawn; with one turn it would wait for a slice of the fold at each of them."""
    asleep: float = 15.0
    """Lead of the wall clock over the monotonic one from which this machine counts as having slept: the probe has ended
    since."""


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a connection."""

    reason: str
    """Why it ended, in words for the operator."""
    final: bool = False
    """Whether trying again without a change is useless."""
    lived: float = 0.0
    """Seconds since the probe's first line; 0.0 if it never came."""
    done: bool = False
    """Whether a recording was played to its end."""


class Link:
    """One connection to a host, or one playing of a recording.

    Args:
        transport: Transport that was not connected yet.
        ask: Function that puts a question to the operator.
        stream: Stream of the host, shared by all its connections.
        plan: Plan for the probe.
        timing: Time limits.
        live: Whether there is a host; False: a recording.
        happened: Called with every event.
        flush: Awaited after each block was folded.
    """

    def __init__(
        self,
        transport: Transport,
        ask: Ask,
        stream: Stream,
        plan: ProbePlan,
        timing: Timing,
        *,
        live: bool,
        happened: Callable[[e.AnyEvent], None],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._transport = transport
        self._ask = ask
        self._stream = stream
        self._plan = plan
        self._timing = timing
        self._live = live
        self._happened = happened
        self._flush = flush
        self._process: RemoteProcess | None = None
        self._up_since: float | None = None
        self._stale = False
        self._pings: dict[int, float] = {}
        self._pinger: asyncio.Task[None] | None = None
        self._traffic = (0.0, 0, 0)
        self._gave_way = 0.0
        self._before_hello = 0
        self._first_words = b""

    async def run(self) -> End:
        """Connect, start the probe and fold its events until the connection ends; close it, even if cancelled.

        Raises:
            CatalogError: A data file of gputuner is invalid.
        """
        try:
            # Building the payload takes 0.1 s; it runs while the login waits for the host.
            payload = spawn(asyncio.to_thread(bootstrap.payload), name="payload of the probe") if self._live else None
            await self._transport.connect(self._ask)
            self._process = await self._transport.spawn(bootstrap.argv())
            resume = self._stream.connect()
            if payload is not None:
                await self._begin(self._process, await payload, resume)
            return await self._listen(self._process)
        except CatalogError:
            raise  # a data file of gputuner is invalid; connecting again would not help
        except TunerError as error:
            return End(reason=str(error), final=getattr(error, "final", False), lived=self._lived())
        finally:
            if self._pinger:
                self._pinger.cancel()
            await self._close()

    async def send(self, order: Mapping[str, Any]) -> None:
        """Send the probe an order.

        Raises:
            ConnectionFailed: The probe is not connected, or there is only a recording.
        """
        if not self._live:
            raise ConnectionFailed("A recording cannot be asked")
        if self._process is None or self._up_since is None:
            raise ConnectionFailed("Not connected")
        await self._process.write(_line(order))

    async def _begin(self, process: RemoteProcess, payload: bytes, resume: dict[str, TailFrom]) -> None:
        plan = msgspec.structs.replace(self._plan, resume=resume)
        await process.write(payload)
        await process.write(_line({"op": "plan", **msgspec.to_builtins(plan)}))

    async def _listen(self, process: RemoteProcess) -> End:
        """Read and fold until the stream ends, is silent for too long, or this machine has slept."""
        heard = looked = time.monotonic()
        wall = time.time()
        while True:
            block: bytes | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.tick):
                    block = await process.read()
            now, clock = time.monotonic(), time.time()
            slept = clock - wall - (now - looked)
            # If this process itself stood still, the silence is not the host's: first read what is waiting.
            stood = now - looked > self._timing.stale
            if block == b"":
                return await self._ended(process)
            if stood:
                heard = now
            if block:
                if self._stale:
                    self._stale = False
                    self._say(LinkPhase.UP)
                garbage = self._stream.decoder.garbage_lines
                await self._take(self._stream.feed(block, now))
                if self._up_since is not None or not self._live:
                    heard = now
                    if (more := self._stream.decoder.garbage_lines - garbage) > 0:
                        await asyncio.sleep(min(MAX_REST_S, more * GARBAGE_LINE_S))
                else:
                    self._strange(block)
            await self._take(self._stream.idle(now))
            await self._flush()
            # Take both clocks as they were read together, or a jump of the wall clock in between would be missed.
            looked, wall = now, clock
            if self._live:
                if slept > self._timing.asleep:
                    return End(reason=f"This machine was asleep for {slept:.0f} s", lived=self._lived())
                if (end := self._silence(process, now - heard)) is not None:
                    return end

    def _strange(self, block: bytes) -> None:
        """Note bytes that came before the probe's first line.

        Raises:
            ProbeFailed: More came than a login prints.
        """
        self._first_words = (self._first_words + block[:MAX_WORDS])[:MAX_WORDS]
        self._before_hello += len(block)
        if self._before_hello > MAX_PREAMBLE_BYTES:
            raise self._no_probe(final=True)

    def _no_probe(self, *, final: bool) -> ProbeFailed:
        words = " ".join(mask(self._first_words.decode(errors="replace"), torn=True).split())
        return ProbeFailed(
            "The host answers something that is not the probe",
            f"first words: {clean(words)[:FIRST_WORDS]}",
            "A .bashrc that prints, or a forced command? See what `ssh HOST true` prints",
            final=final,
        )

    def _silence(self, process: RemoteProcess, seconds: float) -> End | None:
        """Handle a silence of some seconds: report the link as stale, or return the connection's end.

        Raises:
            ProbeFailed: The probe's first line did not come in time.
        """
        timing = self._timing
        if self._up_since is None:
            if seconds > timing.hello:
                if self._before_hello:
                    raise self._no_probe(final=False)
                raise self._no_hello("The host took the probe and says nothing", process, None)
        elif seconds > timing.lost:
            return End(reason=f"Nothing came from the host for {seconds:.0f} s", lived=self._lived())
        elif seconds > timing.stale and not self._stale:
            self._stale = True
            self._say(
                LinkPhase.STALE,
                reason=f"Nothing has come from the host for more than {timing.stale:.0f} s. "
                f"After {timing.lost:.0f} s of silence gputuner connects anew",
            )
        return None

    async def _take(self, events: Iterable[Incoming]) -> None:
        """Fold events, letting other tasks run in between."""
        for event in events:
            match event:
                case NeedNvml():
                    await self._send_binding()
                    continue
                case e.ProbeHello():
                    self._hello(event)
                case e.ProblemSeen(code="python-old") if self._up_since is None:
                    raise ProbeFailed(
                        "The host has no usable Python",
                        f"found {event.detail or 'none'}",
                        "Install Python 3.8 or later there",
                        final=True,
                    )
                case e.Pong(n=number):
                    self._measure(number)
            self._happened(event)
            if time.monotonic() - self._gave_way > self._timing.slice:
                for _ in range(self._timing.turns):
                    await asyncio.sleep(0)
                self._gave_way = time.monotonic()

    def _hello(self, hello: e.ProbeHello) -> None:
        if hello.protocol != e.PROTOCOL:
            raise ProtocolMismatch(
                "The probe speaks another protocol", f"{hello.protocol} instead of {e.PROTOCOL}", final=True
            )
        if self._up_since is None:
            self._up_since = time.monotonic()
            self._say(LinkPhase.UP)
        if self._live and self._pinger is None:
            self._traffic = (self._up_since, self._transport.received_bytes, self._transport.sent_bytes)
            self._pinger = spawn(self._ping(), name="pings")

    def _say(self, phase: LinkPhase, reason: str | None = None) -> None:
        self._happened(e.LinkChanged(phase=phase, reason=reason, notes=self._transport.notes))

    async def _ended(self, process: RemoteProcess) -> End:
        """Return why the stream ended.

        Raises:
            ProbeFailed: The program ended before the probe's first line.
        """
        if not self._live:
            return End(reason="The recording ends here", done=True)
        code: int | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                code = await process.wait()
        if self._up_since is None and code is not None:
            raise self._no_hello("The probe did not start", process, code)
        if code is None:
            return End(reason="The connection was lost", lived=self._lived())
        words = _last_line(process.errors())
        reason = f"The probe ended with status {code}" + (f": {words}" if words else "")
        return End(reason=reason, lived=self._lived())

    def _no_hello(self, title: str, process: RemoteProcess, code: int | None) -> ProbeFailed:
        said = _last_line(process.errors()) or clean(" ".join(self._stream.decoder.preamble))[:MAX_WORDS]
        detail = ": ".join(part for part in (f"exit status {code}" if code is not None else "", said) if part)
        hint = "It needs sh and Python 3.8 or later; does `ssh HOST python3 --version` work?"
        return ProbeFailed(title, mask(detail), hint, final=code is not None)

    def _lived(self) -> float:
        return time.monotonic() - self._up_since if self._up_since is not None else 0.0

    async def _send_binding(self) -> None:
        packed = await asyncio.to_thread(binding)
        if packed and self._process is not None:
            await self._process.write(_line({"op": "nvml", "z": packed}))

    async def _ping(self) -> None:
        """Send pings, which keep the probe alive and measure the round trip."""
        number = 0
        with contextlib.suppress(ConnectionFailed):
            while self._process is not None:
                number += 1
                self._pings[number] = time.monotonic()
                await self._process.write(_line({"op": "ping", "n": number}))
                await asyncio.sleep(self._timing.ping)

    def _measure(self, number: int) -> None:
        """Report round trip and traffic when the answer to ping `number` came."""
        now = time.monotonic()
        sent = self._pings.get(number)
        if sent is None:
            return
        # Answers come in order, so earlier pings will not be answered any more.
        self._pings = {later: at for later, at in self._pings.items() if later > number}
        since, received, written = self._traffic
        self._traffic = (now, self._transport.received_bytes, self._transport.sent_bytes)
        seconds = max(now - since, 0.001)
        self._happened(
            e.LinkMeasured(
                rtt_s=now - sent,
                received_bytes_s=(self._traffic[1] - received) / seconds,
                sent_bytes_s=(self._traffic[2] - written) / seconds,
            )
        )

    async def _close(self) -> None:
        """Tell the probe to end, then close its channel and the connection, each within a short time limit."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(TunerError, TimeoutError):
                async with asyncio.timeout(BYE_S):
                    await process.write(_line({"op": "bye"}))
            await process.aclose()
        await self._transport.aclose()


def _line(order: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(order) + b"\n"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return clean(lines[-1])[:MAX_WORDS] if lines else ""
