"""`python -m sglang.launch_server` on the simulated host: a server that anyone started, in any environment.

It knows its world from one file, whose path stands in the simulated package, and ends when the pipe that the host
process holds open is closed, so that no server outlives its host.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tuner.simhost.engine import faults
from tuner.simhost.engine.config import Spec, resolve
from tuner.simhost.engine.models import MODELS


def main(world: str) -> None:
    """Run the server of this process's command line and environment.

    Args:
        world: Path of the file that describes the simulated host.
    """
    host: dict[str, Any] = json.loads(Path(world).read_text())
    argv = list(sys.orig_argv)
    config = resolve(_spec(host, argv))
    spec = _spec(host, argv, port=int(config.args["port"]))
    lifeline = os.open(host["life"], os.O_RDONLY | os.O_NONBLOCK)
    from tuner.simhost import real
    from tuner.simhost.engine import publication

    # The simulated kernel shows the process from here on, before the slow imports.
    began = real.started_at(os.getpid()) or time.time()
    publication.write(spec, {**publication.first(spec), "started_at": began})
    if config.args["model_path"] not in MODELS:
        _no_model(spec, str(config.args["model_path"]))
    from tuner.simhost.engine.server import Server

    server = Server(spec, config, 1, lifeline)
    server.started_at = began
    server.run()


def _spec(host: dict[str, Any], argv: list[str], port: int = 0) -> Spec:
    env = dict(os.environ)
    asked = faults.parse(env)
    return Spec(
        version=host["version"], argv=argv, env=env, cwd=str(Path.cwd()), run_dir=host["run"],
        seed=host["seed"] * 1_000 + os.getpid() % 1_000, pace=host["pace"] / asked.get("slow_start", 1.0),
        speed=host["speed"], traffic=host["traffic"] if port == _users(host) else "none",
        capacity_bytes=host["capacity"], faults=asked, launched=True, gpu_state=host["gpu_state"],
    )  # fmt: skip


def _users(host: dict[str, Any]) -> int:
    """Return the port that the users of this host know."""
    try:
        return int((Path(host["run"]) / "port").read_text())
    except (OSError, ValueError):
        return 30_000


def _no_model(spec: Spec, path: str) -> None:
    """End as the engine does when the path of the LLM leads nowhere."""
    # Its imports take so long.
    threading.Event().wait(7.0 / spec.pace)
    sys.stderr.write(
        "Traceback (most recent call last):\n"
        f"OSError: {path} is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'\n"
        "If this is a private repository, make sure to pass a token having permission to this repo either by logging "
        "in with `hf auth login` or by passing `token=<your_token>`\n"
    )
    sys.exit(1)
