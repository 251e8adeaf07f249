"""What is checked before anything is touched."""

from __future__ import annotations

import errno
import os
import re
from typing import Dict, List, Optional

from ..agent.arguments import flag_value
from ..agent.base import HOST_ROOT, ME, user_name
from ..agent.identity import boot_id
from ..agent.processes import owner_of
from .asking import PortOwner
from .desk import Desk
from .files import room_below
from .launching import LaunchFailed, environment, folder_of, log_of, open_log, program_of
from .members import Members, ancestors_here, mismatch
from .orders import Launch

LEAST_LOG_BYTES = 16 << 20
"""Free space that a file system must have for the log of a new server."""


def why_not(desk: Desk, members: Optional[Members]) -> str:
    """Return why the run must not begin, in one line; empty if it may.

    Args:
        desk: The means of the run.
        members: The server that is to be stopped; None: none is.
    """
    order = desk.order
    if order.stop is not None and members is not None:
        trouble = _target(order.stop.boot_id, members)
        if trouble:
            return trouble
    for launch, back in ((order.start, False), (order.back if order.start else None, True)):
        trouble = _launch(desk, launch, members, back=back) if launch is not None else ""
        if trouble:
            return ("the way back: " if back else "") + trouble
    try:
        desk.folder.make_reserve()
    except OSError as e:
        desk.folder.free_reserve()
        return "%s: %s" % (desk.folder.path, e.strerror)
    return ""


def _target(boot: str, members: Members) -> str:
    leader = members.leader.id
    if boot and boot != (boot_id() or ""):
        return "the host was started anew since the order was made"
    trouble = mismatch(leader)
    if trouble == "ended":
        return "the server has ended already: pid %d" % leader.pid
    if trouble:
        return "not the server that was meant: " + trouble.replace("foreign: ", "")
    if leader.pid in ancestors_here():
        return "gputuner was started from this server, which it therefore cannot stop"
    owner = owner_of(leader.pid)
    if ME != 0 and owner is not None and owner != ME and not HOST_ROOT:
        return "the server belongs to %s: only that user or root may stop it" % user_name(owner)
    return ""


def _launch(desk: Desk, launch: Launch, members: Optional[Members], *, back: bool) -> str:
    env = environment(launch, desk.folder.run)
    if not launch.manager:
        if not launch.argv:
            return "there is no command to start"
        cwd = folder_of(launch, env)
        if not os.path.isdir(cwd):
            return "the working folder %s is not there" % cwd
        try:
            program_of(launch, env)
        except LaunchFailed as e:
            return str(e)
        log = log_of(launch, desk.folder.path, desk.folder.run, back=back)
        trouble = _words(launch.argv, env) or _log_folder(os.path.dirname(log)) or _log(launch, log)
        if trouble:
            return trouble
    for title in (*launch.titles, *launch.parts):
        try:
            re.compile(title)
        except re.error as e:
            return "the pattern %r: %s" % (title, e)
    if launch.port is not None and not back:
        return port_trouble(launch.port, members, launch.argv)
    return ""


def port_trouble(port: int, members: Optional[Members], argv: List[str]) -> str:
    """Return who else listens on the port that a new server needs; empty if nobody does.

    Args:
        port: The port.
        members: The server that is stopped before, and may listen there; None: none.
        argv: Command line of the new server.
    """
    from .readiness import holder

    owner = PortOwner(members, os.getpid(), port, flag_value(argv, ["--host"]))
    if owner.other is None:
        return ""
    return "port %d is taken by %s" % (port, holder(port, owner.other.uid))


def _words(argv: List[str], env: Dict[str, str]) -> str:
    """Return why the kernel would not take a command line or an environment; empty if it would."""
    longest = 32 * os.sysconf("SC_PAGE_SIZE")
    for word in (*argv, *("%s=%s" % item for item in env.items())):
        if "\0" in word:
            return "an argument or a variable has a NUL in it: %r" % word.partition("=")[0][:80]
        if len(word.encode("utf-8", "surrogateescape")) >= longest:
            return "an argument or a variable is longer than %d KiB: %s" % (longest >> 10, word.partition("=")[0][:80])
    name = next((name for name in env if not name or "=" in name), None)
    return "" if name is None else "no variable can be called %r" % name


def _log(launch: Launch, log: str) -> str:
    """Return why the log of a new server cannot be opened; empty if it can. No file is left behind."""
    new = not os.path.lexists(log)
    try:
        os.close(open_log(launch, log))
        if new:
            os.unlink(log)
    except OSError as e:
        words = "it is a link" if e.errno == errno.ELOOP else e.strerror
        return "the log %s: %s" % (log, words)
    return ""


def _log_folder(path: str) -> str:
    # Only writing shows whether it can be written: root may, by its rights, also where a disk is read-only.
    probe = os.path.join(path, ".gputuner-%d" % os.getpid())
    try:
        os.makedirs(path, exist_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.unlink(probe)
    except OSError as e:
        return "the log folder %s: %s" % (path, e.strerror)
    room = room_below(path)
    if room is not None and room < LEAST_LOG_BYTES:
        return "only %d MB are free in %s, where the log goes" % (room // 1_000_000, path)
    return ""
