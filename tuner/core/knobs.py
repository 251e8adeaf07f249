"""The knobs of one engine, looked up by any of their names, and values read from what people type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tuner.core.amounts import real, whole
from tuner.core.versions import in_range, parse_version
from tuner.domain.knobs import Harm, Hazard, Knob, KnobKind, KnobType, SpelledAs, Spelling
from tuner.units import MIB

_UNSET = frozenset({"", "auto", "none", "null", "default", "unset"})
ON_WORDS = frozenset({"1", "on", "true", "yes"})
OFF_WORDS = frozenset({"0", "off", "false", "no"})
"""Words for a switch that is on and for one that is off, in lower case."""
_GRAVE = (Harm.HANG, Harm.CORRUPT, Harm.CRASH)
Number = TypeVar("Number", int, float)


class Named(NamedTuple):
    """The knob that a name means, and whether the name says the contrary of it."""

    knob: Knob
    opposite: bool = False

    def turned(self, value: Any) -> Any:
        """Return the knob's own value for the value that was given under this name."""
        return not value if self.opposite and isinstance(value, bool) else value


class KnobTable(Mapping[str, Knob]):
    """The knobs of one engine by canonical name.

    Args:
        knobs: In the order in which they are shown.
        newest: Newest version they were checked against; a newer one gets its spelling, marked as assumed.
        versions: Versions they were checked against, oldest first; empty: only the newest.
    """

    def __init__(self, knobs: Iterable[Knob], newest: str = "", versions: Sequence[str] = ()) -> None:
        self._knobs = {knob.name: knob for knob in knobs}
        self._newest = parse_version(newest)
        self.newest = newest
        self.versions = tuple(versions) or ((newest,) if newest else ())
        self._names: dict[str, str] = {}
        for knob in self._knobs.values():
            for name in (*knob.also, *_spelled(knob)):
                self._names.setdefault(_plain(name), knob.name)
        # A canonical name means its own knob, even if it is another name of a different one.
        self._names.update((_plain(name), name) for name in self._knobs)
        self._opposites = {_plain(knob.opposite): knob for knob in self._knobs.values() if knob.opposite}

    def __getitem__(self, name: str) -> Knob:
        return self._knobs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def __len__(self) -> int:
        return len(self._knobs)

    def find(self, text: str) -> Knob | None:
        """Return the knob of a canonical name, flag, variable, settings key or other engine's name; None if unknown."""
        name = self._names.get(_plain(text))
        return None if name is None else self._knobs[name]

    def named(self, text: str) -> Named | None:
        """Return the knob that a name means, also the contrary of a switch that is named for what it takes away."""
        own = self._knobs.get(_plain(text))
        contrary = self._opposites.get(_plain(text)) if own is None else None
        if contrary is not None:
            return Named(contrary, opposite=True)
        knob = own or self.find(text)
        return None if knob is None else Named(knob)

    def spelling(self, name: str, version: str | None) -> Spelling | None:
        """Return how a version spells a knob; None if it has none, or if there is no such knob.

        A version that is not known, or newer than all that were checked, gets the newest spelling, marked `assumed`.
        """
        knob = self.find(name)
        if knob is None:
            return None
        at = parse_version(version)
        if at is None:
            return _spelling(knob, knob.spellings[-1], assumed=True)
        for spelled in reversed(knob.spellings):
            if in_range(at, spelled.versions):
                return _spelling(knob, spelled, assumed=self._newest is not None and at > self._newest)
        return None

    def absent(self, name: str, version: str | None) -> str:
        """Return why a version does not have a knob, in words; empty if it has it."""
        knob, at = self.find(name), parse_version(version)
        if knob is None:
            return f"there is no knob {name}"
        if at is None or any(in_range(at, spelled.versions) for spelled in knob.spellings):
            return ""
        for spelled in knob.spellings:
            first, _, _ = spelled.versions.partition("-")
            start = parse_version(first)
            if start is not None and at < start:
                return f"{spelled.text} came with {first.strip()}"
        last = knob.spellings[-1]
        return f"{last.text} went after {last.versions.rpartition('-')[2].strip()}"

    def value(self, settings: Mapping[str, Any], name: str, version: str | None = None) -> Any:
        """Return a knob's value in an engine's settings, under any key that a version keeps it; None: not set."""
        knob = self.find(name)
        if knob is None:
            return None
        spelling = self.spelling(name, version)
        keys = ([spelling.setting] if spelling is not None else []) + list(_spelled(knob))
        return next((settings[key] for key in keys if settings.get(key) is not None), None)

    def hazards(self, name: str, value: Any, version: str | None) -> tuple[Hazard, ...]:
        """Return the known hazards of a value by itself, whatever the host and the other knobs are.

        Those that depend on both are judged by `core.hazards`.
        """
        knob, at = self.find(name), parse_version(version)
        if knob is None or value is None:
            return ()
        return tuple(
            hazard
            for hazard in knob.hazards
            if not (hazard.outcome is Harm.CONFLICT or (hazard.given and hazard.outcome not in _GRAVE))
            and describes(hazard, value)
            and (at is None or not hazard.versions or in_range(at, hazard.versions))
        )


def describes(hazard: Hazard, value: Any) -> bool:
    """Return whether a value is one of those that a hazard names by itself, not by comparing two knobs."""
    text = str(value).strip()
    if hazard.value is not None:
        return str(hazard.value).lower() == text.lower()
    if hazard.pattern:
        return any(
            re.fullmatch(hazard.pattern, part.strip(), re.IGNORECASE)
            for part in dict.fromkeys((text, *text.split(",")))
        )
    if hazard.no_power_of_two:
        return text.isdecimal() and int(text).bit_count() != 1
    return False


