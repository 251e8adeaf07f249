"""The whole state of one host as an immutable value: what screens draw and `snapshot` prints.

Only `core.reduce` makes new ones. Parts that did not change are shared between versions, so comparing with
`is` tells a widget whether there is anything to draw.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tuner.domain.events import (
    GpuTable,
    GpuXid,
    HostSample,
    ProbeHello,
    ProblemSeen,
    ProcessKilled,
)
from tuner.domain.findings import Finding
from tuner.domain.gpu import GpuProcess, GpuSample, ProcessInfo
from tuner.domain.history import UsualTimes
from tuner.domain.link import LinkPhase
from tuner.domain.logs import LogBlock, LogFact
from tuner.domain.plan import NUMBERS_EVERY_S
from tuner.domain.readings import MemoryTerms
from tuner.domain.runs import Lease, RunRecord
from tuner.domain.server import LogSource, Phase, SeriesPoint, ServerIdentity
from tuner.domain.starts import Start

Series = tuple[SeriesPoint, ...]


class LinkState(Struct, frozen=True, kw_only=True):
    """The connection as the screen shows it."""

    phase: LinkPhase = LinkPhase.CONNECTING
    reason: str | None = None
    attempt: int = 0
    retry_in_s: float | None = None
    final: bool = False
    notes: tuple[str, ...] = ()
    rtt_s: float | None = None
    received_bytes_s: float | None = None
    sent_bytes_s: float | None = None


class PhaseRecord(Struct, frozen=True, kw_only=True):
    """How long a start-up phase took, or that it is still running."""

    phase: Phase
    started: float
    """Wall clock of the host, seconds since the epoch."""
    ended: float | None = None
    done: int | None = None
    total: int | None = None
    """Progress within the phase, e.g. shards or graph sizes."""
    detail: str | None = None


class RankMemory(Struct, frozen=True, kw_only=True):
    """GPU memory of one rank by purpose. The terms add up to `total_bytes` where that is known."""

    weights_bytes: int | None = None
    kv_bytes: int | None = None
    graphs_bytes: int | None = None
    context_bytes: int | None = None
    """CUDA context, NCCL communicators and all-reduce buffers, where the log tells."""
    other_bytes: int | None = None
    """The rest of the process: activations, workspaces, allocator reserve."""
    total_bytes: int | None = None
    """The process on its GPU as the driver counts it."""
    source: str = ""
    """Where the terms come from: `http`, `log` and `nvml`, joined by `+`."""


class RankState(Struct, frozen=True, kw_only=True):
    """One rank of a server."""

    tag: str
    """`TP0`, `DP1 TP3`, ...; `TP0` for a server with a single rank."""
    number: int | None = None
    """Global rank; None until the server's layout is known."""
    gpu: int | None = None
    """NVML index."""
    pid: int | None = None
    title: str | None = None
    """Title of its process, as last seen: tells a dead rank's entry in the driver's list from a later process's."""
    alive: bool = True
    memory: RankMemory = RankMemory()
    last_memory: RankMemory = RankMemory()
    """What it held before it died."""
    ready_bytes: int | None = None
    """What its process held on its GPU when it was first seen serving, as the driver counts it."""
    peak_bytes: int | None = None
    """The most that its process held since then."""
    phase: Phase = Phase.UNKNOWN
    last_line_at: float | None = None
    available_gib: float | None = None
    """The last `avail mem` this rank printed."""
    log_terms: MemoryTerms = MemoryTerms()
    http_terms: MemoryTerms = MemoryTerms()


class ServerMetrics(Struct, frozen=True, kw_only=True):
    """Live numbers of a server, from the best source there is."""

    source: str | None = None
    """metrics, loads or log."""
    at: float | None = None
    """Host monotonic time of the reading."""
    next_s: float = NUMBERS_EVERY_S
    """Seconds from then until the next one at the latest; an idle server is asked more seldom."""
    tok_s: float | None = None
    """Output tokens per second."""
    prompt_tok_s: float | None = None
    running: int | None = None
    queued: int | None = None
    token_usage_ratio: float | None = None
    used_tokens: int | None = None
    accept_length: float | None = None
    cache_hit_ratio: float | None = None
    retracted_total: int | None = None
    ttft_s: float | None = None
    """Mean over the last interval in which requests got a first token; median where only a histogram tells."""
    itl_s: float | None = None
    cuda_graph: bool | None = None


