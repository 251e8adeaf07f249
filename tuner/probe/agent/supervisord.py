"""The supervisord above a server: which of its programs the server is, and what supervisord does when that ends."""

from __future__ import annotations

import getopt
import glob
import os
import re
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from .base import ME, PROC, Json, link_of, stat_of, text_of, user_name, which
from .processes import Proc, owner_of
from .recognition import program_index

if TYPE_CHECKING:
    from .probe import Probe

CONTROL_S = 5.0
"""Longest wait for an answer of supervisorctl, which takes a fifth of a second."""
_SHORT = "c:nu:m:d:l:y:z:e:j:i:q:a:b:tksvh?"
_LONG = (
    "configuration=", "nodaemon", "user=", "umask=", "directory=", "logfile=", "logfile_maxbytes=", "logfile_backups=",
    "loglevel=", "pidfile=", "identifier=", "childlogdir=", "minfds=", "minprocs=", "nocleanup", "strip_ansi",
    "profile_options=", "silent", "version", "help",
)  # fmt: skip
"""The options of supervisord 3 and 4."""
_COMES_BACK = frozenset(("BACKOFF", "STARTING"))
"""States of a program that has ended and is started again without being asked."""


_FAULT = re.compile(r"error: <class '[^']+'>, (.*): file: .* line: \d+$")
"""How supervisorctl prints what went wrong, from version 3.0 on."""
_MODULE = "supervisor.supervisord"


def is_supervisord(proc: Proc) -> bool:
    """Return whether a process is a supervisord."""
    at = program_index(proc.argv)
    return at is not None and os.path.basename(proc.argv[at]) in ("supervisord", "supervisord.py", _MODULE)


def program_in(env: Dict[str, str]) -> Optional[str]:
    """Return the program that supervisord's variables name, as supervisorctl takes it; None without them."""
    name, group = env.get("SUPERVISOR_PROCESS_NAME"), env.get("SUPERVISOR_GROUP_NAME")
    return "%s:%s" % (group, name) if group and name and group != name else name


def supervisord_facts(
    probe: Probe, pid: int, above: Sequence[Proc], env: Optional[Dict[str, str]], direct: int
) -> Optional[Json]:
    """Return the supervisord above a server; None without one.

    Its variables alone prove nothing: all that is started below a program inherits them, and what has outlived its
    parents stands directly below a supervisord that is the first process of a container. So supervisord is asked which
    process the program has, unless it is another user's: its supervisorctl and its configuration, which may load any
    module, would run with the rights of whoever looks.

    Args:
        probe: The probe.
        pid: The leader; 0: it has ended.
        above: What stands above it, or did so and lives, nearest first.
        env: Its environment; None where it may not be read.
        direct: How many of the nearest of `above` are scripts and wrappers, which end with the server.
    """
    at = next((i for i, proc in enumerate(above) if is_supervisord(proc)), None)
    if at is None:
        return None
    daemon, told = above[at], env or {}
    name, group, whole = told.get("SUPERVISOR_PROCESS_NAME"), told.get("SUPERVISOR_GROUP_NAME"), program_in(told)
    owner = owner_of(daemon.pid)
    out: Json = {"pid": daemon.pid, "owner": user_name(owner), "name": whole}
    out["main"] = bool(pid) and at <= direct and (bool(whole) or env is None)
    out["program"] = _control(daemon)
    out["config"], url = _config_of(daemon), told.get("SUPERVISOR_SERVER_URL")
    if out["config"] and whole:
        out.update(_settings(out["config"], group or whole, name or whole))
    elif url:
        out["url"] = url
    socket = re.match(r"unix://(/.*)", url or "")
    if socket:
        out["may"] = ME == 0 or (stat_of(socket.group(1)) is not None and os.access(socket.group(1), os.W_OK))
    if owner not in (0, ME):
        out["may"] = False
        out["problem"] = "supervisorctl of %s is not run as %s" % (out["owner"], user_name(ME))
    elif env is None:
        out["problem"] = "its environment may not be read, which names the program"
    elif out["program"] and out.get("may", True) and (out["main"] or (whole and not pid)):
        out.update(_answer(probe, out, (above[at - 1].pid if at else pid) if pid else 0))
    return out


