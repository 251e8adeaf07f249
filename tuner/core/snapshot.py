"""One host as plain data: what `gputuner snapshot --json` prints.

The keys are an interface for scripts, so they are spelled out here and do not follow the state's field names. A key
is never left out: what is not known is None. Times of day are the host's own clock, in seconds since the epoch.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tuner.core import run_words, runs
from tuner.core.report import as_data, finding_reports
from tuner.core.throttle import limits
from tuner.domain.gpu import GpuInfo, GpuSample
from tuner.domain.runs import Lease, Operator, RunOutcome, RunRecord
from tuner.domain.server import Phase
from tuner.domain.state import HostState, RankMemory, ServerState

SCHEMA = 1
"""Version of the keys. Grows when a key is renamed, removed or changes its meaning; new keys do not count."""


class Missing(Struct, frozen=True, kw_only=True):
    """A part of a first reading that has not come yet."""

    what: str
    """`gpus`, `samples` (readings of the GPUs) or `servers` of the host; `log`, `phase`, `findings` (of a failure) or
    `speed` of a server."""
    pid: int | None = None
    """PID of the server; None for a part of the host."""


def snapshot(state: HostState) -> dict[str, Any]:
    """Return the newest reading of a host, as values that JSON knows; `missing` says what had not come yet."""
    return {
        "schema": SCHEMA,
        "host": state.name,
        "at": state.now,
        "gpus": gpus(state),
        "servers": [_server(server, state) for server in state.servers],
        "foreign": [
            {"pid": p.pid, "user": p.user, "gpu": p.gpu, "memory_bytes": p.memory_bytes, "command": p.command}
            for p in state.foreign
        ],
        "problems": [
            {"code": p.code, "subject": p.subject, "detail": p.detail} for p in state.problems if not p.cleared
        ],
        "missing": [msgspec.structs.asdict(part) for part in missing(state)],
        "runs": [_run(state, run) for run in state.runs],
        "lease": _lease(state.lease),
    }


def gpus(state: HostState) -> list[dict[str, Any]]:
    """Return every GPU that was described, with its newest sample if there is one."""
    samples = {sample.index: sample for sample in state.samples}
    known = state.gpu_table.gpus if state.gpu_table else ()
    return [_gpu(info, samples.get(info.index)) for info in known]


def _gpu(info: GpuInfo, sample: GpuSample | None) -> dict[str, Any]:
    now = sample or GpuSample(index=info.index)
    return {
        "index": info.index,
        "uuid": info.uuid,
        "name": info.name,
        "bus_id": info.bus_id,
        "numa_node": info.numa_node,
        "memory_total_bytes": info.memory_total_bytes,
        "memory_used_bytes": now.memory_used_bytes,
        "utilization_ratio": now.utilization_ratio,
        "memory_utilization_ratio": now.memory_utilization_ratio,
        "power_w": now.power_w,
        "power_limit_w": info.power_limit_w,
        "temperature_c": now.temperature_c,
        "memory_temperature_c": now.memory_temperature_c,
        "sm_mhz": now.sm_mhz,
        "memory_mhz": now.memory_mhz,
        "throttle": None if now.throttle_mask is None else list(limits(now.throttle_mask)),
        "pcie_gen": now.pcie_gen,
        "pcie_width": now.pcie_width,
        "pcie_rx_bytes_s": now.pcie_rx_bytes_s,
        "pcie_tx_bytes_s": now.pcie_tx_bytes_s,
        "nvlink_rx_bytes_s": now.nvlink_rx_bytes_s,
        "nvlink_tx_bytes_s": now.nvlink_tx_bytes_s,
        "ecc_uncorrected": now.ecc_uncorrected,
        "error": now.error,
    }


def _run(state: HostState, run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "preset": run.preset or None,
        "title": run.title or None,
        "operator": _operator(run.operator),
        "began_at": run.began_at,
        "seconds": runs.ended_at(run) - run.began_at,
        "step": run.step.value,
        "detail": run.detail or None,
        "outcome": run.outcome.value,
        "interrupted": run_words.interrupted(run) and not runs.overtaken(state, run),
        "failure": run.failure or None,
        "rolled_back": run.outcome is RunOutcome.BACK,
        "old_pid": None if run.old is None else run.old.pid,
        "new_pid": None if run.new is None else run.new.pid,
        "alive": run.alive,
        "back": run.back or None,
        "exit_code": run.exit_code,
        "log": run.log,
        "port": run.port,
        "steps": [
            {
                "step": step.step.value,
                "back": step.back,
                "seconds": None if step.ended is None else step.ended - step.at,
                "detail": step.detail or None,
                "unclean": step.unclean,
            }
            for step in run.steps
        ],
        "memory": [msgspec.structs.asdict(gpu) for gpu in run.memory],
        "leftovers": [msgspec.structs.asdict(left) for left in run.leftovers],
    }


def _lease(lease: Lease) -> dict[str, Any]:
    """Return who may change the host; `holder` is None where nobody does."""
    return {
        "holder": None if lease.holder is None else _operator(lease.holder),
        "mine": lease.mine,
        "since": None if lease.holder is None else lease.holder.since,
        "beat_at": lease.beat_at,
    }


def _operator(operator: Operator) -> dict[str, Any]:
    return {"name": operator.name, "machine": operator.machine or None}


def _server(server: ServerState, state: HostState) -> dict[str, Any]:
    identity = server.identity
    run = runs.run_of(state, server)
    preset, title = runs.preset_of(state, server)
    log = server.log.source or identity.log
    return {
        "engine": identity.engine,
        "version": server.version,
        "model": server.model,
        "pid": identity.pid,
        "user": identity.user,
        "started_at": identity.started_at,
        "manager": None if identity.manager is None else msgspec.structs.asdict(identity.manager),
        "argv": list(identity.argv),
        "cwd": identity.cwd,
        "port": identity.port,
        "members": [
            {"pid": member.pid, "title": member.title} for member in identity.members if member.pid in identity.living
        ],
        "orphaned": identity.orphaned,
        "run": None if run is None else run.id,
        "preset": preset or None,
        "preset_title": title or None,
        "log": None
        if log is None
        else {"kind": log.kind, "path": log.path, "size_bytes": server.log.size, "note": log.note},
        "phase": server.phase.value,
        "phase_evidence": server.phase_evidence or None,
        "phases": [
            {
                "phase": record.phase.value,
                "seconds": None if record.ended is None else record.ended - record.started,
                "done": record.done,
                "total": record.total,
            }
            for record in server.phases
        ],
        "started_in_s": server.started_in_s,
        "settings": dict(server.settings) or None,
        "ranks": [
            {
                "tag": rank.tag,
                "rank": rank.number,
                "gpu": rank.gpu,
                "pid": rank.pid,
                "alive": rank.alive,
                "memory_bytes": memory_bytes(rank.memory),
                "memory_source": rank.memory.source or None,
            }
            for rank in server.ranks
        ],
        "kv_tokens": server.kv_tokens,
        "metrics": msgspec.structs.asdict(server.metrics),
        "http_problem": server.http_problem,
        "errors": [
            {"text": error.text, "ranks": list(error.ranks), "count": error.count, "phase": error.phase.value}
            for error in server.errors
        ],
        "findings": _findings(server),
    }


def _findings(server: ServerState) -> list[dict[str, Any]]:
    """Return findings as `diagnose --json` has them, without lines: those of a followed log are not counted."""
    path = server.log.source.path if server.log.source is not None else None
    return [as_data(each) for each in finding_reports(server.findings, lambda _: (path, None))]


def memory_bytes(memory: RankMemory) -> dict[str, int | None]:
    """Return a rank's memory in the five terms of the interface; `other` is all that has no term of its own."""
    rest = [term for term in (memory.context_bytes, memory.other_bytes) if term is not None]
    return {
        "weights": memory.weights_bytes,
        "kv": memory.kv_bytes,
        "graphs": memory.graphs_bytes,
        "other": sum(rest) if rest else None,
        "total": memory.total_bytes,
    }


def missing(state: HostState) -> tuple[Missing, ...]:
    """Return what a first reading still waits for; empty if it has all that is to come.

    That is the GPUs and who holds their memory, the process table, and of each server its log, read to its end, and its
    answers. A ready server without a speed is waited for: the rate of a counter needs two readings.
    """
    found: list[Missing] = []
    if state.hello is None or state.gpu_table is None:
        found.append(Missing(what="gpus"))
    elif state.gpu_table.gpus and None in (state.samples_at, state.processes_at):
        found.append(Missing(what="samples"))
    if not state.scanned:
        found.append(Missing(what="servers"))
    found.extend(
        Missing(what=what, pid=server.identity.pid)
        for server in state.servers
        if not server.gone and (what := _untold(server))
    )
    return tuple(found)


def _untold(server: ServerState) -> str | None:
    if server.log.source is None or server.log.behind:
        # The start-up section of a long log comes first: what it says may be long over.
        return "log"
    if server.phase is Phase.UNKNOWN:
        return "phase"
    if server.phase is Phase.FAILED and server.explain.due and not server.findings:
        return "findings"
    if server.phase is not Phase.READY or server.http_problem is not None:
        return None
    return None if server.metrics.source is not None and server.metrics.tok_s is not None else "speed"
