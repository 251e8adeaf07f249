"""The receiving side of a process: bytes arrive by callback, and are buffered until they are read in blocks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

HIGH_WATER_BYTES = 1 << 20
"""Number of buffered bytes above which the sender is paused; it is resumed at half of it."""
ERRORS_KEPT_BYTES = 8192
"""Number of last bytes of stderr that are kept."""


class Inbox:
    """A buffer between a protocol's callbacks and a reader.

    Args:
        pause: Called when more than `HIGH_WATER_BYTES` are buffered.
        resume: Called when there is room again.
    """

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._ended = False
        self._news = asyncio.Event()
        self._errors = b""

    def put(self, data: bytes) -> None:
        """Add bytes received from stdout."""
        self._chunks.append(data)
        self._size += len(data)
        self._news.set()
        if self._size > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._pause()

    def put_error(self, data: bytes) -> None:
        """Add bytes received from stderr, of which only the end is kept."""
        self._errors = (self._errors + data)[-ERRORS_KEPT_BYTES:]

    def end(self) -> None:
        """Mark the end of stdout, so that readers no longer wait."""
        self._ended = True
        self._news.set()

    def errors(self) -> str:
        """Return the kept end of stderr."""
        return self._errors.decode(errors="replace")

    async def read(self, limit: int) -> bytes:
        """Wait for bytes and return at most `limit` of them; empty at the end."""
        while not self._chunks and not self._ended:
            self._news.clear()
            await self._news.wait()
        block = bytearray()
        while self._chunks and len(block) < limit:
            chunk = self._chunks.popleft()
            room = limit - len(block)
            if len(chunk) > room:
                self._chunks.appendleft(chunk[room:])
                chunk = chunk[:room]
            block += chunk
        self._size -= len(block)
        if self._paused and self._size <= HIGH_WATER_BYTES // 2 and not self._ended:
            self._paused = False
            self._resume()
        return bytes(block)
