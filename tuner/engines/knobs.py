"""Read the catalogues of knobs: each engine's `knobs.toml` and the shared one; an entry must have an example."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
from msgspec import Struct

from tuner.core.knobs import KnobTable
from tuner.core.versions import parse_version
from tuner.domain.knobs import Effects, Hazard, Knob, KnobKind, KnobType, SpelledAs, Turning
from tuner.engines.tables import read_document
from tuner.errors import CatalogError

SHARED = Path(__file__).with_name("knobs.toml")
"""Data file of environment variables of NCCL, CUDA and PyTorch, which mean the same to every engine."""


class KnobExample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spelling of a knob in one version; an empty text if the version does not have it."""

    version: str
    text: str = ""


class KnobEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[knob]]` table as written in the file."""

    name: str
    kind: KnobKind = KnobKind.FLAG
    type: KnobType
    title: str
    min: float | None = None
    max: float | None = None
    unit: str = ""
    effects: Effects = Effects()
    also: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    opposite: str = ""
    reader: str = ""
    forecast: bool = False
    turning: Turning | None = None
    left_out: str = ""
    smaller: str = ""
    spelled: tuple[SpelledAs, ...]
    hazard: tuple[Hazard, ...] = ()
    example: tuple[KnobExample, ...] = ()


class Catalogue(Struct, frozen=True):
    """The content of one `knobs.toml`."""

    newest: str
    """Newest engine version that the file was checked against; empty if it states none."""
    versions: tuple[str, ...]
    """All engine versions that it was checked against, oldest first."""
    no_prefix: str
    """What before a switch's name switches it off, `--no-`; empty: no such flags."""
    entries: tuple[KnobEntry, ...]


@functools.cache
def load_knobs(path: Path) -> KnobTable:
    """Load and check the knobs of an engine: those of its own file, then the shared ones.

    Raises:
        CatalogError: An entry is invalid; the error names its line.
    """
    own = read_knobs(path)
    knobs = [_knob(entry, own.no_prefix) for entry in own.entries]
    known = {knob.name for knob in knobs}
    knobs += [_knob(entry) for entry in read_knobs(SHARED).entries if entry.name not in known]
    table = KnobTable(knobs, own.newest, own.versions)
    for line, entry in read_document(path, "knob").read("knob", KnobEntry):
        _check_names(path, line, entry, table)
    return table


def read_knobs(path: Path) -> Catalogue:
    """Load and check one file of knobs with its examples.

    Raises:
        CatalogError: An entry is invalid; the error names its line.
    """
    document = read_document(path, "knob")
    entries: list[KnobEntry] = []
    for line, entry in document.read("knob", KnobEntry):
        _check(path, line, entry)
        if any(entry.name == other.name for other in entries):
            raise CatalogError(path, line, f"two knobs are called {entry.name}")
        entries.append(entry)
    values = document.values
    return Catalogue(
        newest=str(values.get("newest", "")),
        versions=tuple(str(version) for version in values.get("versions", ())),
        no_prefix=str(values.get("no_prefix", "")),
        entries=tuple(entries),
    )


def _check(path: Path, line: int, entry: KnobEntry) -> None:
    if not entry.spelled:
        raise CatalogError(path, line, f"knob {entry.name} has no spelling", "Add a [[knob.spelled]].")
    if not entry.example:
        raise CatalogError(path, line, f"knob {entry.name} has no example", "Add a [[knob.example]].")
    bad = [s.text for s in entry.spelled if s.text.startswith("--") != (entry.kind is KnobKind.FLAG)]
    if bad:
        raise CatalogError(path, line, f"knob {entry.name} is spelled {bad[0]}, and is a {entry.kind}")
    for spelled in entry.spelled:
        steps = [mib for mib, _ in spelled.by_memory]
        if steps and (steps[0] != 0 or steps != sorted(set(steps)) or spelled.default is not None):
            raise CatalogError(
                path, line, f"the default of knob {entry.name} by memory does not rise from 0 MiB, or is fixed as well"
            )
    if any(parse_version(example.version) is None for example in entry.example):
        raise CatalogError(path, line, f"an example of knob {entry.name} has no version")
    for hazard in entry.hazard:
        if not (hazard.value is not None or hazard.pattern or hazard.no_power_of_two or hazard.above or hazard.below):
            raise CatalogError(path, line, f"a hazard of knob {entry.name} names no values", "Add value or pattern.")
    table_of_it = KnobTable([_knob(entry)])
    for example in entry.example:
        spelling = table_of_it.spelling(entry.name, example.version)
        found = "" if spelling is None else spelling.text
        if found != example.text:
            raise CatalogError(
                path, line, f"knob {entry.name} is {found or 'absent'} in {example.version}, not as its example says"
            )


def _check_names(path: Path, line: int, entry: KnobEntry, table: KnobTable) -> None:
    """Check that the other knobs which hazards name exist."""
    for hazard in entry.hazard:
        for name in (*hazard.given, hazard.above, hazard.below):
            if name and table.named(name) is None:
                raise CatalogError(path, line, f"a hazard of knob {entry.name} names {name}, which is no knob")


def _without(name: str) -> str:
    """Return what a switch takes away by its name, `disable_radix_cache`; empty for other names."""
    return name.removeprefix("disable_") if name.startswith("disable_") else ""


def _knob(entry: KnobEntry, no_prefix: str = "") -> Knob:
    """Make a knob of an entry.

    Args:
        entry: The entry.
        no_prefix: As `Catalogue.no_prefix`, for switches that state no `off` of their own.
    """
    spelled = entry.spelled
    if no_prefix and entry.kind is KnobKind.FLAG and entry.type is KnobType.BOOL:
        spelled = tuple(
            msgspec.structs.replace(each, off=each.off or no_prefix + each.text.lstrip("-")) for each in spelled
        )
    negates = entry.turning.negates if entry.turning is not None else ""
    return Knob(
        name=entry.name,
        kind=entry.kind,
        type=entry.type,
        title=entry.title,
        min=entry.min,
        max=entry.max,
        unit=entry.unit,
        effects=entry.effects,
        also=entry.also,
        aliases=entry.aliases,
        unlike=entry.unlike,
        opposite=entry.opposite or negates or _without(entry.name),
        reader=entry.reader,
        spellings=spelled,
        hazards=entry.hazard,
        forecast=entry.forecast,
        turning=entry.turning,
        left_out=entry.left_out,
        smaller=entry.smaller,
    )
