"""Find and load the driver's Python binding, without traces on disk or in memory."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from typing import Any, Optional

from .base import HOST_ROOT, ME, PROC, Json


def trusted_source(path: str) -> Optional[bytes]:
    """Return the source of a module; None where others than root and this user may have written it.

    The file that is read is the one that is checked: behind all links, by its descriptor. Nobody else can write it or
    replace it, because its folders up to the root belong to root or this user as well. A link under another name is
    refused, so that it cannot pass off some other text of root's as a module.
    """
    real = folder = os.path.realpath(path)
    if os.path.basename(real) != os.path.basename(path):
        return None
    try:
        while folder != "/":
            folder = os.path.dirname(folder)
            if not _ours(os.lstat(folder)):
                return None
        # A pipe under that name must not block the probe.
        with open(os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            return file.read() if stat.S_ISREG(status.st_mode) and _ours(status) else None
    except OSError:
        return None


def _ours(status: os.stat_result) -> bool:
    """Return whether a file or folder is root's or this user's, and others cannot write it (or it is sticky)."""
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return status.st_uid in (0, ME) and (bool(sticky) or not status.st_mode & 0o022)


def load_module(source: bytes, path: Optional[str] = None) -> Any:
    """Return the pynvml module, executed from its source.

    Bytecode beside it is not used: others may have written it.
    """
    import types

    module = types.ModuleType("pynvml")
    if path is not None:
        module.__file__ = path
    sys.modules["pynvml"] = module  # the binding looks itself up while it is loaded
    run_in_parts(source.decode("utf-8", "replace"), path or "pynvml", module.__dict__)
    return module


def run_in_parts(source: str, name: str, namespace: Json) -> None:
    """Execute a source in parts: the parser takes a hundred bytes for each byte of source, and keeps most of them."""
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
            continue  # the cut was within a string, or below a decorator
        exec(code, namespace)  # noqa: S102
        line += source.count("\n", start, end)
        start = end


def binding_in(folder: str) -> Optional[str]:
    """Return the path of the pynvml module in a package folder; None where there is none."""
    for name in ("pynvml.py", "pynvml/nvml.py"):
        path = folder + "/" + name
        if os.path.isfile(path):
            return path
    return None


def driver_hints() -> bool:
    """Return whether an NVIDIA driver seems to be installed, usable or not."""
    if os.path.exists(PROC + "/driver/nvidia/version") or (not HOST_ROOT and os.path.exists("/dev/nvidiactl")):
        return True
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def give_memory_back() -> None:
    """Return memory to the host that the driver needed only while it was loaded: megabytes."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # the C library may not have it
        ctypes.CDLL(None).malloc_trim(0)
