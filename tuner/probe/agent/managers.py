"""Who would start a server again when it ends: service managers, containers, supervisors, loops of shells."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Tuple

from .arguments import masked_argv
from .base import HOST_ROOT, ME, PROC, Json, link_of, names_in, text_of, user_name, which
from .env_files import in_pairs, told
from .origin import cgroup_paths, container_of, pod_of, slurm_job, unit_of
from .processes import Proc, environ_of, owner_of
from .recognition import is_python, program_index
from .shell_loops import SHELLS, loop_above
from .supervisord import is_supervisord, supervisord_facts

if TYPE_CHECKING:
    from .probe import Probe
    from .server import Server

SYSTEMCTL_S = 5.0
# fmt: off
_WRAPPERS = frozenset(
    (
        "catatonit", "catchsegv", "chroot", "chrt", "conda", "docker-init", "dumb-init", "env", "firejail",
        "ionice", "ltrace", "mamba", "ncu", "nice", "nohup", "nsenter", "nsys", "numactl", "prlimit",
        "runuser", "script", "setarch", "setpriv", "setsid", "stdbuf", "strace", "su", "sudo", "systemd-run",
        "taskset", "time", "timeout", "tini", "unbuffer", "unshare", "uv",
    )
)
"""Programs that run one other program and end with it."""
_KERNELS = ("ipykernel_launcher", "ipykernel")
"""Python modules that run what people type into a notebook."""
_HARMLESS = frozenset(
    (
        "abduco", "agetty", "alacritty", "at", "atd", "byobu", "code-server", "conmon", "containerd-shim",
        "containerd-shim-runc-v2", "dockerd", "dtach", "gdb", "gnome-terminal-server", "init", "kitty",
        "login", "mosh-server", "node", "screen", "SCREEN", "sshd", "sshd-session", "systemd", "tmux",
        "xterm", "zellij",
    )
)
"""Programs below which people work: sessions, terminals, the first processes of hosts and containers."""
_WATCHERS = {
    name: name for name in (
        "entr", "foreman", "forever", "god", "honcho", "horust", "immortal", "monit", "nodemon", "nomad",
        "overmind", "pm2", "watch", "watchexec",
    )
}
_WATCHERS.update({"runsv": "runit", "supervise": "daemontools", "s6-supervise": "s6", "circusd": "circus"})
_WATCHERS.update({"ray": "Ray", "raylet": "Ray"})
"""Programs that start what has ended again, with the names by which people know them."""
# fmt: on


def manager_facts(probe: Probe, server: Server, members: Sequence[int]) -> Json:
    """Return the fact `manager`: a part for each kind of manager that was found, none for those that were not."""
    pid = server.leader.pid
    above = list(probe.table.ancestors(pid))
    paths = cgroup_paths(pid)
    env = environ_of(pid) or server.env
    out: Json = {"loops": [], "watchers": [], "starters": []}
    job = slurm_job(paths, above) or (env.get("SLURM_JOB_ID") if _is_allocated(above) else None)
    if job:
        out["slurm"] = {"job": job}
    container = _container(pid, above, env, paths)
    if container:
        out["container"] = container
    unit = None if container and not container["inside"] else unit_of(paths)
    if unit and unit[0].startswith("gputuner-"):
        unit = None  # that of a run's supervisor
    if unit:
        out["systemd"] = _systemd(probe, server, unit, above, members)
    if not container or container["inside"]:  # elsewhere its paths lead to other files
        supervisord = supervisord_facts(probe, pid, above, env if server.env_readable else None, _direct(above))
        if supervisord:
            out["supervisord"] = supervisord
    _chain(out, server, above)
    return out


def returning(probe: Probe, server: Server) -> Json:
    """Return the fact `returning` of a server that has ended: `by` whom it is about to be started again, if so.

    A unit or program that waits until it may start again is meant (systemd's `auto-restart`, supervisord's BACKOFF).
    One that runs has another process by now, and that is a server of its own.
    """
    unit = unit_of(server.groups)
    if unit and not container_of(server.groups):
        part = _systemd(probe, server, unit, (), ())
        if str(part.get("sub")).startswith("auto-restart"):
            return {"by": "systemd", **part}
    above = [proc for proc in server.above if probe.table.recheck(proc.pid, proc.ticks)]
    if container_of(server.groups) and not (above and _same_pids(above[0].pid)):
        return {"by": None}
    found = supervisord_facts(probe, 0, above, server.env if server.env_readable else None, 0)
    return {"by": "supervisord", **found} if found and found.get("returns") else {"by": None}


def name_of(proc: Proc) -> str:
    """Return the name of the program of a process, `bash` for `-bash`, `tmux` for `tmux: server`."""
    argv = proc.argv
    if not argv or not argv[0]:
        return proc.comm.decode("utf-8", "replace").lstrip("(")
    return os.path.basename(argv[0].split(" ")[0]).lstrip("-").rstrip(":")


def _command(proc: Proc) -> str:
    return " ".join(masked_argv(proc.argv))[:300]


# -- the chain of parents ---------------------------------------------------------------------------------------------


def _chain(out: Json, server: Server, above: Sequence[Proc]) -> None:
    """Look at the parents of a server, nearest first, up to where people or the system begin.

    A loop of a shell that stands above a program of which nobody knows whether it ends with the server is one only
    where it surely starts the server or that program: a loop over the steps of a test suite is none.
    """
    started = [server.argv]
    for proc in above:
        name = name_of(proc)
        watcher = next((each for each in (name, _script(proc)) if each in _WATCHERS), None)
        if watcher is not None:
            out["watchers"].append({"kind": _WATCHERS[watcher], "pid": proc.pid, "command": _command(proc)})
            continue
        if proc.pid == 1 or name in _HARMLESS or is_supervisord(proc) or _is_ours(proc):
            return
        if name in SHELLS:
            loop = loop_above(proc, started)
            if loop is not None and (loop["certain"] or not out["starters"]):
                out["loops"].append(
                    {"pid": proc.pid, "user": user_name(owner_of(proc.pid)), "command": _command(proc), **loop}
                )
            if loop is None and _interactive(proc):
                return
            continue
        if name not in _WRAPPERS and _script(proc) not in _WRAPPERS and proc.leads is None:
            starter: Json = {"pid": proc.pid, "command": _command(proc)}
            if name in ("cron", "crond"):
                starter["doubt"] = "%s (pid %d) started it, and may start it again at its time" % (name, proc.pid)
            out["starters"].append(starter)
            started.append(proc.argv)


def _is_ours(proc: Proc) -> bool:
    """Return whether a process is the supervisor of a run, which starts nothing again by itself."""
    return any("/.gputuner/runs/" in arg and arg.endswith("/supervisor.py") for arg in proc.argv[1:4])


def _script(proc: Proc) -> str:
    """Return the name of the script or module that an interpreter runs; empty for other programs."""
    argv = proc.argv
    if "PM2" in proc.line and "God Daemon" in proc.line:
        return "pm2"
    if argv and is_python(argv[0]):
        at = program_index(argv)
        return os.path.basename(argv[at]).rpartition(".py")[0] or os.path.basename(argv[at]) if at is not None else ""
    return os.path.basename(argv[1]) if len(argv) > 1 and name_of(proc) in ("node", "ruby", "perl") else ""


def _interactive(proc: Proc) -> bool:
    """Return whether a shell runs neither a script nor a text: somebody types into it."""
    return not any(arg and not arg.startswith(("-", "+")) for arg in proc.argv[1:]) and "-c" not in proc.argv


def _is_typed_into(proc: Proc) -> bool:
    """Return whether people type into a program what it starts: a shell, or the kernel of a notebook."""
    return _script(proc) in _KERNELS or (name_of(proc) in SHELLS and _interactive(proc))


# -- containers -------------------------------------------------------------------------------------------------------


def _container(pid: int, above: Sequence[Proc], env: Dict[str, str], paths: Sequence[str]) -> Optional[Json]:
    """Return the container of a server; None outside of one.

    `inside`: the probe is in the same one. `main`: the container ends with the server.
    """
    found = container_of(paths)
    pod = pod_of(paths)
    inside = _same_pids(pid)
    if found is None and pod is None:
        if not (inside and (env.get("KUBERNETES_SERVICE_HOST") or _in_container())):
            return None
        kind = "kubernetes" if env.get("KUBERNETES_SERVICE_HOST") else "docker"
        name = env.get("HOSTNAME") or ""
        return {"kind": kind, "id": "", "name": name, "inside": True, "main": _is_main(pid, above)}
    kind, ident = found if found is not None else ("kubernetes", pod or "")
    if pod:
        kind = "kubernetes"
    config = _docker_config(ident) if kind == "docker" else {}
    name = config.get("name") or (env.get("HOSTNAME") if kind == "kubernetes" else None) or pod or ident[:12]
    main = _is_main(pid, above) if inside else True
    out: Json = {"kind": kind, "id": ident[:12], "name": name, "inside": inside, "main": main}
    if config.get("restart"):
        out["restart"] = config["restart"]
    return out


def _docker_config(ident: str) -> Dict[str, str]:
    """Return name and restart policy of a Docker container, as far as its files may be read."""
    out: Dict[str, str] = {}
    folder = "/var/lib/docker/containers/" + ident
    named = re.search(r'"Name":"/?([^"]+)"', text_of(folder + "/config.v2.json") or "")
    policy = re.search(r'"RestartPolicy":\{"Name":"([\w-]*)"', text_of(folder + "/hostconfig.json") or "")
    if named:
        out["name"] = named.group(1)
    if policy:
        out["restart"] = policy.group(1) or "no"
    return out


def _in_container() -> bool:
    """Return whether this host is a container itself."""
    return not HOST_ROOT and any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv"))


def _same_pids(pid: int) -> bool:
    """Return whether a process is in the probe's own PID namespace."""
    if HOST_ROOT:
        return False
    theirs = link_of("%s/%d/ns/pid" % (PROC, pid))
    if theirs is not None:
        return theirs == link_of("/proc/self/ns/pid")
    # The link of another user's process may be unreadable; NSpid tells one number for each namespace below ours.
    found = re.search(r"^NSpid:\s+(.*)$", text_of("%s/%d/status" % (PROC, pid)) or "", re.M)
    return found is not None and len(found.group(1).split()) == 1


