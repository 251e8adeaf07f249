"""Follows a log that systemd keeps."""

from __future__ import annotations

import json
import os
import time
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

from .base import READ_LIMIT, Json
from .log_scan import startup_runs
from .output import bulk
from .tail import Tail


class JournalTail(Tail):
    """Follows a unit or container in systemd's journal. Offsets count the bytes of its lines since the server began."""

    def _follow(self) -> None:
        resume = self.server.resume or {}
        self.server.resume = None
        cursor = resume.get("cursor")
        offset = int(resume.get("offset") or 0) if cursor else 0
        base = ["journalctl", "--quiet", "--no-pager", "--output=json", *self.target.match]
        reason = "resume" if cursor else self.reason
        self._emit({"t": "log_open", "reason": reason, "kind": "journal", "path": self.target.path, "offset": offset})
        if cursor is None:
            cursor, offset = self._backlog(base)
        while not self._over:
            follow = [*base, "--follow", "--lines=all"]
            if cursor:
                follow.append("--after-cursor=" + cursor)
            elif self.server.started_at is not None:
                follow.append("--since=@%d" % int(self.server.started_at - 1))  # nothing was there yet
            cursor, offset = self._stream(follow, cursor, offset)
            self.caught_up.set()
            self._sleep(1.0)

    def _entries(self, argv: Sequence[str], idle: Callable[[], None]) -> Iterator[Tuple[str, bytes]]:
        """Cursor and text of each entry of a running journalctl; `idle` is called when there is none for a moment."""
        import select

        child = self.probe.children.start(argv)
        fd = child.stdout.fileno()
        rest = b""
        skipping = False
        try:
            while not self._over:
                ready, _, _ = select.select([fd], [], [], 0.25)
                if not ready:
                    idle()
                    continue
                block = os.read(fd, 65_536)
                if not block:
                    return
                *lines, rest = (rest + block).split(b"\n")
                if skipping and lines:
                    del lines[0]
                    skipping = False
                if len(rest) > READ_LIMIT:
                    rest, skipping = b"", True
                    text = "journalctl: an entry of more than %d MiB is left out" % (READ_LIMIT >> 20)
                    self.probe.problems.note("log-denied", self.server.key, text)
                for line in lines:
                    try:
                        entry = json.loads(line.decode("utf-8", "replace"))
                        message = entry.get("MESSAGE") or ""
                    except (ValueError, AttributeError):
                        text = line.decode("utf-8", "replace")[:300]
                        self.probe.problems.note("log-denied", self.server.key, "journalctl: " + text)
                        continue
                    data = bytes(message) if isinstance(message, list) else str(message).encode("utf-8", "replace")
                    yield entry.get("__CURSOR", ""), data + b"\n"
        finally:
            self.probe.children.end(child)
            child.stdout.close()

    def _backlog(self, base: Sequence[str]) -> Tuple[Optional[str], int]:
        """Send what the journal already holds: all of it, or the start-up section and the last lines.

        Returns:
            Cursor and offset to go on from.
        """
        since = self.server.started_at
        first = [*base, "--since=@%d" % int(since - 1)] if since is not None else [*base, "--lines=2000"]
        cursor: Optional[str] = None
        kept: List[bytes] = []
        end = 0
        whole = True
        try:
            for entry in self._entries(first, lambda: None):
                cursor = entry[0]
                kept.append(entry[1])
                end += len(entry[1])
                if end >= self.probe.head_bytes:
                    whole = False
                    break
            text = b"".join(kept)
            if whole and end <= self.probe.tail_bytes:
                self._send(text, 0, cursor)
                return cursor, end
            runs, _ = startup_runs(text, 0, self.server.engine.markers, self.server.engine.end_marker)
            if not whole:
                # How much lies between is unknown: journalctl can only count lines from the end.
                kept.clear()
                for entry in self._entries([*base, "--lines=2000"], lambda: None):
                    cursor = entry[0]
                    kept.append(entry[1])
                text = b"".join(kept)
                end += len(text)
            text = text[-self.probe.tail_bytes :]
            text = text[text.find(b"\n") + 1 :]
            start = end - len(text)
            last = 0
            for at, data in runs:
                if at + len(data) <= start and self._room():
                    last = at + len(data)
                    self._emit({"t": "log", "offset": at, "end": last, "head": True, **bulk(data)})
            self._emit({"t": "log_gap", "offset": last, "end": start, "reason": "opened near its end"})
            self._send(text, start, cursor)
        except OSError as e:
            self.probe.problems.note("log-denied", self.server.key, "journalctl: %s" % e)
        return cursor, end

    def _stream(self, argv: Sequence[str], cursor: Optional[str], offset: int) -> Tuple[Optional[str], int]:
        waiting: List[bytes] = []
        state: Json = {"cursor": cursor, "offset": offset, "since": 0.0}

        def send() -> None:
            if waiting:
                data = b"".join(waiting)
                waiting.clear()
                self._send(data, state["offset"], state["cursor"])
                state["offset"] += len(data)
            self.caught_up.set()

        try:
            for state["cursor"], data in self._entries(argv, send):
                if not waiting:
                    state["since"] = time.monotonic()
                waiting.append(data)
                # One that writes steadily leaves no moment without an entry.
                if len(waiting) >= 50 or sum(map(len, waiting)) > 32_768 or time.monotonic() - state["since"] > 0.25:
                    send()
        except OSError as e:
            self.probe.problems.note("log-denied", self.server.key, "journalctl: %s" % e)
        send()
        return state["cursor"], state["offset"]

    def _send(self, data: bytes, offset: int, cursor: Optional[str]) -> None:
        self.server.log_grew(data)
        if self._room():
            self._emit({"t": "log", "offset": offset, "end": offset + len(data), "cursor": cursor, **bulk(data)})
