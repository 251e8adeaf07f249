"""Which process belongs to an engine, as the plan describes it."""

from __future__ import annotations

import os
import re
from typing import List, Optional, Sequence

from .base import Json

_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*[dmtu]*$")
_RUNNERS = frozenset(("cProfile", "coverage", "debugpy", "memray", "pdb", "profile", "scalene", "trace", "viztracer"))
"""Modules that run another program inside their own process."""


def is_python(path: str) -> bool:
    """True for the name of a Python interpreter."""
    return bool(_PYTHON.match(os.path.basename(path)))


def program_index(argv: Sequence[str]) -> Optional[int]:
    """Index of the argument that names what this very process runs.

    For an interpreter the module or the script, for others the program itself. A command line that only carries
    another one (`bash -c "..."`, ssh, tmux, an editor, grep) therefore points to the carrier, and `python -c`,
    which multiprocessing uses for its helpers, to nothing.
    """
    if not argv or not argv[0]:
        return None
    if not is_python(argv[0]):
        return 0
    i = 1
    while i < len(argv):
        arg = argv[i]
        if arg == "-" or not arg:
            return None
        if not arg.startswith("-"):
            found: Optional[int] = i
        elif arg.startswith("--"):
            i += 2 if arg == "--check-hash-based-pycs" else 1
            continue
        else:
            found = None
            step = 1
            for at, letter in enumerate(arg[1:], 1):
                rest = arg[at + 1 :]
                if letter == "c":
                    return None
                if letter == "m":
                    found = i if rest else i + 1
                    break
                if letter in "WXQ":
                    step = 1 if rest else 2
                    break
            if found is None:
                i += step
                continue
        if found is None or found >= len(argv):
            return None
        if argv[found].rpartition(".")[2] in _RUNNERS or os.path.basename(argv[found]) in _RUNNERS:
            inner = [at for at in range(found + 1, len(argv) - 1) if argv[at] == "-m"]
            return inner[0] + 1 if inner else found
        return found
    return None


class Engine:
    """One engine's part of the plan, its expressions compiled."""

    def __init__(self, plan: Json) -> None:
        self.name: str = plan["name"]
        self.leaders = [re.compile(p) for p in plan.get("leaders", ())]
        self.titles = [re.compile(p) for p in plan.get("titles", ())]
        self.package: str = plan.get("package", "")
        self.port_flags: List[str] = list(plan.get("port_flags", ("--port",)))
        self.default_port: int = plan.get("default_port", 8000)
        self.tls_flags: List[str] = list(plan.get("tls_flags", ()))
        self.api_key_flags: List[str] = list(plan.get("api_key_flags", ("--api-key",)))
        self.api_key_env: List[str] = list(plan.get("api_key_env", ()))
        self.rank_env: List[str] = list(plan.get("rank_env", ()))
        self.endpoints: List[Json] = list(plan.get("endpoints", ()))
        paths = "|".join(re.escape(path) for part in self.endpoints for path in part["paths"])
        # A line with more than an access line of what we, or other monitors, ask for.
        self._work = re.compile((r"^(?!.*GET (?:%s)\b).*\S" % paths).encode(), re.M)
        self.markers = [m.encode() for m in plan.get("start_markers", ()) if m]
        self.end_marker: bytes = plan.get("log_end_marker", "").encode()

    def works(self, log: bytes) -> bool:
        """True for lines of a log of which one at least is not about the asking itself."""
        return bool(self._work.search(log))

    def leads(self, argv: Sequence[str], line: str) -> bool:
        """True for the command line of a server's own process, not for one that merely mentions it."""
        at = program_index(argv)
        if at is None:
            return False
        start = len(" ".join(argv[:at])) + (1 if at else 0)
        end = start + len(argv[at])
        return any(m.start() < end and m.end() > start for rx in self.leaders for m in rx.finditer(line))

    def titled(self, line: str) -> bool:
        """True for a process title of this engine; a title begins with it, a mention does not."""
        return any(rx.match(line) for rx in self.titles)
