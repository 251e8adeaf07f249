"""End a server: its manager's command or the rungs of a ladder, until no member lives."""

from __future__ import annotations

import time
from typing import List, Sequence

from ..agent.base import ME, Json, user_name
from .desk import Clock, Desk
from .members import Member, Members, send
from .orders import Step

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

    def climb(self, steps: Sequence[Step]) -> bool:
        """Go up the rungs until no member lives; return whether none does.

        A supervisor that goes on for a dead one begins at the rung that it had reached.
        """
        progress = self._desk.record.progress
        where = [progress["phase"], progress["back"]]
        reached = progress.get("rung") or [*where, 0]
        first = int(reached[2]) if reached[:2] == where else 0
        for number, step in enumerate(steps):
            self._members.scan()
            if not self._members.living:
                break
            if number < first:
                continue
            following = steps[number + 1] if number + 1 < len(steps) else None
            progress["rung"] = [*where, number]
            self._rung(step, following)
        self._members.scan()
        progress.pop("rung", None)
        return not self._members.living

    def _targets(self, step: Step) -> List[Member]:
        if step.to == "leader":
            return [self._members.leader] if self._members.leader.alive else []
        return self._members.orphans if step.to == "orphans" else self._members.living

    def _rung(self, step: Step, following: object) -> None:
        targets = self._targets(step)
        if not targets:
            return
        desk, members = self._desk, self._members
        clock = Clock(step.wait_s)
        words = "SIG%s to %s" % (step.signal, _whom(targets, members))
        desk.record.progress["members"] = members.json
        desk.record.data["until"] = clock.until
        desk.record.intend(words, signal=step.signal, processes=[member.id.json for member in targets])
        sent = 0
        signalled = set()
        for member in targets:
            sent += self.signal(member, step.signal)
            signalled.add(member.id.pid)
        desk.record.say(words + " sent", clock.until)
        grace = isinstance(following, Step) and following.to == "orphans" and following.signal != "KILL"
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
                if grace and time.monotonic() - orphaned_at >= ORPHAN_GRACE_S:
                    return
            desk.record.say(self._progress(words), clock.until)
            desk.wait(min(pause, clock.left), members.fds)
            pause = min(LAST_S, 2 * pause)

    def _progress(self, words: str) -> str:
        living = self._members.living
        if self._members.leader.alive:
            return "%s sent; %d of %d processes live" % (words, len(living), len(self._members.by_pid))
        return "%s sent; the leader has ended, %d of its processes live" % (words, len(living))

    def signal(self, member: Member, name: str) -> bool:
        """Send one signal after a check of identity, and record it; return whether it was sent."""
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
        return outcome == "sent"


def _whom(targets: Sequence[Member], members: Members) -> str:
    if len(targets) == 1:
        name = "the leader" if targets[0] is members.leader else targets[0].id.title or "a process"
        return "%s (PID %d)" % (name, targets[0].id.pid)
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
