"""Read OpenSSH's known_hosts files, and add lines to them."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

DEFAULT_PORT = 22


class KnownKey(NamedTuple):
    """One line of a known_hosts file."""

    file: Path
    line: int
    """Line number, from 1."""
    marker: str
    """Empty, `cert-authority` or `revoked`."""
    algorithm: str
    blob: str
    """Public key in base64."""

    @property
    def where(self) -> str:
        """File and line in words: `/home/me/.ssh/known_hosts line 12`."""
        return f"{self.file} line {self.line}"


def find(files: Iterable[Path], host: str, port: int) -> list[KnownKey]:
    """Return the lines for a host, in file order.

    A port other than 22 is looked up as `[host]:port`; without such a line keys of the bare name count as well, as they
    do for ssh. Files that do not exist and lines that are not host keys are skipped.
    """
    exact: list[KnownKey] = []
    bare: list[KnownKey] = []
    wanted = name_of(host, port)
    for file in files:
        for key, patterns in _read(file):
            if _matches(patterns, wanted):
                exact.append(key)
            elif port != DEFAULT_PORT and key.marker != "revoked" and _matches(patterns, host.lower()):
                bare.append(key)
    if any(key.marker != "revoked" for key in exact):
        return exact
    return exact + bare


def is_for(key: KnownKey, host: str, port: int) -> bool:
    """Return whether the line names this host with this port, not just the bare name."""
    return any(found == key and _matches(patterns, name_of(host, port)) for found, patterns in _read(key.file))


def name_of(host: str, port: int) -> str:
    """Return a host's name as it is written in the file."""
    return host.lower() if port == DEFAULT_PORT else f"[{host.lower()}]:{port}"


def save(file: Path, host: str, port: int, algorithm: str, blob: str, *, hashed: bool = False) -> bool:
    """Append a host's key unless the file has it already.

    Args:
        file: The known_hosts file; created with its folder, readable by the user only, if it does not exist.
        host: Name of the host as it was connected to.
        port: Port; 22 is not written.
        algorithm: Key type as the file spells it, e.g. `ssh-ed25519`.
        blob: Public key in base64.
        hashed: Hash the name, as ssh does with `HashKnownHosts yes`.

    Returns:
        False if the file had this key for this host already.

    Raises:
        OSError: The file cannot be read or written.
    """
    if any(
        (known.algorithm, known.blob, known.marker) == (algorithm, blob, "") and is_for(known, host, port)
        for known in find([file], host, port)
    ):
        return False
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = name_of(host, port)
    line = f"{_hash(name, os.urandom(20)) if hashed else name} {algorithm} {blob}\n"
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, (("\n" if torn else "") + line).encode())
    finally:
        os.close(descriptor)
    return True


def fingerprint(blob: str) -> str:
    """Return the fingerprint of a public key (base64) as ssh-keygen prints it: `SHA256:...`."""
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _read(file: Path) -> Iterable[tuple[KnownKey, str]]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0)[1:] if words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", "cert-authority", "revoked") or not _is_base64(words[2]):
            continue
        yield KnownKey(file, number, marker, words[1], words[2]), words[0]


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|"):
        fields = patterns.split("|")
        try:
            salt = base64.b64decode(fields[2])
        except (IndexError, binascii.Error):
            return False
        return hmac.compare_digest(_hash(name, salt), patterns)
    return matches_list(patterns.lower().split(","), name)


def matches_list(patterns: Sequence[str], name: str) -> bool:
    """Return whether a name matches OpenSSH's pattern list.

    Wildcards are `*` and `?`; a match of a pattern that begins with `!` excludes the name whatever the others say.
    """
    found = False
    for pattern in patterns:
        negated = pattern.startswith("!")
        if _wildcard(pattern.removeprefix("!")).fullmatch(name):
            if negated:
                return False
            found = True
    return found


def _wildcard(pattern: str) -> re.Pattern[str]:
    # Brackets are not wildcards here but enclose the name of a host with a port.
    return re.compile(fnmatch.translate(re.sub(r"\[", "[[]", pattern)))


def _hash(name: str, salt: bytes) -> str:
    # The file format prescribes SHA-1; it only hides names.
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
