"""Readings of the host besides its GPUs, and its kernel log."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple

from .base import HOST_ROOT, PROC, Json, boot_time, text_of, until_beat
from .output import Outbox

if TYPE_CHECKING:
    from .probe import Probe


class KernelLog:
    """Reports XID errors and processes killed for lack of memory, where the kernel log may be read."""

    REMEMBERED = 20
    _XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
    _KILLED = re.compile(r"Killed process (\d+),? (?:UID \d+,? )?\(([^)]*)\)")

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._boot = boot_time()
        # A simulated host must not report the real kernel's errors.
        path = HOST_ROOT + "/dev/kmsg"
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self.readable = self._fd >= 0
        self._rest = b""
        self._polled = False

    def poll(self) -> None:
        """Send new records; at the first call the last ones that the kernel still holds."""
        lines = list(self._lines())
        for mark in (b"NVRM: Xid", b"Killed process "):
            found = [line for line in lines if mark in line]
            for line in found if self._polled else found[-self.REMEMBERED :]:
                self._send(line.decode("utf-8", "replace"))
        self._polled = True

    def _lines(self) -> Iterator[bytes]:
        for _ in range(20_000 if self.readable else 0):
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                self.readable = False
                return
            if not record:
                return
            *lines, self._rest = (self._rest + record).split(b"\n")
            yield from lines

    def _send(self, line: str) -> None:
        head, _, text = line.partition(";")
        xid, killed = self._XID.search(text), self._KILLED.search(text)
        if xid:
            event: Json = {"t": "xid", "bus_id": xid.group(1), "xid": int(xid.group(2)), "text": text[:500]}
        elif killed:
            event = {"t": "oom", "pid": int(killed.group(1)), "name": killed.group(2), "text": text[:500]}
        else:
            return
        parts = head.split(",")
        if self._boot is not None and len(parts) > 2 and parts[2].isdigit():
            event["at"] = round(self._boot + int(parts[2]) / 1e6, 3)
        self._out.put(event)


class HostReader:
    """Reads processor, memory and disks every few seconds, in a thread of its own because a disk may not answer."""

    EVERY_S = 5.0
    ALONE_S = 1.0
    """Seconds between readings where no GPU samples come: the core judges servers only as lines arrive."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._busy: Optional[Tuple[int, int]] = None

    def run(self) -> None:
        """Read until the probe ends."""
        kernel = KernelLog(self.probe.out)
        said_at = -self.EVERY_S
        self._cpu()
        if self.probe.pause(0.1):
            return
        while True:
            alone = bool(self.probe.servers) and self.probe.gpu.silent
            every = self.ALONE_S if alone else self.EVERY_S
            if time.monotonic() >= said_at + every:
                said_at = time.monotonic() - 0.5  # the next may come half a second early, in step with the beat
                self.probe.out.put_sample(self.sample())
            kernel.poll()
            if self.probe.pause(until_beat(1.0 if kernel.readable or alone else self.EVERY_S)):
                return

    def _cpu(self) -> Optional[float]:
        """Return the share of all processors that was busy since the last call; None at the first."""
        found = re.match(r"cpu +([\d ]+)", text_of(PROC + "/stat") or "")
        if not found:
            return None
        numbers = [int(n) for n in found.group(1).split()[:8]]
        total, idle = sum(numbers), sum(numbers[3:5])
        before, self._busy = self._busy, (total, idle)
        if before is None or total <= before[0]:
            return None
        return round(1.0 - (idle - before[1]) / (total - before[0]), 4)

    def sample(self) -> Json:
        """Return the `host` line."""
        event: Json = {"t": "host", "cpu_ratio": self._cpu()}
        with contextlib.suppress(IndexError, ValueError):
            event["load_1m"] = float((text_of(PROC + "/loadavg") or "").split()[0])
        return {**event, **self.memory(), "disks": self.disks()}

    @staticmethod
    def memory() -> Json:
        """Return the memory and shared memory of the `host` line."""
        event: Json = {}
        for name, key in (("MemTotal", "memory_total_bytes"), ("MemAvailable", "memory_available_bytes")):
            found = re.search(r"^%s:\s+(\d+) kB" % name, text_of(PROC + "/meminfo") or "", re.M)
            if found:
                event[key] = int(found.group(1)) * 1024
        try:
            shm = os.statvfs("/dev/shm")  # noqa: S108
            event["shm_total_bytes"], event["shm_free_bytes"] = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
        except OSError:
            pass
        return event

    def disks(self) -> Dict[str, List[int]]:
        """Return total and free bytes of the disks that matter to servers, by folder."""
        out: Dict[str, List[int]] = {}
        full: Dict[str, str] = {}
        for path in dict.fromkeys(["/", *self.probe.folders()]):
            try:
                disk = os.statvfs(path)
            except OSError:
                continue
            total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
            out[path] = [total, free]
            if total and free < min(100_000_000, total // 100):
                full[path] = "%s has %d MB left: logs and caches will fail" % (path, free // 1_000_000)
        for path in out:
            if path in full:
                self.probe.problems.note("disk-full", path, full[path])
            else:
                self.probe.problems.clear("disk-full", path)
        return out
