"""Earlier starts, from the older logs beside the current one."""

from __future__ import annotations

import itertools
import os
import re
from typing import List, Tuple

from .file_tail import FileTail
from .log_scan import start_of_last, startup_section
from .output import bulk, whole_utf8
from .processes import below_root
from .tail import Followed

OLD_LOG_LIMIT = 262_144


def looks_like_log(name: str, current: str) -> bool:
    """Return whether a file may be an older log of the same server, by its name."""
    plain = re.sub(r"[.-]\d[\d_-]*$", "", name)  # server.log.1, server.log-20260101
    extension = os.path.splitext(plain)[1]
    return extension in (".log", ".out", ".txt") or (bool(extension) and extension == os.path.splitext(current)[1])


def send_old_logs(server: Followed, tail: FileTail) -> None:
    """Send the start-up sections of older logs beside the current one. Done last, since nobody waits for it."""
    probe = server.probe
    engine = server.engine
    path = tail.target.path
    folders = [os.path.dirname(way) for way in below_root(server.leader.pid, path or "")] if path else []
    current = probe.log_inodes()
    found: List[Tuple[float, int, str]] = []
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, 4096):
                    if looks_like_log(entry.name, os.path.basename(path or "")) and entry.is_file():
                        status = entry.stat()
                        if status.st_size and (status.st_dev, status.st_ino) not in current:
                            found.append((status.st_mtime, status.st_size, entry.path))
        except OSError:
            continue
        break
    for _, size, old in sorted(found, reverse=True)[: probe.old_logs]:
        if server.ended.wait(0.05):
            return
        try:
            fd = os.open(old, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        lines = b""
        try:
            at = start_of_last(fd, size, engine.markers[0], 0.1)
            until = min(size, at + probe.head_bytes)
            for _, run in startup_section(fd, at, until, engine.markers, engine.end_marker):
                lines += run if run.endswith(b"\n") else run + b"\n"
        finally:
            os.close(fd)
        lines = lines[:OLD_LOG_LIMIT]
        if lines and probe.out.wait_for_room(server.ended.is_set):
            event = {
                "t": "old_log",
                "key": server.key,
                "path": os.path.join(os.path.dirname(path or ""), os.path.basename(old)),
            }
            probe.out.put({**event, "size": size, **bulk(lines[: whole_utf8(lines)])})
