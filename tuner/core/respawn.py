"""Who would start a server again by itself: whether it is stopped and started through that, or must be left alone.

The probe brings the fact `manager` (docs/protocol.md); what follows from it is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tuner.domain.server import Manager
from tuner.units import real, whole

STOP_WAIT_S = 90.0
"""Seconds that a service manager gets to stop a server where it does not tell its own limit: systemd's default."""
_CONTAINERS = {"docker": "Docker container", "podman": "podman container", "kubernetes": "Kubernetes pod"}
_NO_RESTART = ("", "no")


class Keeper(Struct, frozen=True, kw_only=True):
    """What stands above a server, and what follows for its stop and its way back."""

    words: str = ""
    """What it is, in words: `systemd unit sglang.service, Restart=always`; empty: nothing that would start it again."""
    stop: tuple[str, ...] = ()
    """Command that stops the server through it; empty: by signals."""
    start: tuple[str, ...] = ()
    """Command that starts the server again through it; empty: by its command line."""
    wait_s: float = STOP_WAIT_S
    """Longest time that `stop` may take, seconds."""
    refusal: str = ""
    """Why the server must not be stopped, in words; empty: nothing speaks against it."""
    way_out: str = ""
    doubt: str = ""
    """What is not known, in words; empty: all is known."""


def keeper(facts: Mapping[str, Any], manager: Manager | None = None) -> Keeper:
    """Return what stands above a server.

    Args:
        facts: All facts of the probe by id; `manager` is looked at.
        manager: What the probe said of the running server at first sight. It decides only where the fact is missing.
    """
    fact = facts.get("manager")
    if not isinstance(fact, Mapping) or fact.get("problem"):
        why = str(fact.get("problem")) if isinstance(fact, Mapping) else "the host was not asked"
        return _unasked(manager, why)
    for kind, read in (
        ("slurm", _slurm),
        ("container", _container),
        ("supervisord", _supervisord),  # nearer to the server than its own unit
        ("systemd", _systemd),
    ):
        part = fact.get(kind)
        if kind == "systemd" and _is_of_supervisord(fact):
            continue  # supervisord keeps the server or nobody does
        if isinstance(part, Mapping) and (found := read(part)) is not None:
            return found
    for kind, read_all in (("watchers", _watcher), ("loops", _loop), ("starters", _starter)):
        parts = fact.get(kind)
        if isinstance(parts, Sequence) and parts and isinstance(parts[0], Mapping):
            return read_all(parts[0])
    return Keeper()


def returns(facts: Mapping[str, Any]) -> Keeper | None:
    """Return who is about to start again a server that has ended, with the refusal of another start; None: nobody.

    Args:
        facts: All facts of the probe by id; `returning` is looked at.
    """
    fact = facts.get("returning")
    by = fact.get("by") if isinstance(fact, Mapping) else None
    if not isinstance(fact, Mapping) or by not in ("systemd", "supervisord"):
        return None
    if by == "systemd":
        unit, user = str(fact.get("unit") or "?"), " --user" if fact.get("user") else ""
        words, stop = f"systemd unit {unit}, Restart={fact.get('restart')}", f"systemctl{user} stop {unit}"
    else:
        words, stop = _program_words(fact), f"supervisorctl stop {fact.get('name')}"
    return Keeper(
        words=words,
        refusal=f"the server before has ended, and is about to be started again: {words}",
        way_out=f"stop it first: `{stop}`; or look again once it runs",
    )


def _program_words(part: Mapping[str, Any]) -> str:
    restart = part.get("restart")
    return f"supervisord program {part.get('name') or '?'}" + (f", autorestart={restart}" if restart else "")


def _unasked(manager: Manager | None, why: str) -> Keeper:
    """Return what the first sight of the server tells where the fact is missing."""
    kind = manager.kind if manager is not None else "unknown"
    name = (manager.name if manager is not None else None) or "?"
    if kind in _CONTAINERS:
        return _refused_container(kind, name, "")
    if kind == "slurm":
        return _slurm({"job": name})
    return Keeper(doubt=f"who would start it again is not known: {why}")


