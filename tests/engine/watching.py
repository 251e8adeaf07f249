"""A session with this machine without a screen, and waiting for facts in its states."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.engine.servers import Server
from tuner.domain.link import Question, Target
from tuner.domain.server import Phase
from tuner.domain.state import HostState, ServerState
from tuner.session.session import Session, open_session
from tuner.session.tasks import spawn

STUCK_S = 10.0
"""Seconds without a turn of the event loop after which its stack is printed: a failed wait would not show the cause."""
LOCAL = Target(name="local", scheme="local", host="local")


async def nobody(question: Question) -> str | None:
    """Fail: no question is asked on this machine."""
    raise AssertionError(question)


@contextlib.asynccontextmanager
async def watching(**options: Any) -> AsyncIterator[Watch]:
    """Yield the watch of a running session with this machine."""
    watch = Watch(open_session(LOCAL, ask=nobody, **options))
    work = spawn(watch.session.run(), name="session")
    reader = spawn(watch.read(), name="states")
    pulse = spawn(beat(), name="pulse")
    try:
        yield watch
    finally:
        pulse.cancel()
        await watch.session.aclose()
        await work
        await reader


async def beat() -> None:
    """Postpone the printing of the stack for as long as the event loop turns."""
    try:
        while True:
            faulthandler.dump_traceback_later(STUCK_S)
            await asyncio.sleep(1.0)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Watch:
    """The states that a session has shown, in order."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.phases: dict[int, list[Phase]] = {}
        """Phases by the leader's PID, each once, in the order seen."""
        self._changed = asyncio.Condition()

    async def read(self) -> None:
        """Follow the states until the session ends."""
        async for state in self.session.snapshots():
            for server in state.servers:
                seen = self.phases.setdefault(server.identity.pid, [])
                if not seen or seen[-1] is not server.phase:
                    seen.append(server.phase)
            async with self._changed:
                self._changed.notify_all()

    async def until(self, true: Callable[[HostState], Any], limit_s: float = 60) -> HostState:
        """Wait for a state of which `true` holds.

        Seconds in which the whole machine was suspended count as one, since nothing could have come.
        """
        async with self._changed:
            for _ in range(math.ceil(limit_s)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._changed.wait_for(lambda: true(self.session.state))
                        return self.session.state
        raise AssertionError(f"not within {limit_s} s; the last state: {in_short(self.session.state)}")

    async def server(self, of: Server, true: Callable[[ServerState], Any], limit_s: float = 60) -> ServerState:
        """Wait for a state of one server of which `true` holds."""

        def found(state: HostState) -> bool:
            server = described(state, of)
            return server is not None and bool(true(server))

        state = described(await self.until(found, limit_s), of)
        assert state is not None
        return state


def in_short(state: HostState) -> str:
    """Return a state in short, for the message of a failed wait: in full it has hundreds of lines."""
    servers = [
        f"{each.identity.engine} {each.identity.pid} {each.phase} ({each.phase_evidence}), found "
        f"{[(found.cause, found.ranks, found.confidence) for found in each.findings]}, metrics {each.metrics}, "
        f"members {[(member.pid, member.title[:40], member.state) for member in each.identity.members]}"
        for each in state.servers
    ]
    return f"at {state.mono} {state.link}; servers {servers}; problems {state.problems}"


def described(state: HostState, server: Server) -> ServerState | None:
    """Return what is known about a server, by its leader's PID; None for nothing."""
    return next((known for known in state.servers if known.identity.pid == server.pid), None)


def snapshot(folder: Path) -> dict[str, Any]:
    """Return what the installed command prints.

    It runs with an empty folder for temporary files, which must stay empty.
    """
    folder.mkdir()
    ran = subprocess.run(
        [Path(sys.executable).with_name("gputuner"), "snapshot", "local", "--json"],
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert list(folder.iterdir()) == []
    reading: dict[str, Any] = json.loads(ran.stdout)
    return reading
