"""Prometheus series: labels, replicas, and flags of a command line."""

from __future__ import annotations

import pytest

from tuner.engines.argv import as_int, read_flags
from tuner.engines.series import Sample, mean, parse_name, per_replica, read_series


@pytest.mark.parametrize(
    ("series", "name", "labels"),
    [
        ("a", "a", {}),
        ('a{b="1",c="x y"}', "a", {"b": "1", "c": "x y"}),
        ('a:b{c="quote \\" brace } comma ,",d="\\\\"}', "a:b", {"c": 'quote " brace } comma ,', "d": "\\"}),
        ("a{}", "a", {}),
        ('a{b="torn', "a", {}),
    ],
)
def test_names_and_labels(series: str, name: str, labels: dict[str, str]) -> None:
    assert parse_name(series) == (name, labels)


def test_what_is_no_number_is_left_out() -> None:
    assert set(read_series({"a": float("nan"), "b": float("inf"), "c": 1.0})) == {"c"}


def test_the_lowest_rank_speaks_for_a_replica() -> None:
    samples = [
        Sample("a", {"dp": "1", "tp": "10"}, 7.0),
        Sample("a", {"dp": "1", "tp": "2", "kind": "x"}, 3.0),
        Sample("a", {"dp": "1", "tp": "2", "kind": "y"}, 4.0),
        Sample("a", {"tp": "odd"}, 1.0),
    ]
    assert per_replica(samples, "dp", ("tp",)) == [1.0, 7.0]
    assert per_replica([], "dp", ("tp",)) == []


def test_mean_of_nothing_is_nothing() -> None:
    assert mean([]) is None
    assert mean([1.0, 2.0]) == 1.5


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        ("--a 1 --b=2.5 --c x y --d", {"a": 1, "b": 2.5, "c": ["x", "y"], "d": True}),
        ("--a-b -3 --e 1e-3 -t 2", {"a_b": -3, "e": 0.001, "tp": 2}),
        ("--a 007 --b= --c 1_000 --d 8k", {"a": "007", "b": "", "c": "1_000", "d": "8k"}),
        ("stray --a 1 --a 2", {"a": 2}),
        ("--json {} - -- --x", {"json": ["{}", "-"], "x": True}),
        ("--a " + "9" * 5000, {"a": "9" * 5000}),
        ("", {}),
    ],
)
def test_flags(argv: str, flags: dict[str, object]) -> None:
    assert read_flags(argv.split(), {"t": "tp"}) == flags


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3), ("4", 4), (2.0, 2), (None, 1), (True, 1), ("x", 1), ([2], 1), (1e999, 1), (10**9, 1)]
)
def test_as_int(value: object, number: int) -> None:
    assert as_int(value, 1) == number
