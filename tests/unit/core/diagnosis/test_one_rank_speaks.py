"""vLLM's first rank speaks for all: what is told of a start whose other ranks are silent about their weights."""

from __future__ import annotations

import pytest

from tests.support.startlogs import findings, oom
from tuner.domain.findings import Confidence, Finding, Severity

WORKER = "(Worker_TP{n} pid=3{n}) {level} 03-01 10:0{m} [gpu_worker.py:1] "
CORE = "(EngineCore pid=22) {level} 03-01 10:0{m} [core.py:1] "
HEAD = [
    "(APIServer pid=11) INFO 03-01 10:00:00 [utils.py:299] vLLM server version 0.19.0, serving model /models/x",
    "(APIServer pid=11) INFO 03-01 10:00:00 [utils.py:233] non-default args: {'model': '/models/x',"
    " 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.9}",
    *(WORKER.format(n=n, m="0:11", level="INFO") + f"world_size=2 rank={n} local_rank={n}"
      " distributed_init_method=tcp://127.0.0.1:48031 backend=nccl" for n in (0, 1)),
    *(WORKER.format(n=n, m="0:15", level="INFO") + "Starting to load model /models/x..." for n in (0, 1)),
    WORKER.format(n=0, m="0:46", level="INFO") + "Model loading took 65.70 GiB memory and 31.402731 seconds",
]  # fmt: skip
SIZED = [
    WORKER.format(n=0, m="1:06", level="INFO") + "Available KV cache memory: 3.10 GiB",
    CORE.format(m="1:06", level="INFO") + "GPU KV cache size: 20,316 tokens",
]
READY = [
    *SIZED,
    WORKER.format(n=0, m="1:27", level="INFO") + "Graph capturing finished in 21 secs, took 0.44 GiB",
    "(APIServer pid=11) INFO:     Application startup complete.",
]
STATS = (
    "(APIServer pid=11) INFO 03-01 10:02:07 [loggers.py:335] Engine 000: Avg prompt throughput: {rate} tokens/s, Avg"
    " generation throughput: {rate} tokens/s, Running: 64 reqs, Waiting: 3 reqs, GPU KV cache usage: 40.0%, Prefix"
    " cache hit rate: 22.5%"
)
WAIT = (
    CORE.format(m="3:07", level="INFO")
    + "No available shared memory broadcast block found in 60 seconds. This typically"
    " happens when some processes are hanging or doing some time-consuming work (e.g. compilation)."
)


def failed(error: str, tag: str = CORE) -> list[str]:
    prefix = tag.format(n=0, m="1:07", level="ERROR")
    return [
        f"{prefix}failed to start.",
        f"{prefix}Traceback (most recent call last):",
        f'{prefix}  File "/usr/lib/vllm/v1/engine/x.py", line 700, in run',
        f"{prefix}    call(*args)",
        f"{prefix}{error}",
    ]


def first(*lines: str) -> Finding:
    return findings([*HEAD, *lines])[0]


def test_a_core_that_finds_no_room_fails_behind_the_weights() -> None:
    lines = failed(
        "ValueError: To serve at least one request with the model's max seq len (131072), (20.0 GiB KV cache is needed,"
        " which is larger than the available KV cache memory (3.1 GiB). Based on the available memory, the estimated"
        " maximum model length is 20304."
    )
    finding = first(*SIZED[:1], *lines)
    assert (finding.cause, finding.phase) == ("context-exceeds-kv-pool", "kv-alloc")


def test_what_is_left_for_the_cache_is_told_where_it_is_less_than_nothing() -> None:
    budget = WORKER.format(n=0, m="1:06", level="INFO") + "Available KV cache memory: -2.41 GiB"
    finding = first(budget, *failed("ValueError: No available memory for the cache blocks. Try increasing it."))
    assert (finding.cause, finding.phase) == ("mem-fraction-too-low", "kv-alloc")
    assert finding.confidence is Confidence.HIGH
    assert "2.41 GiB" in finding.explanation
    assert {each.what: each.value for each in finding.evidence}["available KV cache memory"] == -2.41


@pytest.mark.parametrize("sized", [False, True])
def test_out_of_memory_without_telling_frames_is_placed_by_what_was_sized(sized: bool) -> None:
    message = oom("1.96 GiB", "512.00 MiB", capacity="79.11 GiB", in_use="78.50 GiB", allocated="76.10 GiB")
    finding = first(*(SIZED if sized else []), *failed(message, WORKER))
    assert finding.cause == ("mem-fraction-too-high-activation" if sized else "profile-run-oom")
    assert any(remedy.knob == "gpu_memory_utilization" for remedy in finding.remedies) is sized
    assert "request table" not in finding.explanation + "".join(remedy.why for remedy in finding.remedies)


def test_a_core_that_waits_again_and_again_while_it_serves_hangs() -> None:
    finding = first(*READY, STATS.format(rate=512.0), *[WAIT] * 5)
    assert (finding.cause, finding.severity) == ("watchdog-hang", Severity.ERROR)
    assert {each.what: each.value for each in finding.evidence}["requests that run"] == 64
    assert first(*READY, STATS.format(rate=512.0), *[WAIT] * 3, STATS.format(rate=0.0)).cause == "watchdog-hang"


@pytest.mark.parametrize(
    "lines",
    [
        [*READY, STATS.format(rate=512.0), WAIT],
        [*READY, STATS.format(rate=512.0), *[WAIT] * 5, STATS.format(rate=512.0)],
        [*[WAIT] * 5, *READY, STATS.format(rate=512.0)],
    ],
)
def test_a_long_step_is_no_hang(lines: list[str]) -> None:
    assert all(finding.cause != "watchdog-hang" for finding in findings([*HEAD, *lines]))
