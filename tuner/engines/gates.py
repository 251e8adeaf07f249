"""Reads `gates.toml`: the ways of an engine to add up a tensor, and the gates before each. Examples are checked."""

from __future__ import annotations

import functools
from pathlib import Path as File
from typing import Any, TypeVar

import msgspec
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
from tuner.engines.catalogue import read_tables
from tuner.errors import CatalogError

CARDS = File(__file__).with_name("gates.toml")
"""GPUs by name, the same for every engine."""
_Table = TypeVar("_Table", bound=Struct)


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
    return GateRules(
        paths=tuple(_path(entry) for entry in read_paths(file)),
        variables=tuple(_read(file, "variable", VariableRule)),
        overwrites=tuple(_read(file, "overwrite", OverwriteRule)),
        cards=tuple(_read(CARDS, "card", CardRule)),
    )


def read_paths(file: File) -> list[PathEntry]:
    """The paths of a file with their examples, for tests and tools.

    Raises:
        CatalogError: With the line of the path that is wrong.
    """
    entries: list[PathEntry] = []
    for line, entry in _tables(file, "path", PathEntry):
        if any((entry.id, entry.versions) == (other.id, other.versions) for other in entries):
            raise CatalogError(file, line, f"two paths are called {entry.id} in the same versions")
        if not entry.example:
            raise CatalogError(file, line, f"path {entry.id} has no example", "Add a [[path.example]].")
        entries.append(entry)
    return entries


def _read(file: File, name: str, kind: type[_Table]) -> list[_Table]:
    return [entry for _, entry in _tables(file, name, kind)]


def _tables(file: File, name: str, kind: type[_Table]) -> list[tuple[int, _Table]]:
    found = []
    for line, table in read_tables(file, name):
        found.append((line, _convert(file, line, name, table, kind)))
    return found


def _convert(file: File, line: int, name: str, table: Any, kind: type[_Table]) -> _Table:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise CatalogError(file, line, f"{name} is wrong ({error})") from error


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
