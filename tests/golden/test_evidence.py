"""Real starts of which is known what was done: outcome, cause, phase, ranks, numbers, remedies, and silence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden import diagnoses, evidence_cases
from tests.golden.mutations import MUTATIONS
from tuner.core.causes import CAUSES, PHASES
from tuner.domain.findings import Confidence, Severity
from tuner.domain.starts import Figure, RankStory

H200 = "sglang-0.5.16-h200/{}"
ALLOWED: dict[str, dict[str, str]] = {}
"""Findings beside a label and its `may` that are right, and how severe each may be at most."""


def test_there_are_cases_of_both_engines() -> None:
    assert len(evidence_cases.names()) >= 115
    assert {evidence_cases.label(name)["engine"] for name in evidence_cases.names()} == {"sglang", "vllm"}


@pytest.mark.parametrize("name", evidence_cases.names())
def test_case_is_judged_by_what_was_done(name: str) -> None:
    assert evidence_cases.complaints(name, ALLOWED.get(name, {})) == []


@pytest.mark.parametrize("name", evidence_cases.names())
def test_findings_keep_their_promises(name: str) -> None:
    start, findings = evidence_cases.judged(name)
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


MEASURED = [name for name in evidence_cases.names() if "measured" in evidence_cases.label(name)]


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_is_read(name: str) -> None:
    """By one rank at least: a label has one number for all, and stages of a pipeline differ."""
    start, _ = evidence_cases.judged(name)
    read = [evidence_cases.measured(rank, start) for rank in start.ranks]
    for what, value in evidence_cases.label(name)["measured"].items():
        known = [each[what] for each in read if what in each]
        assert known, what
        assert any(each == pytest.approx(value, abs=0.011) for each in known), f"{what}: {known}, not {value}"


@pytest.mark.parametrize("name", MEASURED)
def test_every_rank_shows_its_own_lines(name: str) -> None:
    """Each number stands on the line it is said to be from, and the line is that rank's."""
    start, _ = evidence_cases.judged(name)
    lines = evidence_cases.lines(name)
    for rank in start.ranks:
        for what, figure in _figures(rank):
            line = lines[figure.at - 1]
            assert rank.tag in line or len(start.ranks) == 1, what
            assert evidence_cases.printed(figure.value, line), f"{what}: {figure.value} in {line}"


def _figures(rank: RankStory) -> Iterator[tuple[str, Figure]]:
    for what in ("communicators_gib", "before_weights", "after_weights", "kv_tokens", "after_pool", "last_available",
                 "available_at_ready"):  # fmt: skip
        figure = getattr(rank, what)
        if figure is not None:
            yield what, figure


@pytest.mark.parametrize("name", evidence_cases.names())
def test_verdict_stays_or_becomes_less_certain(name: str) -> None:
    """Two changes of each log; another two for the next log."""
    accepted = evidence_cases.causes(name) | set(evidence_cases.label(name).get("may", ()))
    lines = evidence_cases.lines(name)
    if len(lines) > 1000:
        lines = lines[:200] + lines[-600:]
    chosen = random.Random(name).sample(sorted(MUTATIONS), 2)
    for change in chosen:
        changed = MUTATIONS[change](lines, random.Random(f"{name} {change}"))
        for finding in diagnoses.judged_lines(changed)[1][:1]:
            certain = finding.confidence is not Confidence.LOW and finding.severity is not Severity.INFO
            assert finding.cause in accepted or not certain, f"{change}: {finding.cause} {finding.explanation}"


def test_no_false_alarm_in_any_healthy_log() -> None:
    alarms = {}
    for path in _healthy_logs():
        start, findings = diagnoses.judged(path)
        grave = [each.cause for each in findings if each.severity in (Severity.FATAL, Severity.ERROR)]
        if grave or start.outcome == "failed":
            alarms[str(path.relative_to(diagnoses.GOLDEN))] = grave
    assert alarms == {}


def _healthy_logs() -> Iterator[Path]:
    """Logs that are excerpts of healthy servers; labelled ones are judged by their labels."""
    for path in sorted((diagnoses.GOLDEN / "logs").rglob("*.log")):
        if "healthy" in path.stem or path.stem in ("h200-base", "h200-auto512"):
            yield path
