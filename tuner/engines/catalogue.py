"""Read an engine's `logs.toml`; a format without an example is refused, since nothing shows that it matches."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from tuner.core import facts
from tuner.core.formats import CASTS, HEAD, LogFormat
from tuner.engines.tables import read_document
from tuner.errors import CatalogError


class Example(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that a pattern must match, and all fields that must be read from it."""

    line: str
    fields: dict[str, Any] = {}
    version: str = ""


class FormatExample(Example, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that a format must match, and the rank whose line it is."""

    rank: str | None = None


class NearMiss(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A similar line that the pattern may not match."""

    line: str
    why: str = ""


class PatternEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tables `[[format]]` and `[[sign]]` have in common, as written in the file."""

    id: str
    kind: str
    pattern: str
    starts: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    versions: str = ""
    parts: tuple[str, ...] = ()
    set: dict[str, Any] = {}
    types: dict[str, str] = {}
    raw: bool | None = None
    example: tuple[Example, ...] = ()
    near_miss: tuple[NearMiss, ...] = ()


class FormatEntry(PatternEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[format]]` table as written in the file."""

    example: tuple[FormatExample, ...] = ()


def check(path: Path, line: int, what: str, entry: PatternEntry, kinds: Iterable[str]) -> None:
    """Refuse an entry that could never match, or of which nothing shows that it does.

    Raises:
        CatalogError: The entry is refused; the error names its line and, by `what`, its table.
    """
    name = f"{what} {entry.id}"
    if entry.kind not in kinds:
        raise CatalogError(path, line, f"{name} has the unknown kind {entry.kind}")
    if not entry.starts + entry.contains or not all(entry.contains):
        raise CatalogError(path, line, f"{name} names no substring", "Fill `starts` or `contains`.")
    if short := [start for start in entry.starts if len(start) < HEAD]:
        raise CatalogError(path, line, f"{name} starts with less than {HEAD} characters: {short[0]!r}")
    if not entry.example:
        raise CatalogError(path, line, f"{name} has no example", f"Add a [[{what}.example]].")
    if unknown := set(entry.types.values()) - set(CASTS):
        raise CatalogError(path, line, f"{name} has the unknown type {sorted(unknown)[0]}")


def read_formats(path: Path) -> tuple[LogFormat, ...]:
    """Load and check a file of log formats.

    Raises:
        CatalogError: A format is invalid; the error names its line.
    """
    return tuple(log_format for _, log_format in read_entries(path))


def read_entries(path: Path) -> list[tuple[FormatEntry, LogFormat]]:
    """Load and check a file of log formats with their examples, for tests and tools.

    Raises:
        CatalogError: A format is invalid; the error names its line.
    """
    entries = []
    seen: set[str] = set()
    for line, entry in read_document(path, "format").read("format", FormatEntry):
        if entry.id in seen:
            raise CatalogError(path, line, f"two formats are called {entry.id}")
        seen.add(entry.id)
        entries.append((entry, _compile(path, line, entry)))
    return entries


def _compile(path: Path, line: int, entry: FormatEntry) -> LogFormat:
    check(path, line, "format", entry, facts.KINDS)
    try:
        return LogFormat(
            id=entry.id,
            kind=entry.kind,
            pattern=entry.pattern,
            starts=entry.starts,
            contains=entry.contains,
            parts=entry.parts,
            constants=entry.set,
            types=entry.types,
            raw=entry.raw,
        )
    except re.error as error:
        raise CatalogError(path, line, f"format {entry.id} has a bad pattern ({error})") from error
