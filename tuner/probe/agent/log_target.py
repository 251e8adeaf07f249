"""Find where a server's output goes, and how it can be read."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .base import BLOCK, ME, PROC, Json, home_of, link_of, names_in, slurp, stat_of, text_of, user_name, which
from .journal import container_log_name, unit_log
from .origin import cgroup_paths, container_of, pod_of, unit_of
from .processes import Proc, below_root, owner_of

DOCKER_LOGS = "/var/lib/docker/containers"
POD_LOGS = "/var/log/pods"
POD_LINKS = "/var/log/containers"
"""Folder of links into `POD_LOGS` that are named after containers."""
PODMAN_LOG = "containers/storage/overlay-containers/%s/userdata/ctr.log"


class LogTarget:
    """The place where a server's output goes, and the paths by which it can be read."""

    __slots__ = ("code", "kind", "note", "opens", "path", "status", "watch")

    def __init__(self, kind: str, path: Optional[str] = None, note: Optional[str] = None, code: str = "") -> None:
        self.kind = kind
        self.path = path
        self.note = note
        self.code = code
        """Code of the problem to report along with `note`; empty for none."""
        self.opens: List[str] = []
        """Paths that lead to the file, the best one first."""
        self.watch = ""
        """Path whose status tells which file is written to now."""
        self.status: Optional[os.stat_result] = None

    @property
    def same_as(self) -> Tuple[Any, ...]:
        """Return a key that is equal for targets that one tail can follow."""
        return (self.kind, self.path if self.kind == "journal" else self.watch, self.code)

    def as_json(self) -> Json:
        """Return the `log` of a server's identity."""
        out: Json = {"kind": self.kind, "path": self.path, "note": self.note}
        if self.status is not None:
            out.update(device=self.status.st_dev, inode=self.status.st_ino)
        return out


def file_target(pid: int, fd: str, text: str) -> LogTarget:
    """Return the regular file behind a descriptor of a process."""
    watch = "%s/%d/fd/%s" % (PROC, pid, fd)
    deleted = text.endswith(" (deleted)")
    target = LogTarget("file", text[: -len(" (deleted)")] if deleted else text)
    target.watch = watch
    target.status = stat_of(watch)
    # The descriptor leads to the file itself, also when it was deleted or is inside a container.
    target.opens = [watch, *below_root(pid, target.path or "")]
    if deleted:
        target.code = "log-vanished"
        target.note = "the log file was deleted; it is read through the server's open descriptor until the server ends"
    return target


def pipe_reader(pid: int, pipe: str, procs: Dict[int, Proc], hops: int = 4) -> Optional[LogTarget]:
    """Return the file that a pipe ends in, through programs like tee; None where it ends in none."""
    for other in list(procs):
        if other == pid or link_of("%s/%d/fd/0" % (PROC, other)) != pipe:
            continue
        folder = "%s/%d/fd" % (PROC, other)
        onward = None
        for name in sorted(names_in(folder), key=lambda n: int(n) if n.isdigit() else 0):
            text = link_of(folder + "/" + name) or ""
            if name == "0" or text == pipe:
                continue
            if text.startswith("pipe:[") and name == "1":
                onward = text
            status = stat_of(folder + "/" + name) if text.startswith("/") else None
            flags = re.search(r"^flags:\s*([0-7]+)", text_of("%s/%d/fdinfo/%s" % (PROC, other, name)) or "", re.M)
            writes = flags is None or int(flags.group(1), 8) & os.O_ACCMODE != os.O_RDONLY
            if status is not None and stat.S_ISREG(status.st_mode) and writes and name != "2":
                return file_target(other, name, text)
        if onward is not None and hops:
            return pipe_reader(other, onward, procs, hops - 1)
    return None


def holds_marker(target: LogTarget, markers: Sequence[bytes]) -> bool:
    """Return whether the beginning of a log contains a start marker of an engine."""
    for path in target.opens:
        try:
            data = slurp(path, BLOCK)
        except OSError:
            continue
        return any(marker in data for marker in markers)
    return False


def wrapping(path: str) -> str:
    """Return the kind of a log, which tells how its lines are wrapped, by its path."""
    if path.startswith(DOCKER_LOGS + "/"):
        return "docker-json"
    return "cri" if path.startswith(POD_LOGS + "/") or path.endswith("/userdata/ctr.log") else "file"


