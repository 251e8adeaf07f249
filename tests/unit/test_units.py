"""Numbers of settings and answers, of which a host may send any value."""

from __future__ import annotations

import math

import pytest

from tuner.units import MOST, real, whole


@pytest.mark.parametrize("value", [None, "7", True, False, [7], {}, math.nan, math.inf, -math.inf, 10**400])
def test_what_is_no_number_of_a_server_is_none(value: object) -> None:
    assert real(value) is None
    assert whole(value) is None


def test_numbers_are_taken_as_they_are() -> None:
    assert [real(value) for value in (7, -0.5, 1e300)] == [7.0, -0.5, 1e300]
    assert [whole(value) for value in (7, 6.7, -1, 0)] == [7, 7, -1, 0]
    assert (whole(MOST), whole(MOST + 1), whole(1e300)) == (MOST, None, None)
    assert whole((1 << 53) + 1) == (1 << 53) + 1, "no digit is lost"
