"""Facts for the checks before a server is stopped. Nothing is changed; only the engine's help is run, as a child.

The laptop judges them (`tuner.core.preflight`). Each fact is looked for in a thread with a time limit, so that a disk
or a driver that does not answer costs that fact alone: it then has a `problem`, as has one that could not be read.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from .arguments import MASK
from .base import ME, PROC, Json, Refused, home_of, stat_of, text_of, user_name
from .env_files import settings_in_files
from .folder import disk_of, existing_above, our_folder
from .gpu_binding import driver_hints
from .help_text import help_of
from .installation import package_version, site_folders
from .launch_order import Source, completed, login_environment
from .limits import limit_facts
from .llm_files import llm_facts
from .managers import manager_facts, returning
from .processes import describe_process, owner_of
from .programs import interpreter_facts
from .sockets import listeners_of, sockets_of

if TYPE_CHECKING:
    from .probe import Probe
    from .server import Server

FACT_S = 10.0
"""Seconds that a fact may take."""
HELP_S = 90.0
"""Seconds that the engine's help may take: it imports torch, 20 s for SGLang and 36 s for vLLM on two busy cores."""


class Look:
    """What is asked, and what all facts need: the server that is stopped, the new one's environment and folder."""

    def __init__(self, probe: Probe, ask: Json) -> None:
        self.probe = probe
        self.ask = ask
        self.key: str = ask.get("key") or ""
        self.server: Optional[Server] = probe.servers.get(self.key)
        self.refused: Optional[Refused] = None
        """Why the start cannot be completed: a secret, or what it is `like`, cannot be had."""
        like = str(ask.get("like") or "")
        source = Source("the login", env=login_environment())
        given = {name: str(value) for name, value in (ask.get("env") or {}).items()}
        done: Json = {"argv": list(ask.get("argv") or ()), "base": source.env, "env": given}
        try:
            if like:
                source = probe.door.source(like)
            if like or done["argv"]:
                # The working folder is a fact of its own.
                done = completed({"argv": done["argv"], "env": given, "like": like, "cwd": "/"}, lambda _: source)
        except Refused as e:
            self.refused = e
            done["base"] = source.env or {}
            done["env"] = {name: value for name, value in given.items() if MASK not in value}
        self.manager: List[str] = list(done.get("manager") or ())
        """Command of the service manager that starts it; empty: none does."""
        kept: Json = done.get("was") or {}
        self.env: Dict[str, str] = {**done["base"], **(kept.get("env") or {}), **done["env"]}
        self.command: List[str] = list(ask.get("command") or done["argv"] or kept.get("argv") or ())
        self.cwd: str = ask.get("cwd") or source.cwd or self.home

    @property
    def home(self) -> str:
        """The home folder of the new server's user."""
        return self.env.get("HOME") or home_of(ME) or "/"

    def members(self) -> List[int]:
        """Return the PIDs of the server that is stopped, with those below it."""
        if self.server is None:
            return []
        pids = dict.fromkeys([self.server.leader.pid, *self.server.members])
        pids.update(dict.fromkeys(proc.pid for proc in self.probe.table.descendants(self.server.leader.pid)))
        return list(pids)


def preflight(probe: Probe, ask: Json) -> Json:
    """Return the facts by id. A fact that does not apply is left out."""
    look = Look(probe, ask)
    wanted = [(name, find, limit_s) for name, find, limit_s, applies in _FACTS if applies(look)]
    out: Json = {name: {"problem": "no answer within %g s" % limit_s} for name, _, limit_s in wanted}
    ends: List[Tuple[threading.Event, float]] = []
    for name, find, limit_s in wanted:
        end = threading.Event()
        ends.append((end, time.monotonic() + limit_s))

        def work(name: str = name, find: Callable[[Look], Json] = find, end: threading.Event = end) -> None:
            try:
                out[name] = find(look)
            except Exception as e:
                out[name] = {"problem": "%s: %s" % (type(e).__name__, e)}
            finally:
                end.set()

        probe.thread(work, "preflight")
    for end, until in ends:
        end.wait(max(0.0, until - time.monotonic()))
    return dict(out)


def _start(look: Look) -> Json:
    if look.refused is None:
        return {"refused": None, **({"manager": look.manager} if look.manager else {})}
    return {"refused": str(look.refused), "hint": look.refused.hint}


def _interpreter(look: Look) -> Json:
    return interpreter_facts(look.command, look.env, look.cwd)


