"""Ways to run a program on a host. One module each, found by its `SCHEME`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import ModuleType
from typing import Protocol, cast

from tuner.domain.link import Question, Target
from tuner.errors import UsageProblem

Ask = Callable[[Question], Awaitable[str | None]]
"""Puts a question to the operator; None is "give up". Headless callers answer from the terminal or refuse."""


class RemoteProcess(Protocol):
    """A program running on a host, its streams as bytes. Reading in blocks is up to the caller."""

    async def read(self, limit: int = 262_144) -> bytes:
        """Next bytes of stdout; empty at its end."""

    async def write(self, data: bytes) -> None:
        """Write all to stdin, waiting while the other side is slow."""

    def errors(self) -> str:
        """The last few kilobytes of stderr."""

    def close_stdin(self) -> None:
        """Tell the program that nothing more will come."""

    async def wait(self) -> int | None:
        """Exit status; None when it died of a signal or the link was lost."""

    async def aclose(self) -> None:
        """End the program's channel; the program sees end of file. Safe to call twice."""


class Transport(Protocol):
    """A connection to one host."""

    notes: tuple[str, ...]
    """What the operator should know of this connection (options not honoured)."""
    received_bytes: int
    sent_bytes: int

    async def connect(self, ask: Ask) -> None:
        """Open the connection.

        Raises:
            ConnectionFailed: with what happened and what to do; `final` when trying again is useless.
        """

    async def spawn(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> RemoteProcess:
        """Start a program. Arguments are a list; quoting for the remote shell happens here and nowhere else."""

    async def aclose(self) -> None:
        """Close the connection. Safe to call twice."""


Opener = Callable[[], Transport]
"""Makes a new transport to one host for each attempt to connect. What must outlive an attempt (a key that was
trusted once, a key that was unlocked) lives in the opener, and ends with it."""


def schemes() -> tuple[str, ...]:
    """Names of all transports: the modules here that have a `SCHEME`, found without keeping a list."""
    return tuple(name for name in _modules() if getattr(_load(name), "SCHEME", None) == name)


def opener(target: Target) -> Opener:
    """The way to the host that `target` names. Imports only the one transport that it needs.

    Raises:
        UsageProblem: no transport has this scheme.
    """
    if target.scheme in _modules():
        module = _load(target.scheme)
        if getattr(module, "SCHEME", None) == target.scheme:
            return cast("Callable[[Target], Opener]", module.opener)(target)
    raise UsageProblem("No such kind of connection", target.scheme, f"There are {', '.join(schemes())}")


def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


__all__ = ["Ask", "AsyncIterator", "Opener", "RemoteProcess", "Transport", "opener", "schemes"]
