"""Out of memory by phase: the same message means another cause, and another direction of the fraction."""

from __future__ import annotations

import pytest

from tests.support.startlogs import CAPTURE_FRAMES, DECODE_FRAMES, LOAD_FRAMES, PREFILL_FRAMES, SGLang, findings, oom
from tuner.core.versions import at_least
from tuner.domain.findings import Finding, Move

VERSIONS = ("0.4.6", "0.5.2", "0.5.5", "0.5.9", "0.5.13", "0.5.16", "0.5.23")
DRAFT_FRAMES = ("managers/scheduler.py:run_scheduler_process", "speculative/eagle_worker.py:__init__")


def fraction_moves(finding: Finding) -> set[Move]:
    return {remedy.move for remedy in finding.remedies if remedy.knob == "mem_fraction_static"}


def loaded(version: str, **more: object) -> SGLang:
    return SGLang(version, tp=2, fraction=0.92, **more).communicators().load()  # type: ignore[arg-type]


def served(version: str = "0.5.9", **more: object) -> SGLang:
    return loaded(version, **more).pool(200_000, 13.0, 8.0).capture(6.0).ready(200_000)


@pytest.mark.parametrize("version", VERSIONS)
def test_while_weights_are_loaded_the_fraction_plays_no_part(version: str) -> None:
    log = SGLang(version, tp=2).communicators().each("Load weight begin. avail mem=94.00 GB")
    finding = findings(log.fail(oom("300.00 MiB", "20.00 MiB"), LOAD_FRAMES).lines)[0]
    assert (finding.cause, finding.phase, finding.ranks) == ("weights-do-not-fit", "weight-load", (0, 1))
    assert not fraction_moves(finding)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_in_graph_capture_the_fraction_goes_down(version: str, ranks: tuple[int, ...]) -> None:
    log = loaded(version).pool(200_000, 13.0, 2.0).capture(free=2.0)
    log.fail(oom("448.00 MiB", "311.31 MiB", private="224.00 MiB"), CAPTURE_FRAMES, ranks)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase) == ("mem-fraction-too-high-graph-capture", "graph-capture")
    assert finding.ranks == ranks
    assert fraction_moves(finding) == {Move.LOWER}
    lower = next(remedy for remedy in finding.remedies if remedy.knob == "mem_fraction_static")
    assert isinstance(lower.value, float) and 72 / 94 < lower.value < 0.92
    graphs = next(remedy for remedy in finding.remedies if remedy.knob == "cuda_graph_max_bs")
    assert graphs.flag == ("--cuda-graph-max-bs-decode" if at_least(version, "0.5.14") else "--cuda-graph-max-bs")


def test_a_failed_capture_of_prefill_steps_that_only_its_message_names_has_their_knobs() -> None:
    log = loaded("0.5.16").pool(200_000, 13.0, 2.0)
    log.each("Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4, 8, 4096], avail mem=2.00 GB")
    said = oom("1.94 GiB", "812.50 MiB").partition(": ")[2]
    message = (
        f"Exception: Capture prefill CUDA graph failed: {said}\nFail when using backend: breakable for prefill runner."
    )
    finding = findings(log.fail(message, ("managers/scheduler.py:run_scheduler_process",)).lines)[0]
    assert (finding.cause, finding.phase) == ("mem-fraction-too-high-graph-capture", "graph-capture")
    flags = {remedy.flag for remedy in finding.remedies}
    assert "--cuda-graph-max-bs-decode" not in flags
    assert {"--cuda-graph-backend-prefill", "--cuda-graph-max-bs-prefill"} <= flags


@pytest.mark.parametrize(("version", "known"), [("0.5.13", False), ("0.5.16", True), ("0.5.23", True)])
def test_graphs_of_prefill_steps_can_be_left_out_alone(version: str, known: bool) -> None:
    frames = ("managers/scheduler.py:run_scheduler_process", "model_executor/piecewise_cuda_graph_runner.py:capture")
    log = loaded(version).pool(200_000, 13.0, 2.0).capture(free=2.0).fail(oom("128.00 MiB", "108.31 MiB"), frames)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase) == ("mem-fraction-too-high-graph-capture", "graph-capture")
    proposed = {remedy.knob: remedy.move for remedy in finding.remedies}
    assert "cuda_graph_max_bs" not in proposed
    assert (proposed.get("cuda_graph_backend_prefill") is Move.SET) is known


