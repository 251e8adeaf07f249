"""Numbers of settings and answers, of which a host may send any value."""

from __future__ import annotations

import math

import pytest

from tuner.units import MOST, format_small, real, whole


@pytest.mark.parametrize("value", [None, "7", True, False, [7], {}, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_number_of_a_server_is_none(value: object) -> None:
    assert real(value) is None
    assert whole(value) is None


def test_numbers_are_taken_as_they_are() -> None:
    assert [real(value) for value in (7, -0.5, 1e300)] == [7.0, -0.5, 1e300]
    assert [whole(value) for value in (7, 6.7, -1, 0)] == [7, 7, -1, 0]
    assert (whole(MOST), whole(MOST + 1), whole(1e300)) == (MOST, None, None)
    assert whole((1 << 53) + 1) == (1 << 53) + 1, "no digit is lost"


def test_a_small_size_is_not_shown_as_zero() -> None:
    sizes = (12.345, 0.1, 0.05, 1 / 1024, 0.000854, 1e-6, 0.0)
    assert [format_small(size) for size in sizes] == [
        "12.35 GiB", "0.10 GiB", "51.2 MiB", "1.0 MiB", "895.5 KiB", "1.0 KiB", "0.00 GiB",
    ]  # fmt: skip
