"""What is checked before a server is stopped, and what came out."""

from __future__ import annotations

import enum

from msgspec import Struct


class Verdict(enum.StrEnum):
    """What a check says."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; speaks for nothing."""
    WARN = "warn"
    """May go wrong; the operator decides."""
    FAIL = "fail"
    """The switch is refused."""
    UNKNOWN = "unknown"
    """Could not be checked; why is in the detail."""


class Check(Struct, frozen=True, kw_only=True):
    """One check before a switch."""

    id: str
    """`preset`, `start`, `interpreter`, `version`, `flags`, `cwd`, `llm`, `port`, `tenants`, `memory`, `disk`, `shm`,
    `limits`, `rights`, `manager`, `lease`, `env-files`; several checks may share one."""
    title: str
    verdict: Verdict
    detail: str = ""
    """What was found, with the numbers, in one line."""
    way_out: str = ""
    """What to do about it, in one line."""


class PreflightAsk(Struct, frozen=True, kw_only=True):
    """What the probe is asked to look at. It only reads, but for `help_argv`, which it runs."""

    key: str = ""
    """Key of the server that is to be stopped; empty: none."""
    ended: str = ""
    """Key of a server that has ended, and may be about to come back by itself; empty: none."""
    command: tuple[str, ...] = ()
    """The new server's command without arguments."""
    argv: tuple[str, ...] = ()
    """Its whole command line; empty: exactly that of the server or run that it is `like`."""
    help_argv: tuple[str, ...] = ()
    """Command that prints the engine's flags; empty: they are known already."""
    env: dict[str, str] = {}
    cwd: str | None = None
    like: str = ""
    """As `LaunchOrder.like`."""
    package: str = ""
    """Distribution whose version beside the interpreter is wanted."""
    llm: str = ""
    """Path or name of the LLM."""
    draft: str = ""
    """Path or name of the draft for speculative decoding; empty: none."""
    port: int | None = None
    log_dir: str | None = None
    managers: bool = True
    """Whether to ask who would bring the old server back."""
