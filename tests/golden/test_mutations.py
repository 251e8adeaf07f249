"""A log that lost, tore or swapped lines: the verdict stays, or becomes less certain; it is never wrong and sure."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.golden import diagnoses
from tests.golden.mutations import MUTATIONS
from tuner.domain.findings import Confidence, Severity

SEEDS = 2
_LONG = 1000
"""A log with more lines than this says the same thing thousands of times."""


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("path", diagnoses.corpus(), ids=lambda path: path.stem)
def test_verdict_stays_or_becomes_less_certain(path: Path, name: str) -> None:
    label = diagnoses.expected(path)
    accepted = {label["root_cause"], *(label.get("also_acceptable") or ())}
    lines = path.read_text("utf-8", "replace").split("\n")
    if len(lines) > _LONG:
        lines = lines[:200] + lines[-600:]
    for seed in range(SEEDS):
        changed = MUTATIONS[name](lines, random.Random(f"{path.stem} {name} {seed}"))
        for finding in diagnoses.judged_lines(changed)[1][:1]:
            certain = finding.confidence is not Confidence.LOW and finding.severity is not Severity.INFO
            assert finding.cause in accepted or not certain, f"seed {seed}: {finding.cause} {finding.explanation}"
