"""The series of a server that can be drawn over time, with title, number and unit of each."""

from __future__ import annotations

from msgspec import Struct

from tuner.domain.server import SeriesPoint
from tuner.domain.state import Series, ServerState


class Curve(Struct, frozen=True):
    """One series and how it is labelled."""

    key: str
    """Key in `ServerState.series`."""
    title: str
    """Title above a chart, with the unit."""
    number: str
    """Name of the number whose history this is, as shown in the line of a narrow screen."""
    scale: float = 1.0
    """Factor from the series' unit to the drawn unit."""


CURVES = (
    Curve("tok_s", "tok/s  output", "tok/s"),
    Curve("running", "running requests", "run"),
    Curve("queued", "queued requests", "queue"),
    Curve("token_usage", "KV used  %", "KV", 100.0),
    Curve("accept_length", "accepted  tokens a step", "accept"),
)
"""All curves, in the order in which a key steps through them."""


def curves_of(server: ServerState) -> tuple[Curve, ...]:
    """Return the curves for which this server has values."""
    return tuple(curve for curve in CURVES if server.series.get(curve.key))


def values(server: ServerState, curve: Curve) -> Series:
    """Return the series in the drawn unit."""
    series = server.series.get(curve.key, ())
    return series if curve.scale == 1.0 else tuple(SeriesPoint(point.t, point.value * curve.scale) for point in series)
