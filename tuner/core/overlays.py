"""Spell a preset and overrides for one version of an engine: arguments, variables, and what the base must not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.hazards import Danger, dangers, shown
from tuner.core.knobs import KnobTable, Named, as_words, flags_of, read_setting
from tuner.core.redact import mask, secret_name
from tuner.core.versions import in_range, parse_version
from tuner.domain.gates import Hardware
from tuner.domain.knobs import Harm, Knob, KnobKind, KnobType, Spelling
from tuner.domain.presets import ANY_ENGINE, Doubt, Overlay, Preset, Requires
from tuner.errors import sentences


class Fault(Struct, frozen=True, kw_only=True):
    """Why a preset must not be applied, and where that stands."""

    what: str
    way_out: str = ""
    path: str = ""
    line: int | None = None
    harms: bool = False
    """True: every part of it is valid, but a value is known to do harm."""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}: " if self.path and self.line else f"{self.path}: " if self.path else ""
        return where + sentences(self.what, self.way_out)


_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEAR = 0.9
"""Similarity from which an unknown variable is taken for a misspelled one that is known."""


def near(word: str, known: Mapping[str, object], otherwise: str = "") -> str:
    """Return a hint that names what was probably meant; `otherwise` where nothing is like it."""
    found = difflib.get_close_matches(word, list(known), 3, 0.6)
    return f"Did you mean {' or '.join(found)}?" if found else otherwise


def engine_differs(preset: Preset, engine: str) -> str:
    """Return in words that a preset is for another engine; empty if it is not."""
    if preset.engine in (ANY_ENGINE, engine):
        return ""
    return f"is for {preset.titles.get(preset.engine, preset.engine)}, not for {preset.titles.get(engine, engine)}"


def version_differs(preset: Preset, engine: str, version: str | None) -> str:
    """Return in words that a preset needs other versions of an engine; empty if it does not, or none is known."""
    wanted, at = preset.requires.versions.get(engine, ""), parse_version(version)
    if at is None or in_range(at, wanted):
        return ""
    return f"needs {preset.titles.get(engine, engine)} {range_words(wanted)}, not {version}"


def range_words(versions: str) -> str:
    """Return a range of versions in words: `0.5.14 -` as `0.5.14 or later`."""
    parts = []
    for span in versions.split(","):
        first, dash, last = (part.strip() for part in span.partition("-"))
        parts.append(
            f"{first} to {last}"
            if first and last
            else f"up to {last}"
            if last
            else f"{first} or later"
            if dash
            else first
        )
    return " and ".join(parts)


def overlay(
    preset: Preset,
    table: KnobTable,
    engine: str,
    version: str | None,
    changes: Mapping[str, Any] = {},
    *,
    base: Mapping[str, Any] | None = None,
    hardware: Hardware | None = None,
) -> Overlay:
    """Spell a resolved preset, and changes on top of it, for one version of an engine.

    Args:
        preset: A preset that `resolve` returned.
        table: The knobs of the engine.
        engine: Id of the engine.
        version: Its version; None: the newest known.
        changes: Overrides that win over the preset: knob name to value; None leaves it to the engine.
        base: As in `core.hazards.dangers`: the other values of the server; None: not known.
        hardware: The GPUs of the host; what is not known of them is taken to be as the preset requires.
    """
    speller = _spelled(preset, table, engine, version, changes)
    speller.judge(base, _cards(preset.requires, hardware or Hardware()))
    return speller.overlay()


def faults(preset: Preset, table: KnobTable, engine: str, version: str | None) -> tuple[Fault, ...]:
    """Return why a resolved preset must not be applied to one version of an engine; empty: it may be."""
    speller = _spelled(preset, table, engine, version, {})
    speller.judge(None, _cards(preset.requires, Hardware()))
    return tuple(dict.fromkeys(speller.faults))


def _spelled(
    preset: Preset, table: KnobTable, engine: str, version: str | None, changes: Mapping[str, Any]
) -> _Speller:
    speller = _Speller(preset, table, engine, version)
    for place in ("args", "env"):
        for name, value in getattr(preset, place).items():
            speller.set(name, value, f"{place}.{name}")
    for flag, raw in preset.flags.items():
        speller.raw(flag, raw)
    for name in preset.unset:
        speller.unset(name, f"unset.{name}")
    for name, value in changes.items():
        speller.change(name, value)
    return speller


def _cards(needs: Requires, known: Hardware) -> list[Hardware]:
    """Return the GPUs that hazards are judged for: as they are known, else as the preset requires them.

    There is one value for each compute capability that the preset allows, unless it is known.
    """
    nvlink = {"nvlink": True, "pcie": False}.get(needs.interconnect)
    return [
        Hardware(
            full_nvlink=nvlink if known.full_nvlink is None else known.full_nvlink,
            capability=capability,
            iommu=(False if needs.iommu == "off" else None) if known.iommu is None else known.iommu,
        )
        for capability in ((known.capability,) if known.capability else needs.compute or ("",))
    ]


class _Speller:
    """Collects what an overlay says, knob by knob."""

    def __init__(self, preset: Preset, table: KnobTable, engine: str, version: str | None) -> None:
        self._preset = preset
        self._table = table
        self._engine = engine
        self._version = version
        self._values: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        self._raw: dict[str, str | bool] = {}
        self._variables: dict[str, str] = {}
        self._unset: list[str] = []
        self._notes: list[str] = []
        self._doubts: list[Doubt] = []
        self.faults: list[Fault] = []
        self._other_version = version_differs(preset, engine, version)
        for reason, place in ((engine_differs(preset, engine), "engine"), (self._other_version, "requires")):
            if reason:
                self._problem(f"it {reason}", place)

    # What the preset and the overrides say.

    def set(self, name: str, value: Any, place: str) -> None:
        """Take a value of the preset."""
        named = self._table.named(name)
        if named is None:
            self._unknown(name, value, place)
            return
        if self._misnamed(named, name, place):
            return
        knob = named.knob
        if place.startswith("args.") and knob.kind is KnobKind.ENV:
            self._problem(f"{name} is a variable", place, f"Move it to [env]: {knob.name}")
            return
        if place.startswith("env.") and knob.kind is KnobKind.FLAG:
            self._problem(f"{name} is an argument, no variable", place, f"Move it to [args]: {knob.name}")
            return
        before = self._places.get(knob.name)
        if before is not None and self._file(before) == self._file(place):
            self._problem(f"{name} and {before.partition('.')[2]} set the same knob", place, "Keep one of them")
        self._take(named, value, place)

    def change(self, name: str, value: Any) -> None:
        """Take an override, which wins over the preset."""
        named = self._table.named(name)
        if named is None:
            self._problem(f"there is no knob {name}", "", near(name, self._table, "`gputuner plan --knobs` lists them"))
        elif not self._misnamed(named, name, ""):
            self._take(named, value, "")

    def _take(self, named: Named, value: Any, place: str) -> None:
        knob = named.knob
        try:
            read = named.turned(read_setting(knob, value)) if value is not None else None
        except ValueError as error:
            self._problem(f"{knob.name} cannot be {shown(value)}", place, str(error)[:1].upper() + str(error)[1:])
            return
        if read is not None and not self._allowed(knob, read, place):
            return
        if isinstance(read, str | list) and not self._sound(knob.name, read, place):
            return
        # The order of the values is that in which they were set last.
        self._values.pop(knob.name, None)
        self._values[knob.name] = read
        self._places[knob.name] = place

    def raw(self, flag: str, value: str | bool) -> None:
        """Take a flag that the catalogue does not hold."""
        place = f"flags.{flag}"
        knob = next((knob for knob in self._table.values() if flag in flags_of(knob)), None) or self._table.find(flag)
        if not _FLAG.fullmatch(flag):
            self._problem(f"{flag} is no flag", place, 'Write it as the engine does, "--flag"')
        elif knob is not None:
            self._problem(f"{flag} is the knob {knob.name}", place, "Move it to [args] by that name")
        elif self._sound(flag, value, place):
            self._raw[flag] = value

    def unset(self, name: str, place: str) -> None:
        """Take a knob, a flag or a variable away."""
        named = self._table.named(name)
        if named is None:
            if name.startswith("-") or name.isupper():
                self._unset.append(name)
            else:
                self._problem(
                    f"there is no knob {name}", place, near(name, self._table, "`gputuner plan --knobs` lists them")
                )
            return
        before = self._places.get(named.knob.name)
        if before is not None:
            if self._file(before) == self._file(place):
                self._problem(f"{name} is set and unset", place, "Keep one of them")
            elif before not in self._preset.paths:
                return  # Its own value stands above what a base took away.
        self._values.pop(named.knob.name, None)
        self._values[named.knob.name] = None
        self._places[named.knob.name] = place

    # Checks.

    def _misnamed(self, named: Named, name: str, place: str) -> bool:
        """Refuse a name of something near that is not the same."""
        if name not in named.knob.unlike:
            return False
        why = f"{self._engine} has no {name}; its {named.knob.name} is not the same ({named.knob.title})"
        self._problem(why, place, "Give that a value of its own")
        return True

    def _unknown(self, name: str, value: Any, place: str) -> None:
        close = difflib.get_close_matches(name, list(self._table), 1, _NEAR)
        if place.startswith("env.") and not _VARIABLE.fullmatch(name):
            self._problem(f"{name} is no name of a variable", place, "Letters, digits and underscores")
            return
        if place.startswith("args.") or close:
            what = "knob" if place.startswith("args.") else "variable"
            self._problem(
                f"there is no {what} {name}", place, near(name, self._table, "`gputuner plan --knobs` lists them")
            )
        elif self._sound(name, value, place):
            self._variables[name] = str(value)
            self._notes.append(f"{name} is not in the catalogue: whether anything reads it is not known")

    def _sound(self, name: str, value: Any, place: str) -> bool:
        """Check that a value can be passed to a program and is no secret; False if not."""
        text = shown(value)
        if "\0" in text:
            self._problem(f"{name} has a NUL character in its value", place, "No program can be given one")
            return False
        is_secret = name not in self._table and secret_name(name, anywhere=not name.startswith("-"))
        if is_secret or mask(text) != text:
            way_out = "Leave it out: the host keeps the secrets of the server that runs"
            self._problem(f"{name} holds a secret, and presets are shown and shared", place, way_out)
            return False
        return True

    def _allowed(self, knob: Knob, value: Any, place: str) -> bool:
        """Check that this version has the knob and the value; False if it does not."""
        spelling = self._spelling(knob)
        if spelling is None:
            if not self._other_version:
                absent = self._table.absent(knob.name, self._version)
                why = f"{self._engine} {self._version} has no {knob.name}: {absent}"
                self._problem(why, place, "Leave it out, or take another version")
            return False
        for each in value if isinstance(value, list) else [value]:
            if spelling.choices and shown(each) not in spelling.choices and not self._other_version:
                why = f"{knob.name} cannot be {shown(each)} in {self._engine} {self._version or self._table.newest}"
                self._problem(why, place, f"It is one of {', '.join(spelling.choices)}")
                return False
        if spelling.assumed and self._version is not None:
            self._notes.append(
                f"{self._engine} {self._version} is newer than all that were read: {spelling.text} is assumed"
            )
        return True

    def judge(self, base: Mapping[str, Any] | None, hardware: Sequence[Hardware]) -> None:
        """Add what the known hazards say of the values on any of some hosts."""
        if self._preset.requires.iommu and any(card.iommu is False for card in hardware):
            word = "that IOMMU and ACS are off is the operator's word: the host does not tell it"
            self._notes.append(word)
            otherwise = [
                each.words
                for each in self._met(base, [msgspec.structs.replace(card, iommu=True) for card in hardware])
                if each.hazard.where.iommu
            ]
            words = "; ".join(dict.fromkeys((word, *(f"otherwise {each}" for each in otherwise))))
            self._doubts.append(Doubt(title="IOMMU and ACS", words=words, sure=False))
        for danger in self._met(base, hardware):
            if danger.refuses:
                way_out = danger.hazard.way_out or f"Leave {danger.knob} out"
                harms = danger.hazard.outcome is not Harm.CONFLICT
                self._problem(danger.words, self._places.get(danger.knob, ""), way_out, harms=harms)
            else:
                self._notes.append(danger.words)
                sure = danger.hazard.outcome not in (Harm.IGNORED, Harm.SILENT)
                self._doubts.append(Doubt(title="Hazard", words=danger.words, way_out=danger.hazard.way_out, sure=sure))

    def _met(self, base: Mapping[str, Any] | None, hardware: Sequence[Hardware]) -> list[Danger]:
        """Return the hazards that the values meet on any of some hosts."""
        return [
            danger
            for card in hardware
            for danger in dangers(self._values, self._table, self._version, base=base, hardware=card)
        ]

    # The result.

    def overlay(self) -> Overlay:
        """Return the overlay."""
        argv: list[str] = []
        env: dict[str, str] = dict(self._variables)
        unset_flags: list[str] = []
        unset_env: list[str] = [name for name in self._unset if not name.startswith("-")]
        for name, value in self._values.items():
            knob, spelling = self._table[name], self._spelling(self._table[name])
            (unset_flags if knob.kind is KnobKind.FLAG else unset_env).extend(flags_of(knob))
            if spelling is None:
                continue
            if value is None:
                self._notes.append(f"{spelling.text} is taken away from the base: its default holds")
            elif knob.kind is KnobKind.ENV:
                env[spelling.text] = as_words(knob, spelling, value)[0]
            else:
                argv += self._argument(knob, spelling, value)
            if knob.reader and value is not None:
                library, _, versions = knob.reader.partition(" ")
                self._notes.append(f"{spelling.text} is read by {library} {range_words(versions)}")
            if spelling.note and value is not None:
                self._notes.append(f"{spelling.text}: {spelling.note}")
        for flag, raw in self._raw.items():
            unset_flags.append(flag)
            argv += [flag] if raw is True else [] if raw is False else [flag, str(raw)]
        unset_flags += [name for name in self._unset if name.startswith("-")]
        return Overlay(
            argv=tuple(argv),
            env=env,
            unset_flags=tuple(dict.fromkeys(unset_flags)),
            unset_env=tuple(each for each in dict.fromkeys(unset_env) if each not in env),
            values=dict(self._values),
            notes=tuple(dict.fromkeys(self._notes)),
            doubts=tuple(dict.fromkeys(self._doubts)),
            problems=tuple(dict.fromkeys(str(fault) for fault in self.faults)),
        )

    def _argument(self, knob: Knob, spelling: Spelling, value: Any) -> list[str]:
        if knob.type is not KnobType.BOOL:
            return [spelling.text, *as_words(knob, spelling, value)]
        if value:
            return [spelling.text]
        if spelling.off and spelling.default is not False:
            return [spelling.off]
        what = f"{knob.opposite} is on" if knob.opposite else f"{knob.name} is off"
        self._notes.append(f"{what} where {spelling.text} is not given: it is taken away from the base")
        return []

    def _spelling(self, knob: Knob) -> Spelling | None:
        return self._table.spelling(knob.name, self._version or self._table.newest or None)

    # Where it stands.

    def _file(self, place: str) -> str:
        return self._preset.paths.get(place, self._preset.path) if place else ""

    def _problem(self, what: str, place: str, way_out: str = "", *, harms: bool = False) -> None:
        file, line = (self._file(place), self._preset.lines.get(place)) if place else ("", None)
        self.faults.append(Fault(what=what, way_out=way_out, path=file, line=line, harms=harms))
