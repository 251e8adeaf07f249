"""The one place that starts tasks: each has a name, is kept until it ends, and does not fail in silence."""

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
        work: What to run.
        name: For logs and debuggers: what it does, and for which host.

    Returns:
        The task. Nobody has to wait for it: it is kept until it ends, and an exception that ends it is logged.
    """
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task %s failed", task.get_name(), exc_info=error)
