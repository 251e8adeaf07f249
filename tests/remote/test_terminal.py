"""The dashboard in a terminal that nobody reads any more."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path


def test_a_terminal_that_nobody_reads_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    shown = subprocess.Popen(
        [sys.executable, "-m", "tuner", "demo"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
    )
    try:
        seen = b""
        while b"ranks" not in seen:
            seen += os.read(master, 65_536)
        while select.select([], [slave], [], 0.2)[1]:
            os.write(master, b"lo")  # each draws a screen, and nobody takes it
        for _ in range(50):
            os.write(master, b"lo")
            select.select([], [slave], [], 0.05)
        shown.send_signal(signal.SIGTERM)
        assert shown.wait(30) == 128 + signal.SIGTERM
    finally:
        shown.kill()
        os.close(master)
        os.close(slave)
