"""End a server: its manager's command or the rungs of a ladder, until no member lives."""

from __future__ import annotations

import time
from typing import Any, List, Optional, Sequence

from ..agent.base import ME, Json, user_name
from .desk import Clock, Desk
from .members import Member, Members, send
from .orders import Step
from .pulse import now

ORPHAN_GRACE_S = 3.0
"""Seconds for members to end by themselves after their leader, before the rung that is meant for them."""
FIRST_S = 0.02
"""Shortest time between two looks at the process table; it doubles up to `LAST_S`."""
LAST_S = 0.2


class Ladder:
    """The end of one server.

    Args:
        desk: The means of the run.
        members: The server's processes.
        boot: Id of the boot in which they were seen; empty: not known.
    """

    def __init__(self, desk: Desk, members: Members, boot: str = "") -> None:
        self._desk = desk
        self._members = members
        self._boot = boot

    @property
    def needed(self) -> str:
        """Return the last signal that was sent, with the wait that led to a SIGKILL, in words; empty: none was sent."""
        sent = self._desk.record.progress.get("signals") or []
        if not sent:
            return ""
        (first, began, _), (last, at, to) = sent[0], sent[-1]
        if last != "KILL" or first == last:
            return "SIG%s" % last
        return "SIGKILL to %s: %s did not end %s within %.0f s" % (
            "1 process" if to == 1 else "%d processes" % to, "SIG" + first, "it" if to == 1 else "them", at - began,
        )  # fmt: skip

    @property
    def reached(self) -> Optional[int]:
        """Return the rung that a supervisor had reached for this server before it died; None if it had begun none."""
        rung = self._desk.record.progress.get("rung")
        return int(rung[2]) if rung and rung[:2] == self._where else None

    @property
    def _where(self) -> List[Any]:
        progress = self._desk.record.progress
        return [progress["phase"], progress["back"]]

    def climb(self, steps: Sequence[Step]) -> bool:
        """Go up the rungs, from the one that was reached before, until no member lives; return whether none does."""
        progress = self._desk.record.progress
        first = self.reached or 0
        for number, step in enumerate(steps):
            self._members.scan()
            if not self._members.living:
                break
            if number < first:
                continue
            # Once the leader has ended, its own rungs are passed over.
            later = [each for each in steps[number + 1 :] if each.to != "leader"]
            progress["rung"] = [*self._where, number]
            self._rung(step, hurry=bool(later) and later[0].to == "orphans" and later[0].signal != "KILL")
        self._members.scan()
        progress.pop("rung", None)
        return not self._members.living

    def _targets(self, step: Step) -> List[Member]:
        if step.to == "leader":
            return [self._members.leader] if self._members.leader.alive else []
        return self._members.orphans if step.to == "orphans" else self._members.living

    def _rung(self, step: Step, *, hurry: bool) -> None:
        """Send the signal of one rung and wait. `hurry`: the next rung is that of the orphans, if there are any."""
        targets = self._targets(step)
        if not targets:
            return
        desk, members = self._desk, self._members
        clock = Clock(step.wait_s)
        words = "SIG%s to %s" % (step.signal, _whom(targets, members))
        desk.record.progress["members"] = members.json
        desk.record.data["until"] = clock.until
        desk.record.intend(words, signal=step.signal, processes=[member.id.json for member in targets])
        signalled = {member.id.pid for member in targets}
        desk.record.progress.setdefault("signals", []).append([step.signal, now(), len(targets)])
        if step.signal == "KILL" and members.leader.alive:
            desk.record.unclean()
        for member in targets:
            self.signal(member, step.signal)
        desk.record.say(words + " sent", clock.until)
        orphaned_at = 0.0
        pause = FIRST_S
        while clock.left:
            members.scan()
            if not members.living:
                return
            if step.to == "tree":
                # What a dying tree still started must not outlive it.
                for member in members.living:
                    if member.id.pid not in signalled:
                        signalled.add(member.id.pid)
                        self.signal(member, step.signal)
            if not members.leader.alive:
                orphaned_at = orphaned_at or time.monotonic()
                if hurry and time.monotonic() - orphaned_at >= ORPHAN_GRACE_S:
                    return
            desk.record.say(self._progress(words), clock.until)
            desk.wait(min(pause, clock.left), members.fds)
            pause = min(LAST_S, 2 * pause)

    def _progress(self, words: str) -> str:
        living = self._members.living
        if self._members.leader.alive:
            return "%s sent; %d of %d processes live" % (words, len(living), len(self._members.by_pid))
        return "%s sent; the leader has ended, %d of its processes live" % (words, len(living))

    def signal(self, member: Member, name: str) -> None:
        """Send one signal after a check of identity, and record what came of it."""
        outcome = send(member, name, self._boot, self._members.run)
        if outcome.startswith("foreign") or outcome == "ended":
            member.alive = False
        identity = member.id
        self._desk.record.journal(
            "SIG%s to %d: %s" % (name, identity.pid, outcome),
            signal=name, pid=identity.pid, ticks=identity.ticks, outcome=outcome,
        )  # fmt: skip
        self._desk.record.audit(
            "signal", signal=name, pid=identity.pid, start_ticks=identity.ticks, title=identity.title, outcome=outcome
        )


def _whom(targets: Sequence[Member], members: Members) -> str:
    if len(targets) == 1:
        name = "the main process" if targets[0] is members.leader else targets[0].id.title or "a process"
        return "%s (pid %d)" % (name, targets[0].id.pid)
    return "%d processes" % len(targets)


def leftovers_of(members: Members) -> List[Json]:
    """Return the members that still live, as JSON of `tuner.domain.runs.Leftover`."""
    return [
        {
            "pid": member.id.pid,
            "start_ticks": member.id.ticks,
            "uid": member.id.uid,
            "user": user_name(member.id.uid),
            "title": member.id.title,
            "gpu_bytes": None,
            "ours": ME == 0 or member.id.uid in (None, ME),
        }
        for member in members.living
    ]
