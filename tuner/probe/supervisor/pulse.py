"""Waiting: for time, for children, for file descriptors; and the signals that the supervisor gets itself."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Dict, Iterable, List, Optional, Set

_IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class Pulse:
    """Wakes the only thread of the supervisor, and reaps its children.

    A signal from outside must not end the supervisor in the middle of a stop: a logout sends HUP to all, a shutdown
    TERM. They are remembered for the journal.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        self.exits: Dict[int, int] = {}
        """Exit codes of children that ended, by PID; negative: the signal."""
        self.helpers: Set[int] = set()
        """PIDs of the children that are our own work, and no processes of a server."""
        self._told: List[int] = []
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        for name in _IGNORED:
            signal.signal(getattr(signal, name), _nothing)
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def born(self, pid: int) -> None:
        """Take note of a new child that is our own work, whose PID an earlier child may have had."""
        self.exits.pop(pid, None)
        self.helpers.add(pid)

    def wait(self, seconds: Optional[float], fds: Iterable[int] = ()) -> None:
        """Return after so many seconds (None: never), when a signal comes, or when a descriptor can be read."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        for fd in fds:
            poll.register(fd, select.POLLIN)
        poll.poll(None if seconds is None else max(0, int(seconds * 1000 + 0.999)))
        try:
            self._told += [number for number in os.read(self._read, 4096) if number != signal.SIGCHLD]
        except BlockingIOError:
            pass
        self.reap()

    def reap(self) -> None:
        """Remember the exit codes of the children that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.helpers.discard(pid)
            self.exits[pid] = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def signals(self) -> List[str]:
        """Return the names of the signals that came since the last call."""
        told, self._told = self._told, []
        return [signal.Signals(number).name for number in told]


def _nothing(*_: Any) -> None:
    """Handle a signal by waking `poll` alone."""


def reset_signals() -> None:
    """Give a forked child the signal handling with which programs expect to be started."""
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        try:
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError, RuntimeError):
            pass  # KILL, STOP, and those that the C library keeps for itself
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, set())


def now() -> float:
    """Return the host's wall clock, in seconds since the epoch."""
    return round(time.time(), 3)
