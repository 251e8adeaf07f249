"""What can be drawn over time: which series of a server, under which title, beside which number."""

from __future__ import annotations

from msgspec import Struct

from tuner.domain.server import SeriesPoint
from tuner.domain.state import Series, ServerState


class Curve(Struct, frozen=True):
    """One series and its words."""

    key: str
    """Of `ServerState.series`."""
    title: str
    """Above a chart, with the unit."""
    number: str
    """Name of the number that it is the past of, in the line of a narrow screen."""
    scale: float = 1.0
    """From the series' unit to the one that is drawn."""


CURVES = (
    Curve("tok_s", "tok/s  output", "tok/s"),
    Curve("running", "running requests", "run"),
    Curve("queued", "queued requests", "queue"),
    Curve("token_usage", "KV used  %", "KV", 100.0),
    Curve("accept_length", "accepted  tokens a step", "accept"),
)
"""In the order in which they are shown one after the other."""


def curves_of(server: ServerState) -> tuple[Curve, ...]:
    """Those of which this server has told values."""
    return tuple(curve for curve in CURVES if server.series.get(curve.key))


def values(server: ServerState, curve: Curve) -> Series:
    """The series in the unit that is drawn."""
    series = server.series.get(curve.key, ())
    return series if curve.scale == 1.0 else tuple(SeriesPoint(point.t, point.value * curve.scale) for point in series)
