"""What to say when the log does not hold the cause: that, and what to collect."""

from __future__ import annotations

from tuner.core.diagnosis.case import Case
from tuner.domain.findings import Confidence, Evidence, Finding, Severity

_QUOTED = 240


def unknown(case: Case) -> Finding:
    """Something failed, and no judge knows it."""
    root = case.root
    failure = root.failure if root is not None else None
    said = case.message.strip().partition("\n")[0][:_QUOTED]
    if failure is not None and failure.exception:
        said = f"{failure.exception}: {failure.message.partition(chr(10))[0]}"[:_QUOTED]
    whole = case.start.settings_at is not None
    words = "The start failed, and what the log holds does not tell why."
    if said:
        words = f"The first failure in the log is `{said}`. What it means is not known here."
    return case.finding(
        "inconclusive",
        words,
        severity=Severity.FATAL,
        confidence=Confidence.LOW,
        evidence=[Evidence(what="first failure", value=said, at=root.at)] if root is not None and said else [],
        remedies=[
            case.advice("log", "the whole log of this start, from its first line" if not whole else
                        "the logs of all nodes, and what the kernel says: dmesg -T"),
            case.advice("debug", "run again with NCCL_DEBUG=INFO and CUDA_LAUNCH_BLOCKING=1"),
        ],
        refuted_by="the lines before this failure",
    )  # fmt: skip
