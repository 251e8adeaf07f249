"""Separates, fast, the lines that may matter from the routine lines of a busy log.

Lines are compared by shape: what is left of their bytes without hexadecimal digits and common punctuation. A batch line
has the shape of thousands of others; a line with other text torn into it, or with an error behind it, has its own. So
each shape is tested once, by an expression that can afford to be strict, and after that a block of lines is dismissed
by looking its shapes up in a set. Wrappers, colours and tags make other shapes, but need no other rules.

Some routine lines are kept everywhere, and all of them around a line that may matter. Lines that may matter are all
kept, unless there are more than anybody could read: then a shape that comes hundreds of times counts as routine after
that, and the middle is thinned, errors and their surroundings last.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from tuner.core import logtext
from tuner.core.wrapping import Wrapping

_LEFT_OUT = b"0123456789abcdef .,:;#/()-"
"""Bytes that a shape leaves out: those of numbers and identifiers, and what stands between words."""
_LONG = 2048
"""Bytes: longer lines are never routine, and their shapes are not remembered."""
_MOST_SHAPES = 4096
"""Most routine shapes that are remembered."""
_PATIENCE, _SPOT = 2000, 16
"""After `_PATIENCE` lines of new shapes without a routine one, only every `_SPOT`-th is tested and the rest are
kept."""
_MOST_COUNTED = 20_000
"""Most other shapes of which the lines are counted."""

CLOSE = 40
"""Routine lines before and after a line that may matter that are always kept."""
EDGE = 200
"""Routine lines that are kept at the beginning and at the end of a run between two lines that may matter."""
FLOOD = 500
"""Lines of one shape in one piece of a log after which the shape counts as routine."""
BUNCH = 8
"""Adjacent lines in each evenly kept sample: the ranks of one host print together."""

_ALARMS = (
    "rror", "ERR", "xception", "Traceback", "atal", "FATAL", "illed", "bort", "SIG", "sigquit", "WARN", "memory",
    "died", "dead", "crash", "ailed", "ailure", "imeout", "timed out", "Xid",
)  # fmt: skip
"""Words that make a line alarming: nobody would leave it out. They are looked for one by one, which is ten times as
fast as all in one expression."""
_ALARM_BYTES = tuple(word.encode() for word in _ALARMS)
_BEFORE_ALARM, _AFTER_ALARM = 10, 80
"""Lines before and after an alarming one that are thinned last."""

Kept = tuple[int, bytes]
"""Number of a line, from 0, and its bytes without line end."""


class Routine:
    """Recognises routine lines, which a busy log is full of."""

    def __init__(self, sources: Iterable[bytes]) -> None:
        """Compile what engines call routine.

        Args:
            sources: Regular expressions of whole lines, as `Engine.routine` gives them. What they match must not
                depend on digits.

        Raises:
            re.error: An expression is wrong.
        """
        self._match = re.compile("|".join(f"(?:{source.decode()})" for source in sources) or "(?!)", re.ASCII).fullmatch

    def __call__(self, text: str) -> bool:
        """Return whether one line, unwrapped and cleaned, is routine."""
        return self._match(text) is not None


@functools.lru_cache(maxsize=8)
def _routine(sources: tuple[bytes, ...]) -> Routine:
    return Routine(sources)


def notable(text: str, *sources: bytes) -> bool:
    """Return whether one line, unwrapped and cleaned, may matter: anything but what an engine calls routine."""
    return not _routine(sources)(text)


def alarming(text: str) -> bool:
    """Return whether a line has one of the words of failures in it."""
    for word in _ALARMS:  # noqa: SIM110 - a generator costs twice as much, and this is per line
        if word in text:
            return True
    return False


def judge(routine: Routine, wrapping: Wrapping) -> Callable[[bytes], bool]:
    """Return a test of raw lines: whether all that one holds is routine."""

    def is_routine(raw: bytes) -> bool:
        text, whole = wrapping.unwrap(raw.decode("utf-8", "replace"))
        if not whole:
            return False
        for part in logtext.segments(text):  # noqa: SIM110 - as above
            if not routine(logtext.clean(part)):
                return False
        return True

    return is_routine


def shape(raw: bytes) -> bytes:
    """Return the shape of a line, or of a block of lines, by which lines are compared."""
    return raw.translate(None, _LEFT_OUT)


class Limits(NamedTuple):
    """How much of one piece of a log is kept."""

    notable: int = 60_000
    notable_bytes: int = 24_000_000
    routine: int = 20_000
    """Most routine lines of each of two kinds: near lines that may matter, and spread evenly."""
    every: int = BUNCH
    """Routine lines of which one bunch is kept."""


class Sifted(NamedTuple):
    """What is kept of one piece of a log; each list in order."""

    lines: int
    """Number of lines in the piece."""
    notable: list[Kept]
    close: list[Kept]
    """Routine lines around those that may matter."""
    even: list[Kept]
    """Routine lines spread evenly over the piece."""
    edge: list[Kept]
    """Routine lines at both ends of the piece: a line that may matter can be near in the next piece."""
    left_out: int
    """Number of lines that may matter and were left out because there were too many."""


class Sieve:
    """Sorts one piece of a log, block by block."""

    def __init__(self, is_routine: Callable[[bytes], bool], limits: Limits) -> None:
        """Begin with a test for routine raw lines, and with how much to keep at most."""
        self._is_routine = is_routine
        self._limits = limits
        self._dull: set[bytes] = set()
        """Shapes that are routine, or came too often."""
        self._counts: dict[int, int] = {}
        """Number of lines of each shape that is not routine, by the hash of the shape, which may be long."""
        self._lines = 0
        self._notable: list[Kept] = []
        self._notable_bytes = 0
        self._close: list[Kept] = []
        self._even: list[Kept] = []
        self._edge: list[Kept] = []
        self._left_out = 0
        self._run = 0
        """Number of routine lines since the last line that may matter."""
        self._newest: list[Kept] = []
        """The last of these, up to `EDGE`, unless they are at the end of `_block`."""
        self._block = b""
        self._unsampled = 0
        self._strange = 0
        """Number of lines of unknown shape since the last routine one."""
        self._all = limits.every <= BUNCH

    def add(self, block: bytes) -> None:
        """Sort a block of whole lines; the beginning of another one at its end is ignored."""
        shapes = shape(block).split(b"\n")
        shapes.pop()
        count = len(shapes)
        if not self._dull.issuperset(shapes):
            self._sort(block.split(b"\n"), shapes)
        elif self._run < EDGE or count < EDGE or self._all:
            self._pass(block.split(b"\n"), 0, count)
        else:
            self._count(count)
            self._block = block
            self._sample()

    def done(self) -> Sifted:
        """Return what was kept; the sieve cannot be used after it."""
        if self._run > EDGE:
            self._edge.extend(self._last(self._run - EDGE))
        self._thin()
        return Sifted(self._lines, self._notable, self._close, self._even, self._edge, self._left_out)

    def _sort(self, lines: list[bytes], shapes: list[bytes]) -> None:
        dull = self._dull
        done = 0
        for index in [index for index, form in enumerate(shapes) if form not in dull]:
            form, line = shapes[index], lines[index]
            if form in dull:
                continue
            looked_at = len(line) <= _LONG and (self._strange <= _PATIENCE or self._strange % _SPOT == 0)
            if looked_at and self._is_routine(line):
                self._strange = 0
                if len(dull) < _MOST_SHAPES:
                    dull.add(form)
                continue
            self._strange += 1
            if done < index:
                self._pass(lines, done, index)
            done = index + 1
            self._keep(line)
            self._tally(form)
        if done < len(shapes):
            self._pass(lines, done, len(shapes))

    def _keep(self, line: bytes) -> None:
        if self._run > EDGE:
            self._close.extend(self._last(self._run - EDGE))
        if len(self._close) > 2 * self._limits.routine:
            del self._close[1::2]
        self._run = 0
        self._newest, self._block = [], b""
        self._notable.append((self._lines, line))
        self._notable_bytes += len(line)
        self._lines += 1
        if len(self._notable) > 2 * self._limits.notable or self._notable_bytes > 2 * self._limits.notable_bytes:
            self._thin()

    def _tally(self, form: bytes) -> None:
        key = hash(form)
        if len(form) <= _LONG and (key in self._counts or len(self._counts) < _MOST_COUNTED):
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if count == FLOOD and len(self._dull) < _MOST_SHAPES:
                self._dull.add(form)

    def _pass(self, lines: list[bytes], start: int, end: int) -> None:
        """Count routine lines of a block, and keep those at the edges and a sample."""
        wanted = EDGE - self._run
        if wanted > 0:
            into = self._close if self._notable or self._left_out else self._edge
            into.extend(enumerate(lines[start : min(start + wanted, end)], self._lines))
        if self._all:
            self._even.extend(enumerate(lines[start:end], self._lines))
        before = self._last(EDGE) if end - start < EDGE else []
        self._count(end - start)
        last = lines[max(end - EDGE, start) : end]
        self._newest = [*before, *enumerate(last, self._lines - len(last))][-EDGE:]
        self._block = b""
        self._sample()

    def _count(self, count: int) -> None:
        self._lines += count
        self._run += count
        self._unsampled += count

    def _last(self, wanted: int) -> list[Kept]:
        """Return up to `wanted` newest routine lines since the last that may matter; `EDGE` at most."""
        if self._block:
            last = self._block.rsplit(b"\n", EDGE + 1)[-EDGE - 1 : -1]
            self._newest, self._block = list(enumerate(last, self._lines - len(last))), b""
        return self._newest[-wanted:]

    def _sample(self) -> None:
        if not self._all and self._unsampled >= self._limits.every:
            self._even.extend(self._last(BUNCH * (self._unsampled // self._limits.every)))
            self._unsampled %= self._limits.every
        if len(self._even) > 2 * self._limits.routine:
            del self._even[1::2]

    def _thin(self) -> None:
        before = len(self._notable)
        self._notable = thinned(self._notable, self._limits.notable, self._limits.notable_bytes)
        self._notable_bytes = sum(len(line) for _, line in self._notable)
        self._left_out += before - len(self._notable)


def thinned(kept: list[Kept], lines: int, size: int) -> list[Kept]:
    """Return at most so many lines and bytes: both ends, then lines around alarming ones, then the rest evenly."""
    if len(kept) <= lines and sum(len(line) for _, line in kept) <= size:
        return kept
    alarms: set[int] = set()
    for index in _alarming([line for _, line in kept]):
        alarms.update(range(max(index - _BEFORE_ALARM, 0), min(index + _AFTER_ALARM, len(kept))))
    chosen: set[int] = set()
    ends = _from_both_ends(range(len(kept)))
    for order, share in ((ends, 2), (_from_both_ends(sorted(alarms)), 4), (_evenly(len(kept)), 4)):
        lines_left, size_left = lines // share, size // share
        for index in order:
            if index in chosen:
                continue
            size_left -= len(kept[index][1])
            if not lines_left or size_left < 0:
                break
            lines_left -= 1
            chosen.add(index)
    return [kept[index] for index in sorted(chosen)]


def _alarming(lines: list[bytes]) -> set[int]:
    """Return the indexes of lines with words of failures in them."""
    text = b"\n".join(lines)
    begins = list(accumulate((len(line) + 1 for line in lines), initial=0))
    found: set[int] = set()
    for word in _ALARM_BYTES:
        at = text.find(word)
        while at >= 0:
            index = bisect_right(begins, at) - 1
            found.add(index)
            at = text.find(word, begins[index + 1])
    return found


def _from_both_ends(numbers: Sequence[int]) -> Iterator[int]:
    for step in range((len(numbers) + 1) // 2):
        yield numbers[step]
        yield numbers[-1 - step]


def _evenly(count: int) -> Iterator[int]:
    """Yield all numbers below a count, the coarsest grid first."""
    step = 1 << count.bit_length()
    yield 0
    while step > 1:
        yield from range(step // 2, count, step)
        step //= 2


def merged(pieces: Sequence[Sifted], limits: Limits) -> Sifted:
    """Merge the pieces of a sifted log: all kept lines are then in `notable`, routine ones among them.

    Args:
        pieces: The pieces in order.
        limits: Limits of the whole log.
    """
    notable: list[Kept] = []
    routine: dict[int, bytes] = {}
    even: set[int] = set()
    lines = left_out = 0
    for piece in pieces:
        notable.extend((lines + number, line) for number, line in piece.notable)
        for part in (piece.close, piece.even, piece.edge):
            routine.update((lines + number, line) for number, line in part)
        even.update(lines + number for number, _ in piece.even)
        lines += piece.lines
        left_out += piece.left_out
    kept = thinned(notable, limits.notable, limits.notable_bytes)
    left_out += len(notable) - len(kept)
    marks = [-1, *(number for number, _ in kept), lines]
    """Numbers of the lines that may matter, and both ends of the log, which matter as much."""
    close: list[int] = []
    rest: list[int] = []
    for number in sorted(routine):
        after = bisect_left(marks, number)
        distance = min(number - marks[after - 1], marks[after] - number)
        if distance <= CLOSE:
            close.append(number)
        elif distance <= EDGE or number in even:
            rest.append(number)
    rest = _fewer(rest, max(limits.routine - len(close), limits.routine // 2))
    close = _fewer(close, limits.routine - len(rest))
    kept = sorted([*kept, *((number, routine[number]) for number in (*close, *rest))])
    return Sifted(lines, kept, [], [], [], left_out)


def _fewer(numbers: list[int], most: int) -> list[int]:
    """Return at most `most` of the numbers, evenly chosen."""
    return numbers if len(numbers) <= most else [numbers[index * len(numbers) // most] for index in range(most)]
