"""Resolve a target into the hops that lead to it, each with its settings from OpenSSH's configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from tuner.domain.link import Target
from tuner.errors import ConnectionFailed
from tuner.transports.ssh import config
from tuner.transports.ssh.known_hosts import DEFAULT_PORT

MAX_HOPS = 8

_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_DEFAULT_IDENTITIES = tuple(
    f"~/.ssh/{name}" for name in ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_dsa")
)
_ADDRESS = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<bracketed>[^\]]+)\]|(?P<plain>[^:\[\]]+))(?::(?P<port>\d+))?/?"
)


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One connection on the route to a target, with its resolved settings."""

    name: str
    """Name as it was typed, or as ProxyJump gives it."""
    user: str
    host: str
    """Name or address to connect to."""
    port: int
    files: tuple[str, ...] = ()
    """Configuration files that the SSH library reads for this hop."""
    asked_user: str | None = None
    """User that was given with the name; None: by the configuration."""
    asked_port: int | None = None
    """Port that was given with the name; None: by the configuration."""
    known_hosts: tuple[Path, ...] = ()
    """Known_hosts files; new keys are saved in the first."""
    host_key_alias: str | None = None
    hash_known_hosts: bool = False
    identities: tuple[Path, ...] = ()
    """Private key files."""
    certificates: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    """Path of the agent's socket; None: no agent."""
    proxied: bool = False
    """Whether a ProxyCommand carries the connection."""
    connect_timeout_s: float | None = None
    keep_alive_s: float | None = None
    keep_alive_missed: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """`user@host:port`, or `alias (user@host:port)` if the name is an alias; port 22 is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        text = f"{self.user}@{host}" + (f":{self.port}" if self.port != DEFAULT_PORT else "")
        return text if self.name in (self.host, text) or "@" in self.name else f"{self.name} ({text})"


async def route(target: Target, files: config.Copy) -> list[Hop]:
    """Return the hops to a target; the last one is the target itself.

    Args:
        target: Target as the operator named it.
        files: Copy of the configuration; it must exist while the hops are being connected.

    Raises:
        ConnectionFailed: The configuration cannot be read, or its jump hosts form a circle.
    """
    if target.options.get("config") == "none":
        return [_own_host(target)]
    return await _hops(files, target.host, target.user, target.port, (), follow=True)


def _own_host(target: Target) -> Hop:
    """Return the hop to a host that gputuner started itself, without the user's configuration, keys and agent."""
    return Hop(
        name=target.name,
        user=target.user or "root",
        host=target.host,
        port=target.port or DEFAULT_PORT,
        asked_user=target.user or "root",
        asked_port=target.port,
        known_hosts=_paths([target.options["known_hosts"]] if "known_hosts" in target.options else []),
        identities=_paths([target.options["identity"]] if "identity" in target.options else []),
        identities_only=True,
    )


async def _hops(
    files: config.Copy, host: str, user: str | None, port: int | None, names: tuple[str, ...], *, follow: bool
) -> list[Hop]:
    if len(names) >= MAX_HOPS:
        raise ConnectionFailed("ProxyJump goes round in circles", " via ".join(names), "See ~/.ssh/config", final=True)
    hop, jumps = await _resolve(files, host, user, port)
    way: list[Hop] = []
    if follow and jumps:
        # As with ssh -J, only the first of several jump hosts may itself be reached through another.
        for number, jump in enumerate(jumps.split(",")):
            form = _ADDRESS.fullmatch(jump.strip())
            if form is None:
                raise ConnectionFailed("ProxyJump cannot be understood", jump, "See ~/.ssh/config", final=True)
            way += await _hops(
                files,
                form["bracketed"] or form["plain"],
                form["user"],
                int(form["port"]) if form["port"] else None,
                (*names, host),
                follow=number == 0,
            )
    return [*way, hop]


async def _resolve(copy: config.Copy, host: str, user: str | None, port: int | None) -> tuple[Hop, str | None]:
    """Return the hop that a name is configured as, and its ProxyJump (None if it has none)."""
    files = list(copy.files)
    notes: list[str] = []
    try:
        options = await _read(files, host, user, port)
    except (ValueError, asyncssh.Error) as error:
        system = [file for file in files if copy.originals([file]) == [config.SYSTEM_FILE]]
        if not system:
            raise _unreadable(copy, error) from error
        # A system file that the library does not understand must not prevent a connection; leave it out.
        files = [file for file in files if file not in system]
        try:
            options = await _read(files, host, user, port)
        except (ValueError, asyncssh.Error) as own:
            raise _unreadable(copy, own) from own
        what = f"{config.SYSTEM_FILE} ({copy.original(str(error))})"
        notes.append(config.not_honoured(what, "the SSH library cannot read it"))
    get = options.config.get
    found = config.options(copy.originals(files), host)
    notes += config.without_effect(found)
    own_files = get("UserKnownHostsFile", None)
    global_files = get("GlobalKnownHostsFile", None)
    hop = Hop(
        name=host,
        user=options.username,
        host=options.host,
        port=options.port,
        files=tuple(files),
        asked_user=user,
        asked_port=port,
        known_hosts=_paths(_KNOWN_HOSTS if own_files is None else own_files)
        + _paths(_GLOBAL_KNOWN_HOSTS if global_files is None else global_files),
        host_key_alias=get("HostKeyAlias", None),
        hash_known_hosts=found.get("hashknownhosts", ("", "no"))[1].lower() == "yes",
        identities=_paths(get("IdentityFile", None) or _DEFAULT_IDENTITIES),
        certificates=_paths(get("CertificateFile", None) or ()),
        identities_only=bool(get("IdentitiesOnly", False)),
        agent=_agent(get("IdentityAgent", ())),
        proxied=bool(options.proxy_command),
        connect_timeout_s=get("ConnectTimeout", None) or None,
        keep_alive_s=get("ServerAliveInterval", None) or None,
        keep_alive_missed=get("ServerAliveCountMax", None),
        notes=tuple(notes),
    )
    return hop, options.tunnel if isinstance(options.tunnel, str) else None


async def _read(files: Sequence[str], host: str, user: str | None, port: int | None) -> Any:
    """Let the library read the configuration; it does so in a thread of its own, since `Match exec` runs programs."""
    options = await asyncssh.SSHClientConnectionOptions.construct(
        config=list(files),
        host=host,
        port=port if port else (),
        username=user if user else (),
        client_keys=None,
        known_hosts=None,
        x509_trusted_certs=None,
        pkcs11_provider=None,
        agent_forwarding=False,
    )
    if options.config.has_match_final():
        options.update(host=options.host, reload=True, final=True)
    return options


def _unreadable(copy: config.Copy, error: Exception) -> ConnectionFailed:
    return ConnectionFailed(
        "The OpenSSH configuration cannot be read",
        copy.original(str(error)),
        "Change that line, or see `ssh -G HOST`",
        final=True,
    )


def _paths(names: Sequence[str]) -> tuple[Path, ...]:
    return tuple(Path(name).expanduser() for name in names if name.lower() != "none")


def _agent(setting: object) -> str | None:
    """Return the path of the agent's socket: IdentityAgent, which may name a variable, or SSH_AUTH_SOCK.

    None if IdentityAgent is `none`, or if the variable is not set.
    """
    if setting is None:
        return None
    name = setting if isinstance(setting, str) else "SSH_AUTH_SOCK"
    if name == "SSH_AUTH_SOCK" or name.startswith("$"):
        return os.environ.get(name.lstrip("$").strip("{}")) or None
    return str(Path(name).expanduser())
