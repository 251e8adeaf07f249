"""The start of one server, from the launch until it is ready."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..agent.arguments import masked_argv, masked_env
from ..agent.base import HOST_ROOT, HZ, ME, text_of
from ..agent.processes import owner_of, read_stat
from .asking import Door
from .commands import Command, main_pid, output_of, stop_command, unit_in
from .desk import Clock, Desk
from .launching import LaunchFailed, environment, folder_of, log_of, spawn
from .members import Members, own_stat, process_table, run_of, title_of
from .orders import Launch, ProcessId
from .readiness import EVERY_S, Readiness
from .record import plain

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
MANAGER_S = 60.0
"""Longest wait for a manager's start command and for the process that it starts."""
EXEC_S = 5.0
"""Longest wait for a process that a dead supervisor forked to run its program, or to end without having done so."""


class Start:
    """One server that is started.

    Args:
        desk: The means of the run.
        launch: What is started.
        back: Whether it is what ran before.
    """

    def __init__(self, desk: Desk, launch: Launch, *, back: bool) -> None:
        self._desk = desk
        self.launch_order = launch
        self.back = back
        self._env = environment(launch, desk.folder.run)
        self.members: Members
        self.launched_at = 0.0

    # -- launch ---------------------------------------------------------------------------------------------------

    def launch(self, frame: Optional[Dict[str, Any]]) -> None:
        """Start it. `frame`: limits and the like of the server before. Raises LaunchFailed."""
        desk, launch, record = self._desk, self.launch_order, self._desk.record
        log = log_of(launch, desk.folder.path, desk.folder.run, back=self.back)
        record.data.update(
            new=None, argv=[plain(word) for word in masked_argv(launch.argv, launch.secret_flags)],
            env={plain(k): plain(v) for k, v in masked_env(launch.env, launch.secret_env).items()},
            cwd=plain(folder_of(launch, self._env)), log=None if launch.manager else plain(log), port=launch.port,
            exit_code=None,
        )  # fmt: skip
        self.launched_at = time.time()
        record.progress["launched_at"] = self.launched_at
        record.progress["launched_ticks"] = ticks_now()
        record.step("launch")
        record.intend("launch", argv=record.data["argv"] or launch.manager)
        if launch.manager:
            self._by_manager()
        else:
            _adopt_orphans()
            leader = spawn(launch, self._env, log, desk.pulse, self._recorded, frame)
            stat = own_stat(leader.pid, desk.pulse) if HOST_ROOT else None
            if stat is not None and stat.ticks != leader.ticks:
                leader.ticks = stat.ticks
                self._recorded(leader)
            self.members = self._members_of(leader, child=True)
        record.progress["launched"] = True
        record.audit("launch", argv=record.data["argv"] or launch.manager, pid=self.members.leader.id.pid, log=log)

    def _recorded(self, leader: ProcessId) -> None:
        record = self._desk.record
        record.process("new", leader)
        record.intend("pid %d" % leader.pid, process=leader.json)

    def _by_manager(self) -> None:
        desk, launch = self._desk, self.launch_order
        words = " ".join(launch.manager)
        command = Command(desk, launch.manager)
        clock = Clock(MANAGER_S)
        trouble = "%s started no process that could be found" % words
        # A unit of Type=notify is started once it is ready, so the command may last as long as the start.
        while clock.left:
            pid = main_pid(desk, launch.manager) or (self._listener_in_unit() if command.code == 0 else 0)
            stat = read_stat(pid) if pid else None
            if stat is not None and stat.alive:
                self.members = self._members_of(ProcessId(pid, stat.ticks, owner_of(pid), title_of(pid)), child=False)
                self._recorded(self.members.leader.id)
                desk.record.audit("start", argv=launch.manager, exit_code=command.code, outcome=command.output)
                return
            if command.failed:
                trouble = "%s: %s" % (words, command.output or "exit code %s" % command.code)
                break
            desk.wait(EVERY_S)
        desk.record.audit("start", argv=launch.manager, exit_code=command.code, outcome=command.output)
        end = stop_command(launch.manager)
        if end:
            # A unit that failed may be about to be started again.
            code, told = output_of(desk, end, MANAGER_S)
            desk.record.audit("stop", argv=end, exit_code=code, outcome=told)
        raise LaunchFailed(trouble)

    def _listener_in_unit(self) -> int:
        """Return the topmost process of the started unit that stands above the listener on the port; 0 without one.

        It is the main process of a unit for which systemd knows none. A listener outside of the unit's control group
        is somebody else's server: it is neither watched nor ever ended.
        """
        from ..agent.origin import cgroup_paths, unit_of
        from ..agent.sockets import listeners_here, sockets_of

        unit = unit_in(self.launch_order.manager)
        inodes = {item.inode for item in listeners_here() or () if item.port == self.launch_order.port}
        table = process_table() if unit and inodes else {}
        for pid in table:
            if inodes & (sockets_of(pid) or set()) and unit_of(cgroup_paths(pid)) == unit:
                while unit_of(cgroup_paths(table[pid].ppid)) == unit and table[pid].ppid in table:
                    pid = table[pid].ppid
                return pid
        return 0

    def _members_of(self, leader: ProcessId, others: Sequence[ProcessId] = (), *, child: bool) -> Members:
        desk, launch = self._desk, self.launch_order
        run = "" if launch.manager else desk.folder.run
        known = [(ProcessId.of(each), each.get("part")) for each in desk.record.progress.get("members") or ()]
        others = [each for each, _ in known] + list(others)
        members = Members(leader, others, launch.titles, run, pulse=desk.pulse, child=child, parts=launch.parts)
        for identity, part in known:
            # One that ended while no supervisor watched has no title any more.
            member = members.by_pid.get(identity.pid)
            if member is not None and member.id.ticks == identity.ticks:
                member.part = bool(part)

        def found(_: Any) -> None:
            desk.record.progress["members"] = members.json

        members.found = members.named = found
        return members

    @classmethod
    def found(cls, desk: Desk, launch: Launch, *, back: bool) -> Optional[Start]:
        """Return the start that a supervisor made before it died; None where nothing of it lives."""
        start = cls(desk, launch, back=back)
        start.launched_at = float(desk.record.progress.get("launched_at") or time.time())
        told = desk.record.data["new"]
        if told and not desk.record.progress.get("launched"):
            _await_program(desk, int(told["pid"]))
        living = _by_token(desk.folder.run, int(desk.record.progress.get("launched_ticks") or 0))
        if not told and not living:
            return None
        leader = ProcessId.of(told) if told else living[0]
        stat = read_stat(leader.pid, "/proc")
        shown = own_stat(leader.pid, desk.pulse) if HOST_ROOT and stat is not None and stat.alive else None
        if stat is not None and shown is not None and leader.ticks == stat.ticks:
            leader.ticks = shown.ticks
        start.members = start._members_of(leader, living, child=stat is not None and stat.ppid == os.getpid())
        start.members.scan()
        desk.record.process("new", leader)
        return start

    # -- watch ----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Return when it is ready. Raises StartFailed and Cancelled."""
        launch = self.launch_order
        deadline = round(self.launched_at + launch.deadline_s, 3)
        self._desk.record.step("loading", until=deadline)
        door = Door(launch.argv, self._env, launch.api_key_flags, launch.api_key_env, launch.tls_flags)
        Readiness(self._desk, launch, self.members, door, self.launched_at).climb()

    @property
    def exit_code(self) -> Optional[int]:
        """Return how the leader ended; None while it lives, or where that is not known."""
        return self._desk.pulse.exits.get(self.members.leader.id.pid) if self.members.child else None


