"""Start asyncio tasks, here and nowhere else: each has a name and a reference, and its failure is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_running: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a coroutine in the background.

    Args:
        work: Coroutine to run.
        name: Name for logs and debuggers: what the task does, and for which host.

    Returns:
        The task. It need not be awaited: a reference is kept until it ends, and an exception that ends it is logged.
    """
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task %s failed", task.get_name(), exc_info=error)
