from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from tuner.session.tasks import spawn


async def test_a_failure_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    task = spawn(fails(), name="dividing")
    with caplog.at_level(logging.ERROR):
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert "dividing" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_a_task_is_kept_until_it_ends() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.get_running_loop().create_future() if done.is_set() else None
        done.set()

    spawn(work(), name="kept")
    gc.collect()
    await asyncio.wait_for(done.wait(), 5)


async def test_being_cancelled_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    task = spawn(asyncio.Event().wait(), name="waiting")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not caplog.records
