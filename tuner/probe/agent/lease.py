"""The right to change the host, which one operator has at a time: `~/.gputuner/lease.json`.

Its holder's probe gives a sign of life every few seconds. A lease without one is free, so a laptop that died keeps
nobody out. Another operator can take a lease over deliberately; the former holder is told.

All probes of a host share its monotonic clock, so a sign of life is dated by that, and a wall clock that is set does no
harm. Where the home folder is shared by several hosts, they share the lease too, dated by the wall clock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Dict, Iterator, Optional, Tuple

from .base import ME, PROC, Json, Refused, home_of, stat_of, text_of
from .folder import Lock, folder_of, make_folder, our_folder, read_json, remove_file, write_json
from .identity import boot_id
from .output import Outbox


class LeaseKeeper:
    """Takes, keeps, watches and releases the lease for this probe's operator."""

    BEAT_S = 5.0
    """Seconds between signs of life of the holder."""
    EXPIRY_S = 30.0
    """Seconds without a sign of life after which a lease is free."""
    LOCK_S = 2.0
    """Longest wait for another probe that changes the lease."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._guard = threading.RLock()
        self._holding: Optional[Json] = None
        """This probe's operator while the lease is theirs."""
        self._lost_to: Optional[Json] = None
        self._entry: Optional[Json] = None
        """Content of the file at the last look."""
        self._mark: Optional[Tuple[int, int]] = None
        """Time and inode of the file at the last look."""
        self._beat_due = 0.0
        self._told: Json = _line(None, False, None, None)

    @property
    def held(self) -> bool:
        """Return whether this probe's operator holds the lease, as far as was seen."""
        return self._holding is not None

    def take(self, operator: Json, seize: bool) -> None:
        """Take the lease, and make gputuner's folder if there is none.

        Raises:
            Refused: Another operator holds it, and `seize` is False.
            OSError: The folder cannot be written.
        """
        make_folder(our_folder())
        with self._locked():
            entry = read_json(_path())
            same = entry is not None and entry.get("session") == operator["session"]
            if entry is not None and not same and not seize and is_live(entry, self.EXPIRY_S):
                raise Refused(
                    "%s has the right to change this host" % described(entry),
                    "ask them to give it back, or take it over (--take-over, or L on the Tune screen)",
                )
            since = entry.get("since") if same and entry is not None else None
            self._holding = {**operator, "since": since if isinstance(since, float) else round(time.time(), 3)}
            self._lost_to = None
            self._beat()
        self._tell()

    def require(self, operator: Json) -> None:
        """Prove that an operator holds the lease now, and give a sign of life.

        Raises:
            Refused: They do not.
            OSError: The folder cannot be read or written.
        """
        with self._guard:
            holding = self._holding
            if holding is not None and holding["session"] == operator["session"] and os.path.isdir(our_folder()):
                with self._locked():
                    if self._is_ours(read_json(_path())):
                        self._beat()
                        return
        self.tick()
        entry = self._entry
        if entry is not None and is_live(entry, self.EXPIRY_S) and entry.get("session") != operator["session"]:
            raise Refused(
                "%s has the right to change this host" % described(entry),
                "take it over to go on (--take-over, or L on the Tune screen)",
            )
        raise Refused("nobody has taken the right to change this host", "take it first")

    def release(self) -> None:
        """Give the lease back, if it is held. Raises OSError."""
        with self._guard:
            if self._holding is None:
                return
            # After `clean` there is none, and the lock's file is not made again for it.
            if os.path.exists(_path()):
                with self._locked():
                    if self._is_ours(read_json(_path())):
                        remove_file(_path())
            self._holding = None
            self._entry = self._mark = None
        self._tell()

    def end(self, wait_s: float) -> None:
        """Give the lease back because the probe ends; a disk that does not answer delays that `wait_s` at most."""
        if self._holding is None:
            return

        def work() -> None:
            with contextlib.suppress(OSError, Refused):
                self.release()

        thread = threading.Thread(target=work, name="release", daemon=True)
        thread.start()
        thread.join(wait_s)

    def tick(self) -> None:
        """Look at the lease, give a sign of life if it is due, and tell what changed. Raises OSError."""
        with self._guard:
            status = stat_of(_path())
            mark = (status.st_mtime_ns, status.st_ino) if status else None
            if mark != self._mark:
                self._mark = mark
                self._entry = read_json(_path())
            if self._holding is not None:
                if not self._is_ours(self._entry):
                    self._holding = None
                    self._lost_to = _operator(self._entry) if self._entry else None
                elif time.monotonic() >= self._beat_due:
                    with self._locked():
                        # Read again: it may have been taken over a moment ago.
                        if self._is_ours(read_json(_path())):
                            self._beat()
        self._tell()

    def _is_ours(self, entry: Optional[Json]) -> bool:
        return entry is not None and self._holding is not None and entry.get("session") == self._holding["session"]

    def _beat(self) -> None:
        """Write the lease with the present time. The lock is held."""
        self._entry = {
            **(self._holding or {}),
            "beat": round(time.time(), 3),
            "mono": round(time.monotonic(), 3),
            "boot_id": boot_id(),
            "hostname": hostname(),
        }
        write_json(_path(), self._entry)
        status = stat_of(_path())
        self._mark = (status.st_mtime_ns, status.st_ino) if status else None
        self._beat_due = time.monotonic() + self.BEAT_S

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._guard:
            lock = Lock(os.path.join(our_folder(), "lease.lock"))
            if not lock.take(self.LOCK_S):
                raise Refused("another probe has been changing the lease for %g s" % self.LOCK_S, "try again")
            try:
                yield
            finally:
                lock.release()

    def _tell(self) -> None:
        with self._guard:
            entry = self._entry if self._entry is not None and is_live(self._entry, self.EXPIRY_S) else None
            line = _line(_operator(entry), self.held, entry.get("beat") if entry else None, self._lost_to)
            if line != self._told:
                self._told = line
                self._out.put({"t": "lease", "lease": line})


