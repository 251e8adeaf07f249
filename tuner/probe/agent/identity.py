"""Prove that a process is the one that is meant, and signal that one and no other.

A PID is used again by the kernel, so it proves nothing. A process is the same if this boot of the host, the PID, the
start time and the user are the same. Signals go to one PID each, never to a group, a name or a pattern.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any, Optional

from .base import PROC, text_of
from .processes import owner_of, read_stat

NO_PROCESS = "it has ended"
_SEND_SIGNAL, _OPEN = 424, 434
"""Numbers of the system calls pidfd_send_signal and pidfd_open, the same for all processors."""


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
    if found is None or (not found.alive and found.ticks == ticks):
        return NO_PROCESS
    if found.ticks != ticks:
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

    Where the kernel has it, the process is first held by a descriptor. So it cannot become another one between the
    check and the signal.
    """
    if pid <= 1:
        return "pid %d is never signalled" % pid
    fd = -1
    try:
        try:
            fd = pidfd_open(pid)
        except ProcessLookupError:
            return NO_PROCESS
        except OSError:
            fd = -1  # a kernel before 5.3, or a sandbox that forbids it
        reason = why_not(pid, ticks, uid)
        if reason:
            return reason
        if fd >= 0:
            _send_to(fd, number)
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


def pidfd_open(pid: int) -> int:
    """Return a descriptor that stands for a process, also when its PID is used again. Raises OSError.

    It can be read once the process has ended, and is closed by exec.
    """
    opener: Any = getattr(os, "pidfd_open", None)
    return int(opener(pid)) if opener is not None else _syscall(_OPEN, pid, 0)


def _send_to(fd: int, number: int) -> None:
    """Send a signal to the process that a descriptor stands for. Raises OSError."""
    sender: Any = getattr(signal, "pidfd_send_signal", None)
    if sender is not None:
        sender(fd, number)
    else:
        _syscall(_SEND_SIGNAL, fd, number, 0, 0)


def _syscall(number: int, *arguments: int) -> int:
    """Make a system call for which Python before 3.9 has no function. Raises OSError."""
    try:
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).syscall
    except (ImportError, AttributeError):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    call.restype = ctypes.c_long
    result = int(call(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
