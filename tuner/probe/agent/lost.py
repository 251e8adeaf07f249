"""Servers that ended while the link was down."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Optional

from .base import Json, stat_of
from .file_tail import FileTail
from .journal_tail import JournalTail
from .log_scan import is_intact
from .log_target import LogTarget, find_file, wrapping
from .processes import Proc
from .recognition import Engine
from .tail import Followed, Tail

if TYPE_CHECKING:
    from .probe import Probe


class Lost(Followed):
    """A server that the laptop followed and that ended while the link was down; its last lines are still in its log."""

    def __init__(self, probe: Probe, key: str) -> None:
        super().__init__(probe, Engine({"name": ""}), Proc(0), key)
        self.tail: Optional[Tail] = None
        self.caught_up = threading.Event()
        """All that there was has been sent, or there was nothing."""

    def follow(self) -> None:
        """Send the rest of the log from where the laptop was, or report its loss; then that the server is gone."""
        try:
            self._read(self.resume or {})
        finally:
            self.caught_up.set()
            self.probe.out.put({"t": "server_gone", "key": self.key, "left": []})

    def _read(self, resume: Json) -> None:
        if resume.get("cursor") and resume.get("path"):
            self._follow(JournalTail(self, LogTarget("journal", resume["path"]), "resume"))
            self.probe.problems.forget(self.key)
            return
        path, inode, offset = resume.get("path"), resume.get("inode"), int(resume.get("offset") or 0)
        if not path or inode is None:
            return
        place = find_file(path, resume.get("device"), inode, 0)
        target = LogTarget(wrapping(path), path)
        tail = FileTail(self, target, "resume")
        if place is None or not self._is_whole(place, resume):
            tail.lose(offset)
            return
        target.watch, target.opens, target.status = place, [place], stat_of(place)
        if target.status is None or target.status.st_size <= offset:
            return
        self._follow(tail)
        if tail.stopped:
            tail.lose(tail.offset, getattr(stat_of(place), "st_size", 0))

    def _follow(self, tail: Tail) -> None:
        self.tail = tail
        tail.caught_up = self.caught_up
        tail.finish(2.0)
        tail.start()
        tail.done.wait()

    def _is_whole(self, place: str, resume: Json) -> bool:
        """Return whether the file is still the one that was read, and no other server writes to it."""
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            status = os.fstat(fd)
            return (status.st_dev, status.st_ino) not in self.probe.log_inodes() and is_intact(fd, resume)
        finally:
            os.close(fd)
