"""Labelled logs of real failures: right cause, phase and ranks, numbers quoted, remedies that go the right way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import diagnoses
from tuner.core.causes import CAUSES, PHASES


@pytest.mark.parametrize("path", diagnoses.corpus(), ids=lambda path: path.stem)
def test_log_is_diagnosed_as_labelled(path: Path) -> None:
    start, findings = diagnoses.judged(path)
    assert diagnoses.complaints(start, findings, diagnoses.expected(path)) == []


@pytest.mark.parametrize("path", diagnoses.corpus(), ids=lambda path: path.stem)
def test_findings_keep_their_promises(path: Path) -> None:
    start, findings = diagnoses.judged(path)
    for finding in findings:
        assert finding.cause in CAUSES
        assert finding.phase in PHASES
        assert finding.explanation and finding.refuted_by
        assert len(finding.evidence) <= 12
        assert all(each.at is None or start.first <= each.at <= start.last for each in finding.evidence)
        for remedy in finding.remedies:
            value = remedy.value
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert remedy.min is None or value >= remedy.min
                assert remedy.max is None or value <= remedy.max
