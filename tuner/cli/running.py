"""Run a coroutine as a command, so that signals end it in order.

asyncio turns the first interrupt into a cancellation; SIGTERM and SIGHUP are treated alike here, so that the probe is
told to exit and the demo's host is ended in every case.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end and return its result.

    Raises:
        KeyboardInterrupt: Ended by SIGINT.
        SystemExit: Ended by SIGTERM or SIGHUP; the code is the one a shell reports for that.
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
