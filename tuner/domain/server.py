"""A running inference server: who it is, which processes it has, where its log is."""

from __future__ import annotations

import enum

from msgspec import Struct


class Phase(enum.StrEnum):
    """Where a server is in its life. The start-up names are the ones findings use."""

    UNKNOWN = "unknown"
    ARGS = "args"
    CUDA_INIT = "cuda-init"
    DIST_INIT = "dist-init"
    WEIGHT_LOAD = "weight-load"
    DRAFT_INIT = "draft-init"
    KV_ALLOC = "kv-alloc"
    AUTOTUNE = "autotune"
    GRAPH_CAPTURE = "graph-capture"
    WARMUP = "warmup"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def starting(self) -> bool:
        """Whether the server starts: from the first argument to the end of the warm-up."""
        return self in START_PHASES

    @property
    def ended(self) -> bool:
        """Whether no server process is expected any more."""
        return self in (Phase.STOPPED, Phase.FAILED)


START_PHASES: tuple[Phase, ...] = (
    Phase.ARGS,
    Phase.CUDA_INIT,
    Phase.DIST_INIT,
    Phase.WEIGHT_LOAD,
    Phase.DRAFT_INIT,
    Phase.KV_ALLOC,
    Phase.AUTOTUNE,
    Phase.GRAPH_CAPTURE,
    Phase.WARMUP,
)
"""The start-up phases in their usual order; engines and versions skip some and swap draft-init."""


class Member(Struct, frozen=True, kw_only=True):
    """One process of a server's tree."""

    pid: int
    ppid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: with the boot id it tells this process from a later one with its PID."""
    title: str
    """The command line as /proc shows it; engines overwrite it with a process title."""
    state: str = "?"
    """One letter of /proc/PID/stat; Z is a zombie."""
    env: dict[str, str] | None = None
    """Only the variables an engine asked for and only where they differ from the leader's."""


class Manager(Struct, frozen=True, kw_only=True):
    """Who started the server and may start it again."""

    kind: str
    """gputuner (a run of its own), systemd, supervisord, docker, podman, kubernetes, slurm, shell or unknown."""
    name: str | None = None


class LogSource(Struct, frozen=True, kw_only=True):
    """Where the server's output goes."""

    kind: str
    """file, docker-json, cri, journal, or none."""
    path: str | None = None
    device: int | None = None
    inode: int | None = None
    note: str | None = None
    """Why there is none, in words for the screen."""


class ServerIdentity(Struct, frozen=True, kw_only=True):
    """What the probe found in /proc about one server, at first sight and at each change (then without argv and env)."""

    key: str
    """`PID:start_ticks` of the leader, unique for one boot of the host."""
    engine: str
    pid: int
    start_ticks: int
    started_at: float | None = None
    """Host wall clock at which the leader began, seconds since the epoch."""
    uid: int | None = None
    user: str | None = None
    argv: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    """The leader's environment as far as readable; None: permission denied. Secrets are masked."""
    cwd: str | None = None
    interpreter: str | None = None
    version: str | None = None
    """From the installed package's metadata beside the interpreter; HTTP and log may correct it."""
    manager: Manager | None = None
    port: int | None = None
    """Port at which it is to serve; None if it is not known."""
    ports: tuple[int, ...] = ()
    """Ports on which its processes listen."""
    members: tuple[Member, ...] = ()
    orphaned: bool = False
    """True: these are processes of an engine whose leader is gone."""
    log: LogSource | None = None

    @property
    def living(self) -> tuple[int, ...]:
        """PIDs of the members that run: a zombie is dead and only waits to be reaped."""
        return tuple(member.pid for member in self.members if member.state != "Z")


class SeriesPoint(Struct, frozen=True, array_like=True, gc=False):
    """One value of a series; `t` in seconds of the host's monotonic clock."""

    t: float
    value: float
