"""Which GPU a rank runs on, and which processes on the GPUs belong to nobody we know."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.core.engine import RankPlace
from tuner.domain.gpu import GpuInfo, GpuProcess, ProcessInfo
from tuner.domain.server import ServerIdentity
from tuner.domain.state import ForeignProcess, ServerState


def gpu_of(
    place: RankPlace, identity: ServerIdentity, gpus: tuple[GpuInfo, ...], processes: tuple[GpuProcess, ...]
) -> int | None:
    """Return the NVML index of a rank's GPU; None if it is not known.

    The driver's process list wins: it is a fact. Without an entry there (a container's PID namespace, a rank that
    has not touched its GPU yet) the engine's placement formula is applied to CUDA_VISIBLE_DEVICES, if the environment
    could be read; empty, that variable hides every GPU. On several entries the one with most memory is the rank's own;
    peers' contexts are small.
    """
    own = [p for p in processes if p.pid == place.pid]
    if own:
        return max(own, key=lambda p: p.used_bytes or 0).gpu
    if place.visible_index is None:
        return None
    if identity.env is None:
        return None
    visible = identity.env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return place.visible_index if any(g.index == place.visible_index for g in gpus) else None
    entries = [entry.strip() for entry in visible.split(",")]
    if place.visible_index >= len(entries):
        return None
    entry = entries[place.visible_index]
    if entry.isdigit():
        return int(entry) if any(g.index == int(entry) for g in gpus) else None
    return next((g.index for g in gpus if g.uuid.startswith(entry)), None) if entry else None


def foreign_processes(
    processes: tuple[GpuProcess, ...], infos: dict[int, ProcessInfo], servers: Iterable[ServerState]
) -> tuple[ForeignProcess, ...]:
    """Return the GPU processes that belong to no known server, biggest first.

    The driver's list is read every few seconds, so a rank that has just died still stands in it. It is recognised by
    its title, since a later process may have been given its PID.
    """
    ours: set[int] = set()
    for server in servers:
        if not server.gone:
            ours |= {server.identity.pid, *(m.pid for m in server.identity.members)}
        ours |= set(server.left_pids)
        for rank in server.ranks:
            if rank.pid is not None and (rank.pid not in infos or infos[rank.pid].command == rank.title):
                ours.add(rank.pid)
    found = [
        ForeignProcess(
            pid=p.pid,
            gpu=p.gpu,
            memory_bytes=p.used_bytes,
            user=infos[p.pid].user if p.pid in infos else None,
            command=infos[p.pid].command if p.pid in infos else None,
        )
        for p in processes
        if p.pid not in ours
    ]
    return tuple(sorted(found, key=lambda p: (-(p.memory_bytes or 0), p.gpu, p.pid)))
