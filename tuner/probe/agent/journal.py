"""systemd's journal: which entries belong to a server's log, and reading them with journalctl."""

from __future__ import annotations

import bisect
import collections
import json
import os
import select
import threading
from typing import Any, Callable, Deque, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .base import READ_LIMIT
from .children import Children

FIELDS = (
    *("MESSAGE", "_LINE_BREAK", "CONTAINER_PARTIAL_MESSAGE"),
    *("_PID", "INVOCATION_ID", "_SYSTEMD_INVOCATION_ID"),
)
"""The fields of an entry that are requested, of dozens; cursor and time always come with them."""


class Entry(NamedTuple):
    """An entry of the journal."""

    cursor: str
    data: bytes
    """Text of the entry, with a newline unless the line continues in the next entry."""
    at_s: float
    pid: str
    invocation: str
    """Invocation id of the unit's start that wrote the entry; empty where unknown."""


def unit_log(unit: str, uid: Optional[int]) -> str:
    """Return the name of a unit's log, from which `matches_of` selects it; for a user's unit it has the user's id."""
    return unit if uid is None else "%s of user %d" % (unit, uid)


def container_log_name(ident: str) -> str:
    """Return the name of the log of a container whose runtime writes to the journal."""
    return "container " + ident[:12]


def is_unit_of_system(path: str) -> bool:
    """Return whether a log is that of a system service."""
    return not path.startswith("container ") and " of user " not in path


def matches_of(path: str) -> List[str]:
    """Return journalctl's arguments for a log: its own lines, and what the service manager says about the unit."""
    if path.startswith("container "):
        return ["CONTAINER_ID=" + path[len("container ") :]]
    unit, _, uid = path.partition(" of user ")
    if uid:
        return ["_SYSTEMD_USER_UNIT=" + unit, "_UID=" + uid, "+", "USER_UNIT=" + unit, "_UID=" + uid]
    return ["_SYSTEMD_UNIT=" + unit, "+", "UNIT=" + unit, "_PID=1"]


def parsed(line: bytes) -> Entry:
    """Parse an entry as `--output=json` prints it. Raises ValueError for anything else."""
    record = json.loads(line.decode("utf-8", "replace"))
    if not isinstance(record, dict):
        raise ValueError("no entry")
    # A line that was cut for its length continues in the next entry; journald and container runtimes mark it
    # differently.
    cut = record.get("_LINE_BREAK") == "line-max" or record.get("CONTAINER_PARTIAL_MESSAGE") == "true"
    return Entry(
        str(record.get("__CURSOR") or ""),
        _bytes_of(record.get("MESSAGE")) + (b"" if cut else b"\n"),
        float(record.get("__REALTIME_TIMESTAMP") or 0) / 1e6,
        str(record.get("_PID") or ""),
        str(record.get("INVOCATION_ID") or record.get("_SYSTEMD_INVOCATION_ID") or ""),
    )


def _bytes_of(message: Any) -> bytes:
    """Return a message as bytes. It is text, or numbers if not UTF-8, or a list of these if given more than once."""
    if isinstance(message, list):
        if all(isinstance(item, int) for item in message):
            return bytes(item & 0xFF for item in message)
        return b"\n".join(map(_bytes_of, message))
    return b"" if message is None else str(message).encode("utf-8", "replace")


