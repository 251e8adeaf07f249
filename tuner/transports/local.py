"""The transport to this machine, for a local GPU host and for tests; no shell, and a session for each program."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import cast

from tuner.domain.link import Target
from tuner.errors import ConnectionFailed
from tuner.transports import Ask, Transport
from tuner.transports.inbox import Inbox

SCHEME = "local"

GRACE_S = 2.0
"""Wait in seconds after each step of ending a program: end of file, SIGTERM, SIGKILL. After the last one it is left
alone, since a program that waits for a dead disk or driver does not end."""


def opener(target: Target) -> Callable[[], Transport]:
    """Return the opener for this machine."""
    return LocalTransport


class LocalTransport:
    """The transport to this machine; traffic is the number of bytes of the programs' stdin, stdout and stderr."""

    notes: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self._processes: set[LocalProcess] = set()

    async def connect(self, ask: Ask) -> None:
        """Do nothing: this machine needs no connection."""

    async def spawn(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> LocalProcess:
        """Start a program; `env` is added to this process's environment."""
        process = LocalProcess(self)
        loop = asyncio.get_running_loop()
        try:
            await loop.subprocess_exec(
                lambda: process,
                *argv,
                env={**os.environ, **env} if env else None,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ConnectionFailed(
                f"{argv[0]} is not on this machine", str(error), f"Install {argv[0]} or put it on PATH", final=True
            ) from error
        except OSError as error:
            raise ConnectionFailed(f"{argv[0]} cannot be started", str(error), final=True) from error
        self._processes.add(process)
        return process

    async def aclose(self) -> None:
        """End all programs that are still running."""
        for process in list(self._processes):
            await process.aclose()


class LocalProcess(asyncio.SubprocessProtocol):
    """A child process with its streams."""

    def __init__(self, owner: LocalTransport) -> None:
        self._owner = owner
        self._inbox = Inbox(self._pause_stdout, self._resume_stdout)
        self._writable = asyncio.Event()
        self._writable.set()
        self._exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """PID of the child; None if it was not started."""
        return self._transport.get_pid() if self._transport else None

    async def read(self, limit: int = 262_144) -> bytes:
        """Return the next bytes of stdout; empty at its end."""
        return await self._inbox.read(limit)

    async def write(self, data: bytes) -> None:
        """Write to stdin.

        Raises:
            ConnectionFailed: The program has closed its stdin.
        """
        stdin = self._stdin()
        if stdin is None or stdin.is_closing():
            raise ConnectionFailed("The program has closed its input")
        self._owner.sent_bytes += len(data)
        stdin.write(data)
        await self._writable.wait()

    def errors(self) -> str:
        """Return the end of stderr."""
        return self._inbox.errors()

    def close_stdin(self) -> None:
        """Send end of file to the program's stdin."""
        stdin = self._stdin()
        if stdin is not None:
            stdin.close()

    async def wait(self) -> int | None:
        """Wait for the end and return the exit status; None after a signal."""
        await self._exited.wait()
        code = self._transport.get_returncode() if self._transport else None
        return code if code is not None and code >= 0 else None

    async def aclose(self) -> None:
        """End the child: by end of file, then by SIGTERM and SIGKILL to its PID, waiting `GRACE_S` after each."""
        if self._transport is None or self._closed:
            return
        self.close_stdin()
        for number in (signal.SIGTERM, signal.SIGKILL, None):
            try:
                async with asyncio.timeout(GRACE_S):
                    await self._exited.wait()
                break
            except TimeoutError:
                if number is not None and self._transport.get_returncode() is None:
                    self._transport.send_signal(number)
        self._closed = True
        self._inbox.end()
        self._transport.close()
        self._owner._processes.discard(self)  # noqa: SLF001 - its owner's list of children

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport once the child was started."""
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Buffer output of the child."""
        self._owner.received_bytes += len(data)
        if fd == 1:
            self._inbox.put(data)
        else:
            self._inbox.put_error(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Handle the end of a stream."""
        if fd == 1:
            self._inbox.end()
        elif fd == 0:
            self._writable.set()

    def process_exited(self) -> None:
        """Note that the child has ended; output may still come."""
        self._exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the child has ended and all its pipes are closed."""
        self._inbox.end()
        self._writable.set()

    def pause_writing(self) -> None:
        """Block `write`, since the pipe to stdin is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock `write`, since the pipe to stdin has room."""
        self._writable.set()

    def _stdin(self) -> asyncio.WriteTransport | None:
        return cast(asyncio.WriteTransport | None, self._transport.get_pipe_transport(0)) if self._transport else None

    def _pause_stdout(self) -> None:
        self._stdout().pause_reading()

    def _resume_stdout(self) -> None:
        stdout = self._stdout()
        if not stdout.is_closing():
            stdout.resume_reading()

    def _stdout(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))
