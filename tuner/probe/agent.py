"""The probe: one file that looks at a GPU host and tells what it sees, line by line.

It is sent to the host over stdin, runs from memory on the standard library of Python 3.8 or later, writes nothing
there and ends with the connection. It knows no inference engine: what to look for and what to ask comes with the
plan. docs/protocol.md describes every line it reads and writes.

One thread per thing that can block: NVML (a driver may hang for seconds), each HTTP endpoint, each log, the writer.
The conductor scans the process table, and the main thread runs searches, because only there a signal can interrupt
a regular expression that does not end.

With HOST_ROOT set in its environment, /proc, /sys and the names of users are read below that folder.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import itertools
import json
import os
import queue
import re
import signal
import socket
import stat
import struct
import sys
import threading
import time
import zlib
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Set, Tuple

PROTOCOL = 1
HOST_ROOT = os.environ.get("HOST_ROOT", "").rstrip("/")
PROC = HOST_ROOT + "/proc"
SYS = HOST_ROOT + "/sys"
HZ = os.sysconf("SC_CLK_TCK")
ME = os.getuid()

BLOCK = 262_144
"""Bytes of a log read, and sent, at a time."""
BACKLOG_LIMIT = 67_108_864
"""A log that is further ahead of what was sent is skipped to its end: the link is too slow for it."""
LINE_LIMIT = 65_536
"""Longest line kept of a start-up section."""
HIT_LIMIT = 2_048
OLD_LOG_LIMIT = 262_144
READ_LIMIT = 1_048_576
BODY_LIMIT = 8_388_608
HANG_S = 3.0
MASK = "***"

Json = Dict[str, Any]


# ---------------------------------------------------------------------------------------------------------------
# Small helpers
# ---------------------------------------------------------------------------------------------------------------


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


_SECRET_NAME = re.compile(
    r"(?:^|_)(?:PG)?(?:API_?KEYS?|KEY|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASS|(?<=_)PWD|CREDENTIALS?|AUTH)$", re.I
)
_SHORT_NUMBER = re.compile(r"\d{1,7}")
"""What MAX_TOKENS and the like hold; a secret of digits is longer."""
_SECRET_FLAG = re.compile(r"^--(?:[\w-]+[-_])?(?:api[-_]key|auth[-_]token|hf[-_]token|token|password|secret)$")


def masked_env(env: Dict[str, str], names: Sequence[str] = ()) -> Dict[str, str]:
    """Environment with the values of secrets replaced. Numbers are no secrets: `MAX_TOKENS=8` stays."""
    return {
        name: MASK
        if value and (name in names or (_SECRET_NAME.search(name) and not _SHORT_NUMBER.fullmatch(value)))
        else value
        for name, value in env.items()
    }


def masked_argv(argv: Sequence[str], flags: Sequence[str] = ()) -> List[str]:
    """Command line with the values of secret flags replaced."""
    out: List[str] = []
    hide = False
    for arg in argv:
        name, equals, _ = arg.partition("=")
        secret = name in flags or bool(_SECRET_FLAG.match(name))
        if hide and not arg.startswith("--"):
            out.append(MASK)  # several keys may follow one flag
            continue
        hide = secret and not equals
        out.append(name + "=" + MASK if secret and equals else arg)
    return out


def flag_value(argv: Sequence[str], flags: Sequence[str]) -> Optional[str]:
    """Value of the last of `flags` on a command line, as `--flag value` or `--flag=value`."""
    value = None
    for i, arg in enumerate(argv):
        name, equals, rest = arg.partition("=")
        if name in flags:
            if equals:
                value = rest
            elif i + 1 < len(argv):
                value = argv[i + 1]
    return value


def whole_utf8(data: bytes) -> int:
    """Length of `data` without a character that has begun but not ended at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return len(data)
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 1
            return len(data) - back if need > back else len(data)
    return len(data)


def bulk(data: bytes) -> Json:
    """A block of text for the wire: as `data`, or compressed as `z` where that is worth it."""
    text = data.decode("utf-8", "replace")
    if len(data) < 1024:
        return {"data": text}
    return {"z": base64.b64encode(zlib.compress(text.encode("utf-8"), 1)).decode("ascii")}


# ---------------------------------------------------------------------------------------------------------------
# Output
# ---------------------------------------------------------------------------------------------------------------


class Outbox:
    """All lines to the laptop, written by one thread.

    A slow link must neither grow memory nor lose log bytes: bulk lines wait for room before they are made, samples
    replace older ones of their kind, everything else is small and rare and always accepted. Answers to pings go
    first, or a busy link would look like a dead one. Lines are numbered when written, so a gap is a loss.
    """

    ROOM = 524_288
    SAMPLES = 3

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._cond = threading.Condition()
        self._urgent: Deque[bytes] = collections.deque()
        self._lines: Deque[Tuple[str, bytes]] = collections.deque()
        self._kept: Dict[str, int] = collections.defaultdict(int)
        self._pending = 0
        self._seq = 0
        self._writing = False
        self.broken = False

    @staticmethod
    def _encoded(event: Json) -> bytes:
        event["mono"] = round(time.monotonic(), 4)
        text = json.dumps(event, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8", "replace")  # half a surrogate pair is no UTF-8

    def put(self, event: Json, urgent: bool = False) -> None:
        """Queue a line that must arrive."""
        line = self._encoded(event)
        with self._cond:
            if urgent:
                self._urgent.append(line)
            else:
                self._lines.append(("", line))
                self._pending += len(line)
            self._cond.notify_all()

    def put_sample(self, event: Json) -> None:
        """Queue a line that a newer one of its kind makes worthless; the oldest gives way."""
        line = self._encoded(event)
        kind = event["t"]
        with self._cond:
            if self._kept[kind] >= self.SAMPLES:
                for i, (other, old) in enumerate(self._lines):
                    if other == kind:
                        del self._lines[i]
                        self._pending -= len(old)
                        self._kept[kind] -= 1
                        break
            self._lines.append((kind, line))
            self._kept[kind] += 1
            self._pending += len(line)
            self._cond.notify_all()

    def wait_for_room(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until bulk may be queued. False when `stop` said so first."""
        with self._cond:
            while self._pending > self.ROOM:
                if stop() or self.broken:
                    return False
                self._cond.wait(0.25)
        return not self.broken

    @property
    def congested(self) -> bool:
        """True while the link is behind: asking for more makes no sense."""
        return self._pending > self.ROOM // 2

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is written, but not for ever."""
        end = time.monotonic() + timeout_s
        with self._cond:
            while (self._lines or self._urgent or self._writing) and not self.broken:
                left = end - time.monotonic()
                if left <= 0:
                    return
                self._cond.wait(left)

    def run(self, lost: Callable[[], None]) -> None:
        """Write until the other side is gone, then call `lost`."""
        while True:
            with self._cond:
                self._writing = False
                self._cond.notify_all()
                while not (self._lines or self._urgent):
                    self._cond.wait()
                lines: List[bytes] = []
                size = 0
                while self._urgent:
                    lines.append(self._urgent.popleft())
                while self._lines and size < 65_536:
                    kind, line = self._lines.popleft()
                    if kind:
                        self._kept[kind] -= 1
                    size += len(line)
                    lines.append(line)
                self._pending -= size
                self._writing = True
            out = bytearray()
            for line in lines:
                self._seq += 1
                out += b'{"seq":%d,' % self._seq
                out += line[1:]
                out += b"\n"
            try:
                view = memoryview(out)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                self.broken = True
                with self._cond:
                    self._cond.notify_all()
                lost()
                return


class Problems:
    """What does not work, each told once, and once more when it is over.

    Several parts (endpoints, GPUs) may have the same problem with one subject; it is over when none has it.
    """

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._known: Dict[Tuple[str, str], Dict[str, str]] = {}

    def note(self, code: str, subject: str = "", detail: str = "", part: str = "") -> None:
        """Tell a problem, unless it was told in the same words."""
        with self._lock:
            parts = self._known.setdefault((code, subject), {})
            if parts.get(part) == detail:
                return
            parts[part] = detail
        self._out.put({"t": "problem", "code": code, "subject": subject, "detail": detail[:1000]})

    def clear(self, code: str, subject: str = "", part: str = "") -> None:
        """Tell that a problem is over, if it was there."""
        with self._lock:
            parts = self._known.get((code, subject))
            if parts is None or parts.pop(part, None) is None or parts:
                return
            del self._known[code, subject]
        self._out.put({"t": "problem", "code": code, "subject": subject, "cleared": True})

    def forget(self, subject: str) -> None:
        """Clear everything about a subject that is no more."""
        with self._lock:
            codes = [code for code, about in self._known if about == subject]
            for code in codes:
                del self._known[code, subject]
        for code in codes:
            self._out.put({"t": "problem", "code": code, "subject": subject, "cleared": True})


class Children:
    """Programs the probe started (journalctl, nvidia-smi); none outlives it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Set[Any] = set()
        self._closed = False
        self._guard: Optional[List[str]] = None

    def start(self, argv: Sequence[str]) -> Any:
        """Start a program with its output in a pipe. Raises OSError."""
        import subprocess

        if self._guard is None:
            # Should the probe be killed outright, the kernel ends its children too, where setpriv can say so.
            guard = ["setpriv", "--pdeathsig", "TERM", "--"]
            try:
                null = subprocess.DEVNULL
                able = subprocess.call([*guard, "true"], stdin=null, stdout=null, stderr=null, timeout=2.0) == 0
            except (OSError, subprocess.SubprocessError):
                able = False
            self._guard = guard if able else []
        with self._lock:
            if self._closed:
                raise OSError("the probe is ending")
            child = subprocess.Popen(
                [*self._guard, *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, LC_ALL="C"),
            )
            self._running.add(child)
        return child

    def end(self, child: Any) -> None:
        """Kill a program if it still runs, and reap it."""
        with self._lock:
            self._running.discard(child)
        if child.poll() is None:
            child.kill()
        with contextlib.suppress(Exception):
            child.wait(1.0)

    def output(self, argv: Sequence[str], timeout_s: float) -> Tuple[int, str]:
        """Exit status and output of a short program. Raises OSError; TimeoutError when it took too long."""
        import subprocess

        child = self.start(argv)
        try:
            data, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError("%s did not answer within %g s" % (argv[0], timeout_s)) from None
        finally:
            self.end(child)
            if child.stdout is not None:
                child.stdout.close()
        return child.returncode, data.decode("utf-8", "replace")

    def end_all(self) -> None:
        """Kill all of them; no other is started after this."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for child in running:
            self.end(child)


# ---------------------------------------------------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------------------------------------------------

_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*[dmtu]*$")
_RUNNERS = frozenset(("cProfile", "coverage", "debugpy", "memray", "pdb", "profile", "scalene", "trace", "viztracer"))
"""Modules that run another program inside their own process."""


def is_python(path: str) -> bool:
    """True for the name of a Python interpreter."""
    return bool(_PYTHON.match(os.path.basename(path)))


def program_index(argv: Sequence[str]) -> Optional[int]:
    """Index of the argument that names what this very process runs.

    For an interpreter the module or the script, for others the program itself. A command line that only carries
    another one (`bash -c "..."`, ssh, tmux, an editor, grep) therefore points to the carrier, and `python -c`,
    which multiprocessing uses for its helpers, to nothing.
    """
    if not argv or not argv[0]:
        return None
    if not is_python(argv[0]):
        return 0
    i = 1
    while i < len(argv):
        arg = argv[i]
        if arg == "-" or not arg:
            return None
        if not arg.startswith("-"):
            found: Optional[int] = i
        elif arg.startswith("--"):
            i += 2 if arg == "--check-hash-based-pycs" else 1
            continue
        else:
            found = None
            step = 1
            for at, letter in enumerate(arg[1:], 1):
                rest = arg[at + 1 :]
                if letter == "c":
                    return None
                if letter == "m":
                    found = i if rest else i + 1
                    break
                if letter in "WXQ":
                    step = 1 if rest else 2
                    break
            if found is None:
                i += step
                continue
        if found is None or found >= len(argv):
            return None
        if argv[found].rpartition(".")[2] in _RUNNERS or os.path.basename(argv[found]) in _RUNNERS:
            inner = [at for at in range(found + 1, len(argv) - 1) if argv[at] == "-m"]
            return inner[0] + 1 if inner else found
        return found
    return None


class Engine:
    """One engine's part of the plan, its expressions compiled."""

    def __init__(self, plan: Json) -> None:
        self.name: str = plan["name"]
        self.leaders = [re.compile(p) for p in plan.get("leaders", ())]
        self.titles = [re.compile(p) for p in plan.get("titles", ())]
        self.package: str = plan.get("package", "")
        self.port_flags: List[str] = list(plan.get("port_flags", ("--port",)))
        self.default_port: int = plan.get("default_port", 8000)
        self.api_key_flags: List[str] = list(plan.get("api_key_flags", ("--api-key",)))
        self.api_key_env: List[str] = list(plan.get("api_key_env", ()))
        self.rank_env: List[str] = list(plan.get("rank_env", ()))
        self.endpoints: List[Json] = list(plan.get("endpoints", ()))
        self.markers = [m.encode() for m in plan.get("start_markers", ()) if m]
        self.end_marker: bytes = plan.get("log_end_marker", "").encode()

    def leads(self, argv: Sequence[str], line: str) -> bool:
        """True for the command line of a server's own process, not for one that merely mentions it."""
        at = program_index(argv)
        if at is None:
            return False
        start = len(" ".join(argv[:at])) + (1 if at else 0)
        end = start + len(argv[at])
        return any(m.start() < end and m.end() > start for rx in self.leaders for m in rx.finditer(line))

    def titled(self, line: str) -> bool:
        """True for a process title of this engine; a title begins with it, a mention does not."""
        return any(rx.match(line) for rx in self.titles)


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
        """False for a zombie: it has ended and waits for its parent to notice."""
        return self.state not in "ZX"


def read_stat(pid: int) -> Optional[Tuple[str, int, int, bytes]]:
    """State letter, parent, start ticks and short name of a process; None when there is no such process."""
    try:
        data = glance("%s/%d/stat" % (PROC, pid))
        end = data.rindex(b")")
        fields = data[end + 2 :].split(None, 20)
        return fields[0].decode("ascii"), int(fields[1]), int(fields[19]), data[data.index(b"(") : end]
    except (OSError, ValueError, IndexError):
        return None


class ProcTable:
    """The process table, read incrementally: a full look costs milliseconds on a busy host.

    New and young processes are read at each scan (shells exec, engines set titles late), kin of a server too, and a
    slice of all others in turn, so that a late exec or a reused PID is found within a minute at most
    on all but the busiest hosts.
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
        """Look for processes that came, went or changed. Raises OSError when /proc cannot be listed."""
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
        state, ppid, ticks, comm = found
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
            # An exec, and nearly every new title, changes the short name too; the rest is seen now and then.
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
        proc.titled = next((e for e in self._engines if e.titled(proc.line)), None)
        if proc.leads is None and proc.titled is None:
            self._marked.discard(proc.pid)
        else:
            self._marked.add(proc.pid)

    def age_s(self, proc: Proc) -> float:
        """Seconds since a process started."""
        return time.time() - (self._boot + proc.ticks / HZ)

    def recheck(self, pid: int, ticks: int) -> bool:
        """Look now whether a process is still that one and alive."""
        found = read_stat(pid)
        return found is not None and found[2] == ticks and found[0] not in "ZX"

    def ancestors(self, pid: int) -> Iterator[Proc]:
        """Parents of a process, nearest first."""
        seen = {pid}
        proc = self.procs.get(pid)
        while proc is not None and proc.ppid not in seen:
            seen.add(proc.ppid)
            proc = self.procs.get(proc.ppid)
            if proc is not None:
                yield proc

    def descendants(self, pid: int) -> Iterator[Proc]:
        """The whole tree below a process, without itself."""
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
        """Leaders, and topmost titled processes that have no leader above them."""
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
    """User, command line and start of a process, as far as they can be read."""
    info: Json = {"pid": pid}
    folder = "%s/%d" % (PROC, pid)
    found = read_stat(pid)
    if found is None:
        return info
    info["user"] = user_name(owner_of(pid))
    if boot is not None:
        info["started_at"] = round(boot + found[2] / HZ, 2)
    line = text_of(folder + "/cmdline", 8192) or ""
    argv = masked_argv(line.rstrip("\0").split("\0"))
    info["command"] = " ".join(argv)[:1000] or (text_of(folder + "/comm") or "").strip() or None
    return info


def owner_of(pid: int) -> Optional[int]:
    """Effective user of a process."""
    found = re.search(r"^Uid:\s+\d+\s+(\d+)", text_of("%s/%d/status" % (PROC, pid)) or "", re.M)
    if found:
        return int(found.group(1))
    status = stat_of("%s/%d" % (PROC, pid))
    return status.st_uid if status else None


def environ_of(pid: int) -> Optional[Dict[str, str]]:
    """Environment a process was started with; None where that may not be read."""
    try:
        data = slurp("%s/%d/environ" % (PROC, pid), 1 << 20)
    except OSError:
        return None
    env: Dict[str, str] = {}
    for part in data.split(b"\0"):
        name, equals, value = part.decode("utf-8", "replace").partition("=")
        if equals and name:
            env[name] = value
    return env


# ---------------------------------------------------------------------------------------------------------------
# What /proc and the disk tell about one server
# ---------------------------------------------------------------------------------------------------------------

_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_SHELLS = frozenset(("bash", "dash", "fish", "ksh", "sh", "tcsh", "zsh", "tmux", "screen", "sshd", "nohup", "login"))


def cgroup_paths(pid: int) -> List[str]:
    """Control groups of a process, the most telling hierarchy first."""
    lines = (text_of("%s/%d/cgroup" % (PROC, pid)) or "").splitlines()
    paths = [(":name=systemd:" in line, line.split(":", 2)[2]) for line in lines if line.count(":") >= 2]
    return [path for _, path in sorted(paths, key=lambda p: (not p[0], -len(p[1])))]


def container_of(paths: Sequence[str]) -> Optional[Tuple[str, str]]:
    """Container engine and id from control groups."""
    for path in paths:
        found = _CONTAINER.search(path)
        if found:
            kind = "podman" if "libpod" in path else "kubernetes" if "kubepods" in path else "docker"
            return kind, found.group(1)
    return None


def unit_of(paths: Sequence[str]) -> Optional[Tuple[str, bool]]:
    """Service or transient scope of systemd that holds a process, and whether it is a user's."""
    for path in paths:
        parts = [p for p in path.split("/") if p]
        for part in reversed(parts):
            if part.startswith(("user@", "session-", "init.scope")) or part.endswith(".slice"):
                break
            if part.endswith(".service") and not part.startswith(("ssh.", "sshd.", "ssh@", "sshd@", "cron", "docker.")):
                return part, any(p.startswith("user@") for p in parts)
    return None


def manager_of(pid: int, env: Dict[str, str], above: Sequence[Proc]) -> Json:
    """Who started a server and may start it again."""
    paths = cgroup_paths(pid)
    for path in paths:
        job = re.search(r"slurm.*?/job_(\d+)", path)
        if job:
            return {"kind": "slurm", "name": job.group(1)}
        pod = re.search(r"kubepods.*?pod([0-9a-f][0-9a-f_-]{30,40})", path)
        if pod:
            return {"kind": "kubernetes", "name": pod.group(1).replace("_", "-")}
    container = container_of(paths)
    if container:
        kind, ident = container
        config = text_of("/var/lib/docker/containers/%s/config.v2.json" % ident) if kind == "docker" else None
        named = re.search(r'"Name":"/?([^"]+)"', config or "")
        return {"kind": kind, "name": named.group(1) if named else ident[:12]}
    if env.get("SLURM_JOB_ID"):
        return {"kind": "slurm", "name": env["SLURM_JOB_ID"]}
    if env.get("KUBERNETES_SERVICE_HOST"):
        return {"kind": "kubernetes", "name": env.get("HOSTNAME")}
    unit = unit_of(paths)
    if unit:
        return {"kind": "systemd", "name": unit[0]}
    for proc in above:
        name = os.path.basename(proc.argv[0]).lstrip("-") if proc.argv else ""
        name = name.split(":")[0]
        if name in _SHELLS:
            return {"kind": "shell", "name": name}
    return {"kind": "unknown", "name": None}


def below_root(pid: int, path: str) -> List[str]:
    """The ways to a file named in a process's own mount namespace, best first."""
    return ["%s/%d/root%s" % (PROC, pid, path), path]


def same_mounts(pid: int) -> bool:
    """True when a process sees the files we see."""
    theirs = link_of("%s/%d/ns/mnt" % (PROC, pid))
    return bool(HOST_ROOT) or (theirs is not None and theirs == link_of("/proc/self/ns/mnt"))


def interpreter_of(pid: int, argv: Sequence[str], env: Dict[str, str], cwd: Optional[str]) -> Optional[str]:
    """Path of the Python a process runs on, as it was called: a virtual environment must not be resolved away."""
    name = argv[0] if argv else ""
    if name.startswith("/") and is_python(name):
        return name
    if is_python(name):
        if "/" in name:
            return os.path.normpath(os.path.join(cwd or "/", name))
        for folder in env.get("PATH", "").split(":"):
            path = os.path.join(folder, name)
            if folder.startswith("/") and any(os.path.exists(p) for p in below_root(pid, path)):
                return path
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        path = env.get(name, "") + "/bin/python3"
        if env.get(name) and any(os.path.exists(p) for p in below_root(pid, path)):
            return path
    exe = link_of("%s/%d/exe" % (PROC, pid))
    return exe.replace(" (deleted)", "") if exe and is_python(exe.replace(" (deleted)", "")) else None


def package_folders(prefix: str) -> List[str]:
    """Folders below an installation prefix that hold Python packages."""
    out: List[str] = []
    for base in (prefix, prefix + "/local"):
        for name in sorted(names_in(base + "/lib"), reverse=True):
            if name.startswith(("python3", "pypy3")):
                out += ["%s/lib/%s/%s" % (base, name, kind) for kind in ("site-packages", "dist-packages")]
    return [path for path in out if os.path.isdir(path)]


def site_folders(pid: int, interpreter: Optional[str], env: Dict[str, str]) -> List[str]:
    """Package folders of a process's interpreter, readable from here."""
    prefixes = [os.path.dirname(os.path.dirname(interpreter))] if interpreter else []
    prefixes += [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name, "").startswith("/")]
    out: List[str] = []
    for prefix in prefixes:
        for way in below_root(pid, prefix):
            config = text_of(way + "/pyvenv.cfg") or ""
            home = re.search(r"^home\s*=\s*(/\S+)", config, re.M)
            found = package_folders(way)
            if home and re.search(r"^include-system-site-packages\s*=\s*true", config, re.M | re.I):
                found += [f for w in below_root(pid, os.path.dirname(home.group(1))) for f in package_folders(w)]
            out += [f for f in found if f not in out]
            if found:
                break
    if not out:
        # A launcher that hides its interpreter still maps the packages it imported.
        maps = text_of("%s/%d/maps" % (PROC, pid), 1 << 19) or ""
        for path in dict.fromkeys(re.findall(r"(/\S*?/(?:site|dist)-packages)/", maps)):
            out += [w for w in below_root(pid, path) if os.path.isdir(w)][:1]
    return out


def package_version(folders: Sequence[str], package: str) -> Optional[str]:
    """Version of an installed distribution, from its metadata."""
    wanted = re.compile(re.escape(re.sub(r"[-_.]+", "_", package)) + r"-([^-]+)\.(?:dist|egg)-info$", re.I)
    for folder in folders:
        for name in names_in(folder):
            found = wanted.match(name)
            if found:
                metadata = text_of("%s/%s/METADATA" % (folder, name), 65_536) or ""
                version = re.search(r"^Version:\s*(\S+)", metadata, re.M)
                return version.group(1) if version else found.group(1)
    return None


class Listener:
    """A listening TCP socket."""

    __slots__ = ("address", "inode", "port", "uid")

    def __init__(self, address: str, port: int, inode: int, uid: int) -> None:
        self.address = address
        self.port = port
        self.inode = inode
        self.uid = uid


_LISTEN = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) [0-9A-F]+:0000 0A \S+ \S+ \S+ +(\d+) +\d+ +(\d+)", re.M)


