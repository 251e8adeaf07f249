"""After the run: stay for the server's life, and write down how it ended."""

from __future__ import annotations

import os
from typing import List, Optional

from ..agent.base import Json
from .desk import Clock, Desk
from .ladder import leftovers_of
from .pulse import now
from .start import Start

AFTER_S = 10.0
"""Seconds that the other processes of a server get to end after its leader."""


def stay(desk: Desk, start: Optional[Start]) -> None:
    """Return when the server that was started has ended, and that is written down."""
    record = desk.record
    if start is None or record.data["outcome"] not in ("ready", "back"):
        return
    members = start.members
    members.scan()
    while members.leader.alive:
        leader = members.leader
        fds = [leader.fd] if leader.fd >= 0 else []
        # Without a descriptor of the process its end is seen by looking, if it is no child of ours.
        desk.pulse.wait(None if fds or members.child else 5.0, fds)
        for name in desk.pulse.signals():
            record.journal("the supervisor got %s, and goes on" % name)
        members.scan()
    code = start.exit_code
    ended = {"pid": members.leader.id.pid, "start_ticks": members.leader.id.ticks, "exit_code": code, "at": now()}
    record.data["exit_code"] = code
    _write(desk, ended)
    record.audit("end", pid=members.leader.id.pid, exit_code=code, argv=record.data["argv"])
    members.scan()
    clock = Clock(AFTER_S)
    told: List[Json] = []
    while True:
        # What lives is listed at once: the next start must not begin beside it.
        left = leftovers_of(members)
        if left != told:
            record.data["leftovers"] = told = left
            record.save()
        if not members.living or not clock.left:
            break
        desk.pulse.wait(min(0.5, clock.left), members.fds)
        members.scan()
    desk.folder.flush()


def _write(desk: Desk, ended: Json) -> None:
    """Write the end down, however long the disk stays full."""
    while not (desk.folder.replace("exit.json", ended) & desk.record.save()) and os.path.isdir(desk.folder.path):
        desk.pulse.wait(1.0)
