"""The demo's GPU host: an SSH server on loopback with a /proc and NVML of its own, and a simulated SGLang server.

It shares no code with the product's core or engines, and was written from what SGLang prints and does, so that the two
can disagree. Only the transport that connects to it and the probe that runs on it are the product's, the same as for a
real host.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from types import TracebackType

_locks: list[int] = []
"""Descriptors of locked files; a lock shows other processes that this one lives."""


@dataclass(frozen=True)
class Address:
    """The address of a simulated host, and the keys to log in with."""

    host: str
    port: int
    user: str
    identity: Path
    known_hosts: Path
    pid: int
    dir: Path
    scenario: str = ""
    version: str = ""
    bystanders: Mapping[str, int] = field(default_factory=dict)
    """PID of each process started by `--bystanders`, by name: tail, editor, server."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Address:
        """Return the address in the ready line or in an entry of the registry."""
        return cls(
            host=facts["host"], port=facts["port"], user=facts["user"], identity=Path(facts["identity"]),
            known_hosts=Path(facts["known_hosts"]), pid=facts["pid"], dir=Path(facts["dir"]),
            scenario=facts.get("scenario", ""), version=facts.get("version", ""),
            bystanders=facts.get("bystanders", {}),
        )  # fmt: skip


class SimHost:
    """A running simulated host, which ends with this context manager (sync or async)."""

    def __init__(self, process: subprocess.Popen[bytes], address: Address) -> None:
        self._process = process
        self.address = address

    @property
    def pid(self) -> int:
        """Return the PID of the host process."""
        return self._process.pid

    def close(self) -> None:
        """End the host; all its processes and files are gone on return. May be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> SimHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> SimHost:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.get_running_loop().run_in_executor(None, self.close)


def launch(
    scenario: str = "healthy", *, version: str = "0.5.9", speed: float = 1.0, seed: int = 0, **options: Any
) -> subprocess.Popen[bytes]:
    """Start the host process without waiting for it; `finish` waits.

    Args:
        scenario: A name in `scenarios.SCENARIOS`.
        version: SGLang version to play, 0.5.9 or 0.5.23.
        speed: Factor of starts and waits; at 1 a start takes some twenty seconds.
        seed: Seed of the random numbers.
        options: Further options of `python -m tuner.simhost`, by name: `no_server=True`, `api_key="x"`.
    """
    words = ["--scenario", scenario, "--version", version, "--speed", str(speed), "--seed", str(seed)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            words += [flag] if item is True else [] if item in (False, None) else [f"{flag}={item}"]
    import subprocess

    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "tuner.simhost", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
        start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[bytes]) -> SimHost:
    """Wait for the ready line of a host process.

    Raises:
        RuntimeError: The process ended without one.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the simulated host ended with status {process.wait()}")
    return SimHost(process, Address.of(json.loads(line)))


def start(
    scenario: str = "healthy", version: str = "0.5.9", speed: float = 1.0, seed: int = 0, **options: Any
) -> SimHost:
    """Start a simulated host and wait until it accepts connections. See `launch`."""
    return finish(launch(scenario, version=version, speed=speed, seed=seed, **options))


def register(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write the registry entry of a running demo, and return its path, which is to be removed when the demo ends.

    The file stays locked while the calling process lives. The lock tells a valid entry from a stale one, even if the
    PID was reused.
    """
    path = folder / f"demo-{facts['pid']}.json"
    temporary = path.with_suffix(".tmp")
    file = _create(temporary)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.write(file, json.dumps({**facts, "started": time.time()}).encode())
    temporary.replace(path)
    _locks.append(file)
    return path


def _create(path: Path) -> int:
    """Open a new file for writing. Its folder is made again if a demo that ends removes it meanwhile."""
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)


def running(folder: Path) -> Address | None:
    """Return the running demo that was started last, or None. Entries of dead demos are removed."""
    return max(_alive(folder), key=lambda each: each[0], default=(0.0, None))[1]


def runs(folder: Path, port: int | None) -> bool:
    """Return whether a demo runs that listens at a port."""
    return any(address.port == port for _, address in _alive(folder))


def _alive(folder: Path) -> Iterator[tuple[float, Address]]:
    """Yield start (seconds since the epoch) and address of each running demo; remove the entries of the others."""
    for path in folder.glob("demo-*.json"):
        try:
            with path.open("rb") as file:
                facts = json.loads(file.read())
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
                    continue
            found = (float(facts["started"]), Address.of(facts))
        except (OSError, ValueError, KeyError):
            continue
        yield found
