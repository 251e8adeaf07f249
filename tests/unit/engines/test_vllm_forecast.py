"""Forecasts of vLLM's memory: what a share of the card leaves for the KV cache, by version."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.golden_starts import last_start
from tuner.domain.forecast import Fit, Forecast, Source
from tuner.domain.starts import Failure, Figure, GraphCapture, RankStory, Sign, Start
from tuner.engines import load_engines
from tuner.engines.vllm import memory
from tuner.units import GIB

VLLM = load_engines()["vllm"]


def start(version: str = "0.32.0", **changes: Any) -> Start:
    """Qwen3 8B on two cards of 80 GB: 0.92 x 79.11 - 32.30 = 40.48 GiB beside the KV cache."""
    rank = RankStory(
        tag="TP0",
        number=0,
        before_weights=Figure(78.6, 5),
        total_gib=Figure(79.11, 5),
        weights_gib=Figure(36.0, 2),
        activation_gib=Figure(2.1, 5),
        kv_gib=Figure(32.3, 3),
        graphs=(GraphCapture(what="decode", at=4, used_gib=0.44),),
    )
    rank = msgspec.structs.replace(rank, **changes.pop("rank", {}))
    made = Start(
        engine="vllm",
        version=version,
        given={"model": "q", "max_model_len": 32_768, "tensor_parallel_size": 2, "max_num_batched_tokens": 8192},
        ranks=(rank, msgspec.structs.replace(rank, tag="TP1", number=1)),
        limits={"max_total_num_tokens": Figure(470_304, 3)},
        ready_at=6,
    )
    made.given.update(changes.pop("given", {}))
    return msgspec.structs.replace(made, settings=made.given, **changes)


def gib(forecast: Forecast, what: str) -> float:
    row = next(row for row in forecast.rows if row.what == what)
    assert row.size_bytes is not None
    return row.size_bytes / GIB


def test_the_same_start_again_is_as_it_was() -> None:
    again = VLLM.forecast(start(), {})
    assert (again.fit, again.fraction, again.kv_tokens) == (Fit.FITS, 0.92, 470_304)
    assert gib(again, "kv_pool") == pytest.approx(32.3, abs=0.01)
    assert sum(row.size_bytes or 0 for row in again.rows if row.rank == 0) / GIB == pytest.approx(79.11, abs=0.01)


def test_the_default_share_depends_on_the_version() -> None:
    assert memory.default_utilisation("0.19.1") == 0.9
    assert memory.default_utilisation("0.20.2") == 0.92
    assert memory.default_utilisation(None) == 0.92
    told = VLLM.effective_fraction(start())
    assert told is not None
    assert (told.value, told.said) == (0.92, None)


def test_the_least_share_holds_one_whole_request() -> None:
    low = VLLM.forecast(start(), {"gpu_memory_utilization": 0.5})
    assert low.fit is Fit.TOO_LOW
    assert low.f_min == pytest.approx((0.92 * 79.11 - 32.3 + 32_768 / 470_304 * 32.3) / 79.11, abs=2e-4)
    shorter = VLLM.forecast(start(), {"gpu_memory_utilization": 0.53, "context_length": 4096})
    assert shorter.fit is Fit.FITS


def test_the_most_is_what_is_free_when_a_worker_starts() -> None:
    high = VLLM.forecast(start(), {"gpu_memory_utilization": 0.99})
    assert (high.fit, high.f_max) == (Fit.TOO_HIGH, 0.987)
    crowded = VLLM.forecast(start(rank={"before_weights": Figure(70.0, 5)}), {})
    assert (crowded.fit, crowded.f_max) == (Fit.TOO_HIGH, 0.884)


def test_graphs_live_beside_the_share_before_0_20() -> None:
    old, new = VLLM.forecast(start("0.12.0"), {}), VLLM.forecast(start(), {"enforce_eager": True})
    assert old.f_max is not None
    assert old.f_max < 0.987, "room for graphs is not in the share"
    same = VLLM.forecast(start("0.12.0", given={"gpu_memory_utilization": 0.92}), {"enforce_eager": True})
    kept = VLLM.forecast(start("0.12.0", given={"gpu_memory_utilization": 0.92}), {})
    assert gib(same, "kv_pool") == pytest.approx(gib(kept, "kv_pool"))
    assert gib(new, "kv_pool") == pytest.approx(32.3 + 0.44, abs=0.01), "without graphs their estimate goes to the pool"
    off = VLLM.forecast(start(), {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": False})
    assert gib(off, "kv_pool") == pytest.approx(32.3 + 0.44, abs=0.01)


def test_eight_bit_kv_doubles_the_tokens() -> None:
    assert VLLM.forecast(start(), {"kv_cache_dtype": "fp8"}).kv_tokens == 2 * 470_304


def test_more_tokens_in_a_step_take_more_activations() -> None:
    more = VLLM.forecast(start(), {"max_num_batched_tokens": 32_768})
    row = next(row for row in more.rows if row.what == "activation")
    assert (row.source, row.size_bytes) == (Source.ESTIMATE, round(8.4 * GIB))
    assert gib(more, "kv_pool") == pytest.approx(32.3 - 6.3, abs=0.01)


def test_a_size_that_is_given_makes_the_share_play_no_part() -> None:
    given = VLLM.forecast(start(), {"kv_cache_memory_bytes": 10 * GIB})
    assert gib(given, "kv_pool") == 10
    assert any("plays no part" in warning for warning in given.warnings)


def test_one_rank_instead_of_two_holds_all_weights() -> None:
    one = VLLM.forecast(start(), {"tp_size": 1})
    assert gib(one, "weights") == 72
    assert next(row.note for row in one.rows if row.what == "weights").endswith("on 1 rank instead of 2")
    assert one.fit is Fit.NOWHERE
    assert {row.rank for row in one.rows} == {0}


@pytest.mark.parametrize(("tp", "divides"), [(2, True), (4, True), (3, False)])
def test_heads_must_divide_by_the_ranks(tp: int, divides: bool) -> None:
    told = VLLM.forecast(start(), {"tp_size": tp})
    assert (told.fit, told.sure) == (Fit.FITS, tp == 2)
    assert any("attention heads must divide by" in each for each in told.warnings) is not divides


@pytest.mark.parametrize(("tokens", "sure"), [(2 * 470_304, True), (470_304, False), (None, False)])
def test_more_ranks_may_hold_copies_of_kv_heads(tokens: int | None, sure: bool) -> None:
    four = start(given={"tensor_parallel_size": 4}, limits={} if tokens is None else
                 {"max_total_num_tokens": Figure(tokens, 3)})  # fmt: skip
    told = VLLM.forecast(start(), {"tp_size": 4}, [four])
    assert (told.fit, told.sure) == (Fit.FITS, sure)
    assert any("hold copies of them" in each and "down to 50%" in each for each in told.warnings) is not sure


@pytest.mark.parametrize("changes", [{"pp_size": 2}, {"cpu_offload_gb": 20}])
def test_what_is_not_forecast_does_not_surely_fit(changes: dict[str, int]) -> None:
    told = VLLM.forecast(start(), changes)
    assert (told.fit, told.sure) == (Fit.FITS, False)
    assert told.warnings[0] == f"what {next(iter(changes))} does to memory is not forecast"


@pytest.mark.parametrize(("tokens", "sure"), [(470_304, True), (20_000, False)])
def test_a_small_pool_of_unknown_context_is_no_sure_fit(tokens: int, sure: bool) -> None:
    told = VLLM.forecast(
        start(given={"max_model_len": None}, limits={"max_total_num_tokens": Figure(tokens, 3)}), {}
    )  # fmt: skip
    assert (told.fit, told.sure, told.context) == (Fit.FITS, sure, None)
    assert any("no log tells the context length" in each for each in told.warnings) is not sure


def test_the_errors_of_graphs_beside_the_share_lower_what_is_safe() -> None:
    """Up to 0.19 graphs live beside the share; none was seen, so 0.5 +- 0.5 GiB are assumed."""
    old = VLLM.forecast(start("0.11.0", rank={"graphs": ()}), {})
    assert old.f_max == 0.974, "1 - (1 + 0.5 + 0.5) / 79.11"
    assert VLLM.forecast(start("0.11.0"), {}).f_max == 0.981, "1 - (1 + 0.44 + 0.02) / 79.11: measured"


def test_the_least_that_starts_holds_one_request_of_full_length() -> None:
    again = VLLM.forecast(start(), {})
    assert (again.sure, again.context) == (True, 32_768)
    assert again.f_min is not None and again.f_whole is not None
    assert 0 <= again.f_whole - again.f_min < 0.001


def test_what_ran_out_of_memory_lowers_what_is_safe() -> None:
    lacking = Sign(id="cuda-oom", at=9, text="", fields={"tried": "1.50 GiB", "free": "0.50 GiB"})
    failed = Failure(at=8, end=9, message="CUDA out of memory", phase="decode")
    base = msgspec.structs.replace(start(), signs=(lacking,), failures=(failed,))
    again = VLLM.forecast(base, {})
    assert (again.f_max, again.fit) == (0.857, Fit.TOO_HIGH), "0.92 - (1 + 5 % of 79.11) / 79.11"
    assert VLLM.forecast(base, {"gpu_memory_utilization": 0.91}).fit is Fit.TOO_HIGH, "0.92 - 1 / 79.11 is 0.907"
    assert VLLM.forecast(base, {"gpu_memory_utilization": 0.9}).fit is Fit.FITS
    assert (VLLM.forecast(base, {"max_num_batched_tokens": 2048}).f_max or 0) > 0.98, "a smaller pass is another case"


@pytest.mark.parametrize("knob", ["max_num_batched_tokens", "max_running_requests"])
def test_sizes_of_millions_are_no_less_than_those_of_thousands(knob: str) -> None:
    fits = [VLLM.forecast(start(), {knob: size}).fit for size in (1_000_000, 2_000_000, 20_000_000)]
    assert Fit.FITS not in fits


def test_a_context_of_millions_is_read() -> None:
    assert VLLM.forecast(start(), {"context_length": 10_000_000}).context == 10_000_000


def test_sizes_of_graphs() -> None:
    assert len(memory.graph_sizes(512)) == 51
    assert memory.graph_sizes(8) == [1, 2, 4, 8]
    assert memory.largest_graph(256, 8192) == 512
    assert memory.largest_graph(16, 8192) == 32
    assert memory.largest_graph(256, 64) == 64


def test_a_log_that_does_not_tell_the_card() -> None:
    unknown = VLLM.forecast(last_start("corpus/vl-17939.log"), {})
    assert (unknown.fit, unknown.fraction) == (Fit.UNKNOWN, 0.95)
    assert any("the card's memory" in what for what in unknown.unknown)
    card = start(rank={"total_gib": None, "before_weights": None})
    assert VLLM.forecast(card, {}).fit is Fit.UNKNOWN
    assert VLLM.forecast(card, {}, [start()]).fit is Fit.FITS, "another start on the host tells it"


def test_graphs_of_past_starts_count_by_their_own_number() -> None:
    """51 graphs of the base, 11 of a past start: a line through both, and each as it was."""
    graphs = (GraphCapture(what="decode", at=4, used_gib=0.2),)
    few = start(given={"cudagraph_capture_sizes": list(range(8, 96, 8))}, rank={"graphs": graphs})
    again = VLLM.forecast(start(), {}, [few])
    assert gib(again, "graphs") == pytest.approx(0.44, abs=0.01)
    fewer = VLLM.forecast(start(), {"cuda_graph_bs": list(range(8, 96, 8))}, [few])
    assert gib(fewer, "graphs") == pytest.approx(0.2, abs=0.01)


def test_scaled_activations_leave_the_kv_cache_unsure() -> None:
    errors = []
    for batched in (8192, 16_384):
        made = VLLM.forecast(start(), {"max_num_batched_tokens": batched})
        errors.append(next(row.error_bytes or 0 for row in made.rows if row.what == "kv_pool") / GIB)
    assert errors[1] - errors[0] == pytest.approx(2.1 / 2, abs=0.05)


@pytest.mark.parametrize(("dtype", "warned"), [("xx", True), ("fp8", False), ("bfloat16", False), (None, False)])
def test_a_data_type_that_is_not_known_is_said_to_be(dtype: str | None, warned: bool) -> None:
    warnings = VLLM.forecast(start(), {"kv_cache_dtype": dtype}).warnings
    assert any("no data type known" in each for each in warnings) is warned


def test_a_size_that_is_given_has_to_fit_the_card() -> None:
    fits = [
        VLLM.forecast(start(), {"kv_cache_memory_bytes": int(size * GIB)}).fit for size in (32.3, 36, 38, 40, 0.000001)
    ]
    assert fits == [Fit.FITS, Fit.FITS, Fit.TOO_HIGH, Fit.TOO_HIGH, Fit.TOO_LOW]
    given = VLLM.forecast(start(), {"kv_cache_memory_bytes": int(32.3 * GIB)})
    assert given.fraction == pytest.approx(0.92, abs=5e-4), "as much as the share gave"


def test_what_only_the_first_rank_prints_holds_for_all() -> None:
    base = start()
    second = msgspec.structs.replace(base.ranks[1], weights_gib=None, activation_gib=None)
    told = VLLM.forecast(msgspec.structs.replace(base, ranks=(base.ranks[0], second)), {})
    for what in ("weights", "activation", "context"):
        sizes = {row.size_bytes for row in told.rows if row.what == what}
        assert len(sizes) == 1, what
