"""Search logs, and read parts of them."""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import time
from typing import TYPE_CHECKING, Any, List, Optional, Set

from .base import LINE_LIMIT, READ_LIMIT, Json
from .log_scan import line_begin
from .output import bulk, whole_utf8

if TYPE_CHECKING:
    from .probe import Probe

HIT_LIMIT = 2_048


class SearchTimeout(Exception):
    """A regular expression took too long."""


class Searches:
    """Searches logs on the host, newest lines first, in the main thread, where a signal can end a search."""

    PATIENCE_S = 1.0

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._jobs: queue.Queue[Json] = queue.Queue()
        self._cancelled: Set[int] = set()
        self._armed = False

    def submit(self, job: Json) -> None:
        """Queue a search. Raises ValueError or TypeError for one without a number."""
        self._jobs.put({**job, "id": int(job.get("id", 0))})

    def cancel(self, ident: int) -> None:
        """Cancel a search, running or queued."""
        self._cancelled.add(ident)

    def run(self) -> None:
        """Run searches for ever."""

        def alarm(*_: Any) -> None:
            if self._armed:
                raise SearchTimeout

        signal.signal(signal.SIGALRM, alarm)
        while True:
            try:
                # A signal just before a wait without a timeout would go unnoticed.
                job = self._jobs.get(timeout=1.0)
            except queue.Empty:
                self._probe.check_link()  # checked here too, since the conductor may be stuck on a dead disk
                continue
            ident = job["id"]
            if ident in self._cancelled:
                self._cancelled.discard(ident)
                self._answer(ident, [], 0, done=True)
                continue
            try:
                self._search(ident, job)
            except SearchTimeout:
                self._answer(ident, [], 0, done=True, error="this expression takes too long; make it simpler")
            except Exception as e:  # a regular expression can fail in any way, and this is the main thread
                self._answer(ident, [], 0, done=True, error=str(e) or type(e).__name__)
            finally:
                self._arm(False)
                self._cancelled.discard(ident)

    def _arm(self, on: bool) -> None:
        self._armed = on
        signal.setitimer(signal.ITIMER_REAL, self.PATIENCE_S if on else 0)

    def _answer(
        self, ident: int, hits: List[Any], scanned: int, done: bool = False, error: Optional[str] = None
    ) -> None:
        self._probe.out.wait_for_room(lambda: ident in self._cancelled)
        event: Json = {"t": "found", "id": ident, "hits": hits, "scanned_bytes": scanned, "done": done}
        if error is not None:
            event["error"] = error
        self._probe.out.put(event)

    def _search(self, ident: int, job: Json) -> None:
        tail = self._probe.tail_of(str(job.get("key", "")))
        pattern = str(job.get("pattern", "")).encode("utf-8", "replace")
        fold = bool(job.get("ignore_case", True))
        self._arm(True)
        rx = re.compile(pattern, re.M | (re.I if fold else 0)) if job.get("regex") else None
        self._arm(False)
        needle = pattern.lower() if fold else pattern
        if not pattern:
            raise ValueError("nothing to search for")
        room = max(1, int(job.get("limit") or 500))
        before = job.get("before")
        blocks = tail.backwards(None if before is None else max(0, int(before)), lambda: ident in self._cancelled)
        hits: List[Any] = []
        scanned = 0
        flushed = time.monotonic()
        with contextlib.closing(blocks):
            for start, block, torn in blocks:
                found = self._hits(start, block, torn, rx, needle, fold, room)
                hits += found
                room -= len(found)
                scanned += len(block)
                if room <= 0 or ident in self._cancelled:
                    break
                now = time.monotonic()
                if len(hits) >= 50 or (hits and now - flushed > 0.25) or now - flushed > 1.0:
                    self._answer(ident, hits, scanned)
                    hits = []
                    flushed = now
        self._answer(ident, hits, scanned, done=True)

    def _hits(self, start: int, block: bytes, torn: bool, rx: Any, needle: bytes, fold: bool, room: int) -> List[Any]:
        out: List[Any] = []
        if rx is None:
            hay = block.lower() if fold else block
            end = len(block)
            while len(out) < room:
                at = hay.rfind(needle, 0, end)
                if at < 0:
                    break
                end = line_begin(hay, 0, at)
                stop = block.find(b"\n", at)
                out.append(self._hit(start, block, torn, end, len(block) if stop < 0 else stop, at))
            return out
        end = len(block)
        self._arm(True)
        tried = 0
        while end > 0 and len(out) < room:
            stop = end - 1 if block[end - 1 : end] == b"\n" else end
            begin = line_begin(block, 0, stop)
            if begin == stop == end:
                end = len(block[:end].rstrip(b"\0"))  # a hole: no line ends here
                continue
            found = rx.search(block, begin, min(stop, begin + LINE_LIMIT))
            if found:
                out.append(self._hit(start, block, torn, begin, stop, found.start()))
            end = begin
            tried += 1
            if tried % 2000 == 0:
                self._arm(True)
        self._arm(False)
        return out

    @staticmethod
    def _hit(start: int, block: bytes, torn: bool, begin: int, stop: int, at: int) -> List[Any]:
        first = begin
        torn = torn and begin == 0
        if torn or at - begin >= HIT_LIMIT * 3 // 4:
            # The excerpt begins at a word: half of a secret would not be recognised as one.
            low = max(begin, at - HIT_LIMIT // 4)
            space = re.search(rb"\s", block[low:at])
            before = max(block.rfind(b" ", begin, at), block.rfind(b"\t", begin, at))
            first = low + space.end() if space else before + 1 if before >= 0 else stop if torn else begin
        return [start + begin, block[first : min(stop, first + HIT_LIMIT)].decode("utf-8", "replace").rstrip("\r")]


def read_part(probe: Probe, job: Json) -> Json:
    """Return the answer to a `read`: bytes of a log by offset, cut at whole characters."""
    answer: Json = {"t": "read", "id": int(job.get("id", 0))}
    try:
        length = max(0, min(int(job.get("length") or 0), READ_LIMIT))
        tail = probe.tail_of(str(job.get("key", "")))
        offset, data, size = tail.part(max(0, int(job.get("offset") or 0)), length)
    except (OSError, ValueError, TypeError) as e:
        return {**answer, "error": str(e)}
    data = data[: whole_utf8(data) or len(data)]
    return {**answer, "offset": offset, "end": offset + len(data), "size": size, **bulk(data)}
