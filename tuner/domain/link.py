"""The link to a host, its states, and the questions it may put to the operator."""

from __future__ import annotations

import enum

from msgspec import Struct


class LinkPhase(enum.StrEnum):
    """State of the link to a host; always visible on screen."""

    CONNECTING = "connecting"
    UP = "up"
    STALE = "stale"
    RECONNECTING = "reconnecting"
    DOWN = "down"


class Target(Struct, frozen=True, kw_only=True):
    """A host as the operator named it."""

    name: str
    """What stands in the tab: the text of the command line."""
    scheme: str = "ssh"
    """ssh, local or replay: the module of `tuner.transports` that serves it."""
    host: str = ""
    """Host name or alias of the OpenSSH config; the file for replay."""
    user: str | None = None
    port: int | None = None
    options: dict[str, str] = {}
    """For hosts that gputuner itself started (demo): known_hosts, identity, config, history."""


class HostKeyQuestion(Struct, frozen=True, kw_only=True):
    """An unknown host key. Answered with `once`, `save` or `refuse`."""

    target: str
    """As the operator named the host; the question may be about a jump host on the way."""
    host: str
    port: int
    key_type: str
    fingerprint: str
    """`SHA256:...` as ssh-keygen prints it."""

    @property
    def title(self) -> str:
        """The question in one line."""
        return f"{self.target}: is this {self.host} port {self.port}?"


class SecretQuestion(Struct, frozen=True, kw_only=True):
    """A password, passphrase or keyboard-interactive prompt. Answered with the text, or None to give up."""

    target: str
    host: str = ""
    """`user@host:port` of the server that the login is at: a jump host, where it is one that asks."""
    kind: str
    """password, passphrase or keyboard-interactive."""
    prompt: str
    attempt: int = 1
    """Above 1: what was given before was wrong."""
    echo: bool = False

    @property
    def title(self) -> str:
        """The question in one line: who asks for what."""
        host = self.host or self.target
        if self.kind == "passphrase":
            return f"The key for {host} is locked"
        if self.kind == "password" or "password" in self.prompt.lower():
            return f"{host} asks for a password"
        return f"{host} asks a question"


Question = HostKeyQuestion | SecretQuestion
