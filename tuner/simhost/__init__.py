"""The demo's GPU host: an SSH server on loopback, a /proc and NVML of its own, and a simulated SGLang server.

It is the other side. It shares no code with the product's core or its engines: it was written from what SGLang
prints and does, so that the two can disagree. Only the transport that connects to it and the probe that looks at it
are the product's, and they are the very ones a real host gets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_READY_S = 30.0


@dataclass(frozen=True)
class Address:
    """How to connect to a simulated host."""

    host: str
    port: int
    user: str
    identity: Path
    known_hosts: Path
    pid: int
    dir: Path
    scenario: str = ""
    version: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Address:
        """From the ready line or the registry."""
        return cls(
            host=facts["host"], port=facts["port"], user=facts["user"], identity=Path(facts["identity"]),
            known_hosts=Path(facts["known_hosts"]), pid=facts["pid"], dir=Path(facts["dir"]),
            scenario=facts.get("scenario", ""), version=facts.get("version", ""),
        )  # fmt: skip


class SimHost:
    """A simulated host that runs; a context manager, sync or async, that ends it."""

    def __init__(self, process: subprocess.Popen[bytes], address: Address) -> None:
        self._process = process
        self.address = address

    @property
    def pid(self) -> int:
        """The host process."""
        return self._process.pid

    def close(self) -> None:
        """End it; all its processes and files are gone afterwards. Safe to call twice."""
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
    """Start the host process and do not wait for it: `finish` does.

    Args:
        scenario: A name of `scenarios.SCENARIOS`.
        version: SGLang version to play, 0.5.9 or 0.5.23.
        speed: Pace of starts and waits; at 1 a start takes some twenty seconds.
        seed: Of all chance.
        options: Further options of `python -m tuner.simhost`, by name: `no_server=True`, `api_key="x"`.
    """
    words = ["--scenario", scenario, "--version", version, "--speed", str(speed), "--seed", str(seed)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            words += [flag] if item is True else [] if item in (False, None) else [f"{flag}={item}"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "tuner.simhost", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
        start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[bytes]) -> SimHost:
    """Wait for the ready line of a host process.

    Raises:
        RuntimeError: It ended without one.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the simulated host ended with status {process.wait()}")
    return SimHost(process, Address.of(json.loads(line)))


def start(
    scenario: str = "healthy", version: str = "0.5.9", speed: float = 1.0, seed: int = 0, **options: Any
) -> SimHost:
    """Start a simulated host and wait until it can be connected to. See `launch`."""
    return finish(launch(scenario, version=version, speed=speed, seed=seed, **options))


def register(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write down that a demo runs; the file to remove when it ends."""
    import psutil

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"demo-{facts['pid']}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({**facts, "started": psutil.Process(facts["pid"]).create_time()}))
    temporary.replace(path)
    return path


def running(folder: Path) -> Address | None:
    """The demo that was started last and still runs; entries of dead ones are removed."""
    import psutil

    newest: tuple[float, Address] | None = None
    for path in folder.glob("demo-*.json"):
        try:
            facts = json.loads(path.read_text())
            alive = psutil.Process(facts["pid"]).create_time() == facts["started"]
        except (OSError, ValueError, KeyError, psutil.Error):
            alive = False
        if not alive:
            path.unlink(missing_ok=True)
        elif newest is None or facts["started"] > newest[0]:
            newest = (facts["started"], Address.of(facts))
    return newest[1] if newest else None
