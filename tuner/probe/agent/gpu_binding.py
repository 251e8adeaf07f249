"""Finds and loads the driver and its Python binding, and leaves no trace of that on disk or in memory."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from typing import Any, Optional

from .base import HOST_ROOT, ME, PROC, Json


def trusted_source(path: str) -> Optional[bytes]:
    """Text of a module that may be run as us; None where somebody else than root and us may have written it.

    What is checked is what is read: the file behind all links, by the descriptor it was opened with. Nobody else can
    write it, nor put another one into its place, as its folders up to the root belong to root or us as well. A link
    cannot make a module of any other text of root's.
    """
    real = folder = os.path.realpath(path)
    if os.path.basename(real) != os.path.basename(path):
        return None
    try:
        while folder != "/":
            folder = os.path.dirname(folder)
            if not _ours(os.lstat(folder)):
                return None
        # A pipe of that name must not hold us up.
        with open(os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            return file.read() if stat.S_ISREG(status.st_mode) and _ours(status) else None
    except OSError:
        return None


def _ours(status: os.stat_result) -> bool:
    """True where only root and we write: to a file, or to a folder if only what is somebody's own (as in /tmp)."""
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return status.st_uid in (0, ME) and (bool(sticky) or not status.st_mode & 0o022)


def load_module(source: bytes, path: Optional[str] = None) -> Any:
    """The pynvml module from its source. Never from bytecode beside it: that may be anybody's."""
    import types

    module = types.ModuleType("pynvml")
    if path is not None:
        module.__file__ = path
    sys.modules["pynvml"] = module  # the binding looks itself up while it is loaded
    run_in_parts(source.decode("utf-8", "replace"), path or "pynvml", module.__dict__)
    return module


def run_in_parts(source: str, name: str, namespace: Json) -> None:
    """Execute a long source a part at a time: the parser takes a hundred bytes for each of its, and keeps most."""
    heads = re.compile(r"^(?=@|def |class )", re.M)
    start = end = line = 0
    while start < len(source):
        found = heads.search(source, end + 16_384)
        end = found.start() if found else len(source)
        try:
            code = compile("\n" * line + source[start:end], name, "exec")
        except SyntaxError:
            if found is None:
                raise
            continue  # cut within a string, or below a decorator
        exec(code, namespace)  # noqa: S102
        line += source.count("\n", start, end)
        start = end


def binding_in(folder: str) -> Optional[str]:
    """The pynvml module in a package folder."""
    for name in ("pynvml.py", "pynvml/nvml.py"):
        path = folder + "/" + name
        if os.path.isfile(path):
            return path
    return None


def driver_hints() -> bool:
    """True where an NVIDIA driver seems to be, whatever can be done with it."""
    if os.path.exists(PROC + "/driver/nvidia/version") or (not HOST_ROOT and os.path.exists("/dev/nvidiactl")):
        return True
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def give_memory_back() -> None:
    """Return to the host what the driver needed for a moment while it was loaded: megabytes."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # a C library that cannot
        ctypes.CDLL(None).malloc_trim(0)
