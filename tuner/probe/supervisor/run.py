"""A run as a whole: check, stop, prove, start, watch; go back if asked; go on where a dead supervisor stopped."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from ..agent.folder import read_json
from ..agent.identity import boot_id
from ..agent.processes import read_stat
from .checks import port_trouble, why_not
from .commands import stop_command
from .desk import Cancelled, Desk
from .launching import LaunchFailed
from .members import Members, run_of
from .memory import FIRST_S, GpuMemory
from .orders import Launch, ProcessId
from .readiness import StartFailed
from .start import MANAGER_S, Start
from .stop import Ending

UNTOUCHED = "cancelled before anything was touched; the server still runs"
"""How a run ends that was cancelled before the first signal."""


class Run:
    """Carries out one order.

    Args:
        desk: The means of the run.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._order = desk.order
        self._progress = desk.record.progress
        stop = desk.order.stop
        self.gpus = GpuMemory(desk, stop.leader.pid if stop is not None else 0)
        self.start: Optional[Start] = None
        """The server that was started last."""
        self._resumed = self._progress["phase"] != "check"
        """Whether an earlier supervisor has begun with the run."""

    # -- the whole ------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Do all of it until there is an outcome."""
        desk, phase = self._desk, self._progress["phase"]
        self.gpus.ask()
        if phase in ("check", "stop"):
            if not self._stop_old(resumed=phase == "stop"):
                return
            self._go_on()
            return
        # Another supervisor launched a server before it died.
        desk.record.journal("a new supervisor goes on", phase=phase)
        launch = self._order.back if self._progress["back"] else self._order.start
        if launch is None:
            desk.record.end("failed", "the order names nothing to start")
            return
        self.start = Start.found(desk, launch, back=bool(self._progress["back"]))
        lives = self.start is not None and self.start.members.leader.alive
        if phase == "undo":
            self._undo(str(self._progress.get("why", "the start was ended")))
        elif desk.cancel is not None and not (self._progress["back"] and desk.goes_back):
            self._undo("cancelled")
        elif self.start is not None and lives:
            self._watch(self.start)
        elif self.start is not None and (self._progress.get("launched") or self.start.members.living):
            self._undo("the server ended while no supervisor watched it")
        else:
            self._launch(launch, back=bool(self._progress["back"]))

    def watch_again(self) -> None:
        """Find the server of a run that has its outcome, whose supervisor died while the server ran."""
        back = bool(self._progress["back"])
        launch = self._order.back if back else self._order.start
        self.start = Start.found(self._desk, launch, back=back) if launch is not None else None

    def _go_on(self) -> None:
        """Start what is to be started, after the stop."""
        desk = self._desk
        desk.look()
        if desk.cancel is not None:
            if desk.goes_back and self._order.back is not None:
                self._go_back()
            else:
                desk.record.end("stopped", "cancelled; the server is stopped, and nothing was started")
        elif self._order.start is not None:
            self._launch(self._order.start, back=False)
        else:
            desk.record.end("stopped", "the server is stopped")

    # -- stop -----------------------------------------------------------------------------------------------------

    def _old_members(self) -> Optional[Members]:
        stop = self._order.stop
        if stop is None:
            return None
        known = [ProcessId.of(each) for each in self._progress.get("members") or ()]
        # A session is the server's own only if a run of ours made it: then all processes in it are members.
        stat = read_stat(stop.leader.pid)
        leads = stat is not None and (stat.session, stat.ticks) == (stop.leader.pid, stop.leader.ticks)
        run = run_of(stop.leader.pid) if leads else None
        run = run or str(self._progress.get("old_run", ""))
        self._progress["old_run"] = run
        titles = self._order.aim.titles if self._order.aim is not None else ()
        members = Members(stop.leader, stop.members + known, titles, run, pulse=self._desk.pulse)
        members.found = self._found(members)
        members.scan()
        return members

    def _found(self, members: Members) -> Any:
        def tell(member: Any) -> None:
            self._progress["members"] = members.json
            self._desk.record.journal("found pid %d: %s" % (member.id.pid, member.id.title), process=member.id.json)

        return tell

    def _stop_old(self, *, resumed: bool) -> bool:
        """Check, drain, stop and prove; return whether the way is free for a start."""
        desk, stop, progress = self._desk, self._order.stop, self._progress
        members = self._old_members()
        if not resumed:
            desk.record.step("check")
            trouble = why_not(desk, members)
            if trouble:
                desk.record.end("refused", trouble)
                return False
        if stop is None or members is None:
            self._first_reading([], set())
            return resumed or not self._cancelled()
        ending = Ending(desk, members, self.gpus, stop.boot_id)
        if not resumed:
            if not self._drained(ending):
                return False
            progress["frame"] = _frame(stop.leader.pid)
            self._first_reading(stop.gpus, set(members.by_pid))
            # The wait for the driver was long enough for another world.
            members.scan()
            trouble = why_not(desk, members) or self._unproven(stop.gpus)
            if trouble:
                desk.record.end("refused", trouble)
                return False
            if self._cancelled():
                return False
        progress["phase"] = "stop"
        failure = ending.end(stop.steps, stop.manager, stop.manager_wait_s, stop.memory_s, progress.get("before") or [])
        if failure:
            outcome = "refused" if ending.untouched else "stuck"
            desk.record.data["leftovers"] = [] if ending.untouched else ending.leftovers()
            desk.record.end(outcome, failure)
            return False
        members.close()
        return True

    def _cancelled(self) -> bool:
        """End the run if it was cancelled before anything was touched; return whether it was."""
        self._desk.look()
        if self._desk.cancel is None:
            return False
        self._desk.record.end("cancelled", UNTOUCHED if self._order.stop is not None else "cancelled; nothing runs")
        return True

    def _drained(self, ending: Ending) -> bool:
        stop = self._order.stop
        if self._cancelled():
            return False
        try:
            if stop is not None and stop.drain_s > 0 and stop.drain and stop.port is not None:
                ending.drain(stop, self._order.aim)
        except Cancelled:
            self._desk.record.end("cancelled", UNTOUCHED)
            return False
        return True

    def _unproven(self, uuids: List[str]) -> str:
        """Return why a server must not be stopped for another: it could not be proven that its memory is back."""
        if self._order.start is None or not uuids or self.gpus.fresh or self.gpus.none:
            return ""
        return "the GPU driver does not answer, so it could not be seen whether the memory comes back"

    def _first_reading(self, uuids: List[str], pids: Any) -> None:
        """Read the memory of the GPUs before anything changes it."""
        gpus = self.gpus
        gpus.wait(FIRST_S)
        claimed = self._order.stop.claimed if self._order.stop is not None else {}
        before = gpus.before(uuids, pids, level=self._level(), claimed=claimed) if gpus.fresh else []
        self._progress["before"] = before
        self._progress["unread"] = [] if gpus.fresh else uuids
        self._desk.record.data["memory"] = [
            {name: item[name] for name in ("gpu", "before_bytes", "held_bytes", "after_bytes")} for item in before
        ]

    def _level(self) -> Optional[Dict[str, int]]:
        """Return the bytes in use by GPU before the server to stop was launched; None unless a run of ours did that."""
        stop, run = self._order.stop, self._progress.get("old_run")
        if stop is None or not run or os.path.basename(run) != run:
            return None
        state = read_json(os.path.join(self._desk.folder.home, "runs", run, "state.json")) or {}
        new = state.get("new") or {}
        if (new.get("pid"), new.get("start_ticks")) != (stop.leader.pid, stop.leader.ticks):
            return None
        level: Optional[Dict[str, int]] = (state.get("progress") or {}).get("baseline")
        return level

    # -- start ----------------------------------------------------------------------------------------------------

    def _launch(self, launch: Launch, *, back: bool) -> None:
        desk, progress = self._desk, self._progress
        if self._resumed and launch.port is not None:
            # The host did not stand still meanwhile: another run, or an operator, may have started a server.
            trouble = port_trouble(launch.port, None, launch.argv)
            if trouble:
                desk.record.failed("nothing was started: " + trouble)
                desk.record.end("failed", "nothing was started: " + trouble)
                return
        desk.record.data["going_back"] = back
        progress.update(phase="start", back=back, launched=False, members=[])
        if not self.gpus.reading:
            self.gpus.wait(FIRST_S)
        progress["baseline"] = dict(self.gpus.reading.get("used") or {})
        progress["tenants"] = self.gpus.tenants
        self.gpus.end()  # the driver's library needs memory, which this process and its copies would keep
        self.start = Start(desk, launch, back=back)
        try:
            self.start.launch(progress.get("frame") if not launch.manager else None)
        except LaunchFailed as e:
            desk.record.failed(str(e))
            self.start = None
            self._decide(str(e))
            return
        self._watch(self.start)

    def _watch(self, start: Start) -> None:
        """Watch a start until it is ready or has failed."""
        desk = self._desk
        try:
            start.watch()
        except StartFailed as e:
            desk.record.failed(str(e))
            self._undo(str(e))
            return
        except Cancelled:
            self._undo("cancelled")
            return
        if start.back:
            desk.record.end("back", "the server before serves again")
        else:
            desk.record.end("ready", "the server serves")

    def _undo(self, why: str) -> None:
        """End what was started, prove that its memory is back, and decide how to go on."""
        desk, progress, start = self._desk, self._progress, self.start
        if why != "cancelled":
            desk.record.failed(why)
        progress.update(phase="undo", why=why)
        if start is not None:
            members = start.members
            self.gpus.wait(FIRST_S)
            started = (progress.get("baseline"), progress.get("tenants"))
            before = self.gpus.before([], set(members.by_pid), *started) if self.gpus.fresh else []
            ending = Ending(desk, members, self.gpus, boot_id() or "")
            manager = stop_command(start.launch_order.manager)
            failure = ending.end(start.launch_order.stop, manager, MANAGER_S, _memory_s(self._order), before)
            code = start.exit_code
            if code is not None:
                desk.record.data["exit_code"] = code
            if failure:
                desk.record.data["leftovers"] = ending.leftovers()
                desk.record.end("stuck", failure)
                return
        self._decide(why)

    def _decide(self, why: str) -> None:
        """Go back, or end the run, after a start that came to nothing."""
        desk, order = self._desk, self._order
        desk.look()
        if self._progress["back"]:
            words = "cancelled; nothing runs" if why == "cancelled" else "what ran before does not start again: " + why
            desk.record.end("stopped" if why == "cancelled" else "failed", words)
        elif order.back is not None and (desk.goes_back or (order.auto_back and desk.cancel is None)):
            self._go_back()
        elif why == "cancelled" or desk.cancel is not None:
            desk.record.end("stopped", "cancelled; nothing runs")
        else:
            desk.record.end("failed", why)

    def _go_back(self) -> None:
        assert self._order.back is not None
        data = self._desk.record.data
        data["failed"], data["failed_log"] = data["new"], data["log"]
        self._launch(self._order.back, back=True)


def _memory_s(order: Any) -> float:
    return float(order.stop.memory_s) if order.stop is not None else 60.0


def _frame(pid: int) -> Dict[str, Any]:
    from .frames import frame_of

    return frame_of(pid)