def _is_main(pid: int, above: Sequence[Proc]) -> bool:
    """Return whether a container ends with a server: it is process 1, or 1 only wraps it or runs its script."""
    if pid == 1:
        return True
    for proc in above:
        if proc.pid == 1 or not _only_wraps(proc):
            return proc.pid == 1 and _only_wraps(proc)
    return False


def _only_wraps(proc: Proc) -> bool:
    """Return whether a process runs one program, or a script, and ends after it."""
    name = name_of(proc)
    return name in _WRAPPERS or (name in SHELLS and not _interactive(proc))


def _direct(above: Sequence[Proc]) -> int:
    """Return how many of the nearest processes above a server only run it, and end after it."""
    return next((i for i, proc in enumerate(above) if not _only_wraps(proc)), len(above))


def _is_allocated(above: Sequence[Proc]) -> bool:
    """Return whether a server is, or ends, the command for which salloc holds a job."""
    at = _direct(above)
    return at < len(above) and name_of(above[at]) == "salloc"


# -- systemd ----------------------------------------------------------------------------------------------------------


_PROPERTIES = (
    "LoadState,ActiveState,SubState,MainPID,Restart,TimeoutStopUSec,FragmentPath,DropInPaths,Transient,ControlGroup,"
    "TriggeredBy"
)


