"""Recipes: how a running server was started, and the complete start that a preset laid over a recipe makes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from tuner.core.arguments import flag_key, spellings
from tuner.core.change_words import value_words
from tuner.core.engine import Engine
from tuner.core.overlays import overlay as spelled
from tuner.core.surroundings import OWN_VARIABLES
from tuner.domain.presets import Overlay, Preset
from tuner.domain.recipe import Argument, Launch, Recipe
from tuner.domain.server import ServerIdentity
from tuner.domain.state import HostState, ServerState
from tuner.errors import TunerError

SESSION_VARIABLES = frozenset((
    "_", "COLORTERM", "COLUMNS", "CREDENTIALS_DIRECTORY", "DISPLAY", "EDITOR", "FDSTORE", "HISTCONTROL",
    "HISTFILE", "HISTSIZE", "HUSHLOGIN", "INVOCATION_ID", "JOURNAL_STREAM", "LESSCLOSE", "LESSOPEN", "LINES",
    "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID", "LS_COLORS", "MAIL", "MAINPID", "MANAGERPID", "MANAGERPIDFDID",
    "MOTD_SHOWN", "NOTIFY_SOCKET", "OLDPWD", "PAGER", "PS1", "PS2", "PROMPT_COMMAND", "PWD", "REMOTE_HOST", "SHELL",
    "SHLVL", "STY", "SYSTEMD_EXEC_PID", "TERM", "TERMCAP", "VISUAL", "VTE_VERSION", "WATCHDOG_PID", "WATCHDOG_USEC",
    "WINDOW", "WINDOWID", "XAUTHORITY", "which_declare",
))  # fmt: skip
"""Variables that a login, a terminal or a service manager sets for one session: they say nothing of the server."""
SESSION_PREFIXES = (
    "BASH_FUNC_", "DBUS_", "GNOME_", "GPG_", "KONSOLE_", "LC_TERMINAL", "MEMORY_PRESSURE_", "SSH_", "SUDO_",
    "SUPERVISOR_", "TERM_", "TMUX", "VSCODE_", "XDG_",
)  # fmt: skip
"""Beginnings of the names of further ones."""
IMAGE_PREFIXES = ("NV_", "NVIDIA_REQUIRE_", "PIP_", "RUSTUP_", "UV_")
"""Beginnings of the names of variables that container images bake in for what was installed, or for an installer."""
_LONGEST_VALUE = 4096
"""Characters: the probe cuts values at this length, so that one of this length may not be whole."""
_NOBODY = "unknown"
"""Kind of the manager of a server that nothing is known to have started."""
_DELETED = " (deleted)"
WITH, _AND = " with ", ", "
"""What stands in the name of a start before the values changed by hand, and between them."""


def of_session(name: str) -> bool:
    """Return whether a variable belongs to a login session, a service manager or an image, not to the server."""
    return name in SESSION_VARIABLES or name in OWN_VARIABLES or name.startswith((*SESSION_PREFIXES, *IMAGE_PREFIXES))


def read_recipe(state: HostState, server: ServerState, engine: Engine, name: str = "") -> Recipe:
    """Read off a running server how it is started.

    Args:
        state: State of its host.
        server: The server.
        engine: Its engine.
        name: Name of the recipe; empty: one made of host and port.

    Raises:
        TunerError: Its command line is not known.
    """
    identity = server.identity
    if identity.orphaned or not identity.argv:
        raise TunerError(
            f"No recipe can be read off process {identity.pid}",
            "its main process has ended" if identity.orphaned else "its command line cannot be read",
            "" if identity.orphaned else "Connect as root or as the server's user",
        )
    line = engine.command_line(identity.argv)
    source = server.log.source or identity.log
    return Recipe(
        name=name or default_name(state.name, identity),
        host=state.name,
        engine=engine.name,
        version=server.version or identity.version,
        command=command_of(identity, engine),
        args=tuple(_words(line.arguments)),
        env={
            variable: value
            for variable, value in sorted((identity.env or {}).items())
            if not of_session(variable) and len(value) < _LONGEST_VALUE
        },
        cwd=_there(identity.cwd),
        log_dir=log_folder(source.path) if source is not None and source.kind == "file" else None,
        model=engine.model(identity),
        port=identity.port,
        manager=identity.manager if identity.manager and identity.manager.kind != _NOBODY else None,
        ready_s=ready_in_s(server),
        origin=_origin(state, identity),
        like=f"server:{identity.key}",
    )


def command_of(identity: ServerIdentity, engine: Engine) -> tuple[str, ...]:
    """Return a server's command, its interpreter by its whole path where the search path alone led to it."""
    command = engine.command_line(identity.argv).command
    path = identity.interpreter
    if command and path is not None and "/" not in command[0] and posixpath.basename(path) == command[0]:
        return (path, *command[1:])
    return command


