"""The knobs of one engine, looked up by any of their names, and values read from what people type."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tuner.core.versions import in_range, parse_version
from tuner.domain.knobs import Hazard, Knob, KnobType, SpelledAs, Spelling

_UNSET = frozenset({"", "auto", "none", "null", "default", "unset"})
ON_WORDS = frozenset({"1", "on", "true", "yes"})
OFF_WORDS = frozenset({"0", "off", "false", "no"})
"""Words for a switch that is on and for one that is off, in lower case."""
_SIZES = {"k": 1024, "m": 1024**2, "g": 1024**3}
_NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)\s*([kmg]i?b?)?", re.IGNORECASE)
_LARGEST = 1 << 50
"""Largest value that is accepted: a pebibyte, more than any setting counts."""
Number = TypeVar("Number", int, float)


class KnobTable(Mapping[str, Knob]):
    """The knobs of one engine by canonical name.

    Args:
        knobs: In the order in which they are shown.
        newest: Newest version they were checked against; a newer one gets its spelling, marked as assumed.
    """

    def __init__(self, knobs: Iterable[Knob], newest: str = "") -> None:
        self._knobs = {knob.name: knob for knob in knobs}
        self._newest = parse_version(newest)
        self._names: dict[str, str] = {}
        for knob in self._knobs.values():
            for name in (*knob.also, *_spelled(knob)):
                self._names.setdefault(_plain(name), knob.name)
        # A canonical name means its own knob, even if it is another name of a different one.
        self._names.update((_plain(name), name) for name in self._knobs)

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
        """Return the known hazards of a value."""
        knob, at = self.find(name), parse_version(version)
        if knob is None:
            return ()
        return tuple(
            hazard
            for hazard in knob.hazards
            if str(hazard.value).lower() == str(value).lower()
            and (at is None or not hazard.versions or in_range(at, hazard.versions))
        )


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
    if knob.type is KnobType.INTS:
        return [_within(_whole(part), part.strip(), knob) for part in word.strip("[]").split(",")]
    return _within(_whole(word) if knob.type is KnobType.INT else _real(word), word, knob)


def _within(value: Number, word: str, knob: Knob) -> Number:
    if knob.min is not None and value < knob.min:
        raise ValueError(f"{word} is less than {knob.min:g}")
    if knob.max is not None and value > knob.max:
        raise ValueError(f"{word} is more than {knob.max:g}")
    return value


def _whole(text: str) -> int:
    """Parse a whole number: `512`, `4_096`, `16MiB`."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a whole number is meant, not {text.strip()!r}")
    digits, unit = found.groups()
    value = float(digits.replace("_", "").replace(",", "")) * (_SIZES[unit[0].lower()] if unit else 1)
    if not value.is_integer():
        raise ValueError(f"a whole number is meant, not {text.strip()!r}")
    if abs(value) > _LARGEST:
        raise ValueError(f"{text.strip()} is more than any server counts")
    return int(value)


def _real(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"a number is meant, not {text!r}")
    return value


def _spelling(knob: Knob, spelled: SpelledAs, *, assumed: bool) -> Spelling:
    return Spelling(
        knob=knob.name,
        kind=knob.kind,
        text=spelled.text,
        setting=spelled.setting or _key(spelled.text),
        default=spelled.default,
        choices=spelled.choices,
        note=spelled.note,
        assumed=assumed,
    )


def _spelled(knob: Knob) -> Iterator[str]:
    """Yield the settings keys of a knob, newest first."""
    for spelled in reversed(knob.spellings):
        yield spelled.setting or _key(spelled.text)
        yield _key(spelled.text)


def _key(text: str) -> str:
    return text if not text.startswith("-") else text.lstrip("-").replace("-", "_")


def _plain(text: str) -> str:
    return text.strip().lstrip("-").replace("-", "_").lower()
