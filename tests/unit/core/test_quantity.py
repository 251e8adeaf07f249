"""Amounts as logs print them."""

from __future__ import annotations

import math

import pytest

from tuner.core.quantity import Quantity, quantity


@pytest.mark.parametrize(
    ("text", "value", "unit", "gib"),
    [
        ("448.00 MiB", 448.0, "MiB", 0.4375),
        ("95.00 GiB", 95.0, "GiB", 95.0),
        ("79.15GiB", 79.15, "GiB", 79.15),
        ("0 bytes", 0.0, "bytes", 0.0),
        ("40.00 GB", 40.0, "GB", 37.2529),
        ("512331776kB", 512331776.0, "kB", 477.146),
        ("-7.96 GB", -7.96, "GB", -7.4133),
        ("1,024 KiB", 1024.0, "KiB", 0.000977),
    ],
)
def test_value_unit_and_size(text: str, value: float, unit: str, gib: float) -> None:
    found = quantity(text)
    assert found == Quantity(value, unit)
    assert found.gib == pytest.approx(gib, abs=1e-3)


def test_engines_that_say_gb_mean_gib() -> None:
    found = quantity("40.00 GB")
    assert found is not None
    assert found.gib_as_printed == 40.0
    assert Quantity(2.0, "GiB").gib_as_printed == 2.0


@pytest.mark.parametrize("number", [3, 2.5])
def test_a_number_alone_has_no_unit(number: float) -> None:
    assert quantity(number) == Quantity(float(number))
    assert Quantity(float(number)).bytes is None
    assert Quantity(float(number)).gib is None


@pytest.mark.parametrize("text", ["", "MiB", "1.2.3 GiB", "2 GiB free", "x" * 100, None, True, math.nan, math.inf])
def test_what_is_no_amount(text: object) -> None:
    assert quantity(text) is None