def _answer(probe: Probe, part: Json, child: int) -> Json:
    """Ask supervisord for a program: whether `child` is its process, or, of an ended one (0), whether it returns."""
    where = ["-c", part["config"]] if part["config"] else ["-s", part["url"]] if part.get("url") else []
    argv = [part["program"], *where, "pid" if child else "status", part["name"]]
    try:
        code, text = probe.children.output(argv, CONTROL_S, env={**os.environ, "LC_ALL": "C"})
    except (OSError, TimeoutError) as e:
        return {"problem": str(e)}
    words = text.split()
    if child and len(words) == 1 and words[0].isdigit():
        return {"main": int(words[0]) == child}
    if not child and len(words) > 1 and words[0] == part["name"]:
        return {"returns": words[1] in _COMES_BACK}
    last = text.strip().splitlines()[-1] if words else "supervisorctl: exit code %s" % code
    fault = _FAULT.match(last)
    return {"problem": (fault.group(1) if fault else last)[:200]}


def _program(daemon: Proc) -> Tuple[str, List[str]]:
    """Return the program or module of a supervisord, and its arguments."""
    at = program_index(daemon.argv) or 0
    return daemon.argv[at], list(daemon.argv[at + 1 :])


def _control(daemon: Proc) -> Optional[str]:
    """Return the supervisorctl that belongs to a supervisord, or that on PATH; None without one."""
    program = _program(daemon)[0]
    place = daemon.argv[0] if program == _MODULE else program
    beside = os.path.join(os.path.dirname(place), "supervisorctl") if place.startswith("/") else ""
    return beside if beside and os.access(beside, os.X_OK) else which("supervisorctl")


def _config_of(daemon: Proc) -> Optional[str]:
    """Return the configuration file of a supervisord; None where it is not found.

    It is looked for at the places where supervisord looks. A relative path may lead nowhere by now: supervisord changes
    its working folder where the file says so.
    """
    program, arguments = _program(daemon)
    try:
        options, _ = getopt.getopt(arguments, _SHORT, list(_LONG))
    except getopt.GetoptError:
        return None
    given = [value for name, value in options if name in ("-c", "--configuration")]
    above = os.path.dirname(os.path.dirname(program))
    places = given[-1:] or [
        os.path.join(above, "etc/supervisord.conf"), os.path.join(above, "supervisord.conf"), "supervisord.conf",
        "etc/supervisord.conf", "/etc/supervisord.conf", "/etc/supervisor/supervisord.conf",
    ]  # fmt: skip
    cwd = link_of("%s/%d/cwd" % (PROC, daemon.pid)) or "/"
    paths = [os.path.normpath(os.path.join(cwd, place)) for place in places]
    return next((path for path in paths if os.path.isfile(path)), None)


def _settings(config: str, group: str, name: str) -> Json:
    """Return what the files say of a program: `restart` and `timeout_stop_s`; empty where they do not."""
    import configparser

    told = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"), strict=False)
    here = os.path.dirname(config)
    try:
        told.read_string(text_of(config) or "")
        for pattern in told.get("include", "files", fallback="").replace("%(here)s", here).split():
            for path in sorted(glob.glob(os.path.join(here, pattern))):
                told.read_string(text_of(path) or "")
    except configparser.Error:
        return {}
    # Processes of a group of several programs are named like these, as a rule.
    programs = re.split(r"[\s,]+", told.get("group:" + group, "programs", fallback=group))
    program = max((each for each in programs if each == group or name.startswith(each)), key=len, default="")
    section = "program:" + program
    if not told.has_section(section):
        return {}
    stop_s = told.get(section, "stopwaitsecs", fallback="10").strip()
    restart = told.get(section, "autorestart", fallback="unexpected").strip().lower()
    return {"restart": restart, "timeout_stop_s": float(stop_s) if stop_s.isdigit() else None}
