"""The process table, and what /proc tells about one process."""

from __future__ import annotations

import collections
import os
import re
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from .arguments import masked_argv
from .base import HOST_ROOT, HZ, PROC, Json, boot_time, glance, link_of, slurp, stat_of, text_of, user_name
from .recognition import Engine, is_python

SIMULATED = "simulated"
"""File in the root of a simulated host, by which that folder is told from other roots."""


class Proc:
    """A process as last seen."""

    __slots__ = ("argv", "comm", "leads", "line", "pid", "ppid", "raw", "state", "ticks", "titled", "young_until")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ppid = 0
        self.ticks = 0
        self.state = "?"
        self.comm = b""
        self.raw = b"\0"
        self.argv: Tuple[str, ...] = ()
        self.line = ""
        self.leads: Optional[Engine] = None
        self.titled: Optional[Engine] = None
        self.young_until = 0.0

    @property
    def alive(self) -> bool:
        """Return False for a zombie: it has ended, and its parent has not noticed yet."""
        return self.state not in "ZX"


class Stat(NamedTuple):
    """A process in the process table."""

    state: str
    """The kernel's letter for what it does."""
    ppid: int
    session: int
    ticks: int
    """Clock ticks from the start of the host to that of the process."""
    comm: bytes = b""
    """Its short name, after an opening bracket."""

    @property
    def alive(self) -> bool:
        """Return False for a zombie: it has ended, and its parent has not noticed yet."""
        return self.state not in "ZX"


def runs_python(pid: int) -> bool:
    """Return whether a process runs a Python interpreter; True where its program cannot be read.

    A command line can be any text: one that is a single word with spaces was put there as a title.
    """
    program = link_of("%s/%d/exe" % (PROC, pid))
    return program is None or is_python(program.replace(" (deleted)", ""))


def read_stat(pid: int, proc: str = PROC) -> Optional[Stat]:
    """Return the entry of a process in the process table that is mounted at `proc`; None where there is none."""
    try:
        data = glance("%s/%d/stat" % (proc, pid))
        end = data.rindex(b")")
        fields = data[end + 2 :].split(None, 20)
        comm = data[data.index(b"(") : end]
        return Stat(fields[0].decode("ascii"), int(fields[1]), int(fields[3]), int(fields[19]), comm)
    except (OSError, ValueError, IndexError):
        return None