class LogState(Struct, frozen=True, kw_only=True):
    """The part of a log that is held in memory. Older lines are on the host and can be asked for."""

    source: LogSource | None = None
    earlier: bool = False
    """The newest line read was printed by a process before the server, which appends to the same log."""
    generation: int = 0
    """Grows when the file was rotated, truncated or replaced; offsets of different generations do not compare."""
    blocks: tuple[LogBlock, ...] = ()
    start: int = 0
    end: int = 0
    """Byte offsets of the first line that is held, and after the last byte that was read."""
    size: int | None = None
    """Bytes of the log on the host; None for the systemd journal."""
    lines_total: int = 0
    """Lines seen since connecting, also those no longer held."""
    dropped_bytes: int = 0
    """Bytes that the probe did not send."""
    held_lines: int = 0
    held_characters: int = 0
    partial: str = ""
    """The torn last line, waiting for its end; its first 64 KiB."""
    partial_start: int = 0
    joined: str = ""
    """The first records of a line that its log driver cut into several."""
    grown_at: float | None = None
    """Host monotonic time at which the newest bytes came."""
    said_at: float | None = None
    """Host monotonic time of the newest line that is no access-log line: our own polling causes those."""
    worked_at: float | None = None
    """Host monotonic time of the newest batch line, or of statistics that are not all zero."""
    line_at: float | None = None
    """Timestamp of the newest line that has one; later lines inherit it."""
    backlog_end: int = 0
    """Size of the log when it was opened: bytes below describe the past."""
    facts_end: int = 0
    """Lines that begin before this offset were searched for facts already."""

    @property
    def behind(self) -> bool:
        """Whether the log is not yet read up to its size when it was opened."""
        return self.source is not None and self.end < self.backlog_end


class KeptLine(Struct, frozen=True, array_like=True, eq=False, weakref=True):
    """A line that is kept for the diagnosis. Compared by identity: what was read of it is cached while it is kept."""

    at: int
    """Its place, as `LogLine.offset`; below zero where it stands in a file before the present one."""
    text: str


class ExplainState(Struct, frozen=True, kw_only=True):
    """What is kept of a server's log for its diagnosis, and when that was made."""

    lines: tuple[KeptLine, ...] = ()
    """Lines of the present start that may matter."""
    batches: tuple[KeptLine, ...] = ()
    """The newest batch lines."""
    shapes: dict[bytes, int] = {}
    """Number of lines of each shape."""
    due: bool = False
    """True: something came that no diagnosis has seen."""
    urgent: bool = False
    """True: what came may be of a failure."""
    grown_at: float | None = None
    """Host monotonic time of the newest line that is kept."""
    at: float | None = None
    """Host monotonic time of the last diagnosis."""
    seen: tuple[object, ...] = ()
    """What the last diagnosis knew beside the log."""
    advised_at: float | None = None
    held: tuple[int, ...] = ()
    """Memory of its GPUs at the last look, in steps of 64 MiB."""
    still_since: float | None = None
    """Host monotonic time since which `held` is unchanged."""
    halted: tuple[int, ...] = ()
    """Pids of its processes that are stopped."""
    halted_since: float | None = None
    """Host monotonic time of the first look that found just those."""
    diagnosed: tuple[Finding, ...] = ()
    """Findings from the log."""
    advice: tuple[Finding, ...] = ()
    """Findings from the numbers of a running server."""


class ErrorLine(Struct, frozen=True, kw_only=True):
    """The first line of an error in the log, with the ranks that showed the same one."""

    text: str
    ranks: tuple[str, ...] = ()
    offset: int = 0
    at: float | None = None
    count: int = 1
    phase: Phase = Phase.UNKNOWN
    header: bool = False
    """True: it only announces an error whose own line has not come yet."""
    secondary: bool = False
    """A consequence of what happened to another process."""
    silent: bool = False
    """True: no line of the log, but ranks that vanished from the process table without one."""


