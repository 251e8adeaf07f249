"""What a launch changes on a running server, and what of that server is not as it was asked for.

What a server really has is read where it shows: its command line, the environment of its processes, the settings that
it resolved, the lines of its log, files that set variables behind the scenes. Where two of them disagree, the change
says so in its `drift`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.arguments import Asked, asked
from tuner.core.change_words import value_words
from tuner.core.engine import Engine
from tuner.core.gates import Held, ways
from tuner.core.ignored import Ignored, ignored
from tuner.core.knobs import chosen
from tuner.core.recipes import command_of, of_session
from tuner.core.surroundings import environment
from tuner.domain.gates import Hardware
from tuner.domain.knobs import Knob, KnobKind, KnobType
from tuner.domain.recipe import Launch
from tuner.domain.starts import Start
from tuner.domain.state import ServerState
from tuner.domain.tuning import Change

ARGV, ENVIRONMENT, SETTINGS, DEFAULT, FILE, LOG = "argv", "environment", "settings", "default", "file", "log"
"""Where a present value comes from: `Change.source`."""
_NCCL = "NCCL_"
_OF_LOGIN = ("HOME", "LANG", "LOGNAME", "PATH", "USER")
"""Variables that every login sets: a launch without them has the login's."""
_CLOSE = 1e-6
"""Relative difference below which two numbers are the same."""


class _Setter(Struct, frozen=True):
    """A file that sets a variable behind the scenes, or takes it away."""

    value: str | None
    """None: it takes the variable away."""
    place: str
    wins: bool
    """Whether it wins over the environment of the launch."""

    @property
    def words(self) -> str:
        """What the file does, in words."""
        return f"{self.place} takes it away" if self.value is None else f"{self.place} sets it to {self.value}"

    def applies(self, own: str | None) -> bool:
        """Return whether it changes a variable that the environment has as `own`; None: does not have."""
        return self.value != own and (own is None or self.wins)


def changes(
    launch: Launch,
    server: ServerState | None,
    engine: Engine,
    env_files: Sequence[Mapping[str, Any]] = (),
    hardware: Hardware | None = None,
) -> tuple[Change, ...]:
    """Return what a launch changes against what a running server really has.

    Values that stay are listed only if something is to be said of them; their `changed` is False.

    Args:
        launch: The new start.
        server: The server that runs; None: everything is new.
        engine: The engine of both.
        env_files: Settings in files, as the probe tells them: each with `name`, `value`, `path`, `line` and `how`.
        hardware: GPUs of the server, which decide whether an all-reduce path can be used; None: not known.
    """
    return _Sides(launch, server, engine, env_files, hardware).changes()


def drift(
    server: ServerState,
    engine: Engine,
    env_files: Sequence[Mapping[str, Any]] = (),
    hardware: Hardware | None = None,
) -> tuple[Change, ...]:
    """Return what of a running server is not as it was asked for; the arguments are those of `changes`."""
    as_it_is = Launch(argv=server.identity.argv, like=f"server:{server.identity.key}")
    return changes(as_it_is, server, engine, env_files, hardware)


