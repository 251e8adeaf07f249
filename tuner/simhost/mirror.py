"""Processes that anyone started on the simulated host, as the machine below sees them.

They are known by HOST_ROOT in their environment, which every command over SSH has and hands on. Where there is no
/proc, as on macOS, `ps` tells less of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from tuner.simhost import ps, real
from tuner.simhost.tree import Process

_YOUNG_S = 3.0
"""Seconds for which a process is looked at again, since its environment changes when it calls exec."""
_PORTS_S = 0.5
_PS_S = 0.75
_LISTEN = "0A"
_PROC = Path("/proc/self").exists()


class Mirror:
    """Finds the processes of one simulated host.

    Args:
        root: The host's HOST_ROOT.
        uid: User id that they have there.
    """

    def __init__(self, root: Path, uid: int = 0) -> None:
        self._root = str(root)
        self._mark = b"HOST_ROOT=" + os.fsencode(root)
        self._uid = uid
        self._seen: dict[int, float] = {}
        """Monotonic time at which a process that is not of this host was started, by PID."""
        self._ours: dict[int, Process] = {}
        self._ticks: dict[int, int] = {}
        self._ports: dict[int, int] = {}
        self._ports_at = 0.0

    def look(self) -> dict[int, Process]:
        """Return the processes that run now, and those that ended and were not reaped."""
        now = time.monotonic()
        if not _PROC:
            if now - self._ports_at > _PS_S:
                self._ports_at, self._ours = now, ps.processes(self._root, self._uid)
            return dict(self._ours)
        here = _pids()
        for pid in self._seen.keys() - here:
            del self._seen[pid]
        for pid in self._ours.keys() - here:
            self._forget(pid)
        for pid in here - self._ours.keys():
            if pid not in self._seen:
                self._seen[pid] = now - (time.time() - (real.started_at(pid) or 0.0))
            if now - self._seen[pid] < _YOUNG_S:
                self._examine(pid)
        if self._ours and now - self._ports_at > _PORTS_S:
            self._ports_at, self._ports = now, _ports(set(self._ours))
        for pid in list(self._ours):
            self._refresh(pid)
        return dict(self._ours)

    def end_all(self) -> None:
        """Kill every process of the host, by PID, as when a machine is switched off."""
        for _ in range(3):
            # Found anew, so that no PID of before is another's meanwhile.
            self._ours = {} if _PROC else ps.processes(self._root, self._uid)
            for pid in _pids():
                self._examine(pid)
            found = [pid for pid in self._ours if real.alive(pid)]
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return

    def _examine(self, pid: int) -> None:
        """Take in a process if it is of this host."""
        try:
            folder = Path(f"/proc/{pid}")
            environ = (folder / "environ").read_bytes()
            if self._mark not in environ.split(b"\0"):
                return
            cmdline, comm = (folder / "cmdline").read_bytes(), (folder / "comm").read_text(errors="replace").strip()
            cwd, exe = (str((folder / name).readlink()) for name in ("cwd", "exe"))
        except OSError:
            return
        stat, began = real.stat_of(pid), real.started_at(pid)
        if stat is None or began is None or not cmdline:
            return
        env = dict(
            part.decode(errors="surrogateescape").partition("=")[::2] for part in environ.split(b"\0") if b"=" in part
        )
        self._seen.pop(pid, None)
        self._ticks[pid] = stat[3]
        self._ours[pid] = Process(
            pid, stat[1], cmdline, began, comm=comm, state=stat[0], uid=self._uid, session=stat[2], env=env, cwd=cwd,
            exe=exe, log=_output(pid), rss_kb=20_000,
        )  # fmt: skip

    def _refresh(self, pid: int) -> None:
        """Take in what changes: state, parent, command line after an exec, port."""
        stat, old = real.stat_of(pid), self._ours[pid]
        if stat is None or stat[3] != self._ticks[pid]:
            self._forget(pid)
            return
        cmdline = old.cmdline
        if stat[0] not in "ZX":
            with contextlib.suppress(OSError):
                cmdline = Path(f"/proc/{pid}/cmdline").read_bytes() or cmdline
        if cmdline != old.cmdline:
            self._forget(pid)
            self._examine(pid)
            return
        # Which of running and sleeping it is changes all the time, and nobody needs it.
        state = stat[0] if stat[0] in "ZTt" else "S"
        port = self._ports.get(pid)
        if (state, stat[1], stat[2], port) != (old.state, old.ppid, old.session, old.port):
            self._ours[pid] = Process(
                pid, stat[1], old.cmdline, old.started_at, comm=old.comm, state=state, uid=old.uid, session=stat[2],
                env=old.env, cwd=old.cwd, exe=old.exe, log=old.log, port=port, rss_kb=old.rss_kb,
            )  # fmt: skip

    def _forget(self, pid: int) -> None:
        self._ours.pop(pid, None)
        self._ticks.pop(pid, None)


def _pids() -> set[int]:
    """Return the PIDs of all processes but this one; empty where there is no /proc."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}  # noqa: PTH208 - names only
    return set()


def _output(pid: int) -> str | None:
    """Return where a process's stdout leads."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    return None


def _ports(pids: set[int]) -> dict[int, int]:
    """Return the TCP port on which each process listens, for those that do."""
    inodes: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == _LISTEN:
                    inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                target = str(link.readlink())
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    found[pid] = inodes[target[8:-1]]
    return found
