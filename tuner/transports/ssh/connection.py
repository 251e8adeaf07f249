"""One SSH connection to one host, hop by hop.

At each hop TCP (or the tunnel through the hop before) is opened, gputuner compares the host key with the known_hosts
files, and the login follows. An unknown key ends the attempt; once the operator trusts the key, a new attempt is made,
so that the server's login time does not run out while they compare fingerprints.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from tuner.domain.link import HostKeyQuestion, Target
from tuner.errors import ConnectionFailed
from tuner.transports import Ask
from tuner.transports.inbox import Inbox
from tuner.transports.ssh import config, known_hosts
from tuner.transports.ssh.failures import explain
from tuner.transports.ssh.login import KeyFile, Login, Patience
from tuner.transports.ssh.route import Hop, route

CONNECT_S = 10.0
"""Time limit for TCP before the host was ever reached, seconds, unless ConnectTimeout is set."""
RECONNECT_S = 4.0
"""Time limit for TCP once the host was reached, seconds: the next attempt follows soon."""
KEEP_ALIVE_S = 5.0
"""Interval of keep-alive messages, seconds, unless ServerAliveInterval is set."""
KEEP_ALIVE_MISSED = 3
"""Number of unanswered keep-alive messages that end a connection, unless ServerAliveCountMax is set."""
PACKET_OVERHEAD_BYTES = 36
"""Approximate overhead of one SSH packet: length, padding, message header and authentication tag."""


class Trust:
    """What the attempts of one session share, in memory only.

    It holds host keys that the operator accepted and unlocked key files (the key, not its passphrase). Passwords are
    not kept but asked for each time. After a refused login the key files are dropped.
    """

    def __init__(self) -> None:
        self.accepted: set[tuple[str, int, str, str]] = set()
        """Accepted host keys: name, port, algorithm and public key (base64)."""
        self.keys: dict[tuple[Path, ...], list[KeyFile]] = {}
        """Key files of a hop, by the paths of its key files and certificates."""
        self.reached = False
        """Whether the host was reached in this session."""


class SshTransport:
    """One SSH connection to one host.

    Traffic is the data of the program's channel plus `PACKET_OVERHEAD_BYTES` for each packet received and each write
    sent; login, keep-alive and the layers below SSH are not counted.
    """

    def __init__(self, target: Target, trust: Trust | None = None) -> None:
        self.notes: tuple[str, ...] = ()
        self.received_bytes = 0
        self.sent_bytes = 0
        self._target = target
        self._trust = trust or Trust()
        self._chain: list[asyncssh.SSHClientConnection] = []

    async def connect(self, ask: Ask) -> None:
        """Connect and log in, through all jump hosts.

        Raises:
            ConnectionFailed: A hop could not be connected; the error says why and what to do.
        """
        try:
            with config.copied() as files:
                hops = await route(self._target, files)
                notes: dict[str, None] = {}
                for hop in hops:
                    # Notes on a jump host name it.
                    prefix = "" if hop is hops[-1] else f"{hop.name}: "
                    notes.update(dict.fromkeys(prefix + note for note in hop.notes))
                    self._chain.append(await self._open(hop, ask))
            self.notes = tuple(notes)
        except BaseException:
            await self.aclose()
            raise
        self._trust.reached = True

    async def spawn(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> SshProcess:
        """Start a program in a channel without a terminal; only here are arguments quoted for a shell.

        Raises:
            ConnectionFailed: There is no connection, or the host refused to run the program.
        """
        if not self._chain:
            raise ConnectionFailed("Not connected", self._target.name)
        words = [*(["env", *(f"{name}={value}" for name, value in env.items())] if env else []), *argv]
        process = SshProcess(self)
        try:
            await self._chain[-1].create_session(
                lambda: process, shlex.join(words), encoding=None, request_pty=False, x11_forwarding=False
            )
        except (asyncssh.Error, OSError) as error:
            raise ConnectionFailed(
                "The host did not run the command", str(error), "Does a forced command or a restricted shell allow it?"
            ) from error
        return process

    async def aclose(self) -> None:
        """Close the connections to all hops, the last one first."""
        while self._chain:
            connection = self._chain.pop()
            connection.close()
            try:
                async with asyncio.timeout(1.0):
                    await connection.wait_closed()
            except (TimeoutError, OSError, asyncssh.Error):
                connection.abort()

    async def _open(self, hop: Hop, ask: Ask) -> asyncssh.SSHClientConnection:
        """Connect to one hop; make a new attempt after each host key that the operator accepted.

        Raises:
            ConnectionFailed: The hop could not be connected.
        """
        paths = hop.identities + hop.certificates
        if paths not in self._trust.keys:
            self._trust.keys[paths] = await asyncio.to_thread(
                lambda: [KeyFile(path, hop.certificates) for path in hop.identities]
            )
        algorithms = ""
        while True:
            door = _Door(hop, self._trust)
            try:
                return await self._attempt(hop, door, ask, self._trust.keys[paths], algorithms)
            except asyncssh.HostKeyNotVerifiable as error:
                if door.offered is None and door.revoked is None and not algorithms:
                    # The host offered a certificate of an unknown authority; its plain key may still be known.
                    algorithms = "-*-cert-*"
                else:
                    await self._unknown_key(hop, door, ask, error)
            except (asyncssh.DisconnectError, ConnectionResetError, BrokenPipeError) as error:
                if not door.known or door.passed or algorithms == "default":
                    raise self._explain(hop, door, error) from error
                # The host may offer none of the known kinds of key, and either side may then hang up. Try again with
                # any kind, to name the key that the host offers.
                algorithms = "default"
            except (asyncssh.Error, OSError, ValueError) as error:
                raise self._explain(hop, door, error) from error

    def _explain(self, hop: Hop, door: _Door, error: Exception) -> ConnectionFailed:
        if isinstance(error, asyncssh.PermissionDenied):
            self._trust.keys.clear()
        return explain(hop, error, self._trust.reached, door.unanswered)

    async def _attempt(
        self, hop: Hop, door: _Door, ask: Ask, keys: list[KeyFile], algorithms: str
    ) -> asyncssh.SSHClientConnection:
        limit = hop.connect_timeout_s or (RECONNECT_S if self._trust.reached else CONNECT_S)
        tunnel = self._chain[-1] if self._chain else None
        more: dict[str, Any] = {}
        if tunnel is not None:
            more["proxy_command"] = None
        if algorithms:
            more["server_host_key_algs"] = algorithms
        async with Patience(limit, f"{hop.label} did not answer within {limit:g} s") as patience:
            door.opened = lambda: patience.connected(f"{hop.label} took the connection and then said nothing")
            login = Login(hop, self._target.name, ask, patience, keys, door.consider)
            try:
                return await asyncssh.connect(
                    hop.name if hop.files else hop.host,
                    hop.asked_port or (),
                    client_factory=lambda: login,
                    config=list(hop.files),
                    known_hosts=door.look_up,
                    tunnel=tunnel,
                    username=hop.asked_user or (),
                    client_keys=None,
                    x509_trusted_certs=None,
                    agent_forwarding=False,
                    pkcs11_provider=None,
                    keepalive_interval=hop.keep_alive_s or KEEP_ALIVE_S,
                    keepalive_count_max=hop.keep_alive_missed or KEEP_ALIVE_MISSED,
                    connect_timeout=None,
                    **more,
                )
            finally:
                door.passed = login.began
                door.unanswered = login.unanswered
                login.close()

    async def _unknown_key(self, hop: Hop, door: _Door, ask: Ask, error: Exception) -> None:
        """Ask the operator about an unknown host key, and store the answer; refuse a revoked or changed key.

        Raises:
            ConnectionFailed: The key is revoked, changed or was not accepted, or cannot be saved.
        """
        if door.revoked is not None and door.offered is None:
            raise ConnectionFailed(
                f"The host key of {hop.label} is revoked",
                door.revoked.where,
                "Do not log in there before its administrator has explained it",
                final=True,
            ) from error
        if door.offered is None:
            raise ConnectionFailed(f"The host certificate of {hop.label} is not valid", str(error), final=True)
        algorithm, blob = door.offered
        seen = f"{algorithm} {known_hosts.fingerprint(blob)}"
        if door.known:
            raise ConnectionFailed(
                f"The host key of {hop.label} has CHANGED",
                f"it is now {seen}, another one is in {door.known[0].where}",
                "Somebody may be listening in. Only if you know that the host was set up anew: remove that line",
                final=True,
            ) from error
        answer = await ask(
            HostKeyQuestion(
                target=self._target.name,
                host=door.host,
                port=door.port,
                key_type=algorithm,
                fingerprint=known_hosts.fingerprint(blob),
            )
        )
        if answer not in ("once", "save"):
            raise ConnectionFailed(
                f"The host key of {hop.label} is not known and was not accepted", seen, final=True
            ) from error
        if answer == "save":
            if not hop.known_hosts:
                raise ConnectionFailed(
                    "The host key cannot be saved", "UserKnownHostsFile is none", "Answer `once`", final=True
                ) from error
            file = hop.known_hosts[0]
            try:
                known_hosts.save(file, door.host, door.port, algorithm, blob, hashed=hop.hash_known_hosts)
            except OSError as failure:
                raise ConnectionFailed(
                    "The host key cannot be saved", f"{file}: {failure.strerror}", "Answer `once`", final=True
                ) from failure
        self._trust.accepted.add((door.host, door.port, algorithm, blob))


class _Door:
    """Decides on the host key in one attempt, by the known_hosts files of the hop."""

    def __init__(self, hop: Hop, trust: Trust) -> None:
        self._hop = hop
        self._trust = trust
        self.opened: Callable[[], None] = lambda: None
        """Called once TCP is connected, when the host is expected to speak."""
        self.passed = False
        """Whether the host key was accepted, so that the login began."""
        self.unanswered: list[str] = []
        """Questions of the login that were answered wrongly or not at all, in words."""
        self.host = hop.host
        self.port = hop.port
        self.known: list[known_hosts.KnownKey] = []
        """Ordinary known keys for exactly this name and port."""
        self.revoked: known_hosts.KnownKey | None = None
        """First revoked key for this name; None if there is none."""
        self.offered: tuple[str, str] | None = None
        """Algorithm and public key (base64) that the host offered and no known_hosts file contains; None: none yet."""

    def look_up(
        self, host: str, address: str, port: int | None
    ) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]:
        """Return trusted keys, trusted authorities and revoked keys; called by the library."""
        self.opened()
        self.host = host
        self.port = known_hosts.DEFAULT_PORT if self._hop.host_key_alias else (port or known_hosts.DEFAULT_PORT)
        found = known_hosts.find(self._hop.known_hosts, self.host, self.port)
        plain = [key for key in found if not key.marker]
        revoked = [key for key in found if key.marker == "revoked"]
        self.revoked = revoked[0] if revoked else None
        # A key of the bare name is trusted for other ports too, but a different key there is not a changed key.
        self.known = [key for key in plain if known_hosts.is_for(key, self.host, self.port)]
        accepted = [
            (algorithm, blob)
            for name, number, algorithm, blob in self._trust.accepted
            if (name, number) == (self.host, self.port)
        ]
        return (
            _public(*((key.algorithm, key.blob) for key in plain), *accepted),
            _public(*((key.algorithm, key.blob) for key in found if key.marker == "cert-authority")),
            _public(*((key.algorithm, key.blob) for key in revoked)),
        )

    def consider(self, key: asyncssh.SSHKey) -> bool:
        """Store an unknown host key and return False, which ends the attempt."""
        algorithm, blob = key.export_public_key("openssh").decode().split()[:2]
        self.offered = (algorithm, blob)
        return False


def _public(*keys: tuple[str, str]) -> list[asyncssh.SSHKey]:
    """Convert keys of known_hosts lines for the library; kinds that it does not support are left out."""
    result = []
    for algorithm, blob in keys:
        with contextlib.suppress(asyncssh.KeyImportError):
            result.append(asyncssh.import_public_key(f"{algorithm} {blob}"))
    return result


class SshProcess(asyncssh.SSHClientSession[bytes]):
    """A program on the host, running in one channel."""

    def __init__(self, owner: SshTransport) -> None:
        self._owner = owner
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._inbox = Inbox(self._pause, self._resume)
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    async def read(self, limit: int = 262_144) -> bytes:
        """Return the next bytes of stdout; empty at its end and after a lost link."""
        return await self._inbox.read(limit)

    async def write(self, data: bytes) -> None:
        """Write to stdin, waiting while the channel's window is closed.

        Raises:
            ConnectionFailed: The channel is closed.
        """
        try:
            self._open_channel().write(data)
        except OSError as error:
            raise ConnectionFailed("The connection was lost", str(error)) from error
        self._owner.sent_bytes += len(data) + PACKET_OVERHEAD_BYTES
        await self._writable.wait()

    def errors(self) -> str:
        """Return the end of stderr."""
        return self._inbox.errors()

    def close_stdin(self) -> None:
        """Send end of file to the program's stdin."""
        if self._channel is not None and not self._closed.is_set():
            self._channel.write_eof()

    async def wait(self) -> int | None:
        """Wait for the end and return the exit status; None after a signal or a lost link."""
        await self._closed.wait()
        status = self._channel.get_exit_status() if self._channel else None
        return status if status is not None and status >= 0 else None

    async def aclose(self) -> None:
        """Close the channel; the program sees end of file on stdin and a closed stdout."""
        if self._channel is None:
            return
        self._inbox.end()
        self._channel.close()
        try:
            async with asyncio.timeout(1.0):
                await self._closed.wait()
        except TimeoutError:
            self._channel.abort()

    # Callbacks of asyncssh.

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Store the channel once it is open."""
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Buffer one packet of stdout or stderr."""
        self._owner.received_bytes += len(data) + PACKET_OVERHEAD_BYTES
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self._inbox.put_error(data)
        else:
            self._inbox.put(data)

    def eof_received(self) -> bool:
        """Mark the end of stdout and keep the channel open, since the program may still read."""
        self._inbox.end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the channel is closed."""
        self._inbox.end()
        self._writable.set()
        self._closed.set()

    def pause_writing(self) -> None:
        """Block `write`, since the channel's window is closed."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Unblock `write`, since the channel's window is open."""
        self._writable.set()

    def _open_channel(self) -> asyncssh.SSHClientChannel[bytes]:
        if self._channel is None or self._closed.is_set():
            raise BrokenPipeError("the channel is closed")
        return self._channel

    def _pause(self) -> None:
        self._open_channel().pause_reading()

    def _resume(self) -> None:
        if self._channel is not None and not self._closed.is_set():
            self._channel.resume_reading()