def container_log(pid: int, ident: str, pod: Optional[str], markers: Sequence[bytes]) -> Optional[LogTarget]:
    """Return the file to which a container's runtime writes its output; None where there is none."""
    paths = ["%s/%s/%s-json.log" % (DOCKER_LOGS, ident, ident)]
    links = [name for name in names_in(POD_LINKS) if name.endswith("-%s.log" % ident)]
    paths += [os.path.realpath(os.path.join(POD_LINKS, name)) for name in links]
    homes = ["/var/lib", os.path.join(home_of(owner_of(pid)) or "/root", ".local/share")]
    paths += [os.path.join(home, PODMAN_LOG % ident) for home in homes]
    for path in paths:
        target = plain_target(path)
        if target is not None:
            return target
    if pod is None:
        return None
    # Without the link, only its lines tell the server's container from others of its pod.
    targets: List[LogTarget] = []
    for name in names_in(POD_LOGS):
        if name.endswith("_" + pod):
            for container in names_in(os.path.join(POD_LOGS, name)):
                folder = os.path.join(POD_LOGS, name, container)
                starts = [int(log[:-4]) for log in names_in(folder) if log.endswith(".log") and log[:-4].isdigit()]
                target = plain_target(os.path.join(folder, "%d.log" % max(starts))) if starts else None
                targets += [target] if target else []
    if len(targets) == 1:
        return targets[0]
    return next((target for target in targets if holds_marker(target, markers)), None)


def plain_target(path: str) -> Optional[LogTarget]:
    """Return the target of a log that another process than the server writes; None where there is no such file."""
    status = stat_of(path)
    if status is None:
        return None
    target = LogTarget(wrapping(path), path)
    target.watch, target.opens, target.status = path, [path], status
    return target


def find_log(pid: int, procs: Dict[int, Proc], markers: Sequence[bytes]) -> LogTarget:
    """Return where the output of a server goes, however it was started."""
    texts: List[str] = []
    files: List[LogTarget] = []
    denied = False
    for fd in ("1", "2"):
        try:
            text = os.readlink("%s/%d/fd/%s" % (PROC, pid, fd))
        except PermissionError:
            denied = True
            continue
        except OSError:
            continue
        status = stat_of("%s/%d/fd/%s" % (PROC, pid, fd))
        if stat.S_ISREG(status.st_mode) if status else text.startswith("/") and not text.startswith("/dev/"):
            files.append(file_target(pid, fd, text))
            continue
        texts.append(text)
        behind = pipe_reader(pid, text, procs) if text.startswith("pipe:[") else None
        if behind is not None:
            files.append(behind)
    if files:
        # stdout and stderr are two files: engines log to stderr, access lines go to stdout.
        two = len(files) == 2 and files[0].path != files[1].path
        return files[1] if two and (files[0].code or holds_marker(files[1], markers)) else files[0]
    paths = cgroup_paths(pid)
    container = container_of(paths)
    journal = which("journalctl")
    if container is not None:
        kept = container_log(pid, container[1], pod_of(paths), markers)
        if kept is not None:
            return kept
        if journal and any(text.startswith(("pipe:", "socket:")) for text in texts):
            return LogTarget("journal", container_log_name(container[1]))
    unit = unit_of(paths)
    if unit is not None and journal and any(text.startswith("socket:") for text in texts):
        return LogTarget("journal", unit_log(unit[0], owner_of(pid) if unit[1] else None))
    if denied:
        note = "the server's descriptors may not be read by %s; connect as root or as the server's user" % user_name(ME)
        return LogTarget("none", None, note, "log-denied")
    if container is not None:
        note = "the container's log may not be read; connect as root, or start it with its output in a mounted file"
        return LogTarget("none", None, note, "log-denied")
    for text in texts:
        if text.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
            note = "the output goes to the terminal %s; start the server with `2>&1 | tee FILE` to see its log" % text
            return LogTarget("none", None, note, "log-terminal")
    for text in texts:
        if text.startswith(("pipe:", "socket:")):
            note = "the output goes into a pipe nobody stores; start the server with `2>&1 | tee FILE` or `> FILE 2>&1`"
            return LogTarget("none", None, note, "log-pipe")
    note = "the server's output is thrown away; start it with `> FILE 2>&1`"
    return LogTarget("none", None, note, "log-none")


def find_file(path: str, device: Optional[int], inode: int, pid: int) -> Optional[str]:
    """Return the path of a file by device and inode, at `path` or beside it (rotated); None where it is not found."""

    def is_it(status: Optional[os.stat_result]) -> bool:
        return status is not None and status.st_ino == inode and device in (None, status.st_dev)

    for way in [path, *below_root(pid, path)]:
        if is_it(stat_of(way)):
            return way
        folder = os.path.dirname(way)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.inode() == inode and entry.is_file() and is_it(entry.stat()):
                        return entry.path
        except OSError:
            continue
    return None
