"""What a process inherits beside environment and working folder: limits, umask, the cores it may use.

A server that was started from a login with `ulimit -n 65536`, or by `taskset`, is started again by a process with none
of that. So it is read off the old server.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List

from ..agent.base import HOST_ROOT, PROC, text_of
from ..agent.limits import limits_of

_LIMITS = {"Max open files": "RLIMIT_NOFILE", "Max locked memory": "RLIMIT_MEMLOCK", "Max processes": "RLIMIT_NPROC",
           "Max core file size": "RLIMIT_CORE", "Max stack size": "RLIMIT_STACK"}  # fmt: skip


def frame_of(pid: int) -> Dict[str, Any]:
    """Return umask, soft limits and cores of a process, as far as they can be read."""
    frame: Dict[str, Any] = {}
    status = text_of("%s/%d/status" % (PROC, pid)) or ""
    umask = re.search(r"^Umask:\s*([0-7]+)", status, re.M)
    if umask:
        frame["umask"] = int(umask.group(1), 8)
    limits = {_LIMITS[title]: soft for title, (soft, _) in limits_of(pid).items() if title in _LIMITS}
    if limits:
        frame["limits"] = limits
    if not HOST_ROOT:
        try:
            cores = sorted(os.sched_getaffinity(pid))
        except OSError:
            cores = []
        if cores and cores != sorted(os.sched_getaffinity(0)):
            frame["cores"] = cores
    return frame


def apply_frame(frame: Dict[str, Any]) -> None:
    """Give this process what `frame_of` read, as far as it is allowed to."""
    import resource

    if "umask" in frame:
        os.umask(int(frame["umask"]))
    for name, value in (frame.get("limits") or {}).items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        soft = value if hard == resource.RLIM_INFINITY or (value != -1 and value <= hard) else hard
        try:
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):
            pass
    cores: List[int] = frame.get("cores") or []
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError:
            pass  # the host lost one of them, or a container may not use it
