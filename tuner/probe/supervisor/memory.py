"""The proof that the GPUs have their memory back after the end of a server."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from ..agent.base import HOST_ROOT, PROC, Json, link_of, names_in, stat_of, user_name
from ..agent.processes import owner_of, read_stat
from .desk import Clock, Desk
from .gpus import work
from .helper import Helper
from .members import title_of

FIRST_S = 5.0
"""Longest wait for the first reading, which must be made before the first signal."""
POLL_S = 0.02
"""Shortest time between two readings; it doubles up to `POLL_MOST_S`."""
POLL_MOST_S = 0.2
SILENT_S = 3.0
"""Seconds after which a driver that does not answer is called hung."""
LEAST_BYTES = 512 << 20
"""What may be in use beyond what is expected: contexts of others, the driver's own changes."""
SHARE = 0.03
"""What may be in use beyond what is expected, as a share of what the server held."""
IDLE_BYTES = 1536 << 20
"""Below this a GPU counts as empty where the driver does not tell who uses it."""
STABLE_S = 2.0
"""For so long the memory in use must not have changed where the driver does not tell who used it."""
MOST = 0.5
"""Share of the memory in use that must be left at most where neither driver nor an earlier run tells whose it was."""
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The PID namespace of the host itself (`PROC_PID_INIT_INO` of Linux), where the driver's PIDs mean what they say."""
_DEVICES = ("/dev/nvidia", "/dev/dxg")
"""How the devices begin that a process with GPU memory has open; the second is that of WSL."""


class GpuMemory:
    """Memory of the GPUs around a stop.

    Args:
        desk: The means of the run.
        pid: A process beside whose Python packages an NVML binding may lie; 0: none.
    """

    def __init__(self, desk: Desk, pid: int) -> None:
        self._desk = desk
        self._pid = pid
        self._helper = Helper(desk.pulse, work)
        self._asked_at = 0.0
        self.reading: Json = {}
        """The last answer of the helper."""
        self.fresh = False
        """Whether the last question was answered by numbers."""

    def ask(self) -> None:
        """Begin a reading, unless one is under way."""
        if not self._helper.busy:
            self._asked_at = time.monotonic()
            self._helper.ask({"pid": self._pid})

    def take(self) -> bool:
        """Return whether a new answer is there."""
        answer = self._helper.answer()
        if answer is None:
            return False
        self.fresh = "used" in answer
        self.reading = answer
        return True

    def wait(self, seconds: float) -> bool:
        """Read now, and wait for the answer; return whether it came."""
        self.ask()
        clock = Clock(seconds)
        while not self.take():
            if not clock.left or not self._helper.busy:
                return False
            self._desk.wait(clock.left, [self._helper.fd])
        return True

    def end(self) -> None:
        """End the helper."""
        self._helper.end()

    @property
    def none(self) -> bool:
        """Return whether this host has no GPU."""
        return "none" in self.reading

    @property
    def trouble(self) -> str:
        """Return why there are no numbers; empty while there are."""
        if self._helper.busy and time.monotonic() - self._asked_at > SILENT_S:
            return "the GPU driver does not answer"
        return str(self.reading.get("fault", "")) if not self.fresh else ""

    def indexes(self, uuids: Sequence[str]) -> Set[int]:
        """Return the indexes of GPUs."""
        known: Dict[str, int] = self.reading.get("gpus") or {}
        return {known[uuid] for uuid in uuids if uuid in known}

    def users(self, index: int) -> Dict[int, Optional[int]]:
        """Return the bytes that processes hold on a GPU, by PID; None where the driver does not tell."""
        return {pid: held for gpu, pid, held in self.reading.get("users") or () if gpu == index}

    def used(self, index: int) -> Optional[int]:
        """Return the bytes in use on a GPU; None where unknown."""
        value: Optional[int] = (self.reading.get("used") or {}).get(str(index))
        return value

    def gpus_of(self, pids: Set[int]) -> Set[int]:
        """Return the GPUs on which any of these processes holds memory."""
        return {gpu for gpu, pid, _ in self.reading.get("users") or () if pid in pids}

    @property
    def tenants(self) -> Json:
        """Return the bytes that each process holds, by GPU and PID as text, as of the last reading."""
        out: Dict[str, Dict[str, int]] = {}
        for gpu, pid, held in self.reading.get("users") or ():
            out.setdefault(str(gpu), {})[str(pid)] = held or 0
        return out

    def before(
        self, uuids: Sequence[str], pids: Set[int], baseline: Optional[Dict[str, int]] = None,
        tenants: Optional[Json] = None, level: Optional[Dict[str, int]] = None,
        claimed: Optional[Dict[str, int]] = None,
    ) -> List[Json]:  # fmt: skip
        """Return what must come back, from the last reading, as JSON of `MemoryBack` and some more.

        Args:
            uuids: GPUs of the server, as the laptop knows them.
            pids: Its processes.
            baseline: Bytes in use by GPU before it was started; None: not known.
            tenants: `tenants` at that time.
            level: The same as `baseline`, but so long ago that it is used only where the driver names nobody.
            claimed: Bytes that its ranks say they allocated, by UUID; likewise.
        """
        out = []
        baseline = baseline or {}
        said = {index: size for uuid, size in (claimed or {}).items() for index in self.indexes([uuid])}
        grown = {int(gpu) for gpu, used in baseline.items() if (self.used(int(gpu)) or 0) > used + LEAST_BYTES}
        strange = {gpu for gpu, pid, _ in self.reading.get("users") or () if _is_another(pid)}
        for index in sorted(self.indexes(uuids) | (self.gpus_of(pids) - strange) | grown):
            users = self.users(index)
            named = index not in strange
            mine = [held for pid, held in users.items() if named and pid in pids]
            others = {str(pid): held for pid, held in users.items() if pid not in pids}
            used, held = self.used(index) or 0, sum(each or 0 for each in mine)
            # In a container the driver names nobody, or processes of the host.
            told = bool(users) and None not in users.values() and all(read_stat(pid) is not None for pid in users)
            told = told and named
            if str(index) in baseline:
                # What others took since then is theirs, if the driver tells who they are.
                then = (tenants or {}).get(str(index)) or {}
                taken = sum(max(0, (size or 0) - then.get(pid, 0)) for pid, size in others.items()) if told else 0
                held, told = max(0, used - baseline[str(index)] - taken), True
            out.append({
                "gpu": index, "before_bytes": used, "held_bytes": held, "after_bytes": None, "told": told,
                "others": others, "named": named, "level": (level or {}).get(str(index)),
                "claimed": said.get(index, 0),
            })  # fmt: skip
        return out


