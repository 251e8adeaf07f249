"""A fraction that is proposed goes the way it says, and the forecast of the same start does not refuse it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden import diagnoses
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of
from tuner.core.share import KNOBS
from tuner.domain.findings import Finding, Move, Remedy
from tuner.domain.forecast import Fit
from tuner.domain.starts import Start

LOGS = sorted(path for kind in ("corpus", "evidence", "logs", "real", "case")
              for path in (diagnoses.GOLDEN / kind).rglob("*.log"))  # fmt: skip
REFUSED = (Fit.TOO_LOW, Fit.TOO_HIGH, Fit.NOWHERE)


def complaints(start: Start, finding: Finding, remedy: Remedy) -> list[str]:
    engine, wrong = diagnoses.ENGINES[start.engine], []
    case = Case(start, None, engine)
    told = asked_of(case)
    if case.share is not None and None in (remedy.value, remedy.min, remedy.max):
        wrong.append("known, and without value or bounds")
    if engine.cap(start) is not None:
        wrong.append(f"a cap bounds the pool: {engine.cap(start)}")
    for value in (remedy.value, remedy.min if remedy.move is Move.RAISE else remedy.max):
        if not isinstance(value, float) or told is None:
            continue
        if value <= told.value if remedy.move is Move.RAISE else value >= told.value:
            wrong.append(f"{remedy.move} to {value}, and it was {told.value}")
    for value in (remedy.value, remedy.min, remedy.max):
        if not isinstance(value, float):
            continue
        changes: dict[str, Any] = {remedy.knob: value}
        changes |= {each.knob: each.value for each in finding.remedies if each.knob == "attention_backend"}
        then = engine.forecast(start, changes)
        if then.fit in REFUSED:
            wrong.append(f"{value} is {then.fit}: {then.f_min} to {then.f_max}")
        if None not in (then.f_min, then.fraction, then.f_max) and not then.f_min < then.fraction <= then.f_max + 1e-9:  # type: ignore[operator]
            wrong.append(f"{value} is {then.fraction} in effect, and {then.f_min} to {then.f_max} is safe")
    return wrong


def _name(path: Path) -> str:
    return str(path.relative_to(diagnoses.GOLDEN))


def test_a_fraction_goes_the_way_it_says_and_the_forecast_agrees() -> None:
    wrong, seen = [], 0
    for path in LOGS:
        start, findings = diagnoses.judged(path)
        for finding in findings:
            for remedy in finding.remedies:
                if remedy.knob in KNOBS and remedy.move in (Move.RAISE, Move.LOWER):
                    seen += 1
                    wrong += [f"{_name(path)} {finding.cause}: {each}" for each in complaints(start, finding, remedy)]
    assert wrong == []
    assert seen > 40


@pytest.mark.parametrize(
    ("name", "knob"),
    [
        ("evidence/sglang-0.5.16-h200/retractions/server.log", "max_total_tokens"),
        ("evidence/sglang-0.5.16-h200/context-exceeds-pool/server.log", "max_total_tokens"),
        ("logs/vllm/0.32.0/cpu-kv-too-small.log", "kv_cache_memory_bytes"),
        ("corpus/sg-26248.log", "mem_fraction_static"),
    ],
)
def test_what_bounds_the_pool_is_what_is_raised(name: str, knob: str) -> None:
    _, findings = diagnoses.judged(diagnoses.GOLDEN / name)
    pool = ("max_total_tokens", "num_gpu_blocks_override", "kv_cache_memory_bytes", *KNOBS)
    assert [each.knob for each in findings[0].remedies if each.knob in pool and each.move is Move.RAISE] == [knob]
