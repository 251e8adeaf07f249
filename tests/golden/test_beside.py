"""What else writes to a server's log is not the server: lines of others, and of single requests, put into real logs."""

from __future__ import annotations

import random

import pytest

from tests.golden import diagnoses, evidence_cases
from tuner.domain.findings import Confidence, Finding, Severity

FRAMES = '  File "{}", line 12, in {}\n    run()\n'
TRACEBACK = "Traceback (most recent call last):\n"
CLIENT = (
    TRACEBACK + FRAMES.format("/app/client.py", "<module>") + FRAMES.format("/usr/lib/python3/requests/api.py", "get")
    + "requests.exceptions.ConnectionError: HTTPConnectionPool(host='llm', port=30000): Max retries exceeded"
)  # fmt: skip
LEFT = (
    "Task exception was never retrieved\n"
    "future: <Task finished name='Task-12' coro=<f() done> exception=ConnectionResetError(104, 'reset by peer')>\n"
    + TRACEBACK + FRAMES.format("/venv/uvicorn/protocols/http/h11_impl.py", "run_asgi")
    + "ConnectionResetError: [Errno 104] Connection reset by peer"
)  # fmt: skip
PROMPT = (
    "[2026-11-29 16:40:20] Receive: obj=GenerateReqInput(rid='a', text='Traceback (most recent call last):\\n"
    " torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB')"
)
IMAGE = (
    "[2026-11-29 16:40:20] Error in processing image\n" + TRACEBACK
    + FRAMES.format("/venv/sglang/srt/multimodal/processors/base_processor.py", "load")
    + "PIL.UnidentifiedImageError: cannot identify image file"
)  # fmt: skip
SHELL = "/entrypoint.sh: line 8:   77 Killed                  python3 warm_client.py"
ANYTIME = {"client": CLIENT, "prompt": PROMPT, "git": "fatal: not a git repository (or any of the parent directories)"}
SERVING = {"left": LEFT, "image": IMAGE}
HEALTHY = [
    name for name in evidence_cases.names()
    if not evidence_cases.label(name)["cause"] and evidence_cases.judged(name)[0].settings_at is not None
]  # fmt: skip
FAILED = [name for name in evidence_cases.names() if evidence_cases.label(name)["cause"]]
_PLACES = 2


def _root(findings: tuple[Finding, ...]) -> Finding | None:
    return next((each for each in findings if each.severity in (Severity.FATAL, Severity.ERROR)), None)


def _beside(name: str, seed: int) -> list[tuple[str, int, list[str]]]:
    """A log with each of the blocks at some places between its records, and never before its arguments."""
    lines, (start, _) = evidence_cases.lines(name), evidence_cases.judged(name)
    chance, found = random.Random(f"{name}{seed}"), []
    for what, block in (ANYTIME | SERVING).items():
        first = start.ready_at if what in SERVING else start.settings_at
        if first is None or (what != "client" and start.engine != "sglang"):
            continue
        for _ in range(_PLACES):
            at = chance.randrange(first, len(lines) + 1)
            if not any(failure.at <= at <= failure.end for failure in start.failures):
                found.append((what, at, [*lines[:at], *block.split("\n"), *lines[at:]]))
    return found


def _may_be_its_starter(what: str, found: Finding, *, ready: bool) -> bool:
    """The last thing in the log of a server that never became ready: a client's, or the script's that started it."""
    return what == "client" and not ready and (found.cause, found.confidence) == ("inconclusive", Confidence.LOW)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_server_stays_one(name: str) -> None:
    _, findings = evidence_cases.judged(name)
    told = _root(findings)
    for what, at, lines in _beside(name, 1):
        start, again = diagnoses.judged_lines(lines)
        assert start is not None
        other = _root(again)
        if other is not None and _may_be_its_starter(what, other, ready=start.ready_at is not None):
            continue
        assert (other and other.cause) == (told and told.cause), f"{what} behind line {at}"
        assert start.outcome != "failed"


@pytest.mark.parametrize("name", FAILED)
def test_the_root_of_a_failure_stays_the_root(name: str) -> None:
    told = _root(evidence_cases.judged(name)[1])
    for what, at, lines in _beside(name, 2):
        start, again = diagnoses.judged_lines(lines)
        assert start is not None
        other = _root(again)
        if told is None and other is not None and _may_be_its_starter(what, other, ready=start.ready_at is not None):
            continue
        shown = other and (other.cause, other.phase, other.ranks)
        assert shown == (told and (told.cause, told.phase, told.ranks)), f"{what} behind line {at}"


def test_a_client_that_was_killed_before_the_server_was_ready() -> None:
    ready = 0
    for name in HEALTHY:
        lines, (start, _) = evidence_cases.lines(name), evidence_cases.judged(name)
        if start.ready_at is not None and start.settings_at is not None and start.settings_at < start.ready_at:
            at = random.Random(name).randrange(start.settings_at, start.ready_at)
            again, _ = diagnoses.judged_lines([*lines[:at], SHELL, *lines[at:]])
            assert again is not None and again.outcome != "failed", name
            ready += 1
    assert ready > 20, "logs that tell arguments and then that the server is ready"
