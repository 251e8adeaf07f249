"""The leader process of the simulated server, from the command line to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import time
from pathlib import Path

from tuner.simhost import real
from tuner.simhost.engine import past, start, text
from tuner.simhost.engine.children import Family
from tuner.simhost.engine.config import Config, Spec
from tuner.simhost.engine.ends import Ends
from tuner.simhost.engine.port import Port, squat
from tuner.simhost.engine.publication import Publication
from tuner.simhost.engine.serving import Serving
from tuner.simhost.engine.traffic import PROFILES, Request, Traffic

_TICK_S = 0.05
_SHOWN_S = 2.0
"""Longest wait for the host to show what was forked."""


class Clock:
    """The simulated host's wall clock: the real time, or a time in the past while that is played."""

    def __init__(self) -> None:
        self.past: float | None = None

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time() if self.past is None else self.past


class Stamps:
    """Formats log times. Day and minute are cached, since there are thousands of lines."""

    def __init__(self) -> None:
        self._minute = -1
        self._head = ""

    def __call__(self, at: float) -> str:
        """Format a time as YYYY-mm-dd HH:MM:SS, local time."""
        minute, second = divmod(int(at), 60)
        if minute != self._minute:
            self._minute, self._head = minute, time.strftime("%Y-%m-%d %H:%M:", time.localtime(minute * 60))
        return f"{self._head}{second:02d}"


