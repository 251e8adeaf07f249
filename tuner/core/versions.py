"""Versions of engines as numbers, and what follows about one from the wording of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

Version = tuple[int, ...]
_RELEASE = re.compile(r"v?(\d+(?:\.\d+){0,3})(?:\.?(?:post|rc|dev|a|b)(\d+))?")


class Trait(Struct, frozen=True):
    """A wording that only some versions have."""

    text: str
    """Substring of a line."""
    first: str = ""
    last: str = ""
    """First and last version that was read with it; empty: open."""


def parse_version(version: str | None) -> Version | None:
    """`0.5.9.post1` as (0, 5, 9, 1); None where there is no number."""
    found = _RELEASE.search(version or "")
    if found is None:
        return None
    numbers = tuple(int(part) for part in found[1].split("."))
    return (*numbers, int(found[2])) if found[2] and "post" in found[0] else numbers


def at_least(version: str | None, bound: str) -> bool | None:
    """Whether a version is a bound or later; None when the version is not known. A range counts by its first."""
    own, other = parse_version(version), parse_version(bound)
    if own is None or other is None:
        return None
    width = max(len(own), len(other))
    return own + (0,) * (width - len(own)) >= other + (0,) * (width - len(other))


def since(version: str | None, first: str) -> bool:
    """Whether a version has what came with `first`. One that is not known counts as the newest."""
    return at_least(version, first) is not False


def in_range(version: Version, versions: str) -> bool:
    """Whether a version lies in a range as catalogues write it.

    Args:
        version: As `parse_version` gives it.
        versions: `0.4.6 - 0.5.13`, `0.5.14 -`, `- 0.5.13`, several joined by commas, or empty for all. Bounds count
            with all their post releases.
    """
    return not versions.strip() or any(_within(version, part) for part in versions.split(","))


def _within(version: Version, span: str) -> bool:
    first, dash, last = (part.strip() for part in span.partition("-"))
    low, high = parse_version(first), parse_version(last if dash else first)
    return (low is None or version >= low) and (high is None or version[: len(high)] <= high)


def infer(traits: Iterable[Trait], lines: Sequence[str]) -> str | None:
    """The version, or the range of versions, that the wording of some lines allows.

    Args:
        traits: Of the engine.
        lines: Of its start.

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
