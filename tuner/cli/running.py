"""Running a coroutine as a command: interrupts end it in order, and a lost host becomes an error.

asyncio already turns the first interrupt into a cancellation; being terminated or hung up on is treated alike, so that
the probe is told good-bye and the demo's host is ended whatever ends us.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.errors import ConnectionFailed

if TYPE_CHECKING:
    from tuner.cli.ask import TerminalAsk
    from tuner.domain.state import HostState
    from tuner.session.session import Session

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end.

    Raises:
        KeyboardInterrupt: interrupted.
        SystemExit: terminated or hung up on; the code is the one a shell gives to that.
    """
    ended_by: list[int] = []

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            ended_by.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        return await main

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if ended_by:
            raise SystemExit(128 + ended_by[0]) from None
        raise


@asynccontextmanager
async def running(session: Session) -> AsyncIterator[Session]:
    """The session at work; closed when the context is left."""
    from tuner.session.tasks import spawn

    work = spawn(session.run(), name="session")
    try:
        yield session
    finally:
        await session.aclose()
        await work


def check_reached(state: HostState, ask: TerminalAsk) -> None:
    """Raise what keeps a command from its host.

    Raises:
        ConnectionFailed: the link is down.
    """
    from tuner.domain.link import LinkPhase

    if state.link.phase is LinkPhase.DOWN:
        reason = state.link.reason or "the link is down"
        raise ConnectionFailed(state.name, reason, ask.refusal or "")
