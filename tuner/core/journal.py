"""The journal's format, line by line: what the writer writes, and what replay and tests read.

The first line says what it is: `{"journal":1,"protocol":1,"host":...,"at":...,"version":...}`. Every other line is
`{"at":SECONDS,"e":EVENT}`, the event as on the wire. An incomplete line does not count: whatever kills the
writer, all lines before the last are good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec
from msgspec import Struct

from tuner.domain.events import PROTOCOL, AnyEvent
from tuner.errors import JournalError

VERSION = 1
MAX_HEADER_BYTES = 64 << 10
MAX_LINE_BYTES = 64 << 20
"""Longest line of an event."""


class Header(Struct, frozen=True, kw_only=True):
    """The first line of a journal."""

    journal: int = VERSION
    protocol: int = PROTOCOL
    host: str
    at: float
    """Wall clock of the laptop at the start, seconds since the epoch."""
    version: str = ""
    """Version of gputuner that wrote the journal."""
    part: int = 0
    """Number of this file, from 0, in a journal that was cut by size."""


class Entry(Struct, frozen=True):
    """Any further line of a journal, its event not decoded yet."""

    at: float
    """Seconds since the journal's start."""
    e: msgspec.Raw


_header = msgspec.json.Decoder(Header)
_strict_header = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(Entry)
_event = msgspec.json.Decoder(AnyEvent)


def write_header(header: Header) -> bytes:
    """Encode the first line, with its line end."""
    return msgspec.json.encode(header) + b"\n"


def write_entry(event: AnyEvent, at: float) -> bytes:
    """Encode a further line, with its line end; `at` is seconds since the journal's start."""
    return b'{"at":%.3f,"e":%b}\n' % (at, msgspec.json.encode(event))


def parse_header(line: bytes, source: str) -> Header:
    """Decode the first line of a journal.

    Args:
        line: The line as read.
        source: Name of the file, for the error.

    Raises:
        JournalError: it is no journal, or of a version that is not read here.
    """
    try:
        fields = _strict_header.decode(line)
        header = _header.decode(line)
    except (msgspec.DecodeError, ValueError) as error:
        raise _no_journal(source) from error
    if not {"journal", "protocol"} <= fields.keys():
        raise _no_journal(source)
    if (header.journal, header.protocol) != (VERSION, PROTOCOL):
        raise JournalError(
            "The journal is of another version",
            f"{source}: journal {header.journal}, protocol {header.protocol}; read here: {VERSION} and {PROTOCOL}",
            f"Read it with gputuner {header.version or 'of its time'}",
        )
    return header


def read_lines(file: BinaryIO, source: str) -> Iterator[bytes]:
    """Yield the lines of a file, none longer than a journal's: another file may have no line end at all.

    Raises:
        JournalError: a line is too long.
    """
    limit = MAX_HEADER_BYTES
    while line := file.readline(limit + 1):
        if len(line) > limit:
            if limit == MAX_HEADER_BYTES:
                raise _no_journal(source)
            raise JournalError("The journal is damaged", f"{source} has a line of more than {limit >> 20} MiB")
        yield line
        limit = MAX_LINE_BYTES


def parse_entry(line: bytes) -> Entry | None:
    """Decode a further line; None if it is torn or no entry."""
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        return _entry.decode(line)
    return None


def entries(lines: Iterable[bytes], source: str) -> Iterator[Entry]:
    """Yield all entries of a journal; torn and damaged lines are passed over.

    Raises:
        JournalError: it is no journal, or of a version that is not read here.
    """
    reading = iter(lines)
    parse_header(next(reading, b""), source)
    for line in reading:
        if (entry := parse_entry(line)) is not None:
            yield entry


def events(lines: Iterable[bytes], source: str) -> Iterator[tuple[float, AnyEvent]]:
    """Yield seconds since the journal's start, and event, of each line that this version can decode.

    Raises:
        JournalError: it is no journal, or of a version that is not read here.
    """
    for entry in entries(lines, source):
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            yield entry.at, _event.decode(entry.e)


def _no_journal(source: str) -> JournalError:
    return JournalError("Not a journal", source, "A journal is what `gputuner record HOST FILE` writes")
