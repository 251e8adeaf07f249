"""Complete an order to launch: secrets, environment and working folder come from a server or a run of this host.

The laptop never sees secrets: in the orders it sends they are `***`. What is filled in here goes into the run's
`order.json`, which only its owner may read, and nowhere else.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .arguments import MASK
from .base import Json, Refused

OWN_VARIABLES = frozenset(
    (
        "GPUTUNER_RUN",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "MAINPID",
        "MANAGERPID",
        "SYSTEMD_EXEC_PID",
        "MEMORY_PRESSURE_WATCH",
        "MEMORY_PRESSURE_WRITE",
        "CREDENTIALS_DIRECTORY",
        "SUPERVISOR_ENABLED",
        "SUPERVISOR_PROCESS_NAME",
        "SUPERVISOR_GROUP_NAME",
        "SUPERVISOR_SERVER_URL",
        "_",
        "OLDPWD",
        "PWD",
        "SHLVL",
    )
)
"""Variables that speak of one process and would be wrong in the next: a unit's, a service manager's, a shell's."""
LOGIN_VARIABLES = frozenset(
    (
        "MALLOC_ARENA_MAX",
        "HOST_ROOT",
        "SSH_CONNECTION",
        "SSH_CLIENT",
        "SSH_TTY",
        "SSH_AUTH_SOCK",
        "SSH_ORIGINAL_COMMAND",
        "XDG_SESSION_ID",
        "XDG_SESSION_CLASS",
        "XDG_SESSION_TYPE",
    )
)
"""Variables of the probe itself and of the login that started it, which end with it."""


class Source:
    """What an order is completed from.

    Args:
        name: What it is, in words.
        argv: Real command line; None where there is none, or it may not be read.
        env: Real environment; None likewise.
        cwd: Working folder.
        manager: Command by which a service manager started exactly this; empty: none did.
    """

    def __init__(
        self,
        name: str,
        argv: Optional[Sequence[str]] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        manager: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.manager = manager


def completed(launch: Json, find: Callable[[str], Source]) -> Json:
    """Return a launch with its real command line, environment and working folder.

    The result has one key more, `base`: the complete environment on which `env` is laid. A launch by a service manager
    also has `was`, as far as it can be had: command line, environment and folder of what the manager keeps, for later
    starts like it with other arguments.

    Args:
        launch: A `LaunchOrder` as it came.
        find: Returns the source that `like` names; it raises Refused.

    Raises:
        Refused: A secret, the command line, or the environment cannot be had.
    """
    like = str(launch.get("like") or "")
    if launch.get("manager"):
        return {**launch, "argv": [], "env": {}, "base": {}, "was": _kept_of(like, find)}
    source = find(like) if like else Source("the login", env=login_environment())
    if source.manager and not launch.get("argv"):
        return completed({**launch, "manager": list(source.manager)}, find)
    if source.env is None:
        raise Refused(
            "the environment of %s may not be read, so its secrets cannot be had" % source.name,
            "connect as the user that it belongs to",
        )
    argv = [str(word) for word in launch.get("argv") or ()]
    argv = filled_argv(argv, source) if argv else list(source.argv or ())
    if not argv:
        raise Refused("the command line of %s cannot be read" % source.name, "give the whole command line")
    env = {str(name): str(value) for name, value in (launch.get("env") or {}).items()}
    base = {name: value for name, value in source.env.items() if name not in OWN_VARIABLES}
    cwd = launch.get("cwd") or source.cwd or "/"
    if not os.path.isdir(cwd):
        raise Refused("the working folder %s is not there" % cwd, "name another one")
    return {**launch, "argv": argv, "env": filled_env(env, source), "base": base, "cwd": cwd}


def _kept_of(like: str, find: Callable[[str], Source]) -> Json:
    """Return what a service manager keeps, as it ran; empty where that may not be read: the manager knows it."""
    try:
        source = find(like) if like else Source("")
    except Refused:
        return {}
    if source.env is None or not source.argv:
        return {}
    env = {name: value for name, value in source.env.items() if name not in OWN_VARIABLES}
    return {"argv": list(source.argv), "env": env, "cwd": source.cwd}


def login_environment() -> Dict[str, str]:
    """Return the environment of the login that started the probe, as UTF-8 whatever the login's language is."""
    env = {_text(name): _text(value) for name, value in os.environb.items()}
    return {name: value for name, value in env.items() if name not in LOGIN_VARIABLES}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def filled_env(env: Mapping[str, str], source: Source) -> Dict[str, str]:
    """Return variables with `***` replaced by the source's values.

    Raises:
        Refused: The source has no such variable.
    """
    out = dict(env)
    for name, value in env.items():
        if MASK in value:
            real = (source.env or {}).get(name)
            if real is None or not _fits(value, real):
                raise _hidden(name, source)
            out[name] = real
    return out


def filled_argv(argv: Sequence[str], source: Source) -> List[str]:
    """Return a command line with `***` replaced by the source's values of the same flags.

    `--flag value` and `--flag=value` are the same here, and so are `-` and `_` in a flag's name. Of several values, or
    of a flag that is given several times, each is taken from its own place.

    Raises:
        Refused: The source does not have the flag, or not so many values.
    """
    known: Dict[Tuple[str, int], List[str]] = {}
    for flag, turn, value, _ in _values(source.argv or ()):
        known.setdefault((flag, turn), []).append(value)
    out = list(argv)
    taken: Dict[Tuple[str, int], int] = {}
    for flag, turn, value, at in _values(argv):
        place = taken.get((flag, turn), 0)
        taken[flag, turn] = place + 1
        if MASK not in value:
            continue
        values = known.get((flag, turn), [])
        real = values[place] if place < len(values) else None
        if real is None or not _fits(value, real):
            # An argument without a flag may stand elsewhere now.
            others = [word for word in values if _fits(value, word)] if not flag else []
            if len(set(others)) != 1:
                raise _hidden(flag or "argument %d" % at, source)
            real = others[0]
        word = out[at]
        out[at] = word[: len(word) - len(value)] + real
    return out


def _values(argv: Sequence[str]) -> List[Tuple[str, int, str, int]]:
    """Return the values on a command line: flag, how often it was given before, value, index of the argument.

    Values before the first flag have the flag "".
    """
    out = []
    flag, turn = "", 0
    turns: Dict[str, int] = {}
    for at, word in enumerate(argv):
        if word.startswith("-") and not re.fullmatch(r"-?[\d.]+(?:e[+-]?\d+)?", word) and word != "-":
            name, equals, value = word.partition("=")
            flag = name.replace("_", "-")
            turn = turns.get(flag, 0)
            turns[flag] = turn + 1
            if equals:
                out.append((flag, turn, value, at))
        else:
            out.append((flag, turn, word, at))
    return out


def _fits(masked: str, real: str) -> bool:
    """Return whether a value with `***` in it can be the masked form of a real one."""
    pattern = ".*".join(re.escape(part) for part in masked.split(MASK))
    return re.fullmatch(pattern, real, re.S) is not None and real != ""


def _hidden(name: str, source: Source) -> Refused:
    # The name stands last: what follows the name of a secret is masked on its way to the screen.
    return Refused("%s does not have the secret value of %s" % (source.name, name), "leave it out of the recipe")
