"""Explain each failure of a connection in one line: what happened, and what to do."""

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
    """Translate an error of the SSH library or the system for the operator.

    Args:
        hop: The hop at which the error occurred.
        error: The error.
        reached_before: Whether the host was reached earlier in this session. If so, an unknown name is a problem of the
            network, not a spelling mistake.
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
    """Return the error with its `errno` restored.

    If several addresses were tried, the event loop raises an error that has the numbers in its text only.
    """
    numbers = [int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))]
    if not isinstance(error, OSError) or error.errno is not None or not numbers:
        return error
    # A refusal is more informative than an unreachable address: it shows that the host is up.
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
    """Return the error's text in one line, cleaned since it may come from the server, without the system's number."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return clean(" ".join(text.split()))[:MAX_WORDS]
