"""The simulated host's SSH server: login by key only; each command is a real process of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, cast

import asyncssh

_SIGNALS = {
    "HUP": signal.SIGHUP, "INT": signal.SIGINT, "QUIT": signal.SIGQUIT, "KILL": signal.SIGKILL,
    "TERM": signal.SIGTERM, "USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2, "ALRM": signal.SIGALRM,
}  # fmt: skip
_NAMES = {int(number): name for name, number in _SIGNALS.items()}

END_S = 2.0
"""Most seconds to wait for a command that was killed."""


class Server(asyncssh.SSHServer):
    """One connection, with one user and one key.

    Args:
        user: Name of the user who may log in.
        key: The user's public key.
        session: Makes a session for each channel.
    """

    def __init__(self, user: str, key: asyncssh.SSHKey, session: Callable[[], Session]) -> None:
        self._user = user
        self._key = key
        self._session = session

    def begin_auth(self, username: str) -> bool:
        """Require authentication from everyone."""
        return True

    def public_key_auth_supported(self) -> bool:
        """Offer login by key."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept only the generated user key."""
        return username == self._user and key.public_data == self._key.public_data

    def session_requested(self) -> Session:
        """Make a session for a new channel."""
        return self._session()


class Session(asyncssh.SSHServerSession[bytes]):
    """One channel: a command with its streams, signals and exit status.

    Args:
        env: Environment of the commands.
        cwd: Working directory of the commands.
    """

    def __init__(self, env: Mapping[str, str], cwd: str) -> None:
        self._env = dict(env)
        self._cwd = cwd
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._command: str | None = None
        self._process: asyncio.SubprocessTransport | None = None
        self._early: list[bytes | None] = []
        """Input that came before the process was started; None stands for its end."""
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._exited = asyncio.Event()

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Store the channel that was opened."""
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        """Accept a command."""
        self._command = command
        return True

    def shell_requested(self) -> bool:
        """Accept a login shell without terminal: it reads commands from stdin."""
        self._command = "exec /bin/sh"
        return True

    def pty_requested(self, term_type: str, term_size: Any, term_modes: Any) -> bool:
        """Refuse a terminal."""
        return False

    def session_started(self) -> None:
        """Start the command."""
        assert self._channel is not None
        self._env.update(self._channel.get_environment())
        self._starting = asyncio.get_running_loop().create_task(self._start(), name="exec")

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        channel = self._channel
        assert channel is not None
        try:
            process, _ = await loop.subprocess_exec(
                lambda: _Pipes(channel, self._exited, self._ended), "/bin/sh", "-c", self._command or "true",
                env=self._env, cwd=self._cwd, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            channel.write_stderr(f"{error}\n".encode())
            channel.exit(126)
            return
        self._process = process
        for data in self._early:
            self._input(data)
        self._early.clear()
        if self._closed:
            self._kill(signal.SIGHUP)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Pass input to the command."""
        self._input(data)

    def eof_received(self) -> bool:
        """Pass on the end of input; the output stays open."""
        self._input(None)
        return True

    def _input(self, data: bytes | None) -> None:
        if self._process is None:
            self._early.append(data)
            return
        pipe = cast(asyncio.WriteTransport | None, self._process.get_pipe_transport(0))
        if pipe is None or pipe.is_closing():
            return
        if data is None:
            pipe.close()
        else:
            pipe.write(data)
            if pipe.get_write_buffer_size() > 1 << 20 and self._channel is not None:
                self._channel.pause_reading()
                asyncio.get_running_loop().call_later(0.02, self._resume, pipe)

    def _resume(self, pipe: asyncio.WriteTransport) -> None:
        if self._channel is None or self._closed:
            return
        if not pipe.is_closing() and pipe.get_write_buffer_size() > 1 << 18:
            asyncio.get_running_loop().call_later(0.02, self._resume, pipe)
        else:
            self._channel.resume_reading()

    def pause_writing(self) -> None:
        """Pause the command's output, since the client reads slowly."""
        self._output("pause_reading")

    def resume_writing(self) -> None:
        """Resume the command's output."""
        self._output("resume_reading")

    def _output(self, act: str) -> None:
        for number in (1, 2):
            pipe = self._process.get_pipe_transport(number) if self._process else None
            if pipe is not None and not pipe.is_closing():
                getattr(pipe, act)()

    def signal_received(self, signal: str) -> None:
        """Send a signal to the command."""
        number = _SIGNALS.get(signal)
        if number is not None:
            self._kill(number)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the command, since the channel or the connection is closed."""
        self._closed = True
        if self._process is not None:
            self._input(None)
            self._kill(signal.SIGHUP)
            asyncio.get_running_loop().call_later(1.0, self._let_go)

    @property
    def over(self) -> bool:
        """Return whether the channel is closed and the command released."""
        return self._closed and (self._process is None or self._process.is_closing())

    async def end(self) -> None:
        """Kill the command and release its pipes, while the event loop still runs."""
        self._kill(signal.SIGKILL)
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._exited.wait()
        self._let_go()

    def _let_go(self) -> None:
        self._kill(signal.SIGKILL)
        if self._process is not None:
            self._process.close()

    def _kill(self, number: signal.Signals) -> None:
        # Until the child is reaped, its PID and process group cannot be another's.
        if self._process is not None and self._process.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), number)

    def _ended(self) -> None:
        """Report the exit status, once the command has ended and its output was read."""
        assert self._channel is not None
        assert self._process is not None
        code = self._process.get_returncode() or 0
        with contextlib.suppress(OSError):
            if code >= 0:
                self._channel.exit(code)
            elif -code in _NAMES:
                self._channel.exit_with_signal(_NAMES[-code])
            else:
                self._channel.exit(128 - code)


class _Pipes(asyncio.SubprocessProtocol):
    """Passes the output of a command to its channel."""

    def __init__(
        self, channel: asyncssh.SSHServerChannel[bytes], exited: asyncio.Event, ended: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._exited = exited
        self._ended = ended
        self._open = 2

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if fd == 1:
                self._channel.write(data)
            else:
                self._channel.write_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd in (1, 2):
            self._open -= 1
            self._finish()

    def process_exited(self) -> None:
        self._exited.set()
        self._finish()

    def _finish(self) -> None:
        if self._exited.is_set() and not self._open:
            self._ended()
