"""What `gputuner diagnose --json` promises, made from a start, its findings and its forecast in one place.

The keys are an interface for scripts: they are the field names here, `docs/diagnose.md` lists them, and the text for
people is drawn from the same value, so the two cannot disagree. A key is never left out, except `comparison`, which is
there when a baseline was given; what is not known is null. Secrets are masked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tuner.core.redact import mask
from tuner.core.report_comparison import SCHEMA, ComparisonReport, Locate
from tuner.core.report_plan import PlanReport, as_seen, plan_report
from tuner.core.share import KNOBS, down, up
from tuner.domain.findings import (
    MOST_EVIDENCE,
    Confidence,
    Evidence,
    Finding,
    Number,
    Outcome,
    Remedy,
    Severity,
)
from tuner.domain.forecast import Forecast
from tuner.domain.server import Phase
from tuner.domain.starts import Figure, PhaseSpan, RankStory, Start

Cite = Callable[[int], tuple[str | None, int | None]]
"""Returns file and line of a place; the line is None if lines are not counted, as in a followed log."""


class EvidenceReport(Struct, frozen=True, kw_only=True):
    """A number or word that a finding rests on."""

    what: str
    value: Number | str | None
    unit: str
    file: str | None
    line: int | None
    derived: bool


class CutEvidenceReport(EvidenceReport, frozen=True, kw_only=True):
    """Evidence whose value is only the beginning of a longer text, which the JSON output does not mark."""


class FindingReport(Struct, frozen=True, kw_only=True):
    """One cause with its evidence."""

    cause: str
    severity: Severity
    phase: str
    ranks: tuple[int, ...] | None
    confidence: Confidence
    title: str
    explanation: str
    evidence: tuple[EvidenceReport, ...]
    remedies: tuple[Remedy, ...]
    wrong_advice: tuple[str, ...]
    refuted_by: str


class StartReport(Struct, frozen=True, kw_only=True):
    """An earlier start in the same log."""

    engine: str | None
    engine_version: str | None
    outcome: Outcome
    phase: str
    file: str
    first_line: int
    last_line: int


class PhaseReport(Struct, frozen=True, kw_only=True):
    """One phase of one rank."""

    phase: str
    seconds: float | None
    before_gib: float | None
    after_gib: float | None
    used_gib: float | None
    ended: bool
    file: str
    line: int


class MemoryReport(Struct, frozen=True, kw_only=True):
    """GPU memory of one rank as the log tells it."""

    total_gib: float | None
    communicators_gib: float | None
    before_weights_gib: float | None
    weights_gib: float | None
    draft_weights_gib: float | None
    after_weights_gib: float | None
    kv_gib: float | None
    kv_tokens: int | None
    draft_kv_gib: float | None
    mamba_gib: float | None
    after_pool_gib: float | None
    graphs_gib: float | None
    activation_gib: float | None
    non_torch_gib: float | None
    available_at_ready_gib: float | None


class GraphReport(Struct, frozen=True, kw_only=True):
    """One set of CUDA graphs of one rank."""

    what: str
    gib: float | None
    seconds: float | None
    sizes: tuple[int, ...]


class RankReport(Struct, frozen=True, kw_only=True):
    """One rank: its phases, its memory, its graphs."""

    rank: int
    tag: str
    phases: tuple[PhaseReport, ...]
    memory: MemoryReport
    graphs: tuple[GraphReport, ...]


class Report(Struct, frozen=True, kw_only=True):
    """The diagnosis of one start."""

    schema: int = SCHEMA
    engine: str | None
    engine_version: str | None
    engine_version_inferred: bool
    model: str | None
    outcome: Outcome
    phase: str
    files: tuple[str, ...]
    findings: tuple[FindingReport, ...]
    failures: int
    """Number of exceptions in the log of this start; those beside the root follow from it or say the same."""
    starts: tuple[StartReport, ...]
    rank_report: tuple[RankReport, ...]
    plan: PlanReport
    comparison: ComparisonReport | UnsetType = UNSET

    @property
    def proven(self) -> bool:
        """Whether something is broken: there is a fatal or an error finding."""
        return any(finding.severity in (Severity.FATAL, Severity.ERROR) for finding in self.findings)


def report(
    start: Start,
    findings: Iterable[Finding],
    forecast: Forecast | None,
    locate: Locate,
    *,
    earlier: Iterable[Start] = (),
    comparison: ComparisonReport | None = None,
) -> Report:
    """Build the report of one start.

    Args:
        start: The one that is judged.
        findings: Its findings, the root cause first.
        forecast: Forecast of the same start once more; None: none can be made.
        locate: Returns file and line of a place in the log.
        earlier: Starts in the same log before it.
        comparison: Comparison with the baseline, if one was given.
    """
    findings = tuple(findings)
    return Report(
        engine=start.engine or None,
        engine_version=start.version,
        engine_version_inferred=start.version_inferred,
        model=model_of(start),
        outcome=start.outcome,
        phase=_furthest(start),
        files=start.files,
        findings=finding_reports(findings, locate),
        failures=len(start.failures),
        starts=tuple(_start(each, locate) for each in earlier),
        rank_report=tuple(_rank(each, locate) for each in start.ranks),
        plan=as_seen(plan_report(forecast), findings),
        comparison=UNSET if comparison is None else comparison,
    )


def finding_reports(findings: Iterable[Finding], cite: Cite) -> tuple[FindingReport, ...]:
    """Build the reports of findings.

    Args:
        findings: The root cause first.
        cite: Returns file and line of a place in their log.
    """
    return tuple(_finding(each, cite) for each in findings)


def as_data(value: Report | ComparisonReport | FindingReport) -> dict[str, Any]:
    """Return a report as plain data that JSON can hold."""
    data: dict[str, Any] = _plain(msgspec.to_builtins(value))
    for finding in data.get("findings", [data]):
        for remedy in finding.get("remedies", ()):
            del remedy["serves"]  # for people; the interface has it in `why`
    return data


def _plain(value: Any) -> Any:
    """Replace what JSON cannot hold: NaN and infinity by None, lone surrogates, as odd file names have them, by `?`."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def model_of(start: Start) -> str | None:
    """Return the LLM as the start's arguments name it, secrets masked; None if they do not."""
    return None if start.model is None else mask(start.model)


