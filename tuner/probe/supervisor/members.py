"""The processes of one server: which they are, whether they live, and signals that reach no other process.

A process is known by boot, PID and start ticks, so a later process with the same PID is another one. Its uid must not
have changed, and the run's id in its environment, where it can be read, must be the expected one.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Callable, Dict, Iterable, List, Optional, Set

from ..agent.arguments import masked_argv
from ..agent.base import HOST_ROOT, PROC, Json, text_of
from ..agent.identity import NO_PROCESS, boot_id, pidfd_open, why_not
from ..agent.identity import send as identity_send
from ..agent.processes import Stat, environ_of, owner_of, read_stat
from .orders import ProcessId
from .pulse import Pulse

TOKEN = "GPUTUNER_RUN"  # noqa: S105 - the name of a variable
"""Variable in the environment of a server that was started by a run: the run's id."""
SHOWN_S = 2.0
"""Most seconds until a simulated process table shows a new process."""
MAX_SIGNALLED = 4096
"""Most processes that one server may have; more are a fault of ours."""
HIGHEST_FD = 512
"""Highest descriptor that is kept for a process: a login may have 1024, and without one nothing can be read."""


def own_stat(pid: int, pulse: Pulse) -> Optional[Stat]:
    """Return the entry of this process or of a child of it, which is certainly there.

    A simulated process table has ticks of its own, and shows a process a moment later.
    """
    clock = time.monotonic() + (SHOWN_S if HOST_ROOT else 0.0)
    while True:
        stat = read_stat(pid)
        if stat is not None or time.monotonic() >= clock:
            return stat or read_stat(pid, "/proc")
        pulse.wait(0.02)


def process_table() -> Dict[int, Stat]:
    """Return all processes by PID. Raises OSError when /proc cannot be listed."""
    out: Dict[int, Stat] = {}
    for name in os.listdir(PROC):
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                out[int(name)] = stat
    return out


HIDDEN: List[str] = []
"""Flags whose values are masked in titles, beside those that are named like secrets."""


def title_of(pid: int) -> str:
    """Return the command line of a process as one text, secrets masked, at most 300 characters; empty where unknown."""
    argv = (text_of("%s/%d/cmdline" % (PROC, pid), 8192) or "").rstrip("\0").split("\0")
    return " ".join(masked_argv(argv, HIDDEN)).strip()[:300] or (text_of("%s/%d/comm" % (PROC, pid)) or "").strip()


def run_of(pid: int) -> Optional[str]:
    """Return the run that started a process, by its environment; None where it does not say so.

    Engines that set process titles overwrite the environment, so its absence proves nothing.
    """
    return (environ_of(pid) or {}).get(TOKEN)


def ancestors_here() -> Set[int]:
    """Return the PIDs of this process and of those above it, which are never signalled."""
    out: Set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in out:
        out.add(pid)
        stat = read_stat(pid, "/proc")
        pid = stat.ppid if stat is not None else 0
    return out


