"""Read the user's settings from a small TOML file, which gputuner never writes; errors in it are tolerated.

```toml
theme = "textual-dark"
ascii = false

[keymap]
"logs.search" = "ctrl+f"
```

Which preset has which number key on a host is in a file of its own, `preset-keys.toml`, which gputuner does write:

```toml
"root@gpu-box-1" = ["nccl-two-channels", "fraction-high"]
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from msgspec import Struct

from tuner.paths import preset_keys_file
from tuner.store.toml_files import change_toml


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
    except (ValueError, RecursionError) as error:
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


def preset_order(host: str, path: Path | None = None) -> list[str]:
    """Return the ids of the presets of a host in the order of their number keys; empty: the operator has not set one.

    Args:
        host: The host as the operator names it.
        path: The file; None: the user's own. One that is missing or broken counts as empty.
    """
    try:
        kept = tomllib.loads((path or preset_keys_file()).read_text(encoding="utf-8")).get(host, [])
    except (OSError, ValueError, RecursionError):
        return []
    return [each for each in kept if isinstance(each, str)] if isinstance(kept, list) else []


def keep_preset_order(host: str, ids: Sequence[str], path: Path | None = None) -> None:
    """Remember the order of the number keys of a host.

    Args:
        host: The host as the operator names it.
        ids: Ids of presets, that of key 1 first; empty: forget the order.
        path: The file; None: the user's own.

    Raises:
        UsageProblem: The file cannot be written, or somebody edited it and it is no TOML any more.
    """

    def change(document: tomlkit.TOMLDocument) -> None:
        document.pop(host, None)
        if ids:
            document[host] = list(ids)

    change_toml(path or preset_keys_file(), "order of the preset keys", change, way_out="Mend or remove it")
