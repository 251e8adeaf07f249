"""Read the bytes of log files: open, decompress, convert to UTF-8 and cut into blocks of complete lines."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple, cast

from tuner.errors import UsageProblem

BLOCK = 96 * 1024
"""Size of a block, bytes: small enough to stay in a processor's cache together with the shapes of its lines."""
HEAD = 256 * 1024
"""Number of first bytes by which the kind of a file and its wrappers are recognised."""
_HALF_LINE = 512 * 1024
"""Number of bytes kept at each end of an overlong line."""
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_WIDE = {codecs.BOM_UTF8: "", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_OTHER = {
    b"LPKSHHRH": ("a file of systemd's journal", "Print it: journalctl --file FILE -o short-iso"),
    b"PK\x03\x04": ("an archive", "Unpack it"),
    b"\x7fELF": ("a program or a core dump", ""),
}
_TAR_AT, _TAR = 257, b"ustar"
_TEXT_CONTROLS = frozenset(b"\t\n\r\x0b\x0c\x1b\x08\x07")
_NOISE_SHARE = 5
"""A file is no text if at least one in this many bytes is a control character or invalid UTF-8."""
_NOISE_LEAST = 64
"""Least number of such bytes for a file to count as no text."""


class Source(NamedTuple):
    """One opened log."""

    name: str
    head: bytes
    """The first bytes, decompressed and in UTF-8."""
    fd: int | None
    """File descriptor of a regular, uncompressed UTF-8 file, of which pieces can be read independently; else None."""
    size: int
    """Size of that file, bytes; 0 if `fd` is None."""
    chunks: Iterator[bytes]
    """All bytes of any other source, decompressed and in UTF-8; empty if `fd` is set."""
    broken: Sequence[str] = ()
    """Error that ended the decompression early, known once all was read; empty if there was none."""


def opened(name: str, stack: contextlib.ExitStack, stdin: IO[bytes] | None = None) -> Source:
    """Open a log.

    Args:
        name: Path, or `-` for the standard input.
        stack: Exit stack that closes the file.
        stdin: Stream that `-` stands for; None: the process's standard input.

    Raises:
        UsageProblem: The file cannot be read, or is not a log.
    """
    try:
        if name == "-":
            return _stream("standard input", stdin or sys.stdin.buffer)
        path = Path(name)
        if path.is_dir():
            raise UsageProblem("a folder is no log", name, "Name its files, oldest first")
        file = stack.enter_context(path.open("rb"))
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return _stream(name, file)
        head = os.pread(file.fileno(), HEAD, 0)
        if any(head.startswith(magic) for magic in (*_PACKED, *_WIDE)):
            return _stream(name, file)
    except OSError as error:
        raise UsageProblem("cannot read a log", f"{name}: {error.strerror or error}") from None
    _check(name, head)
    return Source(name, head, file.fileno(), status.st_size, iter(()))


def _stream(name: str, file: IO[bytes]) -> Source:
    reader = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file), BLOCK)
    broken: list[str] = []
    chunks = _utf8(_unpacked(name, reader, broken))
    head = b""
    while len(head) < HEAD and (chunk := next(chunks, b"")):
        head += chunk
    _check(name, head)
    return Source(name, head, None, 0, chain([head], chunks), broken)


def _unpacked(name: str, file: io.BufferedReader, broken: list[str]) -> Iterator[bytes]:
    """Yield the decompressed bytes; an error after the first ones is added to `broken` instead of raised.

    A log rotation may have truncated a compressed file.
    """
    first = True
    try:
        for chunk in _blocks(_unpacker(name, file)):
            yield chunk
            first = False
    except UsageProblem:
        raise
    except Exception as error:  # each decompressor raises exceptions of its own
        if first:
            raise UsageProblem("cannot read a log", f"{name}: {error}") from None
        broken.append(str(error))


def _blocks(unpacker: IO[bytes]) -> Iterator[bytes]:
    """Yield the decompressed bytes in chunks of about `BLOCK`, including those before an error."""
    parts: list[bytes] = []
    size = 0
    try:
        while chunk := unpacker.read1(BLOCK):  # type: ignore[attr-defined]
            parts.append(chunk)
            size += len(chunk)
            if size >= BLOCK:
                yield b"".join(parts)
                parts, size = [], 0
    except Exception:
        if parts:
            yield b"".join(parts)
        raise
    if parts:
        yield b"".join(parts)


