"""Whether a line really shows a number that is quoted from it, and which line does where it is another one.

A finding knows the line that an event begins at. A number of it may stand further down in the same record, or be the
sum of two that are printed; then the line is another, or there is none.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from tuner.domain.findings import Evidence
from tuner.domain.logs import LogLine
from tuner.domain.starts import Start

_NUMBER = re.compile(r"\d[\d,_]*(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+")
_FEW = 5
"""Words by which a long text is found again."""
_WITHIN = 12
"""Lines of a record that is no exception."""


def shows(text: str, value: float) -> bool:
    """Whether a text has a number, in whatever digits and with or without separators."""
    return any(_same(found, abs(value)) for found in _NUMBER.findall(text))


def _tells(text: str, value: float | str) -> bool:
    if not isinstance(value, str):
        return shows(text, value)
    squeezed, words = " ".join(text.split()), value.rstrip(" :").split()
    # The name of the exception, which a value may begin with, can have its module before it.
    return " ".join(words) in squeezed or (len(words) > _FEW and " ".join(words[1:_FEW]) in squeezed)


def _same(found: str, value: float) -> bool:
    parts = (found.replace("_", "").replace(",", ""), *found.split(","))
    return any(part and math.isclose(float(part), value, rel_tol=1e-9) for part in dict.fromkeys(parts) if _is(part))


def _is(part: str) -> bool:
    try:
        float(part)
    except ValueError:
        return False
    return "_" not in part


class Quotes:
    """The lines of a start, to find those that show what is quoted."""

    def __init__(self, start: Start) -> None:
        """Of the lines that are kept of it."""
        self._lines = start.lines
        self._at = [line.offset for line in start.lines]
        self._settings_at = start.settings_at
        self._failures = [(failure.at, failure.end) for failure in start.failures]

    def place(self, evidence: Evidence) -> int | None:
        """The line that shows a value; None where no line shows a number, so that it is derived.

        What stands in a line that is not kept is believed, and so are words: they may be of several lines.
        """
        at, value = evidence.at, evidence.value
        own = () if at is None or isinstance(value, bool) else self._of(at, at)
        if at is None or not own or value is None or (isinstance(value, float) and not math.isfinite(value)):
            return at
        if any(_tells(line.text, value) for line in own):
            return at
        found = next((line.offset for line in self._near(at, evidence.what) if _tells(line.text, value)), None)
        return at if found is None and isinstance(value, str) else found

    def _near(self, at: int, what: str) -> Iterator[LogLine]:
        """Lines where it may stand instead: of the same record, then those that name it."""
        first, last = next(((first, last) for first, last in self._failures if first <= at <= last), (at, at + _WITHIN))
        yield from self._of(at, max(at, last))
        yield from self._of(first, at)
        if self._settings_at is not None:
            yield from self._of(self._settings_at, self._settings_at)
        if "_" in what:
            yield from (line for line in self._lines if what in line.text)

    def _of(self, first: int, last: int) -> tuple[LogLine, ...]:
        return self._lines[bisect_left(self._at, first) : bisect_right(self._at, last)]
