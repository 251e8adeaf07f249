"""Judges ask an engine and never its name: one of which nothing else is known gets its findings all the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.golden import diagnoses
from tests.support.plain_engine import PlainEngine
from tuner.core.causes import CAUSES
from tuner.core.diagnosis import diagnose
from tuner.domain.findings import Severity

PLAIN = PlainEngine()


@pytest.mark.parametrize("path", diagnoses.corpus(), ids=lambda path: path.stem)
def test_a_start_of_an_engine_without_data_is_judged(path: Path) -> None:
    start, known = diagnoses.judged(path)
    findings = diagnose(msgspec.structs.replace(start, engine=PLAIN.name), PLAIN)
    assert {each.cause for each in findings} <= set(CAUSES)
    failed = bool(known) and known[0].severity is Severity.FATAL
    assert not failed or (findings and findings[0].severity is Severity.FATAL), "a failure is found without its data"
    assert [r for each in findings for r in each.remedies if r.env and r.env.startswith(("SGL", "VLLM"))] == []
