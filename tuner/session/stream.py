"""Turn the probe's bytes into events in order: each log byte once, secrets masked by complete lines, in short steps.

The last line of a log is often torn: the rest of it comes later. It is held back until its end arrives, so that a
secret cut in two is never shown in two innocent halves. After `HOLD_S` it is released, since it may be a prompt or a
progress bar that waits, and stays as context for masking the rest of its line. Held text counts as not received: if the
link is lost it is dropped, and the probe sends it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from tuner.core.redact import mask
from tuner.domain import events as e
from tuner.domain.plan import TailFrom
from tuner.probe.wire import Decoder, Incoming

HOLD_S = 1.0
"""Longest time for which a torn line is held back, seconds."""
MAX_HELD = 65_536
"""Largest number of characters of a torn line that are held back."""
CONTEXT = 8192
"""Number of characters of a torn line that are kept as context after they were shown."""
PIECE = 8_192
"""Largest number of characters in one event: folding them takes few milliseconds, so the screen stays responsive."""
REPLACEMENT = "\ufffd"

_Event = TypeVar("_Event", bound=Incoming)


@dataclass
class _Tail:
    """The position up to which one log was read, across connections."""

    device: int | None = None
    inode: int | None = None
    path: str | None = None
    offset: int = 0
    """Byte offset of the first byte that was not shown yet."""
    cursor: str | None = None
    """Position in a log that is not a file (the systemd journal)."""
    check: tuple[int, int] | None = None
    """Byte offset, and CRC-32 of the up to 256 bytes before it, by which the probe recognises the file."""
    opened: bool = False
    """Whether the log is to be continued after a lost link."""


@dataclass
class _Torn:
    """The torn last line of one log."""

    text: str = ""
    """Text that is held back."""
    offset: int = 0
    """Byte offset at which `text` begins."""
    end: int = 0
    """Byte offset at which `text` ends."""
    since: float = 0.0
    """Monotonic seconds since when `text` has been held."""
    before: str = ""
    """Part of the line that was shown already: context for masking."""
    last: e.LogBytes | None = None
    """Event that brought the end of `text`."""


@dataclass
class Stream:
    """The events of one host over any number of connections."""

    recorded: bool = False
    """Whether the bytes come from a journal."""
    decoder: Decoder = field(init=False)
    """Decoder of the current connection."""
    _tails: dict[str, _Tail] = field(default_factory=dict)
    _torn: dict[tuple[str, bool], _Torn] = field(default_factory=dict)
    _seen_seq: int = 0
    _seq: int = 0

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> dict[str, TailFrom]:
        """Begin a new connection and drop held text; return, by key, where the probe continues each log."""
        self.decoder = Decoder(recorded=self.recorded)
        self._seen_seq = self._seq = 0
        for torn in self._torn.values():
            torn.text = ""
        return {
            key: TailFrom(device=t.device, inode=t.inode, path=t.path, offset=t.offset, cursor=t.cursor, check=t.check)
            for key, t in self._tails.items()
            if t.opened
        }

    def feed(self, block: bytes, now: float) -> Iterator[Incoming]:
        """Yield the events that a block completes, numbered so that a gap means lost lines of the probe.

        Args:
            block: Bytes from the probe.
            now: Monotonic seconds.
        """
        for event in self.decoder.feed(block):
            if event.seq:
                self._seq += max(0, event.seq - self._seen_seq - 1)
                self._seen_seq = event.seq
            match event:
                case e.LogBytes():
                    for piece in self._log(event, now):
                        yield self._numbered(piece)
                case e.LogOpened() | e.LogGap():
                    for piece in self._let_go(event.key):
                        yield self._numbered(piece)
                    self._moved(event)
                    yield self._numbered(event)
                case e.ServerGone():
                    for piece in self._let_go(event.key):
                        yield self._numbered(piece)
                    if not event.left and (tail := self._tails.get(event.key)):
                        # This log has ended, and the next server may write into the same file.
                        tail.opened = False
                    yield self._numbered(event)
                case _ if event.seq:
                    yield self._numbered(event)
                case _:
                    yield event

    def idle(self, now: float) -> Iterator[e.LogBytes]:
        """Yield torn lines that were held for `HOLD_S` (`now`: monotonic seconds)."""
        for (key, head), torn in list(self._torn.items()):
            if torn.text and now - torn.since >= HOLD_S:
                for piece in self._release(key, head):
                    yield self._numbered(piece)

    def _numbered(self, event: _Event) -> _Event:
        self._seq += 1
        return replace(event, seq=self._seq)

    def _moved(self, event: e.LogOpened | e.LogGap) -> None:
        """Update a log's position after it was opened or after bytes were left out."""
        tail = self._tails.setdefault(event.key, _Tail())
        if isinstance(event, e.LogGap):
            tail.offset = max(tail.offset, event.end)
            return
        if event.reason in ("vanished", "unreadable"):
            return
        same = tail.opened and (event.device, event.inode) == (tail.device, tail.inode)
        if not same or event.reason in ("rotated", "truncated", "replaced"):
            tail.offset = event.offset
            tail.cursor = tail.check = None
            self._torn.pop((event.key, False), None)
        tail.device, tail.inode, tail.path, tail.opened = event.device, event.inode, event.path, True

    def _log(self, event: e.LogBytes, now: float) -> Iterator[e.LogBytes]:
        if event.crc is not None:
            self._tails.setdefault(event.key, _Tail()).check = (event.end, event.crc)
            event = replace(event, crc=None)  # it covers the undivided event, and a journal has no use for it
        torn = self._torn.setdefault((event.key, event.head), _Torn())
        if torn.text and event.offset != torn.end:
            if event.offset < torn.end:
                torn.text = ""
            else:
                yield from self._release(event.key, event.head)
        fresh = event if event.head or torn.text else self._unseen(event)
        if fresh is None:
            return
        text = torn.text + fresh.data
        start = torn.offset if torn.text else fresh.offset
        cut = max(text.rfind("\n"), text.rfind("\r")) + 1
        held_bytes = _bytes_of(text[cut:], text[:cut], fresh.end - start)
        if held_bytes is None or len(text) - cut > MAX_HELD:
            # Invalid UTF-8 makes the byte length unknown, and an endless line cannot be held: show both at once.
            cut, held_bytes = len(text), 0
        middle = fresh.end - held_bytes
        whole = replace(fresh, offset=start, end=middle, data=text[:cut])
        if held_bytes:
            if not torn.text or cut:
                torn.since = now
            torn.text, torn.offset, torn.end, torn.last = text[cut:], middle, fresh.end, fresh
        else:
            torn.text = ""
        if cut:
            yield from self._show(whole, torn)

    def _unseen(self, event: e.LogBytes) -> e.LogBytes | None:
        """Return the part of an event that was not shown before; None if all of it was."""
        tail = self._tails.get(event.key)
        if tail is None or event.offset >= tail.offset:
            return event
        if event.end <= tail.offset:
            return None
        data = event.data.encode()
        skip = tail.offset - event.offset
        if len(data) != event.end - event.offset:
            # Invalid UTF-8 has another length after decoding; counting from the end repeats bytes rather than lose any.
            skip = max(0, len(data) - (event.end - tail.offset))
        return replace(event, offset=tail.offset, data=data[skip:].decode("utf-8", "ignore"))

    def _let_go(self, key: str) -> Iterator[e.LogBytes]:
        for head in (True, False):
            yield from self._release(key, head)

    def _release(self, key: str, head: bool) -> Iterator[e.LogBytes]:
        torn = self._torn.get((key, head))
        if torn is None or not torn.text or torn.last is None:
            return
        event = replace(torn.last, offset=torn.offset, end=torn.end, data=torn.text)
        torn.text = ""
        yield from self._show(event, torn)

    def _show(self, event: e.LogBytes, torn: _Torn) -> Iterator[e.LogBytes]:
        """Yield an event masked and cut into pieces, and advance the log's position."""
        for piece in _pieces(event, torn.before):
            if not piece.head:
                tail = self._tails.setdefault(piece.key, _Tail())
                tail.offset = piece.end
                tail.cursor = piece.cursor or tail.cursor
            yield piece
        end = max(event.data.rfind("\n"), event.data.rfind("\r")) + 1
        rest = event.data[end:]
        torn.before = ((torn.before if not end else "") + rest)[-CONTEXT:]