def _finding(finding: Finding, cite: Cite) -> FindingReport:
    return FindingReport(
        cause=finding.cause,
        severity=finding.severity,
        phase=finding.phase,
        ranks=finding.ranks,
        confidence=finding.confidence,
        title=mask(finding.title),
        explanation=mask(finding.explanation),
        evidence=tuple(_evidence(each, cite) for each in finding.evidence[:MOST_EVIDENCE]),
        remedies=tuple(_remedy(each) for each in finding.remedies),
        wrong_advice=tuple(mask(each) for each in finding.wrong_advice),
        refuted_by=mask(finding.refuted_by),
    )


def _evidence(evidence: Evidence, cite: Cite) -> EvidenceReport:
    file, line = evidence.file, evidence.line
    if line is None and evidence.at is not None:
        file, line = cite(evidence.at)
    derived = line is None and evidence.at is None
    value = str(evidence.value) if isinstance(evidence.value, bool) else evidence.value
    kind = CutEvidenceReport if evidence.cut else EvidenceReport
    return kind(
        what=evidence.what,
        value=mask(value) if isinstance(value, str) else value,
        unit=evidence.unit,
        file=None if derived else file,
        line=line,
        derived=derived,
    )


def _remedy(remedy: Remedy) -> Remedy:
    value, least, most = remedy.value, remedy.min, remedy.max
    if remedy.knob in KNOBS:
        value = up(value) if isinstance(value, float) else value
        least = up(least) if isinstance(least, float) else least
        most = down(most) if isinstance(most, float) else most
    return Remedy(
        knob=remedy.knob,
        flag=remedy.flag,
        env=remedy.env,
        move=remedy.move,
        value=mask(value) if isinstance(value, str) else value,
        min=least,
        max=most,
        serves=remedy.serves,
        why=mask(remedy.why),
    )


def _start(start: Start, locate: Locate) -> StartReport:
    file, first = locate(start.first)
    return StartReport(
        engine=start.engine or None,
        engine_version=start.version,
        outcome=start.outcome,
        phase=_furthest(start),
        file=file,
        first_line=first,
        last_line=locate(start.last)[1],
    )


def _rank(story: RankStory, locate: Locate) -> RankReport:
    return RankReport(
        rank=story.number,
        tag=story.tag,
        phases=tuple(_phase(span, locate) for span in story.phases),
        memory=MemoryReport(
            total_gib=_value(story.total_gib),
            communicators_gib=_value(story.communicators_gib),
            before_weights_gib=_value(story.before_weights),
            weights_gib=_value(story.weights_gib),
            draft_weights_gib=_value(story.draft_weights_gib),
            after_weights_gib=_value(story.after_weights),
            kv_gib=_value(story.kv_gib),
            kv_tokens=None if story.kv_tokens is None else round(story.kv_tokens.value),
            draft_kv_gib=_value(story.draft_kv_gib),
            mamba_gib=_value(story.mamba_gib),
            after_pool_gib=_value(story.after_pool),
            graphs_gib=None if story.graphs_gib is None else round(story.graphs_gib, 2),
            activation_gib=_value(story.activation_gib),
            non_torch_gib=_value(story.non_torch_gib),
            available_at_ready_gib=_value(story.available_at_ready),
        ),
        graphs=tuple(
            GraphReport(what=each.what, gib=each.used_gib, seconds=each.seconds, sizes=each.sizes)
            for each in story.graphs
        ),
    )


def _phase(span: PhaseSpan, locate: Locate) -> PhaseReport:
    file, line = locate(span.at)
    return PhaseReport(
        phase=str(span.phase),
        seconds=None if span.seconds is None else round(span.seconds, 2),
        before_gib=span.before_gib,
        after_gib=span.after_gib,
        used_gib=span.used_gib,
        ended=span.ended,
        file=file,
        line=line,
    )


def _furthest(start: Start) -> str:
    """Return the furthest phase of a start; `none` if nothing tells of one."""
    return "none" if start.phase == Phase.UNKNOWN else str(start.phase)


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value
