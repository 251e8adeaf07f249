"""Everything that can happen to a session: the only input of `core.reduce` and the content of the journal.

Most events are the probe's lines, decoded; a few are the laptop's own view of the link. The tag `t` names the
type on the wire and in the journal. docs/protocol.md describes each; `PROTOCOL` is bumped when one changes
incompatibly.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tuner.domain.gpu import GpuInfo, GpuProcess, GpuSample, ProcessInfo
from tuner.domain.history import UsualTimes
from tuner.domain.link import LinkPhase
from tuner.domain.logs import LogHit
from tuner.domain.runs import Lease, RunRecord
from tuner.domain.server import ServerIdentity
from tuner.domain.starts import Start

PROTOCOL = 1


class Event(Struct, frozen=True, kw_only=True, tag_field="t"):
    """Base of all events."""

    mono: float = 0.0
    """Seconds of the sender's monotonic clock."""
    seq: int = 0
    """Counts the probe's lines from 1; a gap is loss. 0 on the laptop's own events."""


class LinkChanged(Event, frozen=True, kw_only=True, tag="link"):
    """The laptop's view of the connection."""

    phase: LinkPhase
    reason: str | None = None
    """For the screen: what happened and what to do."""
    attempt: int = 0
    retry_in_s: float | None = None
    final: bool = False
    """No further attempt will be made until the operator asks."""
    notes: tuple[str, ...] = ()
    """OpenSSH options that are not honoured, and the like."""


class LinkMeasured(Event, frozen=True, kw_only=True, tag="rtt"):
    """Round trip of a ping through the probe, and traffic since the last measurement."""

    rtt_s: float | None = None
    received_bytes_s: float = 0.0
    sent_bytes_s: float = 0.0


class ProbeHello(Event, frozen=True, kw_only=True, tag="hello"):
    """First line of the probe."""

    protocol: int
    python: str
    pid: int
    uid: int
    user: str | None = None
    hostname: str
    boot_id: str | None = None
    kernel: str | None = None
    at: float
    """Wall clock of the host at `mono`."""
    cpu_count: int | None = None
    utc_offset_s: float | None = None
    """Local time less UTC, seconds."""


class HostSample(Event, frozen=True, kw_only=True, tag="host"):
    """The machine around the GPUs."""

    cpu_ratio: float | None = None
    load_1m: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    disks: dict[str, tuple[int, int]] | None = None
    """Path to (total, free) bytes, for the folders that matter to the servers."""


class GpuTable(Event, frozen=True, kw_only=True, tag="gpu_info"):
    """The GPUs and how they are connected."""

    source: str | None = None
    """How they are read: `pynvml PATH`, `sent`, `nvidia-smi`, or None when there is nothing."""
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[GpuInfo, ...] = ()
    topology: tuple[tuple[str, ...], ...] | None = None
    """Square matrix by GPU order: X, NV#, PIX, PXB, PHB, NODE, SYS."""
    reason: str | None = None
    """Why the table is empty or poor, and what to do."""


class GpuSamples(Event, frozen=True, kw_only=True, tag="gpus"):
    """One reading of every GPU."""

    samples: tuple[GpuSample, ...]


class GpuProcesses(Event, frozen=True, kw_only=True, tag="gpu_procs"):
    """Who holds GPU memory. `infos` carries only processes not described before."""

    processes: tuple[GpuProcess, ...]
    infos: tuple[ProcessInfo, ...] = ()


class GpuXid(Event, frozen=True, kw_only=True, tag="xid"):
    """The driver reported an XID error in the kernel log."""

    bus_id: str
    xid: int
    text: str
    at: float | None = None
    """Host wall clock, seconds since the epoch; None if it is not known."""


class ProcessKilled(Event, frozen=True, kw_only=True, tag="oom"):
    """The kernel killed a process for want of memory, of the host's or of a cgroup's."""

    pid: int
    """PID as the kernel counts, not that of a container."""
    name: str
    """The first 15 bytes of the process's name."""
    text: str
    """The kernel's line."""
    at: float | None = None
    """Host wall clock, seconds since the epoch; None if it is not known."""


class ServerSeen(Event, frozen=True, kw_only=True, tag="server"):
    """A server was found or changed (members, port, log)."""

    server: ServerIdentity


class ScanEnded(Event, frozen=True, kw_only=True, tag="scanned"):
    """The first look through the process table has ended: what was not found is not there."""


class ServerGone(Event, frozen=True, kw_only=True, tag="server_gone"):
    """A leader is gone; `left` are its processes that live on. Sent again when some of those end."""

    key: str
    at: float | None = None
    left: tuple[int, ...] = ()


class LogOpened(Event, frozen=True, kw_only=True, tag="log_open"):
    """A server's log was opened, opened again, or is another file now."""

    key: str
    reason: str
    """start, resume, rotated, truncated, replaced, vanished, or unreadable."""
    kind: str = "file"
    path: str | None = None
    device: int | None = None
    inode: int | None = None
    size: int | None = None
    offset: int = 0
    """Byte offset at which reading goes on."""
    note: str | None = None


