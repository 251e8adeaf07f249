"""Read log files: any number, any size, compressed or not, wrapped or not.

The result are lines as the server printed them, with their line numbers: all that may matter and a sample of the
others, as `core.sift` decides. Secrets are masked.
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
"""Default limits on what is kept of a log."""


class LogText:
    """The kept lines of one or more logs: an iterable of `(at, text)` that can be iterated repeatedly.

    `at` is the line number across all files, from 1. Texts share a number if one line holds several of them, as when
    another process writes behind a progress bar.
    """

    def __init__(
        self, files: Sequence[tuple[str, int, Wrapping]], sifted: Sifted, size_bytes: int, broken: Sequence[str] = ()
    ) -> None:
        """Store the result of reading.

        Args:
            files: Name, number of lines and wrappers of each log.
            sifted: Kept lines of all logs together.
            size_bytes: Size of all logs: of regular files as on disk, of other sources after decompression.
            broken: Names of logs whose compressed data ends early.
        """
        self.broken = tuple(broken)
        self.files = tuple(name for name, _, _ in files)
        self.lines_total = sifted.lines
        self.left_out = sifted.left_out
        """Number of lines that may matter but exceeded the limits."""
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
                # The continuation of the record was not kept, or never came.
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
        """Return the name of the log that line `at` is in, and its line number there, from 1."""
        file = min(bisect_left(self._ends, at), len(self._ends) - 1)
        return self.files[file], at - (self._ends[file - 1] if file else 0)


def _texts(at: int, text: str) -> Iterator[tuple[int, str]]:
    for line in text.split("\n") if "\n" in text else (text,):
        for part in logtext.segments(line):
            yield at, redact.mask(logtext.cut(part))


class Reading:
    """Logs that are being read; created by `begun`."""

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
        """Read the rest, wait for the other processes and return the kept lines."""
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
    """Begin to read logs as parts of one, in the order given; other processes read large ones meanwhile.

    Args:
        names: Paths, or `-` for the standard input. gzip, bzip2 and xz are decompressed, and zstd if Python can.
        routines: Regular expressions of routine lines: `Engine.routine` of all engines in question.
        stdin: Stream that `-` stands for; None: the process's standard input.
        limits: Limits on what is kept.
        processes: Number of processes including this one; None: by the amount of work.

    Raises:
        UsageProblem: A log is missing, cannot be read, or is not a log.
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
