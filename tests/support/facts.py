"""Wait for a condition for which there is no event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LIMIT_S = 20.0


async def until(true: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return as soon as `true()` holds; fail when that takes longer than `limit_s` seconds."""
    async with asyncio.timeout(limit_s):
        while not true():  # noqa: ASYNC110 - other processes set no event
            await asyncio.sleep(0.01)
