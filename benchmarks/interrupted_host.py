"""Hosts whose changes are interrupted: a simulated one, and this machine with real engines behind a real sshd."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import resource
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from changed_host import ALIAS, ChangedHost, free_port, serves, wait_for
from interrupted_processes import Ours, Watch, argv_of, kill, stat_of

from tests.engine.servers import Sglang, Vllm
from tests.support.sshd import SshWorld, world
from tuner import simhost

SPEED = 40.0
DISK_BYTES = 1 << 29
"""Size of the file system on which gputuner's folder lies."""


class InterruptedHost(Protocol):
    """What `bench_interruptions` needs of a host."""

    folder: Path
    port: int
    watch: Watch
    may_fill_disk: bool

    @property
    def env(self) -> Mapping[str, str]:
        """Environment of a login on the host."""

    @property
    def bystanders(self) -> Mapping[str, int]:
        """PIDs of the host's own bystanders, by name."""

    def start_first(self) -> None:
        """Start a server by hand, and wait until it serves."""

    def serves(self) -> bool:
        """Return whether the server answers."""

    def argv(self, server: Ours) -> list[str]:
        """Return the command line of a server."""

    def ranks(self) -> set[int]:
        """Return the PIDs of all ranks that live, or lived a moment ago."""

    def runs(self) -> list[str]:
        """Return the ids of all runs, oldest first."""

    def record(self, run: str) -> dict[str, Any] | None:
        """Return the record of a run; None where there is none yet."""

    def write_record(self, run: str, record: Mapping[str, Any]) -> None:
        """Replace the record of a run, whose supervisor is dead."""

    def lives(self, process: Mapping[str, Any]) -> bool:
        """Return whether a process of a record lives."""

    def shown_ticks(self, pid: int) -> int | None:
        """Return the start of a process as the host shows it; None where it does not."""

    def cut(self) -> None:
        """Cut the link."""

    def fill_disk(self) -> None:
        """Leave no room where gputuner's folder lies."""

    def free_disk(self) -> None:
        """Make room again."""

    def limit_files(self, pid: int, *, limit: bool) -> None:
        """Let a process write to no file, as on a full disk; or lift that."""


class Base:
    """What both kinds have in common: records, disk, limits."""

    folder: Path

    def __init__(self) -> None:
        self.may_fill_disk = False

    def runs(self) -> list[str]:
        """Return the ids of all runs, oldest first."""
        with contextlib.suppress(OSError):
            return sorted(path.name for path in (self.folder / "runs").iterdir())
        return []

    def record(self, run: str) -> dict[str, Any] | None:
        """Return the record of a run; None where there is none yet."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.folder / "runs" / run / "state.json").read_text()))
        return None

    def write_record(self, run: str, record: Mapping[str, Any]) -> None:
        """Replace the record of a run, whose supervisor is dead."""
        path = self.folder / "runs" / run / "state.json"
        temporary = path.with_suffix(".planted")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(record))
        temporary.rename(path)

    def argv(self, server: Ours) -> list[str]:
        """Return the command line of a server."""
        return argv_of(server.pid)

    def mount(self) -> None:
        """Put gputuner's folder on a file system of its own, where that is possible."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        size = f"size={DISK_BYTES},mode=700"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.folder], capture_output=True, check=False
        )
        self.may_fill_disk = done.returncode == 0
        if self.may_fill_disk:
            atexit.register(self.unmount)

    def unmount(self) -> None:
        """Remove that file system."""
        if self.may_fill_disk:
            self.may_fill_disk = False
            subprocess.run(["umount", "-l", self.folder], capture_output=True, check=False)

    def fill_disk(self) -> None:
        """Leave no room where gputuner's folder lies."""
        used = os.statvfs(self.folder)
        self._size((used.f_blocks - used.f_bfree) * used.f_frsize)

    def free_disk(self) -> None:
        """Make room again."""
        self._size(DISK_BYTES)

    def _size(self, size: int) -> None:
        if self.may_fill_disk:
            subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], capture_output=True, check=False)

    def limit_files(self, pid: int, *, limit: bool) -> None:
        """Let a process write to no file, as on a full disk; or lift that."""
        with contextlib.suppress(OSError):
            most = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if limit else most, most))


class Cut:
    """A loopback port that forwards to another, and whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections."""
        ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open = [each for each in self._open if each.fileno() >= 0] + [near, far]
                for source, sink in ((near, far), (far, near)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 18):
                sink.sendall(block)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            source.close()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()
        self.cut()


