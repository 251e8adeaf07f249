"""A recipe: how a server is started on a host. A preset is laid over it."""

from __future__ import annotations

from msgspec import Struct

from tuner.domain.server import Manager

MASK = "***"
"""What stands for a secret. The secret itself stays on the host, which fills it in from the server or the run that the
launch is `like`."""


class Argument(Struct, frozen=True, kw_only=True):
    """One argument of a command line: a flag with its values, or a word without a flag."""

    name: str = ""
    """Canonical name of the flag, underscored and without leading dashes; empty: a word without a flag."""
    flag: str = ""
    """The flag as written, without `=value`."""
    values: tuple[str, ...] = ()
    words: tuple[str, ...]
    """The words of the command line that it consists of: `--tp`, `8`, or the single word `--tp=8`."""


class CommandLine(Struct, frozen=True, kw_only=True):
    """A server's command line, taken apart. `command` and the words of all arguments in order are the whole of it."""

    command: tuple[str, ...]
    """What stands before the arguments, as `Recipe.command`."""
    arguments: tuple[Argument, ...] = ()
    known: bool = True
    """Whether the engine knows the program; False: what its arguments mean is assumed."""


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one server is started on one host, secrets masked."""

    name: str
    """What the operator calls it; the name of its file."""
    host: str
    """The host as the operator names it, `root@gpu-box-1`."""
    engine: str
    version: str | None = None
    """Engine version that was installed when the recipe was read."""
    command: tuple[str, ...]
    """What stands before the arguments: interpreter and module, `/venv/bin/python -m sglang.launch_server`, or a
    program, `/venv/bin/vllm serve`."""
    args: tuple[str, ...] = ()
    """The base arguments, in their order."""
    env: dict[str, str] = {}
    """Environment variables that matter: all of the server's but those of its login session."""
    cwd: str | None = None
    log_dir: str | None = None
    """Folder of logs on the host; None: the run's own folder."""
    model: str | None = None
    """The LLM as the arguments name it."""
    port: int | None = None
    manager: Manager | None = None
    """Who started the server that the recipe was read from, and may start it again."""
    ready_s: float | None = None
    """Seconds from launch to ready that starts usually take; None: not known."""
    origin: str = ""
    """Where it comes from, in words: `pid 48211, read 2026-11-30 10:12`, or a file."""
    like: str = ""
    """Key of the running server, or id of the run, whose secrets and remaining environment it shares; empty: none."""


class Launch(Struct, frozen=True, kw_only=True):
    """A complete start: a recipe with a preset and overrides laid over it, secrets masked."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """Variables set on top of those of the server or run that it is `like`, or of the login where there is none."""
    unset: tuple[str, ...] = ()
    """Variables taken away from those."""
    cwd: str | None = None
    log_dir: str | None = None
    port: int | None = None
    like: str = ""
    """As `Recipe.like`."""
    preset: str = ""
    """Id of the preset; empty: the bare recipe."""
    title: str = ""
    """For people: the preset's title with its overrides."""
    values: dict[str, object] = {}
    """Canonical knob name to value, of all that the preset and the overrides set."""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
