"""Recognise the processes of an engine, as the plan describes them."""

from __future__ import annotations

import os
import re
from typing import List, Optional, Sequence

from .base import Json

_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*[dmtu]*$")
_RUNNERS = frozenset(("cProfile", "coverage", "debugpy", "memray", "pdb", "profile", "scalene", "trace", "viztracer"))
"""Modules that run another program inside their own process."""
_TELLS = frozenset(("-h", "--help", "--version"))
"""Flags with which an engine's program prints something and ends; vLLM also has `--help=GROUP`."""


def is_python(path: str) -> bool:
    """Return whether a path is that of a Python interpreter, by its name."""
    return bool(_PYTHON.match(os.path.basename(path)))


def program_index(argv: Sequence[str]) -> Optional[int]:
    """Return the index of the argument that names the program of this process; None where there is none.

    For an interpreter that is the module or the script, for other programs the program itself. So a command line that
    only contains another one (`bash -c "..."`, ssh, tmux, an editor, grep) yields the outer program, and `python -c`,
    which multiprocessing uses for its helpers, yields None.
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
    """The part of the plan about one engine, with its regular expressions compiled."""

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
        # Matches any line except access lines for paths that we, or other monitors, request.
        self._work = re.compile((r"^(?!.*GET (?:%s)\b).*\S" % paths).encode(), re.M)
        self.markers = [m.encode() for m in plan.get("start_markers", ()) if m]
        self.end_marker: bytes = plan.get("log_end_marker", "").encode()

    def works(self, log: bytes) -> bool:
        """Return whether any of these log lines is about something other than such requests."""
        return bool(self._work.search(log))

    def leads(self, argv: Sequence[str], line: str) -> bool:
        """Return whether a command line is that of a server's leader, and does not merely mention one."""
        at = program_index(argv)
        if at is None or any(word in _TELLS or word.startswith("--help=") for word in argv[at + 1 :]):
            return False
        start = len(" ".join(argv[:at])) + (1 if at else 0)
        end = start + len(argv[at])
        return any(m.start() < end and m.end() > start for rx in self.leaders for m in rx.finditer(line))

    def titled(self, line: str) -> bool:
        """Return whether a process title is one of this engine's; the title must begin with the pattern."""
        return any(rx.match(line) for rx in self.titles)
