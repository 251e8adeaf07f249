"""The end of a server: drain, manager or ladder, proof that its memory is back."""

from __future__ import annotations

import time
from typing import Any, List, Sequence

from ..agent.base import HOST_ROOT, PROC, Json, text_of
from ..agent.processes import Stat, environ_of, read_stat
from ..agent.sockets import same_network
from .asking import Door, PortOwner, work
from .commands import Command
from .desk import Clock, Desk
from .helper import Helper
from .ladder import LAST_S, ORPHAN_GRACE_S, Ladder, leftovers_of
from .members import Members
from .memory import GpuMemory, Proof
from .orders import Step, Stop

ASK_EVERY_S = 0.5
QUIET = 3
"""So many readings in a row must find no request: vLLM's metrics read 0 at times under load."""


class Ending:
    """Ends one server.

    Args:
        desk: The means of the run.
        members: Its processes.
        gpus: Reads the GPUs.
        boot: Id of the boot in which the processes were seen; empty: not known.
    """

    def __init__(self, desk: Desk, members: Members, gpus: GpuMemory, boot: str) -> None:
        self._desk = desk
        self._members = members
        self._gpus = gpus
        self._ladder = Ladder(desk, members, boot)
        self._proof_left: List[Json] = []
        self.untouched = False
        """Whether nothing was done to the server at all."""

    # -- drain ----------------------------------------------------------------------------------------------------

    def drain(self, stop: Stop, aim: Any) -> None:
        """Wait until no request is in flight, at most as long as the order says. Raises Cancelled."""
        desk, pid = self._desk, self._members.leader.id.pid
        clock = Clock(stop.drain_s)
        desk.record.step("drain", until=clock.until)
        if not HOST_ROOT and not same_network(pid):
            # Its address leads elsewhere from here: to another server, which would get its key.
            desk.record.say("its requests in flight cannot be counted from another network namespace")
            return
        argv = (text_of("%s/%d/cmdline" % (PROC, pid)) or "").rstrip("\0").split("\0")
        flags = (aim.api_key_flags, aim.api_key_env, aim.tls_flags) if aim is not None else (["--api-key"], [], [])
        door = Door(argv, environ_of(pid) or {}, *flags)
        helper = Helper(desk.pulse, work)
        asks = list(stop.drain)
        quiet = in_flight = 0
        try:
            while clock.left:
                self._members.scan()
                owner = PortOwner(self._members, pid, stop.port or 0)
                if not self._members.leader.alive or owner.ours is None:
                    desk.record.say("the server does not listen any more")
                    return
                door.host, door.port = owner.address, stop.port or 0
                answer = self._answer(helper, door.question("drain", asks[0]), clock)
                if "count" in answer:
                    in_flight = answer["count"]
                    quiet = quiet + 1 if in_flight == 0 else 0
                    desk.record.say("%d requests in flight" % answer["count"], clock.until)
                    if quiet >= QUIET:
                        return
                elif len(asks) > 1:
                    asks.pop(0)
                    continue
                elif answer.get("status") in (200, 401, 403, 404):
                    desk.record.say("the number of requests is not told: " + str(answer.get("text")))
                    return
                due = Clock(ASK_EVERY_S)
                while due.left and clock.left:
                    desk.wait(min(due.left, clock.left))
                    desk.check_cancel()
            if in_flight:
                desk.record.unclean()
                desk.record.say("%d requests still in flight after %g s" % (in_flight, stop.drain_s))
        finally:
            helper.end()

    def _answer(self, helper: Helper, question: Json, clock: Clock) -> Json:
        helper.ask(question)
        while clock.left:
            answer = helper.answer()
            if answer is not None:
                return answer
            self._desk.wait(clock.left, [helper.fd])
            self._desk.check_cancel()
        return {}

    # -- end ------------------------------------------------------------------------------------------------------

    def end(
        self, steps: Sequence[Step], manager: Sequence[str], manager_wait_s: float, memory_s: float, before: List[Json]
    ) -> str:
        """End the server and prove that its memory is back; return why that did not succeed, empty if it did."""
        desk, members = self._desk, self._members
        desk.record.step("stop")
        desk.record.progress.setdefault("signals", [])
        members.scan()
        rungs = list(steps)
        # Also where nothing lives: the manager may be about to start it again.
        if manager and self._ladder.reached is None:
            trouble = self._by_manager(manager, manager_wait_s)
            if trouble:
                self.untouched = members.leader.alive
                return trouble
            if not members.leader.alive:
                rungs = rungs[1:] or rungs
        found = bool(members.living)
        if found and not self._ladder.climb(rungs):
            pids = [member.id.pid for member in members.living]
            deep = [pid for pid in pids if (read_stat(pid) or Stat("?", 0, 0, 0)).state == "D"]
            words = "; pid %d waits in the kernel, where no signal reaches it" % deep[0] if deep else ""
            return "%d processes do not end: pid %s%s" % (len(pids), ", ".join(map(str, pids[:5])), words)
        needed = self._ladder.needed
        ended = "all %d processes have ended%s" % (len(members.by_pid), ", after " + needed if needed else "")
        desk.record.say(ended if found else "no process of it lives")
        desk.record.progress.pop("signals", None)
        return self._memory_back(memory_s, before)

    def _by_manager(self, argv: Sequence[str], wait_s: float) -> str:
        desk, members = self._desk, self._members
        words = " ".join(argv)
        clock = Clock(wait_s)
        desk.record.data["until"] = clock.until
        desk.record.intend(words, argv=list(argv))
        command = Command(desk, argv)
        pause = 0.02
        done_at = 0.0
        while clock.left and members.living and not command.failed:
            if command.code == 0:
                # What lives now is nothing of the manager's: ranks without a leader, or a server whose script alone it
                # ended.
                done_at = done_at or time.monotonic()
                if time.monotonic() - done_at >= ORPHAN_GRACE_S:
                    break
            desk.record.say(words, clock.until)
            desk.wait(min(pause, clock.left), members.fds)
            pause = min(LAST_S, 2 * pause)
            members.scan()
        # The command ends a moment after the processes.
        ending = Clock(2.0)
        while command.code is None and ending.left:
            desk.wait(0.02)
        desk.record.audit("stop", argv=list(argv), exit_code=command.code, outcome=command.output)
        if command.failed and members.leader.alive:
            return "%s: %s" % (words, command.output or "exit code %s" % command.code)
        return ""

    def _memory_back(self, memory_s: float, before: List[Json]) -> str:
        desk, gpus = self._desk, self._gpus
        desk.record.step("memory", until=Clock(memory_s).until)
        if not gpus.reading:
            gpus.wait(5.0)
        if gpus.none:
            desk.record.say("no GPU")
            return ""
        pids = {member.id.pid: member.id.ticks for member in self._members.by_pid.values()}
        proof = Proof(desk, gpus, before, pids, desk.record.progress.get("unread") or ())
        missing = proof.wait(memory_s)
        if missing:
            self._proof_left = proof.leftovers()
            return "the GPU memory is not back after %g s: %s" % (memory_s, missing)
        desk.record.say("the GPU memory is back" if before else "the server held no GPU memory")
        return ""

    def leftovers(self) -> List[Json]:
        """Return what is left, as JSON of `tuner.domain.runs.Leftover`."""
        living: List[Json] = leftovers_of(self._members)
        known = {each["pid"] for each in living}
        return living + [each for each in self._proof_left if each["pid"] not in known]
