"""What `diagnose --json` promises, key by key."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.golden_starts import last_start
from tuner.core import report as promised
from tuner.core import report_comparison as promised_comparison
from tuner.core import report_plan as promised_plan
from tuner.core.compare import compare
from tuner.core.report import Report, as_data, report
from tuner.core.report_comparison import report_comparison
from tuner.core.share import up
from tuner.domain.comparison import Group, Origin, Role
from tuner.domain.findings import (
    MOST_EVIDENCE,
    Confidence,
    Evidence,
    Finding,
    Meaning,
    Move,
    Outcome,
    Remedy,
    Severity,
)
from tuner.domain.forecast import Fit, Forecast, ForecastRow, Source
from tuner.domain.server import Phase
from tuner.domain.starts import Failure, Figure, GraphCapture, PhaseSpan, RankStory, Start
from tuner.units import GIB

FINDING = Finding(
    cause="mem-fraction-too-low",
    severity=Severity.FATAL,
    phase="kv-alloc",
    ranks=(0, 1),
    confidence=Confidence.HIGH,
    title="No room is left",
    explanation="21.70 - 94.04 x 0.45",
    evidence=(
        Evidence(what="avail mem", value=21.7, unit="GB", at=7),
        Evidence(what="KV budget", value=-20.62, unit="GiB"),
        Evidence(what="elsewhere", value="x", file="other.log", line=3, at=99),
    ),
    remedies=(
        Remedy(
            knob="mem_fraction_static",
            flag="--mem-fraction-static",
            move=Move.RAISE,
            value=0.76925,
            min=0.76925,
            max=0.94567,
            why="room",
        ),
    ),
    wrong_advice=("lower it",),
    refuted_by="a larger card",
)
RANK = RankStory(
    tag="TP1",
    number=1,
    phases=(PhaseSpan(phase=Phase.WEIGHT_LOAD, at=5, seconds=514.2349, ended=True, before_gib=94.04, after_gib=21.7),),
    before_weights=Figure(94.04, 5),
    kv_tokens=Figure(159277.0, 8),
    graphs=(GraphCapture(what="decode", at=9, used_gib=2.55, seconds=71.4, sizes=(1, 2)),),
)
START = Start(
    engine="sglang",
    version="0.5.9",
    outcome=Outcome.FAILED,
    phase=Phase.KV_ALLOC,
    settings={"model_path": "/m/llama"},
    ranks=(RANK,),
    failures=(Failure(at=7, end=9), Failure(at=10, end=12)),
    files=("a.log", "b.log"),
    first=3,
    last=12,
)
FORECAST = Forecast(
    fit=Fit.TOO_LOW,
    rows=(
        ForecastRow(
            rank=1,
            what="kv_pool",
            size_bytes=round(10.42 * GIB),
            tokens=159_277,
            source=Source.FORMULA,
            error_bytes=GIB // 100,
            note="21.71 - 94.03 x 0.12",
        ),
        ForecastRow(rank=1, what="free", size_bytes=None),
    ),
    fraction=0.55,
    f_min=0.769247,
    f_max=0.945,
    estimated=True,
    kv_tokens=159_277,
    context=131_072,
    f_whole=0.861,
    warnings=("less than 4 GiB",),
    unknown=("total",),
)


def locate(at: int) -> tuple[str, int]:
    return ("a.log", at) if at < 8 else ("b.log", at - 7)


def made(*findings: Finding, forecast: Forecast | None = FORECAST, start: Start = START, **more: Any) -> Report:
    return report(start, findings, forecast, locate, **more)


def test_the_promise() -> None:
    assert as_data(made(FINDING)) == {
        "schema": 1,
        "engine": "sglang",
        "engine_version": "0.5.9",
        "engine_version_inferred": False,
        "model": "/m/llama",
        "outcome": "failed",
        "phase": "kv-alloc",
        "files": ["a.log", "b.log"],
        "findings": [
            {
                "cause": "mem-fraction-too-low",
                "severity": "fatal",
                "phase": "kv-alloc",
                "ranks": [0, 1],
                "confidence": "high",
                "title": "No room is left",
                "explanation": "21.70 - 94.04 x 0.45",
                "evidence": [
                    {"what": "avail mem", "value": 21.7, "unit": "GB", "file": "a.log", "line": 7, "derived": False},
                    {"what": "KV budget", "value": -20.62, "unit": "GiB", "file": None, "line": None, "derived": True},
                    {"what": "elsewhere", "value": "x", "unit": "", "file": "other.log", "line": 3, "derived": False},
                ],
                "remedies": [
                    {
                        "knob": "mem_fraction_static",
                        "flag": "--mem-fraction-static",
                        "env": None,
                        "move": "raise",
                        "value": 0.77,
                        "min": 0.77,
                        "max": 0.945,
                        "why": "room",
                    }
                ],
                "wrong_advice": ["lower it"],
                "refuted_by": "a larger card",
            }
        ],
        "failures": 2,
        "starts": [],
        "rank_report": [
            {
                "rank": 1,
                "tag": "TP1",
                "phases": [
                    {
                        "phase": "weight-load",
                        "seconds": 514.23,
                        "before_gib": 94.04,
                        "after_gib": 21.7,
                        "used_gib": None,
                        "ended": True,
                        "file": "a.log",
                        "line": 5,
                    }
                ],
                "memory": {
                    "total_gib": None,
                    "communicators_gib": None,
                    "before_weights_gib": 94.04,
                    "weights_gib": None,
                    "draft_weights_gib": None,
                    "after_weights_gib": None,
                    "kv_gib": None,
                    "kv_tokens": 159277,
                    "draft_kv_gib": None,
                    "mamba_gib": None,
                    "after_pool_gib": None,
                    "graphs_gib": 2.55,
                    "activation_gib": None,
                    "non_torch_gib": None,
                    "available_at_ready_gib": None,
                },
                "graphs": [{"what": "decode", "gib": 2.55, "seconds": 71.4, "sizes": [1, 2]}],
            }
        ],
        "plan": {
            "fit": "too-low",
            "fraction": 0.55,
            "f_min": 0.7692,
            "f_max": 0.945,
            "kv_tokens": 159277,
            "rows": [
                {
                    "rank": 1,
                    "what": "kv_pool",
                    "gib": 10.42,
                    "tokens": 159277,
                    "source": "formula",
                    "error_gib": 0.01,
                    "note": "21.71 - 94.03 x 0.12",
                },
                {
                    "rank": 1,
                    "what": "free",
                    "gib": None,
                    "tokens": None,
                    "source": "measured",
                    "error_gib": None,
                    "note": "",
                },
            ],
            "warnings": ["less than 4 GiB"],
            "unknown": ["total"],
            "sure": False,
            "estimated": True,
            "context": 131072,
            "f_whole": 0.861,
        },
    }


def test_a_comparison_is_there_only_with_a_baseline() -> None:
    comparison = compare(last_start("corpus/seed-1-baseline.log"), last_start("corpus/seed-3-custom-ar-055.log"))
    told = report_comparison(comparison, lambda at: ("good.log", at), lambda at: ("bad.log", at))
    assert "comparison" not in as_data(made())
    data = as_data(made(comparison=told))["comparison"]
    assert data == as_data(told)
    assert data.keys() == {
        "schema", "baseline", "this", "comparable", "obstacles", "summary", "differences", "acquitted", "measures",
    }  # fmt: skip
    first = data["differences"][0]
    assert first.keys() == {
        "group", "name", "baseline", "this", "unit", "baseline_origin", "this_origin", "baseline_file", "baseline_line",
        "this_file", "this_line", "role", "explains", "weight", "effect_gib", "ratio", "ranks", "note",
    }  # fmt: skip
    assert (first["name"], first["baseline"], first["this"], first["explains"]) == (
        "mem_fraction_static",
        0.88,
        0.55,
        True,
    )
    assert (first["baseline_file"], first["baseline_line"], first["this_file"]) == ("good.log", 1, "bad.log")
    assert first["effect_gib"] == -31.03
    assert all(each["role"] == "acquitted" for each in data["acquitted"])
    assert data["acquitted"] == [each for each in data["differences"] if each["role"] == "acquitted"]
    assert data["baseline"]["fraction"] == 0.88
    assert data["this"]["f_min"] == 0.7692
    assert data["measures"][0].keys() == {"group", "name", "unit", "baseline", "this", "ratio", "ranks"}
    assert json.loads(json.dumps(data)) == data


def test_noise_is_told_where_it_is_asked_for() -> None:
    comparison = compare(last_start("corpus/seed-1-baseline.log"), last_start("case/custom-ar-050.log"))
    names = [
        {each.name for each in report_comparison(comparison, locate, locate, noise=noise).differences}
        for noise in (False, True)
    ]
    assert names[1] - names[0] == {"random_seed"}


def test_an_engine_that_nothing_tells_is_null() -> None:
    data = as_data(made(start=Start(engine=""), forecast=None))
    assert (data["engine"], data["engine_version"], data["model"]) == (None, None, None)
    assert data["outcome"] == "unknown"
    assert data["plan"]["fit"] == "unknown"
    assert data["plan"]["f_min"] is None


def test_earlier_starts_are_listed_with_their_lines() -> None:
    earlier = msgspec.structs.replace(START, outcome=Outcome.READY, phase=Phase.READY, first=1, last=9)
    assert as_data(made(earlier=[earlier]))["starts"] == [
        {
            "engine": "sglang",
            "engine_version": "0.5.9",
            "outcome": "ready",
            "phase": "ready",
            "file": "a.log",
            "first_line": 1,
            "last_line": 2,
        }
    ]


def test_evidence_has_an_end() -> None:
    many = msgspec.structs.replace(FINDING, evidence=tuple(Evidence(what=str(n), value=n) for n in range(40)))
    assert len(made(many).findings[0].evidence) == MOST_EVIDENCE == 12


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_null(value: float) -> None:
    odd = msgspec.structs.replace(FINDING, evidence=(Evidence(what="x", value=value),))
    data = as_data(made(odd))
    assert data["findings"][0]["evidence"][0]["value"] is None
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    ("severity", "proven"),
    [(Severity.FATAL, True), (Severity.ERROR, True), (Severity.PERFORMANCE, False), (Severity.INFO, False)],
)
def test_what_makes_the_exit_code(severity: Severity, proven: bool) -> None:
    assert made(msgspec.structs.replace(FINDING, severity=severity)).proven is proven
    assert made().proven is False


def test_an_advised_fraction_is_rounded_up_to_three_digits() -> None:
    assert [up(value) for value in (0.7692, 0.88, 0.7690000001, 0.9451)] == [0.77, 0.88, 0.769, 0.946]
    other = Remedy(knob="swa_full_tokens_ratio", value=0.12345, move=Move.SET)
    assert made(msgspec.structs.replace(FINDING, remedies=(other,))).findings[0].remedies[0].value == 0.12345


def test_secrets_do_not_pass() -> None:
    secret = "hf_" + "a1B2c3D4e5F6g7H8" * 2
    spoiled = msgspec.structs.replace(
        FINDING,
        title=f"token={secret}",
        explanation=f"HF_TOKEN={secret}",
        evidence=(Evidence(what="line", value=f"Bearer {secret}", at=7),),
        remedies=(Remedy(knob="x", value=f"--hf-token {secret}", why=secret),),
        wrong_advice=(secret,),
        refuted_by=secret,
    )
    assert secret not in json.dumps(as_data(made(spoiled)))


def test_every_key_is_documented() -> None:
    words = set(re.findall(r"`([\w-]+)`", (Path(__file__).parents[3] / "docs/diagnose.md").read_text("utf-8")))
    structs = [
        each
        for module in (promised, promised_plan, promised_comparison)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ == module.__name__
    ]
    assert len(structs) >= 15
    for each in structs:
        assert set(each.__struct_fields__) <= words, f"{each.__name__}: {set(each.__struct_fields__) - words}"
    for kind in (Outcome, Severity, Confidence, Move, Fit, Source, Role, Group, Origin):
        assert {member.value for member in kind} <= words, kind


def test_a_failure_bounds_the_interval_that_was_forecast() -> None:
    tried = (Evidence(what="lacking", value=92, unit="MiB", at=7, meaning=Meaning.FAILED_ALLOCATION),)
    lower = Remedy(knob="mem_fraction_static", move=Move.LOWER, value=0.5, min=0.3, max=0.5)
    failed = msgspec.structs.replace(FINDING, evidence=tried, remedies=(lower,))
    plan = made(failed).plan
    assert (plan.f_max, plan.fit) == (0.5, Fit.TOO_HIGH)
    unhelped = made(msgspec.structs.replace(failed, remedies=())).plan
    assert (unhelped.f_max, unhelped.fit) == (None, Fit.UNKNOWN), "what was lacking is not what a fraction leaves"
    assert made(msgspec.structs.replace(failed, severity=Severity.INFO)).plan.f_max == 0.945
    asked = (*tried, Evidence(what="asked", value=0.9, at=1, meaning=Meaning.MULTIPLIED_FRACTION))
    assert made(msgspec.structs.replace(failed, evidence=asked)).plan.f_max == 0.945
