from __future__ import annotations

import asyncio

import pytest

from tuner.transports import local
from tuner.transports.local import LocalTransport


async def test_a_program_that_no_signal_ends_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits for a dead disk: here the signals are not sent."""
    monkeypatch.setattr(local, "GRACE_S", 0.05)
    transport = LocalTransport()
    process = await transport.spawn(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"])
    assert await process.read() == b"up\n"
    assert process._transport is not None
    monkeypatch.setattr(process._transport, "send_signal", lambda number: None)
    async with asyncio.timeout(5):
        await process.aclose()
        await process.aclose()
        await transport.aclose()
        assert await process.read() == b""
        assert await process.wait() is None