def _version(look: Look) -> Json:
    package = look.ask["package"]
    python = interpreter_facts(look.command, look.env, look.cwd).get("path")
    if not python:
        return {"problem": "the command does not tell its interpreter"}
    folders = [path for path in look.env.get("PYTHONPATH", "").split(":") if path.startswith("/")]
    folders += site_folders(os.getpid(), python, look.env)
    return {"package": package, "version": package_version(folders, package)}


def _help(look: Look) -> Json:
    """Run the engine's help, unless its program may be another user's: it would run with the rights of this one."""
    if look.refused is not None:
        return {"problem": "it is not run, since the start is refused"}
    if look.server is not None and look.server.uid != ME:
        owner = user_name(look.server.uid)
        return {"problem": "a program of %s's server is not run as %s" % (owner, user_name(ME))}
    return help_of(look.probe.children, list(look.ask["help_argv"]), look.env, look.cwd, HELP_S - 2.0)


def _cwd(look: Look) -> Json:
    return {"path": look.cwd, "exists": os.path.isdir(look.cwd) and os.access(look.cwd, os.X_OK)}


def _llm(look: Look) -> Json:
    return llm_facts(look.ask["llm"], look.env, look.cwd, look.home)


def _draft(look: Look) -> Json:
    return llm_facts(look.ask["draft"], look.env, look.cwd, look.home)


def _port(look: Look) -> Json:
    port = int(look.ask["port"])
    ours = look.members()
    pid = look.server.leader.pid if look.server is not None else os.getpid()
    found = [item for item in listeners_of(pid) if item.port == port]
    inodes = {item.inode: item for item in found if item.inode}
    owners: Dict[int, int] = {}
    for each in dict.fromkeys([*ours, *sorted(look.probe.table.procs, reverse=True)]):
        if len(owners) == len(inodes):
            break
        for inode in (sockets_of(each) or set()) & inodes.keys():
            owners.setdefault(inode, each)
    out = []
    for item in found:
        owner = owners.get(item.inode)
        guess = owner is None and look.server is not None and port in look.server.ports
        info = describe_process(owner, None) if owner is not None else {}
        out.append(
            {
                "address": item.address,
                "pid": owner,
                "uid": item.uid,
                "user": info.get("user") or user_name(item.uid),
                "title": info.get("command"),
                "ours": owner in ours or guess,
            }
        )
    return {"port": port, "owners": out}


def _log(look: Look) -> Json:
    """Look at the folder of the log, or at that of the runs, and where it does not exist at the one it is made in."""
    path = look.ask.get("log_dir") or our_folder()
    there = existing_above(path)
    out: Json = {"path": path, "exists": there == path and os.path.isdir(path), "at": there}
    out["writable"] = os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)
    disk = os.statvfs(there)
    out["free_bytes"] = disk.f_bavail * disk.f_frsize
    return out


