"""Transports: how to run a program on a host. Each is a module here, discovered by its `SCHEME`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import ModuleType
from typing import Protocol, cast

from tuner.domain.link import Question, Target
from tuner.errors import UsageProblem

Ask = Callable[[Question], Awaitable[str | None]]
"""Function that puts a question to the operator; it returns None if they give up. Without a screen it asks on the
terminal or refuses."""


class RemoteProcess(Protocol):
    """A program running on a host, with its streams as bytes."""

    async def read(self, limit: int = 262_144) -> bytes:
        """Return the next bytes of stdout, at most `limit`; empty at its end."""

    async def write(self, data: bytes) -> None:
        """Write all data to stdin, waiting while the other side is slow.

        Raises:
            ConnectionFailed: The program, or the link to it, is gone.
        """

    def errors(self) -> str:
        """Return the last few kilobytes of stderr."""

    def close_stdin(self) -> None:
        """Send end of file to the program's stdin."""

    async def wait(self) -> int | None:
        """Wait for the end and return the exit status; None after a signal or a lost link."""

    async def aclose(self) -> None:
        """Close the program's channel; the program sees end of file. Safe to call twice."""


class Transport(Protocol):
    """A connection to one host."""

    notes: tuple[str, ...]
    """Notes on this connection for the operator, such as options that are not honoured."""
    received_bytes: int
    """Number of bytes received so far."""
    sent_bytes: int
    """Number of bytes sent so far."""

    async def connect(self, ask: Ask) -> None:
        """Open the connection.

        Raises:
            ConnectionFailed: It failed; the error says why and what to do, and is `final` if trying again is useless.
        """

    async def spawn(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> RemoteProcess:
        """Start a program from a list of arguments; quoting for a remote shell happens here and nowhere else."""

    async def aclose(self) -> None:
        """Close the connection. Safe to call twice."""


Opener = Callable[[], Transport]
"""Function that makes a new transport to one host for each attempt to connect. What must outlive an attempt (a host key
accepted once, an unlocked key) is kept in the opener."""


def schemes() -> tuple[str, ...]:
    """Return the names of all transports: the modules here whose `SCHEME` is their name."""
    return tuple(name for name in _modules() if getattr(_load(name), "SCHEME", None) == name)


def opener(target: Target) -> Opener:
    """Return the opener for a target; only the transport that it needs is imported.

    Raises:
        UsageProblem: No transport has the target's scheme.
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
