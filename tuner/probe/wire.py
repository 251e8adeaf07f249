"""Parse the probe's lines into typed events: NDJSON in, events of `tuner.domain.events` out, secrets masked.

Nothing that comes from a host raises here. A line that is no event is counted and reported as a problem; what a login
prints before the probe's first line is kept aside. Only the bytes of a server's log are not masked yet: a secret may be
cut in two there, so `tuner.session.stream` masks whole lines.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tuner.core.redact import mask, mask_argv, mask_env, mask_json
from tuner.core.redact_values import masked
from tuner.domain import events as e
from tuner.domain.gpu import ProcessInfo
from tuner.domain.logs import LogHit
from tuner.domain.server import Member, ServerIdentity

PROTOCOL = e.PROTOCOL
MAX_LINE_BYTES = 16 << 20
"""Longest line in bytes; a longer one is skipped to its end and reported as a problem."""
MAX_TEXT_BYTES = 64 << 20
"""Most bytes of decompressed text; what would exceed it is refused."""
EXCERPT = 120
PREAMBLE_LINES = 8
LONG_HIT = 256
"""Length in characters from which on the probe may have cut a hit."""
_LINE_BEGINS = re.compile(r"[\s\[({]|[A-Z]+:?\s|[\d.,:/TZ-]+\s")


class NeedNvml(Struct, frozen=True, kw_only=True, tag_field="t", tag="need"):
    """The probe found no NVML binding on the host and requests one. Answered by the session; not an event."""

    mono: float = 0.0
    seq: int = 0
    what: str = "nvml"


class _Log(e.LogBytes, frozen=True, kw_only=True, tag="log"):
    data: str = ""
    z: str | None = None


class _OldLog(e.OldLog, frozen=True, kw_only=True, tag="old_log"):
    data: str = ""
    z: str | None = None


class _Read(e.ReadResult, frozen=True, kw_only=True, tag="read"):
    z: str | None = None


class _Http(e.HttpAnswer, frozen=True, kw_only=True, tag="http"):
    again: tuple[tuple[int, float | None], ...] = ()
    """Values of series that were named before, by the number of their first mention at this endpoint."""


Incoming = e.AnyEvent | NeedNvml

_LAPTOP = (e.LinkChanged, e.LinkMeasured, e.HistoryFound)
_PACKED: dict[type, type] = {e.LogBytes: _Log, e.OldLog: _OldLog, e.ReadResult: _Read, e.HttpAnswer: _Http}


def _decoder(*, recorded: bool) -> msgspec.json.Decoder[Any]:
    kinds = [_PACKED.get(kind, kind) for kind in get_args(e.AnyEvent) if recorded or kind not in _LAPTOP]
    union: Any = NeedNvml
    for kind in kinds:
        union = union | kind
    return msgspec.json.Decoder(union)


class Decoder:
    """Parses blocks of bytes into events.

    Args:
        recorded: The bytes come from a journal, which also holds the laptop's own events.
    """

    def __init__(self, *, recorded: bool = False) -> None:
        self._decode = _decoder(recorded=recorded).decode
        self._recorded = recorded
        self._names: dict[tuple[str, str], list[str]] = {}
        """Masked names of series by (server key, endpoint), in the order in which the endpoint first named them."""
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False
        self.started = False
        """True once the probe's first line has come."""
        self.garbage_lines = 0
        """Lines since the first event that were no events."""
        self._preamble: deque[str] = deque(maxlen=PREAMBLE_LINES)

    @property
    def preamble(self) -> list[str]:
        """Return the last lines that a login printed before the probe's first line."""
        return [mask(line, torn=True) for line in self._preamble]

    def feed(self, block: bytes) -> Iterator[Incoming]:
        """Yield the events of the lines that this block completes."""
        *ends, rest = block.split(b"\n")
        for end in ends:
            line = b"".join((*self._parts, end)) if self._parts else end
            too_long = self._skipping or len(line) > MAX_LINE_BYTES
            self._parts.clear()
            self._size = 0
            self._skipping = False
            if too_long:
                yield from self._garbage(f"a line of more than {MAX_LINE_BYTES >> 20} MiB")
            elif line:
                yield from self._line(line)
        if rest and not self._skipping:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > MAX_LINE_BYTES:
                self._parts.clear()
                self._size = 0
                self._skipping = True

    def _line(self, line: bytes) -> Iterator[Incoming]:
        try:
            event = self._decode(line)
            if isinstance(event, _Http):
                event = self._http(event)
            clean = _CLEAN.get(type(event))
            event = cast(Incoming, clean(event) if clean else event)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            yield from self._garbage(_excerpt(line), error)
            return
        self.started = True
        yield event

    def _http(self, event: _Http) -> e.HttpAnswer:
        """Return the answer with the names that the probe left out.

        Raises:
            ValueError: A series was never named.
        """
        series = event.series
        if series is not None:
            fresh = _masked_names(series)
            series = dict(zip(fresh, series.values(), strict=True))
            if not self._recorded:
                names = self._names.setdefault((event.key, event.endpoint), [])
                names += fresh
                if any(not 0 <= number < len(names) for number, _ in event.again):
                    raise ValueError("a series that was never named")
                series.update((names[number], value) for number, value in event.again)
        return e.HttpAnswer(
            mono=event.mono,
            seq=event.seq,
            key=event.key,
            endpoint=event.endpoint,
            status=event.status,
            error=_text(event.error),
            series=series,
            body=mask_json(event.body),
            next_s=event.next_s,
        )

    def _garbage(self, what: str, error: Exception | None = None) -> Iterator[Incoming]:
        """Take in a line that is no event; yield a problem for the 1st, 10th, 100th and so on."""
        if not self.started:
            self._preamble.append(what)
            return
        self.garbage_lines += 1
        if str(self.garbage_lines).strip("0") != "1":
            return
        what = mask(what, torn=True)
        times = f"{self.garbage_lines} lines, the last: " if self.garbage_lines > 1 else ""
        why = f" ({mask(str(error))})" if isinstance(error, msgspec.ValidationError) else ""
        yield e.ProblemSeen(code="probe-error", subject="wire", detail=f"{times}{what!r}{why}")