def listeners_here() -> Optional[List[Listener]]:
    """Listening TCP sockets of our own network namespace, as the kernel lists them; None where it does not.

    The tables in /proc go through every connection there might be: 4 ms each on a large host.
    """
    out: List[Listener] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as sock:  # NETLINK_SOCK_DIAG
            sock.settimeout(1.0)
            for family in (socket.AF_INET, socket.AF_INET6):
                # SOCK_DIAG_BY_FAMILY, a dump of what is TCP and in the state LISTEN.
                sock.sendto(struct.pack("=IHHIIBBHI48x", 72, 20, 0x301, 0, 0, family, 6, 0, 1 << 10), (0, 0))
                while _take_listeners(sock.recv(65_536), out):
                    pass
    except (OSError, AttributeError, struct.error):
        return None
    return out


def _take_listeners(data: bytes, out: List[Listener]) -> bool:
    """Collect the sockets of a netlink answer; False after the last one. Raises OSError."""
    while data:
        length, kind = struct.unpack_from("=IH", data)
        if kind != 20:  # the end, or an error
            if kind == 3:
                return False
            raise OSError("sock_diag does not answer")
        wide = data[16] == socket.AF_INET6
        (port,) = struct.unpack_from("!H", data, 20)
        uid, inode = struct.unpack_from("=II", data, 80)
        out.append(Listener(address_in(data[24 : 40 if wide else 28]), port, inode, uid))
        data = data[(length + 3) & ~3 :]
    return True


def listeners_of(pid: int) -> List[Listener]:
    """Listening TCP sockets in a process's network namespace."""
    ours = None if HOST_ROOT else link_of("/proc/self/ns/net")
    found = listeners_here() if ours is not None and ours == link_of("%s/%d/ns/net" % (PROC, pid)) else None
    if found is not None:
        return found
    out: List[Listener] = []
    for name in ("tcp", "tcp6"):
        data = b""
        for path in ("%s/%d/net/%s" % (PROC, pid, name), "%s/net/%s" % (PROC, name)):
            try:
                data = slurp(path, 1 << 24)
                break
            except OSError:
                continue
        for address, port, uid, inode in _LISTEN.findall(data):
            out.append(Listener(address_of(address.decode("ascii")), int(port, 16), int(inode), int(uid)))
    return out


def same_network(pid: int) -> bool:
    """True when a process is known to be in our network namespace."""
    theirs = link_of("%s/%d/ns/net" % (PROC, pid))
    if theirs is not None:
        return theirs == link_of("/proc/self/ns/net")
    # Another user's link may not be read. Sockets are numbered across namespaces: one table, one namespace.
    tables = ("%s/%d/net/tcp" % (PROC, pid), "/proc/self/net/tcp")
    try:
        their_sockets, our_sockets = ({int(found[3]) for found in _LISTEN.findall(slurp(t, 1 << 24))} for t in tables)
    except OSError:
        return False
    return bool(their_sockets & our_sockets - {0})


def address_of(text: str) -> str:
    """Address as /proc/net/tcp prints it, in words of the host's byte order."""
    return address_in(b"".join(struct.pack("=I", int(text[i : i + 8], 16)) for i in range(0, len(text), 8)))


def address_in(raw: bytes) -> str:
    """Address from its 4 or 16 bytes."""
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def sockets_of(pid: int) -> Optional[Set[int]]:
    """Inodes of the sockets a process holds; None where that may not be read."""
    folder = "%s/%d/fd" % (PROC, pid)
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    out: Set[int] = set()
    for name in names:
        target = link_of(folder + "/" + name)
        if target is not None and target.startswith("socket:["):
            out.add(int(target[8:-1]))
    return out


# ---------------------------------------------------------------------------------------------------------------
# Logs: where they are
# ---------------------------------------------------------------------------------------------------------------


class LogTarget:
    """Where a server's output goes and how to get at it."""

    __slots__ = ("code", "kind", "match", "note", "opens", "path", "status", "watch")

    def __init__(self, kind: str, path: Optional[str] = None, note: Optional[str] = None, code: str = "") -> None:
        self.kind = kind
        self.path = path
        self.note = note
        self.code = code
        """Problem to report along with `note`."""
        self.opens: List[str] = []
        """Paths that lead to the file, best first."""
        self.watch = ""
        """Path whose status tells which file is written to now."""
        self.match: List[str] = []
        """Journal fields to select by."""
        self.status: Optional[os.stat_result] = None

    @property
    def same_as(self) -> Tuple[Any, ...]:
        """Equal for targets that one tail can follow."""
        return (self.kind, self.watch, tuple(self.match), self.code)

    def as_json(self) -> Json:
        """The `log` of a server's identity."""
        out: Json = {"kind": self.kind, "path": self.path, "note": self.note}
        if self.status is not None:
            out.update(device=self.status.st_dev, inode=self.status.st_ino)
        return out


def file_target(pid: int, fd: str, text: str) -> LogTarget:
    """The regular file behind a descriptor of a process."""
    watch = "%s/%d/fd/%s" % (PROC, pid, fd)
    deleted = text.endswith(" (deleted)")
    target = LogTarget("file", text[: -len(" (deleted)")] if deleted else text)
    target.watch = watch
    target.status = stat_of(watch)
    # The descriptor leads to the very file, also when it was deleted or lies in a container.
    target.opens = [watch, *below_root(pid, target.path or "")]
    if deleted:
        target.code = "log-vanished"
        target.note = "the log file was deleted; it is read through the server's open descriptor until the server ends"
    return target


def pipe_reader(pid: int, pipe: str, procs: Dict[int, Proc], hops: int = 4) -> Optional[LogTarget]:
    """The file a pipe ends in, through programs like tee, or None."""
    for other in list(procs):
        if other == pid or link_of("%s/%d/fd/0" % (PROC, other)) != pipe:
            continue
        folder = "%s/%d/fd" % (PROC, other)
        onward = None
        for name in sorted(names_in(folder), key=lambda n: int(n) if n.isdigit() else 0):
            text = link_of(folder + "/" + name) or ""
            if name == "0" or text == pipe:
                continue
            if text.startswith("pipe:[") and name == "1":
                onward = text
            status = stat_of(folder + "/" + name) if text.startswith("/") else None
            flags = re.search(r"^flags:\s*([0-7]+)", text_of("%s/%d/fdinfo/%s" % (PROC, other, name)) or "", re.M)
            writes = flags is None or int(flags.group(1), 8) & os.O_ACCMODE != os.O_RDONLY
            if status is not None and stat.S_ISREG(status.st_mode) and writes and name != "2":
                return file_target(other, name, text)
        if onward is not None and hops:
            return pipe_reader(other, onward, procs, hops - 1)
    return None


def holds_marker(target: LogTarget, markers: Sequence[bytes]) -> bool:
    """True when the beginning of a log looks like a server's."""
    for path in target.opens:
        try:
            data = slurp(path, BLOCK)
        except OSError:
            continue
        return any(marker in data for marker in markers)
    return False


def find_log(pid: int, procs: Dict[int, Proc], markers: Sequence[bytes]) -> LogTarget:
    """Where the output of a server goes, whatever started it."""
    texts: List[str] = []
    files: List[LogTarget] = []
    denied = False
    for fd in ("1", "2"):
        try:
            text = os.readlink("%s/%d/fd/%s" % (PROC, pid, fd))
        except PermissionError:
            denied = True
            continue
        except OSError:
            continue
        status = stat_of("%s/%d/fd/%s" % (PROC, pid, fd))
        if stat.S_ISREG(status.st_mode) if status else text.startswith("/") and not text.startswith("/dev/"):
            files.append(file_target(pid, fd, text))
            continue
        texts.append(text)
        behind = pipe_reader(pid, text, procs) if text.startswith("pipe:[") else None
        if behind is not None:
            files.append(behind)
    if files:
        # stdout and stderr in two files: engines log to stderr, access lines go to stdout.
        two = len(files) == 2 and files[0].path != files[1].path
        return files[1] if two and (files[0].code or holds_marker(files[1], markers)) else files[0]
    paths = cgroup_paths(pid)
    container = container_of(paths)
    journal = which("journalctl")
    if container is not None:
        path = "/var/lib/docker/containers/%s/%s-json.log" % (container[1], container[1])
        status = stat_of(path)
        if status is not None:
            target = LogTarget("docker-json", path)
            target.watch, target.opens, target.status = path, [path], status
            return target
        if journal and any(text.startswith(("pipe:", "socket:")) for text in texts):
            target = LogTarget("journal", "container " + container[1][:12])
            target.match = ["CONTAINER_ID_FULL=" + container[1]]
            return target
    unit = unit_of(paths)
    if unit is not None and journal and any(text.startswith("socket:") for text in texts):
        target = LogTarget("journal", unit[0])
        target.match = ["_SYSTEMD_USER_UNIT=" + unit[0]] if unit[1] else ["_SYSTEMD_UNIT=" + unit[0]]
        uid = owner_of(pid)
        if unit[1] and uid is not None:
            target.match.append("_UID=%d" % uid)
        return target
    if denied:
        note = "the server's descriptors may not be read by %s; connect as root or as the server's user" % user_name(ME)
        return LogTarget("none", None, note, "log-denied")
    if container is not None:
        note = "the container's log may not be read; connect as root, or start it with its output in a mounted file"
        return LogTarget("none", None, note, "log-denied")
    for text in texts:
        if text.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
            note = "the output goes to the terminal %s; start the server with `2>&1 | tee FILE` to see its log" % text
            return LogTarget("none", None, note, "log-terminal")
    for text in texts:
        if text.startswith(("pipe:", "socket:")):
            note = "the output goes into a pipe nobody stores; start the server with `2>&1 | tee FILE` or `> FILE 2>&1`"
            return LogTarget("none", None, note, "log-pipe")
    note = "the server's output is thrown away; start it with `> FILE 2>&1`"
    return LogTarget("none", None, note, "log-none")


# ---------------------------------------------------------------------------------------------------------------
# Logs: reading them
# ---------------------------------------------------------------------------------------------------------------


def startup_runs(
    data: bytes, base: int, markers: Sequence[bytes], end_marker: bytes
) -> Tuple[List[Tuple[int, bytes]], bool]:
    """The start-up lines of a block that begins at a line.

    Neighbouring lines, and lines with little between them, become one run, whose offset is exact.

    Returns:
        Runs as (offset, bytes), and whether the end marker was met.
    """
    limit = len(data)
    ended = False
    if end_marker:
        found = data.find(end_marker)
        if found >= 0:
            newline = data.find(b"\n", found)
            limit, ended = (len(data) if newline < 0 else newline + 1), True
    # Each marker's occurrences by themselves: that is a few fast passes, where line by line would be many slow steps.
    lines: Dict[int, int] = {}
    for marker in (*markers, end_marker) if end_marker else markers:
        found = data.find(marker, 0, limit)
        while found >= 0:
            start = data.rfind(b"\n", 0, found) + 1
            newline = data.find(b"\n", found, limit)
            end = limit if newline < 0 else newline + 1
            lines[start] = end
            found = data.find(marker, end, limit)
    spans: List[List[int]] = []
    for start in sorted(lines):
        stop = min(lines[start], start + LINE_LIMIT)
        if spans and start - spans[-1][1] <= 256:
            spans[-1][1] = stop
        else:
            spans.append([start, stop])
    return [(base + start, data[start:stop]) for start, stop in spans], ended


def startup_section(
    fd: int, at: int, until: int, markers: Sequence[bytes], end_marker: bytes
) -> Iterator[Tuple[int, bytes]]:
    """Runs of start-up lines of a file between two offsets, the first of which is a line start; little at a time."""
    ended = False
    while at < until and not ended:
        block = os.pread(fd, min(1 << 20, until - at), at)
        if not block:
            return
        whole = block.rfind(b"\n") + 1
        if whole and at + len(block) < until:
            block = block[:whole]
        runs, ended = startup_runs(block, at, markers, end_marker)
        yield from runs
        at += len(block)


def start_of_last(fd: int, size: int, marker: bytes, budget_s: float = 0.1) -> int:
    """Offset of the last line with `marker`: where the newest start in a reused log begins.

    Searched backwards for a bounded time, then in the first blocks only; 0 when there is none.
    """
    if not marker:
        return 0
    until = time.monotonic() + budget_s
    step = 4_194_304
    end = size
    while end > 0:
        start = max(0, end - step)
        block = os.pread(fd, end - start + len(marker), start)
        found = block.rfind(marker)
        if found >= 0:
            newline = block.rfind(b"\n", 0, found)
            if newline >= 0:
                return start + newline + 1
            low = max(0, start - LINE_LIMIT)
            return low + os.pread(fd, start - low, low).rfind(b"\n") + 1
        end = start
        if time.monotonic() > until and end > step:
            end = step
            until += 1e9
    return 0


