"""Why a start failed, or is slow: findings out of what its log tells.

A judge is a pure function from a case to a finding or None, one module per family of causes. For a failure the judges
are asked in order, and the first that knows it decides: specific ones stand before general ones, so that NCCL's own
line about /dev/shm decides before `unhandled system error`. What is no failure (performance, information) is judged
apart, and every judge of it may find something.
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
"""Of failures, in the order in which they are asked."""


_ORDER = tuple(Severity)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first; equal ones stay as they were."""
    return tuple(sorted(findings, key=lambda each: _ORDER.index(each.severity)))


def diagnose(start: Start, engine: Engine, past: Sequence[Start] = ()) -> tuple[Finding, ...]:
    """Findings of one start, the root cause first.

    Args:
        start: What its log tells.
        engine: Its engine.
        past: Good starts of the same LLM on the same host, newest first: they make forecasts better.

    Returns:
        Nothing for a healthy start. A start that failed for a reason its log does not hold has one finding,
        `inconclusive`.
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