def _pieces(event: e.LogBytes, before: str) -> Iterator[e.LogBytes]:
    """Yield an event with its text masked, in pieces that end at a line end if possible.

    Masking changes lengths and byte offsets must stay exact, so a line with a masked secret is a piece of its own.

    Args:
        event: Event with unmasked text.
        before: Part of its first line that was shown earlier.
    """
    is_torn = not event.data.endswith(("\n", "\r"))
    masked = mask(event.data, before, torn=is_torn)
    changed = masked != event.data
    if not changed and len(masked) <= PIECE:
        yield event
        return
    if REPLACEMENT in event.data or event.end - event.offset != len(event.data.encode()):
        yield replace(event, data=masked)
        return
    offset = event.offset
    for text, shown in _runs(event.data, before, torn=is_torn) if changed else _slices(event.data):
        end = offset + len(text.encode())
        yield replace(event, offset=offset, end=end, data=shown)
        offset = end


def _slices(text: str) -> Iterator[tuple[str, str]]:
    start = 0
    while start < len(text):
        stop = start + PIECE
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
        yield text[start:stop], text[start:stop]
        start = stop


def _runs(text: str, before: str, *, torn: bool) -> Iterator[tuple[str, str]]:
    """Yield original and masked text of each run of lines without secrets, and of each line with one."""
    run: list[str] = []
    size = 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        shown = mask(line, before, torn=torn and number == len(lines) - 1)
        before = ""
        if shown == line and size + len(line) <= PIECE:
            run.append(line)
            size += len(line)
            continue
        if run:
            yield "".join(run), "".join(run)
            run, size = [], 0
        if shown == line:
            run, size = [line], len(line)
        else:
            yield line, shown
    if run:
        yield "".join(run), "".join(run)


def _bytes_of(part: str, other: str, total: int) -> int | None:
    """Return the number of bytes that `part` had before decoding; None if invalid UTF-8 hides it.

    Args:
        part: Part of a decoded text.
        other: The rest of that text.
        total: Number of bytes of both.
    """
    if REPLACEMENT not in part:
        return len(part.encode())
    if REPLACEMENT not in other:
        return total - len(other.encode())
    return None