def default_name(host: str, identity: ServerIdentity) -> str:
    """Return a name for the recipe of a server: its host without the login, and its port."""
    machine = re.sub(r"[^A-Za-z0-9.]+", "-", host.rpartition("@")[2]).strip("-.") or "host"
    return f"{machine}-{identity.port}" if identity.port is not None else machine


def lay_over(
    recipe: Recipe,
    overlay: Overlay,
    preset: Preset | None,
    engine: Engine,
    known: Collection[str] = (),
    server: ServerState | None = None,
) -> Launch:
    """Lay an overlay over a recipe.

    Flags that the overlay sets or takes away go from the base, in any spelling and with their values; what it sets is
    appended. Everything else stays as it is and in its order.

    Args:
        recipe: The base.
        overlay: What is set and taken away, spelled for the installed version.
        preset: The preset that the overlay was made of; None: the bare recipe.
        engine: The recipe's engine.
        known: Flags of the installed version (`core.helptext`), which tell abbreviations from other flags; empty: the
            catalogue of knobs is asked.
        server: The server that the recipe is `like`, if it runs: variables that are not in the recipe are taken away.
    """
    line = engine.command_line((*recipe.command, *recipe.args))
    gone = _Gone(engine, recipe.command, overlay, known)
    kept = [each for each in line.arguments if not gone.takes(each)]
    argv = (*line.command, *_words(kept), *overlay.argv)
    env = {name: value for name, value in recipe.env.items() if name not in overlay.unset_env} | overlay.env
    launch = Launch(
        argv=argv,
        env=env,
        unset=tuple(name for name in overlay.unset_env if name not in overlay.env),
        cwd=recipe.cwd,
        log_dir=recipe.log_dir,
        port=_port(argv, recipe, engine),
        like=recipe.like,
        preset=preset.id if preset is not None else "",
        title=_title(recipe, overlay, preset, engine),
        values=dict(overlay.values),
        notes=(*overlay.notes, *gone.notes, *_of_file(kept, overlay)),
        problems=overlay.problems,
    )
    return launch if server is None else without_rest(launch, server)


def without_rest(launch: Launch, server: ServerState) -> Launch:
    """Return a launch that takes no variable from the server that it is `like`, beside those of its own recipe.

    Those of the login session, and those that are too long for a recipe, are still inherited.
    """
    if launch.like != f"server:{server.identity.key}":
        return launch
    rest = {
        name: None
        for name, value in (server.identity.env or {}).items()
        if name not in launch.env and not of_session(name) and len(value) < _LONGEST_VALUE
    }
    return msgspec.structs.replace(launch, unset=tuple(dict.fromkeys(launch.unset) | rest))


class _Gone:
    """The flags that a base must not have, recognised in any spelling.

    Args:
        engine: The engine.
        command: The command, by which the engine knows how its arguments are written.
        overlay: What is set and taken away.
        known: Flags of the installed version; empty: not known.
    """

    def __init__(self, engine: Engine, command: Sequence[str], overlay: Overlay, known: Collection[str]) -> None:
        self.notes: list[str] = []
        """What an operator should know of flags that were recognised by an abbreviation."""
        self._known = frozenset(map(flag_key, known))
        behaviour = engine.behaviour()
        # Flags that are no knobs: `--model` is no short `--model-loader-extra-config`.
        self._whole = frozenset(map(flag_key, (behaviour.llm_flag, behaviour.adapters_flag)))
        self._alike: dict[str, set[str]] = {}
        """By the key of a flag: the keys of all flags that set a knob of it, in any version."""
        for knob in engine.knobs().values():
            keys = {flag_key(text) for text in spellings((knob,))}
            for key in keys:
                self._alike.setdefault(key, set()).update(keys)
        set_anew = engine.command_line((*command, *overlay.argv)).arguments
        flags = [*overlay.unset_flags, *(each.flag for each in set_anew if each.flag)]
        self._names = frozenset(self._all_names(engine, command, flags))

    def takes(self, argument: Argument) -> bool:
        """Return whether an argument of the base goes."""
        if not argument.flag:
            return False
        key = flag_key(argument.flag).partition(".")[0]
        if key in self._names or argument.name.partition(".")[0] in self._names:
            return True
        return argument.flag.startswith("--") and self._abbreviates(key, argument.flag)

    def _abbreviates(self, key: str, flag: str) -> bool:
        """Return whether argparse takes a flag for one of those that go, by its unique prefix."""
        flags = self._known or self._names.union(self._alike, self._whole)
        candidates = {each for each in flags if each.startswith(key)} if key not in flags else set()
        if not key or not candidates or not candidates <= self._names:
            return False
        if not self._known:
            self.notes.append(f"{flag} was taken for --{min(candidates).replace('_', '-')}, and goes with it")
        return True

    def _all_names(self, engine: Engine, command: Sequence[str], flags: Iterable[str]) -> Iterator[str]:
        for flag in flags:
            key = flag_key(flag)
            yield key.removeprefix("no_")
            arguments = engine.command_line((*command, flag)).arguments
            yield from (each.name for each in arguments if each.flag)
            for each in self._alike.get(key, {key}):
                yield from (each, f"no_{each}")


