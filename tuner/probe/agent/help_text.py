"""What a program prints of its own flags."""

from __future__ import annotations

import os
import select
import time
from typing import Dict, List, Tuple

from .arguments import MASK, masked_env
from .base import Json
from .children import Children
from .programs import find_program

MOST_BYTES = 1 << 20
"""Most bytes of output that are kept; SGLang's help has 160 KB."""


def help_of(children: Children, argv: List[str], env: Dict[str, str], cwd: str, limit_s: float) -> Json:
    """Run a command that prints its flags and return the fact `help`, secrets of its environment masked.

    Args:
        children: Starts and ends it.
        argv: Command line.
        env: Its environment.
        cwd: Its working folder.
        limit_s: Seconds after which it is killed.
    """
    program = find_program(argv[0], env, cwd)
    if program is None:
        return {"problem": "%s is not there, so it cannot say which flags it knows" % argv[0]}
    if not os.path.isdir(cwd):
        return {"problem": "%s is not there, so the help cannot be run in it" % cwd}
    began = time.monotonic()
    child = children.start([program, *argv[1:]], env={**env, "COLUMNS": "200"}, cwd=cwd)
    try:
        data, whole = _output(child.stdout.fileno(), began + limit_s)
        code = child.wait(max(0.1, began + limit_s - time.monotonic())) if whole else None
    finally:
        children.end(child)
        child.stdout.close()
    took = time.monotonic() - began
    text = _without_secrets(data.decode("utf-8", "replace"), env)
    if code == 0:
        return {"text": text, "took_s": round(took, 1)}
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")[:300]
    how = "did not end within %.0f s" % limit_s if code is None else "ended with %s" % code
    return {"problem": "`%s` %s: %s" % (" ".join(argv), how, last)}


def _output(fd: int, until: float) -> Tuple[bytes, bool]:
    """Return what a pipe yields, and whether it was closed in time. What exceeds the limit is read and dropped."""
    parts: List[bytes] = []
    size = 0
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return b"".join(parts), False
        block = os.read(fd, 65_536)
        if not block:
            return b"".join(parts), True
        if size < MOST_BYTES:
            parts.append(block[: MOST_BYTES - size])
            size += len(parts[-1])


def _without_secrets(text: str, env: Dict[str, str]) -> str:
    """Return a program's output with the secrets of its environment masked."""
    for name, value in masked_env(env).items():
        if value == MASK and len(env[name]) > 3:
            text = text.replace(env[name], MASK)
    return text
