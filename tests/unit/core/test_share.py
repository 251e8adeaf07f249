"""The line of a static share and the rounding of fractions, against numbers that real servers printed."""

from __future__ import annotations

import pytest

from tuner.core.fit import tokens_for
from tuner.core.forecast import MOST, Interval, interval
from tuner.core.share import down, least, least_value, line_of, on_cpu, share_of, up
from tuner.domain.starts import Figure, RankStory, Start
from tuner.units import GIB

KIMI = (512 + 64) * 61 * 2
"""Bytes of a token: 61 layers of latent attention."""


def test_the_pool_of_the_case_it_was_born_from() -> None:
    share = line_of(94.04, 21.71)
    assert tokens_for(share.pool(0.88), KIMI) == pytest.approx(159_277, abs=80)
    assert share.pool(0.55) == pytest.approx(-20.6, abs=0.05)
    assert tokens_for(share.pool(0.55), KIMI) == 0
    assert round(line_of(94.04, 21.70).f_min, 4) == 0.7692
    assert share.fraction(10.42) == pytest.approx(0.88, abs=3e-4)
    assert share.pool(share.fraction(100_000 * KIMI / GIB)) * GIB == pytest.approx(100_000 * KIMI)


def test_the_minimum_that_a_real_server_printed() -> None:
    assert interval(138.18, 73.93, 10.0) == Interval(0.465, 0.927, 0.927)


@pytest.mark.parametrize(("total", "available"), [(0.0, 1.0), (float("inf"), 1.0), (1.0, float("nan"))])
def test_there_is_no_minimum_without_numbers(total: float, available: float) -> None:
    assert interval(total, available, 1.0) == Interval()


def test_errors_and_failures_lower_what_is_safe_and_not_what_is_likely() -> None:
    assert interval(100.0, 50.0, 5.0, error=2.0) == Interval(0.5, 0.93, 0.95)
    assert interval(100.0, 50.0, 5.0, error=2.0, needed=9.0) == Interval(0.5, 0.91, 0.95), "the larger of the two"
    assert interval(100.0, 50.0, 5.0, needed=3.0) == Interval(0.5, 0.95, 0.95), "a failure allows no more than before"


def test_where_the_errors_leave_nothing_the_expected_values_bound() -> None:
    assert interval(100.0, 7.0, 5.0, error=2.0) == Interval(0.93, 0.95, 0.95, doubtful=True)


def test_all_of_it_is_never_safe() -> None:
    assert interval(100.0, 50.0, 0.0) == Interval(0.5, MOST, MOST)


def test_the_share_of_a_start_is_that_line() -> None:
    rank = RankStory(tag="TP0", number=0, before_weights=Figure(94.04, 3), after_weights=Figure(21.70, 5))
    share = share_of(Start(engine="sglang", ranks=(rank,)))
    assert share is not None
    assert (share.slope, share.rest, share.formula) == (94.04, 94.04 - 21.70, line_of(94.04, 21.70).formula)
    assert (share.before, share.after) == (Figure(94.04, 3), Figure(21.70, 5))


@pytest.mark.parametrize(
    ("start", "cpu"),
    [
        (Start(engine="sglang", settings={"device": "cpu"}), True),
        (Start(engine="sglang", settings={"device": "cuda"}), False),
        (Start(engine="vllm", settings={"device": "auto", "device_config": "cpu"}), True),
        (Start(engine="vllm", settings={"device_config": "cuda"}, version="0.11.0"), False),
        (Start(engine="vllm", version="0.11.0+cpu"), True),
        (Start(engine="vllm", version="0.11.1.dev3+gcafe.cpu"), True),
    ],
)
def test_a_server_on_a_cpu_is_known_by_its_arguments_or_its_build(start: Start, cpu: bool) -> None:
    assert on_cpu(start) is cpu


def test_told_fractions_are_rounded_to_their_safe_side() -> None:
    assert [up(each) for each in (0.7692, 0.88, 0.4650, 0.7690000001)] == [0.77, 0.88, 0.465, 0.769]
    assert [down(each) for each in (0.7692, 0.88, 0.9459, 0.9229999999)] == [0.769, 0.88, 0.945, 0.923]
    assert (up(0.51231, 4), down(0.51239, 4)) == (0.5124, 0.5123)


def test_the_least_of_all_ranks_is_a_number_that_can_be() -> None:
    ranks = [RankStory(tag="", number=n, weights_gib=Figure(gib, n)) for n, gib in enumerate((4.0, float("nan"), 3.0))]
    assert least(ranks, lambda rank: rank.weights_gib) == Figure(3.0, 2)
    assert least_value(ranks, lambda rank: rank.weights_gib) == 3.0
    assert least_value(ranks, lambda rank: rank.kv_gib) is None
