"""Tells which lines of a log an earlier process printed that wrote to the same file.

A server that was started again into the same file has printed nothing yet, and the lines there are not about it. Lines
have a time, but no zone: engines print local time, a container's is often UTC. So a line is an earlier process's only
if it is too early in each zone in which it may have been printed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from tuner.domain.events import ProbeHello
from tuner.domain.server import ServerIdentity

SLACK_S = 2.0
"""Seconds by which two readings of a process's start may differ."""
YOUNG_S = 3600.0
"""Seconds after its start in which a server's lines are doubted. Older servers have printed their arguments, which
resets the log; and a change of daylight saving is unlikely to lie in so short a time."""
_YEARLESS_END = 978_307_200.0
"""Seconds of the year 2001: a time before it is of a line without a year, which is read as of the year 2000."""


class Doubt(Struct, frozen=True, kw_only=True):
    """Clocks of a young server whose log may hold an earlier process's lines; seconds since the epoch."""

    started_at: float
    now: float
    utc_offset_s: float | None
    """Offset of the zone that the lines may be in, besides UTC; None: not known."""

    def before(self, at: float) -> bool:
        """Return whether a line was certainly printed before the server began.

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
    """Return the doubt about the lines of a server's log; None if they are taken as its own."""
    born = identity.started_at
    if born is None or now is None or now - born > YOUNG_S:
        return None
    own_zone = (identity.env or {}).get("TZ", "UTC").lstrip(":") not in ("", "UTC", "Etc/UTC")
    offset = None if hello is None or own_zone else hello.utc_offset_s
    return Doubt(started_at=born, now=now, utc_offset_s=offset)


def with_year(at: float, now: float) -> float:
    """Complete a time without a year: the newest with its day and hour that is at most a day ahead of `now`.

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
