"""Lines to the laptop: queueing for a slow link, blocks of text, and problems reported once."""

from __future__ import annotations

import base64
import collections
import json
import os
import threading
import time
import zlib
from typing import Callable, Deque, Dict, List, Tuple

from .base import Json


def whole_utf8(data: bytes) -> int:
    """Return the length of `data` without an incomplete character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return len(data)
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 1
            return len(data) - back if need > back else len(data)
    return len(data)


def bulk(data: bytes) -> Json:
    """Return a block of text for the wire: as `data`, or compressed as `z` where that saves bytes."""
    text = data.decode("utf-8", "replace")
    if len(data) < 1024:
        return {"data": text}
    return {"z": base64.b64encode(zlib.compress(text.encode("utf-8"), 1)).decode("ascii")}


class Outbox:
    """The queue of lines to the laptop, written by one thread.

    A slow link must neither grow memory nor lose bytes of logs: bulk lines wait for room before they are made, samples
    replace older ones of their kind, all else is small and rare and always accepted. Answers to pings go first, or a
    busy link would look like a dead one. Lines are numbered when written, so a gap in the numbers is a loss.
    """

    ROOM = 524_288
    SAMPLES = 3

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._cond = threading.Condition()
        self._urgent: Deque[bytes] = collections.deque()
        self._lines: Deque[Tuple[str, bytes]] = collections.deque()
        self._kept: Dict[str, int] = collections.defaultdict(int)
        self._pending = 0
        self._seq = 0
        self._writing = False
        self.broken = False

    @staticmethod
    def _encoded(event: Json) -> bytes:
        text = json.dumps(
            {**event, "mono": round(time.monotonic(), 4)}, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        )
        return text.encode("utf-8", "replace")  # half a surrogate pair is not valid UTF-8

    def put(self, event: Json, urgent: bool = False) -> None:
        """Queue a line that must arrive."""
        line = self._encoded(event)
        with self._cond:
            if urgent:
                self._urgent.append(line)
            else:
                self._lines.append(("", line))
                self._pending += len(line)
            self._cond.notify_all()

    def put_sample(self, event: Json) -> None:
        """Queue a line that newer ones of its kind supersede; beyond `SAMPLES` the oldest is dropped."""
        line = self._encoded(event)
        kind = event["t"]
        with self._cond:
            if self._kept[kind] >= self.SAMPLES:
                for i, (other, old) in enumerate(self._lines):
                    if other == kind:
                        del self._lines[i]
                        self._pending -= len(old)
                        self._kept[kind] -= 1
                        break
            self._lines.append((kind, line))
            self._kept[kind] += 1
            self._pending += len(line)
            self._cond.notify_all()

    def wait_for_room(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until bulk may be queued. Return False if `stop()` became true first, or the link is broken."""
        with self._cond:
            while self._pending > self.ROOM:
                if stop() or self.broken:
                    return False
                self._cond.wait(0.25)
        return not self.broken

    @property
    def congested(self) -> bool:
        """Return whether the link is behind, so that requesting more makes no sense."""
        return self._pending > self.ROOM // 2

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is written, at most `timeout_s` seconds."""
        end = time.monotonic() + timeout_s
        with self._cond:
            while (self._lines or self._urgent or self._writing) and not self.broken:
                left = end - time.monotonic()
                if left <= 0:
                    return
                self._cond.wait(left)

    def run(self, lost: Callable[[], None]) -> None:
        """Write until the other side is gone, then call `lost`."""
        while True:
            with self._cond:
                self._writing = False
                self._cond.notify_all()
                while not (self._lines or self._urgent):
                    self._cond.wait()
                lines: List[bytes] = []
                size = 0
                while self._urgent:
                    lines.append(self._urgent.popleft())
                while self._lines and size < 65_536:
                    kind, line = self._lines.popleft()
                    if kind:
                        self._kept[kind] -= 1
                    size += len(line)
                    lines.append(line)
                self._pending -= size
                self._writing = True
            out = bytearray()
            for line in lines:
                self._seq += 1
                out += b'{"seq":%d,' % self._seq
                out += line[1:]
                out += b"\n"
            try:
                view = memoryview(out)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                self.broken = True
                with self._cond:
                    self._cond.notify_all()
                lost()
                return


class Problems:
    """Reports each problem once, and once more when it is over.

    Several parts (endpoints, GPUs) may have the same problem with one subject; it is over when none has it.
    """

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._known: Dict[Tuple[str, str], Dict[str, str]] = {}

    def note(self, code: str, subject: str = "", detail: str = "", part: str = "") -> None:
        """Report a problem, unless it was reported with the same text."""
        with self._lock:
            parts = self._known.setdefault((code, subject), {})
            if parts.get(part) == detail:
                return
            parts[part] = detail
        self._out.put({"t": "problem", "code": code, "subject": subject, "detail": detail[:1000]})

    def clear(self, code: str, subject: str = "", part: str = "") -> None:
        """Report that a problem is over, if there was one."""
        with self._lock:
            parts = self._known.get((code, subject))
            if parts is None or parts.pop(part, None) is None or parts:
                return
            del self._known[code, subject]
        self._out.put({"t": "problem", "code": code, "subject": subject, "cleared": True})

    def forget(self, subject: str) -> None:
        """Clear all problems of a subject that no longer exists."""
        with self._lock:
            codes = [code for code, about in self._known if about == subject]
            for code in codes:
                del self._known[code, subject]
        for code in codes:
            self._out.put({"t": "problem", "code": code, "subject": subject, "cleared": True})