def _slurm(part: Mapping[str, Any]) -> Keeper:
    job = part.get("job") or "?"
    return Keeper(
        words=f"Slurm job {job}",
        refusal=f"it belongs to Slurm job {job}, and another server would run outside of that",
        way_out=f"end the job (scancel {job}) and submit it again with the new arguments (sbatch, srun, salloc)",
    )


def _container(part: Mapping[str, Any]) -> Keeper | None:
    kind, name = str(part.get("kind") or "docker"), str(part.get("name") or part.get("id") or "?")
    if part.get("inside") and not part.get("main"):
        return None
    return _refused_container(kind, name, str(part.get("restart") or ""), inside=bool(part.get("inside")))


def _refused_container(kind: str, name: str, restart: str, *, inside: bool = False) -> Keeper:
    what = f"{_CONTAINERS.get(kind, kind)} {name}"
    policy = f", restart policy {restart}" if restart else ""
    if kind == "kubernetes":
        out = "change the workload (kubectl edit, or helm upgrade) and let Kubernetes replace the pod"
    else:
        program = "podman" if kind == "podman" else "docker"
        out = (
            f"stop it with `{program} stop {name}` and start it with the new arguments through {program} run or compose"
        )
    if inside:
        why = f"it is the main process of its container ({what}{policy}), which ends with it, and this connection too"
        out += "; or let the container's main process be something else (sleep infinity) and start servers in it"
    else:
        why = f"it runs in a container ({what}{policy}), and what is started here would run outside of it"
    return Keeper(words=what + policy, refusal=why, way_out=out)


