"""What all parts of the probe stand on: where the host is read, and how, without an error for what is not there."""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, Optional

HOST_ROOT = os.environ.get("HOST_ROOT", "").rstrip("/")
PROC = HOST_ROOT + "/proc"
SYS = HOST_ROOT + "/sys"
HZ = os.sysconf("SC_CLK_TCK")
ME = os.getuid()

BLOCK = 262_144
"""Bytes of a log read, and sent, at a time."""
LINE_LIMIT = 65_536
"""Longest line kept of a start-up section."""
READ_LIMIT = 1_048_576
"""Most bytes of a log in one answer, and of one entry of the journal."""

Json = Dict[str, Any]


def slurp(path: str, limit: int = 1 << 20) -> bytes:
    """Content of a small file, at most `limit` bytes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, limit)
        if len(data) < 4096:  # /proc hands out at least a page when there is one
            more = os.read(fd, limit) if data else b""
            if not more:
                return data
            data += more
        parts = [data]
        size = len(data)
        while size < limit:
            more = os.read(fd, limit - size)
            if not more:
                break
            parts.append(more)
            size += len(more)
        return b"".join(parts)
    finally:
        os.close(fd)


def glance(path: str) -> bytes:
    """Content of a file of /proc that is handed out whole by one read. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 8192)
    finally:
        os.close(fd)


def text_of(path: str, limit: int = 1 << 20) -> Optional[str]:
    """Content of a small text file, or None where it cannot be read."""
    try:
        return slurp(path, limit).decode("utf-8", "replace")
    except OSError:
        return None


def link_of(path: str) -> Optional[str]:
    """Target of a symbolic link, or None."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def names_in(folder: str) -> List[str]:
    """Names in a folder; empty where it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def stat_of(path: str) -> Optional[os.stat_result]:
    """Status of a file, links followed, or None."""
    try:
        return os.stat(path)
    except OSError:
        return None


def which(name: str) -> Optional[str]:
    """A program on PATH."""
    for folder in os.environ.get("PATH", "/usr/bin:/bin").split(":"):
        path = os.path.join(folder or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def user_name(uid: Optional[int]) -> Optional[str]:
    """Name of a user, its number as text where it has none, None for None."""
    if uid is None:
        return None
    if HOST_ROOT:
        for line in (text_of(HOST_ROOT + "/etc/passwd") or "").splitlines():
            fields = line.split(":")
            if len(fields) > 2 and fields[2] == str(uid):
                return fields[0]
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def home_of(uid: Optional[int]) -> Optional[str]:
    """Home of a user, or None."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_dir if uid is not None else None
    except (ImportError, KeyError):
        return None


def boot_time() -> Optional[float]:
    """Wall clock at which the host started, from /proc/stat."""
    found = re.search(r"^btime (\d+)", text_of(PROC + "/stat") or "", re.M)
    return float(found.group(1)) if found else None


def until_beat(every_s: float) -> float:
    """Seconds to wait for something that is done regularly, at least half of the time between.

    All of it is done at the same moments: a processor that wakes up once for everything has half the work.
    """
    left = every_s - time.monotonic() % every_s
    return left if left > every_s / 2 else left + every_s