class Proof:
    """Waits until the memory of a server is free again.

    Args:
        desk: The means of the run.
        gpus: Reads the GPUs.
        before: What must come back: see `GpuMemory.before`.
        pids: The server's processes: start ticks by PID.
        unread: UUIDs of the server's GPUs whose memory could not be read before: all of it that nobody else holds must
            be free.
    """

    def __init__(
        self, desk: Desk, gpus: GpuMemory, before: List[Json], pids: Dict[int, int], unread: Sequence[str] = ()
    ) -> None:
        self._desk = desk
        self._gpus = gpus
        self._before = before
        self._pids = pids
        self._unread = unread
        self._seen: Dict[int, Any] = {}

    def wait(self, seconds: float) -> str:
        """Wait, at most so long; return why the memory is not back, empty if it is."""
        desk, gpus = self._desk, self._gpus
        clock = Clock(seconds)
        desk.record.say(desk.record.data["detail"], clock.until)
        missing = "it could not be read"
        pause = POLL_S
        while True:
            if gpus.wait(min(1.0, clock.left) or 0.05) and (gpus.fresh or gpus.none):
                missing = self._missing()
                self._tell()
                if not missing:
                    return ""
            missing = gpus.trouble or missing
            desk.record.say("GPU memory: " + missing, clock.until)
            if not clock.left:
                return missing
            desk.wait(min(pause, clock.left))
            pause = min(POLL_MOST_S, 2 * pause)

    def _missing(self) -> str:
        """Return which memory is not back as of the last reading; empty if all is."""
        for item in self._before:
            text = self._missing_on(item)
            if text:
                return text
        known = self._gpus.indexes(self._unread)
        if len(known) < len(self._unread) and not self._gpus.none:
            return "%d of its GPUs cannot be read" % (len(self._unread) - len(known))
        return next(filter(None, map(self._missing_unread, sorted(known))), "")

    def _missing_unread(self, index: int) -> str:
        """Return what the server, or nobody that the driver names, has in use on a GPU that was not read before."""
        users = self._gpus.users(index)
        mine = sorted(pid for pid in users if self._is_ours(pid))
        if mine:
            return "GPU %d: pid %s still holds %s" % (index, mine[0], _gib(users[mine[0]]))
        over = (self._gpus.used(index) or 0) - sum(held or 0 for held in users.values())
        if over > IDLE_BYTES:
            return "GPU %d: %s in use, and the driver does not tell by whom" % (index, _gib(over))
        return ""

    def _missing_on(self, item: Json) -> str:
        index: int = item["gpu"]
        used = self._gpus.used(index)
        if used is None:
            return "" if self._gpus.none else "GPU %d cannot be read" % index
        users = self._gpus.users(index)
        mine = sorted(pid for pid in users if item.get("named", True) and self._is_ours(pid))
        if mine:
            return "GPU %d: pid %s still holds %s" % (index, mine[0], _gib(users[mine[0]]))
        held = item["held_bytes"]
        if not item["told"]:
            level = item["before_bytes"] - held if held else item.get("level")
            return self._unattributed(index, item["before_bytes"], level, used, item.get("claimed", 0))
        # Others may have taken more meanwhile; that is theirs.
        grown = sum(max(0, (now or 0) - (item["others"].get(str(pid)) or 0)) for pid, now in users.items())
        over = used - (item["before_bytes"] - held) - grown
        if over > max(LEAST_BYTES, int(SHARE * held)):
            return "GPU %d: %s are not free yet" % (index, _gib(over))
        return ""

    def _is_ours(self, pid: int) -> bool:
        """Return whether a PID in the driver's list is that of the server and not of a later process."""
        stat = read_stat(pid)
        return pid in self._pids and (stat is None or stat.ticks == self._pids[pid])

    def _unattributed(self, index: int, before: int, level: Optional[int], used: int, claimed: int) -> str:
        """Judge by the amount alone: in a container the driver names processes of the host, or none.

        Args:
            index: The GPU.
            before: Bytes in use before the first signal.
            level: Bytes in use by others: before the server was launched, or beside its own; None: not known.
            used: Bytes in use now.
            claimed: Bytes that its ranks said they allocated; 0: not known.
        """
        if used <= IDLE_BYTES or before == 0:
            return ""
        most = int(MOST * before)
        if LEAST_BYTES < claimed < before:
            # A small server beside a large tenant that the driver hides can give back no more than it held.
            most = max(most, before - claimed + max(LEAST_BYTES, int(SHARE * claimed)))
        if level is not None and before > level + LEAST_BYTES:
            most = level + max(LEAST_BYTES, int(SHARE * (before - level)))
        at, value = self._seen.get(index, (0.0, -1))
        if abs(used - value) > 64 << 20:
            self._seen[index] = (time.monotonic(), used)
            return "GPU %d: %s in use" % (index, _gib(used))
        if used <= most and time.monotonic() - at >= STABLE_S:
            return ""
        wanted = "at most %s of %s are to be" % (_gib(most), _gib(before))
        return "GPU %d: %s in use, and the driver does not tell by whom; %s" % (index, _gib(used), wanted)

    def _tell(self) -> None:
        for item in self._before:
            item["after_bytes"] = self._gpus.used(item["gpu"])
        self._desk.record.data["memory"] = [
            {name: item[name] for name in ("gpu", "before_bytes", "held_bytes", "after_bytes")} for item in self._before
        ]

    def leftovers(self) -> List[Json]:
        """Return who holds memory of these GPUs, as JSON of `tuner.domain.runs.Leftover`."""
        out: Dict[int, Json] = {}
        for item in self._before:
            for pid, held in self._gpus.users(item["gpu"]).items():
                if pid in out:
                    out[pid]["gpu_bytes"] = (out[pid]["gpu_bytes"] or 0) + (held or 0)
                    continue
                stat = read_stat(pid)
                uid = owner_of(pid) if stat_of("%s/%d" % (PROC, pid)) is not None else None
                out[pid] = {
                    "pid": pid, "start_ticks": stat.ticks if stat is not None else 0, "uid": uid,
                    "user": user_name(uid), "title": title_of(pid), "gpu_bytes": held, "ours": self._is_ours(pid),
                }  # fmt: skip
        return list(out.values())


def _is_another(pid: int) -> bool:
    """Return whether the process with this PID is certainly not the one that the driver means by it.

    In a container the driver may tell PIDs of the host, which other processes have here. Those have no GPU open.
    """
    if HOST_ROOT or link_of("/proc/self/ns/pid") == _FIRST_NAMESPACE:
        return False
    folder = "%s/%d/fd" % (PROC, pid)
    names = names_in(folder)
    return bool(names) and not any((link_of(os.path.join(folder, name)) or "").startswith(_DEVICES) for name in names)


def _gib(size: Optional[int]) -> str:
    return "memory" if size is None else "%.1f GiB" % (size / (1 << 30))
