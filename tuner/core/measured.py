"""Memory that starts which work have measured, kept in the history for the forecasts of later starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tuner.core import facts as f
from tuner.core.engine import Engine
from tuner.domain.commands import KeepMemory
from tuner.domain.history import MemoryRecord
from tuner.domain.server import Phase
from tuner.domain.starts import MODEL_ARGS, Figure, PhaseSpan, RankStory, Start
from tuner.domain.state import HostState, RankState, ServerState
from tuner.units import GIB, MIB

STEP_BYTES = 128 * MIB
"""Bytes by which a forward pass's memory must grow before the record is written again."""
_MODEL_KEYS = (*MODEL_ARGS, "attention_backend", "max_seq_len", "cuda_graph_config")
"""Settings a forecast reads beside the knobs."""
_POOLS = 2


def measured(before: HostState, after: HostState, engines: Mapping[str, Engine]) -> tuple[KeepMemory, ...]:
    """Return commands to keep the memory of starts that became ready, and again when more is seen while they serve.

    Args:
        before: The state that an event was folded into.
        after: The state after it.
        engines: Engines by name.
    """
    if after.servers is before.servers:
        return ()
    return tuple(_changed(before, after, engines))


def with_peak(rank: RankState, *, serving: bool) -> RankState:
    """Note what a rank holds when it begins to serve, and the most it held since.

    Args:
        rank: The rank with its present memory.
        serving: Whether its server is ready.
    """
    held = rank.memory.total_bytes
    if not serving or held is None:
        return rank
    start = held if rank.ready_bytes is None else rank.ready_bytes
    peak = max(held, rank.peak_bytes or 0)
    if (start, peak) == (rank.ready_bytes, rank.peak_bytes):
        return rank
    return msgspec.structs.replace(rank, ready_bytes=start, peak_bytes=peak)


def worth_keeping(start: Start, server: ServerState, state: HostState, engine: Engine) -> Start:
    """Return a start without lines and secrets: figures and phase times of its ranks, and settings that decide memory.

    Args:
        start: The start as its log tells it.
        server: Its server, whose ranks tell their GPUs and what was seen while it served.
        state: State of the host, for the memory of the GPUs.
        engine: Its engine.
    """
    knobs = engine.knobs()
    keys = {*_MODEL_KEYS}
    for knob in knobs.values():
        if knob.forecast:
            keys |= {spelled.setting or spelled.text.lstrip("-").replace("-", "_") for spelled in knob.spellings}
    names = {knob.name for knob in knobs.values() if knob.kind == "env" and knob.forecast}
    by_tag = {rank.tag: rank for rank in server.ranks}
    pools = [fact for fact in start.facts if fact.kind == f.KV_POOL][:_POOLS]
    return Start(
        engine=start.engine,
        version=server.version or start.version,
        version_inferred=server.version is None and start.version_inferred,
        outcome=start.outcome,
        phase=start.phase,
        settings=_plain({name: value for name, value in start.settings.items() if name in keys}),
        settings_at=start.settings_at,
        given=_plain({name: value for name, value in start.given.items() if name in keys}),
        env={name: value for name, value in start.env.items() if name in names},
        ranks=tuple(_rank(rank, by_tag.get(rank.tag), state, engine) for rank in start.ranks),
        ready_at=start.ready_at,
        limits=start.limits,
        facts=tuple(pools),
    )


def _changed(before: HostState, after: HostState, engines: Mapping[str, Engine]) -> Iterator[KeepMemory]:
    known = {server.identity.key: server for server in before.servers}
    for server in after.servers:
        old, engine, start = known.get(server.identity.key), engines.get(server.identity.engine), server.start
        if server is old or engine is None or start is None or start.ready_at is None or not start.ranks:
            continue
        if server.phase is not Phase.READY:
            continue
        fresh = old is None or old.start is None or old.start.ready_at is None or old.phase is not Phase.READY
        if fresh or (old is not None and _steps(server) > _steps(old)):
            yield KeepMemory(record=_record(server, start, after, engine))


def _record(server: ServerState, start: Start, state: HostState, engine: Engine) -> MemoryRecord:
    began = server.identity.started_at
    return MemoryRecord(
        host=state.name,
        engine=engine.name,
        model=server.model,
        started_at=began if began is not None else start.began or 0.0,
        source=(server.log.source.path if server.log.source is not None else None) or "",
        start=worth_keeping(start, server, state, engine),
    )


def _steps(server: ServerState) -> int:
    return max((_growth(rank) // STEP_BYTES for rank in server.ranks), default=0)


def _growth(rank: RankState) -> int:
    """Return bytes that a rank took beyond what it held when it became ready."""
    if rank.peak_bytes is None or rank.ready_bytes is None:
        return 0
    return rank.peak_bytes - rank.ready_bytes


def _rank(story: RankStory, rank: RankState | None, state: HostState, engine: Engine) -> RankStory:
    told = msgspec.structs.replace(story, phases=tuple(_spans(story)))
    if rank is None:
        return told
    gpus = {} if state.gpu_table is None else {gpu.index: gpu for gpu in state.gpu_table.gpus}
    gpu = gpus.get(rank.gpu) if rank.gpu is not None else None
    if gpu is not None and gpu.memory_total_bytes is not None and told.total_gib is None:
        less = engine.behaviour().driver_overhead_gib
        told = msgspec.structs.replace(told, total_gib=Figure(gpu.memory_total_bytes / GIB - less, 0))
    grown, left = _growth(rank), story.available_at_ready or story.last_available
    # More than was free is no forward pass: the driver's figure was older than the line that says ready.
    if told.activation_gib is None and grown > 0 and (left is None or grown <= left.value * GIB):
        told = msgspec.structs.replace(told, activation_gib=Figure(grown / GIB, 0))
    return told


def _spans(story: RankStory) -> Iterator[PhaseSpan]:
    """Yield each phase with its seconds only: places in this log are of no use to later starts."""
    for span in story.phases:
        if span.ended and span.seconds is not None:
            yield PhaseSpan(phase=span.phase, at=0, seconds=span.seconds, ended=True)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that JSON gives back unchanged."""
    return {name: value for name, value in settings.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
