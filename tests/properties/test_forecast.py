"""What holds of every forecast: no start, however torn its log, makes it raise or contradict itself."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from tests.support.golden_starts import last_start
from tuner.core.engine import Engine
from tuner.core.forecast import MOST
from tuner.domain.forecast import Fit
from tuner.domain.logs import LogFact
from tuner.domain.starts import Figure, GraphCapture, RankStory, Start
from tuner.engines import load_engines

ENGINES = load_engines()
BASE = "real/sglang-0.5.16-2xH200/base/server.log"

sizes = st.one_of(st.floats(0, 200), st.sampled_from([-1.0, 0.0, 1e-9, 1e300, float("inf"), float("nan")]))
WHOLE = last_start(BASE).ranks[0]
FIGURES = [
    "communicators_gib", "before_weights", "weights_gib", "draft_weights_gib", "after_weights", "kv_gib",
    "draft_kv_gib", "mamba_gib", "kv_tokens", "after_pool", "activation_gib", "total_gib", "available_at_ready",
    "last_available",
]  # fmt: skip
capture = GraphCapture(what="decode", at=1, used_gib=0.5)
captures = st.sampled_from(
    [
        (),
        (capture,),
        (msgspec.structs.replace(capture, what="prefill", sizes=(4, 8)), capture),
        (msgspec.structs.replace(capture, what="piecewise", used_gib=None, sizes=(-1, 0)),),
        (capture, msgspec.structs.replace(capture, what="draft extend", used_gib=float("nan"))),
    ]
)


@st.composite
def torn_ranks(draw: st.DrawFn) -> RankStory:
    """A whole rank of which some figures are missing or are nonsense."""
    torn: dict[str, Any] = {
        name: None if size is None else Figure(size, 1)
        for name, size in draw(st.dictionaries(st.sampled_from(FIGURES), st.none() | sizes, max_size=5)).items()
    }
    return msgspec.structs.replace(WHOLE, number=draw(st.integers(0, 7)), graphs=draw(captures), **torn)


words = (
    st.none()
    | st.booleans()
    | st.integers(-2, 10**6)
    | st.sampled_from(
        [
            0.5,
            0.9,
            float("nan"),
            float("inf"),
            "",
            "fp8_e4m3",
            "EAGLE",
            "triton_mla",
            "[1, 2]",
            [1, 8],
            {"decode": {"bs": [1]}},
        ]
    )
)
keys = [
    "mem_fraction_static", "tp_size", "pp_size", "dp_size", "enable_dp_attention", "chunked_prefill_size",
    "max_running_requests", "max_total_tokens", "page_size", "context_length", "kv_cache_dtype", "cuda_graph_max_bs",
    "cuda_graph_bs", "cuda_graph_config", "speculative_algorithm", "disable_cuda_graph", "attention_backend",
    "gpu_memory_utilization", "tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "kv_cache_memory_bytes", "mamba_full_memory_ratio", "max_prefill_tokens", "block_size",
]  # fmt: skip
settings = st.dictionaries(st.sampled_from(keys), words, max_size=8)
facts = st.lists(
    st.sampled_from(
        [
            LogFact(kind="kv-pool", text="KV Cache is allocated. #tokens: 1, KV size: 1 GB", fields={"dtype": "fp8"}),
            LogFact(kind="kv-pool", text="KV Cache is allocated. #tokens: 1, K size: 1 GB, V size: 1 GB"),
        ]
    ),
    max_size=2,
).map(tuple)
starts = st.builds(
    Start,
    engine=st.just("sglang"),
    version=st.sampled_from(
        [None, "0.4.6", "<=0.4.9", "0.5.9", "0.5.14 - 0.5.18", "0.5.16", ">=0.5.21", "?", "0.32.0"]
    ),
    settings=settings,
    given=settings,
    env=st.dictionaries(st.sampled_from(["NCCL_BUFFSIZE", "NCCL_MAX_NCHANNELS"]), st.text(max_size=8), max_size=2),
    ranks=st.lists(torn_ranks(), max_size=2).map(tuple),
    limits=st.dictionaries(
        st.sampled_from(["context_len", "max_running_requests", "max_total_num_tokens"]),
        st.builds(Figure, st.integers(0, 10**7), st.just(1)),
        max_size=2,
    ),
    facts=facts,
)
CHANGES: dict[str, list[Any]] = {
    "mem_fraction_static": [None, 0.1, 0.85, 0.97],
    "gpu_memory_utilization": [None, 0.1, 0.92],
    "cuda_graph_max_bs": [None, 8, 512],
    "chunked_prefill_size": [None, -1, 2048],
    "max_running_requests": [None, 16, 4096],
    "kv_cache_dtype": [None, "auto", "fp8_e4m3"],
    "context_length": [None, 4096, 1_000_000],
    "tp_size": [None, 1, 2, 8],
    "speculative_algorithm": [None, "EAGLE"],
    "NCCL_MAX_NCHANNELS": [None, 2, 32],
    "NCCL_BUFFSIZE": [None, 131_072],
    "disable_custom_all_reduce": [None, True, False],
    "max_total_tokens": [None, 0, 1000],
    "no_such_knob": [1],
}
changes = st.dictionaries(st.sampled_from(sorted(CHANGES)), st.integers(0, 3), max_size=5).map(
    lambda chosen: {name: CHANGES[name][index % len(CHANGES[name])] for name, index in chosen.items()}
)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
@tries(deadline=None, max_examples=60)
@given(base=starts, wanted=changes, past=st.lists(starts, max_size=1))
def test_no_start_makes_it_raise(engine: Engine, base: Start, wanted: dict[str, Any], past: list[Start]) -> None:
    forecast = engine.forecast(base, wanted, past)
    if forecast.fit is Fit.UNKNOWN:
        assert forecast.unknown
    if forecast.fit is Fit.FITS:
        assert forecast.f_min is not None
        assert forecast.fraction is not None
        assert forecast.f_min < forecast.fraction
        assert forecast.f_max is None or forecast.fraction <= forecast.f_max or not forecast.sure
        assert forecast.f_max is not None or any("bounds the KV pool" in each for each in forecast.warnings)
        assert forecast.kv_tokens
    else:
        assert not forecast.sure
    if forecast.f_max is not None:
        assert forecast.f_max <= MOST
    msgspec.json.encode(forecast)
    engine.effective_fraction(base)


@tries(deadline=None, max_examples=100)
@given(low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_larger_fraction_never_shrinks_the_pool(low: float, high: float) -> None:
    engine, base = ENGINES["sglang"], last_start(BASE)
    first, second = sorted((low, high))
    less = engine.forecast(base, {"mem_fraction_static": first})
    more = engine.forecast(base, {"mem_fraction_static": second})
    assert less.kv_tokens is not None
    assert more.kv_tokens is not None
    assert less.kv_tokens <= more.kv_tokens
    assert (less.f_min, less.f_max) == (more.f_min, more.f_max), "the interval does not depend on the fraction"


@tries(deadline=None, max_examples=100)
@given(fraction=st.floats(0, 1))
def test_there_is_a_pool_exactly_above_the_minimum(fraction: float) -> None:
    forecast = ENGINES["sglang"].forecast(last_start(BASE), {"mem_fraction_static": fraction})
    assert forecast.f_min is not None
    assert forecast.f_max is not None
    if fraction > forecast.f_min + 2e-4:
        assert forecast.kv_tokens
        assert forecast.sure is (fraction <= forecast.f_max)
        assert forecast.fit is Fit.FITS if forecast.sure else forecast.fit in (Fit.FITS, Fit.TOO_HIGH)
    elif fraction < forecast.f_min - 2e-4:
        assert forecast.kv_tokens == 0
        assert forecast.fit is Fit.TOO_LOW


@tries(deadline=None, max_examples=100)
@given(wanted=changes, seed=st.integers(0, 999))
def test_the_order_of_changes_changes_nothing(wanted: dict[str, Any], seed: int) -> None:
    shuffled = list(wanted.items())
    random.Random(seed).shuffle(shuffled)
    engine, base = ENGINES["sglang"], last_start(BASE)
    assert engine.forecast(base, wanted) == engine.forecast(base, dict(shuffled))


@tries(deadline=None, max_examples=100)
@given(fraction=st.floats(0.47, 0.975))
def test_a_fraction_that_fits_fits_its_own_rows(fraction: float) -> None:
    forecast = ENGINES["sglang"].forecast(last_start(BASE), {"mem_fraction_static": fraction})
    assert forecast.fit is Fit.FITS
    free = [row.size_bytes for row in forecast.rows if row.what == "free"]
    assert min(size for size in free if size is not None) > 0
