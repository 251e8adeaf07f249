"""The host's side of `doctor`."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Tuple

from .base import ME, PROC, Json, text_of, user_name, which
from .folder import our_folder, run_ids, size_of
from .installation import installed_engines, own_package_folders, pythons_on_path
from .lease import described, present_lease

if TYPE_CHECKING:
    from .probe import Probe


def checks(probe: Probe, limit_s: float = 10.0) -> Json:
    """Return the facts for `doctor` by id, each with `ok` (None where there is nothing to judge), `value` and `detail`.

    A disk or a driver that does not answer within `limit_s` seconds costs only the facts that come from it.
    """
    out: Json = {}
    ends = []
    for ids, look in _CHECKS:
        ends.append(end := threading.Event())
        for ident in ids:
            out[ident] = {"ok": False, "value": None, "detail": "no answer within %g s" % limit_s}

        def work(look: Callable[..., Iterator[Tuple[Any, ...]]] = look, end: threading.Event = end) -> None:
            try:
                for ident, ok, value, *detail in look(probe):
                    out[ident] = {"ok": ok, "value": value, "detail": detail[0] if detail else None}
            finally:
                end.set()

        probe.thread(work, "checks")
    until = time.monotonic() + limit_s
    for end in ends:
        end.wait(max(0.0, until - time.monotonic()))
    return dict(out)


def _check_system(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    import resource

    yield "python", True, "%d.%d.%d" % sys.version_info[:3], sys.executable
    yield "kernel", None, os.uname().release
    hint = None if ME == 0 else "other users' environments, descriptors and logs are hidden"
    yield "user", ME == 0, user_name(ME), hint
    hidden = hidepid()
    yield "proc", not hidden, "hidepid" if hidden else "readable", hidden
    yield "kernel_log", os.access("/dev/kmsg", os.R_OK), None
    yield "time", None, time.time(), time.strftime("%z %Z")
    limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in ("NOFILE", "MEMLOCK", "NPROC")}
    enough = limits["NOFILE"][1] == -1 or limits["NOFILE"][1] >= 65_536
    yield "limits", enough, {name: list(limit) for name, limit in limits.items()}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = round(usage.ru_utime + usage.ru_stime, 3)
    yield "probe", None, {"cpu_s": seconds, "peak_bytes": usage.ru_maxrss * 1024}


def _check_programs(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    yield "pythons", None, pythons_on_path()
    yield "journal", None, which("journalctl")
    servers = probe.live_servers()
    folders = own_package_folders() + [folder for server in servers for folder in server.site_folders]
    psutils = [folder for folder in folders if os.path.isdir(folder + "/psutil")]
    yield "psutil", bool(psutils), psutils[0] if psutils else None
    found = [
        {"engine": s.engine.name, "version": s.version, "prefix": s.interpreter, "running": True} for s in servers
    ] + installed_engines(probe.engines, os.path.expanduser("~"))
    yield "engines", bool(found), found


def _check_logs(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    servers = probe.live_servers()
    logs = {server.key: server.target.as_json() for server in servers}
    yield "logs", all(server.target.kind != "none" for server in servers) if servers else None, logs


def _check_gpus(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    table = probe.gpu.table
    yield "nvml", bool(table.get("source")), table.get("source"), table.get("reason")
    yield "driver", bool(table.get("driver")), table.get("driver"), table.get("cuda")
    yield "topology", None, table.get("topology")
    gpus = probe.gpu.gpus
    yield "persistence", gpus.persistence() if gpus is not None else None, None


def _check_host(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    memory = probe.host.memory()
    yield "memory", None, [memory.get("memory_total_bytes"), memory.get("memory_available_bytes")]
    shm = memory.get("shm_total_bytes")
    yield "shm", shm is not None and shm >= 1 << 30, [shm, memory.get("shm_free_bytes")]
    disks = probe.host.disks()
    yield "disk", all(free > 1 << 30 for _, free in disks.values()), disks


def _check_folder(probe: Probe) -> Iterator[Tuple[Any, ...]]:
    place = our_folder()
    if not os.path.isdir(place):
        yield "folder", None, None
        return
    lease = present_lease()
    holder = described(lease) if lease else None
    yield "folder", None, {"path": place, "bytes": size_of(place), "runs": len(run_ids()), "lease": holder}


_CHECKS: Tuple[Tuple[Tuple[str, ...], Callable[[Probe], Iterator[Tuple[Any, ...]]]], ...] = (
    (("python", "kernel", "user", "proc", "kernel_log", "time", "limits", "probe"), _check_system),
    (("pythons", "journal", "psutil", "engines"), _check_programs),
    (("logs",), _check_logs),
    (("nvml", "driver", "topology", "persistence"), _check_gpus),
    (("memory", "shm", "disk"), _check_host),
    (("folder",), _check_folder),
)
"""Ids of facts, in the order of the answer, and the function that yields them. One thread runs each function."""


def hidepid() -> Optional[str]:
    """Return why other users' processes are invisible, or None where they are not. Nothing is hidden from root."""
    if ME == 0:
        return None
    for line in (text_of(PROC + "/self/mounts") or text_of(PROC + "/mounts") or "").splitlines():
        parts = line.split()
        if (
            len(parts) > 3
            and parts[1] == "/proc"
            and re.search(r"hidepid=(?:[12]|noaccess|invisible|ptraceable)", parts[3])
        ):
            return "/proc is mounted with hidepid: processes of other users are hidden; connect as root"
    return None
