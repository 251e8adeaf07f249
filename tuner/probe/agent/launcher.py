"""Start the supervisor of a run so that it outlives the probe, the link and the login."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from .base import HOST_ROOT, ME, Json, Refused, names_in, stat_of, text_of, user_name, which
from .folder import read_json

if TYPE_CHECKING:
    from .probe import Probe

START_S = 15.0
"""Longest wait for the supervisor's first record. It takes a tenth of a second on an idle host."""
MANAGER_S = 5.0
"""Longest wait for systemd-run. A service manager that does not answer is passed over."""

_PASSED = ("HOME", "HOST_ROOT", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TZ", "USER")
"""Variables of the probe that the supervisor has too. The server's environment is in the order, which only its owner
may read: that of a unit is shown to everybody."""
_LIMITS = ("CORE", "MEMLOCK", "NOFILE", "NPROC", "STACK")


def start_supervisor(probe: Probe, name: str, place: str) -> str:
    """Start `supervisor.py` in the folder of a run; return how, `systemd` or `session`, when its record is there.

    Args:
        probe: The probe.
        name: Id of the run; of its unit where systemd keeps it.
        place: The folder of the run.

    Raises:
        Refused: It ended before that; its words are in the text.
        TimeoutError: It wrote nothing in time, and may still begin.
        OSError: It cannot be started.
    """
    state = os.path.join(place, "state.json")
    before = _mark(state)
    # UTF-8 whatever the login's language is: command lines and environments are passed on byte by byte.
    command = [interpreter(), "-ISBXutf8", os.path.join(place, "supervisor.py"), place]
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    runtime = runtime_folder()
    if runtime:
        env["XDG_RUNTIME_DIR"] = runtime
        env["DBUS_SESSION_BUS_ADDRESS"] = os.environ.get("DBUS_SESSION_BUS_ADDRESS") or "unix:path=%s/bus" % runtime
    scope = systemd_scope()
    child: Any = None
    if scope is None or not _by_systemd(probe, name, scope, command, env):
        if scope is not None and ME != 0 and kills_at_logout():
            raise Refused("systemd-run failed, and this host ends all else of a user at logout", "nothing was touched")
        scope = None
        child = _apart(command, env)
        probe.thread(child.wait, "supervisor")  # or it would stay as a zombie when it has ended
    until = time.monotonic() + START_S
    asked_at = time.monotonic()
    while True:
        if _mark(state) != before and read_json(state) is not None:
            return "session" if scope is None else "systemd"
        ended = child is not None and child.poll() is not None
        if scope is not None and time.monotonic() - asked_at > 1.0:
            asked_at = time.monotonic()
            ended = not _is_active(probe, name, scope, env)
        if ended and _mark(state) == before:
            raise Refused("the run's supervisor ended at once: %s" % _words(place, child), "nothing was touched")
        if time.monotonic() > until:
            raise TimeoutError("the run's supervisor has written nothing for %g s" % START_S)
        probe.pause(0.02)


def interpreter() -> str:
    """Return the path of the interpreter that runs the probe."""
    return sys.executable or os.readlink("/proc/self/exe")


def runtime_folder() -> Optional[str]:
    """Return this user's folder for sockets, through which their service manager is reached; None without one."""
    for path in (os.environ.get("XDG_RUNTIME_DIR"), HOST_ROOT + "/run/user/%d" % ME):
        status = stat_of(path) if path else None
        if status is not None and status.st_uid == ME:
            return path
    return None


def systemd_scope() -> Optional[Tuple[str, ...]]:
    """Return the options that reach the service manager which can keep a run; None where none can.

    That of a user ends with the user's last session, and all its units with it, unless the user lingers. So it is
    better than a session of its own only then.

    Raises:
        Refused: The host ends all processes of a user at logout, and this user does not linger.
    """
    if not os.path.isdir(HOST_ROOT + "/run/systemd/system"):
        return None
    found = which("systemd-run") is not None
    if ME == 0:
        return () if found else None
    if os.path.exists(HOST_ROOT + "/var/lib/systemd/linger/%s" % user_name(ME)):
        return ("--user",) if found and runtime_folder() else None
    if kills_at_logout():
        raise Refused(
            "this host ends all processes of a user at logout (KillUserProcesses=yes in logind.conf)",
            "run `loginctl enable-linger` there once",
        )
    return None


def kills_at_logout() -> bool:
    """Return whether logind is set to end what a login started."""
    folder = HOST_ROOT + "/etc/systemd/"
    places = [folder + "logind.conf"]
    places += [folder + "logind.conf.d/" + name for name in sorted(names_in(folder + "logind.conf.d"))]
    set_to = [
        value
        for path in places
        for value in re.findall(r"^\s*KillUserProcesses\s*=\s*(\w+)", text_of(path, 65_536) or "", re.M)
    ]
    if not set_to or set_to[-1].lower() not in ("yes", "true", "on", "1"):
        return False
    only = re.findall(r"^\s*KillExcludeUsers\s*=\s*(.*)", "\n".join(text_of(p, 65_536) or "" for p in places), re.M)
    return user_name(ME) not in (only[-1].split() if only else ["root"])


def _by_systemd(probe: Probe, name: str, scope: Tuple[str, ...], command: List[str], env: Dict[str, str]) -> bool:
    """Start the supervisor as a unit of its own; return False where systemd does not take it."""
    basic = ["-p", "KillMode=process", "-p", "Restart=no"]
    # The supervisor goes on after TERM, which must not hold up the host's shutdown for a minute and a half.
    # A unit has limits of its own, lower than a login's in places that matter: locked memory, open files, tasks. And a
    # worker that the kernel kills for want of memory would take the supervisor along.
    more = ["-p", "TasksMax=infinity", "-p", "OOMPolicy=continue", "-p", "TimeoutStopSec=10", *_limits()]
    variables = ["--setenv=%s=%s" % item for item in sorted(env.items())]
    unit = ["systemd-run", *scope, "--unit", unit_of_run(name), "--collect", "--quiet"]
    # An old systemd refuses properties that it does not know.
    for properties in (basic + more, basic):
        try:
            code, _ = probe.children.output(
                [*unit, *properties, *variables, "--", *command], MANAGER_S, env=_for_systemd(env)
            )
        except (OSError, TimeoutError):
            return False
        if code == 0:
            return True
    return False


def unit_of_run(name: str) -> str:
    """Return the name of the unit that keeps a run."""
    return "gputuner-%s" % name


def _limits() -> List[str]:
    import resource

    out = []
    for name in _LIMITS:
        limits = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
        words = ["infinity" if limit == resource.RLIM_INFINITY else str(limit) for limit in limits]
        out += ["-p", "Limit%s=%s" % (name, ":".join(words))]
    return out


def _for_systemd(env: Dict[str, str]) -> Dict[str, str]:
    """Return the environment of systemd's programs, with the folder for sockets that leads to a user's manager."""
    return {**os.environ, **env, "LC_ALL": "C"}


def _is_active(probe: Probe, name: str, scope: Tuple[str, ...], env: Dict[str, str]) -> bool:
    argv = ["systemctl", *scope, "is-active", unit_of_run(name)]
    try:
        code, words = probe.children.output(argv, MANAGER_S, env=_for_systemd(env))
    except (OSError, TimeoutError):
        return True  # not known, so the wait goes on
    return code == 0 or words.strip() in ("activating", "reloading")


def _apart(command: List[str], env: Dict[str, str]) -> Any:
    """Start the supervisor in a session of its own, with nothing of the probe's. Raises OSError."""
    import subprocess

    null = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=null, stdout=null, stderr=null, env=env, cwd="/", start_new_session=True, close_fds=True
    )


def _mark(path: str) -> Json:
    status = stat_of(path)
    return {"mtime": status.st_mtime_ns, "inode": status.st_ino} if status else {}


def _words(place: str, child: Any) -> str:
    """Return the last line that the supervisor wrote, or its exit status."""
    lines = (text_of(os.path.join(place, "supervisor.err"), 65_536) or "").strip().splitlines()
    if lines:
        return lines[-1][:300]
    return "exit status %s" % child.returncode if child is not None else "it left no words"
