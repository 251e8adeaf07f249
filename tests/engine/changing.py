"""The installed command against this machine behind a real sshd, in homes of its own on both sides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engine.servers import members, wait_until
from tests.support.sshd import SshWorld


class Box:
    """A host `box` of the operator's SSH configuration: this machine, with a home folder of its own.

    Args:
        world: Keys and configuration of the operator, and the server.
    """

    def __init__(self, world: SshWorld) -> None:
        self.world = world
        self.far = world.home / "far"
        """Home folder on the host: gputuner's folder is made there."""
        self.far.mkdir()
        self.sshd = world.server(options=f"SetEnv HOME={self.far}")
        world.config(f"Host box\n  HostName 127.0.0.1\n  Port {self.sshd.port}\n  IdentityFile {world.key}\n")
        self.own = world.home / "own"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of gputuner, in a session of its own as behind a terminal that was closed."""
        return subprocess.Popen(
            [sys.executable, "-m", "tuner", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "HOME": str(self.world.home), "GPUTUNER_HOME": str(self.own), "COLUMNS": "160"},
        )

    def run(self, *arguments: str, limit_s: float = 240) -> tuple[int, str]:
        """Run a command of gputuner; return its exit code and what it said."""
        with self.start(*arguments) as process:
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError(process.communicate()[0]) from None
            return process.returncode, said

    def json(self, *arguments: str, limit_s: float = 240) -> tuple[int, dict[str, Any]]:
        """Run a command with --json; return its exit code and the object that it printed last."""
        code, said = self.run(*arguments, "--json", limit_s=limit_s)
        lines = [line for line in said.splitlines() if line.startswith("{")]
        assert lines, said
        told: dict[str, Any] = json.loads(lines[-1])
        return code, told

    def records(self) -> list[Mapping[str, Any]]:
        """Return the records of the runs on the host, oldest first."""
        files = sorted((self.far / ".gputuner" / "runs").glob("*/state.json"))
        return [json.loads(file.read_text()) for file in files]

    def close(self) -> None:
        """End what was started through it, by the PIDs in its records: supervisors, and servers with their sessions."""
        if not (self.far / ".gputuner" / "runs").is_dir():
            return
        for record in self.records():
            for process in (record.get("supervisor"), record.get("new")):
                if process is not None and _ticks(process["pid"]) == process["start_ticks"]:
                    for pid in {process["pid"], *members(process["pid"])}:
                        _kill(pid)
            new = record.get("new")
            if new is not None:
                # Members of the session that it led: its PID is taken for no other session while one of them lives.
                wait_until(lambda pid=new["pid"]: all(_kill(each) for each in members(pid)), 20)  # type: ignore[misc]


def _kill(pid: int) -> bool:
    """Kill a process; return whether it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    return False


def _ticks(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def causes(told: Mapping[str, Any]) -> Sequence[str]:
    """Return the causes of the findings that a command told."""
    return [each["cause"] if isinstance(each, dict) else each for each in told.get("findings", ())]
