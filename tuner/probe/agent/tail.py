"""The base of what follows a server's log."""

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
    """A server as far as its tail needs to know it."""

    def __init__(self, probe: Probe, engine: Engine, leader: Proc, key: str) -> None:
        self.probe = probe
        self.engine = engine
        self.leader = leader
        self.key = key
        self.resume: Optional[Json] = probe.resume.get(key)
        """Position of the laptop in the log before the link broke; None for a new server. The first tail takes it."""
        self.started_at: Optional[float] = None
        self.ended = threading.Event()

    def log_grew(self, data: bytes) -> None:
        """Take note of new bytes in the log."""

    def log_changed(self, status: os.stat_result) -> None:
        """Take note that the tail has switched to another file."""


class Tail:
    """Follows one server's log in a thread of its own."""

    def __init__(self, server: Followed, target: LogTarget, reason: str) -> None:
        self.server = server
        self.probe = server.probe
        self.target = target
        self.reason = reason
        self.caught_up = threading.Event()
        """Set when everything there was has been sent."""
        self.done = threading.Event()
        self._wake = threading.Event()
        self._stopped = False
        self._finish_at: Optional[float] = None

    def start(self) -> None:
        """Start following."""
        self.probe.thread(self._run, "log")

    def stop(self) -> None:
        """End at once."""
        self._stopped = True
        self._wake.set()

    def finish(self, grace_s: float) -> None:
        """Read what still comes within `grace_s` seconds, then end: the server has ended."""
        self.caught_up.clear()
        self._finish_at = time.monotonic() + grace_s
        self._wake.set()

    def follows(self, target: LogTarget) -> bool:
        """Return whether `target` is the log that this tail follows."""
        return target.kind == "journal" and target.same_as == self.target.same_as

    def backwards(self, before: Optional[int], stop: Callable[[], bool]) -> Blocks:
        """Yield the log before an offset (None: all of it) in blocks, newest first, also after the server has ended.

        Raises OSError.
        """
        raise OSError("this server has no log that can be read")

    def part(self, offset: int, length: int) -> Tuple[int, bytes, int]:
        """Return bytes of the log from an offset on: their offset, the bytes, and the size of the log.

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
        """Return whether `stop` was called before everything was read."""
        return self._stopped

    @property
    def _over(self) -> bool:
        return self._stopped or (self._finish_at is not None and time.monotonic() >= self._finish_at)


class NoTail(Tail):
    """Stands for a log that cannot be read: reports that once."""

    def _follow(self) -> None:
        target = self.target
        self._emit({"t": "log_open", "reason": "unreadable", "kind": "none", "path": target.path, "note": target.note})
