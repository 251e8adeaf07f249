"""The clock of a server's log: which zone its times are in, and what they are on the host's wall clock."""

from __future__ import annotations

import msgspec

from tuner.domain.logs import LogFact
from tuner.domain.state import ServerState

_CLOCK_STEP_S = 900.0
"""Seconds to which a log's clock is rounded: zones are multiples of it, the rest is the time to the first line."""


def clocked(server: ServerState, fact: LogFact) -> ServerState:
    """Learn the log's clock from the first line with a time, which comes soon after the process began."""
    started = server.identity.started_at
    if server.log_clock is not None or fact.at is None or started is None:
        return server
    return msgspec.structs.replace(server, log_clock=round((fact.at - started) / _CLOCK_STEP_S) * _CLOCK_STEP_S)


def wall_time(server: ServerState, at: float | None) -> float | None:
    """Convert a log line's time to the host's wall clock, seconds since the epoch; None if either is not known."""
    return None if at is None or server.log_clock is None else at - server.log_clock
