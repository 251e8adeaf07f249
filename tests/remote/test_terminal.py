"""The dashboard in a terminal that nobody reads any more."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

from tests.support.facts import until

_STILL = 150
"""Looks in a row that show the same: nothing more fits into the terminal, and the dashboard waits for it."""


def unread(terminal: int) -> int:
    """Bytes that were drawn and not read."""
    return int(struct.unpack("i", fcntl.ioctl(terminal, termios.FIONREAD, bytes(4)))[0])


def demo(terminal: int, home: Path) -> subprocess.Popen[bytes]:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", "demo"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "HOME": str(home), "XDG_STATE_HOME": str(home)},
    )


async def test_a_terminal_that_nobody_reads_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    shown = demo(theirs, tmp_path)
    seen: list[int] = []

    def full() -> bool:
        seen.append(unread(ours))
        last = seen[-_STILL:]
        return len(last) == _STILL and last[0] > 0 and len(set(last)) == 1

    try:
        drawn = b""
        while b"ranks" not in drawn:
            drawn += os.read(ours, 65_536)
        os.write(ours, b"lo" * 50)  # each draws a screen, and nobody takes it
        await until(full)
        shown.send_signal(signal.SIGTERM)
        assert shown.wait(30) == 128 + signal.SIGTERM
    finally:
        shown.kill()
        shown.wait()
        os.close(ours)
        os.close(theirs)
