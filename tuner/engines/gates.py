"""Reads `gates.toml`: the ways of an engine to add up a tensor, and the gates before each. Examples are checked."""

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
"""GPUs by name, the same for every engine."""


class PathEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[path]]` as written."""

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
    """The rules of an engine.

    Raises:
        CatalogError: With the line of the table that is wrong.
    """
    own, cards = read_document(file, "variable", "overwrite"), read_document(CARDS, "card")
    return GateRules(
        paths=tuple(_path(entry) for entry in read_paths(file)),
        variables=tuple(rule for _, rule in own.read("variable", VariableRule)),
        overwrites=tuple(rule for _, rule in own.read("overwrite", OverwriteRule)),
        cards=tuple(rule for _, rule in cards.read("card", CardRule)),
    )


def read_paths(file: File) -> list[PathEntry]:
    """The paths of a file with their examples, for tests and tools.

    Raises:
        CatalogError: With the line of the path that is wrong.
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
