"""Keep the help texts of installed engines on this machine: printing one takes an engine up to half a minute."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from tuner.store.private import make_folder, opener

MOST = 64
"""Most texts that are kept."""


class HelpTexts:
    """The help texts in a folder, one file each. A file that cannot be read or written counts as missing.

    Args:
        folder: Folder of the files; it is made with the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, host: str, command: Sequence[str], version: str | None) -> str | None:
        """Return the text that a command of some version printed on a host; None if it is not known."""
        if not version:
            return None
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._file(host, command, version).read_text(encoding="utf-8")
        return None

    def keep(self, host: str, command: Sequence[str], version: str | None, text: str) -> None:
        """Keep a text; without a version it is not kept, since nothing would tell when it is out of date."""
        if not version or not text:
            return
        file = self._file(host, command, version)
        with contextlib.suppress(OSError):
            make_folder(self._folder)
            part = file.with_suffix(f".{os.getpid()}")
            with open(part, "w", encoding="utf-8", opener=opener) as out:
                out.write(text)
            part.replace(file)
            texts = sorted(self._folder.glob("*.txt"), key=lambda each: each.stat().st_mtime)
            for old in texts[:-MOST]:
                old.unlink()

    def _file(self, host: str, command: Sequence[str], version: str) -> Path:
        name = hashlib.sha256("\0".join((host, version, *command)).encode()).hexdigest()[:32]
        return self._folder / f"{name}.txt"