def check_of(fd: int, end: int) -> int:
    """CRC-32 of the up to 256 bytes before an offset: whether a file is still what it was there."""
    start = max(0, end - 256)
    return zlib.crc32(os.pread(fd, end - start, start))


def is_intact(fd: int, resume: Json) -> bool:
    """True when a file still holds what the laptop had read of it: it was not truncated, nor is it another one."""
    end, crc = resume.get("check") or (0, 0)
    return os.fstat(fd).st_size >= max(end, int(resume.get("offset") or 0)) and check_of(fd, end) == crc


def line_start(fd: int, offset: int, size: int) -> int:
    """First line start at or after `offset`; within a line of enormous length, a character start."""
    if offset <= 0:
        return 0
    block = os.pread(fd, min(1 << 20, size - offset + 1), offset - 1)
    newline = block.find(b"\n")
    if newline >= 0:
        return offset + newline
    skip = 1
    while skip < min(5, len(block)) and block[skip] & 0xC0 == 0x80:
        skip += 1
    return offset - 1 + skip


class Followed:
    """What a tail must know of the server whose log it follows."""

    def __init__(self, probe: Probe, engine: Engine, leader: Proc, key: str) -> None:
        self.probe = probe
        self.engine = engine
        self.leader = leader
        self.key = key
        self.resume: Optional[Json] = probe.resume.get(key)
        """Where the laptop was before the link broke; taken by the first tail."""
        self.started_at: Optional[float] = None
        self.ended = threading.Event()

    def log_changed(self, status: os.stat_result) -> None:
        """The tail went over to another file."""