class Reader:
    """Runs journalctl for one log.

    `note(code, text)` is called with messages of journalctl and with what is left out of the log; `heard()` is called
    for each entry, which proves that the log can be read.
    """

    def __init__(
        self, children: Children, path: str, note: Callable[[str, str], None], heard: Callable[[], None]
    ) -> None:
        self._children = children
        # Without --all, long messages are left out.
        how = ["--quiet", "--no-pager", "--all", "--output=json", "--output-fields=" + ",".join(FIELDS)]
        self._argv = ["journalctl", *how, *matches_of(path)]
        self._note = note
        self._heard = heard

    def entries(
        self, how: Sequence[str], stop: Callable[[], bool], idle: Callable[[], None] = lambda: None
    ) -> Iterator[Entry]:
        """Yield entries until journalctl ends or `stop()` is true; `idle()` is called when none comes for a moment.

        Raises OSError where journalctl cannot be run.
        """
        # Messages on stderr come at any time, also within an entry that is longer than a pipe holds.
        child = self._children.start([*self._argv, *how], apart=True)
        out, err = child.stdout.fileno(), child.stderr.fileno()
        open_ends = [out, err]
        rest = b""
        skipping = False
        try:
            while open_ends and not stop():
                ready, _, _ = select.select(open_ends, [], [], 0.25)
                if not ready:
                    idle()
                    continue
                fd = err if err in ready else out
                block = os.read(fd, 65_536)
                if not block:
                    open_ends.remove(fd)
                    continue
                if fd == err:
                    for text in block.decode("utf-8", "replace").splitlines():
                        self._note("log-denied", text[:300])
                    continue
                *lines, rest = (rest + block).split(b"\n")
                if skipping and lines:
                    del lines[0]
                    skipping = False
                if len(rest) > READ_LIMIT:
                    rest, skipping = b"", True
                    self._note("tail-flood", "an entry of more than %d MiB is left out" % (READ_LIMIT >> 20))
                for line in lines:
                    try:
                        entry = parsed(line)
                    except (ValueError, TypeError):
                        self._note("tail-flood", "no entry: " + line.decode("utf-8", "replace")[:300])
                        continue
                    self._heard()
                    yield entry
        finally:
            self._children.end(child)
            child.stdout.close()
            child.stderr.close()

    def before(self, end: int, cursor: str, since_s: float, stop: Callable[[], bool]) -> Iterator[Tuple[int, Entry]]:
        """Yield entries backwards from the one at `cursor`, whose text ends at the offset `end`, each with its offset.

        Raises OSError where the journal no longer holds that entry.
        """
        first = True
        for entry in self.entries(["--reverse", "--cursor=" + cursor], stop):
            if first and entry.cursor != cursor:
                raise OSError("the journal no longer holds this part of the log")
            first = False
            end -= len(entry.data)
            if end < 0 or entry.at_s < since_s:
                return
            yield end, entry


class Last:
    """The last entries of many, up to `limit` bytes; a single longer one is kept as well."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.entries: Deque[Entry] = collections.deque()
        self.size = 0
        """Bytes of the entries' texts."""

    def add(self, entry: Entry) -> None:
        """Add an entry, and drop the oldest ones beyond the limit."""
        self.entries.append(entry)
        self.size += len(entry.data)
        while self.size > self._limit and len(self.entries) > 1:
            self.size -= len(self.entries.popleft().data)


class Marks:
    """A limited number of entries whose end offset is known, from which the offsets of others are counted."""

    LIMIT = 1024

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: List[int] = []
        self._cursors: List[str] = []
        self._apart = 65_536
        self.newest: Optional[Tuple[int, str]] = None

    def add(self, end: int, cursor: str) -> None:
        """Remember the offset at which an entry's text ends."""
        with self._lock:
            if self.newest is None or end >= self.newest[0]:
                self.newest = (end, cursor)
            at = bisect.bisect_left(self._ends, end)
            if any(abs(end - other) < self._apart for other in self._ends[max(0, at - 1) : at + 1]):
                return
            self._ends.insert(at, end)
            self._cursors.insert(at, cursor)
            if len(self._ends) > self.LIMIT:
                self._thin_out()

    def _thin_out(self) -> None:
        self._apart *= 2
        kept: List[int] = []
        for at, end in enumerate(self._ends):
            if not kept or end - self._ends[kept[-1]] >= self._apart:
                kept.append(at)
        self._ends = [self._ends[at] for at in kept]
        self._cursors = [self._cursors[at] for at in kept]

    def not_before(self, offset: int) -> Optional[Tuple[int, str]]:
        """Return the nearest mark at or after an offset; the newest where there is none."""
        with self._lock:
            at = bisect.bisect_left(self._ends, offset)
            return (self._ends[at], self._cursors[at]) if at < len(self._ends) else self.newest

    def not_after(self, offset: int) -> Optional[Tuple[int, str]]:
        """Return the nearest mark at or before an offset; None where there is none."""
        with self._lock:
            at = bisect.bisect_right(self._ends, offset) - 1
            return (self._ends[at], self._cursors[at]) if at >= 0 else None
