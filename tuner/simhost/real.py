"""What the machine below the simulated host knows of its processes."""

from __future__ import annotations

import os
from pathlib import Path

_HZ = os.sysconf("SC_CLK_TCK")


def stat_of(pid: int) -> tuple[str, int, int, int] | None:
    """Return state letter, parent, session and start ticks of a process; None where /proc has none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return (fields[0], int(fields[1]), int(fields[3]), int(fields[19])) if len(fields) > 19 else None


def started_at(pid: int) -> float | None:
    """Return the start of a process in seconds since the epoch; None where /proc does not tell."""
    found = stat_of(pid)
    return _boot() + found[3] / _HZ if found is not None and _boot() else None


def alive(pid: int) -> bool:
    """Return whether a process runs. Zombies of a dead leader may remain for long, and count as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    found = stat_of(pid)
    if found is None:
        return not Path("/proc/self").exists()
    return found[0] not in "ZX"


def output_of(number: int) -> str | None:
    """Return the file behind one of our own descriptors; None where it is no file."""
    try:
        return str(Path(f"/proc/self/fd/{number}").readlink())
    except OSError:
        pass
    try:
        import fcntl

        return fcntl.fcntl(number, 50, b"\0" * 1024).rstrip(b"\0").decode()  # F_GETPATH of macOS
    except OSError:
        return None


_known: list[float] = []


def _boot() -> float:
    """Return the machine's start in seconds since the epoch; 0 where unknown."""
    if not _known:
        value = 0.0
        try:
            for line in Path("/proc/stat").read_text().splitlines():
                if line.startswith("btime "):
                    value = float(line.split()[1])
        except OSError:
            pass
        _known.append(value)
    return _known[0]