def _systemd(
    probe: Probe, server: Server, unit: Tuple[str, bool], above: Sequence[Proc], members: Sequence[int]
) -> Json:
    """Return what systemd says of a server's unit."""
    name, user = unit
    owner = _unit_owner(server.groups) if user else 0
    out: Json = {"unit": name, "user": user, "owner": user_name(owner)}
    mine = user and owner == ME
    runtime = os.environ.get("XDG_RUNTIME_DIR") or "/run/user/%d" % ME
    env = {**os.environ, "LC_ALL": "C", "XDG_RUNTIME_DIR": runtime} if mine else None
    if mine:
        out["runtime_dir"] = runtime
    out["may"] = mine if user else ME == 0
    if user and not mine:
        out["problem"] = "it is a unit of another user's manager"
        return out
    if which("systemctl") is None:
        out["problem"] = "there is no systemctl on PATH"
        return out
    show = ["systemctl", *(["--user"] if user else []), "show", "--no-pager"]
    try:
        code, text = probe.children.output([*show, "--property=" + _PROPERTIES, "--", name], SYSTEMCTL_S, env=env)
        values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        triggers = _listed(values.get("TriggeredBy", ""))
        if triggers:
            argv = [*show, "--property=Id,ActiveState", "--", *triggers]
            failed, states = probe.children.output(argv, SYSTEMCTL_S, env=env)
            if failed:
                out["problem"] = "systemctl show %s: exit code %d" % (" ".join(triggers), failed)
                return out
            triggers = [each for each in triggers if "Id=%s\nActiveState=active\n" % each in states + "\n"]
    except (OSError, TimeoutError) as e:
        out["problem"] = str(e)
        return out
    if code != 0 or values.get("LoadState") not in ("loaded", "masked"):
        last = text.strip().splitlines()[-1:] if code else ["LoadState=%s" % values.get("LoadState")]
        out["problem"] = "systemctl show: %s" % (last[0][:200] if last else "exit code %d" % code)
        return out
    main = int(values["MainPID"]) if values.get("MainPID", "").isdigit() else 0
    chain = [proc.pid for proc in above]
    between = above[: chain.index(main) + 1] if main in chain else ()
    out.update(
        restart=values.get("Restart"),
        sub=values.get("SubState"),
        main_pid=main,
        main=main == server.leader.pid,
        wraps=main in chain,
        direct=all(_only_wraps(proc) for proc in between),
        typed=any(map(_is_typed_into, between[:-1])),
        transient=values.get("Transient") == "yes",
        triggers=triggers,
        fragment=values.get("FragmentPath"),
        timeout_stop_s=seconds_of(values.get("TimeoutStopUSec", "")),
    )
    out["others"] = _others_in(values.get("ControlGroup", ""), server, set(chain), members, main)
    out["settings"] = [each for path in _unit_files(values) for each in told(path, _of_unit(path))]
    return out


