"""Prove that a process is the one that is meant, and signal that one and no other.

A PID is used again by the kernel, so it proves nothing. A process is the same if this boot of the host, the PID, the
start time and the user are the same. Signals go to one PID each, never to a group, a name or a pattern.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Optional

from .base import PROC, text_of
from .processes import owner_of, read_stat

NO_PROCESS = "it has ended"


def boot_id() -> Optional[str]:
    """Return the id of this boot of the host; None where it cannot be read."""
    return (text_of(PROC + "/sys/kernel/random/boot_id") or "").strip() or None


def why_not(pid: int, ticks: int, uid: Optional[int] = None) -> str:
    """Return why a PID is not the living process that is meant; empty if it is.

    A zombie has ended: only its exit status is left.

    Args:
        pid: The PID.
        ticks: Its start time, field 22 of /proc/PID/stat.
        uid: Its effective user; None: not compared.
    """
    found = read_stat(pid)
    if found is None or (found[0] in "ZX" and found[2] == ticks):
        return NO_PROCESS
    if found[2] != ticks:
        return "pid %d is another process now" % pid
    if uid is not None:
        owner = owner_of(pid)
        if owner is None and read_stat(pid) is None:
            return NO_PROCESS
        if owner != uid:
            return "process %d belongs to user %s and not to %d" % (pid, owner, uid)
    return ""


def alive(pid: int, ticks: int) -> bool:
    """Return whether a process lives and is the one that is meant."""
    return not why_not(pid, ticks)


def send(pid: int, ticks: int, uid: Optional[int], number: int) -> str:
    """Send a signal to the process that is meant; return why it was not sent, empty if it was.

    Where the kernel and Python have it, the process is first held by a descriptor. So it cannot become another one
    between the check and the signal.
    """
    if pid <= 1:
        return "pid %d is never signalled" % pid
    opener: Any = getattr(os, "pidfd_open", None)
    sender: Any = getattr(signal, "pidfd_send_signal", None)
    fd = -1
    try:
        if opener is not None and sender is not None:
            try:
                fd = opener(pid)
            except ProcessLookupError:
                return NO_PROCESS
            except OSError:
                fd = -1  # a kernel before 5.3, or a sandbox that forbids it
        reason = why_not(pid, ticks, uid)
        if reason:
            return reason
        if fd >= 0:
            sender(fd, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return NO_PROCESS
    except OSError as e:
        return "signal %d to process %d: %s" % (number, pid, e.strerror or e)
    finally:
        if fd >= 0:
            os.close(fd)
    return ""
