"""The processes of a host whose changes are interrupted: which are gputuner's, its servers', or bystanders.

The machine's own `/proc` is read here, by code that shares nothing with the product, so that the two can disagree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
EVERY_S = 0.04
YOUNG_S = 3.0
"""Seconds for which a process is looked at again: what it runs changes by exec."""
YOUNG_LOOKS = 20
"""Least number of those looks: on a busy machine there are few in three seconds."""

RECORDER = """
import os, signal, socket, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def told(number, frame):
    os.write(log, b"signal %d\\n" % number)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    try:
        signal.signal(number, told)
    except (OSError, ValueError):
        pass
os.write(log, b"there\\n")
port = int(sys.argv[2])
while port:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        os.write(log, b"listens\\n")
        break
    except OSError:
        taken.close()
        time.sleep(0.002)
while True:
    time.sleep(3600)
"""
"""Writes down each signal that it gets, and listens on a port as soon as it is free, if one is given."""


@dataclass(frozen=True)
class Stat:
    """What the kernel tells of a process."""

    state: str
    parent: int
    session: int
    ticks: int

    @property
    def alive(self) -> bool:
        """Return whether it runs: a zombie has ended."""
        return self.state not in "ZX"


def stat_of(pid: int) -> Stat | None:
    """Return what the kernel tells of a process; None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Stat(fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def argv_of(pid: int) -> list[str]:
    """Return the command line of a process; empty where there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return []


def env_of(pid: int) -> bytes:
    """Return the environment of a process as its kernel has it."""
    with contextlib.suppress(OSError):
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return b""


@dataclass
class Ours:
    """A living process of ours."""

    pid: int
    ticks: int
    kind: str
    """`leader` or `member` of a server, `supervisor`, `probe`."""
    session: int
    title: str
    parent: int
    seen: float
    """Monotonic time of the first look at it."""


@dataclass
class Crowd:
    """All servers that lived at one time."""

    at: float
    sessions: dict[int, list[int]] = field(default_factory=dict)
    """Living processes by the session of their server."""


class Watch:
    """Looks all the time at which processes are ours.

    Args:
        is_leader: Whether a command line is that of a server of this benchmark.
        marks: Parts of the environment, one of which every process of this host has.
        folder: gputuner's folder on the host.
        strict: Whether members of servers have one of the marks too; engines that set titles overwrite them.
    """

    def __init__(
        self, is_leader: Callable[[Sequence[str]], bool], marks: Sequence[bytes], folder: Path, *, strict: bool = False
    ) -> None:
        self._is_leader = is_leader
        self._marks = marks
        self._strict = strict
        self._folder = str(folder)
        self._known: dict[tuple[int, int], Ours] = {}
        self._strange: dict[int, tuple[int, float, int]] = {}
        """Ticks, time of the first look and number of the first look, of processes that are not ours."""
        self._sessions: set[int] = set()
        self._before: Set[int] = frozenset()
        """Sessions of the servers that lived at the last look."""
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self.crowds: list[Crowd] = []
        """Times at which more than one server lived; emptied by who reads it."""
        self.most = 0
        self.looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(EVERY_S):
            self.look()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        self._thread.join()

    def look(self) -> list[Ours]:
        """Look now; return the living processes that are ours."""
        with self._guard:
            found = self._look()
            servers: dict[int, list[int]] = {}
            for each in found:
                if each.kind in ("leader", "member"):
                    servers.setdefault(each.session, []).append(each.pid)
            self.looks += 1
            self.most = max(self.most, len(servers))
            # A bystander that was just forked counts for one look by its session, if its PID was that of a server.
            if len(servers) > 1 and servers.keys() == self._before:
                self.crowds.append(Crowd(time.time(), servers))
            self._before = servers.keys()
            return found

    def _look(self) -> list[Ours]:
        now = time.monotonic()
        found: list[Ours] = []
        here = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - names only
        for pid in self._strange.keys() - here:
            del self._strange[pid]
        for pid in here:
            strange = self._strange.get(pid)
            # A process that is not ours is looked at again while it is young.
            if strange is not None and now - strange[1] > YOUNG_S and self.looks - strange[2] > YOUNG_LOOKS:
                continue
            stat = stat_of(pid)
            if stat is None or not stat.alive:
                continue
            known = self._known.get((pid, stat.ticks))
            if known is None or known.kind in ("supervisor", "probe") or now - known.seen < YOUNG_S:
                # One that was just forked has the command line of its parent, until it runs a program of its own.
                kind = self._kind(pid, stat)
                if not kind:
                    self._known.pop((pid, stat.ticks), None)
                    if strange is None or strange[0] != stat.ticks:
                        self._strange[pid] = (stat.ticks, now, self.looks)
                    continue
                self._strange.pop(pid, None)
                words = " ".join(argv_of(pid))[:300]
                seen = known.seen if known is not None else now
                known = Ours(pid, stat.ticks, kind, stat.session, words, stat.parent, seen)
                self._known[pid, stat.ticks] = known
            found.append(known)
        return found

    def _kind(self, pid: int, stat: Stat) -> str:
        argv = argv_of(pid)
        if "recorder.py" in " ".join(argv[:3]):
            return ""
        if self._is_leader(argv):
            self._sessions.add(stat.session)
            return "leader" if stat.session == pid else "member"  # a child that was just forked has its command line
        if len(argv) > 2 and argv[-1 if argv[-1] != "--again" else -2].startswith(self._folder + "/runs/"):
            return "supervisor"
        if stat.session in self._sessions:
            # The number may be that of another simulated host's session by then: PIDs are used again on purpose.
            return "member" if not self._strict or any(mark in env_of(pid) for mark in self._marks) else ""
        if "-ISBuc" in argv or ("-c" in argv and {"-I", "-S", "-B", "-u"} <= set(argv)):
            env = env_of(pid)
            return "probe" if any(mark in env for mark in self._marks) else ""
        return ""

    def leader(self) -> Ours | None:
        """Return the leader of the server that began last; None where none lives."""
        return max((each for each in self.look() if each.kind == "leader"), key=lambda each: each.ticks, default=None)


class Recorder:
    """A bystander that writes down each signal, and is told from a later process by its start.

    Args:
        folder: Where its file lies.
        name: Its name, for people and for its file.
        words: More words of its command line, so that it looks like something else.
        env: Its environment.
        port: Port on which it is to listen as soon as that is free; 0: none.
        pid: PID that it is to have; 0: any. Raises OSError where that cannot be had.
    """

    def __init__(
        self, folder: Path, name: str, words: Sequence[str] = (), env: Mapping[str, str] | None = None, *,
        port: int = 0, pid: int = 0,
    ) -> None:  # fmt: skip
        self.name = name
        self.file = folder / f"{name}.signals"
        script = folder / "recorder.py"
        if not script.exists():
            script.write_text(RECORDER)
        argv = [sys.executable, "-SB", str(script), str(self.file), str(port), *words]
        for _ in range(40):
            if pid:
                if stat_of(pid) is not None:
                    raise OSError(f"PID {pid} is not free")
                LAST_PID.write_text(str(pid - 1))
            self.process = subprocess.Popen(
                argv, env=dict(env or os.environ), stdin=subprocess.DEVNULL, start_new_session=True
            )
            if pid in (0, self.process.pid):
                break
            self.end()
        else:
            raise OSError(f"PID {pid} could not be had")
        stat = stat_of(self.process.pid)
        assert stat is not None
        self.pid, self.ticks = self.process.pid, stat.ticks
        until = time.monotonic() + 10
        while "there" not in self.told and time.monotonic() < until:
            time.sleep(0.01)

    @property
    def told(self) -> str:
        """Return what it wrote."""
        with contextlib.suppress(OSError):
            return self.file.read_text()
        return ""

    def trouble(self) -> str:
        """Return what was done to it; empty if nothing was."""
        code = self.process.poll()
        if code is not None:
            return f"{self.name} (PID {self.pid}) ended with {code}"
        signals = [line for line in self.told.splitlines() if line.startswith("signal")]
        return f"{self.name} (PID {self.pid}) got {', '.join(signals)}" if signals else ""

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def kill(pid: int, ticks: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to a process if it is still the same one; return whether it was sent."""
    stat = stat_of(pid)
    if stat is None or stat.ticks != ticks or not stat.alive:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