def hostname() -> str:
    """Return the host's name."""
    return (text_of(PROC + "/sys/kernel/hostname") or os.uname().nodename).strip()


def is_live(entry: Json, expiry_s: float = LeaseKeeper.EXPIRY_S) -> bool:
    """Return whether the holder of a lease has given a sign of life within `expiry_s` seconds."""
    mono, beat = entry.get("mono"), entry.get("beat")
    if entry.get("boot_id") is not None and entry.get("boot_id") == boot_id() and isinstance(mono, (int, float)):
        age = time.monotonic() - mono
        if age > -1.0:
            return age < expiry_s
        # A later time than now: the holder's probe runs in a time namespace of its own, so the wall clock decides.
    elif entry.get("hostname") == hostname():
        return False  # the host has been started again since
    return isinstance(beat, (int, float)) and abs(time.time() - beat) < expiry_s


def lease_of(uid: int) -> Optional[Json]:
    """Return the live lease in another user's folder; None where there is none, or it may not be read."""
    home = home_of(uid)
    entry = read_json(os.path.join(folder_of(home), "lease.json")) if home and uid != ME else None
    return entry if entry is not None and is_live(entry) else None


def described(entry: Json) -> str:
    """Return the holder of a lease in words."""
    name, machine = str(entry.get("name") or "somebody")[:100], str(entry.get("machine") or "")[:100]
    return "%s at %s" % (name, machine) if machine else name


def present_lease() -> Optional[Json]:
    """Return the live lease in this user's folder; None where there is none."""
    entry = read_json(_path())
    return entry if entry is not None and is_live(entry) else None


def _path() -> str:
    return os.path.join(our_folder(), "lease.json")


def _operator(entry: Optional[Json]) -> Optional[Json]:
    if entry is None:
        return None
    since: Any = entry.get("since")
    texts = {name: str(entry.get(name) or "")[:200] for name in ("session", "name", "machine")}
    return {**texts, "since": since if isinstance(since, (int, float)) else None}


def _line(holder: Optional[Json], mine: bool, beat_at: Any, lost_to: Optional[Json]) -> Dict[str, Any]:
    number = beat_at if isinstance(beat_at, (int, float)) else None
    return {"holder": holder, "mine": mine, "beat_at": number, "lost_to": lost_to}
