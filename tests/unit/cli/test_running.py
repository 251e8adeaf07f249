from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tuner.cli.running import run


async def waiting(number: int, log: list[str]) -> None:
    """Send ourselves a signal, then wait for ever."""
    try:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        await asyncio.Event().wait()
    finally:
        log.append("cleaned up")


def test_the_result_comes_back() -> None:
    async def three() -> int:
        return 3

    assert run(three()) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    log: list[str] = []
    with pytest.raises(SystemExit) as ended:
        run(waiting(number, log))
    assert ended.value.code == 128 + number
    assert log == ["cleaned up"]


def test_an_interrupt_ends_it_in_order() -> None:
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(waiting(signal.SIGINT, log))
    assert log == ["cleaned up"]
