"""Connects to a host over SSH as `ssh` would: OpenSSH's configuration, known hosts, keys, agent and jump hosts.

The only package besides the demo's host that knows the SSH library. `route` reads who is asked for and through whom,
`connection` opens the way hop by hop, `known_hosts` and `config` read OpenSSH's files, `login` proves who we are, and
`failures` says in one line what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from tuner.domain.link import Target
from tuner.transports import Transport
from tuner.transports.ssh.connection import SshTransport, Trust

SCHEME = "ssh"


def opener(target: Target) -> Callable[[], Transport]:
    """Makes transports to one host, which remember together what the operator allowed."""
    trust = Trust()
    return lambda: SshTransport(target, trust)


__all__ = ["SCHEME", "SshTransport", "Trust", "opener"]
