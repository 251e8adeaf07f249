"""Reads log files: any number, any size, packed or not, wrapped or not.

What comes out are lines as the server printed them, those that may matter and some of the others, each with its
number; see `core.sift` for which. Secrets are masked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tuner.core import logtext, redact, wrapping
from tuner.core.sift import Kept, Limits, Routine, Sifted, judge, merged
from tuner.core.wrapping import Wrapping
from tuner.store import logbytes, sifting
from tuner.store.logbytes import Counted, Source

LIMITS = Limits()


class LogText:
    """What is kept of one or more logs: an iterable of `(at, text)`, as often as wanted.

    `at` is the number of a line over all files, from 1. Several texts have the same where one line holds several: what
    another process wrote behind a progress bar, say.
    """

    def __init__(
        self, files: Sequence[tuple[str, int, Wrapping]], sifted: Sifted, size_bytes: int, broken: Sequence[str] = ()
    ) -> None:
        """Keep it.

        Args:
            files: Name, lines and wrappers of each log.
            sifted: What is kept of all together.
            size_bytes: Of all, as they lie on the disk; of a stream, as it was read.
            broken: Names of those whose packing breaks off.
        """
        self.broken = tuple(broken)
        self.files = tuple(name for name, _, _ in files)
        self.lines_total = sifted.lines
        self.left_out = sifted.left_out
        """Lines that may matter, of which there were too many."""
        self.size_bytes = size_bytes
        self._wrappings = [each for _, _, each in files]
        self._kept: list[Kept] = sifted.notable
        self._ends: list[int] = []
        for _, lines, _ in files:
            self._ends.append((self._ends[-1] if self._ends else 0) + lines)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        file = -1
        end = joined_at = due = 0
        joined = ""
        unwrap = Wrapping().unwrap
        for number, raw in self._kept:
            at = number + 1
            if joined and (at != due or at > end):
                # Where the record goes on was not kept, or never came.
                yield from _texts(joined_at, joined)
                joined = ""
            while at > end:
                file += 1
                end = self._ends[file]
                unwrap = self._wrappings[file].unwrap
            text, whole = unwrap(raw.decode("utf-8", "replace"))
            if joined:
                text = joined + text
            else:
                joined_at = at
            joined = ""
            if whole:
                yield from _texts(joined_at, text)
            else:
                joined = text[: 16 * logtext.MAX_LINE]
                due = at + 1
        if joined:
            yield from _texts(joined_at, joined)

    def locate(self, at: int) -> tuple[str, int]:
        """The log that line `at` stands in, and its number there, from 1."""
        file = min(bisect_left(self._ends, at), len(self._ends) - 1)
        return self.files[file], at - (self._ends[file - 1] if file else 0)


def _texts(at: int, text: str) -> Iterator[tuple[int, str]]:
    for line in text.split("\n") if "\n" in text else (text,):
        for part in logtext.segments(line):
            yield at, redact.mask(logtext.cut(part))


class Reading:
    """Logs that are being read; see `begun`."""

    def __init__(
        self,
        sources: Sequence[Source],
        routines: tuple[bytes, ...],
        limits: Limits,
        stack: ExitStack,
        processes: int | None,
    ) -> None:
        self._sources = sources
        self._routines = routines
        self._limits = limits
        self._wrappings = [wrapping.find(source.head.decode("utf-8", "replace").split("\n")) for source in sources]
        self._work = sifting.pieces(
            [
                (source.fd, source.size, each.names)
                for source, each in zip(sources, self._wrappings, strict=True)
                if source.fd is not None
            ],
            limits,
        )
        self._sifting = sifting.Sifting(self._work, routines, stack, processes)

    def finish(self) -> LogText:
        """Wait for all of it."""
        found: dict[int, list[Sifted]] = {}
        for piece, sifted in zip(self._work, self._sifting.finish(), strict=True):
            found.setdefault(piece.fd, []).append(sifted)
        files: list[tuple[str, int, Wrapping]] = []
        every: list[Sifted] = []
        size = 0
        for source, each in zip(self._sources, self._wrappings, strict=True):
            if source.fd is not None:
                mine = found.get(source.fd, [])
                size += source.size
            else:
                stream = Counted(source.chunks)
                mine = sifting.sift_stream(stream, judge(Routine(self._routines), each), self._limits)
                size += stream.size
            files.append((source.name, sum(sifted.lines for sifted in mine), each))
            every.extend(mine)
        broken = [source.name for source in self._sources if source.broken]
        return LogText(files, merged(every, self._limits), size, broken)


@contextmanager
def begun(
    names: Sequence[str | Path],
    routines: Iterable[bytes],
    *,
    stdin: IO[bytes] | None = None,
    limits: Limits = LIMITS,
    processes: int | None = None,
) -> Iterator[Reading]:
    """Begin to read logs as parts of one, in the order given; big ones are read by other processes meanwhile.

    Args:
        names: Paths, `-` for the standard input. gzip, bzip2 and xz are unpacked, and zstd where Python can.
        routines: What engines call routine: `Engine.routine` of all that are possible.
        stdin: What `-` stands for; the process's own where none is given.
        limits: What is kept at most.
        processes: How many work at once, this one counted; None: as many as the work is worth.

    Raises:
        UsageProblem: One of them is absent, cannot be read, or is no log.
    """
    with ExitStack() as stack:
        sources = [logbytes.opened(str(name), stack, stdin) for name in names]
        yield Reading(sources, tuple(routines), limits, stack, processes)


def read(
    names: Sequence[str | Path],
    routines: Iterable[bytes],
    *,
    stdin: IO[bytes] | None = None,
    limits: Limits = LIMITS,
    processes: int | None = None,
) -> LogText:
    """Read logs; see `begun` for the arguments and errors."""
    with begun(names, routines, stdin=stdin, limits=limits, processes=processes) as reading:
        return reading.finish()
