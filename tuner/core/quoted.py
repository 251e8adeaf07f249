"""Finds the line of a log that really shows what a finding quotes.

A finding knows the line at which an event begins. What it quotes may stand further down in the same record, in the line
of arguments, or be the sum of two printed numbers; then another line shows it, or none does.
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
"""A number that is no part of a word, a version or an address."""
_NAME = re.compile(r"[A-Za-z]\w*_\w+")
"""Form of `Evidence.what` where it names an argument or a variable; all other evidence is named in words."""
_NAMED = r"(?<![\w-])(?:--)?{}['\"]?(?: set by environment to|\s*[=:])?\s*['\"(\[]*"
"""Ways to write a name before its value: `name=value`, `'name': value`, `--name value`, and NCCL's."""


def shows(message: str, value: float) -> bool:
    """Return whether the text has this number; separators are ignored, and a positive value also matches its negative.

    Exit codes are quoted without their sign.
    """
    return any(_same(float(found.replace(",", "").replace("_", "")), value) for found in _NUMBER.findall(message))


def names(text: str, name: str, value: float | str) -> bool:
    """Return whether a text gives an argument or a variable this value."""
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
    """Return the words of a text, so that spaces and the colon behind an exception's name do not matter."""
    return " ".join(re.findall(r"[^\s:]+", text))


class Quotes:
    """Finds, among the lines of a start, those that show what is quoted."""

    def __init__(self, start: Start, engine: Engine | None = None) -> None:
        """Index the lines that are kept of a start.

        Args:
            start: The start.
            engine: Its engine, to ignore the numbers in prefixes (times, ranks); None: lines have no prefix.
        """
        self._lines = start.lines
        self._at = [line.offset for line in start.lines]
        self._settings_at = start.settings_at
        self._failures = [(failure.at, failure.end) for failure in start.failures]
        self._engine = engine

    def placed(self, finding: Finding) -> Finding:
        """Return a finding whose evidence leads to the lines that show it."""
        evidence = tuple(
            each if (at := self.place(each)) == each.at else msgspec.structs.replace(each, at=at)
            for each in finding.evidence
        )
        return finding if evidence == finding.evidence else msgspec.structs.replace(finding, evidence=evidence)

    def place(self, evidence: Evidence) -> int | None:
        """Return the place of the line that shows a piece of evidence; None if none does, so that it is derived.

        Evidence in a line that is not kept stays as it is.
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
        """Yield the other lines of the record, or of the exception, at a place."""
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
        """Yield lines that may give an argument its value: the line of arguments first."""
        if self._settings_at is not None:
            yield from self._of(self._settings_at, self._settings_at)
        yield from (line for line in self._lines if what in line.text or what.replace("_", "-") in line.text)

    def _of(self, first: int, last: int) -> tuple[LogLine, ...]:
        return self._lines[bisect_left(self._at, first) : bisect_right(self._at, last)]
