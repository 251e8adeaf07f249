"""The port of a simulated server: reserved early, opened late, and perhaps another's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import sys
from collections.abc import Iterator

SPARE_PORTS = range(30_001, 32_700)
"""Ports for a server whose own port is taken on this machine: below those that the kernel gives to connections."""
_SERVER = "\0gputuner-simhost-{}"
_HOST = "\0gputuner-simhost-host-{}"


def reserve(wanted: int) -> tuple[int, socket.socket | None]:
    """Choose the port of a simulated host's servers and keep it from other simulated hosts.

    Its servers come and go, and between two of them the port is free on this machine: the server of another host, or of
    another test, could take it, and the next start here would fail.

    Args:
        wanted: The port to take, unless it is taken.

    Returns:
        The port, and what keeps it until it is closed; None where the system has no such claims, or no port is free.
    """
    for number in (wanted, *spare_ports(os.getpid())):
        claim = _claimed(_HOST.format(number))
        if claim is None:
            continue
        port = Port(number)
        if port.hold():
            port.close()
            return number, claim
        claim.close()
    return wanted, None


def _claimed(name: str) -> socket.socket | None:
    """Return a socket with an abstract name, which the kernel gives to one process only; None: it is another's."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            claim.bind(name)
    except OSError:
        claim.close()
        return None
    return claim


def spare_ports(pid: int) -> Iterator[int]:
    """Yield all spare ports, for each process from another one on.

    A port that a demo's server gives up between its end and its next start is thus not the one that the next demo tries
    first.
    """
    first = pid * 131 % len(SPARE_PORTS)
    yield from SPARE_PORTS[first:]
    yield from SPARE_PORTS[:first]


class Port:
    """One port on loopback.

    SO_REUSEADDR is needed, or a port would be unusable for a while after each server. With it two servers that do not
    listen yet can hold the same port on Linux, so the name of a second socket, which the kernel gives to one process
    only, decides whose it is.

    Args:
        number: The wanted port.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket: socket.socket | None = None
        self._claim: socket.socket | None = None

    def hold(self) -> bool:
        """Reserve the port without listening, so that connections are refused until the server is ready."""
        claim = _claimed(_SERVER.format(self.number))
        if claim is None:
            return False
        made = socket.socket()
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(("127.0.0.1", self.number))
        except OSError:
            made.close()
            claim.close()
            return False
        self.socket, self._claim = made, claim
        return True

    def hold_any(self) -> None:
        """Reserve the port or, where it is taken, another."""
        if self.hold():
            return
        wanted = self.number
        for self.number in spare_ports(os.getpid()):
            kept = _claimed(_HOST.format(self.number))
            if kept is None:
                continue  # it is a simulated host's, whose server only rests
            kept.close()
            if self.number != wanted and self.hold():
                return
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.number = self.socket.getsockname()[1]

    def listen(self) -> bool:
        """Open the port. Returns whether it is ours."""
        if self.socket is None and not self.hold():
            return False
        assert self.socket is not None
        try:
            self.socket.listen(128)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the port up."""
        for held in (self.socket, self._claim):
            if held is not None:
                held.close()
        self.socket = self._claim = None

    async def answered(self) -> bool:
        """Return whether someone who listens there answers HTTP."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
                writer.write(b"GET /model_info HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                found = await reader.readline()
                writer.close()
                return found.startswith(b"HTTP/1.1 ")
        return False


def squat(number: int, lifeline: int | None) -> int:
    """Start a process that listens on a port and never answers. Returns its PID; it ends with its parent."""
    leash, hold = os.pipe()
    pid = os.fork()
    if pid:
        os.close(leash)  # the other end stays open as long as this process lives
        return pid
    with contextlib.suppress(BaseException):
        os.close(hold)
        port = Port(number)
        if port.hold() and port.listen():
            select.select([leash] if lifeline is None else [leash, lifeline], [], [])
    os._exit(0)