def _unpacker(name: str, file: io.BufferedReader) -> IO[bytes]:
    begin = file.peek(8)
    kind = next((kind for magic, kind in _PACKED.items() if begin.startswith(magic)), None)
    if kind == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if kind == "bz2":
        import bz2

        return bz2.BZ2File(file)
    if kind == "xz":
        import lzma

        return lzma.LZMAFile(file)
    if kind == "zstd":
        try:
            from compression import zstd  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise UsageProblem(
                "this Python cannot unpack zstd", name, f"zstd -dc {name} | gputuner diagnose -"
            ) from None
        return zstd.ZstdFile(file)  # type: ignore[no-any-return, unused-ignore]
    return file


def _utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    for mark, encoding in _WIDE.items():
        if first.startswith(mark):
            first = first[len(mark) :]
            if encoding:
                decoder = codecs.getincrementaldecoder(encoding)("replace")
                for chunk in chain([first], chunks):
                    yield decoder.decode(chunk).encode("utf-8", "replace")
                yield decoder.decode(b"", True).encode("utf-8", "replace")
                return
            break
    if first:
        yield first
    yield from chunks


def _check(name: str, head: bytes) -> None:
    """Raise UsageProblem if the first bytes are not those of a text file."""
    for magic, (what, hint) in _OTHER.items():
        if head.startswith(magic):
            raise UsageProblem(f"this is {what}, no log", name, hint)
    if head[_TAR_AT:].startswith(_TAR):
        raise UsageProblem("this is an archive, no log", name, "Unpack it")
    text = head.replace(b"\0", b"")
    noise = text.decode("utf-8", "replace").count("\ufffd") + sum(
        text.count(code) for code in range(32) if code not in _TEXT_CONTROLS
    )
    if noise >= _NOISE_LEAST and noise * _NOISE_SHARE >= len(text):
        raise UsageProblem("this is no text", name, "Name the log that the server printed")


class Counted:
    """Iterates over chunks and counts their bytes in `size`."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.size += len(chunk)
            yield chunk


def lines_of(fd: int, start: int, end: int) -> Iterator[bytes]:
    """Yield blocks with the lines of a regular file that begin at a byte offset in [start, end).

    A block is yielded as it was read, without a copy. It may therefore end with the beginning of a line, which the next
    block repeats in full.
    """
    at = _next_line(fd, start)
    while at < end:
        chunk = os.pread(fd, BLOCK, at)
        cut = chunk.rfind(b"\n") + 1
        if cut and at + len(chunk) < end and chunk.find(0) < 0:
            yield chunk
            at += cut
            continue
        rest = Counted(_lines(fd, at, min(at + max(cut, 1), end)))
        yield from blocks(rest)
        if not rest.size:
            return
        at += rest.size


def _next_line(fd: int, start: int) -> int:
    """Return the byte offset at which the first line at or after `start` begins."""
    at = start - 1
    while start and (chunk := os.pread(fd, BLOCK, at)):
        cut = chunk.find(b"\n") + 1
        if cut:
            return at + cut
        at += len(chunk)
    return at + 1


def _lines(fd: int, start: int, end: int) -> Iterator[bytes]:
    """Yield chunks with exactly the lines that begin in [start, end); a line must begin at `start`."""
    at = start
    while chunk := os.pread(fd, BLOCK, at):
        if at + len(chunk) >= end and (cut := chunk.find(b"\n", max(end - 1 - at, 0)) + 1):
            yield chunk[:cut]
            return
        yield chunk
        at += len(chunk)


def blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of complete lines with their line ends; zero bytes, which fill a truncated log, are removed."""
    line = b""
    skipped = 0
    for chunk in chunks:
        if chunk.find(0) >= 0:
            chunk = chunk.replace(b"\0", b"")
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            line += chunk
            if len(line) > 4 * _HALF_LINE:
                skipped += len(line) - 3 * _HALF_LINE
                line = line[:_HALF_LINE] + line[-2 * _HALF_LINE :]
            continue
        if skipped or len(line) > 2 * _HALF_LINE:
            end = chunk.find(b"\n") + 1
            yield _shortened(line + chunk[:end], skipped)
            chunk, cut = chunk[end:], cut - end
            line = b""
            skipped = 0
        if cut:
            yield line + chunk[:cut]
        line = chunk[cut:]
    if line:
        yield _shortened(line + b"\n", skipped)


def _shortened(line: bytes, skipped: int) -> bytes:
    """Return a line with its middle replaced by a note if it is longer than `2 * _HALF_LINE` bytes."""
    more = len(line) - 2 * _HALF_LINE
    if more <= 0:
        return line
    return b"%s [%d bytes left out] %s" % (line[:_HALF_LINE], more + skipped, line[-_HALF_LINE:])
