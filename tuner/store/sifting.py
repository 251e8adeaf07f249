"""Sifts logs piece by piece, big ones in several processes.

A log is always cut into the same pieces, whoever sifts them, so the result does not depend on how many do. The others
are bare interpreters: they import the few modules that sifting needs, and no package that is not Python's own.
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
"""Bytes of a piece, at least."""
MOST_PIECES = 64
WORTH = 96 * 1024 * 1024
"""Bytes from which on another process is worth its start."""
MOST_PROCESSES = 4
_TYPICAL_LINE = 140
_WHOLE = 10_000
"""Lines up to which a log is kept whole, about."""
_EVEN = 2000
"""Routine lines kept evenly from a longer one, about: more tell nothing new, and reading them costs time."""
_TICKET = struct.Struct("=H")
_MOST_TICKETS = 16_384
"""As many fit into any pipe."""
_CHILD = "import sys; sys.path.append(sys.argv[1]); from tuner.store.sifting import child; child(int(sys.argv[2]))"


class Piece(NamedTuple):
    """A part of a regular file."""

    fd: int
    start: int
    end: int
    wrapping: tuple[str, ...]
    limits: Limits


def pieces(sizes: Sequence[tuple[int, int, tuple[str, ...]]], limits: Limits) -> list[Piece]:
    """Cut regular files.

    Args:
        sizes: File descriptor, size in bytes and names of the wrappers of each.
        limits: What is kept of all.
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
    # Both ends of a log tell the most.
    middle, ends = (part(limits, count, every) for count in (max(len(cuts), 1), min(max(len(cuts), 1), 4)))
    return [Piece(*cut, ends if index in (0, len(cuts) - 1) else middle) for index, cut in enumerate(cuts)]


def part(limits: Limits, count: int, every: int) -> Limits:
    """What is kept of one of several pieces."""
    return Limits(limits.notable // count, limits.notable_bytes // count, limits.routine // count + 400, every)


def sift_stream(chunks: Iterable[bytes], test: Callable[[bytes], bool], limits: Limits) -> list[Sifted]:
    """Sift what comes once, from its beginning to its end, in pieces that grow: how long it is nobody knows."""
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
    """Parts of regular files at work: other processes from the beginning on, this one when it waits for them."""

    def __init__(
        self,
        work: Sequence[Piece],
        routines: tuple[bytes, ...],
        stack: contextlib.ExitStack,
        processes: int | None = None,
    ) -> None:
        """Start the others.

        Args:
            work: In order.
            routines: As `Engine.routine` gives them.
            stack: Ends them, and must outlive this.
            processes: How many work, this one counted; None: as many as the work is worth.
        """
        self._work = work
        self._routines = routines
        if processes is None:
            total = sum(piece.end - piece.start for piece in work)
            processes = min(_processors(), MOST_PROCESSES, len(work)) if total >= WORTH else 1
        if len(work) > _MOST_TICKETS:
            processes = 1
        # Who is free takes a ticket: a pipe gives each to one reader.
        self._tickets, giver = os.pipe()
        stack.callback(os.close, self._tickets)
        if processes > 1:
            os.write(giver, b"".join(_TICKET.pack(number) for number in range(len(work))))
        os.close(giver)
        self._others = [stack.enter_context(_started(self._tickets, work, routines)) for _ in range(processes - 1)]

    def finish(self) -> list[Sifted]:
        """Do what nobody has taken yet, and wait for the others."""
        found = dict(_taken(self._tickets, self._work, self._routines))
        for answer in self._others:
            found.update(answer())
        # All of it when there are no others; else what a process that failed had taken.
        return [found[n] if n in found else _sift_piece(p, self._routines) for n, p in enumerate(self._work)]


def child(tickets: int) -> None:
    """What another process does: it is told the work on its standard input and answers on its standard output."""
    told, routines = marshal.load(sys.stdin.buffer)  # noqa: S302 - from the process that started this one
    work = [Piece(fd, start, end, names, Limits(*limits)) for fd, start, end, names, limits in told]
    found = _taken(tickets, work, routines)
    marshal.dump([(number, tuple(sifted)) for number, sifted in found], sys.stdout.buffer)


@contextlib.contextmanager
def _started(
    tickets: int, work: Sequence[Piece], routines: tuple[bytes, ...]
) -> Iterator[Callable[[], Iterable[tuple[int, Sifted]]]]:
    """Another process at work, as what waits for its answer."""
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
    """Sift what nobody else has taken."""
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