class _Sides:
    """A running server and the launch that is to follow it; the arguments are those of `changes`."""

    def __init__(
        self,
        launch: Launch,
        server: ServerState | None,
        engine: Engine,
        env_files: Sequence[Mapping[str, Any]],
        hardware: Hardware | None,
    ) -> None:
        self.launch = launch
        self.server = server
        self.engine = engine
        self.table = engine.knobs()
        self.smallest_bytes = hardware.smallest_bytes if hardware is not None else None
        self.version = server.version or server.identity.version if server is not None else None
        self.settings = server.settings if server is not None else {}
        self.setters = _setters(env_files)
        self.env = dict(server.identity.env or {}) if server is not None else {}
        self.env_known = server is not None and server.identity.env is not None
        self.new_env = self._new_env()
        self.was, self.will = self._starts()
        self.told = {each.name: each for each in _ignored(self.was, engine, hardware)} if server is not None else {}
        self.foreseen = {each.name: each for each in _ignored(self.will, engine, hardware)}

    def changes(self) -> tuple[Change, ...]:
        """Return all changes: arguments in the order of the new command line, then those that go, then variables."""
        found = [*self._command(), *self._flags(), *self._variables()]
        return (*(each for each in found if each.changed), *(each for each in found if not each.changed))

    # --- Arguments -------------------------------------------------------------------------------------------------

    def _command(self) -> Iterator[Change]:
        then = self.engine.command_line(self.launch.argv).command
        if self.server is None:
            return
        now = self.engine.command_line(self.server.identity.argv).command
        if then not in (now, command_of(self.server.identity, self.engine)):
            yield Change(name="command", kind=KnobKind.FLAG, now=" ".join(now), then=" ".join(then), source=ARGV)

    def _flags(self) -> Iterator[Change]:
        new = asked(self.launch.argv, self.engine)
        old = asked(self.server.identity.argv, self.engine) if self.server is not None else {}
        for name in (*new, *(each for each in old if each not in new)):
            change = self._flag(old.get(name), new.get(name))
            if change is not None:
                yield change

    def _flag(self, old: Asked | None, new: Asked | None) -> Change | None:
        given = new or old
        assert given is not None
        change = Change(
            name=given.name,
            kind=KnobKind.FLAG,
            text=self._text(given),
            now=None if old is None else old.value,
            then=None if new is None else new.value,
        )
        if self.server is None:
            return change
        resolved = self._resolved(given)
        words: list[str] = []
        if old is None:
            spelling = self.engine.knob(given.name, self.version)
            now = resolved if resolved is not None else spelling.default if spelling is not None else None
            change = _with(change, now=now, source=DEFAULT if resolved is None else SETTINGS)
            if new is not None and now is not None and _same(given.knob, new.value, now):
                change = _with(change, now=new.value)
                words.append("it has that value already, which the engine chose by itself")
        else:
            change = _with(change, source=ARGV)
            if resolved is not None and given.knob is not None and not _same(given.knob, old.value, resolved):
                words.append(f"{value_words(old.value)} was asked for, and the engine made it {value_words(resolved)}")
                stays = new is not None and _same(given.knob, old.value, new.value)
                change = _with(change, now=resolved, source=SETTINGS, then=resolved if stays else change.then)
            elif new is not None and _same(given.knob, old.value, new.value):
                change = _with(change, now=new.value)
        words += self._ignored_words(given.name, old is not None, new is not None)
        change = _with(change, drift="; ".join(words), default=self._default(given.name) if new is None else None)
        return change if change.changed or change.drift else None

    def _text(self, given: Asked) -> str:
        spelling = self.engine.knob(given.name, self.version) if given.knob is not None else None
        return given.text if spelling is None or spelling.flag is None else spelling.flag

    def _resolved(self, given: Asked) -> Any:
        """Return the value of a setting that the engine resolved; None if it does not tell."""
        if given.knob is not None:
            value = self.table.value(self.settings, given.name, self.version)
        else:
            value = self.settings.get(given.name)
        return None if isinstance(value, float) and math.isnan(value) else value

    def _default(self, name: str) -> Any:
        """Return the value that this version of the engine takes for what nothing sets; None if it is not known."""
        spelling = self.engine.knob(name, self.version)
        return None if spelling is None or spelling.assumed else chosen(spelling, self.smallest_bytes)

    # --- Variables -------------------------------------------------------------------------------------------------

    def _new_env(self) -> dict[str, str]:
        """Return the environment of the new server, as far as it is known."""
        launch, server = self.launch, self.server
        inherited = server is not None and launch.like != ""
        base = self.env if inherited else {name: value for name, value in self.env.items() if of_session(name)}
        return {name: value for name, value in base.items() if name not in launch.unset} | launch.env

    def _variables(self) -> Iterator[Change]:
        logged = environment(self.was) if self.server is not None else {}
        inner = self._inner_env()
        set_by_engine = {rule.name for rule in self.engine.gates().overwrites}
        elsewhere = {name for name in logged if name.startswith(_NCCL) and name not in set_by_engine}
        for name in sorted({*self.env, *self.new_env, *self.setters, *elsewhere}):
            known = name in self.launch.values or self._knob(name) is not None
            from_login = name in _OF_LOGIN and name not in self.launch.env
            if of_session(name) or from_login or (self.server is None and not known):
                continue
            change = self._variable(name, inner.get(name), logged.get(name))
            if change is not None:
                yield change

    def _variable(self, name: str, inner: str | None, logged: str | None) -> Change | None:
        """Return what changes of a variable.

        Args:
            name: The variable.
            inner: Its value in the processes that the main one started; None: not known.
            logged: The value that the log tells; None: it tells none.
        """
        old, new = self.env.get(name), self.new_env.get(name)
        setter = self.setters.get(name)
        now, source, words = self._present(name, inner, logged)
        stays = new == old and (self.env_known or name not in self.launch.env)
        then = now if stays else new
        if not stays and setter is not None and setter.applies(new):
            words = [*(each for each in words if each != setter.words), f"{setter.words} all the same"]
        if not stays and source == DEFAULT and now is not None and now == new:
            words.append("it is the default")
        words += self._ignored_words(name, old is not None, new is not None)
        if self.server is not None and not self.env_known:
            words.append("the environment of the running server cannot be read")
        knob = self._knob(name)
        change = Change(
            name=knob.name if knob is not None else name,
            kind=KnobKind.ENV,
            text=name,
            now=now,
            then=then,
            default=self._default(name) if then is None else None,
            source=source,
            drift="; ".join(dict.fromkeys(words)),
        )
        return change if change.changed or (change.drift and (self.env_known or not stays)) else None

    def _present(self, name: str, inner: str | None, logged: str | None) -> tuple[str | None, str, list[str]]:
        """Return the value that a variable really has in the running server, where that shows, and what is odd."""
        if self.server is None:
            return None, "", []
        old, setter = self.env.get(name), self.setters.get(name)
        if inner is not None and inner != old:
            who = setter.words if setter is not None else "the engine, or a file behind the scenes, set it"
            began = "without it" if old is None else f"with {old}"
            return inner, ENVIRONMENT, [f"it began {began}, and its processes have {inner}: {who}"]
        if setter is not None and setter.applies(old):
            return setter.value, FILE, [setter.words]
        if old is None and logged is not None:
            odd = ["it is not in the server's environment, and the log says that it was read"] if self.env_known else []
            return logged, LOG, odd
        if old is not None or not self.env_known:
            return old, ENVIRONMENT, []
        spelling = self.engine.knob(name, self.version)
        default = spelling.default if spelling is not None else None
        return None if default is None else str(int(default) if isinstance(default, bool) else default), DEFAULT, []

    def _knob(self, name: str) -> Knob | None:
        knob = self.table.find(name)
        return knob if knob is not None and knob.kind is KnobKind.ENV else None

    def _inner_env(self) -> dict[str, str]:
        """Return the variables in which processes differ from the main one alike; ranks have some of their own."""
        found: dict[str, set[str]] = {}
        if self.server is not None:
            ranks = {rank.pid for rank in self.server.ranks}
            for member in self.server.identity.members:
                if member.pid not in ranks:
                    for name, value in (member.env or {}).items():
                        found.setdefault(name, set()).add(value)
        return {name: values.pop() for name, values in found.items() if len(values) == 1}

    # --- Both ------------------------------------------------------------------------------------------------------

    def _starts(self) -> tuple[Start, Start]:
        """Return the running server's start, and the one that the launch will be."""
        known = self.server.start if self.server is not None else None
        was = known or Start(
            engine=self.engine.name,
            version=self.version,
            settings=dict(self.settings),
            env=self.env,
            env_read=self.env_known,
        )
        settings = {**self.settings}
        for name, value in self.launch.values.items():
            spelling = self.engine.knob(name, self.version)
            if spelling is not None and spelling.flag is not None:
                settings[spelling.setting] = value
        return was, Start(
            engine=self.engine.name, version=self.version, settings=settings, env=self.new_env, env_read=True
        )

    def _ignored_words(self, name: str, was_set: bool, will_be_set: bool) -> Iterator[str]:
        """Yield why a setting does nothing: in the running server, or in the new one."""
        told = self.told.get(name) if was_set else None
        foreseen = self.foreseen.get(name) if will_be_set else None
        if told is not None:
            yield f"{told.value} was set and does nothing: {_why(told)}"
        if foreseen is not None and (told is None or told.why != foreseen.why):
            yield f"{foreseen.value} will do nothing: {_why(foreseen)}"


