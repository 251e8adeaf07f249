"""The processes of the simulated host on a machine without /proc, such as macOS, as far as `ps` tells of them."""

from __future__ import annotations

import os
import re
import subprocess
import time

from tuner.simhost.tree import Process

_COMMAND = ("ps", "-axwwE", "-o", "pid=,ppid=,lstart=,state=,command=")
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+(\w{3} \w{3} +\d+ [\d:]{8} \d{4})\s+(\S+)\s+(.*)")
_VARIABLE = re.compile(r"(?:^| )([A-Za-z_]\w*)=")
_SERVER = re.compile(r"sglang\.launch_server|/sglang serve")


def processes(root: str, uid: int) -> dict[int, Process]:
    """Return the processes that have HOST_ROOT in their environment, without servers, which tell of themselves."""
    try:
        text = subprocess.run(_COMMAND, capture_output=True, check=False, timeout=5).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse(text, root, uid)


def parse(text: str, root: str, uid: int) -> dict[int, Process]:
    """Return the processes of a host in the output of `ps`, in which variables follow the command."""
    found = {}
    for line in text.splitlines():
        row = _ROW.fullmatch(line)
        if row is None or f" HOST_ROOT={root} " not in line + " " or int(row[1]) == os.getpid():
            continue
        first = _VARIABLE.search(row[5])
        command = row[5][: first.start()] if first else row[5]
        pairs = _VARIABLE.split(row[5][len(command) :])[1:]
        if _SERVER.search(command):
            continue
        pid = int(row[1])
        try:
            session = os.getsid(pid)
        except OSError:
            session = pid
        found[pid] = Process(
            pid, int(row[2]), command.replace(" ", "\0").encode() + b"\0",
            time.mktime(time.strptime(row[3], "%a %b %d %H:%M:%S %Y")), comm=os.path.basename(command.split(" ")[0]),  # noqa: PTH119
            state="Z" if row[4].startswith("Z") else "S", uid=uid, session=session,
            env=dict(zip(pairs[::2], pairs[1::2], strict=True)), rss_kb=20_000,
        )  # fmt: skip
    return found
