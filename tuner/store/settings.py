"""Read the user's settings from a small TOML file, which gputuner never writes; errors in it are tolerated.

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
    """All settings; an invalid one keeps its default."""

    theme: str | None = None
    """Name of a theme; None: the app's default."""
    ascii: bool = False
    """Whether to draw without box characters and glyphs."""
    keymap: dict[str, str] = {}
    """Key by id of the binding."""
    problems: tuple[str, ...] = ()
    """Errors in the file, one line each, for the screen."""


def load(path: Path) -> Settings:
    """Read the settings of a file; defaults if it does not exist. Errors are returned in `problems`, not raised."""
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
