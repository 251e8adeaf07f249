"""Read and change TOML files that people edit: comments stay, and each file is written at once or not at all."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError

from tuner.core.toml_lines import item_line, key_lines
from tuner.errors import CatalogError, UsageProblem
from tuner.store.private import make_folder, opener

_Kind = TypeVar("_Kind")


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file, and what is in it.

    Raises:
        CatalogError: It cannot be read, or is no TOML; with the line.
    """
    try:
        if path.exists() and not path.is_file():
            raise CatalogError(path, None, "cannot be read (it is no file)")
        text = path.read_text("utf-8")
        if text.startswith("\ufeff"):
            out = "Save it as UTF-8 without a byte order mark"
            raise CatalogError(path, 1, "begins with a byte order mark, which TOML does not allow", out)
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else len(text.splitlines())
        raise CatalogError(path, line, f"is not TOML ({error})", "Correct that line") from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a number of thousands of digits
        raise CatalogError(path, None, f"cannot be read ({_reason(error)})") from error


def converted(kind: type[_Kind], path: Path, content: dict[str, Any], text: str) -> _Kind:
    """Return what is in a file as an object.

    Args:
        kind: Class of the object.
        path: The file.
        content: What is in it.
        text: Its text.

    Raises:
        CatalogError: A field does not exist, is missing or of the wrong type; with the line.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        lines = key_lines(text)
        what, _, where = str(error).partition(" - at ")
        place = re.sub(r"^\$\.?|\[\.\.\.\]", "", where.strip("`"))
        key = re.sub(r"\[\d+\]", "", place)
        while key and key not in lines:
            key = key.rpartition(".")[0]
        unknown = re.search(r"unknown field `(\w+)`", what)
        line = (lines.get(f"{key}.{unknown[1]}") if unknown else None) or lines.get(key)
        at = re.search(r"\[(\d+)\]$", place)
        items = content.get(key)
        if at and line and isinstance(items, list) and not isinstance(item := items[int(at[1])], dict):
            line = item_line(text, str(item), line)
        said = what[:1].lower() + what[1:].replace("`", "")
        raise CatalogError(path, line, f"{place}: {said}" if place else said) from error


def change_toml(
    path: Path,
    what: str,
    change: Callable[[tomlkit.TOMLDocument], None],
    *,
    new: Callable[[], tomlkit.TOMLDocument] = tomlkit.document,
    way_out: str = "Mend it, or take another name",
) -> None:
    """Change a file; one that is missing is made, with its folder.

    Whoever reads it meanwhile sees the old or the new one, never a part.

    Args:
        path: The file.
        what: What the file holds, for an error: `preset`.
        change: Changes the document.
        new: Returns the document of a file that is made.
        way_out: What can be done where the file is no TOML.

    Raises:
        UsageProblem: The file cannot be read or written, or is no TOML.
    """
    try:
        make_folder(path.parent)
        document = tomlkit.parse(path.read_text("utf-8")) if path.exists() else new()
        change(document)
        _write(path, tomlkit.dumps(document))
    except TOMLKitError as error:  # before ValueError, of which its errors are
        raise UsageProblem(f"The file of the {what} is no TOML", f"{path}: {error}", way_out) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageProblem(f"The {what} cannot be written", f"{path}: {_reason(error)}") from error


def fill(
    document: tomlkit.TOMLDocument,
    fields: Mapping[str, Any],
    item: Callable[[str, Any], Any] = lambda name, value: tomlkit.item(value),
) -> None:
    """Give a document some fields; those that are empty are taken out, and those that stay equal are not touched.

    Args:
        document: The document.
        fields: Values by name. A table is changed key by key.
        item: Returns how a field that changes is written.
    """
    for name, value in fields.items():
        if not value:
            document.pop(name, None)
        elif isinstance(value, dict) and isinstance(document.get(name), dict):
            table: Any = document[name]
            for gone in [key for key in table if key not in value]:
                del table[gone]
            for key, each in value.items():
                if table.get(key) != each:
                    table[key] = each
        elif document.get(name) != value:
            document[name] = item(name, value)


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8", opener=opener) as file:
            file.write(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number in it has too many digits"
