"""A simulated host whose server is changed by an operator: for `bench_switch` and `bench_interruptions`.

The sshd, the `/proc` and the driver are simulated. The processes are real ones, and gputuner, its probe and its
supervisor are the product's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tuner import simhost
from tuner.simhost import SimHost

ALIAS = "box"
"""Name of the host in the operator's SSH configuration."""
TICKS_S = os.sysconf("SC_CLK_TCK")


class ChangedHost:
    """A simulated host without a server of its own, and the operator's way to it.

    Args:
        home: Home folder of the operator, see `common.own_home`.
        host: The simulated host.
        ssh_port: Port through which gputuner reaches it; None: its own.
    """

    def __init__(self, home: Path, host: SimHost, ssh_port: int | None = None) -> None:
        self.host = host
        self.dir = host.address.dir
        self.home = self.dir / "home"
        """Home folder on the host."""
        self.folder = self.home / ".gputuner"
        """gputuner's folder on the host."""
        self.env = {
            "HOST_ROOT": str(self.dir / "root"),
            "PATH": f"{self.dir}/bin:{self.dir}/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "USER": "root",
            "LOGNAME": "root",
            "LANG": "C.UTF-8",
        }
        """Environment of a login on the host."""
        address = host.address
        port = ssh_port or address.port
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
        (ssh / "known_hosts").write_text(address.known_hosts.read_text().replace(f":{address.port} ", f":{port} "))
        (ssh / "config").write_text(
            f"Host {ALIAS}\n  HostName {address.host}\n  Port {port}\n  User {address.user}\n"
            f"  IdentityFile {address.identity}\n  UserKnownHostsFile {ssh / 'known_hosts'}\n"
        )

    def start_server(self, port: int, *flags: str, fault: str = "") -> int:
        """Start a server as an operator would by hand: adopted by init, its output in a file. Returns its PID."""
        words = (
            str(self.dir / "venv/bin/python"), "-m", "sglang.launch_server", "--model-path", "/models/kimi-k2.5-int4",
            "--tp", "8", "--trust-remote-code", "--mem-fraction-static", "0.85", "--context-length", "131072",
            "--cuda-graph-max-bs", "64", "--port", str(port), "--enable-metrics", *flags,
        )  # fmt: skip
        line = f"setsid {shlex.join(words)} > {self.home}/by-hand.log 2>&1 < /dev/null & echo $!"
        env = {**self.env, **({"SIMHOST_FAULT": fault} if fault else {})}
        done = subprocess.run(["/bin/sh", "-c", line], env=env, cwd=self.home, capture_output=True, check=True)
        return int(done.stdout)

    def facts(self) -> list[dict[str, Any]]:
        """Return what each simulated server tells of itself."""
        found = []
        for path in (self.dir / "run").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return found

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all runs, oldest first."""
        return [record for run in self.runs() if (record := self.record(run)) is not None]

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

    def journal(self, run: str) -> list[dict[str, Any]]:
        """Return the lines of a run's journal."""
        return _lines(self.folder / "runs" / run / "journal.ndjson")

    def audit(self) -> list[dict[str, Any]]:
        """Return the lines of the host's record of all acts."""
        return _lines(self.folder / "audit.ndjson")


@contextlib.contextmanager
def changed_host(home: Path, *, speed: float, ssh_port: int | None = None, **options: Any) -> Iterator[ChangedHost]:
    """Start a simulated host without a server, and end it with all its processes."""
    with simhost.start("healthy", speed=speed, no_server=True, traffic="none", **options) as host:
        yield ChangedHost(home, host, ssh_port)


def wait_for(true: Callable[[], Any], limit_s: float, every_s: float = 0.01) -> Any:
    """Return the first value of `true()` that holds; the last one after `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while not (found := true()) and time.monotonic() < until:
        time.sleep(every_s)
    return found


def serves(port: int, path: str = "/health") -> bool:
    """Return whether a server on loopback answers 200."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def free_port() -> int:
    """Return a port on which nothing listens, below those that the kernel gives to connections."""
    number = 21_000 + os.getpid() % 5_000
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", number))
            return number
        number += 1


def began_at(pid: int) -> float:
    """Return the start of a process by the machine's own /proc, seconds since the epoch, to 10 ms. Raises OSError."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / TICKS_S


def step_at(record: Mapping[str, Any], step: str) -> float | None:
    """Return the wall clock at which a run came to a step; None where it did not."""
    steps: Sequence[Mapping[str, Any]] = record["steps"]
    return next((float(each["at"]) for each in steps if each["step"] == step), None)


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found
