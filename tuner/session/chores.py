"""Carry out the core's commands one after the other, with disk access in a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from tuner.domain import commands as c
from tuner.domain import events as e
from tuner.session.tasks import spawn
from tuner.store.history import History

CHORES_S = 2.0
"""Longest wait for pending commands when a session ends, seconds."""


class Chores:
    """The pending commands of one session.

    Args:
        history: History in which starts are kept and looked up; None: none.
        host: Returns the name under which the host is in the history.
        happened: Called with the events that a command gives.
        trouble: Called with code and detail of a problem.
    """

    def __init__(
        self,
        history: History | None,
        host: Callable[[], str],
        happened: Callable[[e.AnyEvent], None],
        trouble: Callable[[str, str], None],
    ) -> None:
        self._history = history
        self._host = host
        self._happened = happened
        self._trouble = trouble
        self._waiting: asyncio.Queue[c.AnyCommand] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def add(self, commands: Iterable[c.AnyCommand]) -> None:
        """Add commands behind those that wait."""
        for command in commands:
            self._waiting.put_nowait(command)

    def start(self) -> None:
        """Begin to carry commands out."""
        self._task = spawn(self._work(), name=f"chores {self._host()}")

    async def finish(self) -> None:
        """Wait until no command is pending, `CHORES_S` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHORES_S):
                await self._waiting.join()

    async def stop(self) -> None:
        """Drop what is pending, and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            command = await self._waiting.get()
            try:
                if self._history is not None:
                    await self._do(command, self._history)
            finally:
                self._waiting.task_done()

    async def _do(self, command: c.AnyCommand, history: History) -> None:
        match command:
            case c.KeepStart(record=record) | c.KeepMemory(record=record):
                await asyncio.to_thread(history.keep, record)
            case c.LookUpStarts():
                alike = (self._host(), command.engine, command.model, command.began_at)
                usual, starts = await asyncio.to_thread(history.look_up, *alike)
                self._happened(e.HistoryFound(key=command.key, usual=usual, starts=starts))
        if history.problem:
            self._trouble("history", history.problem)
            history.problem = None
