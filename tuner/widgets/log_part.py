"""A part of a log that was fetched from the host, as lines to show."""

from __future__ import annotations

from tuner.core.engine import Engine
from tuner.core.serverlog import read_piece
from tuner.domain.events import LogBytes, ReadResult
from tuner.domain.logs import LogLine
from tuner.domain.state import LogState, ServerState


def lines_of(server: ServerState, engine: Engine | None, result: ReadResult) -> tuple[LogLine, ...]:
    """Parse a part of a log as its live end is parsed, without drawing conclusions about the server.

    The first line is dropped unless the part begins with the log: it may be incomplete.
    """
    log = LogState(source=server.log.source, facts_end=result.end + 1, start=result.offset, end=result.offset)
    event = LogBytes(key=server.identity.key, offset=result.offset, end=result.end, data=result.data)
    lines = tuple(read_piece(log, event, engine).lines)
    return lines[1:] if result.offset > 0 else lines