def flags_of(knob: Knob) -> tuple[str, ...]:
    """Return every flag or variable by which any version sets a knob or switches it off, without repeats."""
    texts = [each for spelled in knob.spellings for each in (spelled.text, spelled.off) if each]
    return tuple(dict.fromkeys((*texts, *knob.aliases)))


def chosen(spelling: Spelling, gpu_bytes: int | None) -> Any:
    """Return what the engine takes where nothing sets a knob; None: that is not known, or nothing.

    Args:
        spelling: How the version spells the knob.
        gpu_bytes: Memory of the smallest GPU of the host; None: not known.
    """
    if gpu_bytes is None or not spelling.by_memory:
        return spelling.default
    return next((value for mib, value in reversed(spelling.by_memory) if gpu_bytes >= mib * MIB), None)


def left_out_words(knob: Knob, spelling: Spelling, gpu_bytes: int | None = None) -> str:
    """Return what the engine takes where nothing sets a knob, in words without full stop; empty: not known."""
    if not spelling.by_memory:
        return knob.left_out if spelling.default is None else _default_words(spelling.default)
    if gpu_bytes is not None:
        return f"{chosen(spelling, gpu_bytes)}, by the memory of the smallest GPU"
    (_, first), *later = spelling.by_memory
    steps = (f"{value} from {mib / 1024:.3g} GiB" for mib, value in later)
    return f"by the memory of the smallest GPU: {', '.join((str(first), *steps))}"


def _default_words(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def read_setting(knob: Knob, value: Any) -> Any:
    """Check a value as a file or a form gives it and return it as the knob's type; None leaves it to the engine.

    Raises:
        ValueError: The value is of another type, or out of range; the message is one line without the knob's name.
    """
    if isinstance(value, str):
        return read_value(knob, value)
    if isinstance(value, bool):
        if knob.type is KnobType.BOOL:
            return value
        raise ValueError(f"{_wanted(knob)} is meant, not {str(value).lower()}")
    if isinstance(value, dict) and knob.type is KnobType.TEXT:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        if knob.type in (KnobType.INTS, KnobType.WORDS) and value:
            return [part for each in value for part in read_value(knob, str(each))]
        raise ValueError(f"{_wanted(knob)} is meant, not a list" if value else "the list is empty")
    if isinstance(value, int | float):
        return read_value(knob, repr(value))
    raise ValueError(f"{_wanted(knob)} is meant, not {type(value).__name__}")


def _wanted(knob: Knob) -> str:
    return {
        KnobType.BOOL: "on or off",
        KnobType.INT: "a whole number",
        KnobType.FLOAT: "a number",
        KnobType.TEXT: "a text",
        KnobType.INTS: "a list of whole numbers",
        KnobType.WORDS: "a list of words",
    }[knob.type]


def as_words(knob: Knob, spelling: Spelling, value: Any) -> tuple[str, ...]:
    """Return a value as the words of a command line, or as the one text of a variable; none for a switch."""
    if isinstance(value, bool):
        return () if knob.kind is KnobKind.FLAG else (str(int(value is not spelling.inverted)),)
    if isinstance(value, list | tuple):
        words = tuple(str(each) for each in value)
        return words if knob.kind is KnobKind.FLAG else (",".join(words),)
    # Some engines read a size as a whole number, which 4.0 is not.
    return (str(int(value) if isinstance(value, float) and value.is_integer() else value),)


def read_value(knob: Knob, text: str) -> Any:
    """Parse what a person typed as a knob's value; None for `auto`, `none` and the like.

    Raises:
        ValueError: The text is no valid value; the message is one line without the knob's name.
    """
    word = text.strip()
    if knob.type is KnobType.BOOL:
        if word.lower() in ON_WORDS | OFF_WORDS:
            return word.lower() in ON_WORDS
        raise ValueError(f"on or off is meant, not {word!r}")
    if word.lower() in _UNSET:
        return None
    if knob.type is KnobType.TEXT:
        return word
    if knob.type is KnobType.WORDS:
        return [part for part in re.split(r"[,\s]+", word.strip("[]")) if part]
    if knob.type is KnobType.INTS:
        return [_within(whole(part, knob.unit), part.strip(), knob) for part in word.strip("[]").split(",")]
    return _within((whole if knob.type is KnobType.INT else real)(word, knob.unit), word, knob)


def _within(value: Number, word: str, knob: Knob) -> Number:
    if knob.min is not None and value < knob.min:
        raise ValueError(f"{word} is less than {knob.min:g}")
    if knob.max is not None and value > knob.max:
        raise ValueError(f"{word} is more than {knob.max:g}")
    return value


def _spelling(knob: Knob, spelled: SpelledAs, *, assumed: bool) -> Spelling:
    return Spelling(
        knob=knob.name,
        kind=knob.kind,
        text=spelled.text,
        setting=spelled.setting or _key(spelled.text),
        off=spelled.off,
        inverted=spelled.inverted,
        default=spelled.default,
        by_memory=spelled.by_memory,
        choices=spelled.choices,
        note=spelled.note,
        assumed=assumed,
    )


def _spelled(knob: Knob) -> Iterator[str]:
    """Yield the settings keys of a knob, newest first."""
    for spelled in reversed(knob.spellings):
        yield spelled.setting or _key(spelled.text)
        yield _key(spelled.text)
    yield from (_key(alias) for alias in knob.aliases)


def _key(text: str) -> str:
    return text if not text.startswith("-") else text.lstrip("-").replace("-", "_")


def _plain(text: str) -> str:
    return text.strip().lstrip("-").replace("-", "_").lower()
