"""The user's settings: a small TOML file, read tolerantly and never written by us.

```toml
theme = "textual-dark"
ascii = false

[keymap]
"logs.search" = "ctrl+f"
```
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be set. A setting that is wrong keeps its default."""

    theme: str | None = None
    """Name of a theme; None: the app's own."""
    ascii: bool = False
    """Draw without box characters and glyphs."""
    keymap: dict[str, str] = {}
    """Keys by id of the binding."""
    problems: tuple[str, ...] = ()
    """What was wrong in the file, one line each, for the screen."""


def load(path: Path) -> Settings:
    """The settings in a file; defaults where there is none. Never raises for what stands in it."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        return Settings(problems=(f"{path}: {error.strerror}",))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return Settings(problems=(f"{path}: {error}",))
    good: dict[str, Any] = {}
    problems: list[str] = []
    known = {field.name: field for field in msgspec.structs.fields(Settings) if field.name != "problems"}
    for name, value in raw.items():
        if name not in known:
            problems.append(f"{path}: there is no setting {name}; there are {', '.join(known)}")
            continue
        try:
            good[name] = msgspec.convert(value, known[name].type)
        except msgspec.ValidationError as error:
            problems.append(f"{path}: {name}: {error}")
    return Settings(**good, problems=tuple(problems))
