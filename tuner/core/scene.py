"""Completes findings by what a live host shows beside the log: vanished ranks, tenants of the GPUs, kernel messages.

A log does not tell which process vanished in silence, nor who holds the memory that was missing. Where a server is
followed live, the process table, the driver and the kernel do.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.faults import HARDWARE_XIDS, broken_card
from tuner.core.diagnosis.processes import memory_remedies
from tuner.core.diagnosis.proposals import DMESG
from tuner.core.engine import Engine
from tuner.core.roots import root_of, stop_asked
from tuner.domain.events import ProcessKilled
from tuner.domain.findings import MOST_EVIDENCE, Confidence, Evidence, Finding, Remedy, Severity
from tuner.domain.server import Phase
from tuner.domain.starts import Start
from tuner.domain.state import ForeignProcess, HostState, ServerState
from tuner.units import GIB

_BY_XID = ("illegal-memory-access", "rank-died", "peer-rank-died", "watchdog-hang", "nccl-init-failure", "inconclusive")
"""Causes that an Xid error of the driver may explain."""
_MISSING = ("rank-died", "peer-rank-died", "inconclusive")
"""Causes that a vanished rank makes certain."""
_SHOWN_TENANTS = 4
"""Most tenants that a finding names."""
_COMM = 15
"""Bytes of a process's name that the kernel keeps."""
_QUOTED = 160
"""Most characters of a kernel line that are quoted."""
_BY_KILLER = ("rank-died", "peer-rank-died", "host-oom-killed", "inconclusive")
"""Causes that a kill by the kernel explains."""


class Xid(Struct, frozen=True):
    """An Xid error of a GPU of this server; `gpu` is None if it is not known of which."""

    code: int
    gpu: int | None
    text: str


class Scene(Struct, frozen=True, kw_only=True):
    """What the host shows of a server beside its log."""

    silent: tuple[str, ...] = ()
    """Tags of ranks that vanished from the process table while others lived, and had printed no error."""
    lost: bool = False
    """The leader vanished, with or without the others, although nobody asked for it, and no line says why."""
    orphan: bool = False
    """The leader had ended before the server was first seen, and others of its processes lived on."""
    left: tuple[int, ...] = ()
    """PIDs of its processes that outlive the leader."""
    gpus: tuple[tuple[str, int], ...] = ()
    """Tag and NVML index of each rank."""
    pids: tuple[tuple[str, int], ...] = ()
    """Tag and PID of each rank."""
    tenants: tuple[ForeignProcess, ...] = ()
    """Processes of others on its GPUs."""
    xids: tuple[Xid, ...] = ()
    """Xid errors of its GPUs since it began."""
    killed: tuple[ProcessKilled, ...] = ()
    """Its processes that the kernel killed for want of host memory."""

    @property
    def failed(self) -> bool:
        """Whether the host alone shows that the server failed."""
        return bool(self.silent or self.lost or self.orphan or self.killed)

    @property
    def news(self) -> tuple[object, ...]:
        """Values of which a change calls for a new diagnosis."""
        return (self.silent, self.lost, self.orphan, self.left, len(self.xids), len(self.killed))


NOTHING = Scene()


def scene_of(state: HostState, server: ServerState) -> Scene:
    """Return what the host shows of a server beside its log."""
    silent = tuple(tag for error in server.errors if error.silent for tag in error.ranks)
    lost = server.gone and server.phase is Phase.FAILED and not server.errors and not server.identity.orphaned
    orphan = server.identity.orphaned
    if not (silent or lost or orphan or state.foreign or state.xids or state.killed):
        return NOTHING
    gpus = tuple((rank.tag, rank.gpu) for rank in server.ranks if rank.gpu is not None)
    used = {gpu for _, gpu in gpus}
    return Scene(
        silent=silent,
        lost=lost,
        orphan=orphan,
        left=server.left_pids,
        gpus=gpus,
        pids=tuple((rank.tag, rank.pid) for rank in server.ranks if rank.pid is not None),
        tenants=tuple(each for each in state.foreign if each.gpu in used or not used),
        xids=_xids(state, server, used),
        killed=_killed(state, server),
    )


def _killed(state: HostState, server: ServerState) -> tuple[ProcessKilled, ...]:
    """Return the kills of its processes, by PID, or by name where a container has PIDs of its own."""
    since = server.identity.started_at
    events = [each for each in state.killed if since is not None and each.at is not None and each.at >= since]
    if not events:
        return ()
    members = server.identity.members
    pids = {server.identity.pid, *(m.pid for m in members), *(r.pid for r in server.ranks)}
    titles = {rank.title[:_COMM] for rank in server.ranks if rank.title and "::" in rank.title}
    return tuple(each for each in events if each.pid in pids or each.name in titles)


