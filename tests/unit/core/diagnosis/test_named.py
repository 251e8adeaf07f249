"""Failures that one line names; and that every sign of a failure is read by a judge."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import tuner.core.diagnosis
import tuner.engines
from tests.support.small_logs import proposed, raised, sglang, shown, verdict, vllm
from tuner.domain.findings import Confidence, Meaning

UNREAD: dict[str, str] = {}
"""Signs of a failure that no judge reads, and why."""


def test_every_sign_of_a_failure_has_a_judge() -> None:
    sources = Path(tuner.core.diagnosis.__file__).parent.glob("*.py")
    code = "".join(path.read_text("utf-8") for path in sources)
    files = Path(tuner.engines.__file__).parent.rglob("signs.toml")
    signs = [sign for path in files for sign in tomllib.loads(path.read_text("utf-8"))["sign"]]
    unread = {sign["id"] for sign in signs if sign["kind"] == "failure" and f'"{sign["id"]}"' not in code}
    assert unread == UNREAD.keys()


def sized(**settings: object) -> str:
    error = "AssertionError: Memory pool size is too small"
    return sglang("kv-alloc", tp=1, **settings) + raised("", ("srt/managers/scheduler.py", "init_pools"), error=error)


def test_hardly_a_pool_needs_a_larger_fraction() -> None:
    finding = verdict(sized())
    assert (finding.cause, finding.confidence) == ("mem-fraction-too-low", Confidence.MEDIUM)
    assert proposed(finding)["mem_fraction_static"][0] == "raise"


def test_a_pool_that_was_asked_to_be_so_small() -> None:
    finding = verdict(sized(max_total_tokens=1))
    assert finding.cause == "bad-argument"
    assert list(proposed(finding)) == ["max_total_tokens"]


def test_vllms_own_word_that_the_weights_do_not_fit() -> None:
    finding = verdict(
        vllm("dist-init")
        + "(Worker_TP0 pid=213) ERROR 05-14 08:15:51 [gpu_model_runner.py:3210] Failed to load model - not enough GPU"
        " memory. Try lowering --gpu-memory-utilization to free memory for weights, increasing --tensor-parallel-size,"
        " or using --quantization.\n"
    )
    assert finding.cause == "weights-do-not-fit"
    assert "gpu_memory_utilization" not in proposed(finding)


NUMBERS = """torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)
Currently allocated     : 22.43 GiB
Requested               : 4.07 GiB
Device limit            : 39.39 GiB
Free (according to CUDA): 0 bytes
PyTorch limit (set by user-supplied memory fraction)
                        : 17179869184.00 GiB"""


def test_the_numbers_of_cudas_own_allocator() -> None:
    load = ("srt/model_loader/loader.py", "load_model")
    finding = verdict(sglang("weight-load", tp=1) + raised("", load, error=NUMBERS))
    assert finding.cause == "weights-do-not-fit"
    assert shown(finding)["tried to allocate"] == 4.07
    failed = [each.value for each in finding.evidence if each.meaning is Meaning.FAILED_ALLOCATION]
    assert failed == [4.07]
    without = verdict(sglang("weight-load", tp=1) + raised("", load, error=NUMBERS.partition("\n")[0]))
    assert (without.cause, without.confidence) == ("weights-do-not-fit", Confidence.LOW)


@pytest.mark.parametrize(
    ("error", "value"),
    [
        ("TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight"
         " loading for large models. Waited 600s. To increase the timeout, set the environment variable:"
         " VLLM_ENGINE_READY_TIMEOUT_S=600", 1200),
        ("TimeoutError: Timed out waiting for engines to send initial message on input socket.", None),
    ],
)  # fmt: skip
def test_an_engine_that_loads_for_longer_than_it_may(error: str, value: int | None) -> None:
    text = vllm("dist-init") + (
        "(APIServer pid=1) Traceback (most recent call last):\n"
        '(APIServer pid=1)   File "/vllm/v1/engine/utils.py", line 900, in wait_for_engine_startup\n'
        f"(APIServer pid=1) {error}\n"
    )
    finding = verdict(text)
    assert finding.cause == "start-timeout"
    assert proposed(finding)["VLLM_ENGINE_READY_TIMEOUT_S"] == ("raise", value)


@pytest.mark.parametrize(
    ("error", "confidence"),
    [
        ("operation not permitted when stream is capturing", Confidence.MEDIUM),
        ("operation failed due to a previous error during capture", Confidence.LOW),
    ],
)
def test_what_cannot_be_captured(error: str, confidence: Confidence) -> None:
    frame = ("srt/model_executor/cuda_graph_runner.py", "capture_one_batch_size")
    finding = verdict(sglang("graph-capture", tp=1) + raised("", frame, error=f"RuntimeError: CUDA error: {error}"))
    assert (finding.cause, finding.phase, finding.confidence) == ("capture-refused", "graph-capture", confidence)
    assert "mem_fraction_static" not in proposed(finding)
