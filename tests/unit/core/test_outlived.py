"""Exceptions that a server outlives are no failures of it, and hide none that come later."""

from __future__ import annotations

import pytest

from tests.support.startlogs import ENGINES, SGLang, findings, read
from tuner.core.outcome import outcome_of
from tuner.domain.findings import Outcome

FRAME = '  File "/x/lib/python3.12/site-packages/uvicorn/a.py", line 3, in run'
ASGI = [
    "ERROR:    Exception in ASGI application",
    "Traceback (most recent call last):",
    FRAME,
    "ValueError: no such thing",
]
TASK = [
    "Task exception was never retrieved",
    "future: <Task finished name='Task-5' coro=<x()> exception=ConnectionResetError(104, 'Connection reset by peer')>",
    "Traceback (most recent call last):",
    FRAME,
    "ConnectionResetError: [Errno 104] Connection reset by peer",
]
REQUEST = [
    "[2026-02-26 20:01:00] Failed to log usage stats: Traceback (most recent call last):",
    FRAME,
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='a', port=443): Max retries exceeded",
]
PROMPT = ["[2026-02-26 20:01:00] Receive: obj=GenerateReqInput(rid='x', text='Traceback (most recent call last):')"]
BARE = ["Traceback (most recent call last):", FRAME, "RuntimeError: something"]
OPTIONAL = ["Traceback (most recent call last):", FRAME, "ImportError: libx.so: undefined symbol: y"]


def served() -> SGLang:
    return SGLang("0.5.9", tp=2).communicators().load().pool(200_000, 13.0, 8.0).capture(6.0).ready(200_000)


def decode(log: SGLang, count: int = 6) -> SGLang:
    for _ in range(count):
        log.rank(
            0, "Decode batch, #running-req: 4, #token: 4096, token usage: 0.10, cuda graph: True,"
            " gen throughput (token/s): 400.00, #queue-req: 0",
        )  # fmt: skip
    return log


@pytest.mark.parametrize(
    "lines", [ASGI, TASK, REQUEST, PROMPT, BARE], ids=["asgi", "task", "request", "prompt", "bare"]
)
def test_a_server_that_goes_on_has_not_failed(lines: list[str]) -> None:
    log = decode(served())
    log.lines += lines
    decode(log)
    assert outcome_of(read(log.lines)) is Outcome.READY
    assert findings(log.lines) == ()


@pytest.mark.parametrize("lines", [ASGI, TASK], ids=["asgi", "task"])
def test_what_ends_a_request_or_a_task_ends_no_idle_server(lines: list[str]) -> None:
    log = decode(served())
    log.lines += lines
    assert findings(log.lines) == ()


def test_an_optional_package_that_does_not_load_is_no_failure_of_a_start_that_works() -> None:
    log = served()
    log.lines[1:1] = OPTIONAL
    assert findings(log.lines) == ()


@pytest.mark.parametrize("lines", [ASGI, PROMPT, BARE], ids=["asgi", "prompt", "bare"])
def test_what_kills_a_server_later_is_found_behind_it(lines: list[str]) -> None:
    log = decode(served())
    log.lines += lines
    decode(log)
    failed = log.fail("RuntimeError: CUDA error: an illegal memory access was encountered", ["sglang/a.py:forward"])
    assert findings(failed.lines)[0].cause == "illegal-memory-access"


def test_an_exception_with_nothing_behind_it_is_the_end() -> None:
    log = decode(served())
    log.lines += BARE
    assert outcome_of(read(log.lines)) is Outcome.FAILED


def test_a_rank_that_raises_has_failed_whatever_others_still_print() -> None:
    log = decode(served())
    log.fail("RuntimeError: CUDA error: an illegal memory access was encountered", ["sglang/a.py:forward"])
    assert outcome_of(read(decode(log).lines)) is Outcome.FAILED


def test_a_prompt_that_quotes_another_version_is_no_wording_of_this_one() -> None:
    told = served()
    before = ENGINES["sglang"].infer_version(read(decode(told).lines))
    quoted = (
        "ValueError: Loaded weights leave no GPU memory for the KV cache. Watchdog timeout (self.watchdog_timeout=300)"
    )
    told.lines.append(f"[2026-02-26 20:01:00] Receive: obj=GenerateReqInput(rid='x', text='{quoted}')")
    assert ENGINES["sglang"].infer_version(read(told.lines)) == before
    told.lines.append(f"[2026-02-26 20:01:00 TP0] {quoted}")
    assert ENGINES["sglang"].infer_version(read(told.lines)) != before
