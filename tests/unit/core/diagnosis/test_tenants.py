"""Other processes on the GPU, told from the server's own: by what torch counts, and by what was free before."""

from __future__ import annotations

import pytest

from tests.support.startlogs import (
    CAPTURE_FRAMES,
    DECODE_FRAMES,
    ENGINES,
    LOAD_FRAMES,
    POOL_FRAMES,
    PREFILL_FRAMES,
    SGLang,
    findings,
    oom,
    read,
)
from tuner.core.diagnosis import diagnose
from tuner.domain.findings import Confidence, Finding, Move
from tuner.domain.starts import Start

VERSIONS = ("0.4.6", "0.5.2", "0.5.9", "0.5.16", "0.5.23")


def beside(tried: str, free: str, *, held: str = "15.99 GiB", own: str = "78.90 GiB") -> str:
    """Torch's message on a card of 94.97 GiB where another process holds memory."""
    allocated = f"{float(own.split()[0]) - 0.8:.2f} GiB" if own else "78.00 GiB"
    text = oom(tried, free, in_use=own or "0", allocated=allocated)
    own_words = f"Including non-PyTorch memory, this process has {own or '0'} memory in use."
    others = f"Process 8923 has {held} memory in use."
    return text.replace(own_words, f"{own_words} {others}" if own else others)


def served(version: str = "0.5.16", before: float = 94.0, weights: float = 60.0) -> SGLang:
    log = SGLang(version, before=before, weights=weights, fraction=0.85).communicators().load()
    return log.pool(200_000, 13.0, 18.0).capture(16.0).ready(200_000, 16.0)


def moves(finding: Finding) -> set[Move]:
    return {remedy.move for remedy in finding.remedies if remedy.knob == "mem_fraction_static"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("frames", "phase"), [(PREFILL_FRAMES, "prefill"), (DECODE_FRAMES, "decode")])
def test_a_process_that_came_while_serving_is_somebody_elses(version: str, frames: tuple[str, ...], phase: str) -> None:
    log = served(version).prefill(8192).fail(beside("126.00 MiB", "30.62 MiB"), frames)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase, finding.ranks) == ("foreign-process-on-gpu", phase, (0,))
    assert finding.confidence is Confidence.HIGH
    assert not moves(finding)
    assert {"used by others": 15.99, "available after start": 16}.items() <= {
        each.what: each.value for each in finding.evidence
    }.items()


def test_one_that_came_while_graphs_were_captured_too() -> None:
    log = SGLang("0.5.16", weights=60.0, fraction=0.85).communicators().load().pool(200_000, 13.0, 18.0)
    log.capture(free=18.0).fail(beside("448.00 MiB", "11.31 MiB"), CAPTURE_FRAMES)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase) == ("foreign-process-on-gpu", "graph-capture")


def test_sums_that_do_not_add_up_are_less_certain() -> None:
    log = served().prefill(8192).fail(beside("126.00 MiB", "30.62 MiB", own="70.00 GiB"), PREFILL_FRAMES)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.confidence) == ("foreign-process-on-gpu", Confidence.MEDIUM)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(beside("126.00 MiB", "30.62 MiB", held="94.00 GiB", own=""), id="itself by number"),
        pytest.param(beside("126.00 MiB", "30.62 MiB", held="516.00 MiB", own="94.40 GiB"), id="a context"),
        pytest.param(beside("20.00 GiB", "1.00 GiB", held="3.00 GiB", own="90.90 GiB"), id="too little"),
    ],
)
def test_a_process_that_explains_nothing_is_not_blamed(message: str) -> None:
    finding = findings(served().prefill(8192).fail(message, PREFILL_FRAMES).lines)[0]
    assert finding.cause == "mem-fraction-too-high-activation"


def test_a_server_of_images_has_helpers_of_its_own() -> None:
    frames = (*PREFILL_FRAMES, "managers/mm_utils.py:general_mm_embed_routine")
    finding = findings(served().prefill(8192).fail(beside("126.00 MiB", "30.62 MiB"), frames).lines)[0]
    assert finding.cause != "foreign-process-on-gpu"


def test_many_passes_before_do_not_make_it_a_leak() -> None:
    log = served()
    for minute in range(12):
        log.lines.append(
            f"[2026-02-26 20:{10 + minute:02d}:00] Prefill batch, #new-seq: 1, #new-token: 2000, #cached-token: 0,"
            " token usage: 0.04, #running-req: 1, #queue-req: 0, "
        )
    finding = findings(log.fail(beside("126.00 MiB", "30.62 MiB"), PREFILL_FRAMES).lines)[0]
    assert finding.cause == "foreign-process-on-gpu"


REFUSED = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."


def refused(before: float, fraction: float = 0.85) -> Start:
    log = SGLang("0.5.16", before=before, weights=60.0, fraction=fraction).communicators().load()
    return read(log.fail(REFUSED, POOL_FRAMES).lines)


def judged(start: Start, past: Start) -> Finding:
    return diagnose(start, ENGINES["sglang"], (past,))[0]


def test_a_pool_that_had_room_in_an_earlier_start() -> None:
    good = read(served().lines)
    finding = judged(refused(66.0), good)
    assert (finding.cause, finding.confidence) == ("foreign-process-on-gpu", Confidence.MEDIUM)
    assert any(each.what == "used by others" and each.value == 28.0 for each in finding.evidence)
    assert not moves(finding)


@pytest.mark.parametrize(
    ("before", "fraction"),
    [pytest.param(93.5, 0.35, id="as much was free"), pytest.param(66.0, 0.3, id="too low without the other too")],
)
def test_a_fraction_that_is_too_low_whoever_is_there(before: float, fraction: float) -> None:
    assert judged(refused(before, fraction), read(served().lines)).cause == "mem-fraction-too-low"


@pytest.mark.parametrize(
    ("own", "words", "amount"),
    [("62.00 GiB", "somebody else", 32.9), ("", "not torch's", 16.7)],
    ids=["told", "untold"],
)
def test_what_this_process_holds_beside_torch_is_not_others(own: str, words: str, amount: float) -> None:
    """Context and NCCL are in what it has in use, and not in what torch allocated."""
    log = SGLang("0.5.16", before=66.0, weights=60.0).communicators().load()
    message = beside("2.00 GiB", "40.00 MiB", held="32.93 GiB", own=own)
    finding = findings(log.fail(message, LOAD_FRAMES).lines)[0]
    assert finding.cause == "foreign-process-on-gpu"
    assert {each.what: each.value for each in finding.evidence}["used by others"] == amount
    assert words in finding.explanation
