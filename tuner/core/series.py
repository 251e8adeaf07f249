"""Bounded time series as immutable tuples, and their reduction to a width in columns."""

from __future__ import annotations

from tuner.domain.plan import NUMBERS_IDLE_S
from tuner.domain.server import SeriesPoint
from tuner.domain.state import Series

KEEP_S = 600.0
"""Seconds that a series holds: the ten minutes that charts show."""

HOLD_S = NUMBERS_IDLE_S + 5.0
"""Seconds for which a value stands if no other comes: longer than the pauses between questions to an idle server."""


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
    """Return the increase per second of a counter over the last `window_s` seconds; None with fewer than two points.

    A counter that fell was reset by a restart: only what followed the fall counts. Points of an idle server lie farther
    apart than the window; as soon as there are closer ones, older ones are not mixed in. None if it moved after a gap
    longer than the window: it is not known when.
    """
    if len(series) < 2:
        return None
    last = series[-1]
    first = last
    for point in reversed(series[:-1]):
        if point.value > first.value or (first is not last and first.t - point.t > window_s):
            break
        first = point
        if last.t - first.t >= window_s:
            break
    if last.t <= first.t:
        return None
    woke = first.value != last.value and (len(series) < 3 or series[-3].value == first.value)
    if woke and first is series[-2] and last.t - first.t > window_s:
        return None
    return (last.value - first.value) / (last.t - first.t)


def columns(series: Series, start: float, end: float, width: int) -> list[tuple[float, float] | None]:
    """Return the least and greatest value of each of `width` equal slices of [start, end), so that spikes survive.

    A value stands until the next one if that comes within `HOLD_S`: idle servers are asked seldom.

    Returns:
        One entry a column; None where nothing is known.
    """
    result: list[tuple[float, float] | None] = [None] * width
    if width <= 0 or end <= start:
        return result
    scale = width / (end - start)
    last: SeriesPoint | None = None
    last_column = 0
    for point in series:
        if not start <= point.t <= end:
            continue
        column = min(width - 1, int((point.t - start) * scale))
        if last is not None and column > last_column + 1 and point.t - last.t <= HOLD_S:
            result[last_column + 1 : column] = [(last.value, last.value)] * (column - last_column - 1)
        last, last_column = point, column
        seen = result[column]
        result[column] = (
            (point.value, point.value) if seen is None else (min(seen[0], point.value), max(seen[1], point.value))
        )
    if last is not None and end - last.t <= HOLD_S:
        result[last_column + 1 :] = [(last.value, last.value)] * (width - last_column - 1)
    return result
