"""What starts took, kept in the history so that later ones can be shown beside it."""

from __future__ import annotations

import msgspec

from tuner.core import serverlog
from tuner.core.engine import Engine
from tuner.core.logtext import clean
from tuner.core.measured import worth_keeping
from tuner.core.predecessor import SLACK_S, with_year
from tuner.core.reading import starts_of
from tuner.domain import events as e
from tuner.domain.commands import AnyCommand, KeepMemory, KeepStart, LookUpStarts
from tuner.domain.history import MemoryRecord, StartRecord
from tuner.domain.server import LogSource, Phase
from tuner.domain.starts import named_model
from tuner.domain.state import HostState, ServerState

_DAY_S = 86_400.0
_WESTMOST_S, _EASTMOST_S = -12 * 3600.0, 14 * 3600.0
_FIRST_LINES = 300
"""First lines of an older log that are searched for a timestamp."""


def ended_start(state: HostState, old: ServerState, new: ServerState) -> tuple[AnyCommand, ...]:
    """Return commands to keep a start that has just succeeded or failed, and to look up those like it."""
    if old.phase is new.phase or new.phase not in (Phase.READY, Phase.FAILED) or new.log.source is None:
        return ()
    record = _record(state, new, new.log.source.path or "", new)
    return () if record is None else (KeepStart(record=record), look_up(new))


def look_up(server: ServerState) -> LookUpStarts:
    """Return the command that asks for what earlier starts like this server's took."""
    identity = server.identity
    return LookUpStarts(key=identity.key, engine=identity.engine, model=server.model, began_at=identity.started_at)


def old_log(state: HostState, server: ServerState, event: e.OldLog, engine: Engine) -> tuple[AnyCommand, ...]:
    """Return commands to keep the start in an older log beside the current one, folded on its own."""
    size = len(event.data.encode("utf-8", "surrogatepass"))
    past = ServerState(identity=msgspec.structs.replace(server.identity, members=(), ports=(), started_at=None))
    source = server.log.source or LogSource(kind="file")
    past = msgspec.structs.replace(past, log=msgspec.structs.replace(past.log, source=source))
    piece = e.LogBytes(key=event.key, offset=0, end=size, data=event.data, head=True)
    past = msgspec.structs.replace(past, log_clock=_clock(state, server, event.data, engine))
    past = serverlog.received(past, piece, engine, live=False)
    told = _told_model(past)
    if told is None or told not in (server.model, _told_model(server)):
        return ()  # an earlier start of another LLM, or of one that it does not name
    record = _record(state, past, event.path, server)
    if record is None:
        return ()
    record = msgspec.structs.replace(record, by_log=True)
    return (KeepStart(record=record), *_memory(state, past, record, engine), look_up(server))


def _clock(state: HostState, server: ServerState, data: str, engine: Engine) -> float:
    """Return seconds to subtract from an older log's times for the host's wall clock: its zone and missing year."""
    lines = data.splitlines()[:_FIRST_LINES]
    at = next((at for line in lines if (at := engine.prefix(clean(line)).at) is not None), None)
    if at is None or state.now is None:
        return 0.0
    zone = (state.hello.utc_offset_s if state.hello is not None else None) or 0.0
    if server.log_clock is not None:
        # The running server's own log tells it best. A missing year is whole days; of two zones a day apart, as Hawaii
        # and the Line Islands are, the one nearer to the host's is taken.
        alike = (server.log_clock % _DAY_S, server.log_clock % _DAY_S - _DAY_S)
        zone = min((each for each in alike if _WESTMOST_S <= each <= _EASTMOST_S), key=lambda each: abs(each - zone))
    return at - with_year(at, state.now) + zone


def _memory(state: HostState, past: ServerState, record: StartRecord, engine: Engine) -> tuple[KeepMemory, ...]:
    """Return the command to keep what an earlier start that worked measured, for the forecasts of later ones."""
    lines = [(line.offset, line.text) for block in past.log.blocks for line in block.lines if not line.marker]
    starts = starts_of(lines, {engine.name: engine})
    if not starts or starts[-1].ready_at is None or not starts[-1].ranks:
        return ()
    known = MemoryRecord(
        host=record.host,
        engine=record.engine,
        model=record.model,
        started_at=record.started_at,
        by_log=record.by_log,
        source=record.source,
        start=worth_keeping(starts[-1], past, state, engine),
    )
    return (KeepMemory(record=known),)


def _told_model(server: ServerState) -> str | None:
    """Return the LLM as the log names it; None if it does not."""
    return named_model(server.settings) or server.model


def _record(state: HostState, server: ServerState, path: str, known: ServerState) -> StartRecord | None:
    """Return what is kept of a start; None unless its beginning and its outcome were seen."""
    if not server.phases or server.phases[0].phase is not Phase.ARGS:
        return None
    born = server.identity.started_at
    if born is not None and server.phases[0].started < born - SLACK_S:
        return None  # it is an earlier process's, in a log that this one appends to
    durations: dict[Phase, float] = {}
    for record in server.phases:
        if record.ended is not None:
            durations[record.phase] = durations.get(record.phase, 0.0) + record.ended - record.started
    ready = server.started_in_s is not None
    if not ready and server.phase is not Phase.FAILED:
        return None
    return StartRecord(
        host=state.name,
        engine=known.identity.engine,
        version=server.version or known.version,
        model=known.model,
        started_at=server.phases[0].started,
        source=path,
        outcome="ready" if ready else "failed",
        total_s=server.started_in_s,
        phases_s=durations,
    )
