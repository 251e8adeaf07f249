"""The ranks of a server, kept in step with its processes, the GPUs and the driver's process list."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuner.core import placement
from tuner.core.engine import Engine
from tuner.core.lifecycle import dead, rank_order
from tuner.core.measured import with_peak
from tuner.core.memory import combine
from tuner.core.story import layout_of
from tuner.domain.gpu import GpuInfo
from tuner.domain.readings import MemoryTerms
from tuner.domain.server import Phase
from tuner.domain.state import HostState, RankState, ServerState


def placed(state: HostState, engines: Mapping[str, Engine]) -> HostState:
    """Bring ranks, their GPUs and memory, and the foreign processes in step with what is known now."""
    gpus = state.gpu_table.gpus if state.gpu_table is not None else ()
    servers = tuple(
        server if server.gone else _with_ranks(server, engines.get(server.identity.engine), gpus, state)
        for server in state.servers
    )
    foreign = placement.foreign_processes(state.processes, state.infos, servers)
    return msgspec.structs.replace(
        state,
        servers=state.servers if all(a is b for a, b in zip(servers, state.servers, strict=True)) else servers,
        foreign=state.foreign if foreign == state.foreign else foreign,
    )


def _with_ranks(server: ServerState, engine: Engine | None, gpus: tuple[GpuInfo, ...], state: HostState) -> ServerState:
    if engine is None:
        return server
    places = engine.ranks(server.identity, server.settings)
    tags = [*(place.tag for place in places), *(rank.tag for rank in server.ranks)]
    layout = layout_of(engine, server.settings, tags)
    by_tag = {rank.tag: rank for rank in server.ranks}
    alive = {*server.identity.living, server.identity.pid}
    titles = {m.pid: m.title for m in server.identity.members}
    ranks: list[RankState] = []
    for place in places:
        rank = by_tag.pop(place.tag, None) or RankState(tag=place.tag)
        if rank.pid is not None and rank.pid not in alive and titles.get(place.pid or 0) not in (None, rank.title):
            # Another part of the server does not replace a dead rank: the engine core stands in for workers at first.
            ranks.append(rank)
            continue
        gpu = placement.gpu_of(place, server.identity, gpus, state.processes)
        rank = msgspec.structs.replace(
            rank,
            pid=place.pid if place.pid is not None else rank.pid,
            gpu=gpu if gpu is not None else rank.gpu,
            alive=place.pid in alive if place.pid is not None else rank.alive,
            title=titles.get(place.pid, rank.title) if place.pid is not None else rank.title,
        )
        ranks.append(rank)
    # A rank that printed or ran and has no process now stays in the list.
    ranks.extend(by_tag.values())
    serving = server.phase is Phase.READY
    ranks = [
        with_peak(msgspec.structs.replace(rank, memory=combine(rank, state.processes)), serving=serving)
        if rank.alive
        else dead(rank)
        for rank in (msgspec.structs.replace(rank, number=layout.number(rank.tag)) for rank in ranks)
    ]
    ordered = tuple(sorted(ranks, key=lambda r: rank_order(r.tag)))
    return server if ordered == server.ranks else msgspec.structs.replace(server, ranks=ordered)


def with_terms(ranks: tuple[RankState, ...], memory: dict[str, MemoryTerms]) -> tuple[RankState, ...]:
    """Set the memory terms of an HTTP answer on the ranks they are about; the empty tag is every rank."""
    return tuple(
        msgspec.structs.replace(rank, http_terms=memory.get(rank.tag, memory.get("", rank.http_terms)))
        for rank in ranks
    )