class LogBytes(Event, frozen=True, kw_only=True, tag="log"):
    """Bytes of a log, in order, each byte once. `data` is UTF-8 with replacement characters."""

    key: str
    offset: int
    end: int
    data: str
    head: bool = False
    """Part of the start-up section, read once from the file's beginning and before the tail."""
    cursor: str | None = None
    """Where a log that is no file (the systemd journal) goes on after `end`."""
    crc: int | None = None
    """CRC-32 of the up to 256 bytes of the file before `end`, for a `TailFrom`."""


class LogGap(Event, frozen=True, kw_only=True, tag="log_gap"):
    """Bytes that were not sent (a tail opened at its end, a flood over the cap)."""

    key: str
    offset: int
    end: int
    reason: str


class HttpAnswer(Event, frozen=True, kw_only=True, tag="http"):
    """An answer of a server's HTTP endpoint, read on the host."""

    key: str
    endpoint: str
    """Id of the endpoint in the engine's probe plan."""
    status: int | None = None
    """None: no HTTP answer at all; see `error`."""
    error: str | None = None
    series: dict[str, float | None] | None = None
    """Prometheus series that changed, `name{labels}` as printed; None: it is gone, or is no number any more."""
    body: Any = None
    """Decoded JSON of other endpoints; None when equal to the last one sent."""
    next_s: float | None = None
    """Seconds until it is asked again at the latest, if longer than planned because the server is idle."""


class OldLog(Event, frozen=True, kw_only=True, tag="old_log"):
    """The start-up lines of an older log found beside the current one."""

    key: str
    path: str
    size: int
    data: str


class ProblemSeen(Event, frozen=True, kw_only=True, tag="problem"):
    """Something that does not work on the host, in a closed list of codes (docs/protocol.md)."""

    code: str
    subject: str = ""
    """What it is about: a GPU, a path, a server key. With `code` it is the identity of the problem."""
    detail: str = ""
    cleared: bool = False


class Pong(Event, frozen=True, kw_only=True, tag="pong"):
    """Answer to a ping."""

    n: int


class SearchResult(Event, frozen=True, kw_only=True, tag="found"):
    """Hits of a search on the host; several may come for one request, the last has `done`."""

    id: int
    hits: tuple[LogHit, ...] = ()
    scanned_bytes: int = 0
    done: bool = False
    error: str | None = None


class ReadResult(Event, frozen=True, kw_only=True, tag="read"):
    """A part of a log that was asked for (scrolling back)."""

    id: int
    offset: int = 0
    end: int = 0
    size: int = 0
    data: str = ""
    error: str | None = None


class CheckResult(Event, frozen=True, kw_only=True, tag="checks"):
    """What `doctor` asked: facts about the host, by check id."""

    id: int
    checks: dict[str, Any]


class HistoryFound(Event, frozen=True, kw_only=True, tag="history"):
    """What earlier starts of a server like this one took."""

    key: str
    usual: UsualTimes
    starts: tuple[Start, ...] = ()
    """The newest of them, with what they measured of their memory."""


class RunChanged(Event, frozen=True, kw_only=True, tag="run"):
    """A run was found in gputuner's folder on the host, or went on."""

    run: RunRecord


class LeaseChanged(Event, frozen=True, kw_only=True, tag="lease"):
    """Who may change the host is another now, or gave a sign of life. Sent at first only if there is a lease."""

    lease: Lease


class HostCleaned(Event, frozen=True, kw_only=True, tag="cleaned"):
    """gputuner's folder was removed from the host by this laptop: there are no runs any more."""


class Acted(Event, frozen=True, kw_only=True, tag="acted"):
    """Answer to an act."""

    id: int
    error: str | None = None
    """Why it was not done, in one line; None: it was done, or has begun."""
    hint: str = ""
    """The way out, in one line."""
    run: str = ""
    """Id of the run that began."""
    would: Any = None
    """The act that a dry run would have sent, as JSON values; None: it was no dry run. No probe sends this."""


class PreflightResult(Event, frozen=True, kw_only=True, tag="preflight"):
    """Facts for the checks before a switch, by id; docs/protocol.md lists them."""

    id: int
    facts: dict[str, Any]


AnyEvent = (
    LinkChanged
    | LinkMeasured
    | ProbeHello
    | HostSample
    | GpuTable
    | GpuSamples
    | GpuProcesses
    | GpuXid
    | ProcessKilled
    | ServerSeen
    | ServerGone
    | LogOpened
    | LogBytes
    | LogGap
    | HttpAnswer
    | OldLog
    | ProblemSeen
    | Pong
    | SearchResult
    | ReadResult
    | CheckResult
    | HistoryFound
    | ScanEnded
    | RunChanged
    | LeaseChanged
    | HostCleaned
    | Acted
    | PreflightResult
)
