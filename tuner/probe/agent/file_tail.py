"""Follow a log that is a file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
import zlib
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

from .base import BLOCK, Json, stat_of, until_beat
from .log_scan import (
    CHECKED,
    NULS,
    Blocks,
    blocks_before,
    bytes_before,
    is_intact,
    line_start,
    start_of_last,
    startup_section,
)
from .log_target import LogTarget, find_file
from .output import bulk, whole_utf8
from .tail import Followed, Tail

BACKLOG_LIMIT = 67_108_864
"""Bytes of unsent log beyond which the probe skips to the log's end: the link is too slow for it."""


class FileTail(Tail):
    """Follows a file by (device, inode, offset) through rotation, truncation and deletion."""

    def __init__(self, server: Followed, target: LogTarget, reason: str) -> None:
        super().__init__(server, target, reason)
        self._fd = -1
        self._lock = threading.Lock()
        self.device = 0
        self.inode = 0
        self.offset = 0
        self._before = b""
        """The bytes before `offset`.

        They are read again with what follows, since a truncated log may have grown beyond it.
        """
        self._window_start = 0.0
        self._window_sent = 0
        self._window_size = 0
        self._flooded = False

    def follows(self, target: LogTarget) -> bool:
        """Return whether `target` is the file that this tail follows."""
        status = target.status
        return status is not None and (status.st_dev, status.st_ino) == (self.device, self.inode)

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        """Yield a descriptor of the log for random access, also after its server has ended. Raises OSError."""
        with self._lock:
            fd = os.dup(self._fd) if self._fd >= 0 else -1
        if fd < 0:
            place = find_file(self.target.path or "", self.device, self.inode, self.server.leader.pid)
            if place is None:
                raise OSError("the log is no longer there")
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def backwards(self, before: Optional[int], stop: Callable[[], bool]) -> Blocks:
        """Yield blocks of the log before an offset, newest first; see `Tail`."""
        with self._descriptor() as fd:
            size = os.fstat(fd).st_size
            yield from blocks_before(fd, size if before is None else min(before, size))

    def part(self, offset: int, length: int) -> Tuple[int, bytes, int]:
        """Return bytes of the log from an offset on; see `Tail`."""
        with self._descriptor() as fd:
            size = os.fstat(fd).st_size
            return min(offset, size), os.pread(fd, length, offset), size

    # -- opening ------------------------------------------------------------------------------------------------

    def _open(self, paths: Sequence[str]) -> os.stat_result:
        error: OSError = FileNotFoundError(2, "no such file")
        for path in paths:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as e:
                if not isinstance(e, FileNotFoundError):
                    error = e
                continue
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                os.close(fd)
                continue
            with self._lock:
                old, self._fd = self._fd, fd
            if old >= 0:
                os.close(old)
            self.device, self.inode = status.st_dev, status.st_ino
            self._window_size = status.st_size
            return status
        raise error

    def _opened(self, reason: str, size: int, offset: int, path: Optional[str] = None) -> None:
        self._go_to(offset)
        self._emit(
            {
                "t": "log_open",
                "reason": reason,
                "kind": self.target.kind,
                "path": path or self.target.path,
                "device": self.device,
                "inode": self.inode,
                "size": size,
                "offset": offset,
                "note": self.target.note,
            }
        )

    def _begin(self) -> None:
        """Open the log for the first time: resume where the laptop was, or send the start-up section and the tail."""
        resume = self.server.resume
        if resume is not None and resume.get("inode") is not None:
            if not self._resume(resume):
                status = self._open(self.target.opens)
                self.lose(int(resume.get("offset") or 0))
                self._opened("rotated", status.st_size, 0)
            self.server.resume = None
            return
        status = self._open(self.target.opens)
        size = status.st_size
        if size <= self.probe.tail_bytes:
            self._opened(self.reason, size, 0)
            return
        at = line_start(self._fd, size - self.probe.tail_bytes, size)
        self._opened(self.reason, size, at)
        gap_from = self._head(at)
        if gap_from < at:
            self._emit({"t": "log_gap", "offset": gap_from, "end": at, "reason": "opened near its end"})

    def _head(self, limit: int) -> int:
        """Send the start-up section before `limit`; return the offset where it ended."""
        engine = self.server.engine
        if not engine.markers:
            return 0
        at = start_of_last(self._fd, os.fstat(self._fd).st_size, engine.markers[0])
        last = 0
        until = min(limit, at + self.probe.head_bytes)
        for offset, data in startup_section(self._fd, at, until, engine.markers, engine.end_marker):
            if not self._room():
                break
            last = offset + len(data)
            self._emit({"t": "log", "offset": offset, "end": last, "head": True, **bulk(data)})
        return last

    def _resume(self, resume: Json) -> bool:
        """Resume exactly where the laptop was. Return False when that file is gone."""
        device, inode, offset = resume.get("device"), resume["inode"], int(resume.get("offset") or 0)
        now = stat_of(self.target.watch) if self.target.watch else None
        if now is not None and now.st_ino == inode and device in (None, now.st_dev):
            status = self._open(self.target.opens)
            if is_intact(self._fd, resume):
                self._opened("resume", status.st_size, offset)
            else:
                self._opened("truncated", status.st_size, 0)
            return True
        path = resume.get("path") or self.target.path
        old = find_file(path, device, inode, self.server.leader.pid) if path else None
        if old is None:
            return False
        status = self._open([old])
        if not is_intact(self._fd, resume):
            return False
        self._opened("resume", status.st_size, offset, old)
        return True

    def lose(self, offset: int, end: int = 0) -> None:
        """Report that what followed an offset is lost. Without `end` it is not known how much that was."""
        self._emit({"t": "log_gap", "offset": offset, "end": max(offset, end), "reason": "lost"})

    # -- following ----------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            if not self._until_open(self._begin):
                return
            checked = -1e9  # a file that was resumed may have been rotated meanwhile
            idle = 0
            while not self._stopped:
                before = self.offset
                if self._pump():
                    idle = 0
                    if 0 < self.offset - before < BLOCK // 4:
                        if self._finish_at is None:
                            self.caught_up.set()
                        self._sleep(until_beat(0.25))  # a writer that never rests would otherwise be sent line by line
                    continue
                now = time.monotonic()
                idle += 1
                if now - checked >= 1.0:
                    checked = now
                    if self._moved():
                        continue
                if not self.caught_up.is_set() and (idle >= 2 or self._finish_at is None):
                    self.caught_up.set()
                if self._over:
                    self._flush_torn()
                    return
                self._sleep(until_beat(0.25 if idle < 10 else 0.5))
        except OSError as e:
            self._unreadable(e)
        finally:
            with self._lock:
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd = -1

    def _until_open(self, attempt: Callable[[], Any]) -> bool:
        told = False
        while not self._over:
            try:
                attempt()
            except OSError as e:
                if not told:
                    self._unreadable(e)
                    told = True
                self.caught_up.set()
                self._sleep(1.0)
                continue
            if told:
                self.probe.problems.clear("log-denied", self.server.key)
                self.probe.problems.clear("log-vanished", self.server.key)
            return True
        return False

    def _unreadable(self, error: OSError) -> None:
        gone = isinstance(error, FileNotFoundError)
        note = "%s: %s" % (self.target.path, error.strerror or error)
        self.probe.problems.note("log-vanished" if gone else "log-denied", self.server.key, note)
        reason = "vanished" if gone else "unreadable"
        self._emit(
            {"t": "log_open", "reason": reason, "kind": self.target.kind, "path": self.target.path, "note": note}
        )

    def _go_to(self, offset: int) -> None:
        self.offset = offset
        self._before = bytes_before(self._fd, offset)

    def _pump(self) -> bool:
        """Send new bytes, at most a block; return False when there are none."""
        data = os.pread(self._fd, len(self._before) + BLOCK, self.offset - len(self._before))
        if not data.startswith(self._before):
            if self._finish_at is not None:
                self._stopped = True  # a dead server truncates nothing: another one begins here
            else:
                self._opened("truncated", os.fstat(self._fd).st_size, 0)
            return True
        data = data[len(self._before) :]
        hole = data.find(NULS)
        if hole == 0:
            self._skip_hole()
            return True
        data = data[:hole] if hole > 0 else data[: whole_utf8(data)]
        if not data:
            return False
        if not self._within_limits(len(data)) or not self._room():
            return not self._stopped
        self.server.log_grew(data)
        self._send(data)
        return True

    def _send(self, data: bytes) -> None:
        end = self.offset + len(data)
        self._before = (self._before + data[-CHECKED:])[-CHECKED:]
        crc = zlib.crc32(self._before)
        self._emit({"t": "log", "offset": self.offset, "end": end, "crc": crc, **bulk(data)})
        self.offset = end

    def _skip_hole(self) -> None:
        """Skip the NULs that a truncation leaves before a writer that does not append. They may be gigabytes."""
        size = os.fstat(self._fd).st_size
        to = self.offset
        while to < size and not self._stopped:
            try:
                to = max(to, os.lseek(self._fd, to, os.SEEK_DATA))
            except OSError as e:
                if e.errno == errno.ENXIO:
                    to = size  # nothing follows the hole
                    break
            block = os.pread(self._fd, BLOCK, to)
            text = len(block) - len(block.lstrip(b"\0"))
            to += text
            if text < len(block) or not block:
                break
        self._emit({"t": "log_gap", "offset": self.offset, "end": to, "reason": "hole in the file"})
        self._go_to(to)

    def _within_limits(self, count: int) -> bool:
        """Return whether `count` bytes may be sent now; a log that grows faster than that is skipped to its end."""
        now = time.monotonic()
        limit = self.probe.max_log_bytes_s
        size = os.fstat(self._fd).st_size
        if now - self._window_start >= 1.0:
            if self._flooded and size - self._window_size < limit // 2 * max(1.0, now - self._window_start):
                self._flooded = False
                self.probe.problems.clear("tail-flood", self.server.key)
            self._window_start, self._window_sent, self._window_size = now, 0, size
        behind = size - self.offset
        grown = size - self._window_size
        full = self._window_sent + count > limit
        if behind > BACKLOG_LIMIT or (full and behind > limit and grown > limit):
            to = line_start(self._fd, size - self.probe.tail_bytes, size)
            if to <= self.offset:
                return True
            rate = "%d MB" % (grown // 1_000_000) if grown > limit else "%d MB behind" % (behind // 1_000_000)
            self._emit({"t": "log_gap", "offset": self.offset, "end": to, "reason": "too fast for the link"})
            self.probe.problems.note("tail-flood", self.server.key, "%s: %s within a second" % (self.target.path, rate))
            self._go_to(to)
            self._flooded = True
            self._window_start, self._window_sent, self._window_size = now, 0, size
            return False
        if full:
            self._sleep(max(0.0, self._window_start + 1.0 - now))
            return False
        self._window_sent += count
        return True

    def _moved(self) -> bool:
        """Switch to another file that the log has moved to, once the old one is read. Return whether it did."""
        now = stat_of(self.target.watch)
        if now is None:
            if os.path.lexists(self.target.watch) and self._finish_at is None:
                self._vanished()
                return True
            # The process has ended, and its descriptors with it: the path tells which file came after.
            now = next((s for s in map(stat_of, self.target.opens[1:]) if s is not None), None)
        if now is None or not stat.S_ISREG(now.st_mode) or (now.st_dev, now.st_ino) == (self.device, self.inode):
            return False
        if os.fstat(self._fd).st_size > self.offset + 3:
            return False  # more is unread than one incomplete character
        if self._finish_at is not None and (now.st_dev, now.st_ino) in self.probe.log_inodes():
            return False  # the next server writes there
        self._flush_torn()
        reason = "rotated" if os.fstat(self._fd).st_nlink else "replaced"
        try:
            status = self._open(self.target.opens)
        except OSError:
            return False
        self._opened(reason, status.st_size, 0)
        self.server.log_changed(status)
        return True

    def _vanished(self) -> None:
        self._flush_torn()
        note = "%s is gone; waiting for it to come back" % self.target.path
        self.probe.problems.note("log-vanished", self.server.key, note)
        what = {"kind": self.target.kind, "path": self.target.path, "offset": self.offset, "note": note}
        self._emit({"t": "log_open", "reason": "vanished", **what})
        while not self._over:
            self.caught_up.set()
            try:
                status = self._open(self.target.opens)
            except OSError:
                self._sleep(0.25)
                continue
            self.probe.problems.clear("log-vanished", self.server.key)
            self._opened("replaced", status.st_size, 0)
            self.server.log_changed(status)
            return

    def _flush_torn(self) -> None:
        """Send an incomplete character at the end of the file as it is."""
        data = os.pread(self._fd, 8, self.offset)
        if data:
            self._send(data)
