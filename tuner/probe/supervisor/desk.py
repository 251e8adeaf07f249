"""What every part of a run works with: files, record, waiting, and the wish to cancel."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Iterable, Optional

from ..agent.base import Json, slurp
from .files import Folder
from .orders import Order
from .pulse import Pulse
from .record import Record


class Cancelled(Exception):
    """The operator cancelled the run. `back`: what ran before shall be started again."""

    def __init__(self, back: bool) -> None:
        super().__init__()
        self.back = back


class Desk:
    """The means of a run.

    Args:
        folder: The folder of the run.
        order: What is to be done.
        record: What the run tells.
        pulse: Waiting.
    """

    def __init__(self, folder: Folder, order: Order, record: Record, pulse: Pulse) -> None:
        self.folder = folder
        self.order = order
        self.record = record
        self.pulse = pulse
        self.cancel: Optional[Json] = None
        """The order to cancel that was read last; None: none."""
        self._seen = (0, 0)

    def wait(self, seconds: float, fds: Iterable[int] = ()) -> None:
        """Wait, at most so long; keep the record fresh and look for an order to cancel meanwhile.

        Args:
            seconds: Longest wait.
            fds: Descriptors that end the wait when they can be read.
        """
        self.pulse.wait(min(seconds, 0.25), fds)
        for name in self.pulse.signals():
            self.record.journal("the supervisor got %s, and goes on" % name)
        self.record.beat()
        self.look()

    def look(self) -> None:
        """Look for a new order to cancel."""
        path = self.folder.file("cancel")
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._seen:
                return
            value: Any = json.loads(slurp(path).decode("utf-8", "replace"))
        except OSError:
            return
        except ValueError:
            value = {}
        self._seen = stamp
        self.cancel = value if isinstance(value, dict) else {}
        self.record.progress["cancel"] = self.cancel
        self.record.data["cancelled_by"] = self.cancel.get("operator") or self.order.operator
        self.record.journal("cancelled", back=self.goes_back)

    def resume(self) -> None:
        """Take up the run of a supervisor that died, as the order to resume says.

        An order to cancel that the dead one did not read is void; one that it read is carried out.
        """
        value = self.folder.read("resume") or {}
        try:
            ordered = os.stat(self.folder.file("resume")).st_mtime_ns
            status = os.stat(self.folder.file("cancel"))
            if status.st_mtime_ns <= ordered:
                self._seen = (status.st_mtime_ns, status.st_ino)
        except OSError:
            pass
        self.cancel = self.record.progress.get("cancel")
        if value.get("back"):
            self.cancel = self.record.progress["cancel"] = value
            self.record.data["cancelled_by"] = value.get("operator") or self.order.operator
        self.record.journal("resumed", back=bool(value.get("back")), operator=value.get("operator"))

    @property
    def goes_back(self) -> bool:
        """Return whether the order to cancel asks to start again what ran before."""
        return bool(self.cancel is not None and self.cancel.get("back"))

    def check_cancel(self) -> None:
        """Raise Cancelled if the run is to be cancelled; on the way back only by an order that does not ask for it."""
        if self.cancel is not None and not (self.record.data["going_back"] and self.goes_back):
            raise Cancelled(self.goes_back)


class Clock:
    """A wait with an end. `seconds`: how long it may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.until = round(time.time() + seconds, 3)
        """Wall clock at which it ends."""

    @property
    def left(self) -> float:
        """Return the seconds that are left, 0 at the end."""
        return max(0.0, self._end - time.monotonic())
