"""Whatever a log says, a diagnosis answers: no exception, remedies in range, and places that exist."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import diagnoses
from tuner.core.causes import CAUSES, PHASES
from tuner.core.quantity import quantity
from tuner.domain.findings import Move


@functools.cache
def _lines() -> tuple[str, ...]:
    """Lines that engines print, of every log of the corpus, the rarer kinds as often as the common ones."""
    kinds: dict[str, str] = {}
    for path in diagnoses.corpus():
        for line in path.read_text("utf-8", "replace").split("\n"):
            kinds.setdefault("".join(c for c in line if c.isalpha())[:40], line)
    return tuple(kinds.values())


_printed = st.deferred(lambda: st.sampled_from(_lines()))
_numbers = st.integers(0, 10**9).map(str) | st.floats(allow_nan=False).map(str) | st.just("nan")


@st.composite
def _changed(draw: st.DrawFn) -> str:
    """A printed line with a piece cut out, another number, or other text behind it."""
    line = draw(_printed)
    start, end = sorted((draw(st.integers(0, len(line))), draw(st.integers(0, len(line)))))
    return line[:start] + draw(_numbers | st.text(max_size=8) | st.just("")) + line[end:]


_logs = st.lists(_printed | _changed() | st.text(max_size=60), max_size=60)


@settings(max_examples=300, deadline=None)  # the first one reads the catalogues
@given(_logs)
def test_any_lines_are_diagnosed(lines: list[str]) -> None:
    start, findings = diagnoses.judged_lines(lines)
    assert start is None or start.first <= start.last <= len(lines)
    for finding in findings:
        assert finding.cause in CAUSES
        assert finding.phase in PHASES
        assert finding.explanation
        assert finding.ranks is None or all(rank >= 0 for rank in finding.ranks)
        for each in finding.evidence:
            assert each.at is None or 1 <= each.at <= len(lines)
        for remedy in finding.remedies:
            if remedy.knob in ("mem_fraction_static", "gpu_memory_utilization") and remedy.move is not Move.OTHER:
                for bound in (remedy.value, remedy.min, remedy.max):
                    assert bound is None or (isinstance(bound, int | float) and 0 < bound < 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=40))
def test_any_bytes_are_read(pieces: list[bytes]) -> None:
    text = b"\n".join(pieces).decode("utf-8", "replace")
    diagnoses.judged_lines(text.split("\n"))


@given(st.text(max_size=30))
def test_an_amount_is_a_finite_number_or_none(text: str) -> None:
    amount = quantity(text)
    assert amount is None or amount.value == amount.value
