"""Serving: slots that are lost, refused or too few, and what is worth knowing without being a failure."""

from __future__ import annotations

import pytest

from tests.support.startlogs import POOL_FRAMES, PREFILL_FRAMES, SGLang, findings, read
from tuner.domain.findings import Move, Severity

IDLE_FRAMES = ("managers/scheduler.py:event_loop_overlap", "managers/scheduler.py:self_check_during_idle")
FULL = "KV cache pool is full. Retract requests. #retracted_reqs: {n}, #new_token_ratio: 0.1 -> 0.9"


def served(tokens: int = 20_000, **more: object) -> SGLang:
    log = SGLang("0.5.9", tp=2, fraction=0.88, **more).communicators().load()  # type: ignore[arg-type]
    return log.pool(tokens, tokens / 15_280, 8.0).capture(6.0).ready(tokens)


def test_lost_slots_are_counted() -> None:
    message = (
        "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=50000,"
        " available_size=1000, evictable_size=48900, protected_size=0"
    )
    finding = findings(served().fail(message, IDLE_FRAMES, [0]).lines)[0]
    assert (finding.cause, finding.phase) == ("kv-pool-leak", "idle-check")
    assert any(each.what == "lost" and each.value == 100 and each.derived for each in finding.evidence)
    assert not any(remedy.knob == "mem_fraction_static" for remedy in finding.remedies)


def test_one_retraction_without_a_loss_is_information() -> None:
    log = served().decode(900.0).decode(910.0).rank(0, FULL.format(n=1)).decode(905.0).decode(900.0)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.severity) == ("kv-pool-exhausted", Severity.INFO)
    assert finding.explanation.startswith("The KV pool was full once, and requests")


def test_a_retraction_that_costs_half_the_throughput_is_a_slowdown() -> None:
    log = served().decode(900.0).decode(910.0).rank(0, FULL.format(n=3)).decode(200.0).decode(190.0)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.severity, finding.phase) == ("kv-pool-exhausted", Severity.PERFORMANCE, "decode")
    moves = {remedy.knob: remedy.move for remedy in finding.remedies}
    assert moves["mem_fraction_static"] is Move.RAISE
    assert moves["max_running_requests"] is Move.LOWER


@pytest.mark.parametrize(
    ("extra", "line", "wary", "smaller"),
    [
        ("schedule_conservativeness=1.0, kv_cache_dtype='auto'", "", 1.3, True),
        ("schedule_conservativeness=2.0, kv_cache_dtype='fp8_e4m3'", "", 2.3, False),
        ("kv_cache_dtype='auto'", "Using KV cache dtype: torch.float8_e4m3fn", 1.3, False),
        ("kv_cache_dtype='auto'", "Using KV cache dtype: torch.bfloat16", 1.3, True),
    ],
)
def test_what_is_done_already_is_not_proposed(extra: str, line: str, wary: float, smaller: bool) -> None:
    log = served(extra=extra)
    if line:
        log.rank(0, line)
    for _ in range(6):
        log.decode(900.0).rank(0, FULL.format(n=1))
    proposed = {remedy.knob: remedy.value for remedy in findings(log.lines)[0].remedies}
    assert proposed["schedule_conservativeness"] == wary
    assert ("kv_cache_dtype" in proposed) is smaller


def test_many_retractions_are_a_slowdown_by_their_number() -> None:
    log = served()
    for _ in range(6):
        log.decode(900.0).rank(0, FULL.format(n=1))
    assert findings(log.lines)[0].severity is Severity.PERFORMANCE


@pytest.mark.parametrize(("asked", "found"), [(30_000, True), (40_000, False)])
def test_a_request_is_refused_by_the_pool_only_where_the_context_allows_it(asked: int, found: bool) -> None:
    limit = 19_994 if found else 32_763
    log = served().main(
        f"Input length ({asked} tokens) exceeds the maximum allowed length ({limit} tokens). Use a shorter input"
    )
    causes = [finding.cause for finding in findings(log.lines)]
    assert causes == (["context-exceeds-kv-pool"] if found else [])


