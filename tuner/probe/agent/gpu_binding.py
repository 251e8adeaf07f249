"""Finds and loads the driver and its Python binding, and leaves no trace of that on disk or in memory."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any, Optional

from .base import HOST_ROOT, ME, PROC, Json, slurp, stat_of


def trusted(path: str) -> bool:
    """True for a file that may be run as us: root's or our own, and nobody else can write it."""
    status = stat_of(path)
    if status is None or status.st_uid not in (0, ME):
        return False
    return not status.st_mode & (0o022 if ME == 0 else 0o002)


def load_module(path: Optional[str], source: Optional[bytes]) -> Any:
    """The pynvml module from a file or from its source, without leaving a trace on disk."""
    import types
    from importlib.util import cache_from_source, module_from_spec, spec_from_file_location

    sys.modules.pop("pynvml", None)
    if path is not None and os.path.exists(cache_from_source(path)):
        spec = spec_from_file_location("pynvml", path)
        if spec is None or spec.loader is None:
            raise ImportError(path)
        module = module_from_spec(spec)
        sys.modules["pynvml"] = module  # the binding looks itself up while it is loaded
        spec.loader.exec_module(module)
        return module
    module = types.ModuleType("pynvml")
    sys.modules["pynvml"] = module
    if path is not None:
        module.__file__ = path
        source = slurp(path, 1 << 24)
    run_in_parts((source or b"").decode("utf-8", "replace"), path or "pynvml", module.__dict__)
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
