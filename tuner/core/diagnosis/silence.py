"""The finding for a failure whose cause is not in the log: it says so, and what to collect."""

from __future__ import annotations

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import DMESG, shortened
from tuner.core.roots import is_consequence
from tuner.domain.findings import Confidence, Evidence, Finding, Severity

_QUOTED = 240
_PYTHON = frozenset({"AttributeError", "TypeError", "KeyError", "IndexError", "NameError", "UnboundLocalError",
                     "ValueError", "AssertionError", "NotImplementedError", "ZeroDivisionError",
                     "ValidationError", "JSONDecodeError", "UnicodeDecodeError", "RecursionError"})  # fmt: skip
"""Exceptions that Python code raises itself; CUDA and NCCL raise others."""


def unknown(case: Case) -> Finding:
    """Return the `inconclusive` finding for a failure that no judge recognises."""
    root = case.root
    failure = root.failure if root is not None else None
    said = shortened(case.message.strip().partition("\n")[0], _QUOTED)
    if failure is not None and failure.exception:
        said = shortened(f"{failure.exception}: {failure.message.partition(chr(10))[0]}", _QUOTED)
    whole = case.start.settings_at is not None
    place = failure.message_at if failure is not None else root.at if root is not None else None
    words = "The start failed, and what the log holds does not tell why."
    if said:
        words = f"The first failure in the log is `{said}`. What it means is not known here."
    after = failure is not None and is_consequence(case.start, failure)
    if root is not None and root.sign is not None and root.sign.kind == "secondary":
        after = True
    if after and said:
        words = f"`{said}` only follows from a failure that another process printed before, or did not print at all."
        words += " The log does not hold it."
    where = _raised_in(case)
    own = (
        not after
        and failure is not None
        and (
            failure.exception in _PYTHON
            or (failure.exception == "RuntimeError" and case.root_sign("device-error") is None)
        )
    )
    if own and where:
        words += f" It was raised in {where}: neither CUDA nor NCCL reported it."
    return case.finding(
        "inconclusive",
        words,
        severity=Severity.FATAL,
        confidence=Confidence.LOW,
        evidence=[
            Evidence(what="first failure", value=said, at=place) if place is not None and said else None,
            Evidence(what="raised in", value=where, at=failure.at) if failure is not None and where and own else None,
        ],
        remedies=[
            case.advice("version", "the same words among the engine's issues; another version of it or of the package"
                        " that raised them"),
            None if whole else case.advice("log", "the whole log of this start, from its first line"),
        ] if own else [
            case.advice("log", "the lines before, of every process: standard output and errors together (2>&1)"),
            case.advice("dmesg", "whether the kernel ended a process", DMESG),
        ] if after else [
            case.advice("log", "the whole log of this start, from its first line" if not whole else
                        "the logs of all nodes, and what the kernel says: dmesg -T"),
            case.advice("debug", "run again with NCCL_DEBUG=INFO and CUDA_LAUNCH_BLOCKING=1"),
        ],
        refuted_by="the lines before this failure",
    )  # fmt: skip


def _raised_in(case: Case) -> str:
    """Return file and function of the innermost frame, as in `scheduler.py, check_memory`; empty without frames."""
    if not case.frames:
        return ""
    path, _, function = case.frames[-1].rpartition(":")
    name = path.replace("\\", "/").rpartition("/")[2]
    return f"{name}, {function}" if function and function != "<module>" else name