def test_the_raised_fraction_holds_the_whole_context() -> None:
    log = served().main("Input length (30000) exceeds the maximum allowed length (19994)")
    finding = findings(log.lines)[0]
    raised = next(remedy for remedy in finding.remedies if remedy.knob == "mem_fraction_static")
    assert isinstance(raised.min, float)
    assert 94.0 * raised.min - 72.0 >= 32_768 / 15_280


@pytest.mark.parametrize("buffer", ["batch_prefill_tmp_v", "batch_decode_tmp_s"])
def test_a_workspace_of_fixed_size_is_no_gpu_memory(buffer: str) -> None:
    message = (
        f"RuntimeError: Failed to allocate memory for {buffer} with size 435814400 and alignment 16 in AlignedAllocator"
    )
    finding = findings(served().prefill(8192).fail(message, PREFILL_FRAMES, [1]).lines)[0]
    assert (finding.cause, finding.ranks) == ("flashinfer-workspace-too-small", (1,))
    assert not any(remedy.knob == "mem_fraction_static" for remedy in finding.remedies)
    assert any(isinstance(r.value, int) and r.value > 435_814_400 and r.env for r in finding.remedies)


def test_the_slots_of_requests_go_up_against_the_messages_advice() -> None:
    message = (
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`."
        " req_to_token_pool.available_size()=0, num_reqs=4,"
    )
    finding = findings(served().prefill(64).fail(message, PREFILL_FRAMES).lines)[0]
    assert finding.cause == "req-slots-exhausted"
    assert [remedy.move for remedy in finding.remedies] == [Move.RAISE]
    assert finding.wrong_advice


def test_slots_that_run_out_in_a_batch_are_not_cudas_memory() -> None:
    message = "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 9000 tokens."
    finding = findings(served().prefill(9000).fail(message, PREFILL_FRAMES).lines)[0]
    assert finding.cause == "kv-pool-exhausted"
    assert Move.LOWER not in {remedy.move for remedy in finding.remedies if remedy.knob == "mem_fraction_static"}


def test_numbers_have_words_and_not_the_names_of_fields() -> None:
    slots = (
        "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 4096 tokens.\n"
        "Available tokens: 3136\nself.token_to_kv_pool_allocator.available_size()=3000, evictable_size=136"
    )
    finding = findings(served().prefill(9000).fail(slots, PREFILL_FRAMES).lines)[0]
    told = {each.what: each.value for each in finding.evidence}
    assert (told["slots asked for"], told["slots to be had"]) == (4096, 3136)
    assert not told.keys() & {"needed_tokens", "available_tokens", "batch_tokens"}


@pytest.mark.parametrize(("blocks", "value"), [(-28, None), (3, 3)])
def test_requests_are_not_lowered_below_one(blocks: int, value: int | None) -> None:
    state = (
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed"
        f" max_mamba_cache_size={blocks} (total_rest_memory=-7.96 GB, mamba_cache_per_req=146.81 MB)."
    )
    log = SGLang("0.5.16", weights=60.0, fraction=0.7).communicators().load().fail(state, POOL_FRAMES)
    finding = findings(log.lines)[0]
    assert finding.cause == "mamba-pool-too-small"
    assert {"state blocks", "state of a request"} <= {each.what for each in finding.evidence}
    assert next(each.value for each in finding.remedies if each.knob == "max_running_requests") == value


def test_a_server_that_only_serves_gives_nothing() -> None:
    log = served().prefill(512)
    for rate in (500.0, 40.0, 900.0):
        log.decode(rate)
    assert findings(log.lines) == ()


def test_lost_slots_that_only_warn_are_an_error_of_a_server_that_lives() -> None:
    log = (
        served()
        .decode(900.0)
        .rank(0, "token_to_kv_pool_allocator memory leak detected! available_size=10, evictable_size=5")
    )
    finding = findings(log.decode(900.0).lines)[0]
    assert (finding.cause, finding.severity) == ("kv-pool-leak", Severity.ERROR)
    assert read(log.lines).outcome == "ready"


def test_the_soft_watchdog_ends_nothing() -> None:
    log = (
        served()
        .decode(900.0)
        .rank(0, "Scheduler watchdog timeout (self.watchdog_timeout=60, self.soft=True)")
        .decode(800.0)
    )
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.severity) == ("watchdog-hang", Severity.ERROR)
    assert read(log.lines).outcome == "ready"
