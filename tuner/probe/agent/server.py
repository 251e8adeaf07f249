"""One inference server: its processes, where it listens, and where it logs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from .arguments import flag_value, masked_argv, masked_env
from .base import HZ, ME, PROC, Json, boot_time, link_of, user_name
from .file_tail import FileTail
from .installation import interpreter_of, package_version, site_folders
from .journal_tail import JournalTail
from .log_target import find_log
from .old_logs import send_old_logs
from .origin import cgroup_paths, manager_of
from .polling import Poller
from .processes import Proc, environ_of, group_of, owner_of
from .recognition import Engine
from .sockets import listeners_of, sockets_of
from .tail import Followed, NoTail, Tail

if TYPE_CHECKING:
    from .probe import Probe


class Server(Followed):
    """One inference server, with its tail and its pollers."""

    NEWS_EVERY_S = 2.0
    """Seconds between reports of changed ports and untitled helpers, which come and go while a server starts."""
    HELPER_S = 5.0
    """Seconds after which a child without a title is reported; younger ones may be a compiler's run."""

    def __init__(self, probe: Probe, engine: Engine, leader: Proc, orphaned: bool) -> None:
        super().__init__(probe, engine, leader, "%d:%d" % (leader.pid, leader.ticks))
        self.orphaned = orphaned
        self._beside: List[Proc] = []
        """Further processes that a dead leader left, besides the one that stands for the server."""
        self.left: List[Json] = []
        """Members that lived on when the leader ended, as last reported."""
        self.dying_at: Optional[float] = None
        self.pollers: Dict[str, Poller] = {}
        self.busy_at = 0.0
        """Monotonic time at which the server was last seen to work."""
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
        self.above = list(probe.table.ancestors(pid))
        """What stood above it at first sight, nearest first."""
        self.groups = cgroup_paths(pid)
        self.manager = manager_of(pid, self.env, self.above)
        key = flag_value(self.argv, engine.api_key_flags)
        self.api_key = key or next((self.env[name] for name in engine.api_key_env if self.env.get(name)), None)
        self.tls = flag_value(self.argv, engine.tls_flags) is not None
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
        """Return the seconds since the server started; since it was first seen where that is unknown."""
        if self.started_at is None:
            return time.monotonic() - self._seen_at
        return time.time() - self.started_at

    def begin(self) -> None:
        """Start following the log and polling the endpoints."""
        self.open_log("start")
        if not self.orphaned:
            self.pollers = {plan["id"]: Poller(self, plan) for plan in self.engine.endpoints}
        for poller in self.pollers.values():
            self.probe.thread(poller.run, "http")

    def open_log(self, reason: str) -> None:
        """Follow the log where it is now."""
        target = self.target
        if not self.orphaned:
            self.probe.release_log(target)
        kinds = {"file": FileTail, "docker-json": FileTail, "cri": FileTail, "journal": JournalTail}
        self.tail = kinds.get(target.kind, NoTail)(self, target, reason)
        if target.code and target.note:
            self.probe.problems.note(target.code, self.key, target.note)
        self.tail.start()
        if isinstance(self.tail, FileTail) and self.probe.old_logs and self.engine.markers:
            self.probe.thread(self._old_logs, "old logs")

    def _old_logs(self) -> None:
        tail = self.tail
        if isinstance(tail, FileTail) and tail.caught_up.wait(30.0) and not self.ended.wait(1.0):
            send_old_logs(self, tail)

    def end(self) -> None:
        """Stop polling, since the leader has ended."""
        self.ended.set()
        for poller in self.pollers.values():
            poller.wake.set()

    def log_grew(self, data: bytes) -> None:
        """Take note of new bytes in the log."""
        if self.engine.works(data):
            self.works()

    def works(self) -> None:
        """Poll soon, because the log or the GPUs show work."""
        self.busy_at = time.monotonic()
        for poller in self.pollers.values():
            poller.hurry()

    def log_changed(self, status: os.stat_result) -> None:
        """Take note that the tail has switched to another file."""
        self.target.status = status

    def left_beside(self, proc: Proc, engine: Engine) -> bool:
        """Return whether the same dead leader left `proc`: equal process group and log."""
        group = group_of(self.leader.pid)
        if not (self.orphaned and engine is self.engine and group and group == group_of(proc.pid)):
            return False
        target = find_log(proc.pid, self.probe.table.procs, engine.markers)
        return (target.kind, target.path) == (self.target.kind, self.target.path)

    def take(self, proc: Proc) -> None:
        """Count a process that the same dead leader left as part of this server."""
        self._beside.append(proc)

    def look(self) -> None:
        """Update members, ports and log, and report what changed."""
        now = time.monotonic()
        table = self.probe.table
        self._beside = [proc for proc in self._beside if table.procs.get(proc.pid) is proc]
        heads = [self.leader, *self._beside]
        below = (proc for head in heads for proc in table.descendants(head.pid))
        live = [*heads, *sorted(below, key=lambda proc: proc.pid)]
        # A member stays one also when its parent died and init adopted it.
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
        elif self.engine.rank_env and (proc.titled is not None or self._inherits(proc)) and proc is not self.leader:
            env = masked_env(environ_of(proc.pid) or {})
            wanted = {name: env[name] for name in self.engine.rank_env if name in env}
            member["env"] = {name: value for name, value in wanted.items() if self.env.get(name) != value} or None
        return member

    def _inherits(self, proc: Proc) -> bool:
        """Return whether a process's environment is what the leader's has become, which the leader's own never shows.

        Python starts this helper with its present environment, and no title overwrites it.
        """
        return proc.ppid == self.leader.pid and "multiprocessing.resource_tracker" in proc.line

    def look_at_ports_soon(self) -> None:
        """Read the ports at the next scan: an endpoint did not answer, so its port may be gone."""
        self._ports_due = 0.0

    def _look_at_ports(self, now: float) -> None:
        """Read the ports that members listen on; less often on a host whose connection tables are long."""
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
                # Where descriptors are hidden, the owner in the socket table decides.
                guess = self.leader.pid if not readable and item.uid == self.uid else 0
                self._owners[item.inode] = held.get(item.inode, guess)
        ours = [item for item in found if self._owners.get(item.inode)]
        self.ports = sorted({item.port for item in ours})
        if not self._port_given and self.port not in self.ports:
            # Engines read options from files too: a leader that listens on a single port serves there.
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
        """Return the `server` of a `server` line."""
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
            # What a dead leader left has no command line to tell a port, and answers on none.
            "port": None if self.orphaned else self.port,
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
            server.update(argv=[], env=None)  # long and constant: the laptop keeps those of the first report
        self.probe.out.put({"t": "server", "server": server})

    def _members_that_matter(self) -> Tuple[List[Json], List[Json]]:
        """Return the leader, its ranks and other members with GPU memory; and the children that last."""
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
