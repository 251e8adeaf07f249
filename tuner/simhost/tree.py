"""The simulated host's /proc and /sys, as files below HOST_ROOT: what a probe reads on Linux, on any machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.simhost import gpus

SIMULATED = "simulated"
"""File in the root by which a probe of the machine below leaves the processes of this host alone."""
HOSTNAME = "gpu-box-1"
CORES = 128
MEMORY_KB = 1_056_452_608
_UP_DAYS = 41
_HZ = os.sysconf("SC_CLK_TCK")


@dataclass
class Process:
    """A process of the simulated host."""

    pid: int
    ppid: int
    cmdline: bytes
    """NUL-separated, as in /proc."""
    started_at: float
    """Seconds since the epoch."""
    comm: str = "python"
    state: str = "S"
    uid: int = 0
    session: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/root"
    exe: str = "/usr/bin/python3"
    log: str | None = None
    """File that stdout and stderr lead to; None for none."""
    port: int | None = None
    cgroup: str = "/user.slice/user-0.slice/session-12.scope"
    rss_kb: int = 900_000
    cpu_share: float = 0.0
    """Number of cores that it keeps busy."""


class Tree:
    """Writes the files below one root folder. A file whose contents change is replaced, never rewritten in place."""

    def __init__(self, root: Path, *, now: float, uid: int = 0) -> None:
        self._uid = uid
        """User id by which root's processes are known here."""
        self._mark = root / SIMULATED
        self.proc = root / "proc"
        self.sys = root / "sys"
        self.etc = root / "etc"
        self.boot = float(int(now - _UP_DAYS * 86_400 - 1_234))
        self._known: dict[int, Process] = {}
        self._parents: dict[int, int] = {}
        """The parent that each process was last shown with."""
        self._cpu: dict[int, float] = {}
        self._busy = 9_000_000.0
        self._at = now

    def build(self) -> None:
        """Write what never changes."""
        self.etc.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        (self.etc / "passwd").write_text(
            "root:x:0:0:root:/root:/bin/bash\n"
            + (f"root:x:{self._uid}:0:root:/root:/bin/bash\n" if self._uid else "")
            + "".join(f"{name}:x:{number}:{number}::/home/{name}:/bin/bash\n" for name, number in self._others())
        )
        self._write("sys/kernel/hostname", HOSTNAME + "\n")
        self._write("sys/kernel/osrelease", "6.8.0-87-generic\n")
        self._write("sys/kernel/ostype", "Linux\n")
        self._write("sys/kernel/version", "#88-Ubuntu SMP PREEMPT_DYNAMIC\n")
        self._write("sys/kernel/random/boot_id", "7d0c4c1e-5a3f-4b57-8a6e-2f1f0b9d3c42\n")
        self._write("sys/kernel/pid_max", "4194304\n")
        self._write("version", "Linux version 6.8.0-87-generic (buildd@lcy02) #88-Ubuntu SMP PREEMPT_DYNAMIC\n")
        self._write("mounts", "/dev/md0 / ext4 rw,relatime 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n")
        self._write(
            "driver/nvidia/version", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {gpus.DRIVER}\n"
        )
        self._write("cpuinfo", "".join(f"processor\t: {n}\nmodel name\t: AMD EPYC 9355\n\n" for n in range(CORES)))
        for index in range(gpus.COUNT):
            folder = self.sys / "bus" / "pci" / "devices" / gpus.bus_id(index)
            folder.mkdir(parents=True)
            for name, value in (
                ("numa_node", str(gpus.numa_node(index))),
                ("vendor", "0x10de"),
                ("class", "0x030200"),
                ("current_link_speed", "32.0 GT/s PCIe"),
                ("current_link_width", "16"),
                ("max_link_speed", "32.0 GT/s PCIe"),
                ("max_link_width", "16"),
            ):
                (folder / name).write_text(value + "\n")
        for node in (0, 1):
            folder = self.sys / "devices" / "system" / "node" / f"node{node}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(("0-31,64-95", "32-63,96-127")[node] + "\n")
        self.put(Process(1, 0, b"/sbin/init\0", self.boot, comm="systemd", exe="/sbin/init", cwd="/",
                         cgroup="/init.scope", rss_kb=14_000))  # fmt: skip
        self._sockets()

    def put(self, process: Process) -> None:
        """Add a process, or change it."""
        if self._known.get(process.pid) == process:
            return
        old = self._known.get(process.pid)
        # A new process appears at once with all its files, as in a real /proc.
        folder = f"{process.pid}" if old is not None else f".{process.pid}"
        self._known[process.pid] = process
        if old is None or old.cmdline != process.cmdline or old.state != process.state:
            self._write(f"{folder}/cmdline", b"" if process.state == "Z" else process.cmdline)
            self._write(f"{folder}/comm", process.comm[:15] + "\n")
        if old is None or old.env != process.env:
            pairs = "".join(f"{name}={value}\0" for name, value in process.env.items())
            self._write(f"{folder}/environ", pairs.encode(errors="surrogateescape"))
        if old is None:
            self._write(f"{folder}/cgroup", f"0::{process.cgroup}\n")
            self._link(f"{folder}/root", "/")
            self._link(f"{folder}/fd/0", "/dev/null")
        if old is None or (old.cwd, old.exe, old.log) != (process.cwd, process.exe, process.log):
            self._link(f"{folder}/cwd", process.cwd)
            self._link(f"{folder}/exe", process.exe)
            for number in (1, 2):
                self._link(f"{folder}/fd/{number}", process.log or "/dev/null")
        if process.port is not None and (old is None or old.port != process.port):
            self._link(f"{folder}/fd/31", f"socket:[{_inode(process.pid)}]")
        self._stat(process, folder)
        if old is None:
            self._write(f"{folder}/net/tcp", self._table())
            (self.proc / folder).rename(self.proc / str(process.pid))
        if process.port != (old.port if old is not None else None):
            self._sockets()

    def remove(self, pid: int) -> None:
        """Remove a process."""
        self._parents.pop(pid, None)
        process = self._known.pop(pid, None)
        if process is not None:
            gone = self.proc / f".{pid}.gone"
            (self.proc / str(pid)).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            if process.port is not None:
                self._sockets()

    def _others(self) -> list[tuple[str, int]]:
        """Return the other users, whose ids are not that of root's processes here."""
        return [(name, number + (number == self._uid)) for name, number in (("alice", 1001), ("bob", 1003))]

    def adopt(self) -> None:
        """Let init be the parent of those whose parent is not of this host, or is gone."""
        for pid, process in self._known.items():
            if self._parents.get(pid) != self._parent(process):
                self._stat(process)

    def _parent(self, process: Process) -> int:
        return process.ppid if process.ppid in self._known or process.pid == 1 else 1

    def pids(self) -> Sequence[int]:
        """Return the PIDs of all processes."""
        return tuple(self._known)

    def tick(self, now: float) -> None:
        """Advance time: processor time, load, memory."""
        passed, self._at = max(0.0, now - self._at), now
        cores = 1.2 + sum(p.cpu_share for p in self._known.values())
        self._busy += cores * passed * _HZ
        for process in self._known.values():
            if process.cpu_share:
                self._cpu[process.pid] = self._cpu.get(process.pid, 0.0) + process.cpu_share * passed
                self._stat(process)
        up = now - self.boot
        idle = CORES * up * _HZ - self._busy
        self._write("stat", f"cpu  {self._busy * 0.8:.0f} 1200 {self._busy * 0.2:.0f} {idle:.0f} 84000 0 9100 0 0 0\n"
                    f"ctxt 918273645\nbtime {self.boot:.0f}\nprocesses 4182736\nprocs_running {int(cores) + 1}\n"
                    "procs_blocked 0\n")  # fmt: skip
        self._write("loadavg", f"{cores:.2f} {cores * 0.98:.2f} {cores * 0.95:.2f} {int(cores) + 1}/2480 418273\n")
        self._write("uptime", f"{up:.2f} {idle / _HZ:.2f}\n")
        used = 21_000_000 + sum(p.rss_kb for p in self._known.values())
        free = MEMORY_KB - used - 640_000_000
        sizes = {
            "MemTotal": MEMORY_KB, "MemFree": free, "MemAvailable": MEMORY_KB - used, "Buffers": 412_340,
            "Cached": 638_104_220, "Active": 214_203_440, "Inactive": 431_022_884, "Shmem": 2_104_880,
            "Slab": 9_120_448, "SwapTotal": 0, "SwapFree": 0,
        }  # fmt: skip
        self._write("meminfo", "".join(f"{name + ':':<15} {size:>10} kB\n" for name, size in sizes.items()))

    def _stat(self, process: Process, folder: str = "") -> None:
        folder = folder or str(process.pid)
        ticks = round((process.started_at - self.boot) * _HZ)
        cpu = int(self._cpu.get(process.pid, 0.0) * _HZ)
        rss = process.rss_kb // 4
        session = process.session or process.pid
        ppid = self._parents[process.pid] = self._parent(process)
        tail = (
            f"{process.state} {ppid} {session} {session} 0 -1 4194560 91000 0 12 0 {cpu} {cpu // 9} 0 0 20 0 "
            f"42 0 {ticks} {process.rss_kb * 9 * 1024} {rss} 18446744073709551615 1 1 0 0 0 0 0 16781312 17642 "
            "0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0"
        )
        self._write(f"{folder}/stat", f"{process.pid} ({process.comm[:15]}) {tail}\n")
        uid = process.uid
        self._write(
            f"{folder}/status",
            f"Name:\t{process.comm[:15]}\nState:\t{process.state}\nTgid:\t{process.pid}\nPid:\t{process.pid}\n"
            f"PPid:\t{ppid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"NSpid:\t{process.pid}\nVmRSS:\t{process.rss_kb} kB\nThreads:\t42\n",
        )

    def _sockets(self) -> None:
        """Write the table of listening sockets wherever it is read."""
        table = self._table()
        self._write("net/tcp", table)
        for pid in self._known:
            self._write(f"{pid}/net/tcp", table)

    def _table(self) -> str:
        """Return the table of listening sockets; addresses are in the machine's byte order."""
        rows = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"]
        for process in self._known.values():
            if process.port is not None:
                local = int.from_bytes(bytes((127, 0, 0, 1)), sys.byteorder)
                rows.append(
                    f"{len(rows) - 1:4d}: {local:08X}:{process.port:04X} 00000000:0000 0A 00000000:00000000 "
                    f"00:00000000 00000000 {process.uid:5d}        0 {_inode(process.pid)} 1 0000000000000000 "
                    "100 0 0 10 0\n"
                )
        return "".join(rows)

    def _write(self, name: str, content: str | bytes) -> None:
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)

    def _link(self, name: str, target: str) -> None:
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(path)


def _inode(pid: int) -> int:
    return 400_000_000 + pid
