"""A session with this machine, without a screen, and the facts that tests wait for in its states."""

from __future__ import annotations

import asyncio
import contextlib
import json
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

LOCAL = Target(name="local", scheme="local", host="local")


async def nobody(question: Question) -> str | None:
    """Nothing is asked on this machine."""
    raise AssertionError(question)


@contextlib.asynccontextmanager
async def watching(**options: Any) -> AsyncIterator[Watch]:
    """A running session with this machine."""
    watch = Watch(open_session(LOCAL, ask=nobody, **options))
    work = spawn(watch.session.run(), name="session")
    reader = spawn(watch.read(), name="states")
    try:
        yield watch
    finally:
        await watch.session.aclose()
        await work
        await reader


class Watch:
    """What a session showed, in order."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.phases: dict[int, list[Phase]] = {}
        """By the leader's pid, each phase once, in the order seen."""
        self._changed = asyncio.Condition()

    async def read(self) -> None:
        """Follow the states to the end of the session."""
        async for state in self.session.snapshots():
            for server in state.servers:
                seen = self.phases.setdefault(server.identity.pid, [])
                if not seen or seen[-1] is not server.phase:
                    seen.append(server.phase)
            async with self._changed:
                self._changed.notify_all()

    async def until(self, true: Callable[[HostState], Any], limit_s: float = 60) -> HostState:
        """Wait for a state of which `true` holds."""
        try:
            async with asyncio.timeout(limit_s), self._changed:
                await self._changed.wait_for(lambda: true(self.session.state))
        except TimeoutError:
            raise AssertionError(f"not within {limit_s} s; the last state was {self.session.state}") from None
        return self.session.state

    async def server(self, of: Server, true: Callable[[ServerState], Any], limit_s: float = 60) -> ServerState:
        """Wait for a state of one server of which `true` holds."""

        def found(state: HostState) -> bool:
            server = described(state, of)
            return server is not None and bool(true(server))

        state = described(await self.until(found, limit_s), of)
        assert state is not None
        return state


def described(state: HostState, server: Server) -> ServerState | None:
    """What is known about a server, by its leader's pid."""
    return next((known for known in state.servers if known.identity.pid == server.pid), None)


def snapshot(folder: Path) -> dict[str, Any]:
    """What the installed command prints, run with an empty folder for temporary files that must stay empty."""
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
