"""The files of a run, written so that a full disk loses nothing that can be written later."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

from ..agent.base import ME, Json
from ..agent.folder import FILE_MODE, Lock, read_json, write_all, write_bytes

RESERVE_BYTES = 262_144
"""Size of the file that is given up on a full disk: a run writes less than this."""
_RESERVE = "reserve"
_WAITING_BYTES = 1 << 20
"""Most bytes of lines that wait for a disk with room again."""


class Folder:
    """The folder of a run, and the files that it shares with other runs, two folders above.

    Args:
        path: The folder, `.../runs/ID`.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self.run = os.path.basename(self.path)
        self.home = os.path.dirname(os.path.dirname(self.path))
        self._lock = Lock(os.path.join(self.home, "lock"))
        self._waiting: Dict[str, bytes] = {}

    def file(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return os.path.join(self.path, name)

    def read(self, name: str) -> Optional[Json]:
        """Return the JSON object in a file; None where there is none, or where it cannot be read."""
        return read_json(self.file(name))

    def replace(self, name: str, value: Json) -> bool:
        """Write a JSON file so that readers see the old or the new one, never a part; return whether it succeeded."""
        try:
            write_bytes(self.file(name), json.dumps(value, separators=(",", ":")).encode())
        except OSError:
            return False
        return True

    def append(self, name: str, value: Json) -> bool:
        """Append a line to a file of the run; return whether it, and all that waited before it, was written."""
        return self._append(self.file(name), value)

    def audit(self, value: Json) -> bool:
        """Append a line to the host's record of all acts; return whether it was written."""
        line = {"at": value["at"], "by": "supervisor", "operator": value["operator"], "uid": ME, **value}
        return self._append(os.path.join(self.home, "audit.ndjson"), line)

    def _append(self, path: str, value: Json) -> bool:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        waiting = self._waiting.get(path, b"")
        if len(waiting) + len(line) <= _WAITING_BYTES:
            self._waiting[path] = waiting + line
        return self._flush(path)

    def flush(self) -> bool:
        """Write the lines that a full disk refused before; return whether none waits any more."""
        done = True
        for path in list(self._waiting):
            done = self._flush(path) and done
        return done

    def _flush(self, path: str) -> bool:
        data = self._waiting.get(path, b"")
        if not data:
            return True
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        except OSError:
            return False
        try:
            written = os.write(fd, data)
        except OSError:
            return False
        finally:
            os.close(fd)
        rest = data[written:]
        begin = data.rfind(b"\n", 0, written) + 1
        if begin < written and not rest.startswith(b"\n"):
            rest = b"\n" + data[begin:]  # a line that is torn is written again, on a line of its own
        self._waiting[path] = rest
        return not rest

    def make_reserve(self) -> None:
        """Occupy some disk space that `free_reserve` gives up. Raises OSError when there is not enough."""
        fd = os.open(self.file(_RESERVE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            write_all(fd, b"\0" * RESERVE_BYTES)
        finally:
            os.close(fd)

    def free_reserve(self) -> None:
        """Give up the occupied disk space."""
        _remove(self.file(_RESERVE))

    def take_lock(self) -> Optional[str]:
        """Become the only active run of the host.

        Returns:
            The id of the run that is going on; None when there was none, and the lock is ours. Raises OSError.
        """
        # The probe looks who holds the lock by taking it for an instant.
        if not self._lock.take(1.0):
            return self._lock.holder() or "unknown"
        try:
            self._lock.note(self.run)
        except OSError:
            pass  # the name is for people; the lock holds without it
        return None

    def release_lock(self) -> None:
        """Let other runs begin."""
        self._lock.release()


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def room_below(path: str) -> Optional[int]:
    """Return the free bytes of the file system that holds a folder; None where unknown."""
    try:
        status: Any = os.statvfs(path)
    except OSError:
        return None
    return int(status.f_bavail * status.f_frsize)
