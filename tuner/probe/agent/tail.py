"""What follows a server's log, whatever that is."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Callable, Optional, Tuple

from .base import Json
from .log_scan import Blocks
from .log_target import LogTarget
from .processes import Proc
from .recognition import Engine

if TYPE_CHECKING:
    from .probe import Probe


class Followed:
    """What a tail must know of the server whose log it follows."""

    def __init__(self, probe: Probe, engine: Engine, leader: Proc, key: str) -> None:
        self.probe = probe
        self.engine = engine
        self.leader = leader
        self.key = key
        self.resume: Optional[Json] = probe.resume.get(key)
        """Where the laptop was before the link broke; taken by the first tail."""
        self.started_at: Optional[float] = None
        self.ended = threading.Event()

    def log_grew(self, data: bytes) -> None:
        """There are new bytes in the log."""

    def log_changed(self, status: os.stat_result) -> None:
        """The tail went over to another file."""


class Tail:
    """What follows one server's log; a thread of its own."""

    def __init__(self, server: Followed, target: LogTarget, reason: str) -> None:
        self.server = server
        self.probe = server.probe
        self.target = target
        self.reason = reason
        self.caught_up = threading.Event()
        """Everything there was has been sent."""
        self.done = threading.Event()
        self._wake = threading.Event()
        self._stopped = False
        self._finish_at: Optional[float] = None

    def start(self) -> None:
        """Begin following."""
        self.probe.thread(self._run, "log")

    def stop(self) -> None:
        """End at once."""
        self._stopped = True
        self._wake.set()

    def finish(self, grace_s: float) -> None:
        """The server has ended: read what is still to come, then end."""
        self.caught_up.clear()
        self._finish_at = time.monotonic() + grace_s
        self._wake.set()

    def follows(self, target: LogTarget) -> bool:
        """True when the log of another server is this one."""
        return target.kind == "journal" and target.same_as == self.target.same_as

    def backwards(self, before: Optional[int], stop: Callable[[], bool]) -> Blocks:
        """What lies before an offset, or all, in blocks, newest first, also after the server has ended.

        Raises OSError.
        """
        raise OSError("this server has no log that can be read")

    def part(self, offset: int, length: int) -> Tuple[int, bytes, int]:
        """Bytes of the log from an offset on: where they begin, they themselves, and where the log ends.

        Raises OSError.
        """
        raise OSError("this server has no log that can be read")

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self.caught_up.set()
            self.done.set()

    def _follow(self) -> None:
        raise NotImplementedError

    def _emit(self, event: Json) -> None:
        event["key"] = self.server.key
        self.probe.out.put(event)

    def _room(self) -> bool:
        return self.probe.out.wait_for_room(lambda: self._stopped)

    def _sleep(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            self._wake.clear()

    @property
    def stopped(self) -> bool:
        """True when it was told to end before it had read everything."""
        return self._stopped

    @property
    def _over(self) -> bool:
        return self._stopped or (self._finish_at is not None and time.monotonic() >= self._finish_at)


class NoTail(Tail):
    """A server without a readable log: says so once."""

    def _follow(self) -> None:
        target = self.target
        self._emit({"t": "log_open", "reason": "unreadable", "kind": "none", "path": target.path, "note": target.note})
