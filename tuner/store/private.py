"""Create files and folders that only their owner may read, since they hold command lines, environments and logs."""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents with mode 0700; existing ones keep their mode."""
    for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file with mode 0600 if it is created; for `open(..., opener=opener)`."""
    return os.open(path, flags, 0o600)