class ServerState(Struct, frozen=True, kw_only=True):
    """Everything known about one server, also after it died."""

    identity: ServerIdentity
    engine_title: str = ""
    version: str | None = None
    model: str | None = None
    phase: Phase = Phase.UNKNOWN
    phase_evidence: str = ""
    """Evidence of the phase: the log line or answer, in one line."""
    answers_ready: str = ""
    """The answer that said ready while the log was behind; it is applied once the log has caught up."""
    answered_at: float | None = None
    """Host monotonic time of that answer."""
    phases: tuple[PhaseRecord, ...] = ()
    started_in_s: float | None = None
    """Seconds from the first phase to ready."""
    usual: UsualTimes = UsualTimes()
    """Times that earlier starts took."""
    past: tuple[Start, ...] = ()
    """What earlier starts of the same LLM on this host measured of their memory, newest first."""
    settings: dict[str, Any] = {}
    """Resolved server args from HTTP or log."""
    ranks: tuple[RankState, ...] = ()
    kv_tokens: int | None = None
    metrics: ServerMetrics = ServerMetrics()
    series: dict[str, Series] = {}
    """tok_s, running, queued, token_usage, accept_length: at most ten minutes."""
    log: LogState = LogState()
    errors: tuple[ErrorLine, ...] = ()
    http_problem: str | None = None
    gone: bool = False
    left_pids: tuple[int, ...] = ()
    """PIDs of its processes that outlived the leader."""
    left_key: str | None = None
    """Key the probe uses for the left-over processes."""
    http_series: dict[str, dict[str, float]] = {}
    """By endpoint: all series known so far; only changes are sent."""
    http_numbers: dict[str, dict[str, float]] = {}
    """By endpoint: the `Reading.metrics` of its last JSON; an answer that is the same is not sent again."""
    counters: dict[str, Series] = {}
    """The last few readings of counters whose rate is shown."""
    batches: dict[str, LogFact] = {}
    """The last decode or statistics line of each rank that prints them."""
    prefills: dict[str, LogFact] = {}
    """The last prefill line of each rank; without its queue once a later line of that rank tells it."""
    log_clock: float | None = None
    """Log time minus the host's wall clock: the zone of the log, and its missing year."""
    facts: tuple[LogFact, ...] = ()
    """Facts of the current start, for diagnosis; bounded."""
    explain: ExplainState = ExplainState()
    findings: tuple[Finding, ...] = ()
    """What is wrong with it or worth knowing, the root cause first."""
    start: Start | None = None
    """What its log tells of the start that the findings are about."""

    @property
    def title(self) -> str:
        """The engine's name as people write it; for an engine that this version does not know, its id."""
        return self.engine_title or self.identity.engine


class ForeignProcess(Struct, frozen=True, kw_only=True):
    """A process that holds GPU memory and belongs to no server we know."""

    pid: int
    gpu: int
    memory_bytes: int | None = None
    user: str | None = None
    command: str | None = None


class HostState(Struct, frozen=True, kw_only=True):
    """The state of one host: the root value."""

    name: str
    link: LinkState = LinkState()
    hello: ProbeHello | None = None
    mono: float = 0.0
    """Newest monotonic time of the host."""
    now: float | None = None
    """The host's wall clock at `mono`, seconds since the epoch."""
    host: HostSample | None = None
    gpu_table: GpuTable | None = None
    samples: tuple[GpuSample, ...] = ()
    samples_at: float | None = None
    gpu_series: dict[int, Series] = {}
    """Utilisation ratio by GPU index, at most ten minutes."""
    processes: tuple[GpuProcess, ...] = ()
    processes_at: float | None = None
    """Host monotonic time of the driver's list; None before the first."""
    infos: dict[int, ProcessInfo] = {}
    foreign: tuple[ForeignProcess, ...] = ()
    servers: tuple[ServerState, ...] = ()
    """Running ones first, then those that ended, newest first."""
    problems: tuple[ProblemSeen, ...] = ()
    xids: tuple[GpuXid, ...] = ()
    killed: tuple[ProcessKilled, ...] = ()
    """The newest processes that the kernel killed for want of host memory."""
    runs: tuple[RunRecord, ...] = ()
    """Starts and stops that gputuner made on this host, newest first."""
    lease: Lease = Lease()
    scanned: bool = False
    """True: the first look for servers has ended, so that no server means no server."""
    seen: frozenset[str] = frozenset()
    """What this probe has told of: keys of servers, `run:ID`, and `lease`."""
    last_seq: int = 0
    lost_lines: int = 0
    """Probe lines that the sequence number says are missing."""

    def server(self, key: str) -> ServerState | None:
        """Return the server with a key; None where it is not known (any more)."""
        return next((each for each in self.servers if each.identity.key == key), None)
