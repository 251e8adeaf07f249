"""Helpers for reading the host, which return nothing instead of raising where something does not exist."""

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
"""Bytes of a log that are read, and sent, at a time."""
LINE_LIMIT = 65_536
"""Most bytes of a line in the start-up section; longer lines are cut."""
READ_LIMIT = 1_048_576
"""Most bytes of a log in one answer to `read`, and in one entry of the journal."""

Json = Dict[str, Any]


class Refused(Exception):
    """An act is not done. The text says why and `hint` the way out, each in one line; an empty hint: there is none."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


def slurp(path: str, limit: int = 1 << 20) -> bytes:
    """Return the contents of a small file, at most `limit` bytes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, limit)
        if len(data) < 4096:  # /proc returns at least a page where there is one
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
    """Return the contents of a file in /proc that one read returns completely. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 8192)
    finally:
        os.close(fd)


def text_of(path: str, limit: int = 1 << 20) -> Optional[str]:
    """Return the contents of a small text file; None where it cannot be read."""
    try:
        return slurp(path, limit).decode("utf-8", "replace")
    except OSError:
        return None


def link_of(path: str) -> Optional[str]:
    """Return the target of a symbolic link; None where it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def names_in(folder: str) -> List[str]:
    """Return the names in a folder; empty where it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def stat_of(path: str) -> Optional[os.stat_result]:
    """Return the status of a file, links followed; None where it cannot be read."""
    try:
        return os.stat(path)
    except OSError:
        return None


def which(name: str) -> Optional[str]:
    """Return the path of a program on PATH; None where there is none."""
    for folder in os.environ.get("PATH", "/usr/bin:/bin").split(":"):
        path = os.path.join(folder or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def user_name(uid: Optional[int]) -> Optional[str]:
    """Return the name of a user, or the number as text where it has no name; None for None."""
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
    """Return the home folder of a user; None where unknown."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_dir if uid is not None else None
    except (ImportError, KeyError):
        return None


def boot_time() -> Optional[float]:
    """Return the time at which the host started (Unix seconds), from /proc/stat; None where unknown."""
    found = re.search(r"^btime (\d+)", text_of(PROC + "/stat") or "", re.M)
    return float(found.group(1)) if found else None


def until_beat(every_s: float) -> float:
    """Return the seconds to wait before a regular task runs again, at least half its interval.

    All tasks with an interval run at the same moments, so that the processor wakes up once for all of them.
    """
    left = every_s - time.monotonic() % every_s
    return left if left > every_s / 2 else left + every_s
