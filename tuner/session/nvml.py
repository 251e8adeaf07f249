"""The NVML binding sent to hosts that have none: one file of pure Python, installed with gputuner."""

from __future__ import annotations

import base64
import importlib.util
import zlib
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def binding() -> str | None:
    """Return the source of `pynvml`, compressed with zlib, in base64; None if it is not installed.

    The module is located but not imported, since importing needs a driver.
    """
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        return None
    return base64.b64encode(zlib.compress(Path(spec.origin).read_bytes(), 9)).decode("ascii")
