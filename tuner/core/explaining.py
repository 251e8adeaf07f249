"""The diagnosis of a live server: which of its lines are kept for it, and when it is made again.

The same brain as for a file. A log that is followed live may be of any length, so only what matters of its present
start is kept: its first and its newest lines that are not routine, and the newest batch lines.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec

from tuner.core import sift
from tuner.core.advice import advise
from tuner.core.diagnosis import diagnose
from tuner.core.engine import Engine
from tuner.core.reading import LineRead, read_line, starts_of
from tuner.domain.logs import Level, LogLine
from tuner.domain.state import HostState, ServerState

FIRST, NEWEST, BATCHES = 4_000, 3_000, 400
"""Lines that are kept: the first ones, the newest, and the newest batch lines."""
EVERY_S = 0.5
"""A server whose log keeps telling news is diagnosed again after so long; the first time at once."""
ADVISE_EVERY_S = 5.0
_BEFORE = 1 << 60
"""Further than any log reaches."""


@functools.lru_cache(maxsize=FIRST + NEWEST + BATCHES)
def _read_before(engine: Engine, at: int, text: str) -> LineRead:
    return read_line(engine, at, text)


def _remembered(engine: Engine, at: int, text: str) -> LineRead:
    """Most lines of a diagnosis were in the one before."""
    return _read_before(engine, at, text)


def noted(server: ServerState, lines: Iterable[LogLine], engine: Engine) -> ServerState:
    """Keep what matters of new lines.

    Args:
        server: Whose log they are of.
        lines: In order; markers of ours are left out.
        engine: Says what is routine.
    """
    told = server.explain
    routine = engine.routine()
    first, newest, batches = list(told.first), list(told.newest), list(told.batches)
    alarmed = told.alarmed
    for line in lines:
        if line.marker:
            continue
        entry = (line.offset, line.text)
        if sift.notable(line.text, routine):
            (first if len(first) < FIRST else newest).append(entry)
            alarmed = alarmed or line.level >= Level.WARNING
        elif " batch" in line.text or "throughput" in line.text:
            batches.append(entry)
    changed = len(first) != len(told.first) or len(newest) != len(told.newest)
    return msgspec.structs.replace(
        server,
        explain=msgspec.structs.replace(
            told,
            first=tuple(first) if len(first) != len(told.first) else told.first,
            newest=tuple(newest[-NEWEST:]) if len(newest) != len(told.newest) else told.newest,
            batches=tuple(batches[-BATCHES:]) if len(batches) != len(told.batches) else told.batches,
            due=told.due or changed,
            alarmed=alarmed,
        ),
    )


def moved(server: ServerState) -> ServerState:
    """The log goes on in another file: places begin anew, and what was said before lies before them."""
    told = server.explain
    before = {
        name: tuple((at - _BEFORE, text) for at, text in getattr(told, name)) for name in ("first", "newest", "batches")
    }
    return msgspec.structs.replace(server, explain=msgspec.structs.replace(told, **before))


def explained(server: ServerState, engine: Engine, mono: float) -> ServerState:
    """Diagnose a server if there is news and it is time.

    Args:
        server: With the lines that `noted` kept.
        engine: Its engine.
        mono: The host's monotonic time.
    """
    told = server.explain
    wait = EVERY_S if told.alarmed else EVERY_S * 4
    if not told.due or (told.at is not None and 0 <= mono - told.at < wait):
        return server
    kept = sorted((*told.first, *told.newest, *told.batches))
    starts = starts_of(kept, {engine.name: engine}, _remembered)
    if not starts:
        return msgspec.structs.replace(server, explain=msgspec.structs.replace(told, due=False, at=mono))
    start = starts[-1]
    if len(starts) > 1:
        told = msgspec.structs.replace(
            told,
            first=tuple(entry for entry in told.first if entry[0] >= start.first),
            newest=tuple(entry for entry in told.newest if entry[0] >= start.first),
            batches=tuple(entry for entry in told.batches if entry[0] >= start.first),
        )
    start = msgspec.structs.replace(
        start,
        settings={**server.settings, **start.settings},
        version=server.version or start.version,
        version_inferred=server.version is None and start.version_inferred,
        env=server.identity.env or {},
    )
    found = diagnose(start, engine)
    told = msgspec.structs.replace(told, due=False, alarmed=False, at=mono, diagnosed=found)
    return _shown(msgspec.structs.replace(server, explain=told, start=start))


def advised(state: HostState, server: ServerState, engine: Engine) -> ServerState:
    """Look at the numbers of a server now and then."""
    told = server.explain
    if told.advised_at is not None and 0 <= state.mono - told.advised_at < ADVISE_EVERY_S:
        return server
    told = msgspec.structs.replace(told, advised_at=state.mono, advice=advise(state, server, engine))
    return _shown(msgspec.structs.replace(server, explain=told))


def _shown(server: ServerState) -> ServerState:
    """Findings of the log and of the numbers as one list, each cause once."""
    told = server.explain
    causes = {finding.cause for finding in told.diagnosed}
    findings = (*told.diagnosed, *(finding for finding in told.advice if finding.cause not in causes))
    return server if findings == server.findings else msgspec.structs.replace(server, findings=findings)