def _xids(state: HostState, server: ServerState, used: set[int]) -> tuple[Xid, ...]:
    """Return the Xid errors since the server began, of its GPUs or of one that is not known."""
    if not state.xids:
        return ()
    table = state.gpu_table.gpus if state.gpu_table is not None else ()
    by_bus = {_bus(gpu.bus_id): gpu.index for gpu in table if gpu.bus_id}
    since = server.identity.started_at
    found = []
    for event in state.xids:
        gpu = by_bus.get(_bus(event.bus_id))
        if since is not None and event.at is not None and event.at >= since and (gpu is None or gpu in used):
            found.append(Xid(event.xid, gpu, event.text))
    return tuple(found)


def _bus(bus_id: str) -> str:
    """Return one spelling for `00000000:3B:00.0` of NVML and `0000:3b:00` of the kernel."""
    return ":".join(bus_id.lower().partition(".")[0].split(":")[-2:])


def with_host(start: Start, server: ServerState) -> Start:
    """Add to a start what its host knows beside the log: version, settings and environment of the process.

    A setting that the log prints stays as it is there: findings cite its line.
    """
    return msgspec.structs.replace(
        start,
        settings={**server.settings, **start.settings},
        version=server.version or start.version,
        version_inferred=server.version is None and start.version_inferred,
        env=start.env | (server.identity.env or {}),
        env_read=server.identity.env is not None,
    )


def completed(findings: tuple[Finding, ...], start: Start, engine: Engine, scene: Scene) -> tuple[Finding, ...]:
    """Complete the findings of a log by what the host shows.

    Args:
        findings: The root cause first.
        start: What the log tells.
        engine: Its engine.
        scene: What the host shows.
    """
    if scene is NOTHING:
        return findings
    case = Case(start, root_of(start), engine)
    failed = bool(findings) and findings[0].severity is Severity.FATAL
    root, others = (findings[0], findings[1:]) if failed else (None, findings)
    if scene.silent:
        root = _vanished(case, root, scene)
    elif root is None and (scene.lost or scene.orphan) and stop_asked(start) is None:
        root = _lost(case, scene)
    if scene.killed and (root is None or root.cause in _BY_KILLER):
        root = _by_killer(case, root, scene)
    if root is not None and scene.xids and root.cause in _BY_XID:
        root = _by_driver(case, root, scene)
    found = others if root is None else (root, *(each for each in others if each.cause != root.cause))
    return tuple(_named(case, each, scene) if each.cause == "foreign-process-on-gpu" else each for each in found)


def _vanished(case: Case, root: Finding | None, scene: Scene) -> Finding:
    """Return the root finding for ranks that vanished from the process table in silence: they went first."""
    numbers = tuple(sorted({case.layout.number(tag) for tag in scene.silent}))
    pids = dict(scene.pids)
    names = ", ".join(f"{tag} (pid {pids[tag]})" if tag in pids else tag for tag in scene.silent)
    seen = (
        f"The process table shows it: {names} vanished while other ranks still ran, and had printed no error. It was"
        " killed from outside, or crashed in native code; what the others print is a consequence."
    )
    evidence = [case.derived("gone from the process table", names)]
    if root is None or root.cause in _MISSING:
        known = root if root is not None and root.cause == "rank-died" else None
        return case.finding(
            "rank-died",
            seen,
            evidence=[*evidence, *(known.evidence if known is not None else ())],
            remedies=known.remedies if known is not None else _who_killed(case),
            ranks=numbers,
            confidence=Confidence.HIGH,
            phase=None if root is not None else _phase(case),
            wrong_advice=root.wrong_advice if root is not None else (),
            refuted_by="an error of that process in another file",
            at=root.at if root is not None else case.start.last or None,
        )
    if root.cause == "host-oom-killed":
        # Where the launcher names the rank with its exit code, what vanished beside it was ended by the launcher.
        told = root.ranks if root.ranks is not None else numbers
        return msgspec.structs.replace(root, ranks=told, evidence=(*evidence, *root.evidence)[:MOST_EVIDENCE])
    return root


def _lost(case: Case, scene: Scene) -> Finding:
    """Return the root finding for a server that is gone, or its leader, and whose log just ends."""
    who = "The server's leader is" if scene.left else "All processes of the server are"
    pids = " ".join(str(pid) for pid in scene.left)
    words = f"{who} gone, no line asks it to stop, and its log just ends: it was killed from outside, by a person, an"
    words += " orchestrator, or the kernel for want of host memory."
    if case.engine.behaviour().stop_unlogged_while_loading and case.start.ready_at is None:
        words += f" {case.engine.title} leaves no word of a SIGTERM either while it loads."
    if scene.left:
        words += f" Others of its processes live on (pid {pids.replace(' ', ', ')}): they serve nobody, and hold what"
        words += " memory they have until they are ended."
    return case.finding(
        "rank-died",
        words,
        evidence=[
            case.derived("gone from the process table", "the leader" if scene.left else "all processes"),
            case.derived("processes that live on", len(scene.left)) if scene.left else None,
        ],
        remedies=[
            case.advice("process", "the next start needs their memory; those that ignore it: kill -9", f"kill {pids}")
            if scene.left
            else None,
            *_who_killed(case),
        ],
        ranks=None,
        phase=_phase(case),
        confidence=Confidence.MEDIUM,
        refuted_by="an error or a stop in another file of this server",
        at=case.start.last or None,
    )


