"""The program of a command: where it is, and which Python runs it."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional

from .base import Json, slurp, text_of
from .recognition import is_python

_EXEC_LINE = re.compile(r"^'''exec' (?:\"([^\"]+)\"|(\S+)) ", re.M)
"""Second line of a script whose interpreter's path is too long for the first: a shell runs it and executes this."""


def find_program(name: str, env: Dict[str, str], cwd: str) -> Optional[str]:
    """Return the path of a program as a shell in the folder `cwd` would find it; None where it does not exist.

    It may be no program: a folder, or a file that this user may not execute. Then `is_program` is False.
    """
    if "/" in name:
        path = os.path.join(cwd, name)
        return path if os.path.exists(path) else None
    found = None
    for folder in env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":"):
        path = os.path.join(cwd, folder, name)
        if os.path.isfile(path):
            if is_program(path):
                return path
            found = found or path
    return found


def is_program(path: str) -> bool:
    """Return whether a path is that of a file which this user may execute."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def interpreter_facts(command: List[str], env: Dict[str, str], cwd: str) -> Json:
    """Return the fact `interpreter` of a command: its program, its Python, and whether both can be run."""
    name = command[0]
    program = find_program(name, env, cwd)
    out: Json = {"program": name, "path": None, "exists": program is not None, "executable": False}
    if program is None:
        path = name if name.startswith("/") else os.path.join(cwd, name)
        if "/" in name and os.path.islink(path):
            # A virtual environment whose Python was upgraded away.
            out.update(path=path, exists=True, executable=True)
            out["broken"] = "its link leads to %s, which does not exist" % os.readlink(path)
        else:
            out["path"] = name
        return out
    out["executable"] = is_program(program)
    python = _python_of(command, program, env, cwd)
    out["path"] = python or program
    if python and not os.path.exists(python):
        out["broken"] = "%s is run by %s, which does not exist" % (program, python)
    elif python:
        out["version"] = python_version(python)
    return out


def _python_of(command: List[str], program: str, env: Dict[str, str], cwd: str) -> Optional[str]:
    """Return the Python that runs a command; None where no Python is named."""
    if is_python(program):
        return program
    for arg in command[1:]:  # `numactl ... python -m`, `env A=1 python`
        if is_python(arg):
            return find_program(arg, env, cwd) or arg
    try:
        head = slurp(program, 512)[:512].decode("utf-8", "replace")
    except OSError:
        return None
    if not head.startswith("#!"):
        return None
    words = head[2:].partition("\n")[0].split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return (find_program(words[0], env, cwd) or words[0]) if words and is_python(words[0]) else None
    if words and is_python(words[0]):
        return words[0]
    longer = _EXEC_LINE.search(head)
    return (longer.group(1) or longer.group(2)) if longer else None


def python_version(python: str) -> Optional[str]:
    """Return the version of a Python without running it: from its virtual environment, or from its name."""
    config = text_of(os.path.dirname(os.path.dirname(python)) + "/pyvenv.cfg", 65_536) or ""
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", config, re.M)
    if found:
        return found.group(1)
    named = re.search(r"(\d+\.\d+)$", os.path.basename(os.path.realpath(python)))
    return named.group(1) if named else None
