"""The case that the project was born from: a run that works, and three that die after hours were put into NCCL.

Two of the logs are those of that day. The other two are built from them as their operators told of them: two NCCL
channels (21.78 GB free), and fraction 0.50 with custom all-reduce (21.70 GB free).
"""

from __future__ import annotations

import pytest

from tests.support.golden_starts import last_start
from tuner.core.compare import compare
from tuner.core.share import share_of
from tuner.domain.comparison import Comparison, Group, Origin, Role
from tuner.engines import load_engines

ENGINES = load_engines()
BASELINES = ("corpus/seed-1-baseline.log", "case/baseline-without-arguments.log")
FAILED = {
    "corpus/seed-3-custom-ar-055.log": (0.55, 21.70, -20.62, 0.7692),
    "case/two-channels-055.log": (0.55, 21.78, -20.54, 0.7684),
    "case/custom-ar-050.log": (0.50, 21.70, -25.32, 0.7692),
}


def against(baseline: str, name: str) -> Comparison:
    return compare(last_start(baseline), last_start(name), ENGINES["sglang"])


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("name", FAILED)
def test_the_fraction_is_the_difference_that_matters(baseline: str, name: str) -> None:
    fraction, free, pool, least = FAILED[name]
    comparison = against(baseline, name)
    (cause,) = comparison.explaining
    assert (cause.name, cause.good, cause.bad) == ("mem_fraction_static", 0.88, fraction)
    assert comparison.differences[0] is cause
    for words in (f"{free:.2f} - 94.04 x (1 - {fraction:g}) = {pool:.2f} GiB", f"above {least:.4f}"):
        assert words in cause.note
    assert comparison.bad.pool_gib == pytest.approx(pool, abs=0.005)
    assert comparison.bad.f_min == least
    assert comparison.summary.startswith(f"mem_fraction_static 0.88 -> {fraction:g} is the only change that matters")


def test_the_baseline_ran_at_088_by_its_arguments_and_by_its_pool() -> None:
    good = against(BASELINES[0], "corpus/seed-3-custom-ar-055.log").good
    assert (good.fraction, good.fraction_origin) == (0.88, Origin.RESOLVED)
    inferred = against(BASELINES[1], "corpus/seed-3-custom-ar-055.log").good
    assert (inferred.fraction, inferred.fraction_origin) == (0.88, Origin.EFFECTIVE)
    assert "1 - (21.71 - 10.42) / 94.04" in inferred.fraction_note
    assert inferred.model is None


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("name", FAILED)
def test_nccl_and_custom_all_reduce_are_acquitted_with_the_number_that_shows_it(baseline: str, name: str) -> None:
    comparison = against(baseline, name)
    taken = next(each for each in comparison.acquitted if each.name == "communicators")
    assert taken.group is Group.MEMORY
    said = {
        "corpus/seed-3-custom-ar-055.log": "0.42 against 0.39 GiB: 0.03 GiB, the pool lacks 20.6",
        "case/two-channels-055.log": "0.35 against 0.39 GiB: 0.04 GiB, the pool lacks 20.5",
        "case/custom-ar-050.log": "0.42 against 0.39 GiB: 0.03 GiB, the pool lacks 25.3",
    }
    assert taken.note == f"NCCL and custom all-reduce {said[name]}"
    assert not comparison.of(Role.POSSIBLE), "nothing else is left to suspect"


def test_the_switch_that_hours_went_into_is_acquitted_too() -> None:
    comparison = against(BASELINES[0], "corpus/seed-3-custom-ar-055.log")
    switch = next(each for each in comparison.acquitted if each.name == "disable_custom_all_reduce")
    assert (switch.good, switch.bad) == (True, False)
    assert "0.03 GiB, the pool lacks 20.6" in switch.note


def test_every_rank_is_told() -> None:
    taken = next(
        e for e in against(BASELINES[0], "corpus/seed-3-custom-ar-055.log").acquitted if e.name == "communicators"
    )
    assert [(pair.rank, pair.good, pair.bad) for pair in taken.pairs] == [
        *((rank, 0.39, 0.42) for rank in range(7)),
        (7, 0.34, 0.38),
    ]


def test_the_order_of_the_two_does_not_change_what_explains() -> None:
    turned = against("corpus/seed-3-custom-ar-055.log", "corpus/seed-1-baseline.log")
    (cause,) = turned.explaining
    assert (cause.good, cause.bad) == (0.55, 0.88)
    assert "-20.62 GiB" in cause.note


def test_lowering_the_fraction_made_it_worse() -> None:
    share = share_of(last_start("case/custom-ar-050.log"))
    assert share is not None
    assert share.pool(0.50) < share.pool(0.55) < 0 < share.pool(0.88)
    assert share.pool(share.f_min) == pytest.approx(0)


@pytest.mark.parametrize("name", ["case/two-channels-055.log", "case/custom-ar-050.log"])
def test_what_always_differs_is_noise(name: str) -> None:
    assert [each.name for each in against(BASELINES[0], name).of(Role.NOISE)] == ["random_seed"]


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("corpus/seed-3-custom-ar-055.log", {"SGLANG_FORCE_CUSTOM_AR_PCIE": "1"}),
        ("case/two-channels-055.log", {"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": "131072"}),
    ],
)
def test_variables_that_the_log_proves_are_acquitted(name: str, variables: dict[str, str]) -> None:
    acquitted = against(BASELINES[0], name).acquitted
    told = {each.name: each for each in acquitted if each.group is Group.ENVIRONMENT}
    assert {key: each.bad for key, each in told.items()} == variables
    assert all("the pool lacks 20." in each.note for each in told.values())
