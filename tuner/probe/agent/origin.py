"""Origin of a process: control groups, container, unit, and who may start it again."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Sequence, Tuple

from .base import PROC, Json, text_of
from .processes import Proc
from .supervisord import is_supervisord, program_in

_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_POD = re.compile(r"kubepods.*?pod([0-9a-f][0-9a-f_-]{30,40})")
_JOB = re.compile(r"slurm.*?/job_(\d+)")
_STEP = re.compile(r"slurmstepd: \[(\d+)")
_SHELLS = frozenset(("bash", "dash", "fish", "ksh", "sh", "tcsh", "zsh", "tmux", "screen", "sshd", "nohup", "login"))


def cgroup_paths(pid: int) -> List[str]:
    """Return the control groups of a process, that of the most informative hierarchy first."""
    lines = (text_of("%s/%d/cgroup" % (PROC, pid)) or "").splitlines()
    paths = [(":name=systemd:" in line, line.split(":", 2)[2]) for line in lines if line.count(":") >= 2]
    return [path for _, path in sorted(paths, key=lambda p: (not p[0], -len(p[1])))]


def container_of(paths: Sequence[str]) -> Optional[Tuple[str, str]]:
    """Return container runtime and id from control groups; None outside a container."""
    for path in paths:
        found = _CONTAINER.search(path)
        if found:
            kind = "podman" if "libpod" in path else "kubernetes" if "kubepods" in path else "docker"
            return kind, found.group(1)
    return None


def pod_of(paths: Sequence[str]) -> Optional[str]:
    """Return the uid of a Kubernetes pod from control groups, as the API server spells it; None outside a pod."""
    found = next(filter(None, map(_POD.search, paths)), None)
    return found.group(1).replace("_", "-") if found else None


def slurm_job(paths: Sequence[str], above: Sequence[Proc]) -> Optional[str]:
    """Return the Slurm job of a process; None outside of one.

    Its control groups tell it, if Slurm makes some, and else the title of the daemon above each step of a job.
    """
    found = next(filter(None, map(_JOB.search, paths)), None)
    found = found or next(filter(None, (_STEP.match(proc.line) for proc in above)), None)
    return found.group(1) if found else None


def unit_of(paths: Sequence[str]) -> Optional[Tuple[str, bool]]:
    """Return the systemd service or transient scope of a process, and whether it is a user's; None without one."""
    for path in paths:
        parts = [p for p in path.split("/") if p]
        for part in reversed(parts):
            if part.startswith(("user@", "session-", "init.scope")) or part.endswith(".slice"):
                break
            if part.endswith(".service") and not part.startswith(("ssh.", "sshd.", "ssh@", "sshd@", "cron", "docker.")):
                return part, any(p.startswith("user@") for p in parts)
    return None


def manager_of(pid: int, env: Dict[str, str], above: Sequence[Proc]) -> Json:
    """Return who started a server and may start it again."""
    paths = cgroup_paths(pid)
    job = slurm_job(paths, above)
    if job:
        return {"kind": "slurm", "name": job}
    pod = pod_of(paths)
    if pod:
        return {"kind": "kubernetes", "name": pod}
    container = container_of(paths)
    if container:
        kind, ident = container
        config = text_of("/var/lib/docker/containers/%s/config.v2.json" % ident) if kind == "docker" else None
        named = re.search(r'"Name":"/?([^"]+)"', config or "")
        return {"kind": kind, "name": named.group(1) if named else ident[:12]}
    if env.get("SLURM_JOB_ID"):
        return {"kind": "slurm", "name": env["SLURM_JOB_ID"]}
    if env.get("KUBERNETES_SERVICE_HOST"):
        return {"kind": "kubernetes", "name": env.get("HOSTNAME")}
    unit = unit_of(paths)
    run = env.get("GPUTUNER_RUN") or (re.match(r"gputuner-(.+?)(?:-again-\d+)?\.service$", unit[0]) if unit else None)
    if run:
        return {"kind": "gputuner", "name": run if isinstance(run, str) else run.group(1)}
    if _program_of(above):
        return {"kind": "supervisord", "name": program_in(env)}
    if unit:
        return {"kind": "systemd", "name": unit[0]}
    for proc in above:
        name = os.path.basename(proc.argv[0]).lstrip("-") if proc.argv else ""
        name = name.split(":")[0]
        if name in _SHELLS:
            return {"kind": "shell", "name": name}
    return {"kind": "unknown", "name": None}


def _program_of(above: Sequence[Proc]) -> bool:
    """Return whether a process, or the script that runs it, is a child of supervisord."""
    scripts = [proc.argv[1:] and os.path.basename(proc.argv[0]) in _SHELLS for proc in above]
    return any(is_supervisord(proc) and all(scripts[:at]) for at, proc in enumerate(above))
