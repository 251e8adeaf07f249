"""Watch a server that was started until it is ready: process, port of its own, health, first token, steady."""

from __future__ import annotations

import os
import signal
import time
from typing import Optional

from ..agent.arguments import flag_value
from ..agent.base import PROC, Json, user_name
from ..agent.sockets import listeners_here, sockets_of
from .asking import Door, PortOwner, work
from .desk import Clock, Desk
from .helper import Helper
from .members import Member, Members, title_of
from .orders import Launch

EVERY_S = 0.25
"""Seconds between two looks at the processes."""
QUICK_S = 10.0
"""Seconds after the launch from which on the process table is read every `SLOW_S` only: a large host has thousands of
processes, and an LLM may load for many minutes. The end of a member is still seen at once by its descriptor."""
SLOW_S = 1.0
"""Seconds between two readings of the process table from then on."""
ASK_EVERY_S = 0.5
"""Seconds between two questions to the server."""
DYING_S = 3.0
"""Seconds that a leader gets to end by itself after it lost a part: its last lines say why."""
TAKEN_S = 1.0
"""Seconds for which another process must listen on the server's port before the start has failed: the socket of one
that is just ending may be seen a moment longer."""
_PASSED = frozenset((400, 405, 413, 415, 422, 501))
"""Answers of a server that serves, but not this kind of request: it may have no text generation at all."""


class StartFailed(Exception):
    """The server will not become ready; the text says why."""