class Server:
    """One simulated SGLang server.

    Args:
        spec: What the host process asked for.
        config: Its resolved arguments.
        output: File descriptor of its log.
        lifeline: Reading end of the host process's pipe; None for none.
    """

    def __init__(self, spec: Spec, config: Config, output: int, lifeline: int | None) -> None:
        self.spec = spec
        self.config = config
        self.output = output
        self.lifeline = lifeline
        self.clock = Clock()
        self.stamps = Stamps()
        self.pending: list[str] | None = None
        self.log = start.Log(self._write, self.clock.now, self.stamps, single=config.tp == 1)
        self.machine = start.machine(spec, config, self.log)
        if spec.gpu_state:
            self.machine.look = self._others
        self.lines = text.Lines(config.new, config.speculative)
        self.serving: Serving | None = None
        self.family: Family | None = None
        self.held = Port(int(config.args["port"]))
        self.port = self.held.number
        self.squatter: dict[str, int] | None = None
        """PID and port of the process that the fault `port-taken` starts."""
        self.listening = False
        self.ready = False
        self.started_at = (real.started_at(os.getpid()) if spec.launched else None) or time.time()
        self.ready_at = 0.0
        self.startup_free = [0] * config.tp
        """Free bytes by rank at the end of the start."""
        self.requests: dict[tuple[str, str], int] = {}
        self.responses: dict[tuple[str, str, str], int] = {}
        self.prompts: dict[str, int] = {}
        """Number of tokens of each prompt seen so far: the prefix cache of real clients."""
        self.ends = Ends(self)
        self._wake = asyncio.Event()
        self.publication = Publication(self)
        self._table = Path(spec.run_dir).parent / "root" / "proc"
        self.outside = 0
        """Number of running requests of real clients. While there are any, time advances in single steps."""

    def _others(self) -> dict[int, int]:
        """Return the bytes that other processes hold of each GPU, by the simulated driver."""
        mine = {child.pid for child in self.family.children} if self.family else set()
        held: dict[int, int] = {}
        for process in json.loads(Path(self.spec.gpu_state).read_text())["processes"]:
            if process["pid"] not in mine:
                held[process["gpu"]] = held.get(process["gpu"], 0) + int(process["used"])
        return held

    # Output and publication

    def _write(self, data: str) -> None:
        if self.pending is not None:
            self.pending.append(data)
            return
        view = memoryview(data.encode())
        while view:
            view = view[os.write(self.output, view) :]

    def flush_past(self) -> None:
        """Write the log of the past at once."""
        lines, self.pending = self.pending or [], None
        self._write("".join(lines))

    def serving_line(self, at: float, message: str, rank: int | None) -> None:
        """Write a line of the scheduler with its own time."""
        tag = "" if rank is None or self.log.single else f" TP{rank}"
        self._write(f"[{self.stamps(at)}{tag}] {message}\n")

    def publish(self) -> None:
        """Publish processes, titles, memory and load for the simulated kernel and driver."""
        self.publication.publish()

    # Life

    def run(self) -> None:
        """Run until killed or stopped."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faults = self.spec.faults
        if "ignore_term" in faults:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        self.hold_port()
        self.family = Family(
            self.config.tp, lifeline=self.lifeline, orphans=self.config.new, survive="orphans" in faults,
            table=self._table,
        )  # fmt: skip
        if "instant_stop" in faults:
            signal.signal(signal.SIGTERM, lambda *_: self._orphaned())
        if self.spec.launched:
            self.publish()
        asyncio.run(self._live())

    def hold_port(self) -> None:
        """Reserve the port. Where it is taken, a scenario's server takes another, and a launched one fails late."""
        if not self.spec.launched:
            self.held.hold_any()
        elif "port_taken" in self.spec.faults:
            self.squatter = {"pid": squat(self.held.number, self.lifeline), "port": self.held.number}
        else:
            self.held.hold()
        self.port = self.held.number
        self.config.args["port"] = self.port

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self.lifeline is not None:
                asyncio.get_running_loop().add_reader(self.lifeline, self._orphaned)
            for old in self.spec.older:
                past.write_old_run(old)
            if self.spec.up_s is not None:
                self._remember(self.spec.up_s)
                await self._open(tasks)
                self._become_ready()
            self.publish()
            tasks.create_task(self.ends.watch(), name="watch")
            if self.spec.up_s is None and not await self._start():
                await self._never()
            if self.spec.up_s is None:
                if "never_listens" in self.spec.faults:
                    await self._never()
                await self._open(tasks)
                await self._warm_up()
            tasks.create_task(self._serve(), name="serve")
            for fault, after in self.spec.faults.items():
                if fault in ("rank_killed", "rank_dies"):
                    tasks.create_task(self.ends.kill_rank(after), name="fault")

    async def _never(self) -> None:
        await asyncio.get_running_loop().create_future()

    def _orphaned(self) -> None:
        """End everything, because the host process is gone."""
        if self.family is not None:
            self.family.kill()
        os._exit(0)

    async def _fork(self) -> None:
        """Publish the children and wait until the host shows them, with SIGTERM and SIGINT held back.

        A kernel never shows a parent that has ended before a child that it had forked.
        """
        assert self.family is not None
        entries = [self._table / str(child.pid) for child in self.family.children]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            self.publish()
            deadline = time.monotonic() + _SHOWN_S
            while not all(entry.exists() for entry in entries) and time.monotonic() < deadline:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    async def _start(self) -> bool:
        try:
            phase, shown, forked = "", 0.0, False
            for delay in start.steps(self.machine):
                if self.machine.spawned and not forked:
                    forked = True
                    await self._fork()
                if self.machine.phase != phase or time.monotonic() - shown > 0.1:
                    phase, shown = self.machine.phase, time.monotonic()
                    self.publish()
                await asyncio.sleep(delay / self.spec.pace)
        except start.StartFailed as failed:
            self.publish()
            await self.ends.start_failed(failed)
            return False
        self.publish()
        return True

    def _remember(self, up_s: float) -> None:
        """Play a start in the past, and all that was served since."""
        self.replay(time.time() - up_s, time.time())
        self.clock.past = None
        self.flush_past()

    def replay(self, started_at: float, until: float) -> None:
        """Play a start in the past and the serving until another time; the log is collected in `pending`.

        Raises:
            StartFailed: The start failed.
        """
        self.started_at = now = started_at
        self.clock.past, self.pending = now, []
        for delay in start.steps(self.machine):
            now += delay / self.spec.pace
            self.clock.past = now
        self._uvicorn_lines()
        for delay, line in self._warm_up_lines():
            now += delay / self.spec.pace
            self.clock.past = now
            self.log.line(*line)
        self.ready_at = now
        self._begin_serving(now, ramp_s=max(0.0, until - now - 1500.0))
        assert self.serving is not None
        self.serving.advance(until)
        self.clock.past = self.serving.now

    def _begin_serving(self, now: float, *, ramp_s: float = 0.0) -> None:
        self.startup_free = [self.machine.box.free(rank) for rank in range(self.config.tp)]
        rng = random.Random(self.spec.seed + 2)  # noqa: S311 - a seeded play, no secret
        traffic = Traffic(PROFILES[self.spec.traffic], rng, now, ramp_s)
        self.serving = Serving(self.machine, traffic, self.serving_line, now)
        self.serving.on_memory = self.ends.out_of_memory
        self.machine.phase = "serving"

    def _uvicorn_lines(self, *, ours: bool = True) -> None:
        machine, log = self.machine, self.log
        if self.config.new:
            took = machine.timings
            log.line(
                f"Engine startup timings (s): load_weight={took.get('load_weight', 0):.2f}, "
                f"kv_cache_allocation={took.get('kv_cache_allocation', 0):.2f}, "
                f"scheduler_e2e={log.now() - self.started_at - 2:.2f}, "
                f"cuda_graph={{prefill={took.get('prefill', 0):.2f}, decode={took.get('decode', 0):.2f}, "
                "target_verify=0.00, draft_prefill=0.00, draft_decode=0.00, draft_extend=0.00}, "
                f"tokenizer_e2e={log.now() - self.started_at:.2f}"
            )
        log.line(f"INFO:     Started server process [{os.getpid()}]")
        log.line("INFO:     Waiting for application startup.")
        if not self.config.new:
            log.line(
                "Using default chat sampling params from model generation config: "
                "{'repetition_penalty': 1.0, 'temperature': 1.0, 'top_k': 50, 'top_p': 1.0}"
            )
        log.line("Using fallback token IDs for yes/no (9693/2152)")
        log.line("INFO:     Application startup complete.")
        if not ours:
            log.line(
                f"ERROR:    [Errno 98] error while attempting to bind on address "
                f"('{self.config.args['host']}', {self.port}): address already in use"
            )
            return
        log.line(f"INFO:     Uvicorn running on http://{self.config.args['host']}:{self.port} (Press CTRL+C to quit)")

    def _warm_up_lines(self) -> list[tuple[float, tuple[str, int | None]]]:
        """Return the lines of the server's warm-up requests to itself, each with the seconds before it."""
        first = 41_382 + self.spec.seed % 1000
        prefill = self.lines.prefill(seqs=1, new=16, cached=0, usage=0.0, running=0, queued=0, pending=0,
                                     graph=self.config.prefill_graphs, rate=2.14)  # fmt: skip
        lines: list[tuple[float, tuple[str, int | None]]] = [
            (1.0, (text.access(first, "GET", "/model_info", "200 OK"), None)),
            (5.5, (prefill, 0)),
            (1.3, (text.access(first + 14, "POST", "/generate", "200 OK"), None)),
        ]
        if self.config.new:
            lines.append((0.05, (text.access(first + 22, "POST", "/freeze_gc", "200 OK"), None)))
        lines.append((0.1, (text.READY, None)))
        return lines

    async def _open(self, tasks: asyncio.TaskGroup) -> None:
        """Listen, and install the signal handlers that the HTTP server has."""
        from tuner.simhost.engine.web import Web

        loop = asyncio.get_running_loop()
        assert self.family is not None
        ours = self.held.listen()
        if self.spec.up_s is None:
            self._uvicorn_lines(ours=ours)
        if not ours:
            await self._bind_failed()
        web = Web(self)
        await asyncio.start_server(web.serve, sock=self.held.socket)
        self.listening = True
        self.family.serving()
        if "ignore_term" not in self.spec.faults:
            loop.add_signal_handler(signal.SIGINT, lambda: tasks.create_task(self.ends.interrupt()))
            if "instant_stop" not in self.spec.faults:
                loop.add_signal_handler(signal.SIGTERM, lambda: tasks.create_task(self.ends.drain()))
        loop.add_signal_handler(signal.SIGQUIT, lambda: tasks.create_task(self.ends.sigquit()))
        self.publish()

    async def _bind_failed(self) -> None:
        """Go on as 0.5.23 does when the port is another's: its warm-up asks that one, whose answer makes it "ready"."""
        if await self.held.answered():
            for delay, line in self._warm_up_lines()[-1:]:
                await asyncio.sleep((7.0 + delay) / self.spec.pace)
                self.log.line(*line)
            await asyncio.sleep(1.0 / self.spec.pace)
            self.ends.give_up()
        await self._never()

    async def _warm_up(self) -> None:
        self.machine.phase = "warmup"
        self.machine.load(utilization=0.5, watts=0.3, pcie_rx=1.0, pcie_tx=1.0)
        self.publish()
        for delay, line in self._warm_up_lines():
            await asyncio.sleep(delay / self.spec.pace)
            self.log.line(*line)
        self.ready_at = time.time()
        self._begin_serving(time.time())
        self._become_ready()

    def _become_ready(self) -> None:
        self.ready = True
        self.publish()

    async def _serve(self) -> None:
        """Advance the scheduler with the real clock."""
        serving = self.serving
        assert serving is not None
        began, published = time.time(), 0.0
        big_prefill = self.spec.faults.get("big_prefill")
        while not self.ends.dying:
            now = time.time()
            if big_prefill is not None and now - began >= big_prefill / self.spec.speed:
                big_prefill = None
                serving.submit(self._long_prompt(now))
            serving.advance(now)
            if now - published >= 0.25:
                published = now
                self.publish()
            wait = _TICK_S
            if self.outside and serving.running:
                wait = max(0.002, min(_TICK_S, serving.now + serving.step_s() - time.time()))
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait)

    def _long_prompt(self, now: float) -> Request:
        """Return the request of the fault `big_prefill`: a very long prompt."""
        return Request("long", 64_000, 0, 64, now, path="/v1/chat/completions", port=51_234)

    def submit(self, request: Request) -> None:
        """Take in a request of a real client."""
        assert self.serving is not None
        self.serving.advance(request.arrived)
        self.serving.submit(request)
        self._wake.set()
