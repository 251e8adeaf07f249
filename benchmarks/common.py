"""What the benchmarks share: description of the machine, medians with spread, verdicts, CPU and memory of processes."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

GPUTUNER = Path(sys.executable).with_name("gputuner")


class Report:
    """Prints one row per figure and counts missed bars."""

    def __init__(self) -> None:
        self.missed = 0
        cpu = next((line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "?")
        load = os.getloadavg()[0]
        print(f"Python {platform.python_version()}, {cpu}, {os.cpu_count()} cores, load {load:.1f} at the beginning")

    def row(self, what: str, value: float, unit: str, bar: float | None = None, note: str = "") -> None:
        """Print a figure and, with a bar that it must not exceed, the verdict."""
        verdict = "" if bar is None else f"  bar {bar:g} {unit}: {'ok' if value <= bar else 'MISSED'}"
        self.missed += bar is not None and value > bar
        print(f"{what:52} {value:9.3g} {unit}{verdict}{'  ' + note if note else ''}", flush=True)

    def times(self, what: str, values: Sequence[float], unit: str, bar: float | None = None) -> float:
        """Print the median of some runs with least and greatest value; return the median."""
        median = statistics.median(values)
        self.row(what, median, unit, bar, f"({min(values):.3g} to {max(values):.3g}, {len(values)} runs)")
        return median

    @property
    def code(self) -> int:
        """Return the exit code: 1 when a bar was missed."""
        return 1 if self.missed else 0


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all living threads of a process, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def status_kb(pid: int, name: str) -> int:
    """Return a figure of /proc/PID/status in kB: VmRSS, VmHWM, RssAnon."""
    return next(int(line.split()[1]) for line in _lines(f"/proc/{pid}/status") if line.startswith(name + ":"))


def own_home(folder: Path) -> None:
    """Set a home of its own for this process and its children, so that nothing of the user is read or written."""
    os.environ["HOME"] = str(folder)
    (folder / "config").mkdir(parents=True, exist_ok=True)  # without it some programs write to the working directory
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        os.environ[f"XDG_{kind}_HOME"] = str(folder / kind.lower())
    for name in ("SSH_AUTH_SOCK", "GPUTUNER_HOME", "NO_COLOR"):
        os.environ.pop(name, None)


class Wire:
    """A loopback port that forwards to another, counts the bytes, and notes when connections come."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received_bytes = 0
        """Bytes from the host."""
        self.sent_bytes = 0
        self.called: list[float] = []
        """Monotonic times of connections."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        from time import monotonic

        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.called.append(monotonic())
                far = socket.create_connection(("127.0.0.1", self._to))
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, received: bool) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 18):
                if received:
                    self.received_bytes += len(block)
                else:
                    self.sent_bytes += len(block)
                sink.sendall(block)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()


@contextlib.contextmanager
def line(port: int) -> Iterator[Wire]:
    """Yield a `Wire` and close it at the end."""
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
