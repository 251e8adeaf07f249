"""Forecasts of SGLang's memory against starts that happened: from the log of one, what the others did."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.golden_starts import last_start
from tuner.domain.findings import Outcome
from tuner.domain.forecast import Fit, Forecast, Source
from tuner.domain.logs import LogFact
from tuner.domain.starts import Figure, GraphCapture, RankStory, Start
from tuner.engines import load_engines
from tuner.engines.sglang import links, memory
from tuner.engines.sglang.defaults import AutoInputs, auto_chunk, auto_fraction, auto_graph_bs, card_of, graph_sizes
from tuner.engines.sglang.defaults import prefill_sizes as prefill_sizes_of
from tuner.engines.sglang.shape import changed, shape_of
from tuner.units import GIB

SGLANG = load_engines()["sglang"]
REAL = "real/sglang-0.5.16-2xH200/{}/server.log"
TWO_CHANNELS = {
    "NCCL_MAX_NCHANNELS": 2,
    "NCCL_MIN_NCHANNELS": 2,
    "NCCL_BUFFSIZE": 128 << 10,
    "disable_custom_all_reduce": True,
}


def real(name: str) -> Start:
    return last_start(REAL.format(name))


def gib(forecast: Forecast, what: str, rank: int = 0) -> float:
    row = next(row for row in forecast.rows if row.what == what and row.rank == rank)
    assert row.size_bytes is not None
    return row.size_bytes / GIB


def error(forecast: Forecast, what: str) -> float:
    return max(row.error_bytes or 0 for row in forecast.rows if row.what == what) / GIB


def tokens(start: Start) -> int:
    return int(min(rank.kv_tokens.value for rank in start.ranks if rank.kv_tokens is not None))


def graphs(start: Start) -> float:
    return max(rank.graphs_gib or 0.0 for rank in start.ranks)


def left_after_graphs(start: Start) -> float:
    return min(rank.last_available.value for rank in start.ranks if rank.last_available is not None)


# From one real start, the others


def test_the_same_start_again_is_as_it_was() -> None:
    base = real("base")
    again = SGLANG.forecast(base, {})
    assert again.fit is Fit.FITS
    assert again.changed == {}
    assert again.kv_tokens == pytest.approx(tokens(base), rel=1e-4)
    assert gib(again, "graphs") == pytest.approx(graphs(base), abs=0.02)
    assert gib(again, "free") + gib(again, "activation") == pytest.approx(left_after_graphs(base), abs=0.05)
    total = sum(row.size_bytes or 0 for row in again.rows if row.rank == 0 and row.what != "context")
    assert total / GIB == pytest.approx(138.18, abs=0.05), "the rows add up to what was free before the weights"


def test_a_fraction_that_was_refused_is_refused() -> None:
    refused = SGLANG.forecast(real("base"), {"mem_fraction_static": 0.45})
    assert real("lowfrac").outcome is Outcome.FAILED
    assert refused.fit is Fit.TOO_LOW
    assert refused.f_min == 0.4650
    assert refused.kv_tokens == 0


def test_a_fraction_near_its_bound_is_ready_without_prefill_graphs() -> None:
    there = real("f97")
    near = SGLANG.forecast(real("base"), {"mem_fraction_static": 0.968})
    assert near.fit is Fit.FITS
    assert near.kv_tokens == pytest.approx(tokens(there), rel=1e-3)
    assert gib(near, "graphs") == pytest.approx(graphs(there), abs=0.05)
    (warning,) = near.warnings
    assert "switches prefill CUDA graphs off" in warning
    assert any("Disabling auto-selected prefill CUDA graph: only 3.63 GiB is free" in line.text for line in there.lines)
    assert float(warning.partition(": ")[2].split()[0]) == pytest.approx(3.63, abs=0.2)


def test_no_fraction_and_larger_graphs() -> None:
    there = real("auto512")
    chosen = SGLANG.forecast(real("base"), {"mem_fraction_static": None, "cuda_graph_max_bs": 512})
    assert chosen.fit is Fit.FITS
    assert chosen.fraction == 0.899
    assert chosen.kv_tokens == pytest.approx(tokens(there), rel=1e-3)
    assert gib(chosen, "graphs") == pytest.approx(graphs(there), abs=0.3)
    assert gib(chosen, "free") + gib(chosen, "activation") == pytest.approx(left_after_graphs(there), abs=0.5)


def test_a_second_log_makes_graphs_measured() -> None:
    chosen = SGLANG.forecast(real("base"), {"cuda_graph_max_bs": 512}, [real("auto512")])
    assert gib(chosen, "graphs") == pytest.approx(graphs(real("auto512")), abs=0.05)
    row = next(row for row in chosen.rows if row.what == "graphs")
    assert row.source is Source.MEASURED


def test_a_cap_on_the_tokens() -> None:
    there = real("retract")
    capped = SGLANG.forecast(real("base"), {"max_total_tokens": 20_000})
    assert capped.fit is Fit.FITS
    assert capped.kv_tokens == tokens(there) == 20_000
    assert gib(capped, "kv_pool") == pytest.approx(3.06, abs=0.02)
    assert gib(capped, "free") + gib(capped, "activation") == pytest.approx(left_after_graphs(there), abs=0.4)
    assert any("fewer than one request of 32,768" in warning for warning in capped.warnings)


def test_fewer_channels_and_no_custom_all_reduce() -> None:
    there = real("nccl2ch")
    moved = SGLANG.forecast(real("base"), TWO_CHANNELS)
    assert moved.fit is Fit.FITS
    assert moved.kv_tokens == pytest.approx(tokens(there), rel=5e-3)
    assert abs(gib(moved, "kv_pool") - 53.72) <= error(moved, "kv_pool")
    assert abs(gib(moved, "graphs") - graphs(there)) <= error(moved, "graphs")
    seen = SGLANG.forecast(real("base"), TWO_CHANNELS, [there])
    assert seen.kv_tokens == pytest.approx(tokens(there), rel=1e-3)
    assert gib(seen, "graphs") == pytest.approx(graphs(there), abs=0.05)


def test_each_graph_more_may_hold_buffers_of_links_that_nobody_measured() -> None:
    larger = {"cuda_graph_max_bs": 2048}
    times = len(graph_sizes("0.5.16", 2048)) / len(graph_sizes("0.5.16", 32))
    more = [error(SGLANG.forecast(real("base"), larger | links), "graphs") for links in (TWO_CHANNELS, {})]
    assert times > 8
    assert more[0] - more[1] == pytest.approx(1.0 + 0.25 * times, abs=0.01)


def test_custom_all_reduce_alone_takes_what_it_was_measured_to_take() -> None:
    evidence = "evidence/sglang-0.5.16-h200/{}/server.log"
    with_it, without = (last_start(evidence.format(name)) for name in ("tp2-ok-80l-f88", "tp2-oom-pool"))
    free = [min(rank.before_weights.value for rank in made.ranks if rank.before_weights) for made in (with_it, without)]
    settings = with_it.settings | {"disable_custom_all_reduce": True}
    gained = links.shift(with_it, [], shape_of(with_it, None), shape_of(Start(engine="sglang", version=with_it.version,
                         settings=settings), None), free[0])  # fmt: skip
    assert gained.gib == pytest.approx(free[1] - free[0], abs=0.011)


def test_back_from_the_start_that_reduced_otherwise() -> None:
    back = {
        "NCCL_MAX_NCHANNELS": None,
        "NCCL_MIN_NCHANNELS": None,
        "NCCL_BUFFSIZE": None,
        "disable_custom_all_reduce": False,
    }
    again = SGLANG.forecast(real("nccl2ch"), back, [real("base")])
    assert again.kv_tokens == pytest.approx(tokens(real("base")), rel=1e-3)


# The case of the README


def test_the_case_it_was_born_from() -> None:
    worked = last_start("corpus/seed-1-baseline.log")
    assert SGLANG.forecast(worked, {}).kv_tokens == pytest.approx(159_277, abs=80)
    failed = SGLANG.forecast(worked, {"mem_fraction_static": 0.55})
    assert failed.fit is Fit.TOO_LOW
    assert failed.f_min == pytest.approx(0.7692, abs=1.01e-4)
    pool = next(row for row in failed.rows if row.what == "kv_pool")
    assert "= -20.61 GiB" in pool.note
    assert failed.f_max is not None
    assert 0.92 < failed.f_max < 0.96
    channels = SGLANG.forecast(worked, {"NCCL_MAX_NCHANNELS": 2, "NCCL_BUFFSIZE": 128 << 10})
    assert channels.kv_tokens is not None
    assert abs(channels.kv_tokens - 159_277) < 3_000, "channels are not what a pool is made of"


def test_the_effective_fraction_without_the_line_of_arguments() -> None:
    worked = last_start("corpus/seed-1-baseline.log")
    bare = msgspec.structs.replace(worked, settings={}, settings_at=None)
    found = SGLANG.effective_fraction(bare)
    assert found is not None
    assert found.value == pytest.approx(0.88, abs=5e-4)
    assert found.said is None
    assert "from the KV pool" in found.how
    told = SGLANG.effective_fraction(worked)
    assert told is not None
    assert (told.value, told.said, told.at) == (0.88, 0.88, worked.settings_at)


def test_the_fraction_that_an_error_quotes() -> None:
    failed = last_start("real/sglang-0.5.16-2xH200/lowfrac/server.log")
    found = SGLANG.effective_fraction(msgspec.structs.replace(failed, settings={}))
    assert found is not None
    assert found.value == 0.45


@pytest.mark.parametrize(("name", "value"), [("sg-4895", 0.836), ("sg-5576", 0.475)])
def test_versions_that_reduce_the_fraction_of_multimodal_models(name: str, value: float) -> None:
    found = SGLANG.effective_fraction(last_start(f"corpus/{name}.log"))
    assert found is not None
    assert found.value == value
    assert found.said != value


def test_no_fraction_works_where_the_weights_do_not_fit() -> None:
    halved = SGLANG.forecast(last_start("corpus/seed-1-baseline.log"), {"tp_size": 4})
    assert halved.fit is Fit.NOWHERE
    assert len({row.rank for row in halved.rows}) == 4
    assert any("more GPUs" in warning for warning in halved.warnings)


@pytest.mark.parametrize(("name", "needed"), [("sg-5285", 14.17), ("sg-12306", 11.06)])
def test_a_start_that_ran_out_of_memory_does_not_fit_again(name: str, needed: float) -> None:
    failed = last_start(f"corpus/{name}.log")
    again = SGLANG.forecast(failed, {})
    assert again.fit is Fit.TOO_HIGH
    assert any(f"{needed:.2f} GiB beside the static share were not enough" in warning for warning in again.warnings)
    assert again.f_max is not None
    lower = SGLANG.forecast(failed, {"mem_fraction_static": again.f_max})
    assert lower.fit is Fit.FITS


def test_a_request_that_no_fraction_serves_bounds_nothing() -> None:
    huge = SGLANG.forecast(last_start("corpus/sg-14907.log"), {})
    assert huge.fit is Fit.FITS


def test_tokens_that_only_the_last_line_of_a_start_tells() -> None:
    told = last_start("corpus/sg-4048.log")
    old = msgspec.structs.replace(
        told, ranks=tuple(msgspec.structs.replace(rank, kv_tokens=None) for rank in told.ranks)
    )
    assert SGLANG.forecast(old, {}).kv_tokens == pytest.approx(59_868, rel=1e-3)


# Composed starts


def start(**changes: Any) -> Start:
    """A start of one 80 GB card, 8B model."""
    settings = {
        "model_path": "m", "mem_fraction_static": 0.85, "tp_size": 1, "chunked_prefill_size": 8192, "page_size": 1,
        "cuda_graph_max_bs": 256, "max_prefill_tokens": 16384,
    }  # fmt: skip
    rank = RankStory(
        tag="TP0",
        number=0,
        communicators_gib=Figure(0.3, 1),
        before_weights=Figure(78.58, 2),
        weights_gib=Figure(15.08, 3),
        after_weights=Figure(63.5, 3),
        kv_gib=Figure(51.71, 4),
        kv_tokens=Figure(423_624, 4),
        after_pool=Figure(11.0, 5),
        graphs=(GraphCapture(what="decode", at=6, used_gib=0.8),),
        last_available=Figure(9.5, 7),
    )
    rank = msgspec.structs.replace(rank, **changes.pop("rank", {}))
    fact = LogFact(
        kind="kv-pool", offset=4, text="KV Cache is allocated. #tokens: 423624, K size: 25.86 GB, V size: 25.85 GB"
    )
    made = Start(
        engine="sglang", version="0.5.9", settings=settings, settings_at=1, ranks=(rank,), facts=(fact,), ready_at=8,
        limits={"context_len": Figure(131_072, 8)},
    )  # fmt: skip
    settings.update(changes.pop("settings", {}))
    return msgspec.structs.replace(made, **changes)


def test_eight_bit_kv_doubles_the_tokens() -> None:
    before, after = SGLANG.forecast(start(), {}), SGLANG.forecast(start(), {"kv_cache_dtype": "fp8_e4m3"})
    assert before.kv_tokens is not None
    assert after.kv_tokens == pytest.approx(2 * before.kv_tokens, rel=1e-4)
    assert gib(after, "kv_pool") == pytest.approx(gib(before, "kv_pool"), abs=0.01)


def test_two_ranks_share_weights_and_heads() -> None:
    shared = SGLANG.forecast(start(), {"tp_size": 2})
    assert gib(shared, "weights", 1) == pytest.approx(7.54, abs=0.01)
    assert shared.kv_tokens is not None
    assert shared.kv_tokens > 2 * 423_624
    row = next(row for row in shared.rows if row.what == "weights")
    assert row.source is Source.ESTIMATE
    assert row.error_bytes


def test_latent_attention_is_not_divided() -> None:
    latent = start(
        facts=(LogFact(kind="kv-pool", offset=4, text="KV Cache is allocated. #tokens: 423624, KV size: 51.71 GB"),)
    )
    shared = SGLANG.forecast(latent, {"tp_size": 2})
    assert shared.kv_tokens is not None
    assert shared.kv_tokens < 2 * 423_624


def test_requests_and_context_size_their_table() -> None:
    few = SGLANG.forecast(start(), {"max_running_requests": 256, "context_length": 32_768})
    assert gib(few, "request_table") == pytest.approx(256 * 32_772 * 4 / GIB)
    assert gib(SGLANG.forecast(start(), {}), "request_table") == pytest.approx(2048 * 131_076 * 4 / GIB)


def test_a_page_rounds_the_tokens() -> None:
    assert SGLANG.forecast(start(), {"page_size": 64}).kv_tokens % 64 == 0  # type: ignore[operator]


DRAFT = {
    "settings": {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4},
    "rank": {"draft_weights_gib": Figure(2.0, 3), "draft_kv_gib": Figure(1.6, 5)},
}


def test_a_draft_counts_in_the_pool_from_0_5_14_on() -> None:
    late = SGLANG.forecast(start(**DRAFT), {"speculative_algorithm": None})
    early = SGLANG.forecast(start(version="0.5.14", **DRAFT), {"speculative_algorithm": None})
    assert late.kv_tokens == pytest.approx(423_624, rel=1e-3), "up to 0.5.13 the pool is sized before the draft comes"
    assert early.kv_tokens is not None
    assert early.kv_tokens > late.kv_tokens, "from 0.5.14 on its weights and pool go to the target's"
    with_it = SGLANG.forecast(start(**DRAFT), {})
    assert gib(with_it, "draft_weights") == 2.0
    assert gib(late, "free") > gib(with_it, "free") + 3


def test_a_draft_that_was_never_seen_is_not_guessed() -> None:
    unseen = SGLANG.forecast(start(), {"speculative_algorithm": "EAGLE"})
    assert any("draft" in what for what in unseen.unknown)
    assert unseen.fit is Fit.UNKNOWN


def test_states_of_linear_attention_take_their_share() -> None:
    hybrid = start(version="0.5.16", rank={"mamba_gib": Figure(10.0, 4), "kv_gib": Figure(41.71, 4)})
    same = SGLANG.forecast(hybrid, {})
    assert gib(same, "mamba") == pytest.approx(10.0, abs=0.05)
    more = SGLANG.forecast(hybrid, {"mamba_full_memory_ratio": 0.1})
    assert more.kv_tokens is not None
    assert same.kv_tokens is not None
    assert more.kv_tokens > same.kv_tokens


def test_stages_of_a_pipeline_are_bound_by_the_least() -> None:
    first = start(settings={"pp_size": 2}).ranks[0]
    second = msgspec.structs.replace(
        first, tag="PP1", number=1, after_weights=Figure(60.0, 3), kv_gib=Figure(48.2, 4), weights_gib=Figure(18.5, 3)
    )
    forecast = SGLANG.forecast(start(settings={"pp_size": 2}, ranks=(first, second)), {})
    assert {row.tokens for row in forecast.rows if row.what == "kv_pool"} == {forecast.kv_tokens}
    assert gib(forecast, "kv_pool", 0) > gib(forecast, "kv_pool", 1)


def test_what_was_seen_while_serving_counts_as_activation() -> None:
    seen = SGLANG.forecast(start(rank={"activation_gib": Figure(4.0, 9)}), {})
    row = next(row for row in seen.rows if row.what == "activation")
    assert (row.source, row.size_bytes) == (Source.MEASURED, 4 * GIB)
    assert seen.f_max is not None
    assert seen.f_max < (SGLANG.forecast(start(), {}).f_max or 0)


def test_a_fraction_the_engine_chose_itself_would_be_chosen_anew() -> None:
    own = start(settings={"mem_fraction_static": auto_fraction("0.5.9", AutoInputs(gpu_mib=81_559, graph_bs=256))})
    warned = SGLANG.forecast(own, {"cuda_graph_max_bs": 512})
    assert any("is what SGLang chooses by itself" in warning for warning in warned.warnings)


def test_numbers_that_are_missing_are_named() -> None:
    nothing = SGLANG.forecast(Start(engine="sglang", version="0.5.9"), {"mem_fraction_static": 0.9})
    assert nothing.fit is Fit.UNKNOWN
    assert len(nothing.unknown) == 3
    weights_only = start(rank={"kv_gib": None, "kv_tokens": None}, facts=())
    partly = SGLANG.forecast(weights_only, {})
    assert (partly.fit, partly.f_min) == (Fit.UNKNOWN, 0.1919)
    assert partly.unknown == ("bytes of a token: a start that allocated its KV pool tells them",)
    assert SGLANG.forecast(weights_only, {"mem_fraction_static": 0.1}).fit is Fit.TOO_LOW
    assert SGLANG.forecast(weights_only, {}, [start()]).fit is Fit.FITS, "another start of the LLM tells the rest"


# What SGLang chooses by itself


@pytest.mark.parametrize(
    ("gpu_mib", "tp1", "tp8"),
    [
        (24_564, 0.847, 0.806),
        (32_607, 0.885, 0.854),
        (40_960, 0.833, 0.805),
        (46_068, 0.851, 0.826),
        (81_559, 0.835, 0.818),
        (97_887, 0.863, 0.848),
        (143_771, 0.907, 0.897),
        (183_359, 0.857, 0.852),
    ],
)
def test_the_fraction_that_0_5_9_chooses(gpu_mib: float, tp1: float, tp8: float) -> None:
    for tp, fraction in ((1, tp1), (8, tp8)):
        inputs = AutoInputs(
            gpu_mib=gpu_mib,
            tp=tp,
            chunk=auto_chunk("0.5.9", gpu_mib),
            graph_bs=auto_graph_bs("0.5.9", gpu_mib, tp),
        )
        assert auto_fraction("0.5.9", inputs) == fraction
        drafted = auto_fraction("0.5.9", msgspec.structs.replace(inputs, speculative="EAGLE"))
        assert drafted <= fraction


@pytest.mark.parametrize(
    ("version", "tp", "fraction"),
    [("0.4.6", 1, 0.864), ("0.5.2", 1, 0.869), ("0.5.2", 2, 0.864), ("0.5.2", 4, 0.854), ("0.5.2", 8, 0.833)],
)
def test_the_fraction_that_older_versions_choose(version: str, tp: int, fraction: float) -> None:
    assert auto_fraction(version, AutoInputs(gpu_mib=97_887, tp=tp)) == pytest.approx(fraction, abs=5e-4)


def test_sizes_of_graphs_as_a_real_server_captured_them() -> None:
    captured = {g.what: list(g.sizes) for g in real("auto512").ranks[0].graphs}
    assert graph_sizes("0.5.16", 512) == captured["decode"]
    assert prefill_sizes_of(8192) == captured["prefill"]
    assert graph_sizes("0.5.16", 32) == list(real("base").ranks[0].graphs[-1].sizes)
    assert graph_sizes("0.5.9", 4, padding=False) == [1, 2, 3, 4]
    assert graph_sizes("0.5.9", 0) == []
    assert graph_sizes("0.5.9", 20, speculative=True)[-1] == 20


def test_the_card_by_what_was_free_on_it() -> None:
    assert card_of((138.18 + 1.07) * 1024) == (143_771, True)
    assert card_of((94.04 + 0.39) * 1024)[0] == pytest.approx(97_887, abs=20)
    assert card_of(50_000) == (50_600, False)


@pytest.mark.parametrize(
    ("version", "settings", "changes", "on"),
    [
        ("0.5.9", {"enable_piecewise_cuda_graph": True}, {"disable_piecewise_cuda_graph": False}, True),
        ("0.5.9", {"enable_piecewise_cuda_graph": True}, {"disable_piecewise_cuda_graph": None}, True),
        ("0.5.9", {"enable_piecewise_cuda_graph": True}, {"enable_piecewise_cuda_graph": False}, False),
        ("0.5.9", {}, {"disable_piecewise_cuda_graph": False}, False),
        ("0.5.9", {}, {"enable_piecewise_cuda_graph": True}, True),
        ("0.5.12", {"disable_piecewise_cuda_graph": True}, {"enable_piecewise_cuda_graph": False}, False),
        ("0.5.12", {"disable_piecewise_cuda_graph": True}, {"disable_piecewise_cuda_graph": False}, True),
        ("0.5.16", {"disable_prefill_cuda_graph": True}, {"disable_piecewise_cuda_graph": False}, True),
        ("0.5.16", {"disable_cuda_graph": True}, {"disable_piecewise_cuda_graph": False}, False),
        ("0.5.16", {}, {"cuda_graph_backend_prefill": "disabled"}, False),
    ],
)
def test_prefill_graphs_by_all_their_flags(
    version: str, settings: dict[str, Any], changes: dict[str, Any], on: bool
) -> None:
    """A flag that is turned does not make the forecast forget the other."""
    assert changed(shape_of(start(version=version, settings=settings), None), changes, None).prefill_graphs is on


def test_what_is_not_changed_still_sizes_the_graphs() -> None:
    base = shape_of(start(settings={"disable_cuda_graph_padding": True, "piecewise_cuda_graph_max_tokens": 512}), None)
    assert max(base.prefill_sizes) == 512
    assert changed(base, {"cuda_graph_max_bs": 32}, None).decode_sizes == tuple(range(1, 33))
    assert max(changed(base, {"chunked_prefill_size": 2048}, None).prefill_sizes) == 512
    assert max(changed(base, {"cuda_graph_max_bs_prefill": None}, None).prefill_sizes) == 8192


def test_symmetric_memory_is_of_the_size_that_the_environment_asks_for() -> None:
    base = shape_of(start(env={"SGLANG_SYMM_MEM_PREALLOC_GB_SIZE": "2"}), None)
    assert base.symmetric_gib == 0.0
    assert changed(base, {"enable_symm_mem": True}, None).symmetric_gib == 2.0
    assert changed(base, {"enable_symm_mem": True, "SGLANG_SYMM_MEM_PREALLOC_GB_SIZE": None}, None).symmetric_gib == 4.0


def test_a_request_table_of_known_size() -> None:
    assert memory.request_table_gib(2048, 262_144) == pytest.approx(2.0, abs=0.001)
    assert memory.request_table_gib(4096, 262_144) == pytest.approx(4.0, abs=0.001)


def test_graphs_beyond_all_measure_do_not_fall_back_to_those_there_were() -> None:
    huge = SGLANG.forecast(real("base"), {"cuda_graph_max_bs": 99_999})
    assert huge.fit is Fit.TOO_HIGH
    assert gib(huge, "graphs") > 10 * gib(SGLANG.forecast(real("base"), {}), "graphs")
