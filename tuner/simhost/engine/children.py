"""The ranks and helpers of the simulated server: real processes that only wait, so that real signals can be sent.

They wait on pipes instead of polling: when the leader ends in any way, the kernel closes its ends of the pipes and they
end too, on Linux and macOS alike. The titles and states that the simulated host shows are published by the leader.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Child:
    """One process of the server."""

    pid: int
    kind: str
    """One of scheduler, detokenizer, resource_tracker."""
    rank: int | None = None
    code: int | None = None
    """Exit code once it has ended, or the negative signal number; None while it runs."""

    def title(self, python: str, *, titled: bool, single: bool = False) -> str:
        """Return the command line, NUL-separated as in /proc. The only rank of a server has no tag."""
        if self.kind == "resource_tracker":
            return f"{python}\0-B\0-c\0from multiprocessing.resource_tracker import main;main(36)\0"
        if not titled:
            call = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=37, pipe_handle=41)"
            return f"{python}\0-B\0-c\0{call}\0--multiprocessing-fork\0"
        if self.kind == "detokenizer":
            return "sglang::detokenizer\0"
        return "sglang::scheduler\0" if single else f"sglang::scheduler_TP{self.rank}\0"


class Family:
    """All children of a leader.

    Args:
        ranks: Number of schedulers.
        lifeline: Reading end of a pipe that closes when the simulated host ends, which ends every child; None for none.
        orphans: Detokenizer and resource tracker outlive a leader that dies before it serves, as observed with 0.5.23.
        survive: The ranks outlive a leader that is killed at any time, as observed with vLLM.
        table: The host's process table. For the host they are started only when it shows them, so a leader that dies
            before that leaves none over.
    """

    def __init__(
        self, ranks: int, *, lifeline: int | None, orphans: bool, survive: bool = False, table: Path | None = None
    ) -> None:
        self._table = table
        leash, self._hold = os.pipe()
        served, self._served = os.pipe()
        pipes = (leash, served, lifeline)
        stays = "always" if survive else "never"
        helpers = "loading" if orphans and not survive else stays
        self.children: list[Child] = [self._fork("resource_tracker", None, pipes, stays=helpers)]
        self.children += [self._fork("scheduler", rank, pipes, stays=stays) for rank in range(ranks)]
        self.children.append(self._fork("detokenizer", None, pipes, stays=helpers))
        os.close(leash)
        os.close(served)

    def _fork(self, kind: str, rank: int | None, pipes: tuple[int, int, int | None], *, stays: str) -> Child:
        pid = os.fork()
        if pid:
            return Child(pid, kind, rank)
        with contextlib.suppress(BaseException):
            _close_others(pipes)
            entry = None if self._table is None else self._table / str(os.getpid())
            _wait(*pipes, entry, stays=stays, tracker=kind == "resource_tracker")
        os._exit(0)

    def serving(self) -> None:
        """Let all children end with their leader from now on."""
        os.write(self._served, b"SS")  # one for each helper

    def reap(self) -> list[Child]:
        """Return the children that ended since the last call."""
        ended = []
        for child in self.children:
            if child.code is None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    child.code = os.waitstatus_to_exitcode(status)
                    ended.append(child)
        return ended

    def kill(self, *, ranks: bool = True) -> None:
        """Kill and reap every child that is alive; without `ranks` the schedulers get no signal and are waited for."""
        for child in self.children:
            if child.code is None and (ranks or child.kind != "scheduler"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        for child in self.children:
            if child.code is None:
                child.code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])

    def scheduler(self, rank: int) -> Child:
        """Return the child that plays a rank."""
        return next(child for child in self.children if child.rank == rank)


def _close_others(pipes: tuple[int, int, int | None]) -> None:
    """Close all descriptors but stdio and the pipes: a child that outlives its leader must not hold its port."""
    beyond = 3
    for kept in sorted({pipe for pipe in pipes if pipe is not None}):
        if kept > beyond:  # an empty range would be taken for all
            os.closerange(beyond, kept)
        beyond = kept + 1
    os.closerange(beyond, max(beyond + 1, 4_096))


def _wait(leash: int, served: int, lifeline: int | None, entry: Path | None, *, stays: str, tracker: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        # Python's resource tracker ends only with its parent.
        polite = tracker and number in (signal.SIGTERM, signal.SIGINT)
        signal.signal(number, signal.SIG_IGN if polite else signal.SIG_DFL)
    life = [] if lifeline is None else [lifeline]
    if stays != "always" or not life:
        select.select([leash, *life], [], [])
        unseen = entry is not None and not entry.exists()
        if stays == "never" or not life or unseen or os.read(served, 1) == b"S":
            return
    select.select(life, [], [])