def _by_killer(case: Case, root: Finding | None, scene: Scene) -> Finding:
    """Return the root finding for a process that the kernel says it killed."""
    killed = scene.killed[0]
    tags = [tag for tag, pid in scene.pids if pid == killed.pid]
    ranks = tuple(sorted(case.layout.number(tag) for tag in tags)) or (root.ranks if root is not None else None)
    cgroup = "cgroup" in killed.text
    return case.finding(
        "host-oom-killed",
        f"The kernel says that it killed {killed.name} (pid {killed.pid}) for want of memory:"
        f" {'its container or unit had used up its limit' if cgroup else 'the memory of the host was used up'}. It is"
        " not GPU memory; what the other processes print is the consequence.",
        evidence=[
            case.derived("kernel", killed.text[:_QUOTED]),
            *(root.evidence if root is not None else ()),
        ],
        remedies=memory_remedies(case),
        phase=root.phase if root is not None else _phase(case),
        ranks=ranks,
        confidence=Confidence.HIGH,
        refuted_by="a kernel line of another time or process",
        at=root.at if root is not None else case.start.last or None,
    )


def _phase(case: Case) -> str:
    """Return the phase in which a start ended whose log does not tell."""
    if case.start.ready_at is not None:
        return "runtime"
    return "none" if case.start.phase == Phase.UNKNOWN else str(case.start.phase)


def _who_killed(case: Case) -> list[Remedy | None]:
    return [
        case.advice("dmesg", "an out-of-memory line there means host memory, a segfault line names the library; neither"
                    " means that somebody killed it", DMESG)
    ]  # fmt: skip


def _by_driver(case: Case, root: Finding, scene: Scene) -> Finding:
    """Add an Xid error to the root finding; one that means a fault of the card takes its place."""
    fault = next((xid for xid in scene.xids if xid.code in HARDWARE_XIDS), None)
    told = fault if fault is not None else scene.xids[-1]
    ranks = tuple(sorted(case.layout.number(tag) for tag, gpu in scene.gpus if gpu == told.gpu))
    evidence = [
        case.derived("Xid in the kernel's log", told.code),
        *([case.derived("GPU of that Xid", told.gpu)] if told.gpu is not None else []),
    ]
    if fault is None:
        return msgspec.structs.replace(root, evidence=(*evidence, *root.evidence)[:MOST_EVIDENCE])
    return broken_card(
        case,
        f"The driver reported Xid {fault.code}{f' of GPU {fault.gpu}' if fault.gpu is not None else ''} while this"
        " server ran: a fault of the card, its memory or its links.",
        evidence=[*evidence, *root.evidence],
        phase=root.phase,
        ranks=ranks or root.ranks,
        refuted_by="an Xid from before this failure, of another cause",
        at=root.at,
    )


def _named(case: Case, finding: Finding, scene: Scene) -> Finding:
    """Add the tenants to a finding about memory of others."""
    shown = {gpu for tag, gpu in scene.gpus if finding.ranks is None or case.layout.number(tag) in finding.ranks}
    tenants = [each for each in scene.tenants if each.gpu in shown or not shown][:_SHOWN_TENANTS]
    if not tenants:
        return finding
    told = "; ".join(tenant_words(each) for each in tenants)
    amounts = tuple(amount for each in tenants if (amount := tenant_amount(each)) is not None)
    return msgspec.structs.replace(
        finding,
        explanation=f"{finding.explanation} On the host now: {told}.",
        evidence=(*amounts, *finding.evidence)[:MOST_EVIDENCE],
        confidence=Confidence.HIGH,
    )


def tenant_words(tenant: ForeignProcess) -> str:
    """Return a tenant in words."""
    whose = f" of {tenant.user}" if tenant.user else ""
    what = f" ({tenant.command})" if tenant.command else ""
    size = f"{tenant.memory_bytes / GIB:.2f} GiB" if tenant.memory_bytes is not None else "memory"
    return f"pid {tenant.pid}{whose}{what} holds {size} of GPU {tenant.gpu}"


def tenant_amount(tenant: ForeignProcess) -> Evidence | None:
    """Return what a tenant holds, as evidence; None if the driver does not tell."""
    held = tenant.memory_bytes
    if held is None:
        return None
    return Evidence(what=f"pid {tenant.pid} on GPU {tenant.gpu}", value=round(held / GIB, 2), unit="GiB")
