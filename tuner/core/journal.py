"""The journal's format, as lines: what the writer writes, what replay and tests read.

The first line says what it is: `{"journal":1,"protocol":1,"host":...,"at":...,"version":...}`. Every other line is
`{"at":SECONDS,"e":EVENT}`, the event as on the wire. A line is whole or it does not count: whatever kills the writer,
all lines before the last are good.
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
"""No event is longer."""


class Header(Struct, frozen=True, kw_only=True):
    """The first line."""

    journal: int = VERSION
    protocol: int = PROTOCOL
    host: str
    at: float
    """Wall clock of the laptop at the start, seconds since the epoch."""
    version: str = ""
    """Of gputuner."""
    part: int = 0
    """Counts the files of a journal that was cut by size."""


class Entry(Struct, frozen=True):
    """Another line, its event not decoded yet."""

    at: float
    """Seconds since the journal's start."""
    e: msgspec.Raw


_header = msgspec.json.Decoder(Header)
_strict_header = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(Entry)
_event = msgspec.json.Decoder(AnyEvent)


def write_header(header: Header) -> bytes:
    """The first line, with its end."""
    return msgspec.json.encode(header) + b"\n"


def write_entry(event: AnyEvent, at: float) -> bytes:
    """Another line, with its end."""
    return b'{"at":%.3f,"e":%b}\n' % (at, msgspec.json.encode(event))


def parse_header(line: bytes, source: str) -> Header:
    """What the first line says.

    Args:
        line: As read.
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
    """Lines of a file, no longer than those of a journal: what is none may never end a line.

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
    """Another line; None for one that is torn or none."""
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        return _entry.decode(line)
    return None


def entries(lines: Iterable[bytes], source: str) -> Iterator[Entry]:
    """All entries of a journal. Torn and damaged lines are passed over.

    Raises:
        JournalError: it is no journal, or of a version that is not read here.
    """
    reading = iter(lines)
    parse_header(next(reading, b""), source)
    for line in reading:
        if (entry := parse_entry(line)) is not None:
            yield entry


def events(lines: Iterable[bytes], source: str) -> Iterator[tuple[float, AnyEvent]]:
    """Seconds since the start and event of each line, as far as they are events of this version.

    Raises:
        JournalError: it is no journal, or of a version that is not read here.
    """
    for entry in entries(lines, source):
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            yield entry.at, _event.decode(entry.e)


def _no_journal(source: str) -> JournalError:
    return JournalError("Not a journal", source, "A journal is what `gputuner record HOST FILE` writes")
