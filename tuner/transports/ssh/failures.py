"""One clear line for each way in which a connection fails: what happened, and what to do."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Sequence

import asyncssh

from tuner.core.logtext import clean
from tuner.errors import ConnectionFailed
from tuner.transports.ssh.route import Hop

MAX_WORDS = 500

_NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def explain(hop: Hop, error: Exception, reached_before: bool, unanswered: Sequence[str] = ()) -> ConnectionFailed:
    """What an error of the library or the system means to the operator.

    Args:
        hop: The host at which it happened.
        error: The error.
        reached_before: The host was reached earlier in this session: a name that is unknown now is the network's
            trouble, not a spelling mistake.
        unanswered: Questions of the login that were answered wrongly or not at all, in words.
    """
    label = hop.label
    error = _with_number(error)
    words = _words(error)
    match error:
        case TimeoutError():
            return ConnectionFailed(
                words or f"{label} does not answer", hint="Is the host up, and does a firewall let you through?"
            )
        case socket.gaierror():
            return ConnectionFailed(
                f"No host has the name {hop.host}"
                if error.errno in _NO_SUCH_NAME
                else f"{hop.host} cannot be looked up",
                words,
                "Check the name, or add it to ~/.ssh/config",
                final=error.errno in _NO_SUCH_NAME and not reached_before,
            )
        case ConnectionRefusedError():
            return ConnectionFailed(
                f"{label} refused the connection", f"nothing listens on port {hop.port}", "Is sshd running there?"
            )
        case asyncssh.PermissionDenied():
            return _denied(hop, words, unanswered)
        case asyncssh.DisconnectError() if "authentication failures" in words:
            return ConnectionFailed(
                f"{label} refused the login",
                words,
                "The agent offers many keys: set IdentitiesOnly and IdentityFile for this host",
                final=True,
            )
        case asyncssh.KeyExchangeFailed():
            return ConnectionFailed(
                f"No common algorithm with {label}", words, "See Ciphers, MACs and KexAlgorithms", final=True
            )
        case asyncssh.ProtocolError() | asyncssh.ProtocolNotSupported():
            return ConnectionFailed(f"{label} does not speak SSH", words, f"Is {hop.port} its SSH port?", final=True)
        case asyncssh.IllegalUserName():
            return ConnectionFailed("The user name cannot be used", words, final=True)
        case asyncssh.ChannelOpenError():
            return ConnectionFailed(
                f"The jump host cannot reach {label}",
                words,
                "Check the name and port as seen from there",
                final=error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED,
            )
        case asyncssh.ConnectionLost():
            return ConnectionFailed(
                f"{label} took the connection and closed it",
                hint=f"Is {hop.port} its SSH port, and is there a firewall or proxy that answers in its place?",
            )
        case asyncssh.DisconnectError():
            return ConnectionFailed(f"{label} closed the connection", words)
        case OSError():
            return _unreachable(hop, error, words)
        case _:
            return ConnectionFailed(f"The connection to {label} cannot be set up", words, final=True)


def _with_number(error: Exception) -> Exception:
    """Several addresses were tried: the event loop then says what happened in words only."""
    numbers = [int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))]
    if not isinstance(error, OSError) or error.errno is not None or not numbers:
        return error
    # Refused says more than unreachable: the host is there.
    number = errno.ECONNREFUSED if errno.ECONNREFUSED in numbers else numbers[0]
    return OSError(number, os.strerror(number))


def _denied(hop: Hop, words: str, unanswered: Sequence[str]) -> ConnectionFailed:
    if unanswered:
        return ConnectionFailed(
            f"{hop.label} refused the login", "; ".join(unanswered), "A key in ssh-agent needs no typing", final=True
        )
    return ConnectionFailed(
        f"{hop.label} refused the login",
        words,
        f"Check the user name and that a key of yours is in its authorized_keys: try `ssh {hop.name}`",
        final=True,
    )


def _unreachable(hop: Hop, error: OSError, words: str) -> ConnectionFailed:
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN):
        return ConnectionFailed(f"{hop.label} cannot be reached", words, "Is the network or the VPN up?")
    if hop.proxied and isinstance(error, FileNotFoundError):
        return ConnectionFailed("The ProxyCommand cannot be started", words, "See ~/.ssh/config", final=True)
    return ConnectionFailed(f"The connection to {hop.label} failed", words)


def _words(error: Exception) -> str:
    """The error's own words on one line, without the number the system puts in front. They may be the server's."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return clean(" ".join(text.split()))[:MAX_WORDS]
