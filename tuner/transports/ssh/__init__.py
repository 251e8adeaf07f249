"""The SSH transport: connects as `ssh` would, with OpenSSH's configuration, known hosts, keys, agent and jump hosts.

Only this package and the demo's host use the SSH library. `route` resolves a target into hops, `connection` connects
them one by one, `known_hosts` and `config` read OpenSSH's files, `login` authenticates, and `failures` explains errors
in one line.
"""

from __future__ import annotations

from collections.abc import Callable

from tuner.domain.link import Target
from tuner.transports import Transport
from tuner.transports.ssh.connection import SshTransport, Trust

SCHEME = "ssh"


def opener(target: Target) -> Callable[[], Transport]:
    """Return the opener for one host; its transports share what the operator accepted and unlocked."""
    trust = Trust()
    return lambda: SshTransport(target, trust)


__all__ = ["SCHEME", "SshTransport", "Trust", "opener"]
