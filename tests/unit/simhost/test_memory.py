"""The memory formula against the cases that were worked out from real runs, and the sums."""

from __future__ import annotations

import pytest

from tuner.simhost import gpus
from tuner.simhost.engine import memory
from tuner.simhost.engine.memory import GIB, MIB


@pytest.mark.parametrize(
    ("fraction", "rest", "tokens"),
    [(0.50, -25.31, None), (0.55, -20.60, None), (0.848, 7.42, 113_336), (0.88, 10.426, 159_313)],
)
def test_the_case_of_the_fraction(fraction: float, rest: float, tokens: int | None) -> None:
    found = memory.pool_tokens(94.03, 21.71, fraction, memory.MLA_CELL_BYTES)

    assert 21.71 - 94.03 * (1 - fraction) == pytest.approx(rest, abs=0.006)
    if tokens is None:
        assert found <= 0
    else:
        # The inputs were printed with two decimals: 0.005 GiB are 76 tokens.
        assert found == pytest.approx(tokens, abs=76)


def test_a_token_of_multi_head_latent_attention_costs_what_the_model_says() -> None:
    assert memory.MLA_CELL_BYTES == 70_272


def test_pages_are_whole() -> None:
    assert memory.pool_tokens(94.03, 21.71, 0.88, memory.MLA_CELL_BYTES, page=64) % 64 == 0


@pytest.mark.parametrize(("requests", "context", "gib"), [(2_048, 262_144, 2.0), (4_096, 262_144, 4.0)])
def test_request_table(requests: int, context: int, gib: float) -> None:
    assert memory.request_table_bytes(requests, context) / GIB == pytest.approx(gib, abs=0.001)


def test_request_limit_is_clamped() -> None:
    assert memory.max_requests(159_277, 131_072) == 2_048
    assert memory.max_requests(10_000_000, 8_192) == 4_096


def test_graph_sizes_of_a_real_start() -> None:
    assert memory.graph_sizes(128) == [
        1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128,
    ]  # fmt: skip
    assert len(memory.graph_sizes(256)) == 36
    # As a real 0.5.16 with a chunk of 8,192 printed them.
    assert memory.prefill_graph_sizes(8_192)[-4:] == [6_656, 7_168, 7_680, 8_192]
    assert len(memory.prefill_graph_sizes(8_192)) == 58


def test_fewer_channels_take_less_and_never_more() -> None:
    base = memory.communicator_bytes({}, 0)
    few = memory.communicator_bytes({"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": "131072"}, 0)

    # 16 rings of 10 MiB against 2 of 6 MiB.
    assert base - few == (160 - 12) * MIB
    assert memory.communicator_bytes({}, 0, custom_all_reduce=True) - base <= 40 * MIB


def test_a_box_adds_up() -> None:
    rank = memory.RankMemory(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    box = memory.Box(capacity=10_000, foreign=[0, 77], ranks=[rank, rank])

    assert rank.total == 1_023
    assert rank.torch == 1_020
    assert (box.free(0), box.free(1), box.least_free()) == (8_977, 8_900, 8_900)


def test_the_card_is_the_one_of_the_story() -> None:
    assert gpus.TOTAL_BYTES // MIB == 97_887
    assert gpus.TOTAL_BYTES == gpus.CAPACITY_BYTES + gpus.RESERVED_BYTES + gpus.IDLE_BYTES
    free = gpus.CAPACITY_BYTES - memory.CONTEXT_BYTES - memory.communicator_bytes({}, 0)
    assert f"{free / GIB:.2f}" == "94.04"
    assert memory.pool_tokens(free / GIB, (free - memory.WEIGHTS_BYTES) / GIB, 0.88, memory.MLA_CELL_BYTES) == 159_277
