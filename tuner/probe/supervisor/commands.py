"""Commands of a service manager: systemctl, supervisorctl."""

from __future__ import annotations

import os
import re
import signal
from typing import List, Optional, Sequence, Tuple

from ..agent.base import PROC, text_of
from .desk import Clock, Desk

_ASKS = {
    "systemctl": ("start", ["show", "-p", "MainPID", "--value"]),
    "supervisorctl": ("start", ["pid"]),
}
"""How a manager is asked for the PID of what it started: the word that is replaced, and by what."""
_ERROR = re.compile(r"^error: |: ERROR \(", re.M)


class Command:
    """A command that runs beside the supervisor, its output in a file of the run's folder.

    Args:
        desk: The means of the run.
        argv: The command.
        quick: It only tells something. Its output has a file of its own, since another command may run meanwhile.
    """

    def __init__(self, desk: Desk, argv: Sequence[str], *, quick: bool = False) -> None:
        self._desk = desk
        self._path = desk.folder.file("asked.out" if quick else "manager.out")
        self.trouble = ""
        """Why it could not be run at all; empty if it could."""
        self._pid = 0
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        env = dict(os.environ, LC_ALL="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0")
        try:
            self._pid = os.posix_spawnp(
                argv[0], list(argv), env, file_actions=files, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
            desk.pulse.born(self._pid)
        except OSError as e:
            self.trouble = "%s: %s" % (argv[0], e.strerror)

    @property
    def code(self) -> Optional[int]:
        """Return its exit code; None while it runs."""
        return 127 if self.trouble else self._desk.pulse.exits.get(self._pid)

    @property
    def failed(self) -> bool:
        """Return whether it ended without doing its work; supervisorctl before 4.0 has the exit code 0 even then."""
        return self.code is not None and (self.code != 0 or _ERROR.search(text_of(self._path) or "") is not None)

    @property
    def output(self) -> str:
        """Return the end of its output in one line."""
        return self.trouble or " ".join((text_of(self._path) or "").split())[-300:]


def output_of(desk: Desk, argv: Sequence[str], timeout_s: float) -> Tuple[Optional[int], str]:
    """Return exit code and output of a short command; None where it did not end in time."""
    command = Command(desk, argv, quick=True)
    clock = Clock(timeout_s)
    while command.code is None and clock.left:
        desk.wait(min(0.05, clock.left))
    return command.code, command.output


def stop_command(manager: List[str]) -> List[str]:
    """Return the command that stops what a manager's start command started; empty where that is not known."""
    known = _program(manager) in _ASKS and "start" in manager
    return ["stop" if word == "start" else word for word in manager] if known else []


def unit_in(manager: List[str]) -> Optional[Tuple[str, bool]]:
    """Return the unit that a command of systemctl starts, and whether it is a user's; None for other commands."""
    if _program(manager) != "systemctl" or "start" not in manager:
        return None
    name = manager[-1]
    return name if "." in name else name + ".service", "--user" in manager


def _program(manager: List[str]) -> str:
    """Return the name of the program that a command runs, also after `env NAME=VALUE`; empty without one."""
    words = list(manager)
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
        while words and "=" in words[0]:
            words = words[1:]
    return os.path.basename(words[0]) if words else ""


def main_pid(desk: Desk, manager: List[str]) -> int:
    """Return the PID of what a manager's start command started; 0 where the manager cannot be asked."""
    word, asks = _ASKS.get(_program(manager), ("", []))
    if word not in manager:
        return 0
    at = manager.index(word)
    code, text = output_of(desk, manager[:at] + asks + manager[at + 1 :], 10.0)
    last = text.split()[-1] if code == 0 and text.split() else ""
    pid = int(last) if last.isdigit() else 0
    return pid if pid > 1 and os.path.isdir("%s/%d" % (PROC, pid)) else 0
