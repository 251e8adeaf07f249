"""The leader process of the simulated server: its life from the command line to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

from tuner.simhost.engine import crash, start, text
from tuner.simhost.engine.children import Child, Family
from tuner.simhost.engine.config import Config, Spec, resolve
from tuner.simhost.engine.serving import Serving
from tuner.simhost.engine.traffic import PROFILES, Request, Traffic

_TICK_S = 0.05


class Clock:
    """The simulated host's wall clock: the real one, or a past that is told."""

    def __init__(self) -> None:
        self.past: float | None = None

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() if self.past is None else self.past


class Stamps:
    """Formats log times; the day and minute are cached, as there are thousands of lines."""

    def __init__(self) -> None:
        self._minute = -1
        self._head = ""

    def __call__(self, at: float) -> str:
        """YYYY-mm-dd HH:MM:SS in local time."""
        minute, second = divmod(int(at), 60)
        if minute != self._minute:
            self._minute, self._head = minute, time.strftime("%Y-%m-%d %H:%M:", time.localtime(minute * 60))
        return f"{self._head}{second:02d}"


class Server:
    """One simulated SGLang server.

    Args:
        spec: What it was told.
        config: Its resolved arguments.
        output: File descriptor of its log.
        lifeline: Reading end of the host process's pipe.
    """

    def __init__(self, spec: Spec, config: Config, output: int, lifeline: int | None) -> None:
        self.spec = spec
        self.config = config
        self.output = output
        self.lifeline = lifeline
        self.clock = Clock()
        self.stamps = Stamps()
        self.pending: list[str] | None = None
        self.log = start.Log(self._write, self.clock.now, self.stamps)
        self.machine = start.machine(spec, config, self.log)
        self.lines = text.Lines(config.new)
        self.serving: Serving | None = None
        self.family: Family | None = None
        self.socket: socket.socket | None = None
        self.port = int(config.args["port"])
        self.listening = False
        self.ready = False
        self.draining = False
        self.started_at = time.time()
        self.ready_at = 0.0
        self.startup_free = [0] * config.tp
        """Free bytes by rank at the end of the start."""
        self.requests: dict[tuple[str, str], int] = {}
        self.responses: dict[tuple[str, str, str], int] = {}
        self.prompts: dict[str, int] = {}
        """Texts that were seen, with their tokens: the prefix cache of real clients."""
        self._dying = False
        self._wake = asyncio.Event()
        self._written: str | None = None
        self.outside = 0
        """Requests from real clients that are running; while there are any, time is cut into single steps."""

    # Output and publication

    def _write(self, data: str) -> None:
        if self.pending is not None:
            self.pending.append(data)
            return
        view = memoryview(data.encode())
        while view:
            view = view[os.write(self.output, view) :]

    def flush_past(self) -> None:
        """Write what was said in the past, at once."""
        lines, self.pending = self.pending or [], None
        self._write("".join(lines))

    def serving_line(self, at: float, message: str, rank: int | None) -> None:
        """A line of the scheduler, at its own time."""
        tag = "" if rank is None else f" TP{rank}"
        self._write(f"[{self.stamps(at)}{tag}] {message}\n")

    def publish(self) -> None:
        """Tell the simulated kernel and driver what there is: processes, titles, memory, work."""
        machine, members = self.machine, []
        python = self.spec.argv[0]
        for child in self.family.children if self.family else ():
            if not machine.spawned:
                continue
            memory = machine.box.ranks[child.rank].total if child.rank is not None else 0
            alive = child.code is None
            members.append(
                {
                    "pid": child.pid,
                    "title": child.title(python, titled=machine.titled),
                    "kind": child.kind,
                    "state": ("R" if child.kind == "scheduler" and machine.titled else "S") if alive else "Z",
                    "gpu": child.rank if child.rank is not None and alive else None,
                    "memory_bytes": memory if alive else 0,
                    "code": child.code,
                }
            )
        if self.serving is not None and self.ready and machine.phase == "serving":
            work = self.serving.loads()
            for rank in range(self.config.tp):
                machine.loads[rank] = work
        fact: dict[str, Any] = {
            "pid": os.getpid(),
            "started_at": self.started_at,
            "argv": self._argv(),
            "env": self.spec.env,
            "cwd": self.spec.cwd,
            "port": self.port if self.listening else None,
            "phase": machine.phase,
            "ready": self.ready,
            "members": members,
            "loads": [load.__dict__ for load in machine.loads],
        }
        content = json.dumps(fact)
        if content != self._written:
            self._written = content
            path = Path(self.spec.run_dir) / f"{os.getpid()}.json"
            temporary = path.with_suffix(".tmp")
            temporary.write_text(content)
            temporary.replace(path)

    def _argv(self) -> list[str]:
        argv = list(self.spec.argv)
        if "--port" in argv:
            argv[argv.index("--port") + 1] = str(self.port)
        return argv

    # Life

    def run(self) -> None:
        """Live until killed or told to end."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._bind()
        self.family = Family(self.config.tp, lifeline=self.lifeline, orphans=self.config.new)
        asyncio.run(self._live())

    def _bind(self) -> None:
        """Keep the port without listening: until the server is ready, connections are refused."""
        for port in (self.port, 0):
            self.socket = socket.socket()
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self.socket.bind(("127.0.0.1", port))
            except OSError:
                self.socket.close()
                continue
            self.port = self.socket.getsockname()[1]
            self.config.args["port"] = self.port
            return

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self.lifeline is not None:
                asyncio.get_running_loop().add_reader(self.lifeline, self._orphaned)
            for old in self.spec.older:
                write_old_run(old)
            if self.spec.up_s is not None:
                self._remember(self.spec.up_s)
                await self._open(tasks)
                self._become_ready()
            self.publish()
            tasks.create_task(self._watch(), name="watch")
            if self.spec.up_s is None and not await self._start():
                await self._never()
            if self.spec.up_s is None:
                await self._open(tasks)
                await self._warm_up()
            tasks.create_task(self._serve(), name="serve")
            for fault, after in self.spec.faults.items():
                if fault == "rank_killed":
                    tasks.create_task(self._kill_rank(after), name="fault")

    async def _never(self) -> None:
        await asyncio.get_running_loop().create_future()

    def _orphaned(self) -> None:
        """The host process is gone, and nothing of its host may stay."""
        if self.family is not None:
            self.family.kill()
        os._exit(0)

    async def _start(self) -> bool:
        try:
            phase, shown = "", 0.0
            for delay in start.steps(self.machine):
                if self.machine.phase != phase or time.monotonic() - shown > 0.1:
                    phase, shown = self.machine.phase, time.monotonic()
                    self.publish()
                await asyncio.sleep(delay / self.spec.pace)
        except start.StartFailed as failed:
            self.publish()
            await self._fail_start(failed)
            return False
        self.publish()
        return True

    def _remember(self, up_s: float) -> None:
        """A start in the past, and all that was served since."""
        self.replay(time.time() - up_s, time.time())
        self.clock.past = None
        self.flush_past()

    def replay(self, started_at: float, until: float) -> None:
        """Start at a time in the past and serve from then on until another; what is said is kept in `pending`.

        Raises:
            StartFailed: The start did not get through.
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
        self.serving.on_memory = self._serving_failed
        self.machine.phase = "serving"

    def _uvicorn_lines(self) -> None:
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
        log.line(f"INFO:     Uvicorn running on http://{self.config.args['host']}:{self.port} (Press CTRL+C to quit)")

    def _warm_up_lines(self) -> list[tuple[float, tuple[str, int | None]]]:
        """What the server asks itself before it calls itself ready, with the waits between."""
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
        """Listen, and take over the signals, as the HTTP server does."""
        from tuner.simhost.engine.web import Web

        loop = asyncio.get_running_loop()
        assert self.socket is not None
        assert self.family is not None
        if self.spec.up_s is None:
            self._uvicorn_lines()
        web = Web(self)
        await asyncio.start_server(web.serve, sock=self.socket)
        self.listening = True
        self.family.serving()
        loop.add_signal_handler(signal.SIGTERM, lambda: tasks.create_task(self._drain()))
        loop.add_signal_handler(signal.SIGINT, lambda: tasks.create_task(self._interrupt()))
        loop.add_signal_handler(signal.SIGQUIT, lambda: tasks.create_task(self._sigquit()))
        self.publish()

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
        """Move the scheduler along with the real clock."""
        serving = self.serving
        assert serving is not None
        began, published = time.time(), 0.0
        big_prefill = self.spec.faults.get("big_prefill")
        while not self._dying:
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
        """Somebody pastes a book."""
        return Request("long", 64_000, 0, 64, now, path="/v1/chat/completions", port=51_234)

    def submit(self, request: Request) -> None:
        """A request of a real client."""
        assert self.serving is not None
        self.serving.advance(request.arrived)
        self.serving.submit(request)
        self._wake.set()

    # Ends

    async def _watch(self) -> None:
        """Notice children that die."""
        assert self.family is not None
        while True:
            ended = self.family.reap()
            if ended and not self._dying:
                await self._child_died(ended[0])
            await asyncio.sleep(0.1)

    async def _child_died(self, child: Child) -> None:
        self._dying = True
        self.publish()
        if not self.listening:
            await self._died_while_starting(child)
            return
        new = self.config.new
        await self._pause(0.4)
        if child.kind == "scheduler":
            port = 29_105
            for rank in self.machine.everyone():
                if rank != child.rank:
                    error = crash.GLOO.format(port=port + rank)
                    self.log.line(crash.scheduler_exception("peer", error, new=new), rank)
        elif new:
            await self._pause(0.6)
            self.log.line(f"Subprocess {child.kind} (pid={child.pid}) crashed with exit code {child.code}. "
                          "Triggering SIGQUIT for cleanup...")  # fmt: skip
        else:
            return  # 0.5.9 does not watch its detokenizer: it goes on, and clients hang.
        await self._sigquit()

    async def _died_while_starting(self, child: Child) -> None:
        rank, code = child.rank if child.rank is not None else 0, child.code
        await self._pause(5.0 if self.config.new else 1.0)
        if self.config.new:
            self.log.line(
                f"RuntimeError: Rank {rank} scheduler died during initialization (exit code: {code}). "
                "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
                "Run `dmesg -T | grep -i oom` to check."
            )
        else:
            self.log.line(f"Rank {rank} scheduler is dead. Please check if there are relevant logs.")
            self.log.line(f"Exit code: {code}")
            self.log.raw("Traceback (most recent call last):\nEOFError\n")
        self._kill_all()

    async def _fail_start(self, failed: start.StartFailed) -> None:
        """Every rank that failed says so, then the main process ends them all."""
        self._dying = True
        order = [rank for rank in self.machine.everyone() if rank in failed.errors]
        for rank in order:
            record = crash.scheduler_exception(failed.where, failed.errors[rank], new=self.config.new)
            self.log.line(record, rank)
            await self._pause(0.03)
        self.machine.load(utilization=0.0, watts=0.12)
        self.log.line(text.SIGQUIT_LAUNCH)
        if self.config.new:
            pid = os.getpid()
            self.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        self._kill_all()

    def _serving_failed(self, rank: int, tried: int) -> None:
        """A prefill did not fit on a rank."""
        error = start.out_of_memory(self.machine, rank, tried)
        self._dying = True
        asyncio.get_running_loop().create_task(self._crash_serving(rank, error), name="crash")

    async def _crash_serving(self, rank: int, error: str) -> None:
        self.log.line(crash.scheduler_exception("prefill", error, new=self.config.new), rank)
        await self._sigquit()

    async def _sigquit(self) -> None:
        self._dying = True
        assert self.family is not None
        self.log.line(text.SIGQUIT_SERVING)
        pid = os.getpid()
        if self.config.new:
            self.log.line(text.SETTLE)
            await self._pause(5.0)
            self.family.reap()
            alive = [child for child in self.family.children if child.kind == "scheduler" and child.code is None]
            if not alive:
                self.log.line("No live scheduler processes found; skipping py-spy and CUDA coredump.")
            for child in alive:
                for native in ("--native ", " "):
                    self.log.line(f"Pyspy failed (py-spy dump {native}--pid {child.pid}). "
                                  "Error: /bin/sh: 1: py-spy: not found\n")  # fmt: skip
                self.log.line(f"All pyspy dump attempts failed for PID {child.pid}.")
            if alive:
                self.log.line(text.NO_COREDUMP)
                for child in alive:
                    pipe = f"{self.spec.cwd}/corepipe.cuda.vm.{child.pid}"
                    self.log.line(
                        f"CUDA coredump pipe not found for PID {child.pid}: {pipe}. Ensure "
                        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 was set before this process initialized CUDA."
                    )
                self.log.line(text.WAIT_COREDUMPS)
                await self._pause(60.0)
            self.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        self._kill_all()

    async def _drain(self) -> None:
        """SIGTERM: answer what runs, take nothing new, then end as the version ends."""
        if self.draining or self._dying:
            return
        self.draining = True
        self.log.line(text.SIGTERM)
        serving = self.serving
        if serving is not None:
            serving.draining = True
        while True:
            await self._pause(5.0)
            rids = [r.rid for r in (*serving.running, *serving.prefilling, *serving.waiting)] if serving else []
            self.log.line(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids}."
            )
            if not rids:
                break
        self._dying = True
        if not self.config.new:
            self._kill_all()
        assert self.family is not None
        self.family.kill()
        pid = os.getpid()
        self.log.raw("nanobind: leaked 4 instances!\n - ... skipped remainder\n"
                     "nanobind: this is likely caused by a reference counting issue in the binding code.\n"
                     "See https://nanobind.readthedocs.io/en/latest/refleaks.html")  # fmt: skip
        self.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}")
        self._shutdown_lines()
        os._exit(0)

    def _shutdown_lines(self) -> None:
        pid = os.getpid()
        for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self.log.line(f"INFO:     {line}")
        self.log.line(f"INFO:     Finished server process [{pid}]")
        if self.config.new:
            self.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}")

    async def _interrupt(self) -> None:
        """SIGINT: uvicorn's own shutdown."""
        self._dying = True
        await self._pause(2.0)
        self._shutdown_lines()
        assert self.family is not None
        self.family.kill()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    async def _kill_rank(self, after: float) -> None:
        """The fault: somebody kills a rank."""
        await self._pause(after)
        assert self.family is not None
        os.kill(self.family.scheduler(min(3, self.config.tp - 1)).pid, signal.SIGKILL)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds / max(self.spec.speed, 1e-3))

    def _kill_all(self) -> NoReturn:
        """What kill_process_tree does: SIGKILL to all, itself last."""
        if self.family is not None:
            self.family.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(137)


def write_old_run(old: dict[str, Any]) -> None:
    """Write the log of a run of the past: its start, some of its work, an orderly stop."""
    spec = Spec.of(old["spec"])
    server = Server(spec, resolve(spec), -1, None)
    ended_at = old["started_at"] + old["served_s"]
    server.replay(old["started_at"], ended_at)
    server.log.line(text.SIGTERM)
    server.clock.past = ended_at + 5.0
    server.log.line("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
    path = Path(old["log"])
    path.write_text("".join(server.pending or ()))
    os.utime(path, (ended_at + 5.0, ended_at + 5.0))