class Member:
    """One process of a server."""

    __slots__ = ("alive", "fd", "id", "part", "rank")

    def __init__(self, identity: ProcessId) -> None:
        self.id = identity
        self.alive = True
        self.fd = _pidfd(identity)
        self.rank = False
        """True once its title was that of a rank."""
        self.part = False
        """True once its title was that of a rank or another of the server's own, without which it does not serve."""

    def close(self) -> None:
        """Release its file descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _pidfd(identity: ProcessId) -> int:
    """Return a descriptor of a process that can be read once it ends; -1 where that is not possible."""
    try:
        fd = pidfd_open(identity.pid)
    except OSError:
        return -1
    # Only now: the process that is checked is the one that the descriptor stands for.
    stat = read_stat(identity.pid) if fd <= HIGHEST_FD else None
    if stat is None or stat.ticks != identity.ticks:
        os.close(fd)
        return -1
    return fd


class Members:
    """The processes of one server, kept up to date by `scan`.

    Args:
        leader: The topmost process.
        others: Processes known to belong to it.
        titles: Regular expressions that match the titles of ranks.
        parts: Regular expressions that match the titles of all processes without which the server does not serve.
        run: Id of the run that started it; empty: something else did. A server that a run started has a session of its
            own, and all processes in it are members.
        pulse: Knows the supervisor's own children and how they ended.
        child: True: the leader is a child of the supervisor, which then is the parent of all orphans too.
    """

    def __init__(
        self, leader: ProcessId, others: Iterable[ProcessId] = (), titles: Iterable[str] = (), run: str = "", *,
        pulse: Pulse, child: bool = False, parts: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._pulse = pulse
        self.child = child
        self._titles = [re.compile(title) for title in titles]
        self._parts = [re.compile(title) for title in parts]
        self.run = run
        self.never = ancestors_here()
        """PIDs that are no members in any case."""
        self.leader = Member(leader)
        self.by_pid: Dict[int, Member] = {leader.pid: self.leader}
        for each in others:
            if each.pid not in self.by_pid and each.pid not in self.never:
                self.by_pid[each.pid] = Member(each)
        self.found: Callable[[Member], None] = lambda _: None
        """Called with each process that turns out to be a member."""
        self.named: Callable[[Member], None] = lambda _: None
        """Called with each member that turns out to be a part later."""

    @property
    def living(self) -> List[Member]:
        """Return the members that live, as of the last scan, the leader first."""
        return [member for member in self.by_pid.values() if member.alive]

    @property
    def orphans(self) -> List[Member]:
        """Return the members that outlived the leader; none while it lives."""
        return [] if self.leader.alive else self.living

    @property
    def fds(self) -> List[int]:
        """Return descriptors that can be read when a member ends."""
        return [member.fd for member in self.by_pid.values() if member.alive and member.fd >= 0]

    @property
    def json(self) -> List[Json]:
        """Return the identities of all members as JSON, the leader first, and which are parts."""
        return [{**member.id.json, "part": member.part} for member in self.by_pid.values()]

    @property
    def ended(self) -> bool:
        """Return whether a member is known to have ended since the last scan, without a look at the process table.

        False proves nothing where the kernel has no descriptors of processes.
        """
        if self.child and self.leader.alive and self.leader.id.pid in self._pulse.exits:
            return True
        return any(map(_ended, self.fds))

    def close(self) -> None:
        """Release all file descriptors."""
        for member in self.by_pid.values():
            member.close()

    def scan(self) -> None:
        """Find out which members live, and which processes became members. Raises OSError."""
        table = process_table()
        for pid, member in self.by_pid.items():
            member.alive = member.alive and self._lives(member, table.get(pid))
            if not member.alive:
                member.close()
            elif not member.rank and (self._titles or self._parts):
                was = member.part
                self._look_at_title(member, table[pid].ppid if pid in table else 0)
                if member.part != was:
                    self.named(member)
        below: Dict[int, List[int]] = {}
        for pid, stat in table.items():
            below.setdefault(stat.ppid, []).append(pid)
        found = [pid for member in self.living for pid in below.get(member.id.pid, ())]
        if self.child:
            # Orphans of a server that we started come to us. What we run ourselves is in our own session.
            session = os.getsid(0)
            found += [pid for pid in below.get(os.getpid(), ()) if table[pid].session != session]
        while found:
            pid = found.pop()
            if self._is_new(pid, table[pid]):
                self._add(pid, table[pid])
                found += below.get(pid, ())
        if self.run:
            session = self.leader.id.pid
            own = self._is_own_session(table)
            for pid, stat in table.items():
                if stat.session == session and self._is_new(pid, stat) and (own or run_of(pid) == self.run):
                    self._add(pid, stat)

    def _is_own_session(self, table: Dict[int, Stat]) -> bool:
        """Return whether the session with the leader's number is certainly the one that the leader made.

        The kernel gives a number to no other process or session while one with it lives. So the leader, or a known
        member in that session, proves it. Without one the number may be that of a later daemon.
        """
        session = self.leader.id.pid
        known = [self.leader, *self.living]
        at = [(table[each.id.pid], each.id.ticks) for each in known if each.id.pid in table]
        return any(stat.session == session and stat.ticks == ticks for stat, ticks in at)

    def _is_new(self, pid: int, stat: Stat) -> bool:
        known = self.by_pid.get(pid)
        if not stat.alive or pid in self.never or pid in self._pulse.helpers:
            return False
        return known is None or (not known.alive and known.id.ticks != stat.ticks)

    def _lives(self, member: Member, stat: Optional[Stat]) -> bool:
        if member is self.leader and self.child:
            if HOST_ROOT and stat is not None:
                member.id.ticks = stat.ticks  # a simulated process table has ticks of its own
            return member.id.pid not in self._pulse.exits
        if stat is None:
            # A process that was just started takes a moment to appear in a simulated process table.
            return bool(HOST_ROOT) and member.fd >= 0 and not _ended(member.fd)
        return stat.alive and stat.ticks == member.id.ticks

    def _add(self, pid: int, stat: Stat) -> None:
        if len(self.by_pid) >= MAX_SIGNALLED:
            return
        member = self.by_pid[pid] = Member(ProcessId(pid, stat.ticks, owner_of(pid), title_of(pid)))
        self._look_at_title(member, stat.ppid)
        self.found(member)

    def _look_at_title(self, member: Member, ppid: int) -> None:
        title = title_of(member.id.pid)
        if title:
            member.id.title = title
            # What a rank forks (a compiler, nvidia-smi) has its title until it executes a program of its own.
            parent = self.by_pid.get(ppid)
            forked = parent is not None and parent.id.title == title
            member.rank = not forked and any(rx.match(title) for rx in self._titles)
            member.part = member.part or member.rank or (not forked and any(rx.match(title) for rx in self._parts))

    def vanished(self) -> List[Member]:
        """Return the parts that have ended, as of the last scan."""
        return [member for member in self.by_pid.values() if member.part and not member.alive]

    def living_ranks(self) -> int:
        """Return the number of ranks that live, as of the last scan."""
        return sum(member.rank and member.alive for member in self.by_pid.values())


def _ended(fd: int) -> bool:
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def send(member: Member, name: str, boot: str, run: str = "") -> str:
    """Send a signal to a process if it is still the same one.

    Args:
        member: The process.
        name: The signal, without SIG.
        boot: Id of the boot in which the process was seen; empty: not known.
        run: Id of the run that started it; empty: not known.

    Returns:
        `sent`, or why it was not: `ended`, `denied: ...`, or `foreign: ...`.
    """
    identity = member.id
    if identity.pid in ancestors_here():
        return "foreign: it is the supervisor itself, or above it"
    trouble = mismatch(identity, boot, run)
    if not trouble:
        failed = identity_send(identity.pid, identity.ticks, identity.uid, getattr(signal, "SIG" + name))
        if not failed:
            return "sent"
        trouble = mismatch(identity, boot, run) or "denied: " + failed
    return trouble


def mismatch(identity: ProcessId, boot: str = "", run: str = "") -> str:
    """Return why a process is not, or no longer, the given one: `ended` or `foreign: ...`; empty if it is."""
    if boot and boot != boot_id():
        return "foreign: the host was started anew"
    reason = why_not(identity.pid, identity.ticks, identity.uid)
    if reason:
        return "ended" if reason == NO_PROCESS else "foreign: " + reason
    token = run_of(identity.pid) if run else None
    if token is not None and token != run:
        return "foreign: pid %d was started by run %s" % (identity.pid, token)
    return ""
