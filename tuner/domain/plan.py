"""What the probe is told to look for. Engine knowledge travels as data; the probe knows no engine."""

from __future__ import annotations

from msgspec import Struct

NUMBERS_EVERY_S = 2.0
"""Seconds between two readings of the numbers of a server that works."""
NUMBERS_IDLE_S = 10.0
"""Seconds between two readings of the numbers of a server that is idle."""


class EndpointPlan(Struct, frozen=True, kw_only=True):
    """One HTTP endpoint of an engine, and how often it is asked."""

    id: str
    paths: tuple[str, ...]
    """Tried in order until one does not answer 404 or 5xx; the winner is kept."""
    every_s: float = 1.0
    idle_s: float = 0.0
    """Seconds up to which the time between two requests grows while answers stay the same and log and GPUs show no
    work."""
    timeout_s: float = 2.0
    parse: str = "json"
    """json, prometheus, or status (body ignored)."""
    series: tuple[str, ...] = ()
    """prometheus: metric names to keep (exact, without labels)."""
    drop: tuple[str, ...] = ()
    """json: top-level keys not to send."""
    keep: dict[str, tuple[str, ...]] = {}
    """json: of the value under a top-level key (of each element where it is a list) send only these keys."""
    unless: str | None = None
    """Skipped while that other endpoint answers 200."""
    auth: bool = False
    """Send the server's API key, which the probe reads from the server's own argv or environment."""
    quiet: bool = False
    """True: a failure of it is not reported as a problem."""


class EnginePlan(Struct, frozen=True, kw_only=True):
    """How to recognise one engine's processes, and what to ask them."""

    name: str
    leaders: tuple[str, ...]
    """Regular expressions on the command line joined by spaces; the topmost matching process is the leader."""
    titles: tuple[str, ...]
    """Regular expressions on the titles of its other processes."""
    package: str
    """Distribution whose metadata beside the interpreter tells the version."""
    port_flags: tuple[str, ...] = ("--port",)
    default_port: int = 8000
    tls_flags: tuple[str, ...] = ()
    """With one of them the server speaks TLS on its port, and nothing else."""
    api_key_flags: tuple[str, ...] = ("--api-key",)
    api_key_env: tuple[str, ...] = ()
    rank_env: tuple[str, ...] = ()
    """Environment variables of ranks, and of a helper that inherits the leader's present environment, worth sending
    where they differ from what the leader began with."""
    endpoints: tuple[EndpointPlan, ...] = ()
    start_markers: tuple[str, ...] = ()
    """Plain substrings; a log line with one of them belongs to the start-up section of a log."""
    log_end_marker: str = ""
    """Plain substring of the line after which nothing of the start-up section follows."""


class TailFrom(Struct, frozen=True, kw_only=True):
    """Where reading of a server's log goes on after a reconnect."""

    device: int | None = None
    inode: int | None = None
    path: str | None = None
    offset: int = 0
    cursor: str | None = None
    """For a log that is no file (the systemd journal)."""
    check: tuple[int, int] | None = None
    """An offset and the CRC-32 of the up to 256 bytes before it: if it differs, the file holds other bytes now."""


class ProbePlan(Struct, frozen=True, kw_only=True):
    """The first line sent to the probe."""

    engines: tuple[EnginePlan, ...]
    interval_s: float = 1.0
    resume: dict[str, TailFrom] = {}
    """Where to go on in each log, by server key."""
    tail_bytes: int = 262_144
    """Bytes of the end of a log that are sent at first."""
    head_bytes: int = 4_194_304
    """Bytes from the beginning of a log in which the start-up section is looked for."""
    max_log_bytes_s: int = 8_388_608
    """Most bytes of a log per second; more is skipped, with a gap that says so."""
    old_logs: int = 8
    """Older logs beside the current one to read the start-up sections of; 0: none."""
    ping_timeout_s: float = 20.0
    """Seconds without a ping after which the probe ends itself."""