def test_no_fraction_is_advised_that_would_fail_the_other_way() -> None:
    log = SGLang("0.5.9", before=94.0, weights=82.0, fraction=0.88).communicators().load()
    log.pool(9_000, 0.6, 0.8).capture(free=0.8).fail(oom("448.00 MiB", "11.31 MiB"), CAPTURE_FRAMES)
    finding = findings(log.lines)[0]
    assert "no fraction works" in finding.explanation
    assert not fraction_moves(finding)


def test_a_forward_pass_needs_room_beside_the_static_share() -> None:
    log = served().prefill(8192).fail(oom("1.20 GiB", "0.90 GiB"), PREFILL_FRAMES, [1])
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase, finding.ranks) == ("mem-fraction-too-high-activation", "prefill", (1,))
    assert fraction_moves(finding) == {Move.LOWER}
    assert any(remedy.knob == "chunked_prefill_size" and remedy.move is Move.LOWER for remedy in finding.remedies)
    assert any(each.what == "#new-token" and each.value == 8192 for each in finding.evidence)


def test_in_decode_the_running_requests_are_the_lever() -> None:
    log = served().decode(800.0).fail(oom("1.20 GiB", "0.90 GiB"), DECODE_FRAMES)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase) == ("mem-fraction-too-high-activation", "decode")
    assert any(remedy.knob == "max_running_requests" for remedy in finding.remedies)


def test_logits_of_a_prompt_are_told_by_their_size() -> None:
    frames = (*PREFILL_FRAMES, "layers/logits_processor.py:_get_logits")
    log = served().prefill(10_688).fail(oom("6.05 GiB", "5.94 GiB"), frames)
    finding = findings(log.lines)[0]
    assert finding.cause == "logprobs-oom"
    assert fraction_moves(finding) == {Move.LOWER}
    assert "151," in finding.explanation or "152," in finding.explanation  # words of the vocabulary


def test_a_draft_model_behind_the_pool_was_not_budgeted() -> None:
    log = loaded("0.5.9", extra="speculative_algorithm='EAGLE'").pool(200_000, 13.0, 3.0).capture(2.0)
    log.each("Load weight begin. avail mem=2.00 GB").fail(oom("700.00 MiB", "300.00 MiB"), DRAFT_FRAMES)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase) == ("draft-model-unbudgeted", "draft-init")
    assert Move.RAISE not in fraction_moves(finding)


def test_torch_compile_is_named_when_inductor_is_on_the_stack() -> None:
    frames = (*CAPTURE_FRAMES, "torch/_inductor/runtime/triton_heuristics.py:benchmark_all_configs")
    log = loaded("0.5.9", extra="enable_torch_compile=True").pool(200_000, 13.0, 5.0).capture(free=5.0)
    finding = findings(log.fail(oom("4.64 GiB", "2.87 GiB"), frames).lines)[0]
    assert finding.cause == "torch-compile-memory"
    assert finding.remedies[0].knob == "enable_torch_compile"


def test_autotuning_has_its_own_cause_and_switch() -> None:
    frames = ("model_executor/model_runner.py:kernel_warmup", "model_executor/model_runner.py:_flashinfer_autotune")
    log = loaded("0.5.10").pool(200_000, 13.0, 6.0).fail(oom("6.56 GiB", "6.14 GiB"), frames)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.phase) == ("moe-autotune-oom", "autotune")
    assert any(remedy.flag == "--disable-flashinfer-autotune" for remedy in finding.remedies)


