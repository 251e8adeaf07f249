"""A log that several processes appended to: which of its lines an earlier one printed.

A server that was started again into the same file has said nothing yet, and what stands there is not about it. Lines
tell their time, but not its zone: engines print local time, a container's is often UTC. So a line is an earlier
process's only where it is too early in each zone that it may have been printed in.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from tuner.domain.events import ProbeHello
from tuner.domain.server import ServerIdentity

SLACK_S = 2.0
"""Between two readings of a process's start."""
YOUNG_S = 3600.0
"""An older server has printed its own arguments, and with those it begins anew; no daylight saving since then."""
_YEARLESS_END = 978_307_200.0
"""Engines whose lines have no year count from the year 2000."""


class Doubt(Struct, frozen=True, kw_only=True):
    """A young server, whose log may be an earlier one's."""

    started_at: float
    now: float
    utc_offset_s: float | None
    """Of the zone that its lines may be in beside UTC; None: it is not known."""

    def before(self, at: float) -> bool:
        """Whether a line was certainly printed before the server began.

        Args:
            at: The line's own time, seconds since an epoch of the log's zone.
        """
        if self.utc_offset_s is None:
            return False
        at = with_year(at, self.now)
        # What lies in the future was not printed in that zone.
        readings = [at - zone for zone in (0.0, self.utc_offset_s) if at - zone <= self.now + SLACK_S]
        return bool(readings) and max(readings) < self.started_at - SLACK_S


def doubt_about(identity: ServerIdentity, now: float | None, hello: ProbeHello | None) -> Doubt | None:
    """The doubt there is about a log's lines; None when they are taken as the server's own."""
    born = identity.started_at
    if born is None or now is None or now - born > YOUNG_S:
        return None
    own_zone = (identity.env or {}).get("TZ", "UTC").lstrip(":") not in ("", "UTC", "Etc/UTC")
    offset = None if hello is None or own_zone else hello.utc_offset_s
    return Doubt(started_at=born, now=now, utc_offset_s=offset)


def with_year(at: float, now: float) -> float:
    """The newest time with this day and hour that is not a day ahead.

    Args:
        at: A line's own time; one with a year is left as it is.
        now: Wall clock of the host.
    """
    if at >= _YEARLESS_END:
        return at
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    year = (epoch + timedelta(seconds=now)).year
    found = epoch + timedelta(seconds=at)
    for candidate in range(year + 1, year - 5, -1):
        try:
            placed = found.replace(year=candidate).timestamp()
        except ValueError:  # the 29th of February
            continue
        if placed <= now + 86_400:
            return placed
    return now
