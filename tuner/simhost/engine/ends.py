"""The ends of the simulated server: stopped, failed, or with a rank killed, each as in the played version."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING, NoReturn

from tuner.simhost.engine import crash, start, text
from tuner.simhost.engine.children import Child

if TYPE_CHECKING:
    from tuner.simhost.engine.server import Server


class Ends:
    """The ways in which one server can end.

    Args:
        server: The server that ends.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.dying = False
        """True once one end has begun; no second one begins then."""
        self.draining = False
        """True once SIGTERM came: running requests are finished, new ones refused."""
        self.over = False
        """True once the server ends by its own failure, not because somebody stopped it."""
        self._crash: asyncio.Task[None] | None = None
        """A reference, without which the task might be collected before it is done."""

    async def watch(self) -> None:
        """Watch for children that die."""
        assert self.server.family is not None
        while True:
            ended = [child for child in self.server.family.reap() if child.kind != "resource_tracker"]
            if ended and not self.dying:
                await self._child_died(ended[0])
            await asyncio.sleep(0.1)

    async def _child_died(self, child: Child) -> None:
        self.dying = True
        self.server.publish()
        if not self.server.listening:
            await self._died_while_starting(child)
            return
        server, new = self.server, self.server.config.new
        assert server.family is not None
        await self._pause(0.4)
        server.family.reap()
        alive = [c.rank for c in server.family.children if c.kind == "scheduler" and c.code is None]
        if child.kind == "scheduler" and alive:
            # The other ranks lose their peer within a collective, and log that before the leader notices the dead one.
            for rank in server.machine.everyone():
                if rank in alive:
                    error = crash.GLOO.format(port=29_105 + rank)
                    server.log.line(crash.scheduler_exception("peer", error, new=new), rank)
        elif new:
            name = child.kind if child.rank is None else f"{child.kind}_{child.rank}"
            await self._pause(0.6)
            server.log.line(
                f"Subprocess {name} (pid={child.pid}) crashed with exit code {child.code}. "
                "Triggering SIGQUIT for cleanup..."
            )
        else:
            self.dying = False  # 0.5.9 does not watch its processes: it goes on, and clients hang
            return
        await self.sigquit()

    async def _died_while_starting(self, child: Child) -> None:
        rank, code = child.rank if child.rank is not None else 0, child.code
        await self._pause(5.0 if self.server.config.new else 1.0)
        if self.server.config.new:
            self.server.log.line(
                f"RuntimeError: Rank {rank} scheduler died during initialization (exit code: {code}). "
                "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
                "Run `dmesg -T | grep -i oom` to check."
            )
        else:
            self.server.log.line(f"Rank {rank} scheduler is dead. Please check if there are relevant logs.")
            self.server.log.line(f"Exit code: {code}")
            self.server.log.raw("Traceback (most recent call last):\nEOFError\n")
        self._kill_all()

    async def start_failed(self, failed: start.StartFailed) -> None:
        """Log the exception of every rank that failed, then end all processes."""
        self.dying = self.over = True
        self.server.publish()
        order = [rank for rank in self.server.machine.everyone() if rank in failed.errors]
        for rank in order:
            record = crash.scheduler_exception(failed.where, failed.errors[rank], new=self.server.config.new)
            self.server.log.line(record, rank)
            await self._pause(0.03)
        self.server.machine.load(utilization=0.0, watts=0.12)
        self.server.log.line(text.SIGQUIT_LAUNCH)
        if self.server.config.new:
            pid = os.getpid()
            self.server.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        self._kill_all()

    def out_of_memory(self, rank: int, tried: int) -> None:
        """Begin the end of a server whose prefill did not fit on a rank."""
        error = start.out_of_memory(self.server.machine, rank, tried)
        self.dying = self.over = True
        self._crash = asyncio.get_running_loop().create_task(self._crash_serving(rank, error), name="crash")

    async def _crash_serving(self, rank: int, error: str) -> None:
        self.server.log.line(crash.scheduler_exception("prefill", error, new=self.server.config.new), rank)
        await self.sigquit()

    async def sigquit(self) -> None:
        """End as after SIGQUIT, which a failed child sends: 0.5.23 collects information for seconds, 0.5.9 does not."""
        self.dying = True
        assert self.server.family is not None
        self.server.log.line(text.SIGQUIT_SERVING)
        pid = os.getpid()
        if self.server.config.new:
            self.server.log.line(text.SETTLE)
            await self._pause(5.0)
            self.server.family.reap()
            alive = [child for child in self.server.family.children if child.kind == "scheduler" and child.code is None]
            if not alive:
                self.server.log.line("No live scheduler processes found; skipping py-spy and CUDA coredump.")
            for child in alive:
                for native in ("--native ", " "):
                    self.server.log.line(f"Pyspy failed (py-spy dump {native}--pid {child.pid}). "
                                  "Error: /bin/sh: 1: py-spy: not found\n")  # fmt: skip
                self.server.log.line(f"All pyspy dump attempts failed for PID {child.pid}.")
            if alive:
                self.server.log.line(text.NO_COREDUMP)
                for child in alive:
                    pipe = f"{self.server.spec.cwd}/corepipe.cuda.vm.{child.pid}"
                    self.server.log.line(
                        f"CUDA coredump pipe not found for PID {child.pid}: {pipe}. Ensure "
                        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 was set before this process initialized CUDA."
                    )
                self.server.log.line(text.WAIT_COREDUMPS)
                await self._pause(60.0)
            self.server.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")
        self._kill_all()

    async def drain(self) -> None:
        """End as after SIGTERM: answer running requests, refuse new ones, then end as the version does."""
        if self.draining or self.dying:
            return
        self.draining = True
        self.server.log.line(text.SIGTERM)
        serving = self.server.serving
        if serving is not None:
            serving.draining = True
        rids: list[str] | None = None
        # It looks every five seconds, and began to at its start; so the first look comes sooner.
        wait = random.uniform(1.5, 5.0)  # noqa: S311 - a play, no secret
        while rids != []:
            await self._pause(wait)
            wait = 5.0
            if self._overtaken():
                return
            rids = [r.rid for r in (*serving.running, *serving.prefilling, *serving.waiting)] if serving else []
            self.server.log.line(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids}."
            )
        self.dying = True
        if not self.server.config.new:
            self._kill_all()
        assert self.server.family is not None
        self.server.family.kill()
        pid = os.getpid()
        self.server.log.raw("nanobind: leaked 4 instances!\n - ... skipped remainder\n"
                     "nanobind: this is likely caused by a reference counting issue in the binding code.\n"
                     "See https://nanobind.readthedocs.io/en/latest/refleaks.html")  # fmt: skip
        self.server.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}")
        self._shutdown_lines()
        os._exit(0)

    def _overtaken(self) -> bool:
        """Return whether a child died meanwhile, which is an end of its own."""
        return self.dying

    def _shutdown_lines(self) -> None:
        pid = os.getpid()
        for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self.server.log.line(f"INFO:     {line}")
        self.server.log.line(f"INFO:     Finished server process [{pid}]")
        if self.server.config.new:
            self.server.log.line(f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}")

    async def interrupt(self) -> None:
        """End as after SIGINT: uvicorn's own shutdown."""
        self.dying = True
        await self._pause(2.0)
        self._shutdown_lines()
        assert self.server.family is not None
        self.server.family.kill()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    async def kill_rank(self, after: float) -> None:
        """Kill a rank after some seconds, as the fault `rank_killed`."""
        await self._pause(after)
        self.over = True
        assert self.server.family is not None
        os.kill(self.server.family.scheduler(min(3, self.server.config.tp - 1)).pid, signal.SIGKILL)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds / max(self.server.spec.speed, 1e-3))

    def give_up(self) -> NoReturn:
        """End all processes after a failure of its own."""
        self.over = True
        self.server.publish()
        self._kill_all()

    def _kill_all(self) -> NoReturn:
        """SIGKILL all processes, this one last, as kill_process_tree does."""
        if self.server.family is not None:
            self.server.family.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(137)
