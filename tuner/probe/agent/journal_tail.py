"""Follow a log that systemd keeps."""

from __future__ import annotations

import time
from typing import Callable, Iterator, List, Optional, Tuple

from .base import BLOCK
from .journal import Entry, Last, Marks, Reader, is_unit_of_system
from .log_scan import Blocks, startup_runs
from .log_target import LogTarget
from .output import bulk
from .recognition import Engine
from .tail import Followed, Tail

TAIL_AT = 1 << 40
"""Offset given to the last lines of a long journal: unknown many bytes lie before them, but fewer than this."""
ANSWER_S = 10.0
"""Seconds that reading a part may take."""


class _StartUp:
    """Collects the start-up lines of a log that comes line by line; text that was searched is dropped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._found: List[Tuple[int, bytes]] = []
        self._piece: List[bytes] = []
        self._begin = self._end = 0
        self._over = False

    def add(self, data: bytes) -> None:
        """Add a line, or part of one."""
        if self._over:
            return
        self._piece.append(data)
        self._end += len(data)
        if self._end - self._begin > BLOCK and data.endswith(b"\n"):
            self._search()

    def runs(self) -> List[Tuple[int, bytes]]:
        """Return all start-up lines so far; see `startup_runs`."""
        self._search()
        return self._found

    def _search(self) -> None:
        engine = self._engine
        found, over = startup_runs(b"".join(self._piece), self._begin, engine.markers, engine.end_marker)
        self._found += found
        self._over = self._over or over
        self._piece, self._begin = [], self._end


class JournalTail(Tail):
    """Follows a unit or a container in systemd's journal.

    The journal has no offsets. Here an offset counts the bytes of the log's lines since the server began. The last
    lines of a long log, whose middle is not read, are counted from `TAIL_AT`, and lines before them backwards from
    there.
    """

    def __init__(self, server: Followed, target: LogTarget, reason: str) -> None:
        super().__init__(server, target, reason)
        self._reader = Reader(self.probe.children, target.path or "", self._note, self._heard)
        self._marks = Marks()
        self._tail_cursor = ""
        """Cursor of the first of a long journal's last lines; empty for a short one."""
        self.offset = 0
        self._cursor: Optional[str] = None
        self._invocation = ""
        """Invocation id of the unit's start that the server belongs to; empty where unknown."""

    @property
    def _since_s(self) -> float:
        started_at = self.server.started_at
        return float(int(started_at - 1)) if started_at is not None else 0.0

    def _note(self, code: str, text: str) -> None:
        self.probe.problems.note(code, self.server.key, "journalctl: " + text)

    def _heard(self) -> None:
        self.probe.problems.clear("log-denied", self.server.key)

    # -- following ----------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        resume = self.server.resume or {}
        self.server.resume = None
        dead = self._finish_at is not None
        if resume.get("cursor"):
            self._passed(int(resume.get("offset") or 0), str(resume["cursor"]))
            self._opened("resume")
        begun = self._cursor is not None
        while not self._stopped:
            try:
                if not begun:
                    self._backlog()
                    begun = True
                self._stream(dead)
            except OSError as e:
                self._note("log-denied", str(e))
            self.caught_up.set()
            if dead or self._over:
                return
            self._sleep(1.0)

    def _opened(self, reason: str, size: Optional[int] = None) -> None:
        what = {"kind": "journal", "path": self.target.path, "size": size, "offset": self.offset}
        self._emit({"t": "log_open", "reason": reason, **what})

    def _passed(self, end: int, cursor: str) -> None:
        self.offset, self._cursor = end, cursor
        self._marks.add(end, cursor)

    def _backlog(self) -> None:
        """Send what the journal already holds: all of it, or the start-up section and the last lines."""

        def stop() -> bool:
            return self._stopped

        kept = Last(self.probe.tail_bytes)
        start = _StartUp(self.server.engine)
        end = 0
        whole = True
        first = ["--since=@%d" % self._since_s] if self._since_s else ["--lines=2000"]
        for entry in self._reader.entries(first, stop):
            if entry.pid == str(self.server.leader.pid):
                self._invocation = self._start_of(entry)
            kept.add(entry)
            start.add(entry.data)
            end += len(entry.data)
            self._marks.add(end, entry.cursor)
            if end >= self.probe.head_bytes:
                whole = False
                break
        if not whole:
            kept = Last(self.probe.tail_bytes)
            for entry in self._reader.entries(["--lines=2000"], stop):
                kept.add(entry)
            self._tail_cursor = kept.entries[0].cursor if kept.entries else ""
        self.offset = end - kept.size if whole else TAIL_AT
        self._opened(self.reason, self.offset + kept.size)
        last = 0
        for at, data in start.runs():
            if at + len(data) <= self.offset and self._room():
                last = at + len(data)
                self._emit({"t": "log", "offset": at, "end": last, "head": True, **bulk(data)})
        if last < self.offset:
            until = self.offset if whole else last
            self._emit({"t": "log_gap", "offset": last, "end": until, "reason": "opened near its end"})
        self._send(list(kept.entries))

    def _stream(self, dead: bool) -> None:
        """Send entries as they come; for a server that has ended, those there are."""
        where = "--cursor=" + self._cursor if self._cursor else "--since=@%d" % self._since_s
        how = [where] if dead else [where, "--follow", "--lines=all"]
        known = self._cursor
        waiting: List[Entry] = []
        since = 0.0
        size = 0

        def send() -> None:
            nonlocal size
            self._send(waiting)
            waiting.clear()
            size = 0
            self.caught_up.set()

        for entry in self._reader.entries(how, lambda: self._stopped or (not dead and self._over), send):
            if known is not None:
                is_known, known = entry.cursor == known, None
                if is_known:
                    self._invocation = self._invocation or self._start_of(entry)
                    continue
                self._emit({"t": "log_gap", "offset": self.offset, "end": self.offset, "reason": "lost"})
                if dead:
                    return  # whose lines these are cannot be known
            if not self._is_ours(entry, send):
                self._stopped = True
                return
            if not waiting:
                since = time.monotonic()
            waiting.append(entry)
            size += len(entry.data)
            # A steady writer leaves no moment without an entry. A line that continues in the next entry is not sent
            # apart from it: the cursor stands for all of it.
            enough = len(waiting) >= 50 or size > 32_768 or time.monotonic() - since > 0.25
            if enough and (entry.data.endswith(b"\n") or size > BLOCK):
                send()
        send()

    def _start_of(self, entry: Entry) -> str:
        return entry.invocation if is_unit_of_system(self.target.path or "") else ""

    def _is_ours(self, entry: Entry, send: Callable[[], None]) -> bool:
        """Return False for an entry of the next server in the same unit."""
        start = self._start_of(entry)
        if not start or start == self._invocation:
            return True
        if self._invocation and entry.pid != str(self.server.leader.pid):
            # The unit was started again, so this server has ended, though the probe may not have noticed yet.
            send()
            until = time.monotonic() + 3.0
            while self._finish_at is None and not self._stopped and time.monotonic() < until:
                self._sleep(0.25)
            if self._finish_at is not None or self._stopped:
                return False
        if self._invocation or entry.pid == str(self.server.leader.pid):
            self._invocation = start
        return True

    def _send(self, entries: List[Entry]) -> None:
        if not entries:
            return
        data = b"".join(entry.data for entry in entries)
        self.server.log_grew(data)
        if not self._room():
            return
        end = self.offset + len(data)
        cursor = entries[-1].cursor
        self._emit({"t": "log", "offset": self.offset, "end": end, "cursor": cursor, **bulk(data)})
        self._passed(end, cursor)

    # -- reading back -------------------------------------------------------------------------------------------

    def backwards(self, before: Optional[int], stop: Callable[[], bool]) -> Blocks:
        """Yield blocks of the log before an offset, newest first; see `Tail`."""
        newest = self._marks.newest
        if newest is None:
            return
        end = newest[0] if before is None else min(before, newest[0])
        texts: List[bytes] = []
        size = 0
        start = end
        for start, data in self._counted_back(end, stop):
            texts.append(data)
            size += len(data)
            if size >= BLOCK:
                yield start, b"".join(reversed(texts)), False
                texts, size = [], 0
        if texts:
            yield start, b"".join(reversed(texts)), False

    def _counted_back(self, end: int, stop: Callable[[], bool]) -> Iterator[Tuple[int, bytes]]:
        """Yield the lines that begin before an offset, newest first, with their offsets."""
        mark = self._marks.not_before(end)
        if mark is None:
            return
        for start, entry in self._reader.before(*mark, self._since_s, stop):
            self._marks.add(start + len(entry.data), entry.cursor)
            if start < end:
                yield start, entry.data[: end - start]

    def part(self, offset: int, length: int) -> Tuple[int, bytes, int]:
        """Return bytes of the log from an offset on; see `Tail`."""
        newest = self._marks.newest
        size = newest[0] if newest is not None else 0
        end = min(offset + length, size)
        late = time.monotonic() + ANSWER_S

        def stop() -> bool:
            return time.monotonic() > late

        if offset < TAIL_AT // 2 <= size:
            at, data = self._counted_on(offset, end, stop)
        else:
            texts: List[bytes] = []
            at = end
            for at, text in self._counted_back(end, stop) if offset < end else ():
                texts.append(text)
                if at <= offset:
                    break
            data = b"".join(reversed(texts))
        if stop():
            raise OSError("the journal takes too long to be read; ask again")
        skip = max(0, offset - at)
        return at + skip, data[skip:], size

    def _counted_on(self, offset: int, end: int, stop: Callable[[], bool]) -> Tuple[int, bytes]:
        """Return the lines between two offsets in the beginning of a long journal, counted from there."""
        mark = self._marks.not_after(offset)
        at, known = mark if mark is not None else (0, "")
        begin = at
        texts: List[bytes] = []
        for entry in self._reader.entries(["--cursor=" + known if known else "--since=@%d" % self._since_s], stop):
            if known and not texts and entry.cursor == known:
                continue
            if entry.cursor == self._tail_cursor:
                # Now the length is known: these lines are the last ones before those that are held.
                begin = TAIL_AT - (at - begin)
                break
            at += len(entry.data)
            self._marks.add(at, entry.cursor)
            if at <= offset:
                begin = at
                continue
            texts.append(entry.data)
            if at >= end:
                break
        return begin, b"".join(texts)[: end - begin] if begin < TAIL_AT // 2 else b"".join(texts)
