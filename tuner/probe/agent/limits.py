"""Limits of a process that would be started: descriptors, processes, locked memory, cgroup, shared memory."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Tuple

from .base import PROC, SYS, Json, text_of

_NAMES = {"nofile": "Max open files", "nproc": "Max processes", "memlock": "Max locked memory"}
_UNLIMITED = -1


def limit_facts(server_pid: Optional[int]) -> Json:
    """Return the fact `limits`: soft and hard limit as a pair, -1 for none; bytes of the cgroup; sizes of SysV memory.

    The limits are this process's own: what it starts has the same, in a systemd unit too.
    """
    import resource

    out: Json = {}
    for name in _NAMES:
        soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        out[name] = [_signed(soft), _signed(hard)]
    theirs = limits_of(server_pid) if server_pid is not None else {}
    for name, title in _NAMES.items():
        if title in theirs:
            out["server_" + name] = theirs[title]
    room = cgroup_memory()
    if room is not None:
        out["cgroup_bytes"], out["cgroup_used_bytes"] = room
    for name in ("shmmax", "shmall"):
        number = (text_of("%s/sys/kernel/%s" % (PROC, name)) or "").strip()
        if number.isdigit():
            out[name] = min(int(number), 1 << 60)
    return out


def _signed(limit: int) -> int:
    return _UNLIMITED if limit < 0 or limit >= 1 << 62 else limit


def limits_of(pid: int) -> Dict[str, List[int]]:
    """Return the limits of a process by the kernel's title, soft and hard, -1 for none; empty where unreadable."""
    text = text_of("%s/%d/limits" % (PROC, pid)) or ""
    found = re.findall(r"^(\S.*?)\s{2,}(\d+|unlimited)\s+(\d+|unlimited)\s", text, re.M)
    return {title: [_UNLIMITED if word == "unlimited" else int(word) for word in words] for title, *words in found}


def cgroup_memory() -> Optional[Tuple[int, int]]:
    """Return the memory limit of this process's control group and what it uses, bytes; None without a limit.

    Where several of its groups have one, it is that with the least room left.
    """
    found: List[Tuple[int, int]] = []
    for line in (text_of(PROC + "/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0":
            found += _limits_above(SYS + "/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in kinds.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            found += _limits_above(SYS + "/fs/cgroup/memory", path, *files)
    return min(found, key=lambda pair: pair[0] - pair[1]) if found else None


def _limits_above(root: str, path: str, limit_file: str, usage_file: str) -> List[Tuple[int, int]]:
    """Return limit and usage of a control group and of those above it, where there is a limit."""
    out = []
    while True:
        limit = (text_of(root + path.rstrip("/") + "/" + limit_file) or "").strip()
        used = (text_of(root + path.rstrip("/") + "/" + usage_file) or "").strip()
        if limit.isdigit() and int(limit) < 1 << 60:
            out.append((int(limit), int(used) if used.isdigit() else 0))
        if path in ("", "/"):
            return out
        path = os.path.dirname(path)
