"""Judge the values of a change by the known hazards: alone, beside each other, and on the host they are meant for.

What is not known (the base a preset is laid over, the host) decides nothing: a value that can hang or corrupt is
refused until it is ruled out, one that can only end a start or do nothing is noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from tuner.core.knobs import OFF_WORDS, ON_WORDS, KnobTable, describes
from tuner.core.versions import in_range, parse_version
from tuner.domain.gates import Hardware
from tuner.domain.knobs import Harm, Hazard, Knob, KnobType, Where

_GRAVE = (Harm.HANG, Harm.CORRUPT)
"""What refuses a value unless the host or the other knobs rule it out."""
_CERTAIN = (Harm.CRASH, Harm.CONFLICT)
"""What refuses a value only where host and other knobs are known to bring it about."""


class Danger(Struct, frozen=True, kw_only=True):
    """A hazard that a value meets."""

    knob: str
    value: Any
    hazard: Hazard
    refuses: bool
    """True: the value must not be used as things are known; False: worth a note."""
    sure: bool = True
    """False: whether the host or the other knobs bring it about is not known."""

    @property
    def words(self) -> str:
        """What it does and why, one line without full stop."""
        doing = "" if self.hazard.outcome is Harm.CONFLICT else f" {self.hazard.outcome.words}"
        if not self.sure and self.hazard.outcome is Harm.IGNORED:
            doing = " may have no effect"
        return f"{self.knob}={shown(self.value)}{doing}: {self.hazard.why}"


def dangers(
    values: Mapping[str, Any],
    table: KnobTable,
    version: str | None,
    *,
    base: Mapping[str, Any] | None = None,
    hardware: Hardware | None = None,
) -> Iterator[Danger]:
    """Yield the hazards of some values.

    Args:
        values: Canonical knob name to the value that is to be set; None leaves it to the engine.
        table: The knobs of the engine.
        version: Version of the engine; None: the newest.
        base: All other values of the server, by canonical name; what is missing there has the engine's default. None:
            they are not known.
        hardware: The GPUs of the host; None: not known.
    """
    at = parse_version(version) or parse_version(table.newest)
    seen = _Seen(values, table, version, base)
    for name, value in values.items():
        knob = table.get(name)
        if knob is None or value is None:
            continue
        for hazard in knob.hazards:
            if at is not None and hazard.versions and not in_range(at, hazard.versions):
                continue
            if not (describes(hazard, value) or _beyond(hazard, value, seen)):
                continue
            given = seen.given(hazard.given)
            holds = _all((given, _on(hazard.where, hardware or Hardware())))
            if holds is False or (given is None and hazard.outcome not in (*_GRAVE, Harm.CRASH)):
                continue
            spelling = table.spelling(name, version)
            own = spelling is not None and spelling.default == value
            refuses = not own and (hazard.outcome in _GRAVE or (holds is True and hazard.outcome in _CERTAIN))
            yield Danger(knob=name, value=value, hazard=hazard, refuses=refuses, sure=holds is True)


def shown(value: Any) -> str:
    """Return a value as a preset file writes it, without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(each) for each in value)
    return str(value)


class _Seen:
    """The values that are known: those of the change, then those of the base."""

    def __init__(
        self, values: Mapping[str, Any], table: KnobTable, version: str | None, base: Mapping[str, Any] | None
    ) -> None:
        self._values = values
        self._table = table
        self._version = version
        self._base = base

    def value(self, name: str) -> tuple[bool, Any]:
        """Return whether the value of a name is known, and the value; None: left to the engine."""
        named = self._table.named(name)
        if named is None:
            return True, None
        own = named.knob.name
        if own in self._values:
            value = self._values[own]
        elif self._base is not None:
            value = self._base.get(own)
        else:
            return False, None
        if value is None:
            spelling = self._table.spelling(own, self._version)
            value = None if spelling is None else spelling.default
        return True, named.turned(_typed(named.knob, value))

    def given(self, wanted: Mapping[str, Any]) -> bool | None:
        """Return whether other knobs have the wanted values; None: not known."""
        return _all(self._has(name, value) for name, value in wanted.items())

    def _has(self, name: str, wanted: Any) -> bool | None:
        known, value = self.value(name)
        if not known:
            return None
        if wanted == "*":
            return value is not None and value is not False
        return str(value).lower() == str(wanted).lower()


def _typed(knob: Knob, value: Any) -> Any:
    word = str(value).strip().lower()
    if knob.type is KnobType.BOOL and word in ON_WORDS | OFF_WORDS:
        return word in ON_WORDS
    return value


def _beyond(hazard: Hazard, value: Any, seen: _Seen) -> bool:
    """Return whether a number is above or below that of another knob, as the hazard says."""
    for name, sign in ((hazard.above, 1), (hazard.below, -1)):
        if name:
            _, other = seen.value(name)
            try:
                if (float(value) - float(other)) * sign > 0:
                    return True
            except (TypeError, ValueError):
                continue
    return False


def _on(where: Where, hardware: Hardware) -> bool | None:
    """Return whether a host is one on which it does harm; None: not known."""
    tests: list[bool | None] = []
    if where.iommu is not None:
        tests.append(None if hardware.iommu is None else hardware.iommu is where.iommu)
    if where.nvlink is not None:
        tests.append(None if hardware.full_nvlink is None else hardware.full_nvlink is where.nvlink)
    if where.compute:
        tests.append(None if not hardware.capability else _is_one(hardware.capability, where.compute))
    if where.compute_not:
        tests.append(None if not hardware.capability else not _is_one(hardware.capability, where.compute_not))
    return _all(tests)


def _is_one(capability: str, of: tuple[str, ...]) -> bool:
    return capability in of or capability.partition(".")[0] in of


def _all(tests: Iterable[bool | None]) -> bool | None:
    """Return False if any test is False, None if any is not known, else True."""
    results = list(tests)
    if False in results:
        return False
    return None if None in results else True
