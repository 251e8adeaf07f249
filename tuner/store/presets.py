"""Write presets as TOML files, keeping the comments of a file that is there already."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

from tuner.domain.presets import Preset
from tuner.errors import UsageProblem
from tuner.store.toml_files import change_toml, fill

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
    change_toml(path, "preset", lambda document: fill(document, _fields(preset), _item))
    return path


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


def _item(name: str, value: Any) -> Any:
    """Return a field as it is written; a long text stands over several lines."""
    long = isinstance(value, str) and len(value) > _LINE
    return tomlkit.string(value, multiline=True) if long else tomlkit.item(value)