def _words(arguments: Iterable[Argument]) -> Iterator[str]:
    return (word for each in arguments for word in each.words)


def _port(argv: Sequence[str], recipe: Recipe, engine: Engine) -> int | None:
    """Return the port that a command line asks for; else the recipe's."""
    flags = engine.plan().port_flags
    given = [each.values for each in engine.command_line(argv).arguments if each.flag in flags]
    if given and given[-1] and given[-1][0].isdecimal():
        return int(given[-1][0])
    asked = {word.partition("=")[0] for word in recipe.args}
    return engine.plan().default_port if asked & set(flags) else recipe.port


def _title(recipe: Recipe, overlay: Overlay, preset: Preset | None, engine: Engine) -> str:
    """Return the name of a start: the preset's id, or the recipe's name, with the values that are not the preset's.

    The recipe of a start that had such values is named with them; those that are set anew stand there once.
    """
    # The preset is spelled as the overlay was, since it may name a knob by an alias, or by the opposite of a switch.
    own = spelled(preset, engine.knobs(), engine.name, recipe.version).values if preset is not None else {}
    changed = [
        f"{name} {'by default' if value is None else value_words(value)}"
        for name, value in overlay.values.items()
        if name not in own or own[name] != value
    ]
    if preset is not None and preset.id:
        title, before = preset.id, ""
    else:
        title, _, before = recipe.name.partition(WITH)
    kept = [each for each in before.split(_AND) if each and each.partition(" ")[0] not in overlay.values]
    words = _AND.join([*kept, *changed])
    return f"{title}{WITH}{words}" if words else title


def _of_file(kept: Iterable[Argument], overlay: Overlay) -> Iterator[str]:
    """Yield a note if a file supplies arguments, too: what is taken away from the command line may stand there."""
    for each in kept:
        if each.name == "config" and each.values and overlay.unset_flags:
            yield f"{each.values[0]} sets arguments, too: what is left to the engine here may be set there"


def _there(path: str | None) -> str | None:
    return None if path is None or path.endswith(_DELETED) else path


def log_folder(path: str | None) -> str | None:
    """Return the folder of a log; None for what is no file that a folder has, and for the folder of a run."""
    if path is None or not path.startswith("/") or path.startswith(("/dev/", "/proc/")) or path.endswith(_DELETED):
        return None
    if "/.gputuner/" in path:
        return None  # the folder of the run that started it: the next run has one of its own
    return posixpath.dirname(path)


def ready_in_s(server: ServerState | None) -> float | None:
    """Return the seconds that a start of a server takes: its own did, else the longest usual one; None: not known.

    Never the middle of a range: a start from a cold disk and one from a warm cache have no time between them.
    """
    if server is None:
        return None
    own = server.started_in_s
    took = own if own is not None else server.usual.total_s[1] if server.usual.total_s is not None else None
    return None if took is None else round(took, 1)


def _origin(state: HostState, identity: ServerIdentity) -> str:
    read = "" if state.now is None else f", read {datetime.fromtimestamp(state.now, UTC):%Y-%m-%d %H:%M} UTC"
    return f"pid {identity.pid}{read}"
