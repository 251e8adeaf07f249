"""Proposals about the fraction: the right way, no further than the forecast, and none where a cap bounds the pool."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.startlogs import CAPTURE_FRAMES, ENGINES, PREFILL_FRAMES, SGLang, findings, oom, read
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import interval, larger_pool
from tuner.domain.findings import Finding, Move, Remedy, Severity
from tuner.domain.forecast import Fit
from tuner.domain.starts import Figure, RankStory, Start

FULL = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.1 -> 0.9"
DRAFT_FRAMES = ("managers/scheduler.py:run_scheduler_process", "speculative/eagle_worker.py:__init__")


def served(fraction: float = 0.88, extra: str = "", tokens: int = 0) -> SGLang:
    """A server whose pool is what its fraction leaves, or what its cap allows."""
    log = SGLang("0.5.9", weights=60.0, fraction=fraction, extra=extra).communicators().load()
    left = 94.0 - 60.0 - 94.0 * (1 - fraction)
    pool = tokens * 15_280 / 1e9 if tokens else left
    tokens = tokens or int(left * 65_536)
    return log.pool(tokens, pool, 34.0 - pool).capture(33.0 - pool, free=34.0 - pool).ready(tokens)


def of(finding: Finding, *knobs: str) -> list[Remedy]:
    return [each for each in finding.remedies if each.knob in knobs]


@pytest.mark.parametrize("fraction", [0.7, 0.8, 0.88])
def test_a_pool_that_was_too_small_takes_all_there_is(fraction: float) -> None:
    log = served(fraction).decode(900.0).rank(0, FULL).decode(900.0)
    (raised,) = of(findings(log.lines)[0], "mem_fraction_static")
    start = read(log.lines)
    then = ENGINES["sglang"].forecast(start, {"mem_fraction_static": raised.value})
    assert raised.move is Move.RAISE
    assert isinstance(raised.value, float) and isinstance(raised.min, float)
    assert fraction < raised.min <= raised.value == raised.max
    assert (then.fit, then.f_max) == (Fit.FITS, raised.max)


@pytest.mark.parametrize(("fraction", "said"), [(0.64, True), (0.7, False)])
def test_from_where_a_full_length_request_fits_is_said_if_it_did_not_yet(fraction: float, said: bool) -> None:
    log = served(fraction).decode(900.0).rank(0, FULL).decode(900.0)
    (raised,) = of(findings(log.lines)[0], "mem_fraction_static")
    assert ("it holds one request of the full" in raised.why) is said


def test_a_fraction_that_is_as_high_as_it_can_be_is_not_raised() -> None:
    log = served(0.98).decode(900.0).rank(0, FULL).decode(900.0)
    assert of(findings(log.lines)[0], "mem_fraction_static") == []


def test_where_a_cap_bounds_the_pool_it_is_turned_and_not_the_fraction() -> None:
    log = served(0.8, "max_total_tokens=20000", 20_000)
    full = findings(log.decode(900.0).rank(0, FULL).decode(900.0).lines)[0]
    assert [(each.knob, each.move) for each in of(full, "mem_fraction_static", "max_total_tokens")] == [
        ("max_total_tokens", Move.RAISE)
    ]
    log = served(0.8, "max_total_tokens=20000", 20_000)
    refused = "Input length (30000 tokens) exceeds the maximum allowed length (19994 tokens). Use a shorter input"
    (raised,) = of(findings(log.main(refused).lines)[0], "mem_fraction_static", "max_total_tokens")
    assert (raised.knob, raised.move, raised.min) == ("max_total_tokens", Move.RAISE, 32768)
    log = served(0.8, "max_total_tokens=20000", 20_000).prefill(8192)
    failed = findings(log.fail(oom("1.20 GiB", "0.90 GiB"), PREFILL_FRAMES).lines)[0]
    assert [(each.knob, each.move) for each in of(failed, "mem_fraction_static", "max_total_tokens")] == [
        ("max_total_tokens", Move.LOWER)
    ]


def test_at_the_minimum_itself_there_is_no_pool() -> None:
    (lower,) = of(findings(captured("context_length=64").lines)[0], "mem_fraction_static")
    assert (lower.move, lower.min) == (Move.LOWER, 0.466)


def captured(extra: str) -> SGLang:
    """A server whose least fraction is 0.465 to four digits, and which has no room for its graphs at 0.95."""
    log = SGLang("0.5.9", before=100.0, weights=46.5, fraction=0.95, extra=extra).communicators().load()
    log.pool(200_000, 48.5, 5.0).capture(free=5.0)
    return log.fail(oom("448.00 MiB", "11.31 MiB"), CAPTURE_FRAMES)


def test_what_is_called_safe_holds_one_request_of_full_length_where_that_fits() -> None:
    (lower,) = of(findings(captured("context_length=65536").lines)[0], "mem_fraction_static")
    assert (lower.min, lower.serves, lower.value) == (0.466, 0.625, 0.875), "65,536 tokens take 15.9 GiB more"
    assert "from 0.625 on it holds one request of the full 65,536 tokens" in lower.why
    (lower,) = of(findings(captured("context_length=180000").lines)[0], "mem_fraction_static")
    assert (lower.min, lower.serves, lower.value) == (0.466, None, 0.875), "so long a request fits nowhere"
    assert "would need 0.902, so give a context length of at most about 168,000" in lower.why


def test_the_card_and_the_forecast_of_the_same_start_have_one_bound() -> None:
    log = captured("context_length=65536")
    (lower,) = of(findings(log.lines)[0], "mem_fraction_static")
    again = ENGINES["sglang"].forecast(read(log.lines), {})
    assert (lower.max, lower.serves) == (again.f_max, again.f_whole)


def test_a_lower_fraction_is_one_that_the_forecast_lets_pass() -> None:
    log = served(0.97, "chunked_prefill_size=65536").prefill(65_536)
    log.fail(oom("822.00 MiB", "656.06 MiB"), PREFILL_FRAMES)
    (lower,) = of(findings(log.lines)[0], "mem_fraction_static")
    start = read(log.lines)
    assert lower.value == ENGINES["sglang"].forecast(start, {}).f_max
    bounds = interval(Case(start, None, ENGINES["sglang"]))
    assert bounds is not None and lower.value == bounds.high


def test_no_fraction_works_is_only_said_where_one_is_known() -> None:
    log = SGLang("0.5.9", fraction=None, extra="speculative_algorithm='EAGLE'").communicators()
    log.each("Load weight begin. avail mem=2.00 GB").fail(
        oom("700.00 MiB", "300.00 MiB", capacity="3.00 GiB", in_use="2.70 GiB", allocated="2.50 GiB"), DRAFT_FRAMES
    )
    finding = findings(log.lines)[0]
    assert finding.cause == "draft-model-unbudgeted"
    assert "no fraction works" not in finding.explanation


def test_what_is_assumed_beside_a_pool_that_never_was_bounds_little() -> None:
    failed = SGLang("0.5.9", before=188.0, weights=160.0, fraction=0.8, extra="chunked_prefill_size=131072")
    start = read(failed.communicators().load().lines)
    assert ENGINES["sglang"].forecast(start, {}).f_max == 0.93


def test_another_backend_takes_its_factor_with_it() -> None:
    extra = "attention_backend='aiter'"
    start = read(SGLang("0.4.9", fraction=0.8, extra=extra).communicators().load().lines)
    changed = {"mem_fraction_static": 0.9, "attention_backend": "triton"}
    assert ENGINES["sglang"].forecast(start, {"mem_fraction_static": 0.9}).fraction == pytest.approx(0.765)
    assert ENGINES["sglang"].forecast(start, changed).fraction == 0.9


def vllm(**settings: object) -> Start:
    rank = RankStory(tag="", number=0, total_gib=Figure(79.11, 1), kv_gib=Figure(32.3, 2), kv_tokens=Figure(470_304, 2))
    given = {"gpu_memory_utilization": 0.9, "max_model_len": 32_768} | settings
    start = Start(engine="vllm", version="0.32.0", first=1, last=9)
    return msgspec.structs.replace(start, settings=given, given=given, ranks=(rank,))


def test_a_utilisation_is_raised_to_what_is_needed_and_what_fits() -> None:
    case = Case(vllm(), None, ENGINES["vllm"])
    raised = larger_pool(case, "more", need_gib=34.0)
    assert raised is not None
    assert isinstance(raised.value, float) and isinstance(raised.min, float) and isinstance(raised.max, float)
    assert 0.9 + 1.7 / 79.11 <= raised.min <= raised.value <= raised.max
    assert raised.max == ENGINES["vllm"].forecast(case.start, {}).f_max
    assert larger_pool(case, "more", need_gib=39.5) is None


@pytest.mark.parametrize("knob", ["num_gpu_blocks_override", "kv_cache_memory_bytes"])
def test_what_was_given_in_place_of_the_utilisation_is_raised(knob: str) -> None:
    raised = larger_pool(Case(vllm(**{knob: 100}), None, ENGINES["vllm"]), "more")
    assert raised is not None
    assert (raised.knob, raised.move) == (knob, Move.RAISE)


def test_throughput_is_what_it_mostly_was() -> None:
    log = served()
    for rate in (900.0, 890.0, 910.0):
        log.decode(rate)
    log.rank(0, FULL)
    for rate in (880.0, 870.0, 875.0, 60.0, 20.0):
        log.decode(rate)
    finding = findings(log.lines)[0]
    told = {each.what: each.value for each in finding.evidence}
    assert finding.severity is Severity.INFO
    assert (told["throughput before"], told["throughput after"]) == (900.0, 870.0)


def test_a_server_without_work_is_not_slow() -> None:
    log = served().decode(900.0).decode(900.0).rank(0, FULL).decode(880.0)
    for _ in range(4):
        log.decode(112.0, running=1)
    assert findings(log.lines)[0].severity is Severity.INFO


@pytest.mark.parametrize(("tokens", "quarter"), [(16_384, 4096), (16_385, 4096), (20_000, 8192), (6000, 2048)])
def test_a_pass_is_made_a_quarter_as_large(tokens: int, quarter: int) -> None:
    log = served().prefill(tokens).fail(oom("1.20 GiB", "0.90 GiB"), PREFILL_FRAMES)
    (smaller,) = of(findings(log.lines)[0], "max_prefill_tokens")
    assert smaller.value == quarter
