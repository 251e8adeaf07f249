"""A real terminal for the installed command: pexpect gives the pseudo-terminal, pyte reads what is on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pexpect
import pyte


class Terminal:
    """One command on a screen of a given size; ended with the context."""

    def __init__(self, *command: str | Path, columns: int, rows: int, env: dict[str, str] | None = None) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._child = pexpect.spawn(
            str(command[0]),
            [str(word) for word in command[1:]],
            dimensions=(rows, columns),
            env=os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | (env or {}),
            timeout=None,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close(force=True)

    @property
    def pid(self) -> int:
        """The command's."""
        return int(self._child.pid)

    @property
    def text(self) -> str:
        """What stands on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def send(self, keys: str) -> None:
        """Type."""
        self._child.send(keys)

    def wait(self, true: Callable[[str], object], limit_s: float = 20) -> str:
        """Read until `true` holds of the screen; the screen then."""
        deadline = time.monotonic() + limit_s
        while not true(self.text):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {limit_s} s; the screen was\n{self.text}"
            try:
                self._stream.feed(self._child.read_nonblocking(65_536, timeout=min(left, 0.5)))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                self._child.wait()
                raise AssertionError(f"ended with {self._child.exitstatus}; the screen was\n{self.text}") from None
        return self.text

    def see(self, *words: str, limit_s: float = 20) -> str:
        """Read until all words stand on the screen."""
        return self.wait(lambda text: all(word in text for word in words), limit_s)

    def end(self, limit_s: float = 20) -> int:
        """Read until the command ended; its exit code."""
        self._child.expect(pexpect.EOF, timeout=limit_s)
        self._stream.feed(self._child.before)
        self._child.wait()
        return int(self._child.exitstatus if self._child.exitstatus is not None else -self._child.signalstatus)
