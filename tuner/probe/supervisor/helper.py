"""Forked helpers: what may block (a GPU driver, a server that does not answer) never blocks the run.

A helper is a copy of this process and not a thread: a process that hangs in a driver cannot keep the supervisor from
forking, from ending, or from having its memory back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any, Callable, Optional

from ..agent.base import Json
from .pulse import Pulse, reset_signals

Work = Callable[[Json], Json]


class Helper:
    """A child process that answers questions one after the other.

    Args:
        pulse: Reaps the child.
        work: Answers one question; called in the child only.
    """

    def __init__(self, pulse: Pulse, work: Work) -> None:
        self._pulse = pulse
        self._work = work
        self._sock: Optional[socket.socket] = None
        self._pid = 0
        self._data = b""
        self.busy = False
        """Whether a question is not answered yet."""

    @property
    def fd(self) -> int:
        """Return the descriptor that can be read when there is an answer; -1 while no child runs."""
        return self._sock.fileno() if self._sock is not None else -1

    def ask(self, question: Json) -> None:
        """Ask; the answer comes through `answer`. Starts the child if there is none."""
        if self._sock is None:
            self._start()
        self.busy = True
        self._data = b""
        assert self._sock is not None
        try:
            self._sock.sendall(json.dumps(question).encode() + b"\n")
        except OSError:
            pass  # `answer` finds the end of the child

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            _serve(theirs, self._work)
        theirs.close()
        ours.setblocking(False)
        self._sock, self._pid = ours, pid
        self._pulse.born(pid)

    def answer(self) -> Optional[Json]:
        """Return the answer if it is there, with `fault` if the child died of the question; None while it is not."""
        if self._sock is None or not self.busy:
            return None
        try:
            while not self._data.endswith(b"\n"):
                block = self._sock.recv(1 << 20)
                if not block:
                    self.end()
                    return {"fault": "the helper ended"}
                self._data += block
        except BlockingIOError:
            return None
        except OSError as e:
            self.end()
            return {"fault": str(e)}
        self.busy = False
        value: Any = json.loads(self._data)
        return value if isinstance(value, dict) else {"fault": "no object"}

    def end(self) -> None:
        """End the child, whatever it waits for."""
        self.busy = False
        if self._sock is not None:
            self._sock.close()
            self._sock = None
            if self._pid in self._pulse.helpers and self._pid not in self._pulse.exits:
                # It is our own child and not reaped, so the PID is its own still.
                os.kill(self._pid, signal.SIGKILL)


def _serve(sock: socket.socket, work: Work) -> None:
    """Answer until the supervisor ends. Never returns."""
    try:
        reset_signals()
        keep = sock.fileno()
        # Above all the lock of the host, which would outlive the supervisor here.
        os.closerange(3, keep)
        os.closerange(keep + 1, 4096)
        data = b""
        while True:
            block = sock.recv(1 << 16)
            if not block:
                break
            data += block
            while b"\n" in data:
                line, _, data = data.partition(b"\n")
                try:
                    out = work(json.loads(line))
                except Exception as e:
                    out = {"fault": "%s: %s" % (type(e).__name__, e)}
                sock.sendall(json.dumps(out).encode() + b"\n")
    finally:
        os._exit(0)