def _unit_owner(groups: Sequence[str]) -> Optional[int]:
    """Return the user whose service manager runs a process, from its control groups."""
    for path in groups:
        found = re.search(r"/user@(\d+)\.service", path)
        if found:
            return int(found.group(1))
    return None


def _others_in(group: str, server: Server, chain: "set[int]", members: Sequence[int], main: int) -> List[Json]:
    """Return the processes of a unit that neither belong to the server nor stand above it."""
    pids: List[int] = []
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"):
        if group:
            pids += _pids_below(HOST_ROOT + root + group)
    own = {*members, *chain, server.leader.pid, main}
    out = []
    for pid in dict.fromkeys(pids):
        proc = server.probe.table.procs.get(pid)
        if pid not in own and proc is not None and proc.alive:
            out.append({"pid": pid, "title": _command(proc)})
    return out[:5]


def _pids_below(folder: str) -> List[int]:
    pids = [int(word) for word in (text_of(folder + "/cgroup.procs") or "").split() if word.isdigit()]
    for name in names_in(folder):
        if os.path.isdir(folder + "/" + name):
            pids += _pids_below(folder + "/" + name)
    return pids


def _unit_files(values: Dict[str, str]) -> List[str]:
    """Return the paths of a unit's files."""
    return [path for path in [values.get("FragmentPath", ""), *_listed(values.get("DropInPaths", ""))] if path]


def _listed(text: str) -> List[str]:
    """Return the words of a list as systemd prints it: those that hold a space or a backslash are quoted."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _of_unit(path: str) -> Iterator[Tuple[int, str, str, str]]:
    """Yield the variables that a unit file sets, with those of the files that it names."""
    for number, line in enumerate((text_of(path) or "").splitlines(), 1):
        key, _, rest = line.strip().partition("=")
        if key == "Environment":
            for word in re.findall(r"\"([^\"]*)\"|'([^']*)'|(\S+)", rest):
                name, equals, value = "".join(word).partition("=")
                if equals:
                    yield number, name, value, "unit"
        elif key == "EnvironmentFile":
            for _, name, value, _ in in_pairs(text_of(rest.lstrip("-").strip()) or "", "unit"):
                yield number, name, value, "unit"


_SPANS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def seconds_of(text: str) -> Optional[float]:
    """Return the seconds of a time span as systemd prints it: `1min 30s`; None for `infinity` and other texts."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(us|ms|min|s|h|d|w)\b", text)
    return sum(float(number) * _SPANS[unit] for number, unit in parts) if parts else None