class ProcTable:
    """The process table, read incrementally: reading all of it takes milliseconds on a busy host.

    New and young processes are read at each scan (shells exec, engines set titles late), and so are relatives of a
    server. Of all others a slice is read in turn, so that a late exec or a reused PID is found within a minute on all
    but the busiest hosts.
    """

    YOUNG_S = 45.0
    SLICE = 20

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._names: Dict[str, int] = {}
        self._turn: List[int] = []
        self._young: Set[int] = set()
        self._marked: Set[int] = set()
        self._below: Dict[int, Set[int]] = collections.defaultdict(set)
        boot = boot_time()
        self._boot = boot if boot is not None else time.time()
        self._scans = 0
        self.procs: Dict[int, Proc] = {}
        self.kin: Set[int] = set()

    def scan(self) -> None:
        """Find the processes that came, went or changed. Raises OSError when /proc cannot be listed."""
        now = time.monotonic()
        self._scans += 1
        names = set(os.listdir(PROC))
        for name in self._names.keys() - names:
            self._forget(self._names.pop(name))
        if not self._turn:
            self._turn = list(self.procs)
        due = {pid for pid in self._turn[-self.SLICE :] if pid in self.procs} | self._young | self.kin
        del self._turn[-self.SLICE :]
        for name in names - self._names.keys():
            if name.isdigit() and int(name) != os.getpid():
                self._names[name] = int(name)
                due.add(int(name))
        for pid in due:
            self._read(pid, now)

    def _forget(self, pid: int) -> None:
        proc = self.procs.pop(pid, None)
        if proc is not None:
            self._below[proc.ppid].discard(pid)
            if not self._below[proc.ppid]:
                del self._below[proc.ppid]
        self._young.discard(pid)
        self._marked.discard(pid)

    def _read(self, pid: int, now: float) -> None:
        found = read_stat(pid)
        if found is None:
            self._forget(pid)
            self._names.pop(str(pid), None)
            return
        state, ppid, _, ticks, comm = found
        proc = self.procs.get(pid)
        if proc is None or proc.ticks != ticks:
            self._forget(pid)
            proc = self.procs[pid] = Proc(pid)
            proc.ppid, proc.ticks = ppid, ticks
            proc.young_until = now + self.YOUNG_S - max(self.age_s(proc), 0.0)
            self._young.add(pid)
            self._below[ppid].add(pid)
        elif proc.ppid != ppid:
            self._below[proc.ppid].discard(pid)
            self._below[ppid].add(pid)
            proc.ppid = ppid
        proc.state = state
        if proc.young_until < now:
            self._young.discard(pid)
            # An exec, and nearly every new title, changes the short name too; other changes are found at every fifth
            # scan.
            if proc.comm == comm and not (pid in self.kin and self._scans % 5 == 0):
                return
        if not proc.alive or pid == 2 or ppid == 2:
            return
        proc.comm = comm
        try:
            raw = slurp("%s/%d/cmdline" % (PROC, pid), 131_072)
        except OSError:
            return
        if raw != proc.raw:
            self._recognise(proc, raw)

    def _recognise(self, proc: Proc, raw: bytes) -> None:
        proc.raw = raw
        proc.argv = tuple(part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()
        proc.line = " ".join(proc.argv)
        proc.leads = next((e for e in self._engines if e.leads(proc.argv, proc.line)), None)
        if proc.leads is not None and " " in proc.argv[0] and not runs_python(proc.pid):
            proc.leads = None
        proc.titled = next((e for e in self._engines if e.titled(proc.line)), None)
        if (proc.leads is not None or proc.titled is not None) and simulated(proc.pid):
            proc.leads = proc.titled = None
        if proc.leads is None and proc.titled is None:
            self._marked.discard(proc.pid)
        else:
            self._marked.add(proc.pid)

    def age_s(self, proc: Proc) -> float:
        """Return the seconds since a process started."""
        return time.time() - (self._boot + proc.ticks / HZ)

    def recheck(self, pid: int, ticks: int) -> bool:
        """Return whether a process is alive and still the same one, by reading it now."""
        found = read_stat(pid)
        return found is not None and found.ticks == ticks and found.alive

    def ancestors(self, pid: int) -> Iterator[Proc]:
        """Yield the ancestors of a process, nearest first."""
        seen = {pid}
        proc = self.procs.get(pid)
        while proc is not None and proc.ppid not in seen:
            seen.add(proc.ppid)
            proc = self.procs.get(proc.ppid)
            if proc is not None:
                yield proc

    def descendants(self, pid: int) -> Iterator[Proc]:
        """Yield all descendants of a process."""
        stack = list(self._below.get(pid, ()))
        seen = {pid}
        while stack:
            child = stack.pop()
            if child in seen:
                continue
            seen.add(child)
            stack.extend(self._below.get(child, ()))
            proc = self.procs.get(child)
            if proc is not None:
                yield proc

    def heads(self) -> Tuple[List[Proc], List[Proc]]:
        """Return the leaders, and the topmost titled processes without a leader above them."""
        leaders: List[Proc] = []
        orphans: List[Proc] = []
        for pid in sorted(self._marked):
            proc = self.procs[pid]
            if not proc.alive:
                continue
            above = [a for a in self.ancestors(pid) if a.alive]
            if any(a.leads is not None for a in above):
                continue
            if proc.leads is not None:
                leaders.append(proc)
            elif not any(a.titled is not None for a in above):
                orphans.append(proc)
        return leaders, orphans


def describe_process(pid: int, boot: Optional[float]) -> Json:
    """Return user, command line and start of a process, as far as they can be read."""
    info: Json = {"pid": pid}
    folder = "%s/%d" % (PROC, pid)
    found = read_stat(pid)
    if found is None:
        return info
    info["user"] = user_name(owner_of(pid))
    if boot is not None:
        info["started_at"] = round(boot + found.ticks / HZ, 2)
    line = text_of(folder + "/cmdline", 8192) or ""
    argv = masked_argv(line.rstrip("\0").split("\0"))
    info["command"] = " ".join(argv)[:1000] or (text_of(folder + "/comm") or "").strip() or None
    return info


def owner_of(pid: int) -> Optional[int]:
    """Return the effective user id of a process; None where unknown."""
    found = re.search(r"^Uid:\s+\d+\s+(\d+)", text_of("%s/%d/status" % (PROC, pid)) or "", re.M)
    if found:
        return int(found.group(1))
    status = stat_of("%s/%d" % (PROC, pid))
    return status.st_uid if status else None


def group_of(pid: int) -> int:
    """Return the process group, which outlives the process that led it; 0 where unknown."""
    data = text_of("%s/%d/stat" % (PROC, pid)) or ""
    fields = data.rpartition(")")[2].split(None, 3)
    return int(fields[2]) if len(fields) > 2 else 0


def argv_of(pid: int, errors: str = "replace") -> Tuple[str, ...]:
    """Return the command line of a process; empty where it may not be read, or there is none.

    Args:
        pid: The process.
        errors: How bytes that are no UTF-8 are decoded; `surrogateescape` keeps them.
    """
    try:
        raw = slurp("%s/%d/cmdline" % (PROC, pid), 131_072)
    except OSError:
        return ()
    return tuple(part.decode("utf-8", errors) for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def environ_of(pid: int, errors: str = "replace") -> Optional[Dict[str, str]]:
    """Return the environment with which a process was started; None where it may not be read.

    Args:
        pid: The process.
        errors: How bytes that are no UTF-8 are decoded; `surrogateescape` keeps them.
    """
    try:
        data = slurp("%s/%d/environ" % (PROC, pid), 1 << 20)
    except OSError:
        return None
    env: Dict[str, str] = {}
    for part in data.split(b"\0"):
        name, equals, value = part.decode("utf-8", errors).partition("=")
        if equals and name:
            env[name] = value
    return env


def simulated(pid: int) -> bool:
    """Return whether a process belongs to a simulated host on this machine, whose probe alone sees it.

    Such a process has the root of its host in its environment, and that folder says what it is. The variable alone
    tells nothing: exporters in containers have it too.
    """
    root = "" if HOST_ROOT else (environ_of(pid) or {}).get("HOST_ROOT", "")
    return bool(root) and os.path.exists(os.path.join(root, SIMULATED))


def below_root(pid: int, path: str) -> List[str]:
    """Return the paths to a file named in a process's own mount namespace, best first."""
    return ["%s/%d/root%s" % (PROC, pid, path), path]


def same_mounts(pid: int) -> bool:
    """Return whether a process sees the same files as the probe."""
    theirs = link_of("%s/%d/ns/mnt" % (PROC, pid))
    return bool(HOST_ROOT) or (theirs is not None and theirs == link_of("/proc/self/ns/mnt"))
