"""Bounded series: what is kept, rates of counters, and reduction to columns."""

from tuner.core import series as s
from tuner.domain.server import SeriesPoint


def points(*pairs: tuple[float, float]) -> tuple[SeriesPoint, ...]:
    return tuple(SeriesPoint(t, v) for t, v in pairs)


def test_old_points_leave_when_new_ones_come() -> None:
    series = s.append(points((0, 1), (5, 2)), 10, 3, keep_s=6)
    assert [p.t for p in series] == [5, 10]


def test_a_point_of_the_same_time_replaces_the_last() -> None:
    assert s.append(points((0, 1), (5, 2)), 5, 9) == points((0, 1), (5, 9))


def test_rate_needs_two_points() -> None:
    assert s.rate(points((0, 5)), 10) is None
    assert s.rate((), 10) is None


def test_rate_uses_the_newest_window_only() -> None:
    series = points((0, 0), (10, 1000), (11, 1010), (12, 1020), (13, 1030))
    assert s.rate(series, 3) == 10


def test_a_counter_that_fell_starts_again() -> None:
    assert s.rate(points((0, 500), (1, 900), (2, 0), (3, 40)), 10) == 40


def test_columns_keep_spikes() -> None:
    series = points((0, 1), (1, 100), (2, 1), (9, 5))
    assert s.columns(series, 0, 10, 2) == [(1, 100), (5, 5)]


def test_columns_without_points_are_missing_not_zero() -> None:
    assert s.columns(points((9, 5)), 0, 10, 2) == [None, (5, 5)]
    assert s.columns(points((9, 5)), 0, 10, 0) == []
    assert s.columns(points((9, 5)), 10, 10, 3) == [None, None, None]


def test_the_first_close_points_after_a_pause_are_not_mixed_with_it() -> None:
    """An idle server is asked every ten seconds, and every two from when its log tells of work."""
    paused = points((0, 0), (10, 0), (20, 100))
    assert s.rate(paused, 3) is None, "nobody knows when in the ten seconds it began"
    assert s.rate(paused[:2], 3) == 0
    assert s.rate(paused[1:], 3) is None
    assert s.rate(points((0, 0), (4, 40), (8, 80)), 3) == 10, "a busy server that answers slowly"
    assert s.rate((*paused, *points((22, 2100))), 3) == 1000
    assert s.rate((*paused, *points((22, 2100))), 30) == 2100 / 22


def test_a_value_stands_until_the_next_one_of_a_server_that_is_asked_seldom() -> None:
    assert s.columns(points((0, 7), (10, 9)), 0, 12, 6) == [(7, 7)] * 5 + [(9, 9)]
    assert s.columns(points((0, 7), (40, 9)), 0, 44, 11) == [(7, 7)] + [None] * 9 + [(9, 9)]
    assert s.columns(points((0, 7)), 0, 10, 5) == [(7, 7)] * 5