def encode(event: e.AnyEvent) -> bytes:
    """Return an event as one line without a newline, as in the journal."""
    return msgspec.json.encode(event)


def _excerpt(line: bytes) -> str:
    text = line[: EXCERPT + 1].decode("utf-8", "replace")
    return text if len(line) <= EXCERPT else text[:EXCERPT] + "…"


def _inflate(packed: str) -> str:
    """Decompress a text from base64 of zlib.

    Raises:
        ValueError: It is not that, or longer than `MAX_TEXT_BYTES`.
    """
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(packed, validate=True), MAX_TEXT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError("not zlib") from error
    if inflater.unconsumed_tail or not inflater.eof:
        raise ValueError("compressed text is torn or too large")
    return data.decode("utf-8", "replace")


def _log(event: _Log) -> e.LogBytes:
    return e.LogBytes(
        mono=event.mono,
        seq=event.seq,
        key=event.key,
        offset=event.offset,
        end=event.end,
        data=event.data if event.z is None else _inflate(event.z),
        head=event.head,
        cursor=event.cursor,
        crc=event.crc,
    )


def _old_log(event: _OldLog) -> e.OldLog:
    return e.OldLog(
        mono=event.mono,
        seq=event.seq,
        key=event.key,
        path=event.path,
        size=event.size,
        data=mask(event.data if event.z is None else _inflate(event.z)),
    )


def _read(event: _Read) -> e.ReadResult:
    """Return the answer to a `read`, which may begin and end within a line.

    A secret whose name stands before the beginning cannot be recognised, so of a line that begins earlier only the
    newline is kept.
    """
    text = event.data if event.z is None else _inflate(event.z)
    offset = event.offset
    if offset > 0 and text:
        end = text.find("\n")
        text = text[end:] if end >= 0 else ""
        offset = event.end - len(text.encode())
    return e.ReadResult(
        mono=event.mono,
        seq=event.seq,
        id=event.id,
        offset=offset,
        end=event.end,
        size=event.size,
        data=mask(text, torn=True),
        error=_text(event.error),
    )


def _hit(hit: LogHit) -> LogHit:
    """Return a hit with secrets masked.

    A long line is cut around the hit, and the name of a secret may stand before the cut. So the first word of a long
    text is hidden, unless it looks like the beginning of a log line.
    """
    if len(hit.text) < LONG_HIT:
        return LogHit(hit.offset, mask(hit.text))
    before = "" if _LINE_BEGINS.match(hit.text) else "--api-key="
    return LogHit(hit.offset, mask(hit.text, before, torn=True))


def _text(text: str | None) -> str | None:
    return mask(text) if text else text


def _info(info: ProcessInfo) -> ProcessInfo:
    command = _text(info.command)
    return info if command == info.command else replace(info, command=command)


def _member(member: Member) -> Member:
    return replace(member, title=mask(member.title), env=mask_env(member.env) if member.env else member.env)


def _identity(server: ServerIdentity) -> ServerIdentity:
    return replace(
        server,
        argv=mask_argv(server.argv),
        env=mask_env(server.env) if server.env else server.env,
        members=tuple(_member(member) for member in server.members),
        log=replace(server.log, note=_text(server.log.note)) if server.log else None,
    )


def _masked_names(names: Iterable[str]) -> list[str]:
    """Mask secrets in names, which rarely have any."""
    whole = list(names)
    text = "\n".join(whole)
    return whole if mask(text) == text else [mask(name) for name in whole]


_CLEAN: dict[type, Callable[[Any], Incoming]] = {
    _Log: _log,
    _OldLog: _old_log,
    _Read: _read,
    e.GpuProcesses: lambda v: replace(v, infos=tuple(_info(info) for info in v.infos)) if v.infos else v,
    e.GpuTable: lambda v: replace(v, reason=_text(v.reason)),
    e.GpuXid: lambda v: replace(v, text=mask(v.text)),
    e.ProcessKilled: lambda v: replace(v, name=mask(v.name), text=mask(v.text)),
    e.ServerSeen: lambda v: replace(v, server=_identity(v.server)),
    e.LogOpened: lambda v: replace(v, note=_text(v.note)) if v.note else v,
    e.ProblemSeen: lambda v: replace(v, subject=mask(v.subject), detail=mask(v.detail)),
    e.SearchResult: lambda v: replace(v, hits=tuple(_hit(hit) for hit in v.hits), error=_text(v.error)),
    e.CheckResult: lambda v: replace(v, checks=mask_json(v.checks)),
    e.PreflightResult: lambda v: replace(v, facts=mask_json(v.facts)),
    # The supervisor masks a record too; its file may be another's.
    e.RunChanged: lambda v: replace(v, run=masked(v.run)),
    e.LeaseChanged: lambda v: replace(v, lease=masked(v.lease)),
    e.Acted: lambda v: replace(v, error=_text(v.error), hint=mask(v.hint)),
    e.LinkChanged: lambda v: replace(v, reason=_text(v.reason)),
}
"""Masking functions by type of event. Types that are missing here have no free text."""

__all__ = ["MAX_LINE_BYTES", "PROTOCOL", "Decoder", "Incoming", "NeedNvml", "encode"]