def _setters(env_files: Sequence[Mapping[str, Any]]) -> dict[str, _Setter]:
    """Return the files that act in the process itself; units and login files make the environment that /proc shows."""
    found: dict[str, _Setter] = {}
    for each in env_files:
        name, path, line, how = (each.get(key) for key in ("name", "path", "line", "how"))
        if not name or not path or how not in ("assign", "default", "unset"):
            continue
        value = None if how == "unset" else str(each.get("value") or "")
        setter = _Setter(value, f"{path}:{line}" if line else str(path), how != "default")
        known = found.get(str(name))
        if known is None or (setter.wins and not known.wins):
            found[str(name)] = setter
    return found


def _ignored(start: Start, engine: Engine, hardware: Hardware | None) -> list[Ignored]:
    held = Held(start, engine, hardware)
    return ignored(held, ways(held))


def _why(told: Ignored) -> str:
    return told.why + (f", to {told.became}" if told.became else "") + ("" if told.sure else " (likely)")


def _with(change: Change, **fields: Any) -> Change:
    return msgspec.structs.replace(change, **fields)


def _same(knob: Knob | None, one: Any, other: Any) -> bool:
    """Return whether two values mean the same: `0.880` and `0.88`, `32k` and 32000, a list and its text."""
    if isinstance(one, bool) or isinstance(other, bool):
        return str(one).lower() == str(other).lower()
    if isinstance(one, list | tuple) or isinstance(other, list | tuple):
        return [str(each) for each in _listed(one)] == [str(each) for each in _listed(other)]
    try:
        first, second = float(one), float(other)
    except (TypeError, ValueError, OverflowError):
        return str(one).strip().lower() == str(other).strip().lower()
    if abs(first - second) <= _CLOSE * max(abs(first), abs(second)):
        return True
    # The engine counts `32k` as 32000, and our reading of it as 32768.
    thousands = knob is not None and knob.type is KnobType.INT and first and second
    return bool(thousands) and any(abs(first / second - 1.024**power) < _CLOSE for power in (1, 2, 3))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [part.strip() for part in str(value).strip("[]").split(",")]