def _disks(look: Look) -> Json:
    """Return total and free bytes of the disks that a start writes to, each disk once."""
    env = look.env
    cache = env.get("XDG_CACHE_HOME") or look.home + "/.cache"
    places = ["/", look.home, env.get("TMPDIR") or "/tmp", cache]  # noqa: S108
    places += [
        env[name] for name in ("HF_HOME", "HF_HUB_CACHE", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT") if env.get(name)
    ]
    folders: Dict[str, List[int]] = {}
    seen = set()
    for place in places:
        path = existing_above(place) if place.startswith("/") else ""
        status = stat_of(path) if path else None
        if status is None or status.st_dev in seen:
            continue
        seen.add(status.st_dev)
        disk = os.statvfs(path)
        folders[path] = [disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize]
    return {"folders": folders}


def _shm(look: Look) -> Json:
    memory = look.probe.host.memory()
    return {"total_bytes": memory.get("shm_total_bytes"), "free_bytes": memory.get("shm_free_bytes")}


def _rights(look: Look) -> Json:
    folder = our_folder()
    out: Json = {"user": user_name(ME), "folder": folder}
    out["folder_writable"] = os.access(existing_above(folder), os.W_OK)
    out["folder_at"], out["folder_free_bytes"] = disk_of(folder)
    server = look.server
    if server is None:
        return out
    able = _may_signal_all()
    strangers = []
    for pid in look.members():
        uids = _uids(pid)
        if uids is not None and not able and ME not in uids:
            strangers.append(pid)
    known = able or _uids(server.leader.pid) is not None
    out.update(server_user=user_name(owner_of(server.leader.pid)), may=not strangers if known else None)
    if strangers:
        text = "pid %d is %s's" % (strangers[0], user_name(owner_of(strangers[0])))
        out["why"] = text + (" and %d more" % (len(strangers) - 1) if len(strangers) > 1 else "")
    return out


def _may_signal_all() -> bool:
    """Return whether this process may signal those of all users: the capability CAP_KILL, which root may lack."""
    for line in (text_of("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 5 & 1)
    return ME == 0


def _uids(pid: int) -> Optional[Tuple[int, int]]:
    """Return the real and the saved user id of a process, which decide who may signal it; None where unknown."""
    for line in (text_of("%s/%d/status" % (PROC, pid)) or "").splitlines():
        if line.startswith("Uid:"):
            fields = line.split()
            return int(fields[1]), int(fields[3])
    return None


def _holders(look: Look) -> Json:
    """Return the processes on the GPUs that are not the server's, by the driver's newest list."""
    reader = look.probe.gpu
    asked = time.monotonic()
    reader.processes_due.set()
    while not reader.table or (reader.gpus is not None and reader.held_at < asked):
        if time.monotonic() > asked + 5.0:
            break
        time.sleep(0.05)
    if not reader.table:
        return {"problem": "the driver has not answered yet"}
    if reader.gpus is None:
        reason = reader.table.get("reason")
        return {"problem": reason or "the driver is not read"} if driver_hints() else {"processes": [], "note": reason}
    if reader.held is None:
        return {"problem": "the driver does not tell who uses the GPUs"}
    ours = set(look.members())
    uuids = {gpu.get("index"): gpu.get("uuid") for gpu in reader.table.get("gpus") or ()}
    found = []
    for gpu, pid, size in reader.held:
        if pid not in ours:
            info = describe_process(pid, None)
            uuid = uuids.get(gpu)
            found.append(
                {
                    "gpu": gpu,
                    "uuid": uuid,
                    "pid": pid,
                    "user": info.get("user"),
                    "title": info.get("command"),
                    "bytes": size,
                }
            )
    return {"processes": found, "age_s": round(max(0.0, time.monotonic() - reader.held_at), 1)}


def _env_files(look: Look) -> Json:
    python = interpreter_facts(look.command, look.env, look.cwd).get("path")
    return {"settings": settings_in_files(python, look.env, look.home)}


def _manager(look: Look) -> Json:
    server = look.server
    if server is None:
        return {"problem": "there is no such server"}
    return manager_facts(look.probe, server, look.members())


def _returning(look: Look) -> Json:
    server = look.probe.server_of(look.ask["ended"])
    return {"problem": "there was no such server"} if server is None else returning(look.probe, server)


def _limits(look: Look) -> Json:
    return limit_facts(look.server.leader.pid if look.server is not None else None)


def _always(look: Look) -> bool:
    return True


def _starts(look: Look) -> bool:
    return bool(look.command)


_FACTS: Tuple[Tuple[str, Callable[[Look], Json], float, Callable[[Look], bool]], ...] = (
    ("start", _start, FACT_S, lambda look: bool(look.command or look.manager or look.refused)),
    ("interpreter", _interpreter, FACT_S, _starts),
    ("version", _version, FACT_S, lambda look: bool(look.command and look.ask.get("package"))),
    ("help", _help, HELP_S, lambda look: bool(look.ask.get("help_argv"))),
    ("cwd", _cwd, FACT_S, _starts),
    ("llm", _llm, FACT_S, lambda look: bool(look.ask.get("llm"))),
    ("draft", _draft, FACT_S, lambda look: bool(look.ask.get("draft"))),
    ("port", _port, FACT_S, lambda look: look.ask.get("port") is not None),
    ("log", _log, FACT_S, _starts),
    ("disks", _disks, FACT_S, _starts),
    ("shm", _shm, FACT_S, _starts),
    ("limits", _limits, FACT_S, _starts),
    ("rights", _rights, FACT_S, _always),
    ("holders", _holders, FACT_S, _always),
    ("env_files", _env_files, FACT_S, _starts),
    ("manager", _manager, FACT_S, lambda look: bool(look.key and look.ask.get("managers", True))),
    ("returning", _returning, FACT_S, lambda look: bool(look.ask.get("ended"))),
)
"""Id, function, time limit in seconds, and whether the fact applies. One thread runs each function."""
