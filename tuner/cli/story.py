"""A diagnosis as text: engine and outcome, the start phase by phase, then each finding as a card.

It is made from the values that `--json` prints, so that the two cannot disagree. Ranks with equal numbers share a row;
ranks that differ are named beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from tuner.cli.paper import Paper
from tuner.cli.tables import plain
from tuner.core.finding_words import everyone, ranks_text, sureness, value_text
from tuner.core.plan_words import reason, whole
from tuner.core.remedies import order, safe
from tuner.core.report import CutEvidenceReport, EvidenceReport, FindingReport, PhaseReport, RankReport, Report
from tuner.core.report_plan import PlanReport
from tuner.core.share import KNOBS
from tuner.domain.findings import Move, Outcome, Severity
from tuner.domain.forecast import Fit
from tuner.domain.server import START_PHASES, Phase
from tuner.units import format_seconds

_GLYPHS = {Severity.FATAL: "✗", Severity.ERROR: "✗", Severity.PERFORMANCE: "▼", Severity.INFO: "i"}
_INKS = {Severity.FATAL: "bad", Severity.ERROR: "bad", Severity.PERFORMANCE: "warn", Severity.INFO: "note"}
_OUTCOMES = {
    Outcome.READY: ("READY", "good"),
    Outcome.RUNNING: ("STARTING", "note"),
    Outcome.FAILED: ("FAILED", "bad"),
    Outcome.STOPPED: ("STOPPED by its operator", "note"),
    Outcome.UNKNOWN: ("UNKNOWN: the log just ends", "warn"),
}
_LABEL = 10
_ODD_SECONDS = 1.0
_MANY = 4
"""Deviating ranks that are named one by one; more are only counted."""
_PLANS = {
    Fit.TOO_LOW: "is too low",
    Fit.TOO_HIGH: "is too high",
}


def lines(report: Report, paper: Paper) -> Iterator[str]:
    """Yield the whole diagnosis as text."""
    yield from head(report, paper)
    rows = list(_phases(report.rank_report, report.files))
    if rows:
        yield ""
        yield from _table(rows, report, paper)
    for finding in report.findings:
        yield ""
        yield from card(finding, report.rank_report, paper)
    if not report.findings:
        yield ""
        yield paper.letters(paper.ink("✓ nothing found", "good") + _silence(report))
    if report.failures > 1 and report.findings:
        yield from paper.wrapped(
            f"The log has {report.failures} exceptions; the others say the same or follow from it."
        )
    yield from plan(report.plan, paper, report.findings)
    if report.starts:
        yield ""
        yield paper.ink("earlier starts in this log", "strong")
        for start in report.starts:
            what = " ".join(part for part in (start.engine, start.engine_version) if part) or "unknown engine"
            where = f"{start.file}, lines {start.first_line} to {start.last_line}"
            yield from paper.wrapped(f"{what}  {start.outcome} ({start.phase})  {where}", indent="  ")


def head(report: Report, paper: Paper) -> Iterator[str]:
    """Yield the head: engine, version, LLM, ranks, outcome, files."""
    version = report.engine_version or "of an unknown version"
    inferred = " (by its wording)" if report.engine_version_inferred and report.engine_version else ""
    who = [f"{report.engine} {version}{inferred}" if report.engine else "no engine recognised"]
    if report.model:
        who.append(plain(_last(report.model)))
    if report.rank_report:
        count = len(report.rank_report)
        who.append(f"{count} rank{'s' if count != 1 else ''}")
    words, ink = _OUTCOMES[report.outcome]
    if report.outcome is Outcome.FAILED:
        phase = report.findings[0].phase if report.findings and report.findings[0].phase != "none" else report.phase
        words += " while serving" if phase == "ready" else "" if phase in ("none", "failed") else f" in {phase}"
    title = " · ".join(who)
    room = paper.width - len(title) - len(words) - 2
    if room > 0:
        yield paper.letters(paper.ink(title, "strong") + " " * (room + 2) + paper.ink(words, ink))
    else:
        for line in paper.wrapped(title):
            yield paper.ink(line, "strong")
        yield paper.letters(paper.ink(words, ink))
    if report.files:
        yield from paper.wrapped(", ".join(plain(file) for file in report.files))


def card(finding: FindingReport, ranks: Sequence[RankReport], paper: Paper) -> Iterator[str]:
    """Yield one finding as a card."""
    ink = _INKS[finding.severity]
    where = "" if finding.phase == "none" else f" in {finding.phase}"
    parts = [
        finding.cause,
        f"{finding.severity}{where}",
        _who(finding.ranks, ranks),
        sureness(finding.confidence),
    ]
    head, *more = (part for part in parts if part)
    bar = paper.letters(paper.ink("│", ink)) + " "
    inner = Paper(width=paper.width - 2, colour=paper.colour, ascii=paper.ascii)
    title = f"{_GLYPHS[finding.severity]} {head}"
    while more and len(title) + len(more[0]) + 6 <= paper.width:
        title += f" · {more.pop(0)}"
    yield paper.rule(title, ink, "┌")
    if more:
        yield from (bar + line for line in inner.wrapped(" · ".join(more)))
    for line in _inside(finding, inner):
        yield (bar + line).rstrip()
    yield paper.rule("", ink, "└")


def _inside(finding: FindingReport, paper: Paper) -> Iterator[str]:
    if finding.title:
        yield paper.ink(paper.letters(plain(finding.title)), "strong")
    if finding.explanation:
        yield from paper.wrapped(finding.explanation)
    if finding.evidence:
        yield ""
        yield from _evidence(finding.evidence, paper)
    if finding.remedies:
        yield ""
        for number, remedy in enumerate(finding.remedies):
            interval = safe(remedy, mends=finding.severity not in (Severity.FATAL, Severity.ERROR))
            text = order(remedy) + (f" ({interval})" if interval else "")
            text += f": {remedy.why}" if remedy.why else ""
            yield from paper.wrapped(text, label="do" if number == 0 else "or", hang=_LABEL)
    for number, advice in enumerate(finding.wrong_advice):
        yield from paper.wrapped(advice, label="do not" if number == 0 else "", hang=_LABEL)
    if finding.refuted_by:
        yield from paper.wrapped(finding.refuted_by, label="unless", hang=_LABEL)


def plan(plan: PlanReport, paper: Paper, findings: Sequence[FindingReport] = ()) -> Iterator[str]:
    """Yield the safe interval of the memory fraction and its warnings; nothing where no bound is known."""
    if plan.f_min is None and plan.f_max is None:
        return
    yield ""
    # Where a cap bounds the pool, a fraction is no matter: the warnings say so.
    capped = plan.f_max is None and plan.fit is Fit.FITS
    said = [*([] if capped else [_interval(plan, findings)]), *plan.warnings]
    for number, text in enumerate(said):
        yield from paper.wrapped(text, label="" if number else "memory", hang=_LABEL)


def _interval(plan: PlanReport, findings: Sequence[FindingReport]) -> str:
    if plan.fit is Fit.NOWHERE:
        return reason(plan)
    low = "" if plan.f_min is None else f"above {_digits(plan.f_min)}"
    high = "" if plan.f_max is None else f"up to {_digits(plan.f_max)}"
    if not high:
        return f"such a start needs a fraction {low}; what this one lacked is not forecast."
    words = " and ".join(part for part in (low, high) if part) + (", by estimate" if plan.estimated else "")
    this = f"; {plan.fraction:g} {_PLANS[plan.fit]}" if plan.fit in _PLANS and plan.fraction is not None else ""
    if plan.fit is Fit.FITS and not plan.sure and plan.fraction is not None:
        this = f"; {plan.fraction:g} fits, but not surely"
    served = f"; {whole(plan)}" if whole(plan) else ""
    slow = (each for each in findings if each.severity not in (Severity.FATAL, Severity.ERROR))
    lower = [
        each.max for finding in slow for each in finding.remedies if each.knob in KNOBS and each.move is Move.LOWER
    ]
    most = min((each for each in lower if isinstance(each, float)), default=None)
    less = (
        "" if most is None or plan.f_max is None or most >= plan.f_max else f"; the remedy above wants at most {most:g}"
    )
    return f"such a start fits with a fraction {words}{this}{served}{less}. `gputuner plan` shows the rows."


def _digits(fraction: float | None) -> str:
    return "?" if fraction is None else f"{fraction:.4f}"


def _silence(report: Report) -> str:
    if report.outcome is Outcome.UNKNOWN:
        return ", but the log just ends: neither a readiness line nor a failure is in it"
    return ""


def _evidence(evidence: Sequence[EvidenceReport], paper: Paper) -> Iterator[str]:
    """Yield one row for each piece of evidence: what, value with unit, and file and line."""
    names = short_names(dict.fromkeys(each.file for each in evidence if each.file))
    rows = []
    for each in evidence:
        value = plain(value_text(each.value, each.unit, cut=isinstance(each, CutEvidenceReport)))
        where = "computed" if each.derived else f"line {each.line}"
        if len(names) > 1 and each.file:
            where = f"{plain(names[each.file])}:{each.line}"
        rows.append((plain(each.what), value, where))
    longest = max(len(row[1]) for row in rows)
    if longest <= paper.width // 3:
        inner = Paper(width=paper.width - _LABEL, colour=paper.colour, ascii=paper.ascii)
        for number, line in enumerate(inner.columns(rows, left=(0,))):
            yield (paper.ink(("" if number else "evidence").ljust(_LABEL), "dim") + line).rstrip()
        return
    for number, (what, value, where) in enumerate(rows):
        label = "" if number else "evidence"
        yield from paper.wrapped(f"{what}: {value} ({where})", label=label, hang=_LABEL)


def short_names(files: Iterable[str]) -> dict[str, str]:
    """Return a short name for each file: its path without the folders that all of them have in common."""
    parts = {file: file.rstrip("/").split("/") for file in files}
    same = 0
    while len(parts) > 1 and len({tuple(each[: same + 1]) for each in parts.values()}) == 1:
        same += 1
    return {file: "/".join(each[min(same, len(each) - 1) :]) for file, each in parts.items()}


def _who(numbers: Sequence[int] | None, ranks: Sequence[RankReport]) -> str:
    return ranks_text(numbers, {rank.rank: rank.tag for rank in ranks})


class _Row:
    """One phase of a start: the time and memory of each rank in it, by tag."""

    def __init__(self, name: str, label: str, spans: dict[str, PhaseReport], ranks: int) -> None:
        self.name, self.label, self.spans, self.ranks = name, label, spans, ranks

    def common(self, of: Callable[[PhaseReport], float | None]) -> float | None:
        """Return the value that most ranks have; None where no rank has one."""
        values = [value for span in self.spans.values() if (value := of(span)) is not None]
        return Counter(values).most_common(1)[0][0] if values else None

    def slowest(self) -> float | None:
        """Return the longest time of any rank in this phase, in seconds; None where no rank's time is known."""
        return max((span.seconds for span in self.spans.values() if span.seconds is not None), default=None)

    def odd(self) -> str:
        """Return the ranks whose numbers differ from the others', with those numbers; a count if more than 4."""
        found: dict[str, list[str]] = {}
        for words, of in (("before", _before), ("after", _after), ("used", _used)):
            common = self.common(of)
            for tag, span in self.spans.items():
                value = of(span)
                if value is not None and value != common:
                    found.setdefault(tag, []).append(f"{value:.2f} {words}")
        times = sorted(span.seconds for span in self.spans.values() if span.seconds is not None)
        middle = times[len(times) // 2] if times else 0.0
        for tag, span in self.spans.items():
            if span.seconds is not None and abs(span.seconds - middle) > max(_ODD_SECONDS, 0.2 * middle):
                found.setdefault(tag, []).insert(0, _time(span.seconds))
        if len(found) > _MANY:
            return f"{len(found)} ranks differ"
        return "  ".join(f"{tag} {', '.join(values)}" for tag, values in found.items())

    def unended(self) -> list[str]:
        """Return the tags of the ranks that began this phase and did not end it."""
        return [tag for tag, span in self.spans.items() if not span.ended]


def _before(span: PhaseReport) -> float | None:
    return span.before_gib


def _after(span: PhaseReport) -> float | None:
    return span.after_gib


def _used(span: PhaseReport) -> float | None:
    return span.used_gib


def _phases(ranks: Sequence[RankReport], files: Sequence[str]) -> Iterator[_Row]:
    """Yield the phases in the order of the start; one that a rank entered twice has two rows."""
    order: dict[tuple[str, int], dict[str, PhaseReport]] = {}
    for rank in ranks:
        seen: Counter[str] = Counter()
        for span in rank.phases:
            order.setdefault((span.phase, seen[span.phase]), {})[rank.tag] = span
            seen[span.phase] += 1
    part = {file: number for number, file in enumerate(files)}
    begun = {key: min((part.get(span.file, 0), span.line) for span in spans.values()) for key, spans in order.items()}
    known = {phase.value: number for number, phase in enumerate(START_PHASES)}
    for key in sorted(order, key=lambda each: (begun[each], known.get(each[0], 99))):
        yield _Row(key[0], _label(key, ranks), order[key], len(ranks))


def _label(key: tuple[str, int], ranks: Sequence[RankReport]) -> str:
    """Return a phase's name; for one of several graph captures, followed by what it captures."""
    name, number = key
    captures = max((rank.graphs for rank in ranks), key=len, default=())
    if name == Phase.GRAPH_CAPTURE and len(captures) > 1 and number < len(captures):
        return f"{name} {captures[number].what}"
    return name


def _table(rows: Sequence[_Row], report: Report, paper: Paper) -> Iterator[str]:
    cells: list[tuple[str, ...]] = [("phase", "time", "free before", "after", "used", "")]
    for row in rows:
        sizes = (_gib(row.common(of)) for of in (_before, _after, _used))
        cells += [(row.label, _time(row.slowest()), *sizes, _beside(row, report))]
    kept = [i for i in range(5) if i < 2 or any(line[i] for line in cells[1:])]
    table = [tuple(line[i] for i in (*kept, 5)) for line in cells]
    if any("GiB" in line for line in table) or len(kept) > 2:
        table[0] = (*table[0][:-1], "GiB")
    body = list(paper.columns(table, left=(0,)))
    yield paper.ink(body[0], "dim")
    yield from body[1:]


def _beside(row: _Row, report: Report) -> str:
    parts = []
    if row.name == Phase.KV_ALLOC and (tokens := {rank.memory.kv_tokens for rank in report.rank_report} - {None}):
        parts.append(f"{min(tokens):,} tokens")  # type: ignore[type-var]
    unended = row.unended() if report.outcome not in (Outcome.READY, Outcome.STOPPED) else []
    if unended:
        more = f" and {len(unended) - _MANY} more" if len(unended) > _MANY else ""
        every = len(unended) == row.ranks > 1
        named = everyone(row.ranks) if every else ", ".join(unended[:_MANY]) + more
        parts.append(f"not ended: {named}")
    if len(row.spans) < row.ranks:
        parts.append(f"{len(row.spans)} of {row.ranks} ranks")
    if odd := row.odd():
        parts.append(odd)
    return " · ".join(parts)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds, " s")


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
