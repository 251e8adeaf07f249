"""Find places in a log without reading all of it: start-up section, line starts, and how far it was read."""

from __future__ import annotations

import os
import time
import zlib
from typing import Dict, Generator, Iterator, List, Sequence, Tuple

from .base import LINE_LIMIT, Json

CHECKED = 256
"""Bytes before an offset whose checksum tells whether a file is still the one that was read."""
STEP = 2_097_152
"""Bytes that are searched at a time."""
Blocks = Generator[Tuple[int, bytes, bool], None, None]
"""Blocks of lines: offset, bytes, and whether the block begins within a line that is longer than a block."""
NULS = bytes(64)
"""So many NULs are no text: a file was truncated under a writer that continues at its offset, or a disk lost power."""


def line_begin(data: bytes, low: int, at: int) -> int:
    """Return where the line that contains `at` begins, not before `low`; a line also begins behind NULs."""
    start = max(data.rfind(b"\n", low, at) + 1, low)
    hole = data.rfind(NULS, start, at)
    return start if hole < 0 else hole + len(NULS)


def startup_runs(
    data: bytes, base: int, markers: Sequence[bytes], end_marker: bytes
) -> Tuple[List[Tuple[int, bytes]], bool]:
    """Return the start-up lines of a block that begins at a line start.

    Neighbouring lines, and lines with little between them, become one run, whose offset is exact.

    Returns:
        Runs as (offset, bytes), and whether the end marker was found.
    """
    limit = len(data)
    ended = False
    if end_marker:
        found = data.find(end_marker)
        if found >= 0:
            newline = data.find(b"\n", found)
            limit, ended = (len(data) if newline < 0 else newline + 1), True
    # A fast pass for each marker, where a search line by line would be many slow steps.
    lines: Dict[int, int] = {}
    for marker in (*markers, end_marker) if end_marker else markers:
        found = data.find(marker, 0, limit)
        while found >= 0:
            start = line_begin(data, 0, found)
            newline = data.find(b"\n", found, limit)
            end = limit if newline < 0 else newline + 1
            lines[start] = end
            found = data.find(marker, end, limit)
    spans: List[List[int]] = []
    for start in sorted(lines):
        stop = min(lines[start], start + LINE_LIMIT)
        if spans and start - spans[-1][1] <= 256:
            spans[-1][1] = stop
        else:
            spans.append([start, stop])
    return [(base + start, data[start:stop]) for start, stop in spans], ended


def startup_section(
    fd: int, at: int, until: int, markers: Sequence[bytes], end_marker: bytes
) -> Iterator[Tuple[int, bytes]]:
    """Yield runs of start-up lines in a file between two offsets, a block at a time; the first must be a line start."""
    ended = False
    while at < until and not ended:
        block = os.pread(fd, min(1 << 20, until - at), at)
        if not block:
            return
        whole = block.rfind(b"\n") + 1
        if whole and at + len(block) < until:
            block = block[:whole]
        runs, ended = startup_runs(block, at, markers, end_marker)
        yield from runs
        at += len(block)


def start_of_last(fd: int, size: int, marker: bytes, budget_s: float = 0.1) -> int:
    """Return the offset of the last line with `marker`: the newest start in a reused log begins there.

    Searches backwards for at most `budget_s` seconds, then in the first blocks only; 0 when there is none.
    """
    if not marker:
        return 0
    until = time.monotonic() + budget_s
    step = 4_194_304
    end = size
    while end > 0:
        start = max(0, end - step)
        block = os.pread(fd, end - start + len(marker), start)
        found = block.rfind(marker)
        if found >= 0:
            begin = line_begin(block, 0, found)
            if begin:
                return start + begin
            low = max(0, start - LINE_LIMIT)
            before = os.pread(fd, start - low, low)
            return low + line_begin(before, 0, len(before))
        end = start
        if time.monotonic() > until and end > step:
            end = step
            until += 1e9
    return 0


def bytes_before(fd: int, end: int) -> bytes:
    """Return up to `CHECKED` bytes before an offset."""
    start = max(0, end - CHECKED)
    return os.pread(fd, end - start, start)


def is_intact(fd: int, resume: Json) -> bool:
    """Return whether a file still holds what the laptop has read: it was neither truncated nor replaced."""
    end, crc = resume.get("check") or (0, 0)
    return os.fstat(fd).st_size >= max(end, int(resume.get("offset") or 0)) and zlib.crc32(bytes_before(fd, end)) == crc


def blocks_before(fd: int, end: int) -> Blocks:
    """Yield the blocks of a file backwards from an offset."""
    rest = b""  # the beginning of a line whose end is in the block after this one
    while end > 0:
        start = max(0, end - STEP)
        block = os.pread(fd, end - start, start) + rest
        newline = block.find(b"\n", 0, STEP) if start else -1
        yield start + newline + 1, block[newline + 1 :], start > 0 and newline < 0
        rest = block[: newline + 1]
        end = start


def line_start(fd: int, offset: int, size: int) -> int:
    """Return the first line start at or after `offset`; within an extremely long line, a character start."""
    if offset <= 0:
        return 0
    block = os.pread(fd, min(1 << 20, size - offset + 1), offset - 1)
    newline = block.find(b"\n")
    hole = block.rfind(NULS, 0, newline if newline >= 0 else len(block))
    if hole >= 0:
        return offset - 1 + hole + len(NULS)
    if newline >= 0:
        return offset + newline
    skip = 1
    while skip < min(5, len(block)) and block[skip] & 0xC0 == 0x80:
        skip += 1
    return offset - 1 + skip
