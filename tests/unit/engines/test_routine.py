"""What engines call routine: their batch and access lines of all versions, and no line with anything else in it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import tuner.engines
from tuner.core import facts as f
from tuner.core.sift import Routine, notable, shape
from tuner.engines import load_engines
from tuner.engines.catalogue import read_entries

ENGINES = load_engines()
FOLDER = Path(tuner.engines.__file__).parent
ROUTINE = Routine(engine.routine() for engine in ENGINES.values())
EXAMPLES = [
    (name, entry.kind, example.line)
    for name in ENGINES
    for entry, _ in read_entries(FOLDER / name / "logs.toml")
    for example in entry.example
]
BATCHES = [
    (name, line) for name, kind, line in EXAMPLES if kind in (f.DECODE, f.PREFILL, f.STATS) and not line.startswith("{")
]
MISSES = [
    miss.line
    for name in ENGINES
    for entry, _ in read_entries(FOLDER / name / "logs.toml")
    for miss in entry.near_miss
    if "Iteration(" not in miss.line
]
ACCESS = [
    ("sglang", '[2026-02-26 20:05:31] INFO:     127.0.0.1:40112 - "POST /v1/chat/completions HTTP/1.1" 200 OK'),
    ("sglang", '[2026-02-26 20:05:31] INFO:     127.0.0.1:40112 - "GET /health_generate HTTP/1.1" 200 OK'),
    ("sglang", 'INFO:     10.0.0.9:40112 - "GET /get_model_info HTTP/1.1" 200 OK'),
    ("sglang", '[2026-02-26 20:05:31] INFO:     fd00::1:40112 - "GET /v1/models HTTP/1.1" 200 OK'),
    ("vllm", 'INFO:     10.0.0.9:40112 - "GET /metrics HTTP/1.1" 200 OK'),
    ("vllm", '(APIServer pid=27) INFO:     10.0.0.9:40112 - "POST /v1/completions HTTP/1.1" 200 OK'),
    ("vllm", "(APIServer pid=27) INFO 11-02 09:20:40 [async_llm.py:273] Added request chatcmpl-8f3a0c11b2."),
]
MATTERS = [
    '[2026-02-26 20:05:31] INFO:     127.0.0.1:40112 - "POST /generate HTTP/1.1" 500 Internal Server Error',
    '[2026-02-26 20:05:31] INFO:     127.0.0.1:40112 - "GET /health HTTP/1.1" 503 Service Unavailable',
    '[2026-02-26 20:05:31] INFO:     127.0.0.1:40112 - "POST /flush_cache HTTP/1.1" 200 OK',
    '[2026-02-26 20:05:31] INFO:     127.0.0.1:40112 - "POST /update_weights_from_disk HTTP/1.1" 200 OK',
    '(APIServer pid=27) INFO:     10.0.0.9:40112 - "POST /sleep?level=1 HTTP/1.1" 200 OK',
    "[2026-02-26 20:05:31] INFO:     Shutting down",
    "[2026-02-26 20:05:31 TP0] Decode out of memory happened. #retracted_reqs: 4, #new_token_ratio: 0.4 -> 1.0",
    "",
]
INTRUDERS = [
    "[2026-02-26 20:05:31 TP3] Scheduler hit an exception: Traceback (most recent call last):",
    "[2026-02-26 20:05:31 TP3] Decode batch, #running-req: 1, #token: 2112",
    "Traceback (most recent call last):",
    "Fatal Python error: Aborted",
    "terminate called after throwing an instance of 'c10::Error'",
    "malloc(): corrupted top size",
    "srun: error: gpu-box: task 3: exited with exit code 1",
    "worker died with exit code 9",
    " Killed",
    "[rank3]:[E226 20:01:07 ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: ran for 600000",
    "gpu-box:1871:2044 [3] NCCL WARN Call to posix_fallocate failed : No space left on device",
    " NCCL version 2.27.5",
    "\u00e9",
    "\x1b[31m",
]


@pytest.mark.parametrize(("name", "line"), [*BATCHES, *ACCESS])
def test_what_a_busy_log_is_full_of_is_routine(name: str, line: str) -> None:
    assert Routine([ENGINES[name].routine()])(line)
    assert ROUTINE(line)
    assert not notable(line, ENGINES[name].routine())


@pytest.mark.parametrize("line", [*MATTERS, *MISSES])
def test_what_may_matter_is_not(line: str) -> None:
    assert not ROUTINE(line)
    assert notable(line, *(engine.routine() for engine in ENGINES.values()))


@pytest.mark.parametrize("line", [line for _, kind, line in EXAMPLES if kind not in (f.DECODE, f.PREFILL, f.STATS)])
def test_no_other_format_is_routine(line: str) -> None:
    assert not ROUTINE(line)


@pytest.mark.parametrize("line", [line for _, line in (*BATCHES, *ACCESS)])
def test_it_does_not_depend_on_digits(line: str) -> None:
    chance = random.Random(line)
    for _ in range(20):
        other = re.sub(r"\d", lambda _: chance.choice("0123456789"), line)
        assert ROUTINE(other)
        assert shape(other.encode()) == shape(line.encode())


@pytest.mark.parametrize("intruder", INTRUDERS)
@pytest.mark.parametrize("line", [line for _, line in (*BATCHES, *ACCESS)])
def test_what_was_written_into_such_a_line_is_seen(line: str, intruder: str) -> None:
    for at in range(len(line) + 1):
        torn = line[:at] + intruder + line[at:]
        assert not ROUTINE(torn), at
        assert shape(torn.encode()) != shape(line.encode())
        # A tag may be an actor's, whose line goes on behind it.
        assert not ROUTINE(line[:at] + intruder) or line[:at].endswith(("", ") ")[bool(at)])