def _systemd(part: Mapping[str, Any]) -> Keeper | None:
    """Return what a systemd unit means; None where it neither ends nor restarts with the server."""
    unit = str(part.get("unit") or "?")
    mine = bool(part.get("user"))
    command = f"systemctl{' --user' if mine else ''}"
    if unit.startswith("gputuner-"):
        return None  # a unit of a run: its supervisor is no manager
    if part.get("problem"):
        return Keeper(
            words=f"systemd unit {unit}",
            refusal=f"it belongs to systemd unit {unit}, and whether that starts it again cannot be read: "
            f"{part['problem']}",
            way_out=f"connect as {part.get('owner')}" if mine else f"stop it there: {command} stop {unit}",
        )
    restart = str(part.get("restart") or "no")
    words = f"systemd{' user' if mine else ''} unit {unit}, Restart={restart}"
    listed = part.get("others")
    others = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, Sequence) else []
    if not part.get("main"):
        if part.get("typed") or (others and not part.get("direct")):
            return None  # a notebook's or a runner's unit: it goes on without the server
        if restart in _NO_RESTART and not part.get("wraps"):
            return None
    if others:
        first = others[0]
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return Keeper(
            words=words,
            refusal=f"{unit} also holds other processes (pid {first.get('pid')} {first.get('title') or ''}{more}), "
            f"which `{command} stop {unit}` would end",
            way_out=f"stop it there yourself ({command} stop {unit}), or move them out of the unit",
        )
    if not part.get("may"):
        owner = part.get("owner")
        if mine:
            out = f"connect as {owner}" if owner else "connect as the unit's user"
            return Keeper(words=words, refusal=f"it belongs to {unit} of {owner or 'another user'}", way_out=out)
        return Keeper(
            words=words,
            refusal=f"it belongs to {words}, and this user may not stop units",
            way_out=f"connect as root, or run `sudo systemctl stop {unit}` and start it here",
        )
    base: tuple[str, ...] = ("systemctl",)
    if mine:
        runtime = part.get("runtime_dir")
        base = ("env", f"XDG_RUNTIME_DIR={runtime}", "systemctl", "--user") if runtime else ("systemctl", "--user")
    limit = real(part.get("timeout_stop_s"))
    listed = part.get("triggers")
    # A timer, a socket or a path that starts the unit would do so while another server runs.
    triggers = (
        tuple(str(each) for each in listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else ()
    )
    return Keeper(
        words=words + (f", started by {' and '.join(triggers)}" if triggers else ""),
        stop=(*base, "stop", *triggers, unit),
        start=() if part.get("transient") else (*base, "start", *triggers, unit),
        wait_s=STOP_WAIT_S if limit is None else max(STOP_WAIT_S, limit + 5.0),
    )


def _is_of_supervisord(fact: Mapping[str, Any]) -> bool:
    """Return whether the main process of the unit is the supervisord above the server."""
    unit, daemon = fact.get("systemd"), fact.get("supervisord")
    if not isinstance(unit, Mapping) or not isinstance(daemon, Mapping):
        return False
    return bool(daemon.get("pid")) and unit.get("main_pid") == daemon["pid"]


def _supervisord(part: Mapping[str, Any]) -> Keeper | None:
    """Return what supervisord means; None where the server only inherited its variables."""
    if not part.get("main"):
        return None
    if not part.get("name"):
        return Keeper(
            words="a program of supervisord",
            refusal=f"supervisord (pid {whole(part.get('pid'))}) keeps it, and which program it is cannot be read",
            way_out=f"connect as {part.get('owner') or 'root'}",
        )
    name, words = str(part["name"]), _program_words(part)
    program, url, config = part.get("program"), part.get("url"), part.get("config")
    if not program:
        return Keeper(
            words=words,
            refusal=f"it belongs to {words} (pid {whole(part.get('pid'))}), and there is no supervisorctl",
            way_out="install supervisorctl beside supervisord, or stop the program there",
        )
    if part.get("may") is False:
        owner = part.get("owner") or "root"
        sudo = "sudo" if owner == "root" else f"sudo -u {owner}"
        why = part.get("problem") or "this user may not use supervisord's socket"
        return Keeper(
            words=words,
            refusal=f"it belongs to {words}, and {why}",
            way_out=f"connect as {owner}, or run `{sudo} supervisorctl stop {name}`, then start it",
        )
    if part.get("problem"):
        return Keeper(
            words=words,
            refusal=f"it belongs to {words}, which does not answer: {part['problem']}",
            way_out=f"look why `supervisorctl pid {name}` fails there, or stop the program there",
        )
    base = (str(program), *(("-c", str(config)) if config else ("-s", str(url)) if url else ()))
    limit = real(part.get("timeout_stop_s"))
    return Keeper(
        words=words,
        stop=(*base, "stop", name),
        start=(*base, "start", name),
        wait_s=STOP_WAIT_S if limit is None else max(STOP_WAIT_S, limit + 5.0),
    )


def _watcher(part: Mapping[str, Any]) -> Keeper:
    kind, pid = str(part.get("kind") or "?"), whole(part.get("pid"))
    return Keeper(
        words=f"{kind} (pid {pid})",
        refusal=f"{kind} (pid {pid}: {part.get('command') or ''}) starts it again when it ends".replace(": )", ")"),
        way_out=f"stop it with {kind}'s own command, then start it here",
    )


def _loop(part: Mapping[str, Any]) -> Keeper:
    pid, command = whole(part.get("pid")), str(part.get("command") or "")
    place = f"{part['file']}:{part['line']}" if part.get("file") else "its -c text"
    text = str(part.get("text") or "").strip()
    sure = "starts it again when it ends" if part.get("certain") else "may start it again when it ends"
    return Keeper(
        words=f"shell loop: {command} (pid {pid})",
        refusal=f"the shell loop of `{command}` (pid {pid}, {place}: {text}) {sure}",
        way_out=f"end the loop first: `kill {pid}` ends the script and leaves the server running; then switch",
    )


def _starter(part: Mapping[str, Any]) -> Keeper:
    pid, command = whole(part.get("pid")), str(part.get("command") or "")
    return Keeper(
        words=f"{command} (pid {pid})",
        doubt=str(
            part.get("doubt") or f"whether `{command}` (pid {pid}), which started it, starts it again is not known"
        ),
    )
