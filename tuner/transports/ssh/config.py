"""Additions to the SSH library's reading of OpenSSH's client configuration.

The library reads and applies the configuration. Two things are added here. Comments at the end of a line, which OpenSSH
allows and the library rejects, are removed in a copy. And options without effect here are found, so that they are
reported to the operator instead of being ignored silently.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tuner.transports.ssh.known_hosts import matches_list

USER_FILE = Path("~/.ssh/config")
SYSTEM_FILE = Path("/etc/ssh/ssh_config")

_WITHOUT_EFFECT = {
    "controlmaster": "no connection is shared",
    "controlpath": "no connection is shared",
    "localforward": "nothing is forwarded",
    "remoteforward": "nothing is forwarded",
    "dynamicforward": "nothing is forwarded",
    "forwardagent": "the agent is never forwarded",
    "forwardx11": "nothing is forwarded",
    "forwardx11trusted": "nothing is forwarded",
    "pkcs11provider": "load the token into ssh-agent instead",
    "securitykeyprovider": "load the key into ssh-agent instead",
    "stricthostkeychecking": "an unknown host key is always asked about, a changed one always refused",
    "checkhostip": "keys are looked up by name only",
    "verifyhostkeydns": "host keys are not looked up in DNS",
    "knownhostscommand": "host keys are looked up in files only",
    "revokedhostkeys": "only @revoked lines of known_hosts are honoured",
    "remotecommand": "only the probe is run",
    "localcommand": "no local command is run",
    "proxyusefdpass": "the proxy command's own streams are used",
    "bindinterface": "the interface is not bound",
    "tunnel": "no tunnel device is opened",
    "hostbasedauthentication": "no host-based login",
}
"""Options in lower case that affect ssh but not gputuner, with what gputuner does instead."""

_NOT_WANTED = {"no", "none", "false"}
_ANYWAY = {"stricthostkeychecking": {"ask", "yes"}}
"""Values of an option that ask for what gputuner does anyway; for all other options they are `_NOT_WANTED`."""


MAX_DEPTH = 16
"""Largest depth of nested includes."""
_REST_OF_LINE = {"proxycommand", "remotecommand", "localcommand", "knownhostscommand"}


class Copy:
    """Copies of the configuration files without what the library cannot read, with the same line numbers.

    Args:
        folder: Empty folder for the copies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._originals: dict[str, Path] = {}
        self.files: list[str] = []
        """Paths of the copies of the user's and the system's file, as far as these can be read."""
        for file in (USER_FILE.expanduser(), SYSTEM_FILE):
            if os.access(file, os.R_OK) and file.is_file():
                self.files.append(self._copy(file, 0))

    def originals(self, files: Sequence[str]) -> list[Path]:
        """Return the original files of these copies."""
        return [self._originals[file] for file in files]

    def original(self, text: str) -> str:
        """Return a message of the library with the paths of copies replaced by those of the originals."""
        for copy, file in self._originals.items():
            text = text.replace(copy, str(file))
        return text

    def _copy(self, file: Path, depth: int) -> str:
        copy = str(self._folder / f"{len(self._originals)}.")
        self._originals[copy] = file
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        Path(copy).write_text("".join(self._line(line, file, depth) + "\n" for line in lines), encoding="utf-8")
        return copy

    def _line(self, line: str, file: Path, depth: int) -> str:
        option, *values = _words(line) or [""]
        if option.lower() == "include":
            files = [f for pattern in values for f in _included(pattern, file)] if depth < MAX_DEPTH else []
            copies = [self._copy(f, depth + 1) for f in files if os.access(f, os.R_OK)]
            return f"Include {shlex.join(copies)}" if copies else ""
        if option.lower() in _REST_OF_LINE or "#" not in line:
            return line
        return _without_comment(line)


@contextmanager
def copied() -> Iterator[Copy]:
    """Copy the configuration into a temporary folder, which exists as long as the context."""
    with tempfile.TemporaryDirectory(prefix="gputuner-") as folder:
        yield Copy(Path(folder))


def options(files: Sequence[Path], host: str) -> dict[str, tuple[str, str]]:
    """Return the options in force for a host.

    Args:
        files: Configuration files in order of precedence.
        host: Name of the host as it was typed.

    Returns:
        The first spelling and value of each option, by option in lower case. Blocks whose `Match` depends on more than
        the host's name are left out.
    """
    found: dict[str, tuple[str, str]] = {}
    for file in files:
        for option, value in _matching(file.expanduser(), host, 0):
            found.setdefault(option.lower(), (option, value))
    return found


def not_honoured(what: str, instead: str) -> str:
    """Format a note on something that is not honoured.

    The reason follows the last colon and space, so that the two parts can be separated again.
    """
    return f"{what}: not honoured, {instead}"


def without_effect(found: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return a note for each option that is not honoured, with what happens instead."""
    notes = {}
    for key, (option, value) in found.items():
        reason = _WITHOUT_EFFECT.get(key)
        if reason and value.lower() not in _ANYWAY.get(key, _NOT_WANTED):
            notes[key] = not_honoured(f"{option} {value}", reason)
    if "controlmaster" in notes:
        notes.pop("controlpath", None)
    return tuple(notes.values())


def _matching(file: Path, host: str, depth: int) -> Iterator[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    applies = True
    for line in lines:
        words = _words(line)
        if not words:
            continue
        option, *values = words
        match option.lower():
            case "host":
                applies = matches_list(values, host)
            case "match":
                applies = _match(values, host)
            case _ if not applies:
                continue
            case "include":
                for pattern in values if depth < MAX_DEPTH else []:
                    for included in _included(pattern, file):
                        yield from _matching(included, host, depth + 1)
            case _:
                yield option, " ".join(values)


def _words(line: str) -> list[str]:
    """Split a line (`Option value`, `Option=value`, with quotes) into words; empty if it cannot be split."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    if not words:
        return []
    option, equals, rest = words[0].partition("=")
    values = ([rest] if equals and rest else []) + words[1:]
    if not equals and values and values[0].startswith("="):
        values = [values[0][1:], *values[1:]]
    return [option, *(value for value in values if value)]


def _without_comment(line: str) -> str:
    quote = ""
    for number, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and line[:number][-1:].isspace():
            return line[:number].rstrip()
    return line


def _match(criteria: Sequence[str], host: str) -> bool:
    """Return whether `Match` criteria match a host by its name alone; criteria on anything else do not match."""
    words = list(criteria)
    applies = True
    while words:
        word = words.pop(0).lower()
        negated = word.startswith("!")
        word = word.removeprefix("!")
        if word == "all":
            result = True
        elif word in ("host", "originalhost") and words:
            result = matches_list(words.pop(0).split(","), host)
        else:
            return False
        applies = applies and result != negated
    return applies


def _included(pattern: str, file: Path) -> list[Path]:
    path = Path(pattern).expanduser()
    if not path.is_absolute():
        base = SYSTEM_FILE.parent if file.is_relative_to(SYSTEM_FILE.parent) else USER_FILE.expanduser().parent
        path = base / path
    return sorted(p for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if p.is_file())
