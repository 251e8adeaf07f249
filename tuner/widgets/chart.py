"""Draw a series over time as a chart (by plotext) or as a sparkline. Only this module imports plotext."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.core.series import columns
from tuner.domain.state import Series
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line

WINDOW_S = 600.0
"""Time that a chart covers, in seconds: ten minutes."""
LEAST_SPAN = 0.2
"""Least span of an axis, as a share of its greatest value, so that small variations do not look like cliffs."""


def slice_end(now: float, window_s: float, width: int) -> float:
    """Return the end time of the newest column.

    Columns are aligned to multiples of their duration, so that old ones do not move.
    """
    step = window_s / width
    return math.ceil(now / step) * step


def sparkline(series: Series, now: float, width: int, glyphs: Glyphs, window_s: float = WINDOW_S) -> str:
    """Return one bar character per column; blank where it has no value.

    The height is the column's greatest value, scaled between the least and the greatest of all columns.
    """
    if not series or width <= 0:
        return ""
    end = slice_end(now, window_s, width)
    slices = columns(series, end - window_s, end, width)
    values = [each[1] for each in slices if each is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    steps = len(glyphs.spark) - 1
    # A flat line is drawn in the middle: small variations are not scaled up to look like a change.
    span = max(high - low, LEAST_SPAN * abs(high), 1e-9)
    base = low - (span - (high - low)) / 2
    return "".join(" " if each is None else glyphs.spark[round((each[1] - base) / span * steps)] for each in slices)


def nice_bounds(low: float, high: float) -> tuple[float, float, float]:
    """Return least, middle and greatest value of an axis as round numbers; it starts at 0 when the data come near."""
    if (missing := LEAST_SPAN * abs(high) - (high - low)) > 0:
        low, high = low - missing / 2, high + missing / 2
    if low >= 0 and low < 0.25 * high:
        low = 0.0
    if high <= low:
        high = low + 1.0
    raw = (high - low) / 2
    power: float = 10.0 ** math.floor(math.log10(raw))
    for nice in (1, 2, 2.5, 3, 4, 5, 6, 8, 10, 20):
        step = nice * power
        base = math.floor(low / step + 1e-9) * step
        if base + 2 * step >= high - 1e-9:
            return base, base + step, base + 2 * step
    return low, (low + high) / 2, high


def _label(value: float, step: float) -> str:
    places = 0 if step >= 1 or step == 0 else min(3, math.ceil(-math.log10(step)))
    return f"{value:,.{places}f}"


def load() -> None:
    """Import plotext (8 MB, a fifth of a second) ahead of the first chart, which would do it otherwise."""
    import plotext  # noqa: F401


def draw(series: Series, now: float, width: int, height: int, glyphs: Glyphs, window_s: float = WINDOW_S) -> list[str]:
    """Return the chart as lines of plain text; empty without room or with fewer than two points.

    The series is reduced to at most two points per column: plotext's cost grows with their number.
    """
    if width < 20 or height < 4 or len(series) < 2:
        return []
    import plotext  # takes long, which only a chart is worth; see `load`

    slices = columns(series, slice_end(now, window_s, width) - window_s, slice_end(now, window_s, width), width)
    step = window_s / width
    xs: list[float] = []
    ys: list[float] = []
    breaks: list[int] = []
    for index, each in enumerate(slices):
        if each is None:
            breaks.append(len(xs))
            continue
        at = (index + 0.5) * step - window_s
        low, high = each
        # Up-strokes and down-strokes alternate, so that a noisy curve is not drawn as a comb of jumps back.
        pair = (low, high) if not ys or abs(ys[-1] - low) <= abs(ys[-1] - high) else (high, low)
        for value in pair if low != high else (low,):
            xs.append(at)
            ys.append(value)
    if not ys:
        return []
    bottom, middle, top = nice_bounds(min(ys), max(ys))
    tick = middle - bottom
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    figure.theme("colorless")
    figure.axes(False, axis="x", side=1)
    figure.axes(False, axis="y", side=1)
    signal = figure.signal(xs, ys, marker=glyphs.chart_marker)
    signal.lines()
    for index in breaks:
        # No line across a gap: the values there are unknown.
        if 0 < index < len(xs):
            signal.line(index, False)
    figure.draw(signal)
    figure.ruler("x", 0).lim(-window_s, 0)
    minutes = round(window_s / 60)
    figure.ruler("x", 0).ticks([-window_s, -window_s / 2, 0], [f"-{minutes} min", f"-{minutes / 2:g} min", "now"])
    figure.ruler("y", 0).lim(bottom, top)
    figure.ruler("y", 0).ticks([bottom, middle, top], [_label(value, tick) for value in (bottom, middle, top)])
    text = str(plotext.uncolorize(str(figure.build())))
    return [line[:width].ljust(width) for line in text.splitlines()[:height]]


class Chart(Rows):
    """A chart of one series over the last ten minutes, redrawn only when a column has changed."""

    DEFAULT_CSS = """
    Chart { height: 1fr; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._glyphs = glyphs
        self._drawn: tuple[object, ...] = ()
        self._plot: list[str] = []

    def show_series(
        self,
        title: str,
        series: Series,
        now: float,
        *,
        warning: str = "",
        dimmed: bool = False,
        foot: Sequence[Line] = (),
    ) -> None:
        """Show a series.

        Args:
            title: Text above the chart, with the unit.
            series: Values of at most ten minutes.
            now: The newest time, on the clock of the series.
            warning: Text behind the title.
            dimmed: The numbers are stale.
            foot: Lines below the chart.
        """
        width, height = self.size.width, self.size.height - 1 - len(foot)
        if width <= 0:
            return
        # The curve is drawn once a second at most; the numbers below it are always the newest.
        drawn = (title, width, height, math.floor(now), bool(series))
        if drawn != self._drawn:
            self._drawn = drawn
            self._plot = draw(series, now, width - 1, height, self._glyphs)
        lines: list[Line] = [((f" {title}", "head"), *([(f"  {warning}", "warn")] if warning else ()))]
        for text in self._plot:
            # The axis is in the first column that holds one of plotext's box characters.
            axis = next((at for at, char in enumerate(text) if char in "┤│└┬─┼"), 0)
            rule = "└" in text or "┬" in text
            lines.append(((" " + text[: axis + 1], "dim"), (text[axis + 1 :], "dim" if rule or axis == 0 else "chart")))
        if not self._plot:
            lines += [((" ", "text"),)] * max(0, min(1, height - 1))
            lines.append((("   no output yet" if not series else "   too few values yet", "dim"),))
        lines += [()] * max(0, self.size.height - len(lines) - len(foot))
        lines += list(foot)
        self.show(lines, dimmed=dimmed)
