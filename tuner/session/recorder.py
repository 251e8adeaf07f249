"""Keeps a session's journal: written in a thread, so that a slow disk stops neither the screen nor the keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tuner.domain.events import AnyEvent
from tuner.errors import JournalError
from tuner.session.tasks import spawn
from tuner.store.journal import Journal

BEHIND_BYTES = 16 << 20
"""The journal may lie so far behind; then nothing more is read from the host until it has caught up."""


class Recorder:
    """Writes what happened, one block after the other.

    Args:
        journal: Where to; None: nowhere.
        trouble: Told once why it cannot be written.
    """

    def __init__(self, journal: Journal | None, trouble: Callable[[JournalError], None]) -> None:
        self._journal = journal
        self._trouble = trouble
        self._began = time.monotonic()
        self._writing: asyncio.Task[None] | None = None

    def note(self, event: AnyEvent) -> None:
        """Collect an event."""
        if self._journal:
            self._journal.append(event, time.monotonic() - self._began)

    def write(self) -> None:
        """Begin to write what was collected, unless something is being written still."""
        if self._journal and (self._writing is None or self._writing.done()):
            self._writing = spawn(self._write(self._journal), name=f"journal {self._journal.path}")

    async def keep_up(self) -> None:
        """As `write`; waits when far too much is waiting."""
        self.write()
        if self._journal and self._writing and self._journal.waiting_bytes > BEHIND_BYTES:
            await asyncio.wait([self._writing])

    async def close(self) -> None:
        """Write all and close."""
        if self._writing:
            await asyncio.wait([self._writing])
        if self._journal and (problem := await asyncio.to_thread(self._journal.close)):
            self._trouble(problem)

    async def _write(self, journal: Journal) -> None:
        if problem := await asyncio.to_thread(journal.flush):
            self._trouble(problem)
