"""The folder that gputuner keeps on a host, `~/.gputuner`, and the functions by which files in it are written.

It is made by the first act of an operator. Until then nothing is written on the host. The supervisor of a run uses the
same functions.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from typing import Any, List, Optional, Tuple

from .base import ME, Json, home_of, names_in, slurp, stat_of

FOLDER_MODE = 0o700
FILE_MODE = 0o600
LIMIT = 1 << 22
"""Most bytes of a JSON file that are read. A record of a run has some 10 KB; a file of another origin may have any."""

AUDIT = "audit.ndjson"
"""Name of the audit of this host. Nothing removes it: what can be removed by those of whom it tells proves nothing."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def our_folder() -> str:
    """Return the path of this user's folder, whether it exists or not.

    $HOME counts only if no other user owns it: root often has that of who called sudo, who could put another folder,
    with another program to run as root, in the place of ours.
    """
    home = os.environ.get("HOME") or ""
    status = stat_of(home) if home else None
    if status is None or status.st_uid not in (ME, 0):
        home = home_of(ME) or home
    return folder_of(home or "/")


def folder_of(home: str) -> str:
    """Return the path of the folder below a home folder."""
    return os.path.join(home, ".gputuner")


def existing_above(path: str) -> str:
    """Return the nearest folder above a path that exists, the path included."""
    while path not in ("", "/") and not os.path.exists(path):
        path = os.path.dirname(path)
    return path or "/"


def disk_of(path: str) -> Tuple[str, Optional[int]]:
    """Return the mount point of the file system on which a path is, or would be made, and the bytes free there.

    The bytes are those that this user may use; 0 where no file can be made for want of inodes, None where unknown.
    """
    place = os.path.realpath(existing_above(path))
    try:
        disk = os.statvfs(place)
        while not os.path.ismount(place):
            place = os.path.dirname(place)
    except OSError:
        return place, None
    return place, disk.f_bavail * disk.f_frsize if disk.f_favail or not disk.f_files else 0


def run_folder(ident: str) -> str:
    """Return the path of the folder of a run.

    Raises:
        ValueError: `ident` is no id of a run, so it might name a place outside the folder.
    """
    if not _RUN_ID.fullmatch(ident):
        raise ValueError("no id of a run: %r" % ident[:100])
    return os.path.join(our_folder(), "runs", ident)


def run_ids() -> List[str]:
    """Return the ids of all runs, newest first: an id begins with the time."""
    return sorted(
        (name for name in names_in(os.path.join(our_folder(), "runs")) if _RUN_ID.fullmatch(name)), reverse=True
    )


def make_folder(path: str) -> None:
    """Make a folder that only its owner may enter, and those above it.

    Raises:
        OSError: It cannot be made, or is not ours alone: somebody else could change what is run from it.
    """
    os.makedirs(path, FOLDER_MODE, exist_ok=True)
    status = os.stat(our_folder())
    if status.st_uid != ME or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError("%s is not ours alone: another user owns it or may write to it" % our_folder())


def read_json(path: str) -> Optional[Json]:
    """Return the object in a JSON file; None where there is none, or it is torn or something else."""
    try:
        found = json.loads(slurp(path, LIMIT).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_bytes(path: str, data: bytes, *, sync: bool = False) -> None:
    """Replace a file at once: who reads it sees the old content or the new. Raises OSError.

    Args:
        path: Path of the file. A link there is replaced, not followed.
        data: The new content.
        sync: Wait until the content is on the disk.
    """
    part = "%s.%d.%d.part" % (path, os.getpid(), time.monotonic_ns())
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            write_all(fd, data)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def write_json(path: str, value: Any, *, sync: bool = False) -> None:
    """Replace a JSON file at once; see `write_bytes`.

    The file is ASCII, so that bytes of a command line that are no UTF-8 (surrogates in Python) survive.
    """
    write_bytes(path, json.dumps(value, indent=1).encode("ascii") + b"\n", sync=sync)


def append_json(path: str, value: Json) -> None:
    """Append one line of JSON to a file that only grows. Raises OSError."""
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, FILE_MODE)
    try:
        write_all(fd, line)  # in one call, so that lines of several processes do not mix
    finally:
        os.close(fd)


def remove_file(path: str) -> None:
    """Remove a file, if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def audit(by: str, operator: Optional[Json], **what: Any) -> None:
    """Append a line to the audit of this host. Raises OSError.

    Args:
        by: `probe` or `supervisor`.
        operator: Who acts.
        **what: What was done, and what came of it. None is left out.
    """
    line: Json = {"at": round(time.time(), 3), "by": by, "operator": operator, "uid": ME}
    line.update((name, value) for name, value in what.items() if value is not None)
    append_json(os.path.join(our_folder(), AUDIT), line)


def size_of(path: str) -> int:
    """Return the bytes of all files below a folder, links not followed."""
    total = 0
    for name in names_in(path):
        place = os.path.join(path, name)
        try:
            status = os.lstat(place)
        except OSError:
            continue
        total += size_of(place) if stat.S_ISDIR(status.st_mode) else status.st_size
    return total


class Lock:
    """A lock between processes of this host: a file whose `flock` one of them holds. It ends with its process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    def take(self, wait_s: float = 0.0) -> bool:
        """Take the lock; return False if another process has held it for `wait_s` seconds. Raises OSError."""
        import fcntl

        until = time.monotonic() + wait_s
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.02)
                    continue
                os.close(fd)
                return False
            except OSError as e:
                os.close(fd)
                raise OSError(e.errno, "cannot be locked (%s)" % e.strerror, self.path) from None
            self._fd = fd
            return True

    def note(self, text: str) -> None:
        """Write into the file who holds the lock. Raises OSError."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode("utf-8", "replace"), 0)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def holder(self) -> Optional[str]:
        """Return what the process that holds the lock noted; None where nobody holds it."""
        if stat_of(self.path) is None:
            return None
        probe = Lock(self.path)
        try:
            if probe.take():
                return None
            return slurp(self.path, 200).decode("utf-8", "replace").strip()
        except OSError:
            return None
        finally:
            probe.release()


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
