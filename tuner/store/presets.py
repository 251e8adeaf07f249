"""Write presets as TOML files, keeping the comments of a file that is there already."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError

from tuner.domain.presets import Preset
from tuner.errors import UsageProblem
from tuner.store.private import make_folder, opener

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINE = 110
"""Characters from which a text is written over several lines."""


def save_preset(preset: Preset, folder: Path) -> Path:
    """Write a preset to `folder/ID.toml`, at once or not at all, and return the path. A file of that name is replaced.

    Raises:
        UsageProblem: The id is no file name, or the file cannot be written, or is there and is no TOML.
    """
    if not _ID.fullmatch(preset.id):
        raise UsageProblem(
            "A preset is called by letters, digits, dots, dashes and underscores", repr(preset.id), "Take another name"
        )
    path = folder / f"{preset.id}.toml"
    try:
        make_folder(folder)
        document = tomlkit.parse(path.read_text("utf-8")) if path.exists() else tomlkit.document()
        _fill(document, preset)
        write_toml(document, path)
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageProblem("The preset cannot be written", f"{path}: {reason}") from error
    except TOMLKitError as error:
        raise UsageProblem(
            "The preset's file is no TOML", f"{path}: {error}", "Mend it, or take another name"
        ) from error
    return path


def write_toml(document: tomlkit.TOMLDocument, path: Path) -> None:
    """Replace a file by a document: whoever reads meanwhile sees the old or the new one, never a part.

    Raises:
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8", opener=opener) as file:
            file.write(tomlkit.dumps(document))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _fill(document: tomlkit.TOMLDocument, preset: Preset) -> None:
    """Give a document the fields of a preset; those that are empty are taken out."""
    for name, value in _fields(preset).items():
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
            document[name] = tomlkit.string(value, multiline=True) if _is_long(value) else tomlkit.item(value)


def _fields(preset: Preset) -> dict[str, Any]:
    """Return the fields in the order in which they are written: tables last, as TOML wants it."""
    needs = {name: value for name, value in msgspec.to_builtins(preset.requires).items() if value}
    return {
        "title": preset.title,
        "engine": preset.engine,
        "why": preset.why,
        "extends": list(preset.extends),
        "unset": list(preset.unset),
        "requires": needs,
        "args": dict(preset.args),
        "env": dict(preset.env),
        "flags": dict(preset.flags),
        "expect": [msgspec.to_builtins(each) for each in preset.expect],
    }


def _is_long(value: object) -> bool:
    return isinstance(value, str) and len(value) > _LINE
