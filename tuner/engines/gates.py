"""Read `gates.toml`: an engine's all-reduce implementations and the gates of each."""

from __future__ import annotations

import functools
from pathlib import Path as File

from msgspec import Struct

from tuner.domain.gates import (
    CardRule,
    Closing,
    GateRule,
    GateRules,
    OverwriteRule,
    PathExample,
    PathRule,
    VariableRule,
)
from tuner.engines.tables import read_document
from tuner.errors import CatalogError

CARDS = File(__file__).with_name("gates.toml")
"""Data file of GPU properties by name, shared by all engines."""


class PathEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[path]]` table as written in the file."""

    id: str
    title: str
    versions: str = ""
    takes: str = ""
    listed: str = ""
    platform: str = "cuda"
    gate: tuple[GateRule, ...] = ()
    proven_by: tuple[Closing, ...] = ()
    example: tuple[PathExample, ...] = ()


@functools.cache
def load_gates(file: File) -> GateRules:
    """Load and check the all-reduce rules of an engine.

    Raises:
        CatalogError: A table is invalid; the error names its line.
    """
    own, cards = read_document(file, "variable", "overwrite"), read_document(CARDS, "card")
    return GateRules(
        paths=tuple(_path(entry) for entry in read_paths(file)),
        variables=tuple(rule for _, rule in own.read("variable", VariableRule)),
        overwrites=tuple(rule for _, rule in own.read("overwrite", OverwriteRule)),
        cards=tuple(rule for _, rule in cards.read("card", CardRule)),
    )


def read_paths(file: File) -> list[PathEntry]:
    """Load and check the paths of a file with their examples.

    Raises:
        CatalogError: A path is invalid or has no example; the error names its line.
    """
    entries: list[PathEntry] = []
    for line, entry in read_document(file, "path").read("path", PathEntry):
        if any((entry.id, entry.versions) == (other.id, other.versions) for other in entries):
            raise CatalogError(file, line, f"two paths are called {entry.id} in the same versions")
        if not entry.example:
            raise CatalogError(file, line, f"path {entry.id} has no example", "Add a [[path.example]].")
        entries.append(entry)
    return entries


def _path(entry: PathEntry) -> PathRule:
    return PathRule(
        id=entry.id,
        title=entry.title,
        versions=entry.versions,
        takes=entry.takes,
        listed=entry.listed,
        platform=entry.platform,
        gates=entry.gate,
        proven_by=entry.proven_by,
    )
