"""Write a session's journal in a thread, so that a slow disk blocks neither screen nor keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tuner.domain.events import AnyEvent
from tuner.errors import JournalError
from tuner.session.tasks import spawn
from tuner.store.journal import Journal

BEHIND_BYTES = 16 << 20
"""Number of unwritten bytes above which nothing more is read from the host until the disk has caught up."""


class Recorder:
    """Writes events to a journal, one block after the other.

    Args:
        journal: The journal; None: events are dropped.
        trouble: Called once with the reason if the journal cannot be written.
    """

    def __init__(self, journal: Journal | None, trouble: Callable[[JournalError], None]) -> None:
        self._journal = journal
        self._trouble = trouble
        self._began = time.monotonic()
        self._writing: asyncio.Task[None] | None = None

    def note(self, event: AnyEvent) -> None:
        """Collect an event for the next write."""
        if self._journal:
            self._journal.append(event, time.monotonic() - self._began)

    def write(self) -> None:
        """Begin to write the collected events, unless a write is still running."""
        if self._journal and (self._writing is None or self._writing.done()):
            self._writing = spawn(self._write(self._journal), name=f"journal {self._journal.path}")

    async def keep_up(self) -> None:
        """Do as `write`, and wait for the disk if more than `BEHIND_BYTES` are unwritten."""
        self.write()
        if self._journal and self._writing and self._journal.waiting_bytes > BEHIND_BYTES:
            await asyncio.wait([self._writing])

    async def close(self) -> None:
        """Write all events and close the journal."""
        if self._writing:
            await asyncio.wait([self._writing])
        if self._journal and (problem := await asyncio.to_thread(self._journal.close)):
            self._trouble(problem)

    async def _write(self, journal: Journal) -> None:
        if problem := await asyncio.to_thread(journal.flush):
            self._trouble(problem)
