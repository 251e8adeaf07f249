"""What a simulated server tells the simulated kernel and driver: its processes, memory and load, as one JSON file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.simhost import real
from tuner.simhost.engine import start

if TYPE_CHECKING:
    from tuner.simhost.engine.config import Spec
    from tuner.simhost.engine.server import Server

RELEASE_S = 1.2
"""Seconds until the driver has freed the memory of a dead process."""


def first(spec: Spec) -> dict[str, Any]:
    """Return what is known of a process as soon as it runs."""
    faults = spec.faults
    release = 0.0 if "instant_stop" in faults else faults.get("slow_memory", RELEASE_S)
    return {
        "pid": os.getpid(),
        "launched": spec.launched,
        "ppid": os.getppid() if spec.launched else 1,
        "session": os.getsid(0) if spec.launched else os.getpid(),
        "started_at": 0.0,
        "argv": spec.argv,
        "env": spec.env,
        "cwd": spec.cwd,
        "log": real.output_of(1) if spec.launched else None,
        "port": None,
        "wanted_port": None,
        "phase": "args",
        "ready": False,
        "over": False,
        "release_s": release,
        "children": [],
        "members": [],
        "squatter": None,
        "loads": [],
    }


def write(spec: Spec, fact: dict[str, Any]) -> None:
    """Replace the file of this process."""
    path = Path(spec.run_dir) / f"{os.getpid()}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(fact))
    temporary.replace(path)


class Publication:
    """Publishes a server whenever something of it changed.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._first = first(server.spec)
        self._written: dict[str, Any] | None = None

    def publish(self) -> None:
        """Publish processes, titles, memory and load."""
        server = self.server
        if server.serving is not None and server.ready and server.machine.phase == "serving":
            work = server.serving.loads()
            for gpu in server.config.gpus:
                server.machine.loads[gpu] = work
        children = server.family.children if server.family else ()
        dead = {server.config.gpus[c.rank] for c in children if c.code is not None and c.rank is not None}
        fact = {
            **self._first,
            "ppid": os.getppid() if server.spec.launched else 1,
            "started_at": server.started_at,
            "argv": self._argv(),
            "port": server.port if server.listening else None,
            "wanted_port": server.port,
            "phase": server.machine.phase,
            "ready": server.ready,
            "over": server.ends.over,
            "children": [child.pid for child in children],
            "members": self._members(),
            "squatter": server.squatter,
            "loads": [
                (start.UNUSED if gpu in dead else load).__dict__.copy() for gpu, load in enumerate(server.machine.loads)
            ],
        }
        if fact != self._written:
            self._written = fact
            write(server.spec, fact)

    def _members(self) -> list[dict[str, Any]]:
        server, members = self.server, []
        machine = server.machine
        if server.family is None or not machine.spawned:
            return []
        for child in server.family.children:
            alive = child.code is None
            on_gpu = child.rank is not None and alive
            title = child.title(server.spec.argv[0], titled=machine.titled, single=server.config.tp == 1)
            members.append(
                {
                    "pid": child.pid,
                    "title": title,
                    "kind": child.kind,
                    "state": ("R" if child.kind == "scheduler" and machine.titled else "S") if alive else "Z",
                    "gpu": server.config.gpus[child.rank] if on_gpu and child.rank is not None else None,
                    "memory_bytes": machine.box.ranks[child.rank].total if on_gpu and child.rank is not None else 0,
                    "code": child.code,
                }
            )
        return members

    def _argv(self) -> list[str]:
        argv = list(self.server.spec.argv)
        if not self.server.spec.launched and "--port" in argv:
            argv[argv.index("--port") + 1] = str(self.server.port)
        return argv
