"""The arithmetic of a server's memory, against numbers that were printed by real servers and known model layouts."""

from __future__ import annotations

import math

import pytest

from tuner.core import fit
from tuner.core.fit import Capture, element_bytes
from tuner.units import GIB


@pytest.mark.parametrize(
    ("size_gib", "tokens", "parts", "cell"),
    [
        (53.20, 348_715, 2, 163_840),
        (69.52, 455_598, 2, 163_840),
        (59.98, 393_099, 2, 163_840),
        (10.42, 159_277, 1, 70_272),
    ],
)
def test_a_printed_pool_tells_its_cell_to_the_byte(size_gib: float, tokens: int, parts: int, cell: int) -> None:
    found = fit.printed_cell(size_gib, tokens, 1, parts)
    assert found is not None
    assert found.value == cell
    assert found.error < 1e-3


def test_a_small_pool_tells_its_cell_with_an_error() -> None:
    found = fit.printed_cell(3.06, 20_000, 1, 2)
    assert found is not None
    assert found.value * (1 - found.error) <= 163_840 <= found.value * (1 + found.error)


def test_tokens_come_in_whole_pages_and_keep_to_a_cap() -> None:
    assert fit.tokens_for(1.0, 1000, 64) % 64 == 0
    assert fit.tokens_for(1.0, 1000, 64) == GIB // 1000 // 64 * 64
    assert fit.tokens_for(1.0, 1000, 64, 1000) == 960
    assert fit.tokens_for(1.0, 0) == 0
    assert fit.tokens_for(math.nan, 1000) == 0


def test_graphs_of_a_measured_number_are_as_measured() -> None:
    found = fit.fit_captures([Capture(8, 32, 0.11), Capture(52, 512, 0.60)], 52)
    assert found is not None
    assert found.measured
    assert found.gib == 0.60


def test_graphs_of_another_number_are_estimated_with_an_error_that_holds() -> None:
    found = fit.fit_captures([Capture(8, 32, 0.11)], 52)
    assert found is not None
    assert not found.measured
    assert abs(found.gib - 0.60) <= found.error_gib
    larger = fit.fit_captures([Capture(8, 32, 0.11)], 52, 512)
    assert larger is not None
    assert (larger.gib, larger.error_gib) == (found.gib, pytest.approx(2 * found.error_gib)), "batches nobody captured"
    assert fit.fit_captures([Capture(8, 512, 0.11)], 52, 512) == found
    between = fit.fit_captures([Capture(8, 32, 0.11), Capture(52, 512, 0.60)], 30)
    assert between is not None
    assert 0.11 < between.gib < 0.60
    assert fit.fit_captures([], 8) is None
    none = fit.fit_captures([], 0)
    assert none is not None
    assert none.gib == 0


@pytest.mark.parametrize(
    ("known", "sizes", "largest", "measured"),
    [
        (Capture(58, 8192, 2.46), 50, 4096, 1.40),  # 40 layers
        (Capture(42, 2048, 0.57), 58, 8192, 2.20),  # 4 layers
        (Capture(58, 8192, 2.20), 42, 2048, 0.57),
        (Capture(42, 2048, 0.57), 50, 4096, 1.13),
    ],
)
def test_prefill_graphs_go_with_their_longest_step(known: Capture, sizes: int, largest: int, measured: float) -> None:
    found = fit.fit_prefill([known], sizes, largest)
    assert found is not None
    assert abs(found.gib - measured) <= found.error_gib
    assert found.gib >= measured - 0.1, "too much is safe, too little is not"
    same = fit.fit_prefill([known], known.sizes, known.largest)
    assert same is not None
    assert (same.gib, same.measured) == (known.gib, True)


def test_prefill_graphs_that_are_none_or_were_never_seen() -> None:
    none = fit.fit_prefill([], 0, 0)
    assert none is not None
    assert none.gib == 0
    assert fit.fit_prefill([], 58, 8192) is None


def test_a_pool_without_bound_has_no_more_tokens_than_can_be_counted() -> None:
    assert fit.tokens_for(1e300, 1.0) == 1 << 50


def test_nccl_buffers_by_channels_and_size() -> None:
    assert fit.nccl_gib(16, 4 << 20) * 1024 == 160
    assert fit.nccl_gib(16, 4 << 20, 3) * 1024 == 480
    assert fit.nccl_gib(2, 128 << 10) * 1024 == 12
    assert fit.nccl_gib(16, 16 << 20, 3) * 1024 == 1056


def test_the_size_of_an_element_counts_its_scales_and_knows_every_spelling() -> None:
    sizes = {"fp8_e4m3": 1.0, "float8_e5m2": 1.0, "int8": 1.0, "mxfp8": 1.03125, "nvfp4": 0.5625, "fp4_e2m1": 0.5625,
             "torch.bfloat16": 2.0, "BF16": 2.0, "half": 2.0, "fp16": 2.0, "float16": 2.0, "float32": 4.0}  # fmt: skip
    assert {name: element_bytes(name) for name in sizes} == sizes
    assert [element_bytes(name) for name in ("auto", "posit7", None, 8)] == [None] * 4
