"""A probe that does what a test says: another program of this machine, started like the real probe.

`opener(act)` makes transports whose "probe" is a Python process that runs `act`, a piece of source. In it, `plan` is
the plan that was sent, `send(t=..., ...)` writes an event, `orders()` yields incoming orders, `connection` counts
connections from 1, and `folder` is a folder for files.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.errors import ConnectionFailed
from tuner.transports import Ask
from tuner.transports.local import LocalProcess, LocalTransport

_PRELUDE = """
import json, os, signal, sys, time
payload = int(sys.stdin.buffer.readline())
sys.stdin.buffer.read(payload)
plan = json.loads(sys.stdin.buffer.readline())
connection, folder = int(sys.argv[1]), sys.argv[2]
seq = 0
def send(t, **fields):
    global seq
    seq += 1
    sys.stdout.write(json.dumps({"t": t, "seq": seq, "mono": time.monotonic(), **fields}) + "\\n")
    sys.stdout.flush()
def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
def hello(protocol=1):
    send("hello", protocol=protocol, python="3.11", pid=os.getpid(), uid=0, hostname="puppet", at=time.time())
def orders():
    for line in sys.stdin.buffer:
        yield json.loads(line)
def serve():
    for order in orders():
        if order["op"] == "ping":
            send("pong", n=order["n"])
        elif order["op"] == "bye":
            return
        else:
            yield order
def idle():
    for order in serve():
        pass
def leave(name, what):
    with open(os.path.join(folder, name + ".part"), "w") as file:
        json.dump(what, file)
    os.rename(os.path.join(folder, name + ".part"), os.path.join(folder, name))
def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)
def vanish():
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Puppet:
    """Makes connections to the puppet. The first attempts raise `failures`, one each."""

    def __init__(self, act: str, folder: Path, failures: Sequence[ConnectionFailed] = ()) -> None:
        self.folder = folder
        self.failures = list(failures)
        self.connections = 0
        self._script = folder / "act.py"
        self._script.write_text(_PRELUDE + textwrap.dedent(act))

    def __call__(self) -> PuppetTransport:
        return PuppetTransport(self)

    def argv(self) -> list[str]:
        """Return the command that starts the puppet for the next connection."""
        self.connections += 1
        return [sys.executable, "-u", str(self._script), str(self.connections), str(self.folder)]

    def left(self, name: str) -> Any:
        """Return what the puppet wrote to a file; None while there is none."""
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None

    def tell(self, name: str) -> None:
        """Let `wait_for(name)` in the puppet return."""
        (self.folder / name).write_text("null")


class PuppetTransport(LocalTransport):
    """A transport to this machine on which every program is the puppet."""

    def __init__(self, puppet: Puppet) -> None:
        super().__init__()
        self.notes = ("a note",)
        self._puppet = puppet

    async def connect(self, ask: Ask) -> None:
        if self._puppet.failures:
            raise self._puppet.failures.pop(0)

    async def spawn(self, argv: Sequence[str], *, env: dict[str, str] | None = None) -> LocalProcess:
        return await super().spawn(self._puppet.argv(), env=env)
