"""Fold what the kernel's log says of GPUs and processes: Xid errors, and kills for want of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tuner.domain import events as e
from tuner.domain.commands import AnyCommand
from tuner.domain.state import HostState

KEEP_KERNEL_LINES = 20
"""Most Xids and most kills of the kernel's log that are kept."""

Result = tuple[HostState, tuple[AnyCommand, ...]]


def _xid(state: HostState, event: e.GpuXid, engines: Any) -> Result:
    """Keep an Xid error once, although every probe reads the kernel's log from its beginning again."""
    same = (event.bus_id, event.xid, event.text)
    if any((x.bus_id, x.xid, x.text) == same and _close(x.at, event.at) for x in state.xids):
        return state, ()
    return msgspec.structs.replace(state, xids=(*state.xids, event)[-KEEP_KERNEL_LINES:]), ()


def _killed(state: HostState, event: e.ProcessKilled, engines: Any) -> Result:
    """Keep a kill once, although every probe reads the kernel's log from its beginning again."""
    if any(x.pid == event.pid and x.text == event.text and _close(x.at, event.at) for x in state.killed):
        return state, ()
    return msgspec.structs.replace(state, killed=(*state.killed, event)[-KEEP_KERNEL_LINES:]), ()


def _close(a: float | None, b: float | None) -> bool:
    """Return whether two readings of the kernel's clock, within a second, mean the same moment."""
    return a == b or (a is not None and b is not None and abs(a - b) < 1.0)


HANDLERS: Mapping[type, Callable[[HostState, Any, Any], Result]] = {e.GpuXid: _xid, e.ProcessKilled: _killed}
"""Handlers of `core.reduce`."""
