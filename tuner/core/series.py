"""Bounded time series as immutable tuples, and their reduction to a width in columns."""

from __future__ import annotations

from tuner.domain.server import SeriesPoint
from tuner.domain.state import Series

KEEP_S = 600.0
"""Ten minutes: what the charts show."""


def append(series: Series, t: float, value: float, keep_s: float = KEEP_S) -> Series:
    """Add a point and drop what is older than `keep_s` before it. A point not newer than the last replaces it."""
    if series and t <= series[-1].t:
        series = series[:-1]
    oldest = t - keep_s
    drop = 0
    while drop < len(series) and series[drop].t < oldest:
        drop += 1
    return (*series[drop:], SeriesPoint(t, value))


def rate(series: Series, window_s: float) -> float | None:
    """Increase per second of a counter over the last `window_s` seconds; None with fewer than two points.

    A counter that fell was reset by a restart: only what followed the fall counts.
    """
    if len(series) < 2:
        return None
    last = series[-1]
    first = last
    for point in reversed(series[:-1]):
        if point.value > first.value:
            break
        first = point
        if last.t - first.t >= window_s:
            break
    return (last.value - first.value) / (last.t - first.t) if last.t > first.t else None


def columns(series: Series, start: float, end: float, width: int) -> list[tuple[float, float] | None]:
    """Least and greatest value of each of `width` equal slices of [start, end), so that spikes survive.

    Returns:
        One entry a column; None where no point fell into the slice.
    """
    result: list[tuple[float, float] | None] = [None] * width
    if width <= 0 or end <= start:
        return result
    scale = width / (end - start)
    for point in series:
        if not start <= point.t <= end:
            continue
        column = min(width - 1, int((point.t - start) * scale))
        seen = result[column]
        result[column] = (
            (point.value, point.value) if seen is None else (min(seen[0], point.value), max(seen[1], point.value))
        )
    return result