class SimulatedHost(Base):
    """The simulated host, with bystanders, another user's server among them."""

    def __init__(self, box: ChangedHost, link: Cut) -> None:
        super().__init__()
        self.box = box
        self.folder = box.folder
        self.link = link
        self.port = free_port()
        self.env = box.env
        self.bystanders = box.host.address.bystanders
        python = str(box.dir / "venv/bin/python")
        mark = f"\0HOST_ROOT={box.env['HOST_ROOT']}\0".encode()

        def is_server(argv: Sequence[str]) -> bool:
            return list(argv[:3]) == [python, "-m", "sglang.launch_server"] and "--port" in argv  # not with --help

        self.watch = Watch(is_server, [mark], self.folder, strict=True)
        self.mount()

    @classmethod
    @contextlib.contextmanager
    def made(cls, home: Path, options: argparse.Namespace) -> Iterator[SimulatedHost]:
        """Start the host, and end it."""
        with simhost.start("healthy", speed=SPEED, no_server=True, traffic="none", bystanders=True) as started:
            link = Cut(started.address.port)
            host = cls(ChangedHost(home, started, link.port), link)
            try:
                yield host
            finally:
                host.watch.close()
                host.unmount()
                link.close()

    def start_first(self) -> None:
        """Start a server by hand, and wait until it serves."""
        self.box.start_server(self.port)
        assert wait_for(self.serves, 60, 0.1), "the first server does not serve"

    def serves(self) -> bool:
        """Return whether the server answers."""
        return self.watch.leader() is not None and serves(self.port)

    def ranks(self) -> set[int]:
        """Return the PIDs of all ranks that live, or lived a moment ago: the simulated server tells them."""
        return {
            each["pid"] for fact in self.box.facts() for each in fact["members"]
            if each["kind"] == "scheduler" and fact["pid"] not in self.bystanders.values()
        }  # fmt: skip

    def cut(self) -> None:
        """Cut the link."""
        self.link.cut()

    def lives(self, process: Mapping[str, Any]) -> bool:
        """Return whether a process of a record lives; its start in the record is that which the host shows."""
        shown, stat = self.shown_ticks(process["pid"]), stat_of(process["pid"])
        return stat is not None and stat.alive and shown in (None, process["start_ticks"])

    def shown_ticks(self, pid: int) -> int | None:
        """Return the start of a process as the host shows it; None where it does not."""
        with contextlib.suppress(OSError, IndexError):
            text = (self.box.dir / "root/proc" / str(pid) / "stat").read_text()
            return int(text.rpartition(")")[2].split()[19])
        return None


class EngineHost(Base):
    """This machine with a real engine on its processor, behind a real sshd, with a home folder of its own.

    Args:
        engine: `sglang` or `vllm`, as `tests/engine/build.sh` built it.
        made: Keys and configuration of the operator, and the sshd.
    """

    def __init__(self, engine: str, made: SshWorld) -> None:
        super().__init__()
        self.home = made.home / "far"
        self.home.mkdir()
        self.folder = self.home / ".gputuner"
        self.sshd = made.server(options=f"SetEnv HOME={self.home}")
        made.config(f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {self.sshd.port}\n  IdentityFile {made.key}\n")
        log = self.home / "by-hand.log"
        self.server = (Sglang if engine == "sglang" else Vllm)(ENGINES / engine, log, *_OPTIONS[engine])
        self.port = self.server.port
        self.env = {**os.environ, "HOME": str(self.home)}
        self.bystanders: dict[str, int] = {}
        port, word = str(self.port), _WORDS[engine]

        def is_server(argv: Sequence[str]) -> bool:
            return any(word in each for each in argv[:3]) and port in argv

        self.watch = Watch(is_server, [f"\0HOME={self.home}\0".encode()], self.folder)
        self.mount()

    @classmethod
    @contextlib.contextmanager
    def made(cls, home: Path, options: argparse.Namespace) -> Iterator[EngineHost]:
        """Start the host, and end all that was started on it."""
        with world(home) as made:
            host = cls(options.engine, made)
            try:
                yield host
            finally:
                for _ in range(50):
                    left = [each for each in host.watch.look() if kill(each.pid, each.ticks)]
                    if not left:
                        break
                    time.sleep(0.2)
                host.watch.close()
                host.unmount()

    def start_first(self) -> None:
        """Start a server by hand, and wait until it serves."""
        line = f"setsid {shlex.join(self.server.argv())} > {self.server.log} 2>&1 < /dev/null &"
        env = {**self.env, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **self.server.environment()}
        subprocess.run(["/bin/sh", "-c", line], env=env, cwd=self.home, check=True)
        assert wait_for(self.serves, 600, 0.5), self.server.tail()

    def serves(self) -> bool:
        """Return whether the server answers."""
        return self.watch.leader() is not None and serves(self.port, self.server.path_ready)

    def ranks(self) -> set[int]:
        """Return the PIDs of all ranks that live."""
        titles = {each.pid: " ".join(argv_of(each.pid)[:1]) for each in self.watch.look()}
        return {pid for pid, title in titles.items() if title.startswith(_RANKS)}

    def cut(self) -> None:
        """Kill the processes of the sshd that serve connections."""
        self.sshd.cut()

    def lives(self, process: Mapping[str, Any]) -> bool:
        """Return whether a process of a record lives."""
        stat = stat_of(process["pid"])
        return stat is not None and stat.alive and stat.ticks == process["start_ticks"]

    def shown_ticks(self, pid: int) -> int | None:
        """Return the start of a process."""
        stat = stat_of(pid)
        return stat.ticks if stat is not None else None


ENGINES = Path(os.environ.get("GPUTUNER_ENGINES") or Path.home() / ".cache" / "gputuner-ci")
"""Folder of the engines; read before the benchmark sets a home folder of its own."""
_OPTIONS = {"sglang": ("--enable-metrics",), "vllm": ()}
_RANKS = ("sglang::scheduler", "VLLM::Worker", "VLLM::EngineCore")
_WORDS = {"sglang": "sglang.launch_server", "vllm": "/bin/vllm"}
"""Word by which a command line is known as that of a server."""