def ticks_now() -> int:
    """Return the present time as /proc gives the start of a process: clock ticks since the host was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * HZ // 1_000_000_000


def _await_program(desk: Desk, pid: int) -> None:
    """Wait until a process that a dead supervisor forked runs its program, or has ended.

    If that supervisor was killed before it let the process go on, the process ends by itself, but a moment later. Until
    then it has the supervisor's command line, and none while it ends.
    """
    clock = Clock(EXEC_S)
    while clock.left:
        stat = read_stat(pid, "/proc")
        argv = (text_of("/proc/%d/cmdline" % pid) or "").split("\0")
        if stat is None or not stat.alive or (any(argv) and sys.argv[0] not in argv):
            return
        desk.wait(0.02)


def _by_token(run: str, since: int) -> List[ProcessId]:
    """Return the processes that a run started, by their environment: first those that lead a session, oldest first.

    Args:
        run: Id of the run.
        since: Ticks of the launch. An older process has the run's id from elsewhere; 0: they are not known.
    """
    out: List[Tuple[bool, ProcessId]] = []
    for pid, stat in process_table().items():
        # A simulated process table has ticks of its own.
        old = stat.ticks < since and not HOST_ROOT
        if stat.alive and not old and pid != os.getpid() and owner_of(pid) == ME and run_of(pid) == run:
            out.append((stat.session != pid, ProcessId(pid, stat.ticks, ME, title_of(pid))))
    return [identity for _, identity in sorted(out, key=lambda each: (each[0], each[1].ticks))]


def _adopt_orphans() -> None:
    """Become the parent of whatever the server leaves behind, so that it is found, and reaped at once."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # its orphans are found by their session then
