"""A process of this machine that the probe takes for a server, with a log that grows on request."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.plain_engine import PlainEngine
from tuner.domain.plan import EnginePlan

_SERVER = """
import os, sys, time
number = 0
for line in sys.stdin:
    lines, pause = int(line.split()[0]), float(line.split()[1])
    for _ in range(lines):
        number += 1
        text = "@1 line %08d of a log that grows, with \\u00fcmlauts and some words to fill it up\\n" % number
        data = text.encode()
        # Now and then a line is torn: its end comes later.
        at = number * 7 % len(data) if number % 5 == 0 else len(data)
        os.write(1, data[:at])
        if at < len(data):
            if pause:
                time.sleep(pause)
            os.write(1, data[at:])
        if pause:
            time.sleep(pause)
"""


class GrowingEngine(PlainEngine):
    """Recognises one such process, and no other that may run at the same time."""

    def __init__(self, script: Path) -> None:
        self._script = script

    def plan(self) -> EnginePlan:
        return EnginePlan(name="plain", leaders=(re.escape(str(self._script)),), titles=(), package="plain")


class GrowingServer:
    """The process; a test must stop it."""

    def __init__(self, folder: Path) -> None:
        script = folder / "growing_server.py"
        script.write_text(_SERVER)
        self.engine = GrowingEngine(script)
        self.log = folder / "growing.log"
        self._told = 0
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-u", str(script)], stdin=subprocess.PIPE, stdout=log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def grow(self, lines: int, pause_s: float = 0.0) -> None:
        """Write `lines` lines, with a pause of `pause_s` seconds after each."""
        assert self._process.stdin
        self._told += lines
        self._process.stdin.write(f"{lines} {pause_s}\n".encode())
        self._process.stdin.flush()

    def all_written(self) -> bool:
        """Return whether all requested lines are written. The process goes on."""
        data = self.log.read_bytes()
        return data.endswith(b"\n") and data.count(b"\n") == self._told

    def stop(self) -> None:
        """Kill the process."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=10)
        if self._process.stdin:
            self._process.stdin.close()