def test_memory_that_was_gone_before_the_load_is_somebody_elses() -> None:
    log = SGLang("0.5.9", before=38.7).communicators().each("Load weight begin. avail mem=38.70 GB")
    message = oom("2.32 GiB", "2.27 GiB", capacity="79.25 GiB", in_use="36.80 GiB", allocated="36.46 GiB")
    finding = findings(log.fail(message, LOAD_FRAMES).lines)[0]
    assert finding.cause == "foreign-process-on-gpu"
    assert not fraction_moves(finding)


def test_fragmentation_is_only_denied_where_the_numbers_deny_it() -> None:
    log = served().prefill(4096)
    small = findings(log.fail(oom("1.20 GiB", "0.90 GiB", reserved="40.00 MiB"), PREFILL_FRAMES).lines)[0]
    assert any("expandable_segments" in advice for advice in small.wrong_advice)
    log = served().prefill(4096)
    large = findings(log.fail(oom("1.20 GiB", "0.90 GiB", reserved="5.00 GiB"), PREFILL_FRAMES).lines)[0]
    assert not any("expandable_segments" in advice for advice in large.wrong_advice)


def test_free_memory_that_shrinks_at_constant_load_is_a_leak_and_no_batch_too_large() -> None:
    log = served("0.5.5")
    for minute in range(12):
        log.lines.append(
            f"[2026-02-26 20:{10 + minute:02d}:00 TP0] Prefill batch, #new-seq: 1, #new-token: 2000, #cached-token: 0,"
            " token usage: 0.04, #running-req: 1, #queue-req: 0, "
        )
    finding = findings(log.fail(oom("88.00 MiB", "61.44 MiB"), PREFILL_FRAMES).lines)[0]
    assert finding.cause == "gpu-memory-leak-runtime"
    assert Move.LOWER not in fraction_moves(finding)
    first = served("0.5.5").prefill(2000).fail(oom("88.00 MiB", "61.44 MiB"), PREFILL_FRAMES)
    assert findings(first.lines)[0].cause == "mem-fraction-too-high-activation"


def test_a_prompt_that_is_longer_than_all_before_it_is_no_leak_although_its_chunks_are_as_large() -> None:
    def chunks(log: SGLang, minute: int, count: int) -> None:
        for second in range(count):
            log.lines.append(
                f"[2026-02-26 20:{minute:02d}:{second:02d} TP0] Prefill batch, #new-seq: 1, #new-token: 8192,"
                " #cached-token: 0, token usage: 0.04, #running-req: 1, #queue-req: 0, "
            )

    for last, cause in ((8, "mem-fraction-too-high-activation"), (3, "gpu-memory-leak-runtime")):
        log = served("0.5.5", extra="chunked_prefill_size=8192")
        for minute in range(10, 18):
            chunks(log, minute, 3)
            log.prefill(500)
        chunks(log, 20, last)
        finding = findings(log.fail(oom("88.00 MiB", "61.44 MiB"), PREFILL_FRAMES).lines)[0]
        assert finding.cause == cause


def test_a_driver_that_is_out_of_memory_prints_no_numbers() -> None:
    log = loaded("0.5.9").pool(200_000, 13.0, 0.6).capture(free=0.6)
    log.fail("RuntimeError: CUDA error: out of memory", CAPTURE_FRAMES)
    finding = findings(log.lines)[0]
    assert finding.cause == "mem-fraction-too-high-graph-capture"
    assert any(each.value == 0.6 for each in finding.evidence)


@pytest.mark.parametrize(
    ("reserved", "tried", "found"), [("12.50 GiB", "1.94 GiB", True), ("4.45 GiB", "6.05 GiB", False)]
)
def test_what_torch_holds_and_cannot_use_is_fragmentation(reserved: str, tried: str, found: bool) -> None:
    log = served().fail(oom(tried, "812.50 MiB", allocated="79.00 GiB", reserved=reserved), PREFILL_FRAMES)
    finding = findings(log.lines)[0]
    assert (finding.remedies[0].value == "expandable_segments:True") is found
    assert ("fragments" in finding.explanation) is found
    if found:
        assert "custom all-reduce" in finding.remedies[0].why
