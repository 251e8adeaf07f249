"""Reads the tables of a data file, each with its line: an error in data is one line that names the place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tuner.errors import CatalogError

_Table = TypeVar("_Table", bound=Struct)


class Document(Struct, frozen=True):
    """A data file, taken apart."""

    path: Path
    tables: dict[str, list[tuple[int, Any]]]
    """Line and content of each `[[name]]` table, by name."""
    values: dict[str, Any]
    """What stands outside of tables."""

    def read(self, name: str, kind: type[_Table]) -> list[tuple[int, _Table]]:
        """The tables of a name as values.

        Raises:
            CatalogError: With the line of the table that is wrong.
        """
        return [(line, self._convert(line, name, table, kind)) for line, table in self.tables[name]]

    def _convert(self, line: int, name: str, table: Any, kind: type[_Table]) -> _Table:
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            raise CatalogError(self.path, line, f"{name} is wrong ({error})") from error


def read_document(path: Path, *names: str) -> Document:
    """A file with its `[[name]]` tables.

    Raises:
        CatalogError: It cannot be read, or is not TOML.
    """
    try:
        source = path.read_text("utf-8")
        content = tomllib.loads(source)
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(path, None, f"cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise CatalogError(path, int(at[1]) if at else None, f"is not TOML ({error})") from error
    heads: dict[str, list[int]] = {f"[[{name}]]": [] for name in names}
    for number, text in enumerate(source.splitlines(), 1):
        found = heads.get(text.strip())
        if found is not None:
            found.append(number)
    return Document(
        path=path,
        tables={name: list(zip(heads[f"[[{name}]]"], content.get(name, []), strict=True)) for name in names},
        values={name: value for name, value in content.items() if not isinstance(value, list | dict)},
    )