class Tail:
    """What follows one server's log; a thread of its own."""

    def __init__(self, server: Followed, target: LogTarget, reason: str) -> None:
        self.server = server
        self.probe = server.probe
        self.target = target
        self.reason = reason
        self.caught_up = threading.Event()
        """Everything there was has been sent."""
        self.done = threading.Event()
        self._wake = threading.Event()
        self._stopped = False
        self._finish_at: Optional[float] = None

    def start(self) -> None:
        """Begin following."""
        self.probe.thread(self._run, "log")

    def stop(self) -> None:
        """End at once."""
        self._stopped = True
        self._wake.set()

    def finish(self, grace_s: float) -> None:
        """The server has ended: read what is still to come, then end."""
        self.caught_up.clear()
        self._finish_at = time.monotonic() + grace_s
        self._wake.set()

    def descriptor(self) -> int:
        """A new descriptor of the log for random access. Raises OSError."""
        raise OSError("this log cannot be searched: it is no file")

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self.caught_up.set()
            self.done.set()

    def _follow(self) -> None:
        raise NotImplementedError

    def _emit(self, event: Json) -> None:
        event["key"] = self.server.key
        self.probe.out.put(event)

    def _room(self) -> bool:
        return self.probe.out.wait_for_room(lambda: self._stopped)

    def _sleep(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            self._wake.clear()

    @property
    def stopped(self) -> bool:
        """True when it was told to end before it had read everything."""
        return self._stopped

    @property
    def _over(self) -> bool:
        return self._stopped or (self._finish_at is not None and time.monotonic() >= self._finish_at)


class NoTail(Tail):
    """A server without a readable log: says so once."""

    def _follow(self) -> None:
        target = self.target
        self._emit({"t": "log_open", "reason": "unreadable", "kind": "none", "path": target.path, "note": target.note})


class FileTail(Tail):
    """Follows a file by (device, inode, offset), through rotation, truncation and deletion."""

    def __init__(self, server: Followed, target: LogTarget, reason: str) -> None:
        super().__init__(server, target, reason)
        self._fd = -1
        self._lock = threading.Lock()
        self.device = 0
        self.inode = 0
        self.offset = 0
        self._window_start = 0.0
        self._window_sent = 0
        self._window_size = 0
        self._flooded = False

    def descriptor(self) -> int:
        """A new descriptor of the log for random access, also after its server has ended. Raises OSError."""
        with self._lock:
            if self._fd >= 0:
                return os.dup(self._fd)
        place = find_file(self.target.path or "", self.device, self.inode, self.server.leader.pid)
        if place is None:
            raise OSError("the log is no longer there")
        return os.open(place, os.O_RDONLY | os.O_CLOEXEC)

    # -- opening ------------------------------------------------------------------------------------------------

    def _open(self, paths: Sequence[str]) -> os.stat_result:
        error: OSError = FileNotFoundError(2, "no such file")
        for path in paths:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as e:
                if not isinstance(e, FileNotFoundError):
                    error = e
                continue
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                os.close(fd)
                continue
            with self._lock:
                old, self._fd = self._fd, fd
            if old >= 0:
                os.close(old)
            self.device, self.inode = status.st_dev, status.st_ino
            self._window_size = status.st_size
            return status
        raise error

    def _opened(self, reason: str, size: int, offset: int, path: Optional[str] = None) -> None:
        self.offset = offset
        self._emit(
            {
                "t": "log_open",
                "reason": reason,
                "kind": self.target.kind,
                "path": path or self.target.path,
                "device": self.device,
                "inode": self.inode,
                "size": size,
                "offset": offset,
                "note": self.target.note,
            }
        )

    def _begin(self) -> None:
        """Open for the first time: go on where the laptop was, or send the start-up section and the tail."""
        resume = self.server.resume
        if resume is not None and resume.get("inode") is not None:
            if not self._resume(resume):
                status = self._open(self.target.opens)
                self.lose(int(resume.get("offset") or 0))
                self._opened("rotated", status.st_size, 0)
            self.server.resume = None
            return
        status = self._open(self.target.opens)
        size = status.st_size
        if size <= self.probe.tail_bytes:
            self._opened(self.reason, size, 0)
            return
        at = line_start(self._fd, size - self.probe.tail_bytes, size)
        self._opened(self.reason, size, at)
        gap_from = self._head(at)
        if gap_from < at:
            self._emit({"t": "log_gap", "offset": gap_from, "end": at, "reason": "opened near its end"})

    def _head(self, limit: int) -> int:
        """Send the start-up section before `limit`; returns where it ended."""
        engine = self.server.engine
        if not engine.markers:
            return 0
        at = start_of_last(self._fd, os.fstat(self._fd).st_size, engine.markers[0])
        last = 0
        until = min(limit, at + self.probe.head_bytes)
        for offset, data in startup_section(self._fd, at, until, engine.markers, engine.end_marker):
            if not self._room():
                break
            last = offset + len(data)
            self._emit({"t": "log", "offset": offset, "end": last, "head": True, **bulk(data)})
        return last

    def _resume(self, resume: Json) -> bool:
        """Go on exactly where the laptop was. False when that file is gone."""
        device, inode, offset = resume.get("device"), resume["inode"], int(resume.get("offset") or 0)
        now = stat_of(self.target.watch) if self.target.watch else None
        if now is not None and now.st_ino == inode and device in (None, now.st_dev):
            status = self._open(self.target.opens)
            if is_intact(self._fd, resume):
                self._opened("resume", status.st_size, offset)
            else:
                self._opened("truncated", status.st_size, 0)
            return True
        path = resume.get("path") or self.target.path
        old = find_file(path, device, inode, self.server.leader.pid) if path else None
        if old is None:
            return False
        status = self._open([old])
        if not is_intact(self._fd, resume):
            return False
        self._opened("resume", status.st_size, offset, old)
        return True

    def lose(self, offset: int, end: int = 0) -> None:
        """Say that what followed an offset cannot be had; how much that was is not always known."""
        self._emit({"t": "log_gap", "offset": offset, "end": max(offset, end), "reason": "lost"})

    # -- following ----------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            if not self._until_open(self._begin):
                return
            checked = -1e9  # a file that was resumed may have been rotated meanwhile
            idle = 0
            while not self._stopped:
                before = self.offset
                if self._pump():
                    idle = 0
                    if 0 < self.offset - before < BLOCK // 4:
                        if self._finish_at is None:
                            self.caught_up.set()
                        self._sleep(until_beat(0.25))  # a writer that never rests would be sent a line at a time
                    continue
                now = time.monotonic()
                idle += 1
                if now - checked >= 1.0:
                    checked = now
                    if self._moved():
                        continue
                if not self.caught_up.is_set() and (idle >= 2 or self._finish_at is None):
                    self.caught_up.set()
                if self._over:
                    self._flush_torn()
                    return
                self._sleep(until_beat(0.25 if idle < 10 else 0.5))
        except OSError as e:
            self._unreadable(e)
        finally:
            with self._lock:
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd = -1

    def _until_open(self, attempt: Callable[[], Any]) -> bool:
        told = False
        while not self._over:
            try:
                attempt()
            except OSError as e:
                if not told:
                    self._unreadable(e)
                    told = True
                self.caught_up.set()
                self._sleep(1.0)
                continue
            if told:
                self.probe.problems.clear("log-denied", self.server.key)
                self.probe.problems.clear("log-vanished", self.server.key)
            return True
        return False

    def _unreadable(self, error: OSError) -> None:
        gone = isinstance(error, FileNotFoundError)
        note = "%s: %s" % (self.target.path, error.strerror or error)
        self.probe.problems.note("log-vanished" if gone else "log-denied", self.server.key, note)
        reason = "vanished" if gone else "unreadable"
        self._emit({"t": "log_open", "reason": reason, "kind": "file", "path": self.target.path, "note": note})

    def _pump(self) -> bool:
        """Send what is new, at most a block; False when there is nothing."""
        data = os.pread(self._fd, BLOCK, self.offset)
        data = data[: whole_utf8(data)]
        if not data:
            if os.fstat(self._fd).st_size < self.offset:
                if self._finish_at is not None:
                    self._stopped = True  # the dead truncate nothing: another server begins here
                    return True
                self._opened("truncated", os.fstat(self._fd).st_size, 0)
                return True
            return False
        if len(data) >= 4096 and not data.strip(b"\0") and self._skip_hole():
            return True
        if not self._within_limits(len(data)) or not self._room():
            return not self._stopped
        end = self.offset + len(data)
        self._emit({"t": "log", "offset": self.offset, "end": end, "crc": check_of(self._fd, end), **bulk(data)})
        self.offset = end
        return True

    def _skip_hole(self) -> bool:
        """Step over the hole that truncation leaves before a writer that does not append."""
        try:
            to = os.lseek(self._fd, self.offset, os.SEEK_DATA)
        except OSError:
            return False
        if to <= self.offset:
            return False
        self._emit({"t": "log_gap", "offset": self.offset, "end": to, "reason": "hole in the file"})
        self.offset = to
        return True

    def _within_limits(self, count: int) -> bool:
        """Keep to the bytes per second; a log that grows faster still is skipped to its end."""
        now = time.monotonic()
        limit = self.probe.max_log_bytes_s
        size = os.fstat(self._fd).st_size
        if now - self._window_start >= 1.0:
            if self._flooded and size - self._window_size < limit // 2 * max(1.0, now - self._window_start):
                self._flooded = False
                self.probe.problems.clear("tail-flood", self.server.key)
            self._window_start, self._window_sent, self._window_size = now, 0, size
        behind = size - self.offset
        grown = size - self._window_size
        full = self._window_sent + count > limit
        if behind > BACKLOG_LIMIT or (full and behind > limit and grown > limit):
            to = line_start(self._fd, size - self.probe.tail_bytes, size)
            if to <= self.offset:
                return True
            rate = "%d MB" % (grown // 1_000_000) if grown > limit else "%d MB behind" % (behind // 1_000_000)
            self._emit({"t": "log_gap", "offset": self.offset, "end": to, "reason": "too fast for the link"})
            self.probe.problems.note("tail-flood", self.server.key, "%s: %s within a second" % (self.target.path, rate))
            self.offset = to
            self._flooded = True
            self._window_start, self._window_sent, self._window_size = now, 0, size
            return False
        if full:
            self._sleep(max(0.0, self._window_start + 1.0 - now))
            return False
        self._window_sent += count
        return True

    def _moved(self) -> bool:
        """Follow the log to another file, once the old one is read to its end."""
        now = stat_of(self.target.watch)
        if now is None:
            if os.path.lexists(self.target.watch) and self._finish_at is None:
                self._vanished()
                return True
            # The process has ended and its descriptors with it: the path tells what came after.
            now = next((s for s in map(stat_of, self.target.opens[1:]) if s is not None), None)
        if now is None or not stat.S_ISREG(now.st_mode) or (now.st_dev, now.st_ino) == (self.device, self.inode):
            return False
        if os.fstat(self._fd).st_size > self.offset + 3:
            return False  # more than a character that never ended
        if self._finish_at is not None and (now.st_dev, now.st_ino) in self.probe.log_inodes():
            return False  # the next server writes there
        self._flush_torn()
        reason = "rotated" if os.fstat(self._fd).st_nlink else "replaced"
        try:
            status = self._open(self.target.opens)
        except OSError:
            return False
        self._opened(reason, status.st_size, 0)
        self.server.log_changed(status)
        return True

    def _vanished(self) -> None:
        self._flush_torn()
        note = "%s is gone; waiting for it to come back" % self.target.path
        self.probe.problems.note("log-vanished", self.server.key, note)
        self._emit(
            {"t": "log_open", "reason": "vanished", "path": self.target.path, "offset": self.offset, "note": note}
        )
        while not self._over:
            self.caught_up.set()
            try:
                status = self._open(self.target.opens)
            except OSError:
                self._sleep(0.25)
                continue
            self.probe.problems.clear("log-vanished", self.server.key)
            self._opened("replaced", status.st_size, 0)
            self.server.log_changed(status)
            return

    def _flush_torn(self) -> None:
        """At the end of a file a character that never ended is sent as it is."""
        data = os.pread(self._fd, 8, self.offset)
        if data:
            self._emit({"t": "log", "offset": self.offset, "end": self.offset + len(data), **bulk(data)})
            self.offset += len(data)


def find_file(path: str, device: Optional[int], inode: int, pid: int) -> Optional[str]:
    """A file by its device and inode, at a path or beside it (rotated), readable from here."""

    def is_it(status: Optional[os.stat_result]) -> bool:
        return status is not None and status.st_ino == inode and device in (None, status.st_dev)

    for way in [path, *below_root(pid, path)]:
        if is_it(stat_of(way)):
            return way
        folder = os.path.dirname(way)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.inode() == inode and entry.is_file() and is_it(entry.stat()):
                        return entry.path
        except OSError:
            continue
    return None


class JournalTail(Tail):
    """Follows a unit or container in systemd's journal. Offsets count the bytes of its lines since the server began."""

    def _follow(self) -> None:
        resume = self.server.resume or {}
        self.server.resume = None
        cursor = resume.get("cursor")
        offset = int(resume.get("offset") or 0) if cursor else 0
        base = ["journalctl", "--quiet", "--no-pager", "--output=json", *self.target.match]
        reason = "resume" if cursor else self.reason
        self._emit({"t": "log_open", "reason": reason, "kind": "journal", "path": self.target.path, "offset": offset})
        if cursor is None:
            cursor, offset = self._backlog(base)
        while not self._over:
            follow = [*base, "--follow", "--lines=all"]
            if cursor:
                follow.append("--after-cursor=" + cursor)
            elif self.server.started_at is not None:
                follow.append("--since=@%d" % int(self.server.started_at - 1))  # nothing was there yet
            if self.probe.once:
                self.caught_up.set()
                return
            cursor, offset = self._stream(follow, cursor, offset)
            self.caught_up.set()
            self._sleep(1.0)

    def _entries(self, argv: Sequence[str], idle: Callable[[], None]) -> Iterator[Tuple[str, bytes]]:
        """Cursor and text of each entry of a running journalctl; `idle` is called when there is none for a moment."""
        import select

        child = self.probe.children.start(argv)
        fd = child.stdout.fileno()
        rest = b""
        skipping = False
        try:
            while not self._over:
                ready, _, _ = select.select([fd], [], [], 0.25)
                if not ready:
                    idle()
                    continue
                block = os.read(fd, 65_536)
                if not block:
                    return
                *lines, rest = (rest + block).split(b"\n")
                if skipping and lines:
                    del lines[0]
                    skipping = False
                if len(rest) > READ_LIMIT:
                    rest, skipping = b"", True
                    text = "journalctl: an entry of more than %d MiB is left out" % (READ_LIMIT >> 20)
                    self.probe.problems.note("log-denied", self.server.key, text)
                for line in lines:
                    try:
                        entry = json.loads(line.decode("utf-8", "replace"))
                        message = entry.get("MESSAGE") or ""
                    except (ValueError, AttributeError):
                        text = line.decode("utf-8", "replace")[:300]
                        self.probe.problems.note("log-denied", self.server.key, "journalctl: " + text)
                        continue
                    data = bytes(message) if isinstance(message, list) else str(message).encode("utf-8", "replace")
                    yield entry.get("__CURSOR", ""), data + b"\n"
        finally:
            self.probe.children.end(child)
            child.stdout.close()

    def _backlog(self, base: Sequence[str]) -> Tuple[Optional[str], int]:
        """Send what the journal already holds: all of it, or the start-up section and the last lines.

        Returns:
            Cursor and offset to go on from.
        """
        since = self.server.started_at
        first = [*base, "--since=@%d" % int(since - 1)] if since is not None else [*base, "--lines=2000"]
        cursor: Optional[str] = None
        kept: List[bytes] = []
        end = 0
        whole = True
        try:
            for entry in self._entries(first, lambda: None):
                cursor = entry[0]
                kept.append(entry[1])
                end += len(entry[1])
                if end >= self.probe.head_bytes:
                    whole = False
                    break
            text = b"".join(kept)
            if whole and end <= self.probe.tail_bytes:
                self._send(text, 0, cursor)
                return cursor, end
            runs, _ = startup_runs(text, 0, self.server.engine.markers, self.server.engine.end_marker)
            if not whole:
                # How much lies between is unknown: journalctl can only count lines from the end.
                kept.clear()
                for entry in self._entries([*base, "--lines=2000"], lambda: None):
                    cursor = entry[0]
                    kept.append(entry[1])
                text = b"".join(kept)
                end += len(text)
            text = text[-self.probe.tail_bytes :]
            text = text[text.find(b"\n") + 1 :]
            start = end - len(text)
            last = 0
            for at, data in runs:
                if at + len(data) <= start and self._room():
                    last = at + len(data)
                    self._emit({"t": "log", "offset": at, "end": last, "head": True, **bulk(data)})
            self._emit({"t": "log_gap", "offset": last, "end": start, "reason": "opened near its end"})
            self._send(text, start, cursor)
        except OSError as e:
            self.probe.problems.note("log-denied", self.server.key, "journalctl: %s" % e)
        return cursor, end

    def _stream(self, argv: Sequence[str], cursor: Optional[str], offset: int) -> Tuple[Optional[str], int]:
        waiting: List[bytes] = []
        state: Json = {"cursor": cursor, "offset": offset, "since": 0.0}

        def send() -> None:
            if waiting:
                data = b"".join(waiting)
                waiting.clear()
                self._send(data, state["offset"], state["cursor"])
                state["offset"] += len(data)
            self.caught_up.set()

        try:
            for state["cursor"], data in self._entries(argv, send):
                if not waiting:
                    state["since"] = time.monotonic()
                waiting.append(data)
                # One that writes steadily leaves no moment without an entry.
                if len(waiting) >= 50 or sum(map(len, waiting)) > 32_768 or time.monotonic() - state["since"] > 0.25:
                    send()
        except OSError as e:
            self.probe.problems.note("log-denied", self.server.key, "journalctl: %s" % e)
        send()
        return state["cursor"], state["offset"]

    def _send(self, data: bytes, offset: int, cursor: Optional[str]) -> None:
        if self._room():
            self._emit({"t": "log", "offset": offset, "end": offset + len(data), "cursor": cursor, **bulk(data)})


def looks_like_log(name: str, current: str) -> bool:
    """True for names that older logs of the same server may have."""
    plain = re.sub(r"[.-]\d[\d_-]*$", "", name)  # server.log.1, server.log-20260101
    extension = os.path.splitext(plain)[1]
    return extension in (".log", ".out", ".txt") or (bool(extension) and extension == os.path.splitext(current)[1])


def send_old_logs(server: Server, tail: FileTail) -> None:
    """Send the start-up sections of older logs beside the current one; the last thing anyone waits for."""
    probe = server.probe
    engine = server.engine
    path = tail.target.path
    folders = [os.path.dirname(way) for way in below_root(server.leader.pid, path or "")] if path else []
    current = probe.log_inodes()
    found: List[Tuple[float, int, str]] = []
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, 4096):
                    if looks_like_log(entry.name, os.path.basename(path or "")) and entry.is_file():
                        status = entry.stat()
                        if status.st_size and (status.st_dev, status.st_ino) not in current:
                            found.append((status.st_mtime, status.st_size, entry.path))
        except OSError:
            continue
        break
    for modified, size, old in sorted(found, reverse=True)[: probe.old_logs]:
        if server.ended.wait(0.05):
            return
        try:
            fd = os.open(old, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        lines = b""
        try:
            at = start_of_last(fd, size, engine.markers[0], 0.1)
            until = min(size, at + probe.head_bytes)
            for _, run in startup_section(fd, at, until, engine.markers, engine.end_marker):
                lines += run if run.endswith(b"\n") else run + b"\n"
        finally:
            os.close(fd)
        lines = lines[:OLD_LOG_LIMIT]
        if lines and probe.out.wait_for_room(server.ended.is_set):
            event = {
                "t": "old_log",
                "key": server.key,
                "path": os.path.join(os.path.dirname(path or ""), os.path.basename(old)),
            }
            probe.out.put({**event, "modified_at": modified, "size": size, **bulk(lines[: whole_utf8(lines)])})


# ---------------------------------------------------------------------------------------------------------------
# Logs: searching and scrolling back
# ---------------------------------------------------------------------------------------------------------------


class SearchTimeout(Exception):
    """A regular expression did not come to an end."""


class Searches:
    """Searches in logs on the host, newest lines first. They run in the main thread, where a signal can end them."""

    STEP = 2_097_152
    PATIENCE_S = 1.0

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._jobs: queue.Queue[Json] = queue.Queue()
        self._cancelled: Set[int] = set()
        self._armed = False

    def submit(self, job: Json) -> None:
        """Queue a search. Raises ValueError and TypeError for one without a number."""
        self._jobs.put({**job, "id": int(job.get("id", 0))})

    def cancel(self, ident: int) -> None:
        """Forget a search, running or waiting."""
        self._cancelled.add(ident)

    def run(self) -> None:
        """Serve searches for ever."""

        def alarm(*_: Any) -> None:
            if self._armed:
                raise SearchTimeout

        signal.signal(signal.SIGALRM, alarm)
        while True:
            try:
                # A signal that comes just before a wait without end would go unnoticed.
                job = self._jobs.get(timeout=1.0)
            except queue.Empty:
                self._probe.check_link()  # here too: the conductor may be stuck on a dead disk
                continue
            ident = job["id"]
            if ident in self._cancelled:
                self._cancelled.discard(ident)
                self._answer(ident, [], 0, done=True)
                continue
            try:
                self._search(ident, job)
            except SearchTimeout:
                self._answer(ident, [], 0, done=True, error="this expression takes too long; make it simpler")
            except Exception as e:  # an expression can fail in any way, and this is the main thread
                self._answer(ident, [], 0, done=True, error=str(e) or type(e).__name__)
            finally:
                self._arm(False)
                self._cancelled.discard(ident)

    def _arm(self, on: bool) -> None:
        self._armed = on
        signal.setitimer(signal.ITIMER_REAL, self.PATIENCE_S if on else 0)

    def _answer(
        self, ident: int, hits: List[Any], scanned: int, done: bool = False, error: Optional[str] = None
    ) -> None:
        self._probe.out.wait_for_room(lambda: ident in self._cancelled)
        event: Json = {"t": "found", "id": ident, "hits": hits, "scanned_bytes": scanned, "done": done}
        if error is not None:
            event["error"] = error
        self._probe.out.put(event)

    def _search(self, ident: int, job: Json) -> None:
        fd = self._probe.log_descriptor(str(job.get("key", "")))
        try:
            self._scan(ident, job, fd)
        finally:
            os.close(fd)

    def _scan(self, ident: int, job: Json, fd: int) -> None:
        pattern = str(job.get("pattern", "")).encode("utf-8", "replace")
        fold = bool(job.get("ignore_case", True))
        self._arm(True)
        rx = re.compile(pattern, re.M | (re.I if fold else 0)) if job.get("regex") else None
        self._arm(False)
        needle = pattern.lower() if fold else pattern
        if not pattern:
            raise ValueError("nothing to search for")
        limit = max(1, int(job.get("limit") or 500))
        size = os.fstat(fd).st_size
        before = job.get("before")
        end = size if before is None else max(0, min(int(before), size))
        total = end
        left = end
        rest = b""  # beginning of a line whose end lies in the block after this one
        hits: List[Any] = []
        sent = 0
        flushed = time.monotonic()
        while left > 0 and sent + len(hits) < limit and ident not in self._cancelled:
            start = max(0, left - self.STEP)
            block = os.pread(fd, left - start, start) + rest
            head = 0
            if start > 0:
                newline = block.find(b"\n")
                # A line longer than the block is searched in pieces.
                head = newline + 1 if 0 <= newline < self.STEP else 0
            rest = block[:head]
            room = limit - sent - len(hits)
            hits += self._hits(block, head, start, rx, needle, fold, room)
            left = start
            now = time.monotonic()
            if len(hits) >= 50 or (hits and now - flushed > 0.25) or now - flushed > 1.0:
                self._answer(ident, hits, total - left)
                sent += len(hits)
                hits = []
                flushed = now
        self._answer(ident, hits, total - left, done=True)

    def _hits(self, block: bytes, head: int, start: int, rx: Any, needle: bytes, fold: bool, room: int) -> List[Any]:
        out: List[Any] = []
        if rx is None:
            hay = block.lower() if fold else block
            end = len(block)
            while len(out) < room:
                at = hay.rfind(needle, head, end)
                if at < 0:
                    break
                end = max(hay.rfind(b"\n", head, at) + 1, head)
                stop = block.find(b"\n", at)
                out.append(self._hit(block, end, len(block) if stop < 0 else stop, at, start))
            return out
        end = len(block)
        self._arm(True)
        tried = 0
        while end > head and len(out) < room:
            stop = end - 1 if block[end - 1 : end] == b"\n" else end
            begin = max(block.rfind(b"\n", head, stop) + 1, head)
            found = rx.search(block, begin, min(stop, begin + LINE_LIMIT))
            if found:
                out.append(self._hit(block, begin, stop, found.start(), start))
            end = begin
            tried += 1
            if tried % 2000 == 0:
                self._arm(True)
        self._arm(False)
        return out

    @staticmethod
    def _hit(block: bytes, begin: int, stop: int, at: int, start: int) -> List[Any]:
        first = begin
        torn = begin == 0 and start > 0  # a piece of a line that is longer than a block
        if torn or at - begin >= HIT_LIMIT * 3 // 4:
            # It is shown from a word's beginning on: half a secret would not be recognised as one.
            low = max(begin, at - HIT_LIMIT // 4)
            space = re.search(rb"\s", block[low:at])
            before = max(block.rfind(b" ", begin, at), block.rfind(b"\t", begin, at))
            first = low + space.end() if space else before + 1 if before >= 0 else stop if torn else begin
        return [start + begin, block[first : min(stop, first + HIT_LIMIT)].decode("utf-8", "replace").rstrip("\r")]


def read_part(probe: Probe, job: Json) -> Json:
    """Answer of a `read`: bytes of a log by offset, cut at whole characters."""
    answer: Json = {"t": "read", "id": int(job.get("id", 0))}
    try:
        fd = probe.log_descriptor(str(job.get("key", "")))
        try:
            size = os.fstat(fd).st_size
            offset = max(0, min(int(job.get("offset") or 0), size))
            data = os.pread(fd, max(0, min(int(job.get("length") or 0), READ_LIMIT)), offset)
        finally:
            os.close(fd)
    except (OSError, ValueError, TypeError) as e:
        return {**answer, "error": str(e)}
    data = data[: whole_utf8(data) or len(data)]
    return {**answer, "offset": offset, "end": offset + len(data), "size": size, **bulk(data)}


# ---------------------------------------------------------------------------------------------------------------
# HTTP
# ---------------------------------------------------------------------------------------------------------------


class HttpProblem(Exception):
    """No usable answer; `code` is a problem code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class HttpClient:
    """A small HTTP/1.1 client with a deadline for the whole answer.

    The standard one would bring in ssl and email (a third of this probe's memory), and its time-out is per read.
    """

    def __init__(self) -> None:
        self._sock: Optional[socket.socket] = None
        self._peer: Tuple[str, int] = ("", 0)

    def close(self) -> None:
        """Close the kept connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def get(self, host: str, port: int, path: str, headers: Dict[str, str], timeout_s: float) -> Tuple[int, bytes]:
        """Status and body of a GET. Raises HttpProblem."""
        end = time.monotonic() + timeout_s
        if self._peer != (host, port):
            self.close()
            self._peer = (host, port)
        lines = ["GET %s HTTP/1.1" % path, "Host: %s:%d" % ("[%s]" % host if ":" in host else host, port)]
        lines += ["User-Agent: gputuner", "Accept: */*", "Connection: keep-alive"]
        lines += ["%s: %s" % item for item in headers.items()]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        while True:
            kept = self._sock is not None
            try:
                sock = self._sock
                if sock is None:
                    sock = self._sock = socket.create_connection((host, port), timeout_s)
                sock.settimeout(max(0.01, end - time.monotonic()))
                sock.sendall(request)
                return self._answer(sock, end, kept)
            except (EOFError, ConnectionResetError, BrokenPipeError):
                self.close()
                if kept:
                    continue  # the server had closed the kept connection; ask again on a new one
                raise HttpProblem("http-nonsense", "closed the connection without an answer") from None
            except socket.timeout:
                self.close()
                raise HttpProblem("http-timeout", "no answer within %g s" % timeout_s) from None
            except ConnectionRefusedError:
                self.close()
                raise HttpProblem("http-refused", "connection refused") from None
            except OSError as e:
                self.close()
                raise HttpProblem("http-refused", e.strerror or str(e)) from None
            except HttpProblem:
                self.close()
                raise

    def _answer(self, sock: socket.socket, end: float, kept: bool) -> Tuple[int, bytes]:
        data = bytearray()

        def more() -> bool:
            left = end - time.monotonic()
            if left <= 0:
                raise socket.timeout
            sock.settimeout(left)
            block = sock.recv(131_072)
            data.extend(block)
            if len(data) > BODY_LIMIT:
                raise HttpProblem("http-nonsense", "an answer of more than %d MiB" % (BODY_LIMIT >> 20))
            return bool(block)

        while b"\r\n\r\n" not in data:
            if not more():
                if data:
                    raise HttpProblem("http-nonsense", "not HTTP: %r" % bytes(data[:40]))
                raise EOFError
            if not b"HTTP/".startswith(bytes(data[:5])):
                raise HttpProblem("http-nonsense", "not HTTP: %r" % bytes(data[:40]))
        head, _, rest = bytes(data).partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        if not found:
            raise HttpProblem("http-nonsense", "not HTTP: %r" % head[:40])
        status = int(found.group(1))
        fields = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip()
        data = bytearray(rest)
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            body = self._chunks(data, more)
        elif fields.get(b"content-length", b"").isdigit():
            length = int(fields[b"content-length"])
            while len(data) < length:
                if not more():
                    raise HttpProblem("http-nonsense", "the answer was cut off")
            body = bytes(data[:length])
        elif status in (204, 304) or status < 200:
            body = b""
        else:
            while more():
                pass
            fields[b"connection"] = b"close"
            body = bytes(data)
        if b"close" in fields.get(b"connection", b"").lower() or head.startswith(b"HTTP/1.0"):
            self.close()
        return status, body

    @staticmethod
    def _chunks(data: bytearray, more: Callable[[], bool]) -> bytes:
        body = bytearray()
        at = 0
        while True:
            newline = data.find(b"\r\n", at)
            while newline < 0:
                if not more():
                    raise HttpProblem("http-nonsense", "the answer was cut off")
                newline = data.find(b"\r\n", at)
            length = re.match(rb" *([0-9a-fA-F]{1,8})\s*(?:;|$)", bytes(data[at:newline]))
            if not length:
                raise HttpProblem("http-nonsense", "a broken chunked answer")
            size = int(length.group(1), 16)
            if size > BODY_LIMIT:
                raise HttpProblem("http-nonsense", "an answer of more than %d MiB" % (BODY_LIMIT >> 20))
            while len(data) < newline + 4 + size:
                if not more():
                    raise HttpProblem("http-nonsense", "the answer was cut off")
            if size == 0:
                return bytes(body)
            body += data[newline + 2 : newline + 2 + size]
            at = newline + 4 + size


class SeriesFilter:
    """Picks the wanted series out of Prometheus text, and of those the ones that changed.

    An answer has a thousand lines, a screen needs forty, and from one answer to the next the lines stay where they
    are: where the wanted ones were found is remembered, and only when they moved all names are looked at again.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._wanted = {name.encode() for name in names}
        self._count = -1
        self._places: List[Tuple[int, bytes]] = []
        self._values: Dict[bytes, bytes] = {}

    def changed(self, body: bytes) -> Optional[Dict[str, Optional[float]]]:
        """Series that differ from the last answer's, as printed; None for what is no Prometheus text.

        A series that was told and has no value any more, or is gone, is None: the laptop forgets it.
        """
        lines = body.split(b"\n")
        known = self._places and len(lines) == self._count
        moved = not known or not all(lines[at].startswith(head) for at, head in self._places)
        if moved and not self._look(lines) and body.strip():
            return None
        out: Dict[str, Optional[float]] = {}
        for at, head in self._places:
            value = lines[at][len(head) :].split(b" ", 1)[0].rstrip()  # a time stamp may follow
            if self._values.get(head) == value:
                continue
            try:
                number: Optional[float] = finite(value.decode("ascii", "replace"))  # JSON cannot say NaN and infinity
            except ValueError:
                number = None
            if number is not None:
                self._values[head] = value
            elif self._values.pop(head, None) is None:
                continue  # never told
            out[head[:-1].decode("utf-8", "replace")] = number
        if moved:
            for head in self._values.keys() - {head for _, head in self._places}:
                del self._values[head]
                out[head[:-1].decode("utf-8", "replace")] = None
        return out

    def _look(self, lines: Sequence[bytes]) -> bool:
        self._count = len(lines)
        self._places = []
        plausible = False
        for at, line in enumerate(lines):
            if line[:1] == b"#":
                plausible = True
                continue
            brace = line.find(b"{")
            name = line[:brace] if brace > 0 else line.split(b" ", 1)[0]
            if name in self._wanted:
                end = line.rfind(b"} ") + 2 if brace > 0 else len(name) + 1
                if end > 1:
                    self._places.append((at, line[:end]))
        return plausible or bool(self._places)


def finite(text: str) -> Optional[float]:
    """A number of JSON text; None for one beyond all measure, which JSON itself cannot say again."""
    number = float(text)
    return number if number - number == 0.0 else None


class Poller:
    """Asks one endpoint of one server; a thread of its own, so that a slow endpoint delays no other."""

    FAULT_S = 30.0
    """Until the next attempt after a fault of ours."""

    def __init__(self, server: Server, plan: Json) -> None:
        self.server = server
        self.probe = server.probe
        self.id: str = plan["id"]
        self._paths: List[str] = list(plan["paths"])
        self._every_s = float(plan.get("every_s", 1.0))
        self._timeout_s = float(plan.get("timeout_s", 2.0))
        self._parse: str = plan.get("parse", "json")
        self._series = SeriesFilter(plan.get("series", ()))
        self._numbers: Dict[str, int] = {}
        self._drop = set(plan.get("drop", ()))
        self._unless: Optional[str] = plan.get("unless")
        self._auth = bool(plan.get("auth", False))
        self._quiet = bool(plan.get("quiet", False))
        self._client = HttpClient()
        self._winner: Optional[str] = None
        self._body: Optional[bytes] = None
        self._failures = 0
        self._entered = False
        self.good_until = 0.0
        """While this has not passed, the endpoint counts as answering 200."""
        self.asked = threading.Event()
        """Asked once, or found that there is nothing to ask."""

    def run(self) -> None:
        """Ask until the server has ended."""
        delay = 0.0
        while not self.server.ended.wait(delay):
            try:
                delay = self._turn()
            except Exception as e:
                self.probe.fault("endpoint " + self.id, e)
                self._client.close()
                delay = self.FAULT_S
            self.asked.set()
            if self.probe.once:
                break
        self._client.close()
        self.asked.set()

    def _turn(self) -> float:
        """Ask if it is time to; returns seconds until the next turn."""
        server = self.server
        if not server.listening:
            self._client.close()
            return 0.5
        other = server.pollers.get(self._unless) if self._unless else None
        if other is not None:
            if self.probe.once:
                other.asked.wait(3.0)
            elif not other.asked.is_set():
                return 0.05
            left = other.good_until - time.monotonic()
            if left > 0:
                return left
        if self.probe.out.congested:
            return 0.25
        if self._every_s > 4.0:
            self._client.close()  # servers close idle connections after a few seconds
        began = time.monotonic()
        event: Json = {"t": "http", "key": server.key, "endpoint": self.id}
        try:
            status, body = self._ask()
            event["latency_s"] = round(time.monotonic() - began, 4)
            event["status"] = status
            self._read(status, body, event)
        except HttpProblem as e:
            event["error"] = str(e)
            server.look_at_ports_soon()
            self._failed(e.code, str(e))
            self.probe.out.put(event)
            # What does not speak HTTP will not learn it soon.
            return max(self._every_s, 5.0) if e.code == "http-nonsense" else self._every_s
        self.probe.out.put(event)
        if status == 200:
            self.good_until = time.monotonic() + 2 * self._every_s + self._timeout_s
            self._recovered()
            return until_beat(self._every_s)
        self.good_until = 0.0
        if status in (401, 403):
            if not self._quiet:
                text = "%s needs an API key, and none was found in the server's command line or environment"
                if self._auth and server.api_key:
                    text = "%s refuses the API key in the server's command line or environment"
                self.probe.problems.note("http-auth", server.key, text % self._paths[0], self.id)
            return max(self._every_s, 10.0)
        return self._every_s

    def _ask(self) -> Tuple[int, bytes]:
        self._enter()
        headers = {"Authorization": "Bearer " + self.server.api_key} if self._auth and self.server.api_key else {}
        host, port = self.server.address
        paths = [self._winner] if self._winner else self._paths
        best: Optional[Tuple[int, bytes]] = None
        for path in paths:
            status, body = self._client.get(host, port, path, headers, self._timeout_s)
            if status != 404 and status < 500:
                if status < 400:
                    self._winner = path
                return status, body
            if best is None or best[0] == 404:
                best = (status, body)
        self._winner = None
        return best or (404, b"")

    def _enter(self) -> None:
        """Join the server's network namespace: a container's loopback is not the host's."""
        if self._entered:
            return
        if HOST_ROOT or same_network(self.server.leader.pid):
            self._entered = True
            return
        import ctypes

        path = "%s/%d/ns/net" % (PROC, self.server.leader.pid)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise HttpProblem("http-refused", "the server's network namespace: %s" % e.strerror) from None
        try:
            # Namespaces belong to threads, and this thread asks this server only.
            if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) != 0:
                text = os.strerror(ctypes.get_errno())
                raise HttpProblem("http-refused", "the server's network namespace: %s" % text)
        finally:
            os.close(fd)
        self._entered = True  # only now: what listens on that port elsewhere must not be asked, nor get the key

    def _read(self, status: int, body: bytes, event: Json) -> None:
        if status != 200 or self._parse == "status":
            return
        if self._parse == "prometheus":
            series = self._series.changed(body)
            if series is None:
                raise HttpProblem("http-nonsense", "no metrics: %r" % body[:40])
            # Names are long and seldom change: the second time a number stands for each.
            again = [[self._numbers[name], value] for name, value in series.items() if name in self._numbers]
            event["series"] = {name: value for name, value in series.items() if name not in self._numbers}
            for name in event["series"]:
                self._numbers[name] = len(self._numbers)
            if again:
                event["again"] = again
            return
        try:
            text = body.decode("utf-8", "replace")
            value = json.loads(text, parse_constant=lambda _: None, parse_float=finite)
            if self._drop and isinstance(value, dict):
                value = {name: part for name, part in value.items() if name not in self._drop}
            packed = json.dumps(value, sort_keys=True).encode()
        except (ValueError, RecursionError):
            raise HttpProblem("http-nonsense", "no JSON: %r" % body[:40]) from None
        if packed != self._body:
            self._body = packed
            event["body"] = value

    def _failed(self, code: str, text: str) -> None:
        self.good_until = 0.0
        self._failures += 1
        # A server that has just begun to listen, and one that is about to end, may miss a beat.
        if self._quiet or (code != "http-nonsense" and (self._failures < 3 or self.server.age_s < 60.0)):
            return
        host, port = self.server.address
        detail = "%s:%d%s: %s" % (host, port, self._winner or self._paths[0], text)
        self.probe.problems.note(code, self.server.key, detail, self.id)

    def _recovered(self) -> None:
        if self._failures or not self._quiet:
            for code in ("http-refused", "http-nonsense", "http-timeout", "http-auth"):
                self.probe.problems.clear(code, self.server.key, self.id)
        self._failures = 0


# ---------------------------------------------------------------------------------------------------------------
# GPUs
# ---------------------------------------------------------------------------------------------------------------

SAMPLE_FIELDS = (
    "index",
    "memory_used_bytes",
    "utilization_ratio",
    "memory_utilization_ratio",
    "power_w",
    "temperature_c",
    "memory_temperature_c",
    "sm_mhz",
    "memory_mhz",
    "throttle_mask",
    "pcie_rx_bytes_s",
    "pcie_tx_bytes_s",
    "nvlink_rx_bytes_s",
    "nvlink_tx_bytes_s",
    "pcie_gen",
    "pcie_width",
    "ecc_uncorrected",
    "error",
)
"""A sample travels as an array in this order."""

_NVML_NEVER = frozenset((2, 3, 4, 13, 25, 26))
"""Answers that will not change: not supported, no permission, function not found and their like."""
_NVML_LOST = frozenset((15, 16, 28))
_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_NVLINK_TX, _FIELD_NVLINK_RX = 138, 139
_FIELD_PCIE_TX, _FIELD_PCIE_RX = 197, 198
_TRAFFIC = (_FIELD_PCIE_RX, _FIELD_PCIE_TX, _FIELD_NVLINK_RX, _FIELD_NVLINK_TX)
_NO_TRAFFIC: List[Optional[int]] = [None] * len(_TRAFFIC)
_ALL_LINKS = 0xFFFFFFFF
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class GpuError(Exception):
    """One GPU cannot be read; the others may."""

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


class NoGpus(Exception):
    """There is nothing to read GPUs with; `code` is a problem code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def words(value: Any) -> str:
    """Text of NVML, which old bindings hand out as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def numa_node_of(bus_id: str) -> Optional[int]:
    """NUMA node of a PCI device."""
    found = re.match(r"(?:0000)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])", bus_id)
    text = text_of("%s/bus/pci/devices/%s/numa_node" % (SYS, found.group(1).lower())) if found else None
    try:
        node = int(text or "")
    except ValueError:
        return None
    return node if node >= 0 else None


class NvmlGpus:
    """GPUs through a pynvml module, whichever version it is."""

    def __init__(self, module: Any, source: str) -> None:
        self.source = source
        self._n = module
        self._handles: List[Any] = []
        self._failed: Dict[int, str] = {}
        self._never: Set[Tuple[int, str]] = set()
        self._counters: Dict[Tuple[int, int], Tuple[float, int]] = {}
        self._fields: Dict[Tuple[int, Tuple[int, ...]], List[Any]] = {}
        self._traffic: Dict[int, Tuple[float, List[Optional[int]]]] = {}
        self._turn = 0
        self._seldom: Dict[int, Tuple[float, List[Optional[int]]]] = {}
        self._graphics: Dict[Tuple[int, int], Optional[int]] = {}
        try:
            module.nvmlInit()
        except Exception as e:
            code = getattr(e, "value", None)
            if code in (9, 12):
                raise NoGpus("no-gpu", "no NVIDIA driver is loaded (%s)" % e) from None
            if code == 18:
                text = "the driver was updated while loaded; reboot the host or reload the driver (%s)" % e
                raise NoGpus("nvml-error", text) from None
            raise NoGpus("nvml-error", "NVML does not start: %s" % e) from None
        for index in range(module.nvmlDeviceGetCount()):
            try:
                self._handles.append(module.nvmlDeviceGetHandleByIndex(index))
            except Exception as e:
                self._handles.append(None)
                self._failed[index] = str(e)
        if not self._handles:
            raise NoGpus("no-gpu", "the NVIDIA driver is loaded but sees no GPU")

    def _ask(self, gpu: int, name: str, *args: Any) -> Any:
        """Result of an NVML function for a GPU; None where it has none. Raises GpuError for a lost GPU."""
        if (gpu, name) in self._never:
            return None
        function = getattr(self._n, name, None)
        if function is None:
            self._never.add((gpu, name))
            return None
        try:
            return function(self._handles[gpu], *args)
        except self._n.NVMLError as e:
            code = getattr(e, "value", None)
            if code in _NVML_NEVER:
                self._never.add((gpu, name))
            elif code in _NVML_LOST:
                raise GpuError(str(e), True) from None
            return None
        except (AttributeError, TypeError, ValueError):
            self._never.add((gpu, name))  # a binding older or newer than any this was written for
            return None

    def _memory(self, gpu: int) -> Any:
        v2 = getattr(self._n, "nvmlMemory_v2", None)
        if v2 is not None and (gpu, "v2") not in self._never:
            try:
                # Version 2 leaves the driver's reserve out of "used", as nvidia-smi does.
                return self._n.nvmlDeviceGetMemoryInfo(self._handles[gpu], version=v2)
            except (self._n.NVMLError, TypeError, AttributeError) as e:
                if getattr(e, "value", None) in _NVML_LOST:
                    raise GpuError(str(e), True) from None
                self._never.add((gpu, "v2"))
        try:
            return self._n.nvmlDeviceGetMemoryInfo(self._handles[gpu])
        except self._n.NVMLError as e:
            code = getattr(e, "value", None)
            if code in _NVML_NEVER:
                return None
            raise GpuError(str(e), code in _NVML_LOST or code == 999) from None

    def table(self) -> Json:
        """What does not change: the `gpu_info` line."""
        n = self._n
        event: Json = {"t": "gpu_info", "source": self.source, "gpus": []}
        try:
            event["driver"] = words(n.nvmlSystemGetDriverVersion())
            cuda = int(n.nvmlSystemGetCudaDriverVersion())
            event["cuda"] = "%d.%d" % (cuda // 1000, cuda % 1000 // 10)
        except (n.NVMLError, AttributeError):
            pass
        for gpu in range(len(self._handles)):
            try:
                event["gpus"].append(self._info(gpu))
            except GpuError as e:
                self._failed[gpu] = str(e)
                event["gpus"].append({"index": gpu, "uuid": "", "name": "unreadable GPU"})
        event["topology"] = self._topology(event["gpus"])
        if self._failed:
            event["reason"] = "; ".join("GPU %d: %s" % item for item in sorted(self._failed.items()))
        return event

    def _info(self, gpu: int) -> Json:
        if self._handles[gpu] is None:
            raise GpuError(self._failed[gpu], True)
        memory = self._memory(gpu)
        pci = self._ask(gpu, "nvmlDeviceGetPciInfo")
        bus_id = words(pci.busId) if pci is not None else None
        capability = self._ask(gpu, "nvmlDeviceGetCudaComputeCapability")
        mig = self._ask(gpu, "nvmlDeviceGetMigMode")
        return {
            "index": gpu,
            "uuid": words(self._ask(gpu, "nvmlDeviceGetUUID") or ""),
            "name": words(self._ask(gpu, "nvmlDeviceGetName") or "NVIDIA GPU"),
            "memory_total_bytes": int(memory.total) if memory is not None else None,
            "bus_id": bus_id,
            "power_limit_w": self._power_limit(gpu),
            "pcie_gen_max": self._ask(gpu, "nvmlDeviceGetMaxPcieLinkGeneration"),
            "pcie_width_max": self._ask(gpu, "nvmlDeviceGetMaxPcieLinkWidth"),
            "nvlink_count": self._links(gpu),
            "numa_node": numa_node_of(bus_id) if bus_id else None,
            "compute_capability": "%d.%d" % tuple(capability) if capability else None,
            "mig": bool(mig and mig[0] == 1),
        }

    def _links(self, gpu: int) -> Optional[int]:
        if not hasattr(self._n, "nvmlDeviceGetNvLinkState"):
            return None
        count = 0
        for link in range(36):
            try:
                count += int(self._n.nvmlDeviceGetNvLinkState(self._handles[gpu], link)) == 1
            except self._n.NVMLError as e:
                code = getattr(e, "value", None)
                if code in _NVML_LOST:
                    raise GpuError(str(e), True) from None
                if code not in (2, 3):  # beyond the last link, or a GPU without any
                    return count or None
                break
        return count

    def _topology(self, gpus: List[Json]) -> Optional[List[List[str]]]:
        count = len(self._handles)
        if count < 2 or not hasattr(self._n, "nvmlDeviceGetTopologyCommonAncestor"):
            return None
        matrix = [["X" if i == j else "?" for j in range(count)] for i in range(count)]
        for i in range(count):
            for j in range(i + 1, count):
                matrix[i][j] = matrix[j][i] = self._path(i, j, gpus)
        return matrix

    def _path(self, i: int, j: int, gpus: List[Json]) -> str:
        if self._handles[i] is None or self._handles[j] is None:
            return "?"
        links = gpus[i].get("nvlink_count")
        try:
            if links and self._ask(i, "nvmlDeviceGetP2PStatus", self._handles[j], 2) == 0:
                return "NV%d" % (self._direct_links(i, gpus[j].get("bus_id"), links) or links)
            return _ANCESTORS.get(self._ask(i, "nvmlDeviceGetTopologyCommonAncestor", self._handles[j]), "?")
        except GpuError:
            return "?"

    def _direct_links(self, gpu: int, bus_id: Optional[str], links: int) -> int:
        """Links that end at that very GPU; none of them do where a switch is between."""
        count = 0
        for link in range(36):
            try:
                pci = self._n.nvmlDeviceGetNvLinkRemotePciInfo(self._handles[gpu], link)
            except (self._n.NVMLError, AttributeError):
                if link >= links:
                    break
                continue
            count += words(pci.busId).lower() == (bus_id or "").lower()
        return count

    def samples(self) -> Tuple[List[List[Any]], Dict[int, GpuError]]:
        """One reading of every GPU, and those that could not be read."""
        out: List[List[Any]] = []
        errors: Dict[int, GpuError] = {}
        for gpu in range(len(self._handles)):
            try:
                if self._handles[gpu] is None:
                    raise GpuError(self._failed[gpu], True)
                out.append(self._sample(gpu))
            except GpuError as e:
                errors[gpu] = e
                out.append([gpu] + [None] * (len(SAMPLE_FIELDS) - 2) + [str(e)])
        return out, errors

    def _sample(self, gpu: int) -> List[Any]:
        ask = self._ask
        memory = self._memory(gpu)
        rates = ask(gpu, "nvmlDeviceGetUtilizationRates")
        power = ask(gpu, "nvmlDeviceGetPowerUsage")
        throttle = ask(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
        if throttle is None:
            throttle = ask(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
        warm = self._field_values(gpu, (_FIELD_MEMORY_TEMPERATURE,))
        now = time.monotonic()
        at, traffic = self._traffic.get(gpu, (0.0, _NO_TRAFFIC))
        if now - at > 10.0 + 2 * len(self._handles):
            traffic = _NO_TRAFFIC
        return [
            gpu,
            int(memory.used) if memory is not None else None,
            rates.gpu / 100.0 if rates is not None else None,
            rates.memory / 100.0 if rates is not None else None,
            round(power / 1000.0, 1) if power is not None else None,
            ask(gpu, "nvmlDeviceGetTemperature", 0),
            warm.get(_FIELD_MEMORY_TEMPERATURE) or None,
            ask(gpu, "nvmlDeviceGetClockInfo", 1),
            ask(gpu, "nvmlDeviceGetClockInfo", 2),
            throttle,
            *traffic,
            *self._seldom_changing(gpu, now),
            None,
        ]

    def _seldom_changing(self, gpu: int, now: float) -> List[Optional[int]]:
        """PCIe generation and width, and ECC errors: slower than most, and rarely anything but the same numbers."""
        at, values = self._seldom.get(gpu, (-1e9, []))
        if now - at >= 5.0:
            values = [
                self._ask(gpu, "nvmlDeviceGetCurrPcieLinkGeneration"),
                self._ask(gpu, "nvmlDeviceGetCurrPcieLinkWidth"),
                self._ask(gpu, "nvmlDeviceGetTotalEccErrors", 1, 0),
            ]
            self._seldom[gpu] = (now, values)
        return values

    def _field_values(self, gpu: int, fields: Tuple[int, ...]) -> Dict[int, int]:
        """Values that only the field interface has, in one call; fields a GPU does not know are not asked again."""
        wanted = self._fields.get((gpu, fields))
        if wanted is None:
            links = (_FIELD_NVLINK_TX, _FIELD_NVLINK_RX)
            wanted = self._fields[gpu, fields] = [(field, _ALL_LINKS if field in links else 0) for field in fields]
        values = self._ask(gpu, "nvmlDeviceGetFieldValues", wanted) if wanted else None
        out: Dict[int, int] = {}
        if values is None:
            return out
        known = []
        for asked, value in zip(wanted, values):  # noqa: B905 - Python 3.8 has no strict
            if value.nvmlReturn == 0:
                part = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[value.valueType]
                out[asked[0]] = int(getattr(value.value, part))
            if value.nvmlReturn not in _NVML_NEVER:
                known.append(asked)
        self._fields[gpu, fields] = known
        return out

    def _rate(self, gpu: int, field: int, fields: Dict[int, int], now: float) -> Optional[int]:
        """Bytes per second from a counter; None at first, and when it wrapped."""
        value = fields.get(field)
        if value is None:
            return None
        before = self._counters.get((gpu, field))
        self._counters[gpu, field] = (now, value)
        if before is None or value < before[1] or now <= before[0]:
            return None
        unit = 1024 if field in (_FIELD_NVLINK_RX, _FIELD_NVLINK_TX) else 1
        return int((value - before[1]) * unit / (now - before[0]))

    def traffic(self) -> None:
        """Read the traffic of one GPU, the next one at each call.

        It costs more than all else together: 0.3 ms for the PCIe counters of one, 1.5 ms for its NVLinks, and where
        there are no counters 20 ms per direction, for which the driver watches the bus.
        """
        gpu = self._turn = (self._turn + 1) % len(self._handles)
        if self._handles[gpu] is None:
            return
        try:
            fields = self._field_values(gpu, _TRAFFIC)
            now = time.monotonic()
            rates = [self._rate(gpu, field, fields, now) for field in _TRAFFIC]
            if _FIELD_PCIE_RX not in fields:
                slow = [self._ask(gpu, "nvmlDeviceGetPcieThroughput", direction) for direction in (1, 0)]
                rates[:2] = [value * 1000 if value is not None else None for value in slow]
        except GpuError:
            return
        self._traffic[gpu] = (time.monotonic(), rates)

    def processes(self, graphics: bool) -> List[List[Any]]:
        """Memory by GPU and process: [gpu, pid, bytes or None]."""
        if graphics:  # milliseconds on some drivers, and rarely anything on a server: seldom
            self._graphics = self._users("nvmlDeviceGetGraphicsRunningProcesses")
        users = {**self._graphics, **self._users("nvmlDeviceGetComputeRunningProcesses")}
        return [[gpu, pid, used] for (gpu, pid), used in sorted(users.items())]

    def _users(self, name: str) -> Dict[Tuple[int, int], Optional[int]]:
        out: Dict[Tuple[int, int], Optional[int]] = {}
        for gpu, handle in enumerate(self._handles):
            try:
                found = self._ask(gpu, name) if handle is not None else None
            except GpuError:
                continue
            for process in found or ():
                out[gpu, int(process.pid)] = process.usedGpuMemory
        return out

    def power_limits(self) -> List[Optional[float]]:
        """Power limits in watts, by GPU."""
        return [self._power_limit(gpu) if handle is not None else None for gpu, handle in enumerate(self._handles)]

    def _power_limit(self, gpu: int) -> Optional[float]:
        try:
            limit = self._ask(gpu, "nvmlDeviceGetEnforcedPowerLimit")
        except GpuError:
            return None
        return limit / 1000.0 if limit is not None else None

    def persistence(self) -> Optional[bool]:
        """Whether the driver stays loaded without a client, on every GPU."""
        try:
            modes = [self._ask(gpu, "nvmlDeviceGetPersistenceMode") for gpu in range(len(self._handles))]
        except GpuError:
            return None
        known = [mode for mode in modes if mode is not None]
        return all(known) if known else None

    def close(self) -> None:
        """Let go of NVML; it may be initialised anew."""
        with contextlib.suppress(Exception):
            self._n.nvmlShutdown()


class SmiGpus:
    """GPUs through nvidia-smi, where no binding can be had. Coarser, and each call costs the host something."""

    EVERY_S = 2.0
    _FIELDS = (
        "index",
        "uuid",
        "name",
        "pci.bus_id",
        "memory.total",
        "memory.used",
        "utilization.gpu",
        "utilization.memory",
        "power.draw",
        "power.limit",
        "temperature.gpu",
        "temperature.memory",
        "clocks.sm",
        "clocks.mem",
        "clocks_throttle_reasons.active",
        "pcie.link.gen.current",
        "pcie.link.width.current",
        "pcie.link.gen.max",
        "pcie.link.width.max",
        "ecc.errors.uncorrected.volatile.total",
        "driver_version",
        "compute_cap",
        "mig.mode.current",
        "persistence_mode",
    )

    def __init__(self, children: Children, program: str) -> None:
        self.source = "nvidia-smi"
        self._children = children
        self._program = program
        self._names = list(self._FIELDS)
        self._by_uuid: Dict[str, int] = {}
        self._persistence: Optional[bool] = None
        self._rows = self._query()
        if not self._rows:
            raise NoGpus("no-gpu", "nvidia-smi sees no GPU")

    def _csv(self, query: str) -> List[List[str]]:
        try:
            status, text = self._children.output([self._program, query, "--format=csv,noheader,nounits"], 10.0)
        except TimeoutError as e:
            raise NoGpus("nvml-hang", str(e)) from None
        except OSError as e:
            raise NoGpus("nvml-error", "nvidia-smi: %s" % e) from None
        if status != 0:
            raise NoGpus("nvml-error", "nvidia-smi: " + " ".join(text.split())[:300])
        return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]

    def _query(self) -> List[Dict[str, str]]:
        while True:
            try:
                rows = self._csv("--query-gpu=" + ",".join(self._names))
            except NoGpus as e:
                unknown = re.search(r'[Ff]ield "([\w.]+)" is not a valid', str(e))
                if unknown and unknown.group(1) in self._names:
                    self._names.remove(unknown.group(1))  # a driver that does not know it yet
                    continue
                raise
            rows = [row for row in rows if len(row) == len(self._names) and row[0].isdigit()]
            return [dict(zip(self._names, row)) for row in rows]  # noqa: B905 - Python 3.8 has no strict

    @staticmethod
    def _number(row: Dict[str, str], name: str, scale: float = 1.0) -> Optional[float]:
        try:
            return float(row[name]) * scale
        except (KeyError, ValueError):
            return None  # [N/A], [Not Supported], [Unknown Error], and the names of newer drivers

    def _integer(self, row: Dict[str, str], name: str, scale: int = 1) -> Optional[int]:
        value = self._number(row, name)
        return int(value * scale) if value is not None else None

    def table(self) -> Json:
        """What does not change: the `gpu_info` line."""
        gpus = []
        for row in self._rows:
            index = int(row["index"])
            self._by_uuid[row.get("uuid", "")] = index
            bus_id = row.get("pci.bus_id") or None
            capability = row.get("compute_cap", "")
            gpus.append(
                {
                    "index": index,
                    "uuid": row.get("uuid", ""),
                    "name": row.get("name", "NVIDIA GPU"),
                    "memory_total_bytes": self._integer(row, "memory.total", 1 << 20),
                    "bus_id": bus_id,
                    "power_limit_w": self._number(row, "power.limit"),
                    "pcie_gen_max": self._integer(row, "pcie.link.gen.max"),
                    "pcie_width_max": self._integer(row, "pcie.link.width.max"),
                    "numa_node": numa_node_of(bus_id) if bus_id else None,
                    "compute_capability": capability if re.match(r"\d+\.\d+$", capability) else None,
                    "mig": row.get("mig.mode.current") == "Enabled",
                }
            )
        modes = [row.get("persistence_mode") for row in self._rows]
        self._persistence = all(mode == "Enabled" for mode in modes) if all(modes) else None
        reason = "no NVML binding; nvidia-smi is asked every 2 s and tells no PCIe and NVLink traffic"
        event: Json = {"t": "gpu_info", "source": self.source, "gpus": gpus, "reason": reason}
        event["driver"] = self._rows[0].get("driver_version")
        event["topology"] = self._topology(len(gpus))
        return event

    def _topology(self, count: int) -> Optional[List[List[str]]]:
        if count < 2:
            return None
        try:
            _, text = self._children.output([self._program, "topo", "-m"], 10.0)
        except OSError:
            return None
        rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
        matrix = [row[1 : count + 1] for row in rows]
        return matrix if len(matrix) == count and all(len(row) == count for row in matrix) else None

    def samples(self) -> Tuple[List[List[Any]], Dict[int, GpuError]]:
        """One reading of every GPU, and those that could not be read."""
        self._rows = self._query()
        out: List[List[Any]] = []
        errors: Dict[int, GpuError] = {}
        for row in self._rows:
            index = int(row["index"])
            used = row.get("memory.used", "")
            if re.search(r"lost|unknown error", used, re.I):
                errors[index] = GpuError(used.strip("[]"), True)
                out.append([index] + [None] * (len(SAMPLE_FIELDS) - 2) + [used.strip("[]")])
                continue
            mask = row.get("clocks_throttle_reasons.active", "")
            sample = dict.fromkeys(SAMPLE_FIELDS)
            sample.update(
                index=index,
                memory_used_bytes=self._integer(row, "memory.used", 1 << 20),
                utilization_ratio=self._number(row, "utilization.gpu", 0.01),
                memory_utilization_ratio=self._number(row, "utilization.memory", 0.01),
                power_w=self._number(row, "power.draw"),
                temperature_c=self._integer(row, "temperature.gpu"),
                memory_temperature_c=self._integer(row, "temperature.memory"),
                sm_mhz=self._integer(row, "clocks.sm"),
                memory_mhz=self._integer(row, "clocks.mem"),
                throttle_mask=int(mask, 16) if re.match(r"0x[0-9a-fA-F]+$", mask) else None,
                pcie_gen=self._integer(row, "pcie.link.gen.current"),
                pcie_width=self._integer(row, "pcie.link.width.current"),
                ecc_uncorrected=self._integer(row, "ecc.errors.uncorrected.volatile.total"),
            )
            out.append([sample[name] for name in SAMPLE_FIELDS])
        return out, errors

    def traffic(self) -> None:
        """nvidia-smi tells none in its tables."""

    def processes(self, graphics: bool) -> List[List[Any]]:
        """Memory by GPU and process: [gpu, pid, bytes or None]."""
        out = []
        for row in self._csv("--query-compute-apps=gpu_uuid,pid,used_memory"):
            if len(row) == 3 and row[0] in self._by_uuid and row[1].isdigit():
                used = int(row[2]) << 20 if row[2].isdigit() else None
                out.append([self._by_uuid[row[0]], int(row[1]), used])
        return out

    def power_limits(self) -> List[Optional[float]]:
        """Power limits in watts, by GPU."""
        return [self._number(row, "power.limit") for row in self._rows]

    def persistence(self) -> Optional[bool]:
        """Whether the driver stays loaded without a client, on every GPU."""
        return self._persistence

    def close(self) -> None:
        """Nothing is held."""


def trusted(path: str) -> bool:
    """True for a file that may be run as us: root's or our own, and nobody else can write it."""
    status = stat_of(path)
    if status is None or status.st_uid not in (0, ME):
        return False
    return not status.st_mode & (0o022 if ME == 0 else 0o002)


def load_module(path: Optional[str], source: Optional[bytes]) -> Any:
    """The pynvml module from a file or from its source, without leaving a trace on disk."""
    import types
    from importlib.util import cache_from_source, module_from_spec, spec_from_file_location

    sys.modules.pop("pynvml", None)
    if path is not None and os.path.exists(cache_from_source(path)):
        spec = spec_from_file_location("pynvml", path)
        if spec is None or spec.loader is None:
            raise ImportError(path)
        module = module_from_spec(spec)
        sys.modules["pynvml"] = module  # the binding looks itself up while it is loaded
        spec.loader.exec_module(module)
        return module
    module = types.ModuleType("pynvml")
    sys.modules["pynvml"] = module
    if path is not None:
        module.__file__ = path
        source = slurp(path, 1 << 24)
    run_in_parts((source or b"").decode("utf-8", "replace"), path or "pynvml", module.__dict__)
    return module


def run_in_parts(source: str, name: str, namespace: Json) -> None:
    """Execute a long source a part at a time: the parser takes a hundred bytes for each of its, and keeps most."""
    heads = re.compile(r"^(?=@|def |class )", re.M)
    start = end = line = 0
    while start < len(source):
        found = heads.search(source, end + 16_384)
        end = found.start() if found else len(source)
        try:
            code = compile("\n" * line + source[start:end], name, "exec")
        except SyntaxError:
            if found is None:
                raise
            continue  # cut within a string, or below a decorator
        exec(code, namespace)  # noqa: S102
        line += source.count("\n", start, end)
        start = end


def own_package_folders() -> List[str]:
    """Package folders of the interpreter the probe runs on; it was started without looking into them."""
    version = "python%d.%d" % sys.version_info[:2]
    here = os.path.dirname(os.path.dirname(sys.executable or ""))
    out = []
    for prefix in dict.fromkeys((here, sys.prefix, "/usr/local", "/usr", os.path.expanduser("~/.local"))):
        out += ["%s/lib/%s/%s" % (prefix, version, kind) for kind in ("site-packages", "dist-packages")]
    out.append("/usr/lib/python3/dist-packages")
    return [folder for folder in dict.fromkeys(out) if os.path.isdir(folder)]


def binding_in(folder: str) -> Optional[str]:
    """The pynvml module in a package folder."""
    for name in ("pynvml.py", "pynvml/nvml.py"):
        path = folder + "/" + name
        if os.path.isfile(path):
            return path
    return None


class GpuReader:
    """Reads the GPUs in threads of their own: a driver that hangs must stall nothing else."""

    LIMITS_EVERY_S = 60.0

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.first = threading.Event()
        """The first reading was sent, or there is nothing to read."""
        self.gpus: Any = None
        self.table: Json = {}
        self.source_given: Optional[bytes] = None
        self.given = threading.Event()
        self.processes_due = threading.Event()
        self.told = threading.Event()
        """Who holds GPU memory was told."""
        self.users: Set[int] = set()
        """Processes that hold GPU memory."""
        self._busy_since = 0.0
        self._hung = False
        self._described: Set[int] = set()
        self._procs_at = -1e9
        self._graphics_at = -1e9
        self._limits_at = time.monotonic()

    def look_again(self, timeout_s: float) -> None:
        """Tell once more who holds GPU memory, where GPUs are read."""
        if self.gpus is not None:
            self.told.clear()
            self.processes_due.set()
            self.told.wait(timeout_s)

    # -- finding a way --------------------------------------------------------------------------------------------

    def _candidates(self) -> Iterator[str]:
        seen: Set[str] = set()
        for server in self.probe.live_servers():
            if same_mounts(server.leader.pid):
                for folder in server.site_folders:
                    path = binding_in(folder)
                    if path and path not in seen and trusted(path):
                        seen.add(path)
                        yield path
        for folder in own_package_folders():
            path = binding_in(folder)
            if path and path not in seen:
                yield path

    def _nvml(self, module: Any, source: str) -> NvmlGpus:
        with self._driver_asked():
            return NvmlGpus(module, source)

    def _way(self) -> Any:
        """The best way to read GPUs. Raises NoGpus."""
        trouble: Optional[NoGpus] = None
        for path in self._candidates():
            try:
                return self._nvml(load_module(path, None), "pynvml " + re.sub(r"^%s/\d+/root" % PROC, "", path))
            except NoGpus as e:
                trouble = e
                break  # the binding works and the driver does not: another binding would say the same
            except Exception as e:
                self.probe.log("binding %s: %s" % (path, e))
        if trouble is None and driver_hints():
            source = self.source_given
            if source is None:
                self.probe.out.put({"t": "need", "what": "nvml"})
                self.given.wait(5.0)
                source = self.source_given
            if source is not None:
                try:
                    return self._nvml(load_module(None, source), "sent")
                except NoGpus as e:
                    trouble = e
                except Exception as e:
                    self.probe.log("sent binding: %s" % e)
        smi = which("nvidia-smi")
        if smi is not None:
            with self._driver_asked():
                return SmiGpus(self.probe.children, smi)
        if trouble is not None:
            raise trouble
        if driver_hints():
            raise NoGpus("nvml-missing", "there is a driver, but neither an NVML binding nor nvidia-smi")
        raise NoGpus("no-gpu", "no NVIDIA driver was found on this host")

    # -- reading --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read until the probe ends."""
        while True:
            try:
                self.gpus = self._way()
                with self._driver_asked():
                    self.table = self.gpus.table()
                self.probe.out.put(self.table)
                give_memory_back()
                for code in ("no-gpu", "nvml-error", "nvml-missing"):
                    self.probe.problems.clear(code)
                if isinstance(self.gpus, NvmlGpus) and not self.probe.once:
                    self.probe.thread(self._traffic, "traffic")
                self._loop()
            except NoGpus as e:
                self._nothing(e)
            except Exception as e:
                self._nothing(NoGpus("nvml-error", "%s: %s" % (type(e).__name__, e)))
            self.first.set()
            if self.gpus is not None:
                self.gpus.close()
                self.gpus = None
            if self.probe.pause(15.0):
                return

    def _nothing(self, trouble: NoGpus) -> None:
        self.probe.problems.note(trouble.code, "", str(trouble))
        table: Json = {"t": "gpu_info", "source": None, "gpus": [], "reason": str(trouble)}
        if table != {name: value for name, value in self.table.items() if name != "mono"}:
            self.table = table
            self.probe.out.put(dict(table))

    @contextlib.contextmanager
    def _driver_asked(self) -> Iterator[None]:
        """Around what the driver may not answer; `watch` looks how long it takes."""
        self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = 0.0

    def watch(self) -> None:
        """Called by the conductor: tell when the driver hangs, and when it is back."""
        since = self._busy_since
        hung = since > 0 and time.monotonic() - since > HANG_S
        if hung and not self._hung:
            self.probe.problems.note("nvml-hang", "", "the GPU driver has not answered for %g s" % HANG_S)
        if self._hung and not hung:
            self.probe.problems.clear("nvml-hang")
        self._hung = hung

    def _loop(self) -> None:
        gpus = self.gpus
        known_bad: Set[int] = set()
        while True:
            with self._driver_asked():
                samples, errors = gpus.samples()
            self.probe.out.put_sample({"t": "gpus", "samples": samples})
            for gpu in known_bad - set(errors):
                self.probe.problems.clear("gpu-lost", "GPU %d" % gpu)
                self.probe.problems.clear("nvml-error", "GPU %d" % gpu)
            for gpu, error in errors.items():
                self.probe.problems.note("gpu-lost" if error.lost else "nvml-error", "GPU %d" % gpu, str(error))
            known_bad = set(errors)
            if errors and len(errors) == len(samples) and not any(e.lost for e in errors.values()):
                raise NoGpus("nvml-error", str(next(iter(errors.values()))))  # the driver went away: start anew
            sampled = time.monotonic()
            if sampled - self._procs_at >= 4.5:
                self._processes(sampled)
            if sampled - self._limits_at >= self.LIMITS_EVERY_S:
                self._limits_at = sampled
                self._look_at_limits()
            self.first.set()
            slowest = SmiGpus.EVERY_S if isinstance(gpus, SmiGpus) else 0.1
            due = time.monotonic() + until_beat(max(self.probe.interval_s, slowest))
            while not self.probe.ending:
                now = time.monotonic()
                left = due - now
                if self.processes_due.is_set() and now - self._procs_at >= 0.5:
                    self.processes_due.clear()
                    self._processes(now)
                    due = min(due, now + until_beat(max(self.probe.interval_s, slowest)))  # it may have changed
                elif left <= 0.001:
                    break
                elif self.processes_due.is_set():
                    self.probe.pause(min(left, 0.1))
                else:
                    self.processes_due.wait(left)
            if self.probe.ending:
                return

    def _look_at_limits(self) -> None:
        """Operators set power limits while servers run: tell the table anew when one changed."""
        with self._driver_asked():
            limits = self.gpus.power_limits()
        gpus = [
            {**gpu, "power_limit_w": limit} if limit is not None else gpu
            for gpu, limit in zip(self.table["gpus"], limits)  # noqa: B905 - Python 3.8 has no strict
        ]
        if gpus != self.table["gpus"]:
            self.table = {**self.table, "gpus": gpus}
            self.probe.out.put(dict(self.table))

    def _processes(self, now: float) -> None:
        self._procs_at = now
        graphics = now - self._graphics_at > 60.0
        if graphics:
            self._graphics_at = now
        with self._driver_asked():
            processes = self.gpus.processes(graphics)
        pids = self.users = {pid for _, pid, _ in processes}
        self._described &= pids
        boot = boot_time()
        infos = [describe_process(pid, boot) for pid in sorted(pids - self._described)]
        if self.probe.out.congested and not infos:
            return
        self._described |= pids
        self.probe.out.put({"t": "gpu_procs", "processes": processes, "infos": infos})
        self.told.set()

    def _traffic(self) -> None:
        gpus = self.gpus
        # Counters tell a rate when they were read twice: all GPUs soon, then one a second.
        hurry = 2 * len(self.table["gpus"])
        while gpus is self.gpus and not self.probe.pause(0.1 if hurry > 0 else until_beat(1.0)):
            gpus.traffic()
            hurry -= 1


def give_memory_back() -> None:
    """Return to the host what the driver needed for a moment while it was loaded: megabytes."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # a C library that cannot
        ctypes.CDLL(None).malloc_trim(0)


def driver_hints() -> bool:
    """True where an NVIDIA driver seems to be, whatever can be done with it."""
    if os.path.exists(PROC + "/driver/nvidia/version") or (not HOST_ROOT and os.path.exists("/dev/nvidiactl")):
        return True
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------
# The host around the GPUs
# ---------------------------------------------------------------------------------------------------------------


class KernelLog:
    """XID errors of the GPU driver, where the kernel log may be read."""

    REMEMBERED = 20
    _XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._boot = boot_time()
        # A simulated host must not be told the real kernel's troubles.
        path = HOST_ROOT + "/dev/kmsg"
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self.readable = self._fd >= 0
        self._rest = b""
        self._polled = False

    def poll(self) -> None:
        """Send what is new; the first time, the last ones that the kernel still remembers."""
        found = [line for line in self._lines() if b"NVRM: Xid" in line]
        for line in found if self._polled else found[-self.REMEMBERED :]:
            self._send(line.decode("utf-8", "replace"))
        self._polled = True

    def _lines(self) -> Iterator[bytes]:
        for _ in range(20_000 if self.readable else 0):
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                self.readable = False
                return
            if not record:
                return
            *lines, self._rest = (self._rest + record).split(b"\n")
            yield from lines

    def _send(self, line: str) -> None:
        head, _, text = line.partition(";")
        found = self._XID.search(text)
        if not found:
            return
        parts = head.split(",")
        event: Json = {"t": "xid", "bus_id": found.group(1), "xid": int(found.group(2)), "text": text[:500]}
        if self._boot is not None and len(parts) > 2 and parts[2].isdigit():
            event["at"] = round(self._boot + int(parts[2]) / 1e6, 3)
        self._out.put(event)


class HostReader:
    """Processor, memory and disks, every few seconds. Its own thread: a disk may not answer."""

    EVERY_S = 5.0

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.first = threading.Event()
        self._busy: Optional[Tuple[int, int]] = None

    def run(self) -> None:
        """Read until the probe ends."""
        kernel = KernelLog(self.probe.out)
        next_at = 0.0
        self._cpu()
        if self.probe.pause(0.1):
            return
        while True:
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + self.EVERY_S - 0.5  # the beat at which it is due, however early it comes
                self.probe.out.put_sample(self.sample())
                self.first.set()
            kernel.poll()
            if self.probe.pause(until_beat(1.0 if kernel.readable else self.EVERY_S)):
                return

    def _cpu(self) -> Optional[float]:
        """Share of all processors that was busy since the last call."""
        found = re.match(r"cpu +([\d ]+)", text_of(PROC + "/stat") or "")
        if not found:
            return None
        numbers = [int(n) for n in found.group(1).split()[:8]]
        total, idle = sum(numbers), sum(numbers[3:5])
        before, self._busy = self._busy, (total, idle)
        if before is None or total <= before[0]:
            return None
        return round(1.0 - (idle - before[1]) / (total - before[0]), 4)

    def sample(self) -> Json:
        """The `host` line."""
        event: Json = {"t": "host", "cpu_ratio": self._cpu()}
        with contextlib.suppress(IndexError, ValueError):
            event["load_1m"] = float((text_of(PROC + "/loadavg") or "").split()[0])
        return {**event, **self.memory(), "disks": self.disks()}

    @staticmethod
    def memory() -> Json:
        """Memory, and shared memory, of the `host` line."""
        event: Json = {}
        for name, key in (("MemTotal", "memory_total_bytes"), ("MemAvailable", "memory_available_bytes")):
            found = re.search(r"^%s:\s+(\d+) kB" % name, text_of(PROC + "/meminfo") or "", re.M)
            if found:
                event[key] = int(found.group(1)) * 1024
        try:
            shm = os.statvfs("/dev/shm")  # noqa: S108
            event["shm_total_bytes"], event["shm_free_bytes"] = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
        except OSError:
            pass
        return event

    def disks(self) -> Dict[str, List[int]]:
        """Total and free bytes of the folders that matter to the servers."""
        out: Dict[str, List[int]] = {}
        full: Dict[str, str] = {}
        for path in dict.fromkeys(["/", *self.probe.folders()]):
            try:
                disk = os.statvfs(path)
            except OSError:
                continue
            total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
            out[path] = [total, free]
            if total and free < min(100_000_000, total // 100):
                full[path] = "%s has %d MB left: logs and caches will fail" % (path, free // 1_000_000)
        for path in out:
            if path in full:
                self.probe.problems.note("disk-full", path, full[path])
            else:
                self.probe.problems.clear("disk-full", path)
        return out


def pythons_on_path() -> List[str]:
    """Python interpreters on PATH by name, newest first."""
    names = ["python3"] + ["python3.%d" % minor for minor in range(20, 7, -1)]
    return [path for path in map(which, names) if path]


def installed_engines(engines: Sequence[Engine], home: str) -> List[Json]:
    """Engines installed in the usual places for virtual environments."""
    import glob

    patterns = ["%s/*/", "%s/.venv/", "%s/*/.venv/", "%s/*/venv/", "%s/miniconda3/envs/*/", "%s/anaconda3/envs/*/"]
    prefixes = ["/usr/local/", "/opt/venv/", "/venv/", *glob.glob("/opt/*/"), *glob.glob("/opt/conda/envs/*/")]
    for pattern in patterns:
        prefixes += glob.glob(pattern % home)
    out = []
    for prefix in dict.fromkeys(p.rstrip("/") for p in prefixes[:200]):
        folders = package_folders(prefix)
        for engine in engines:
            version = package_version(folders, engine.package) if folders and engine.package else None
            if version:
                out.append({"engine": engine.name, "version": version, "prefix": prefix, "running": False})
    return out


def checks(probe: Probe, limit_s: float = 10.0) -> Json:
    """What `doctor` asks: facts by id, each with `ok` (None: nothing to judge), `value` and `detail`.

    A disk or a driver that does not answer costs only the facts that come from it.
    """
    out: Json = {}
    ends = []
    for ids, look in _CHECKS:
        ends.append(end := threading.Event())
        for ident in ids:
            out[ident] = {"ok": False, "value": None, "detail": "no answer within %g s" % limit_s}

        def work(look: Callable[..., Iterator[Tuple[Any, ...]]] = look, end: threading.Event = end) -> None:
            try:
                for ident, ok, value, *detail in look(probe):
                    out[ident] = {"ok": ok, "value": value, "detail": detail[0] if detail else None}
            finally:
                end.set()

        probe.thread(work, "checks")
    until = time.monotonic() + limit_s
    for end in ends:
        end.wait(max(0.0, until - time.monotonic()))
    return dict(out)


def _check_system(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    import resource

    yield "python", True, "%d.%d.%d" % sys.version_info[:3], sys.executable
    yield "kernel", None, os.uname().release
    hint = None if ME == 0 else "other users' environments, descriptors and logs are hidden"
    yield "user", ME == 0, user_name(ME), hint
    hidden = hidepid()
    yield "proc", not hidden, "hidepid" if hidden else "readable", hidden
    yield "kernel_log", os.access("/dev/kmsg", os.R_OK), None
    yield "time", None, time.time(), time.strftime("%z %Z")
    limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in ("NOFILE", "MEMLOCK", "NPROC")}
    enough = limits["NOFILE"][1] == -1 or limits["NOFILE"][1] >= 65_536
    yield "limits", enough, {name: list(limit) for name, limit in limits.items()}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = round(usage.ru_utime + usage.ru_stime, 3)
    yield "probe", None, {"cpu_s": seconds, "peak_bytes": usage.ru_maxrss * 1024}


def _check_programs(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    yield "pythons", None, pythons_on_path()
    yield "journal", None, which("journalctl")
    servers = probe.live_servers()
    folders = own_package_folders() + [folder for server in servers for folder in server.site_folders]
    psutils = [folder for folder in folders if os.path.isdir(folder + "/psutil")]
    yield "psutil", bool(psutils), psutils[0] if psutils else None
    found = [
        {"engine": s.engine.name, "version": s.version, "prefix": s.interpreter, "running": True} for s in servers
    ] + installed_engines(probe.engines, os.path.expanduser("~"))
    yield "engines", bool(found), found


def _check_logs(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    servers = probe.live_servers()
    logs = {server.key: server.target.as_json() for server in servers}
    yield "logs", all(server.target.kind != "none" for server in servers) if servers else None, logs


def _check_gpus(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    table = probe.gpu.table
    yield "nvml", bool(table.get("source")), table.get("source"), table.get("reason")
    yield "driver", bool(table.get("driver")), table.get("driver"), table.get("cuda")
    yield "topology", None, table.get("topology")
    gpus = probe.gpu.gpus
    yield "persistence", gpus.persistence() if gpus is not None else None, None


def _check_host(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    memory = probe.host.memory()
    yield "memory", None, [memory.get("memory_total_bytes"), memory.get("memory_available_bytes")]
    shm = memory.get("shm_total_bytes")
    yield "shm", shm is not None and shm >= 1 << 30, [shm, memory.get("shm_free_bytes")]
    disks = probe.host.disks()
    yield "disk", all(free > 1 << 30 for _, free in disks.values()), disks


_CHECKS: Tuple[Tuple[Tuple[str, ...], Callable[[Probe], Iterator[Tuple[Any, ...]]]], ...] = (
    (("python", "kernel", "user", "proc", "kernel_log", "time", "limits", "probe"), _check_system),
    (("pythons", "journal", "psutil", "engines"), _check_programs),
    (("logs",), _check_logs),
    (("nvml", "driver", "topology", "persistence"), _check_gpus),
    (("memory", "shm", "disk"), _check_host),
)
"""What is looked at together, as one may have to wait for the other; by ids, in the order of the answer."""


def hidepid() -> Optional[str]:
    """Why other users' processes are invisible, or None."""
    for line in (text_of(PROC + "/self/mounts") or text_of(PROC + "/mounts") or "").splitlines():
        parts = line.split()
        if (
            len(parts) > 3
            and parts[1] == "/proc"
            and re.search(r"hidepid=(?:[12]|noaccess|invisible|ptraceable)", parts[3])
        ):
            return "/proc is mounted with hidepid: processes of other users are hidden; connect as root"
    return None


# ---------------------------------------------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------------------------------------------


class Server(Followed):
    """One inference server and all that is done about it."""

    NEWS_EVERY_S = 2.0
    """Ports, and helpers without a title, come and go while a server starts; they are not worth a line each."""
    HELPER_S = 5.0
    """A child that lives so long is more than a compiler's run."""

    def __init__(self, probe: Probe, engine: Engine, leader: Proc, orphaned: bool) -> None:
        super().__init__(probe, engine, leader, "%d:%d" % (leader.pid, leader.ticks))
        self.orphaned = orphaned
        self.dying_at: Optional[float] = None
        self.pollers: Dict[str, Poller] = {}
        self.listening = False
        self.address = ("127.0.0.1", 0)
        self.argv = leader.argv
        boot = boot_time()
        self.started_at = round(boot + leader.ticks / HZ, 2) if boot is not None else None
        self._seen_at = time.monotonic()
        pid = leader.pid
        self.uid = owner_of(pid)
        env = environ_of(pid)
        self.env: Dict[str, str] = env or {}
        self.env_readable = env is not None
        self.cwd = link_of("%s/%d/cwd" % (PROC, pid))
        self.interpreter = interpreter_of(pid, self.argv, self.env, self.cwd)
        self.site_folders = site_folders(pid, self.interpreter, self.env)
        self.version = package_version(self.site_folders, engine.package) if engine.package else None
        self.manager = manager_of(pid, self.env, list(probe.table.ancestors(pid)))
        key = flag_value(self.argv, engine.api_key_flags)
        self.api_key = key or next((self.env[name] for name in engine.api_key_env if self.env.get(name)), None)
        flag = flag_value(self.argv, engine.port_flags)
        self._port_given = flag is not None and flag.isdigit()
        self.port = int(flag) if flag is not None and flag.isdigit() else engine.default_port
        self.ports: List[int] = []
        self._owners: Dict[int, int] = {}
        self._ports_due = 0.0
        self.members: Dict[int, Json] = {}
        self._states: List[Any] = []
        self._sent: Any = None
        self._sent_at = 0.0
        self.target = find_log(pid, probe.table.procs, engine.markers)
        self.tail: Optional[Tail] = None
        self._target_due = time.monotonic() + 5.0
        if not self.env_readable:
            text = "%s may not read environment and log of %s's process %d; connect as root or as that user"
            probe.problems.note("proc-denied", self.key, text % (user_name(ME), user_name(self.uid), pid))

    @property
    def age_s(self) -> float:
        """Seconds since the server started; since it was seen where that is unknown."""
        if self.started_at is None:
            return time.monotonic() - self._seen_at
        return time.time() - self.started_at

    def begin(self) -> None:
        """Start following the log and asking the endpoints."""
        self.open_log("start")
        for plan in self.engine.endpoints if not self.orphaned else ():
            self.pollers[plan["id"]] = Poller(self, plan)
        for poller in self.pollers.values():
            self.probe.thread(poller.run, "http")

    def open_log(self, reason: str) -> None:
        """Follow the log where it is now."""
        target = self.target
        if target.status is not None and not self.orphaned:
            self.probe.release_log(target.status)
        kinds = {"file": FileTail, "docker-json": FileTail, "journal": JournalTail}
        self.tail = kinds.get(target.kind, NoTail)(self, target, reason)
        if target.code and target.note:
            self.probe.problems.note(target.code, self.key, target.note)
        self.tail.start()
        if isinstance(self.tail, FileTail) and self.probe.old_logs and self.engine.markers and not self.probe.once:
            self.probe.thread(self._old_logs, "old logs")

    def _old_logs(self) -> None:
        tail = self.tail
        if isinstance(tail, FileTail) and tail.caught_up.wait(30.0) and not self.ended.wait(1.0):
            send_old_logs(self, tail)

    def log_changed(self, status: os.stat_result) -> None:
        """The tail went over to another file."""
        self.target.status = status

    def look(self) -> None:
        """Bring members, ports and log up to date, and tell what changed."""
        now = time.monotonic()
        table = self.probe.table
        live = [self.leader, *sorted(table.descendants(self.leader.pid), key=lambda proc: proc.pid)]
        # Whoever was a member stays one, also when its parent died and init adopted it.
        known = {proc.pid for proc in live}
        live += [table.procs[pid] for pid in self.members if pid not in known and pid in table.procs]
        states = [(proc.pid, proc.ticks, proc.ppid, proc.state in "ZTX" and proc.state, proc.raw) for proc in live]
        if states != self._states:
            self._states = states
            self._look_at_members(live)
        if now >= self._ports_due:
            self._look_at_ports(now)
        if now >= self._target_due:
            self._target_due = now + (5.0 if now - self._seen_at < 60.0 else 30.0)
            self._look_at_log()
        self._tell(now)

    def _look_at_members(self, live: Sequence[Proc]) -> None:
        members: Dict[int, Json] = {}
        for proc in live:
            old = self.members.get(proc.pid)
            if old is not None and old["start_ticks"] != proc.ticks:
                continue
            members[proc.pid] = self._member(proc, old)
        if set(members) != set(self.members):
            self._owners = {inode: pid for inode, pid in self._owners.items() if pid in members}
            self._ports_due = 0.0
            self.probe.gpu.processes_due.set()
        self.members = members

    def _member(self, proc: Proc, old: Optional[Json]) -> Json:
        state = proc.state if proc.state in "ZTX" else "S"
        title = " ".join(masked_argv(proc.argv, self.engine.api_key_flags))[:2000]
        if old is not None and old["state"] == state and old["title"] == title and old["ppid"] == proc.ppid:
            return old
        if proc.state == "Z" and old is not None:
            title = old["title"]  # a zombie has no command line any more
        member: Json = {"pid": proc.pid, "ppid": proc.ppid, "start_ticks": proc.ticks, "title": title, "state": state}
        if old is not None and old.get("env") is not None and old["title"] == title:
            member["env"] = old["env"]
        elif proc.pid != self.leader.pid and proc.titled is not None and self.engine.rank_env:
            env = masked_env(environ_of(proc.pid) or {})
            wanted = {name: env[name] for name in self.engine.rank_env if name in env}
            member["env"] = {name: value for name, value in wanted.items() if self.env.get(name) != value} or None
        return member

    def look_at_ports_soon(self) -> None:
        """An endpoint did not answer: it may be gone."""
        self._ports_due = 0.0

    def _look_at_ports(self, now: float) -> None:
        """Which ports members listen on. On a host with many connections the tables are long: asked less often."""
        found = [item for item in listeners_of(self.leader.pid) if item.inode]
        inodes = {item.inode for item in found}
        self._owners = {inode: pid for inode, pid in self._owners.items() if inode in inodes}
        if any(inode not in self._owners for inode in inodes):
            readable = False
            held: Dict[int, int] = {}
            for pid in [self.leader.pid, *(p for p in self.members if p != self.leader.pid)]:
                sockets = sockets_of(pid)
                readable = readable or sockets is not None
                for inode in (sockets or set()) & inodes:
                    held.setdefault(inode, pid)
            for item in found:
                # Where descriptors are hidden, the owner in the socket table has to do.
                guess = self.leader.pid if not readable and item.uid == self.uid else 0
                self._owners[item.inode] = held.get(item.inode, guess)
        ours = [item for item in found if self._owners.get(item.inode)]
        self.ports = sorted({item.port for item in ours})
        if not self._port_given and self.port not in self.ports:
            # Engines read options from files too: a leader that listens on one port only serves there.
            own = {item.port for item in ours if self._owners[item.inode] == self.leader.pid}
            if len(own) == 1:
                self.port = own.pop()
        for item in ours:
            if item.port == self.port:
                loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
                host = loopback.get(item.address, item.address)
                if item.address == "::" and any(i.address == "0.0.0.0" and i.port == self.port for i in ours):  # noqa: S104
                    continue
                self.address = (host, self.port)
        self.listening = self.port in self.ports
        cost = time.monotonic() - now
        self._ports_due = now + max(3.0 if self.listening else 0.9, 500.0 * cost)

    def _look_at_log(self) -> None:
        tail = self.tail
        target = find_log(self.leader.pid, self.probe.table.procs, self.engine.markers)
        if (
            tail is None
            or target.same_as == tail.target.same_as
            or (tail.target.kind != "none" and target.kind == "none")
        ):
            return
        if self.target.code and self.target.code != target.code:
            self.probe.problems.clear(self.target.code, self.key)
        self.target = target
        if tail.target.watch and tail.target.watch == target.watch:
            tail.target = target  # the same file, deleted or moved
            if target.code and target.note:
                self.probe.problems.note(target.code, self.key, target.note)
            return
        tail.stop()
        tail.done.wait(1.0)
        self.open_log("replaced" if isinstance(tail, (FileTail, JournalTail)) else "start")

    def identity(self) -> Json:
        """The `server` of a `server` line."""
        env = masked_env(self.env, self.engine.api_key_env)
        return {
            "key": self.key,
            "engine": self.engine.name,
            "pid": self.leader.pid,
            "start_ticks": self.leader.ticks,
            "started_at": self.started_at,
            "uid": self.uid,
            "user": user_name(self.uid),
            "argv": masked_argv(self.argv, self.engine.api_key_flags),
            "env": {name: value[:4096] for name, value in list(env.items())[:512]} if self.env_readable else None,
            "cwd": self.cwd,
            "interpreter": self.interpreter,
            "version": self.version,
            "manager": self.manager,
            "port": self.port,
            "ports": self.ports,
            "orphaned": self.orphaned,
            "log": self.target.as_json(),
        }

    def _tell(self, now: float) -> None:
        first = self._sent is None
        ranks, others = self._members_that_matter()
        vital = (ranks, self.target.as_json())
        news = (vital, others, self.ports, self.port)
        if news == self._sent:
            return
        if not first and vital == self._sent[0] and now - self._sent_at < self.NEWS_EVERY_S:
            return
        self._sent = news
        self._sent_at = now
        server = self.identity()
        server["members"] = ranks + others
        if not first:
            server.update(argv=[], env=None)  # long, and never another: whoever was told the first time keeps them
        self.probe.out.put({"t": "server", "server": server})

    def _members_that_matter(self) -> Tuple[List[Json], List[Json]]:
        """The leader, its ranks and what else holds GPU memory; and children that stay."""
        table = self.probe.table
        ranks: List[Json] = []
        others: List[Json] = []
        for pid, member in self.members.items():
            proc = table.procs.get(pid)
            if pid == self.leader.pid or pid in self.probe.gpu.users or (proc is not None and proc.titled is not None):
                ranks.append(member)
            elif member["ppid"] == self.leader.pid and proc is not None and table.age_s(proc) > self.HELPER_S:
                others.append(member)
        return ranks, others


# ---------------------------------------------------------------------------------------------------------------
# The probe
# ---------------------------------------------------------------------------------------------------------------


class Lost(Followed):
    """A server the laptop followed and that ended while nobody watched: its last words are still in its log."""

    def __init__(self, probe: Probe, key: str) -> None:
        super().__init__(probe, Engine({"name": ""}), Proc(0), key)
        self.tail: Optional[FileTail] = None
        self.caught_up = threading.Event()
        """What there was has been sent, or there was nothing."""

    def follow(self) -> None:
        """Send what the log still holds from where the laptop was, or that it is lost; then that the server is gone."""
        try:
            self._read(self.resume or {})
        finally:
            self.caught_up.set()
            self.probe.out.put({"t": "server_gone", "key": self.key, "left": []})

    def _read(self, resume: Json) -> None:
        path, inode, offset = resume.get("path"), resume.get("inode"), int(resume.get("offset") or 0)
        if not path or inode is None:
            return
        place = find_file(path, resume.get("device"), inode, 0)
        target = LogTarget("docker-json" if path.endswith("-json.log") else "file", path)
        tail = self.tail = FileTail(self, target, "resume")
        if place is None or not self._is_whole(place, resume):
            tail.lose(offset)
            return
        target.watch, target.opens, target.status = place, [place], stat_of(place)
        if target.status is None or target.status.st_size <= offset:
            return
        tail.caught_up = self.caught_up
        tail.finish(2.0)
        tail.start()
        tail.done.wait()
        if tail.stopped:
            tail.lose(tail.offset, getattr(stat_of(place), "st_size", 0))

    def _is_whole(self, place: str, resume: Json) -> bool:
        """True when the file is still as it was read, and nobody else has begun to write there."""
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            status = os.fstat(fd)
            return (status.st_dev, status.st_ino) not in self.probe.log_inodes() and is_intact(fd, resume)
        finally:
            os.close(fd)


class Probe:
    """Everything together: reads orders, runs the threads, ends when nobody listens any more."""

    TICK_S = 0.5

    def __init__(self) -> None:
        self.out = Outbox(1)
        self.problems = Problems(self.out)
        self.children = Children()
        self.searches = Searches(self)
        self.gpu = GpuReader(self)
        self.host = HostReader(self)
        self.ending = False
        self.once = False
        self.interval_s = 1.0
        self.tail_bytes = 262_144
        self.head_bytes = 4_194_304
        self.max_log_bytes_s = 8_388_608
        self.old_logs = 8
        self.resume: Dict[str, Json] = {}
        self.engines: List[Engine] = []
        self.table = ProcTable(())
        self.servers: Dict[str, Server] = {}
        self._past: Dict[str, Server] = {}
        self._lost: List[Lost] = []
        self._orphans_before: Optional[Set[int]] = None
        self._end = threading.Event()
        self._planned = threading.Event()
        self._pinged = time.monotonic()
        self._ping_timeout_s = 60.0
        self._exit_lock = threading.RLock()  # a signal may come while the main thread holds it
        self._scan_due = 0.0
        self._clock = time.time() - time.monotonic()
        self._clock_ok_at = 0.0

    # -- services ---------------------------------------------------------------------------------------------------

    def thread(self, work: Callable[[], None], name: str) -> None:
        """Run something in a thread; an error in it is reported, and the others go on."""

        def guarded() -> None:
            try:
                work()
            except Exception as e:
                self.fault(name, e)

        threading.Thread(target=guarded, name=name, daemon=True).start()

    def fault(self, where: str, error: BaseException) -> None:
        """Report a fault of our own."""
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        line = frames[-1].lineno if frames else 0
        self.problems.note("probe-error", where, "%s: %s (line %s)" % (type(error).__name__, error, line))
        self.log("".join(traceback.format_exception(type(error), error, error.__traceback__)))

    def log(self, text: str) -> None:
        """A word to stderr, for whoever debugs the probe."""
        with contextlib.suppress(OSError):
            os.write(2, (text.rstrip() + "\n").encode("utf-8", "replace"))

    def pause(self, seconds: float) -> bool:
        """Sleep; True when the probe is ending."""
        return self._end.wait(seconds)

    def live_servers(self) -> List[Server]:
        """The servers there are."""
        return list(self.servers.values())

    def folders(self) -> List[str]:
        """Folders whose disks matter: where servers write their logs."""
        return [
            os.path.dirname(s.target.path) for s in self.live_servers() if s.target.path and s.target.path[0] == "/"
        ]

    def log_inodes(self) -> Set[Tuple[int, int]]:
        """Files that are some server's current log."""
        found = [s.target.status for s in self.live_servers()]
        return {(status.st_dev, status.st_ino) for status in found if status is not None}

    def release_log(self, status: os.stat_result) -> None:
        """A server begins to write into a file: no dead one's tail may take its lines for the dead one's."""
        for tail in [*(server.tail for server in self._past.values()), *(lost.tail for lost in self._lost)]:
            if isinstance(tail, FileTail) and (tail.device, tail.inode) == (status.st_dev, status.st_ino):
                tail.stop()
                tail.done.wait(1.0)

    def log_descriptor(self, key: str) -> int:
        """A new descriptor of a server's log. Raises OSError."""
        server = self.servers.get(key) or self._past.get(key)
        if server is None or server.tail is None:
            raise OSError("there is no such server")
        return server.tail.descriptor()

    def exit(self, flush_s: float = 0.0) -> None:
        """End the process, its children first. Threads that hang in a driver cannot delay it."""
        with self._exit_lock:
            self.ending = True
            self._end.set()
            if flush_s:
                self.out.flush(flush_s)
            self.children.end_all()
            os._exit(0)

    # -- orders -----------------------------------------------------------------------------------------------------

    def _read_orders(self) -> None:
        stream = sys.stdin.buffer
        while True:
            line = stream.readline()
            if not line:
                self.exit()
            try:
                order = json.loads(line.decode("utf-8", "replace"))
                self._obey(order)
            except Exception as e:
                self.fault("order", e)  # whatever it was: the end of input must still be seen

    def _obey(self, order: Json) -> None:
        op = order["op"]
        if op == "ping":
            self._pinged = time.monotonic()
            self.out.put({"t": "pong", "n": order.get("n", 0)}, urgent=True)
        elif op == "plan":
            self._take(order)
        elif op == "search":
            self.searches.submit(order)
        elif op == "cancel":
            self.searches.cancel(int(order["id"]))
        elif op == "read":
            self.thread(lambda: self.out.put(read_part(self, order)), "read")
        elif op == "checks":
            self.thread(
                lambda: self.out.put({"t": "checks", "id": order.get("id", 0), "checks": checks(self)}), "checks"
            )
        elif op == "interval":
            self.interval_s = min(60.0, max(0.1, float(order["s"])))
            self.gpu.processes_due.set()  # wakes it from the old interval
        elif op == "nvml":
            self.gpu.source_given = zlib.decompress(base64.b64decode(order["z"]))
            self.gpu.given.set()
        elif op == "bye":
            self.exit(1.0)

    def _take(self, plan: Json) -> None:
        if self._planned.is_set():
            return
        self.engines = [Engine(part) for part in plan.get("engines", ())]
        self.interval_s = min(60.0, max(0.1, float(plan.get("interval_s", 1.0))))
        self.resume = dict(plan.get("resume") or {})
        self.tail_bytes = int(plan.get("tail_bytes", self.tail_bytes))
        self.head_bytes = int(plan.get("head_bytes", self.head_bytes))
        self.max_log_bytes_s = int(plan.get("max_log_bytes_s", self.max_log_bytes_s))
        self.old_logs = int(plan.get("old_logs", self.old_logs))
        self._ping_timeout_s = float(plan.get("ping_timeout_s", 20.0))
        self.once = bool(plan.get("once", False))
        self._pinged = time.monotonic()
        self._planned.set()

    # -- the conductor ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until the link ends. Does not return."""
        for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(name, lambda *_: self.exit())
        threading.Thread(target=self.out.run, args=(self.exit,), name="writer", daemon=True).start()
        self.out.put(self._hello())
        self.thread(self._read_orders, "orders")
        self.thread(self._conduct, "conductor")
        self.searches.run()

    def _hello(self) -> Json:
        return {
            "t": "hello",
            "protocol": PROTOCOL,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "pid": os.getpid(),
            "uid": ME,
            "user": user_name(ME),
            "hostname": (text_of(PROC + "/sys/kernel/hostname") or socket.gethostname()).strip(),
            "boot_id": (text_of(PROC + "/sys/kernel/random/boot_id") or "").strip() or None,
            "kernel": os.uname().release,
            "at": time.time(),
            "cpu_count": os.cpu_count(),
        }

    def _conduct(self) -> None:
        while not self._planned.wait(self.TICK_S):
            self.check_link()
        self.table = ProcTable(self.engines)
        try:
            self._scan(first=True)
        except OSError as e:
            self.problems.note("proc-denied", "/proc", "/proc cannot be read: %s" % e)
        except Exception as e:
            self.fault("scan", e)
        hidden = hidepid() if ME else None
        if hidden:
            self.problems.note("proc-denied", "/proc", hidden)
        self._lost = [Lost(self, key) for key in self.resume if key not in self.servers]
        for lost in self._lost:
            self.thread(lost.follow, "lost")
        until = time.monotonic() + 1.0
        for lost in self._lost:
            lost.caught_up.wait(max(0.0, until - time.monotonic()))
        self.out.put({"t": "scanned"})
        self.thread(self.gpu.run, "gpu")
        self.thread(self.host.run, "host")
        if self.once:
            self._finish_once()
        while not self.pause(until_beat(self.TICK_S)):
            try:
                self._tick()
            except Exception as e:
                self.fault("conductor", e)

    def _tick(self) -> None:
        self.check_link()
        self._check_clock()
        self.gpu.watch()
        for server in self.live_servers():
            if not self.table.recheck(server.leader.pid, server.leader.ticks):
                self._ended(server)
        now = time.monotonic()
        if now >= self._scan_due:
            self._scan(first=False)
            # A process table of thousands takes its time: look less often rather than cost more.
            self._scan_due = now + (0.9 if time.monotonic() - now < 0.005 else 1.9)

    def check_link(self) -> None:
        """End when the laptop has been silent for too long."""
        if time.monotonic() - self._pinged > self._ping_timeout_s:
            self.log("no ping for %g s: ending" % self._ping_timeout_s)
            self.exit()

    def _check_clock(self) -> None:
        now = time.monotonic()
        clock = time.time() - now
        if abs(clock - self._clock) > 2.0:
            text = "the host's clock was set by %+.1f s; times in the log jump" % (clock - self._clock)
            self.problems.note("clock-skew", "", text)
            self._clock_ok_at = now + 60.0
        self._clock = clock
        if self._clock_ok_at and now > self._clock_ok_at:
            self._clock_ok_at = 0.0
            self.problems.clear("clock-skew")

    def _scan(self, first: bool) -> None:
        table = self.table
        table.scan()
        leaders, orphans = table.heads()
        owned = {pid for server in self.servers.values() for pid in server.members}
        found = [(proc, proc.leads, False) for proc in leaders]
        # A titled process between two parents is no orphan yet: it must be one twice.
        before = self._orphans_before if self._orphans_before is not None else {proc.pid for proc in orphans}
        found += [(proc, proc.titled, True) for proc in orphans if proc.pid in before and proc.pid not in owned]
        self._orphans_before = {proc.pid for proc in orphans}
        fresh = []
        for proc, engine, orphaned in found:
            key = "%d:%d" % (proc.pid, proc.ticks)
            if engine is not None and key not in self.servers and key not in self._past:
                try:
                    server = Server(self, engine, proc, orphaned)
                except Exception as e:  # one that cannot be understood must not hide the others
                    self.fault("server %s" % key, e)
                    continue
                self.servers[key] = server
                fresh.append(server)
        for server in self.live_servers():
            try:
                server.look()
            except Exception as e:
                self.fault("server %s" % server.key, e)
        for server in fresh:
            server.begin()
        table.kin = {pid for server in self.servers.values() for pid in server.members}

    def _ended(self, server: Server) -> None:
        """The leader has ended: its last lines first, then the news."""
        members = [m for m in server.members.values() if m["pid"] != server.leader.pid]
        left = [m["pid"] for m in members if self.table.recheck(m["pid"], m["start_ticks"])]
        now = time.monotonic()
        if server.dying_at is None:
            server.dying_at = now
        if left and now - server.dying_at < 2 * self.TICK_S:
            return  # children that die with their parent need a moment
        server.ended.set()
        if server.tail is not None:
            server.tail.finish(5.0 if left else 2.0)
            server.tail.caught_up.wait(0.5)
        self.out.put({"t": "server_gone", "key": server.key, "at": round(time.time(), 3), "left": left})
        self.problems.forget(server.key)
        del self.servers[server.key]
        self._past[server.key] = server
        while len(self._past) > 16:
            del self._past[next(iter(self._past))]
        self.gpu.processes_due.set()

    def _finish_once(self) -> None:
        """A single reading: wait for every part of it, a slow one not for ever, then end."""
        until = time.monotonic() + 10.0
        waits = [self.gpu.first, self.host.first]
        for server in self.live_servers():
            waits += [poller.asked for poller in server.pollers.values()]
            if server.tail is not None:
                waits.append(server.tail.caught_up)
        for event in waits:
            event.wait(max(0.0, until - time.monotonic()))
        # Who holds GPU memory is a member, and whoever became one meanwhile has its share told.
        with contextlib.suppress(OSError):
            self._scan(first=False)
        self.gpu.look_again(max(0.5, until - time.monotonic()))
        self.out.put({"t": "pong", "n": -1})
        self.exit(5.0)


def main() -> None:
    """Run the probe on stdin and stdout."""
    sys.dont_write_bytecode = True
    Probe().run()


if __name__ == "__main__":
    main()
