"""Files and folders that only their owner may read: what we keep holds command lines, environments and logs."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(path: Path) -> None:
    """Create a folder and those above it that are missing. What exists keeps its mode."""
    for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """For `open`: a file that is created belongs to its owner alone."""
    return os.open(path, flags, 0o600)
