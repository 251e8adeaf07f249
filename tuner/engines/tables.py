"""Read the tables of a TOML data file with their line numbers, so that an error in data names its place."""

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
    """The parsed content of a data file."""

    path: Path
    tables: dict[str, list[tuple[int, Any]]]
    """Line number and content of each `[[name]]` table, by name."""
    values: dict[str, Any]
    """Top-level values outside of tables; lists of plain values are among them."""

    def read(self, name: str, kind: type[_Table]) -> list[tuple[int, _Table]]:
        """Convert all tables of a name to a struct type; return each with its line number.

        Raises:
            CatalogError: A table does not fit the type; the error names its line.
        """
        return [(line, self._convert(line, name, table, kind)) for line, table in self.tables[name]]

    def _convert(self, line: int, name: str, table: Any, kind: type[_Table]) -> _Table:
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError as error:
            raise CatalogError(self.path, line, f"{name} is wrong ({error})") from error


def read_document(path: Path, *names: str) -> Document:
    """Read a file and the line numbers of its `[[name]]` tables.

    Raises:
        CatalogError: The file cannot be read, or is not TOML.
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
        values={name: value for name, value in content.items() if not _nested(value)},
    )


def _nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))
