"""The probe as a whole: carries out orders, conducts the other parts, and ends with the link."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Set, Tuple

from .base import ME, PROC, Json, text_of, until_beat, user_name
from .checks import checks, hidepid
from .children import Children
from .gpu_reader import GpuReader
from .host import HostReader
from .lease import LeaseKeeper
from .log_target import LogTarget
from .lost import Lost
from .output import Outbox, Problems
from .processes import ProcTable
from .recognition import Engine
from .runs_watch import RunsWatch
from .search import Searches, read_part
from .server import Server
from .tail import Tail

if TYPE_CHECKING:
    from .acts import Door

PROTOCOL = 1


class Probe:
    """Reads orders, runs the threads, and ends when the laptop is gone."""

    TICK_S = 0.5

    def __init__(self) -> None:
        self.out = Outbox(1)
        self.problems = Problems(self.out)
        self.children = Children()
        self.searches = Searches(self)
        self.gpu = GpuReader(self)
        self.host = HostReader(self)
        self.lease = LeaseKeeper(self.out)
        self.runs = RunsWatch(self, self.lease)
        self._door: Optional[Door] = None
        self._door_lock = threading.Lock()
        self.ending = False
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
        self._pinged = self._awake_at = time.monotonic()
        self._ping_timeout_s = 60.0
        self._exit_lock = threading.RLock()  # reentrant: a signal may come while the main thread holds it
        self._scan_due = 0.0
        self._clock = time.time() - time.monotonic()
        self._clock_ok_at = 0.0

    # -- services ---------------------------------------------------------------------------------------------------

    def thread(self, work: Callable[[], None], name: str) -> None:
        """Run something in a thread. An error in it is reported and ends only that thread."""

        def guarded() -> None:
            try:
                work()
            except Exception as e:
                self.fault(name, e)

        threading.Thread(target=guarded, name=name, daemon=True).start()

    def fault(self, where: str, error: BaseException) -> None:
        """Report an error of the probe itself."""
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        place = "%s line %s" % (os.path.basename(frames[-1].filename).rstrip(">"), frames[-1].lineno) if frames else "?"
        self.problems.note("probe-error", where, "%s: %s (%s)" % (type(error).__name__, error, place))
        self.log("".join(traceback.format_exception(type(error), error, error.__traceback__)))

    def log(self, text: str) -> None:
        """Write a message to stderr, for debugging the probe."""
        with contextlib.suppress(OSError):
            os.write(2, (text.rstrip() + "\n").encode("utf-8", "replace"))

    def pause(self, seconds: float) -> bool:
        """Sleep; return True when the probe is ending."""
        return self._end.wait(seconds)

    def live_servers(self) -> List[Server]:
        """Return the servers that run."""
        return list(self.servers.values())

    def folders(self) -> List[str]:
        """Return the folders whose disks matter: those of the servers' logs."""
        return [
            os.path.dirname(s.target.path) for s in self.live_servers() if s.target.path and s.target.path[0] == "/"
        ]

    def log_inodes(self) -> Set[Tuple[int, int]]:
        """Return (device, inode) of the files that are some server's current log."""
        found = [s.target.status for s in self.live_servers()]
        return {(status.st_dev, status.st_ino) for status in found if status is not None}

    def release_log(self, target: LogTarget) -> None:
        """Stop tails of ended servers on a log that a new server begins to write: its lines are not theirs."""
        for tail in [*(server.tail for server in self._past.values()), *(lost.tail for lost in self._lost)]:
            if tail is not None and tail.follows(target):
                tail.stop()
                tail.done.wait(1.0)

    def tail_of(self, key: str) -> Tail:
        """Return the tail of a server that runs or has ended. Raises OSError."""
        server = self.server_of(key)
        if server is None or server.tail is None:
            raise OSError("there is no such server")
        return server.tail

    @property
    def door(self) -> Door:
        """Return what carries out acts. It is compiled when it is first asked for: most probes only watch."""
        from .acts import Door

        with self._door_lock:
            if self._door is None:
                self._door = Door(self, self.lease, self.runs)
            return self._door

    def server_of(self, key: str) -> Optional[Server]:
        """Return a server that runs or has ended; None where there is none."""
        return self.servers.get(key) or self._past.get(key)

    def exit(self, flush_s: float = 0.0) -> None:
        """End the process, its children first. Threads that hang in a driver cannot delay it."""
        with self._exit_lock:
            self.ending = True
            self._end.set()
            self.lease.end(1.0)
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
                self.fault("order", e)  # any error is reported, since the end of input must still be seen

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
        elif op == "act":
            self.door.submit(order)
        elif op == "preflight":
            self.thread(lambda: self._preflight(order), "preflight")
        elif op == "nvml":
            self.gpu.source_given = zlib.decompress(base64.b64decode(order["z"]))
            self.gpu.given.set()
        elif op == "bye":
            self.exit(1.0)
        else:
            raise ValueError("no such order: %r" % op)

    def _preflight(self, order: Json) -> None:
        from .preflight import preflight  # compiled when first needed: it and what it imports take 70 ms

        facts = preflight(self, order.get("ask") or {})
        self.out.put({"t": "preflight", "id": order.get("id", 0), "facts": facts})

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
            "utc_offset_s": time.localtime().tm_gmtoff,
        }

    def _conduct(self) -> None:
        while not self._planned.wait(self.TICK_S):
            self.check_link()
        self.table = ProcTable(self.engines)
        try:
            self._scan()
        except OSError as e:
            self.problems.note("proc-denied", "/proc", "/proc cannot be read: %s" % e)
        except Exception as e:
            self.fault("scan", e)
        hidden = hidepid()
        if hidden:
            self.problems.note("proc-denied", "/proc", hidden)
        self.thread(self.runs.run, "folder")
        self._lost = [Lost(self, key) for key in self.resume if key not in self.servers]
        for lost in self._lost:
            self.thread(lost.follow, "lost")
        until = time.monotonic() + 1.0
        for lost in self._lost:
            lost.caught_up.wait(max(0.0, until - time.monotonic()))
        self.runs.looked.wait(max(0.0, until - time.monotonic()))
        self.out.put({"t": "scanned"})
        self.thread(self.gpu.run, "gpu")
        self.thread(self.host.run, "host")
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
            self._scan()
            # A table of thousands of processes takes long: it is scanned less often, to keep the load the same.
            self._scan_due = now + (0.9 if time.monotonic() - now < 0.005 else 1.9)

    def check_link(self) -> None:
        """End when no ping has come for too long, not counting time in which this process itself was suspended."""
        now = time.monotonic()
        stood, self._awake_at = now - self._awake_at, now
        if stood > max(1.0, self._ping_timeout_s / 2):
            self._pinged = now
        if now - self._pinged > self._ping_timeout_s:
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

    def _scan(self) -> None:
        table = self.table
        table.scan()
        leaders, orphans = table.heads()
        owned = {pid for server in self.servers.values() for pid in server.members}
        found = [(proc, proc.leads, False) for proc in leaders]
        # A titled process may be between two parents: it counts as an orphan only at the second scan.
        before = self._orphans_before if self._orphans_before is not None else {proc.pid for proc in orphans}
        found += [(proc, proc.titled, True) for proc in orphans if proc.pid in before and proc.pid not in owned]
        self._orphans_before = {proc.pid for proc in orphans}
        fresh = []
        for proc, engine, orphaned in found:
            key = "%d:%d" % (proc.pid, proc.ticks)
            if engine is not None and key not in self.servers and key not in self._past:
                try:
                    beside = (each for each in self.servers.values() if orphaned and each.left_beside(proc, engine))
                    same = next(beside, None)
                    if same is None:
                        self.servers[key] = server = Server(self, engine, proc, orphaned)
                        fresh.append(server)
                    else:
                        same.take(proc)
                except Exception as e:  # a process that cannot be understood must not hide the others
                    self.fault("server %s" % key, e)
        for server in self.live_servers():
            try:
                server.look()
            except Exception as e:
                self.fault("server %s" % server.key, e)
        for server in fresh:
            server.begin()
        for server in self._past.values():
            left = self._alive(server.left)
            if len(left) < len(server.left):
                self._tell_left(server, left)
        table.kin = {pid for server in self.servers.values() for pid in server.members}

    def _ended(self, server: Server) -> None:
        """Report that a server's leader has ended, after its last lines."""
        members = [m for m in server.members.values() if m["pid"] != server.leader.pid]
        left = self._alive(members)
        now = time.monotonic()
        if server.dying_at is None:
            server.dying_at = now
        if left and now - server.dying_at < 2 * self.TICK_S:
            return  # children that die with their parent need a moment
        server.end()
        if server.tail is not None:
            server.tail.finish(5.0 if left else 2.0)
            server.tail.caught_up.wait(0.5)
        self._tell_left(server, left)
        self.problems.forget(server.key)
        del self.servers[server.key]
        self._past[server.key] = server
        while len(self._past) > 16:
            del self._past[next(iter(self._past))]
        self.gpu.processes_due.set()

    def _alive(self, members: List[Json]) -> List[Json]:
        return [m for m in members if self.table.recheck(m["pid"], m["start_ticks"])]

    def _tell_left(self, server: Server, left: List[Json]) -> None:
        server.left = left
        pids = [member["pid"] for member in left]
        self.out.put({"t": "server_gone", "key": server.key, "at": round(time.time(), 3), "left": pids})


def main() -> None:
    """Run the probe on stdin and stdout."""
    sys.dont_write_bytecode = True
    Probe().run()
