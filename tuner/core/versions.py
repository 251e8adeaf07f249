"""Versions of engines as numbers, and what follows about one from the wording of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

Version = tuple[int, ...]
_RELEASE = re.compile(r"v?(\d+(?:\.\d+){0,3})(?:\.?(?:post|rc|dev|a|b)(\d+))?")
_PLAIN = re.compile(r"\d+(?:\.\d+){0,3}")


class Trait(Struct, frozen=True):
    """A wording that only some versions have."""

    text: str
    """Substring of a line."""
    first: str = ""
    last: str = ""
    """First and last version that prints it, as far as known; empty: open."""


def parse_version(version: str | None) -> Version | None:
    """Parse a version, `0.5.9.post1` to (0, 5, 9, 1); None if it has no number."""
    found = _RELEASE.search(version or "")
    if found is None:
        return None
    numbers = tuple(int(part) for part in found[1].split("."))
    return (*numbers, int(found[2])) if found[2] and "post" in found[0] else numbers


def at_least(version: str | None, bound: str) -> bool | None:
    """Return whether a version is `bound` or later; None if it is not known. A range counts by its lower end."""
    own, other = parse_version(version), parse_version(bound)
    return None if own is None or other is None else _padded(own, other) >= _padded(other, own)


def since(version: str | None, first: str) -> bool:
    """Return whether a version has what came with `first`. One that is not known counts as the newest."""
    return at_least(version, first) is not False


def in_range(version: Version, versions: str) -> bool:
    """Return whether a version lies in a range as catalogues write it.

    Args:
        version: As `parse_version` gives it.
        versions: `0.4.6 - 0.5.13`, `0.5.14 -`, `- 0.5.13`, several joined by commas, or empty for all. Bounds count
            with all their post releases.
    """
    return not versions.strip() or any(_within(version, part) for part in versions.split(","))


def _within(version: Version, span: str) -> bool:
    first, dash, last = (part.strip() for part in span.partition("-"))
    low, high = parse_version(first), parse_version(last if dash else first)
    after = low is None or _padded(version, low) >= _padded(low, version)
    return after and _up_to(version, high)


def _up_to(version: Version | None, last: Version | None) -> bool:
    """Return whether a version is the bound, one of its post releases, or earlier; True if there is no bound."""
    return version is None or last is None or _padded(version, last)[: len(last)] <= last


def _padded(version: Version, other: Version) -> Version:
    """Return a version padded with zeros to the length of another: `0.10` is `0.10.0`."""
    return version + (0,) * (len(other) - len(version))


def may_be_same(one: str, other: str) -> bool:
    """Return whether two versions can be the same, each as stated by a log or as a range that its wording allows.

    Args:
        one: `0.5.9`, or what `infer` gives: `0.5.3 - 0.5.8`, `>=0.5.10`, `<=0.4.3`.
        other: Of the same form.
    """
    if not (_is_range(one) or _is_range(other)):
        # Candidates and builds of a commit have numbers in common with releases that they differ from.
        one, other = (text.strip().removeprefix("v").partition("+")[0] for text in (one, other))
        own, its = parse_version(one) or (), parse_version(other) or ()
        plain = _PLAIN.fullmatch(one) and _PLAIN.fullmatch(other)
        return one == other or bool(plain and _padded(own, its) == _padded(its, own))
    (low, high), (least, most) = _bounds(one), _bounds(other)
    return _up_to(low, most) and _up_to(least, high)


def _is_range(version: str) -> bool:
    return " - " in version or version.startswith(("<=", ">="))


def _bounds(version: str) -> tuple[Version | None, Version | None]:
    first, dash, last = version.partition(" - ")
    number = parse_version(first)
    if version.startswith("<="):
        return None, number
    if version.startswith(">="):
        return number, None
    return number, parse_version(last) if dash else number


def infer(traits: Iterable[Trait], lines: Sequence[str]) -> str | None:
    """Return the version, or the range of versions, that the wording of some lines allows.

    Args:
        traits: Traits of the engine.
        lines: Lines of the start.

    Returns:
        `0.5.9`, `0.5.3 - 0.5.8`, `>=0.5.10`, `<=0.4.3`; None where nothing narrows it or it contradicts itself.
    """
    low: str | None = None
    high: str | None = None
    for trait in traits:
        if any(trait.text in line for line in lines):
            if trait.first and (low is None or not at_least(low, trait.first)):
                low = trait.first
            if trait.last and (high is None or at_least(high, trait.last)):
                high = trait.last
    if low is not None and high is not None:
        if low == high:
            return low
        return f"{low} - {high}" if at_least(high, low) else None
    if low is not None:
        return f">={low}"
    return f"<={high}" if high is not None else None
