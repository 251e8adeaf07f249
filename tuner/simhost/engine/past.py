"""Logs of earlier runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tuner.simhost.engine import text
from tuner.simhost.engine.config import Spec, resolve


def write_old_run(old: dict[str, Any]) -> None:
    """Write the log of an earlier run: its start, some work, and an orderly stop."""
    from tuner.simhost.engine.server import Server

    spec = Spec.of(old["spec"])
    server = Server(spec, resolve(spec), -1, None)
    ended_at = old["started_at"] + old["served_s"]
    server.replay(old["started_at"], ended_at)
    server.log.line(text.SIGTERM)
    server.clock.past = ended_at + 5.0
    server.log.line("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
    path = Path(old["log"])
    path.write_text("".join(server.pending or ()))
    os.utime(path, (ended_at + 5.0, ended_at + 5.0))
