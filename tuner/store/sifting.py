"""Sift logs piece by piece, large ones in several processes.

A log is always cut into the same pieces, so the result does not depend on the number of processes. The other processes
are bare interpreters that import only the few modules that sifting needs, and no third-party package.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tuner.core.sift import BUNCH, Limits, Routine, Sieve, Sifted, judge
from tuner.core.wrapping import Wrapping
from tuner.store import logbytes

PIECE = 16 * 1024 * 1024
"""Least size of a piece, bytes."""
MOST_PIECES = 64
"""Approximate upper bound of the number of pieces of a log."""
WORTH = 96 * 1024 * 1024
"""Total size, bytes, from which other processes are worth starting."""
MOST_PROCESSES = 4
_TYPICAL_LINE = 140
"""Assumed length of a line, bytes."""
_WHOLE = 10_000
"""Approximate number of lines up to which all lines of a log are kept."""
_EVEN = 2000
"""Approximate number of routine lines sampled evenly from a longer log: more add nothing and cost time to read."""
_TICKET = struct.Struct("=H")
"""Number of a piece, as it is passed through the pipe."""
_MOST_TICKETS = 16_384
"""Number of tickets that fit into any pipe."""
_CHILD = "import sys; sys.path.append(sys.argv[1]); from tuner.store.sifting import child; child(int(sys.argv[2]))"


class Piece(NamedTuple):
    """A part of a regular file: the lines that begin in [start, end)."""

    fd: int
    start: int
    """Byte offset."""
    end: int
    """Byte offset."""
    wrapping: tuple[str, ...]
    """Names of the wrappers of its lines."""
    limits: Limits
    """Limits on what is kept of the piece."""


def pieces(sizes: Sequence[tuple[int, int, tuple[str, ...]]], limits: Limits) -> list[Piece]:
    """Cut regular files into pieces.

    Args:
        sizes: File descriptor, size in bytes and names of the wrappers of each file.
        limits: Limits on what is kept of all files together.
    """
    total = sum(size for _, size, _ in sizes)
    length = max(PIECE, total // MOST_PIECES)
    cuts = [
        (fd, start, min(start + length, size), names)
        for fd, size, names in sizes
        for start in range(0, max(size, 1), length)
    ]
    lines = total // _TYPICAL_LINE
    every = BUNCH if lines <= _WHOLE else BUNCH * lines // _EVEN
    # The first and the last piece get a larger share of the limits: both ends of a log tell the most.
    middle, ends = (part(limits, count, every) for count in (max(len(cuts), 1), min(max(len(cuts), 1), 4)))
    return [Piece(*cut, ends if index in (0, len(cuts) - 1) else middle) for index, cut in enumerate(cuts)]


def part(limits: Limits, count: int, every: int) -> Limits:
    """Return the limits of one of `count` pieces, of whose routine lines one bunch in `every` lines is kept."""
    return Limits(limits.notable // count, limits.notable_bytes // count, limits.routine // count + 400, every)


def sift_stream(chunks: Iterable[bytes], test: Callable[[bytes], bool], limits: Limits) -> list[Sifted]:
    """Sift a stream from beginning to end, in pieces of growing size, since its length is unknown."""
    found: list[Sifted] = []
    length = PIECE
    sieve, size = Sieve(test, limits), 0
    for block in logbytes.blocks(chunks):
        if size >= length:
            found.append(sieve.done())
            sieve, size = Sieve(test, part(limits, 8, max(length // 20_000, 1000))), 0
            length *= 2
        sieve.add(block)
        size += len(block)
    return [*found, sieve.done()]


class Sifting:
    """Sifts pieces of regular files: other processes begin at once, this one joins in `finish`."""

    def __init__(
        self,
        work: Sequence[Piece],
        routines: tuple[bytes, ...],
        stack: contextlib.ExitStack,
        processes: int | None = None,
    ) -> None:
        """Start the other processes.

        Args:
            work: Pieces in order.
            routines: Regular expressions of routine lines (`Engine.routine`).
            stack: Exit stack that ends the processes; it must outlive this object.
            processes: Number of processes including this one; None: by the amount of work.
        """
        self._work = work
        self._routines = routines
        if processes is None:
            total = sum(piece.end - piece.start for piece in work)
            processes = min(_processors(), MOST_PROCESSES, len(work)) if total >= WORTH else 1
        if len(work) > _MOST_TICKETS:
            processes = 1
        # A process that is free reads a ticket; a pipe delivers each ticket to one reader only.
        self._tickets, giver = os.pipe()
        stack.callback(os.close, self._tickets)
        if processes > 1:
            os.write(giver, b"".join(_TICKET.pack(number) for number in range(len(work))))
        os.close(giver)
        self._others = [stack.enter_context(_started(self._tickets, work, routines)) for _ in range(processes - 1)]

    def finish(self) -> list[Sifted]:
        """Sift the pieces that no process has taken, wait for the others and return all results in order."""
        found = dict(_taken(self._tickets, self._work, self._routines))
        for answer in self._others:
            found.update(answer())
        # What is missing was taken by a process that failed; without other processes it is everything.
        return [found[n] if n in found else _sift_piece(p, self._routines) for n, p in enumerate(self._work)]


def child(tickets: int) -> None:
    """Main function of another process: read the work from standard input, write the results to standard output.

    Args:
        tickets: File descriptor of the pipe with the tickets.
    """
    told, routines = marshal.load(sys.stdin.buffer)  # noqa: S302 - from the process that started this one
    work = [Piece(fd, start, end, names, Limits(*limits)) for fd, start, end, names, limits in told]
    found = _taken(tickets, work, routines)
    marshal.dump([(number, tuple(sifted)) for number, sifted in found], sys.stdout.buffer)


@contextlib.contextmanager
def _started(
    tickets: int, work: Sequence[Piece], routines: tuple[bytes, ...]
) -> Iterator[Callable[[], Iterable[tuple[int, Sifted]]]]:
    """Run another process; yield a function that waits for its results (empty if it failed)."""
    import subprocess

    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD, str(Path(__file__).parents[2]), str(tickets)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(tickets, *{piece.fd for piece in work}),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as told:
            told.write(marshal.dumps(([(*piece[:4], tuple(piece.limits)) for piece in work], routines)))
        stdout = process.stdout

        def answer() -> Iterable[tuple[int, Sifted]]:
            data = stdout.read()
            if process.wait():
                return []
            return [(number, Sifted(*result)) for number, result in marshal.loads(data)]  # noqa: S302 - from our child

        try:
            yield answer
        finally:
            if process.poll() is None:
                process.kill()


def _taken(tickets: int, work: Sequence[Piece], routines: tuple[bytes, ...]) -> list[tuple[int, Sifted]]:
    """Take tickets and sift their pieces until none is left; return the results by number of the piece."""
    found = []
    while ticket := os.read(tickets, _TICKET.size):
        (number,) = _TICKET.unpack(ticket)
        found.append((number, _sift_piece(work[number], routines)))
    return found


def _sift_piece(piece: Piece, routines: tuple[bytes, ...]) -> Sifted:
    test = judge(Routine(routines), Wrapping(piece.wrapping))
    sieve = Sieve(test, piece.limits)
    for block in logbytes.lines_of(piece.fd, piece.start, piece.end):
        sieve.add(block)
    return sieve.done()


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
