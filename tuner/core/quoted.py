"""Whether a line really shows what is quoted from it, and which line does where it is another one.

A finding knows the line that an event begins at. What it quotes may stand further down in the same record, in the line
of arguments, or be the sum of two numbers that are printed; then the line is another, or there is none.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec

from tuner.core.engine import Engine
from tuner.domain.findings import Evidence, Finding
from tuner.domain.logs import LogLine
from tuner.domain.starts import Start

_NUMBER = re.compile(r"(?<![\w.])-?(?:(?<!,)\d{1,3}(?:,\d{3})+(?!\d)|\d[\d_]*)(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\.?\d)")
"""A number of its own: no part of a word, a version or an address."""
_NAME = re.compile(r"[A-Za-z]\w*_\w+")
"""What evidence calls an argument or a variable; all else is called in words."""
_NAMED = r"(?<![\w-])(?:--)?{}['\"]?(?: set by environment to|\s*[=:])?\s*['\"(\[]*"
"""`name=value`, `'name': value`, `--name value`, and NCCL's way."""


def shows(message: str, value: float) -> bool:
    """Whether a message has a number, in whatever digits and with or without separators; codes also with a minus."""
    return any(_same(float(found.replace(",", "").replace("_", "")), value) for found in _NUMBER.findall(message))


def names(text: str, name: str, value: float | str) -> bool:
    """Whether a text gives an argument or a variable this value."""
    for found in re.finditer(_NAMED.format(re.escape(name).replace("_", "[_-]")), text):
        number = _NUMBER.match(text, found.end())
        if isinstance(value, str):
            if re.match(re.escape(value) + r"(?!\w)", text[found.end() : found.end() + len(value) + 1]):
                return True
        elif number is not None and shows(number[0], value):
            return True
    return False


def _same(number: float, value: float) -> bool:
    return any(math.isclose(each, value, rel_tol=1e-9) for each in (number, -number if value > 0 else number))


def _words(text: str) -> str:
    """Words alone: how they are spaced, and the colon behind the name of an exception, are no matter."""
    return " ".join(re.findall(r"[^\s:]+", text))


class Quotes:
    """The lines of a start, to find those that show what is quoted."""

    def __init__(self, start: Start, engine: Engine | None = None) -> None:
        """Of the lines that are kept of it.

        Args:
            start: The start.
            engine: Knows the prefixes of lines, whose numbers are times and ranks; None: there are none.
        """
        self._lines = start.lines
        self._at = [line.offset for line in start.lines]
        self._settings_at = start.settings_at
        self._failures = [(failure.at, failure.end) for failure in start.failures]
        self._engine = engine

    def placed(self, finding: Finding) -> Finding:
        """A finding whose numbers lead to the lines that show them."""
        evidence = tuple(
            each if (at := self.place(each)) == each.at else msgspec.structs.replace(each, at=at)
            for each in finding.evidence
        )
        return finding if evidence == finding.evidence else msgspec.structs.replace(finding, evidence=evidence)

    def place(self, evidence: Evidence) -> int | None:
        """The line that shows a value; None where none does, so that it is derived.

        What stands in a line that is not kept is believed.
        """
        at, value = evidence.at, evidence.value
        if at is None or value is None or isinstance(value, bool) or not (own := self._of(at, at)):
            return at
        if isinstance(value, float) and not math.isfinite(value):
            return at
        record = [*own, *self._record(at)]
        places: list[int] = []
        if _NAME.fullmatch(evidence.what):
            lines = [*record, *self._naming(evidence.what)]
            places += (line.offset for line in lines if names(line.text, evidence.what, value))
        if isinstance(value, str):
            places += (line.offset for line in record if _words(value) in _words(line.text))
            places += [at] if _words(value) in _words("\n".join(self._message(line.text) for line in record)) else []
        else:
            places += (line.offset for line in record if shows(self._message(line.text), value))
        return next(iter(places), None)

    def _message(self, text: str) -> str:
        return text if self._engine is None else self._engine.message(text, self._engine.prefix(text))

    def _record(self, at: int) -> Iterator[LogLine]:
        """The lines of the same record."""
        failure = next(((first, last) for first, last in self._failures if first <= at <= last), None)
        if failure is not None:
            yield from self._of(at, failure[1])
            yield from self._of(failure[0], at)
            return
        for line in self._lines[bisect_right(self._at, at) :]:
            if not line.continued:
                return
            yield line

    def _naming(self, what: str) -> Iterator[LogLine]:
        """Lines that may give an argument its value: those of the arguments first."""
        if self._settings_at is not None:
            yield from self._of(self._settings_at, self._settings_at)
        yield from (line for line in self._lines if what in line.text or what.replace("_", "-") in line.text)

    def _of(self, first: int, last: int) -> tuple[LogLine, ...]:
        return self._lines[bisect_left(self._at, first) : bisect_right(self._at, last)]
