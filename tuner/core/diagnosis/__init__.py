"""Derive findings from the log of one start: why it failed, or why it is slow.

A judge is a pure function from a case to a finding or None; each module holds the judges of one family of causes. The
judges of failures run in order and the first finding wins. Specific judges come before general ones, so that NCCL's
own line about /dev/shm decides before `unhandled system error`. Judges of anything else (performance, information)
all run, and each may add a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuner.core.diagnosis import (
    communication,
    gates,
    host,
    kernels,
    launch,
    memory,
    named,
    performance,
    refusals,
    serving,
    settings,
    silence,
    sizing,
)
from tuner.core.diagnosis.case import Case
from tuner.core.engine import Engine
from tuner.core.quoted import Quotes
from tuner.core.roots import root_of
from tuner.domain.findings import Finding, Severity
from tuner.domain.starts import Start

JUDGES = (
    *launch.JUDGES,
    *communication.JUDGES,
    *kernels.JUDGES,
    *host.JUDGES,
    *sizing.JUDGES,
    *memory.JUDGES,
    *serving.JUDGES,
    *named.JUDGES,
    *refusals.LAST,
)
"""Judges of failures, in the order in which they run; the first finding wins."""


_ORDER = tuple(Severity)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, worst first; the sort is stable."""
    return tuple(sorted(findings, key=lambda each: _ORDER.index(each.severity)))


def diagnose(start: Start, engine: Engine, past: Sequence[Start] = ()) -> tuple[Finding, ...]:
    """Return the findings of one start, the root cause first.

    Args:
        start: The start, as read from its log.
        engine: The engine that was started.
        past: Starts of the same LLM on the same host that became ready, newest first; they improve forecasts.

    Returns:
        An empty tuple for a healthy start. If the start failed and no judge recognises the failure, the first finding
        is `inconclusive`. Each cause appears at most once.
    """
    root = root_of(start)
    case = Case(start, root, engine, past)
    findings: list[Finding] = []
    if root is not None:
        found = next((finding for judge in JUDGES if (finding := judge(case)) is not None), None)
        findings.append(found if found is not None else silence.unknown(case))
    asides = (judge(case) for judge in (*serving.ASIDES, *gates.JUDGES, *performance.JUDGES, *settings.JUDGES))
    findings.extend(by_severity(each for each in asides if each is not None))
    causes = [finding.cause for finding in findings]
    quotes = Quotes(start, engine)
    return tuple(quotes.placed(each) for index, each in enumerate(findings) if each.cause not in causes[:index])
