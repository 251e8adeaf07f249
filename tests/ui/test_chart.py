from __future__ import annotations

import pytest

from tests.support import states
from tuner.domain.server import SeriesPoint
from tuner.widgets.chart import draw, nice_bounds, sparkline
from tuner.widgets.glyphs import ASCII, UNICODE


def test_chart_has_its_size_and_axes() -> None:
    lines = draw(states.wave(), states.MONO, 50, 10, UNICODE)
    assert len(lines) == 10
    assert {len(line) for line in lines} == {50}
    assert "-10 min" in lines[-1]
    assert lines[-1].rstrip().endswith("now")
    assert lines[0].startswith("100")


def test_ascii_chart_draws_the_curve_in_ascii() -> None:
    body = "".join(line.split("┤")[-1].split("│")[-1] for line in draw(states.wave(), states.MONO, 50, 10, ASCII)[:-2])
    assert "*" in body
    assert body.isascii()


def test_too_little_gives_nothing() -> None:
    assert draw((), 0.0, 50, 10, UNICODE) == []
    assert draw((SeriesPoint(1.0, 2.0),), 1.0, 50, 10, UNICODE) == []
    assert draw(states.wave(), states.MONO, 10, 10, UNICODE) == []


def test_no_line_over_a_hole() -> None:
    holed = tuple(point for point in states.wave(swing=0.0) if not -400 < point.t - states.MONO < -200)
    lines = draw(holed, states.MONO, 50, 8, UNICODE)
    curve = [line[line.index("│") + 1 :] if "│" in line else line[line.index("┤") + 1 :] for line in lines[:-2]]
    columns = [any(row[at : at + 1].strip() for row in curve) for at in range(len(curve[0]))]
    assert not all(columns[2:-2])


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (89.0, 90.0), (0.0, 1.0), (86.2, 94.1), (3.0, 1000.0), (0.001, 0.002), (1e6, 3e6)]
)
def test_bounds_hold_the_data(low: float, high: float) -> None:
    bottom, middle, top = nice_bounds(low, high)
    assert bottom <= low
    assert top >= high
    assert bottom < middle < top


@pytest.mark.parametrize(("low", "high"), [(89.0, 90.0), (86.2, 94.1), (9.9e5, 1e6)])
def test_small_waves_do_not_look_like_cliffs(low: float, high: float) -> None:
    bottom, _, top = nice_bounds(low, high)
    assert top - bottom >= 0.2 * high
    heights = {
        UNICODE.spark.index(char) for char in sparkline(states.wave(swing=1.0), states.MONO, 10, UNICODE).strip()
    }
    assert max(heights) - min(heights) <= 2


def test_sparkline_keeps_still_while_its_columns_fill() -> None:
    series = states.wave()
    first = sparkline(series, states.MONO, 10, UNICODE)
    again = sparkline(series[:-20], states.MONO - 20, 10, UNICODE)
    assert len(first) == 10
    assert first[1:-1] in (again[1:-1], again[2:])
    assert sparkline((), 0.0, 10, UNICODE) == ""


def test_a_steady_value_is_a_flat_line_in_the_middle() -> None:
    line = sparkline(states.wave(swing=0.0), states.MONO, 10, UNICODE)
    assert len(set(line.strip())) == 1
