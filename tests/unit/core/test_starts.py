"""What a start tells of itself."""

from __future__ import annotations

import random

from tests.support.small_logs import findings, raised, sglang, start_of, vllm
from tuner.core.reading import serving_phase, start_phase
from tuner.domain.findings import Outcome
from tuner.domain.starts import Start


def test_a_start_worked_where_its_log_says_ready_or_shows_that_it_served() -> None:
    assert Start(engine="sglang", ready_at=7, outcome=Outcome.FAILED).worked
    assert Start(engine="sglang", outcome=Outcome.READY).worked
    assert not Start(engine="sglang", outcome=Outcome.RUNNING).worked


INTERRUPTED = (
    'Traceback (most recent call last):\n  File "/usr/lib/python3.12/runpy.py", line 198, in _run_module_as_main\n'
    "    return _run_code(code, main_globals, None,\nKeyboardInterrupt\n"
)
FAILED = raised("TP0", ("srt/a.py", "run"), error="RuntimeError: other")


def test_ctrl_c_while_loading_stops_a_start_and_hides_no_failure_before_it() -> None:
    head = sglang("weight-load")
    assert start_of(head + INTERRUPTED).outcome is Outcome.STOPPED
    assert findings(head + INTERRUPTED) == ()
    assert start_of(head + INTERRUPTED + FAILED).outcome is Outcome.STOPPED
    assert start_of(head + FAILED + INTERRUPTED).outcome is Outcome.FAILED


DECODE = "[2026-03-01 10:01:05 TP0] Decode batch, #running-req: 4, #token: 900, token usage: 0.01, cuda graph: True\n"
PREFILL = "[2026-03-01 10:01:05 TP0] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00\n"
PASS = raised("TP0", ("srt/managers/scheduler.py", "run_batch"), error="RuntimeError: other")


def test_each_of_many_failures_has_the_phase_of_the_batch_line_before_it() -> None:
    chance = random.Random(16)
    parts = [chance.choice((DECODE, PREFILL, PASS)) for _ in range(300)]
    expected, last = [], "warmup"
    for part in parts:
        if part is PASS:
            expected.append(last)
        else:
            last = "decode" if part is DECODE else "prefill"
    start = start_of(sglang("graph-capture", tp=1) + "".join(parts))
    assert [failure.phase for failure in start.failures] == expected
    assert set(expected) == {"decode", "prefill"}
    first, last_batch = start.batches[0], start.batches[-1]
    assert serving_phase(start, first.at) == "runtime", "a line is not before itself"
    assert serving_phase(start, first.at + 1) == first.kind
    assert serving_phase(start, start.last + 1) == last_batch.kind


def test_the_bar_before_a_place_tells_the_phase_where_no_line_begins_one() -> None:
    bar = "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.00it/s]\n"
    start = start_of(sglang("args", tp=1) + bar)
    place = next(fact.offset for fact in start.facts if fact.kind == "progress")
    assert start_phase(start, None, place) == "args"
    assert start_phase(start, None, place + 1) == "weight-load"


def test_an_http_server_that_is_up_is_warmed_up_by_what_no_rank_says() -> None:
    up = "[2026-03-01 10:00:53] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)\n"
    start = start_of(sglang("graph-capture", tp=1) + up)
    place = next(fact.offset for fact in start.facts if fact.kind == "http-up")
    assert start_phase(start, None, place) == "graph-capture"
    assert start_phase(start, None, place + 1) == "warmup"
    assert start_phase(start, start.ranks[0].tag, place + 1) == "graph-capture"


def test_exceptions_whose_beginning_is_missing_are_told_so_one_by_one() -> None:
    headless = '  File "/opt/sglang/srt/x.py", line 11, in run\n    run()\nRuntimeError: other\n'
    start = start_of(sglang("ready", tp=1) + (headless + DECODE) * 3 + PASS + DECODE)
    assert [failure.whole for failure in start.failures] == [False, False, False, True]


def test_the_llm_of_a_start_has_one_name_whichever_engine_names_it() -> None:
    assert start_of(sglang("args")).model == "/models/x"
    assert start_of(vllm("args")).model == "/models/x"
    assert Start(engine="vllm", settings={"model": None, "model_tag": "org/y"}).model == "org/y"
    assert Start(engine="sglang", settings={"model": "b", "model_path": "a"}).model == "a"
    assert Start(engine="sglang", settings={"model_path": ""}).model is None
    assert Start(engine="sglang").model is None