class Readiness:
    """The way of one server from its launch until it is ready.

    Args:
        desk: The means of the run.
        launch: What was started.
        members: Its processes.
        door: How it is reached.
        launched_at: Wall clock of the launch, in seconds since the epoch.
    """

    def __init__(self, desk: Desk, launch: Launch, members: Members, door: Door, launched_at: float) -> None:
        self._desk = desk
        self._launch = launch
        self._members = members
        self._door = door
        self._began = launched_at
        self._clock = Clock(launched_at + launch.deadline_s - time.time())
        self._helper = Helper(desk.pulse, work)
        self._asked_at = 0.0
        self._shared_at = 0.0
        self._scanned_at = 0.0
        self._host = flag_value(launch.argv, ["--host"])

    def climb(self) -> None:
        """Return when the server is ready. Raises StartFailed, and Cancelled when the operator cancels."""
        record = self._desk.record
        try:
            if self._launch.port is not None:
                self._until_port()
                if self._launch.health:
                    record.step("health", until=self._clock.until)
                    self._until_answer("health", self._launch.health)
                if self._launch.first_token:
                    record.step("first-token", until=self._clock.until)
                    self._until_answer("token", self._launch.first_token)
            self._steady()
        finally:
            self._helper.end()

    # -- rungs ----------------------------------------------------------------------------------------------------

    def _until_port(self) -> None:
        port = self._launch.port or 0
        taken_at = 0.0
        while True:
            self._look()
            owner = PortOwner(self._members, self._members.leader.id.pid, port, self._host)
            shared = self._is_shared(owner, port)
            if owner.ours is not None and not shared:
                self._door.host, self._door.port = owner.address, port
                self._desk.record.step("port", "the server listens on port %d itself" % port, self._clock.until)
                return
            if self._launch.titles:
                self._desk.record.say("%d ranks live" % self._members.living_ranks(), self._clock.until)
            if owner.other is None or owner.ours is not None:
                taken_at = 0.0
            elif not taken_at:
                taken_at = time.monotonic()
            elif time.monotonic() - taken_at >= TAKEN_S:
                raise StartFailed("port %d is taken by %s" % (port, holder(port, owner.other.uid)))
            self._pause(EVERY_S)

    def _is_shared(self, owner: PortOwner, port: int) -> bool:
        """Return whether another process listens beside the server (SO_REUSEPORT), so that it may answer instead of it.

        Raises StartFailed if it has done so for `TAKEN_S`: a worker of the server may be known as one a moment later.
        """
        if owner.beside is None:
            self._shared_at = 0.0
            return False
        self._shared_at = self._shared_at or time.monotonic()
        if time.monotonic() - self._shared_at >= TAKEN_S:
            who = holder(port, owner.beside.uid, owner.beside.inode)
            raise StartFailed("%s listens on port %d too, so it may answer instead of the server" % (who, port))
        return True

    def _until_answer(self, kind: str, ask: Json) -> None:
        self._asked_at = 0.0
        while True:
            self._look()
            answer = self._answer(kind, ask)
            if answer is not None:
                status, text = answer.get("status"), answer.get("text") or answer.get("fault") or "no answer"
                if status == 200:
                    self._desk.record.say(text, self._clock.until)
                    return
                if kind == "token" and status in _PASSED:
                    self._desk.record.say(text + ": it serves other requests than ours", self._clock.until)
                    return
                self._desk.record.say(text, self._clock.until)
            self._pause(0.05 if self._helper.busy else EVERY_S)

    def _answer(self, kind: str, ask: Json) -> Optional[Json]:
        """Ask if it is time to; return the answer once it is there."""
        if self._helper.busy:
            return self._helper.answer()
        if time.monotonic() - self._asked_at < ASK_EVERY_S:
            return None
        # The key goes to nobody but the server itself.
        owner = PortOwner(self._members, self._members.leader.id.pid, self._door.port, self._host)
        if owner.ours is None:
            return {"text": "the server does not listen on port %d any more" % self._door.port}
        if self._is_shared(owner, self._door.port):
            return {"text": "another process listens on port %d too" % self._door.port}
        self._asked_at = time.monotonic()
        self._helper.ask(self._door.question(kind, ask))
        return None

    def _steady(self) -> None:
        clock = Clock(self._launch.steady_s)
        self._desk.record.step("steady", until=clock.until)
        while True:
            self._look(fresh=True)
            living, wanted = self._members.living_ranks(), self._launch.ranks
            if not clock.left:
                if wanted is not None and self._launch.titles and living < wanted:
                    raise StartFailed("only %d of %d ranks live" % (living, wanted))
                return
            self._pause(min(EVERY_S, clock.left + 0.001))

    # -- watching -------------------------------------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        fds = list(self._members.fds)
        if self._helper.busy and self._helper.fd >= 0:
            fds.append(self._helper.fd)
        self._desk.wait(seconds, fds)
        self._desk.check_cancel()

    def _look(self, *, fresh: bool = False) -> None:
        """Raise StartFailed if the server has ended, lost a part (a rank, its detokenizer), or took too long.

        Args:
            fresh: Read the process table now, however long the server has been loading.
        """
        members, now = self._members, time.monotonic()
        loading_s = time.time() - self._began
        if fresh or loading_s < QUICK_S or now - self._scanned_at >= SLOW_S or members.ended:
            members.scan()
            self._scanned_at = now
        if members.leader.alive and not members.vanished():
            if not self._clock.left:
                raise StartFailed("not ready after %d s" % round(time.time() - self._began))
            return
        gone = members.vanished()
        if members.leader.alive:
            clock = Clock(DYING_S)
            self._desk.record.say("%s ended" % _name(gone[0]), clock.until)
            while members.leader.alive and clock.left:
                self._desk.wait(min(EVERY_S, clock.left), members.fds)
                members.scan()
        if gone and members.leader.alive:
            raise StartFailed("%s ended while the server started" % _name(gone[0]))
        seconds = time.time() - self._began
        raise StartFailed("the server %s after %.*f s" % (self.ending(), 1 if seconds < 10 else 0, seconds))

    def ending(self) -> str:
        """Return how the leader ended, in words."""
        return words_for(self._desk.pulse.exits.get(self._members.leader.id.pid))


def words_for(code: Optional[int]) -> str:
    """Return how a process ended, in words. `code`: its exit code, negative for a signal; None: not known."""
    if code is None:
        return "ended"
    if code < 0:
        try:
            return "was ended by %s" % signal.Signals(-code).name
        except ValueError:
            return "was ended by signal %d" % -code
    return "ended with exit code %d" % code


def _name(member: Member) -> str:
    """Return what a part is called: its title, and a rank by the tag in it where there is one."""
    title = member.id.title.split(" ")[0]
    tag = title.rpartition("_")[2] if member.rank and "_" in title and "::" in title else ""
    name = "rank %s" % tag if tag else title
    return "%s (pid %d)" % (name, member.id.pid)


def holder(port: int, uid: int, inode: int = 0) -> str:
    """Return who listens on a port, for people. `inode`: the socket that is meant; 0: any."""
    inodes = {inode} if inode else {item.inode for item in listeners_here() or () if item.port == port}
    for name in os.listdir(PROC):
        if name.isdigit() and inodes & (sockets_of(int(name)) or set()):
            return "pid %s of %s (%s)" % (name, user_name(uid), title_of(int(name))[:80])
    return "a process of %s" % user_name(uid)
