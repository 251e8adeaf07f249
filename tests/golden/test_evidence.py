"""Real starts of which is known what was done: outcome, cause, phase, ranks, numbers, remedies, and silence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden import diagnoses, evidence_cases
from tests.golden.mutations import MUTATIONS
from tuner.core.causes import CAUSES, PHASES
from tuner.core.reduce import initial, reduce
from tuner.domain.findings import Confidence, Severity
from tuner.domain.starts import Figure, RankStory
from tuner.store.journal import read_events

JOURNAL = diagnoses.GOLDEN / "journals" / "sglang-0.5.16-2xH200-start-load-stop.ndjson"
H200 = "sglang-0.5.16-h200/{}"
_TWICE = (H200.format("tenant-leaves-between"),)
"""Logs of two starts, of which the first failed."""
ALLOWED = {H200.format("context-exceeds-pool"): {"context-exceeds-kv-pool": "error"}}
"""Findings that are more than the slowdown, or the word, that a label's `may` allows: a request of the length that the
arguments promise can never be served there."""
TOLD = {
    H200.format("context-exceeds-pool"): ("context-exceeds-kv-pool", "error"),
    H200.format("ok-40l-f97"): ("prefill-graphs-off", "performance"),
    H200.format("tenant-arrives-at-capture"): ("prefill-graphs-off", "performance"),
    H200.format("retractions"): ("kv-pool-exhausted", "info"),
    H200.format("tp2-ok-80l-f90-fp8-no-custom-ar"): ("custom-ar-disabled", "info"),
    H200.format("tp2-ok-nccl-info-shm"): ("custom-ar-disabled", "info"),
}
"""What is told of servers that worked: less than the full pool, the full context, the graphs or the links that they
could have, as each log says itself. The load that filled the pool of `retractions` was one burst."""


PROVEN = {"tp4-healthy-pcie": "custom-ar-disabled-pcie"}
"""Slowdowns that a log proves: a decode step of 46 ms where reading the weights takes 16."""
WORKED = [name for name in evidence_cases.names() if not evidence_cases.label(name)["cause"] and name not in _TWICE]
_PARTS = 8


def _excerpts() -> list[Path]:
    """Of healthy servers of many versions."""
    names = ("h200-base", "h200-auto512")
    found = (diagnoses.GOLDEN / "logs").rglob("*.log")
    return sorted(path for path in found if "healthy" in path.stem or path.stem in names)


def test_there_are_cases_of_both_engines() -> None:
    assert len(evidence_cases.names()) >= 115
    assert {evidence_cases.label(name)["engine"] for name in evidence_cases.names()} == {"sglang", "vllm"}


@pytest.mark.parametrize("name", evidence_cases.names())
def test_case_is_judged_by_what_was_done(name: str) -> None:
    assert evidence_cases.complaints(name, ALLOWED.get(name, {})) == []


def test_of_servers_that_worked_their_logs_prove_this() -> None:
    """Nothing but it, as the labels of all cases say."""
    told = {name: evidence_cases.judged(name)[1] for name in TOLD}
    assert {name: [(each.cause, str(each.severity)) for each in found] for name, found in told.items()} == {
        name: [each] for name, each in TOLD.items()
    }


@pytest.mark.parametrize("name", WORKED)
def test_a_log_that_is_still_being_written_alarms_nobody(name: str) -> None:
    """Diagnosed again and again while it grows, as live."""
    lines = evidence_cases.lines(name)
    for part in range(1, _PARTS):
        start, findings = diagnoses.judged_lines(lines[: len(lines) * part // _PARTS])
        causes = {finding.cause for finding in findings if finding.severity in (Severity.FATAL, Severity.ERROR)}
        assert causes <= set(ALLOWED.get(name, ())), f"after {len(lines) * part // _PARTS} lines"
        assert start is None or start.outcome != "failed"


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


def test_of_a_rank_that_vanished_its_last_words_are_quoted() -> None:
    _, found = evidence_cases.judged("sglang-0.5.9-cpu/tp2-rank1-killed-serving")
    told = {each.what: each.value for each in found[0].evidence}
    assert told["last line of TP1"] == "Memory pool end. avail mem=20.55 GB"


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


@pytest.mark.parametrize("path", _excerpts(), ids=lambda path: f"{path.parts[-2]}-{path.stem}")
def test_no_false_alarm_in_excerpts_of_healthy_logs(path: Path) -> None:
    start, findings = diagnoses.judged(path)
    proven = PROVEN.get(path.stem)
    assert [each.cause for each in findings if each.severity is not Severity.INFO] == ([proven] if proven else [])
    assert start.outcome != "failed"


def test_no_false_alarm_while_a_server_is_watched() -> None:
    """A start, a load and a stop, folded as the dashboard folds them."""
    state, engines = initial("h200"), diagnoses.ENGINES
    told = set()
    for _, event in read_events(JOURNAL):
        state, _ = reduce(state, event, engines)
        told |= {(finding.cause, finding.severity) for server in state.servers for finding in server.findings}
    assert state.servers
    assert told == set()
