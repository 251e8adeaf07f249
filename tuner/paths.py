"""Paths of gputuner's own files; other modules ask here.

GPUTUNER_HOME puts all of the user's files below one folder: for tests, and for a machine whose home is read-only.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_APP = "gputuner"
_PACKAGE = Path(__file__).parent


def data_dir() -> Path:
    """Return the folder of data that is worth a backup: the history of starts."""
    return _below_home("data") or platformdirs.user_data_path(_APP)


def state_dir() -> Path:
    """Return the folder of run-time state: where the demo runs."""
    return _below_home("state") or platformdirs.user_state_path(_APP)


def cache_dir() -> Path:
    """Return the folder of what can be had again: help texts of installed engines."""
    return _below_home("cache") or platformdirs.user_cache_path(_APP)


def config_dir() -> Path:
    """Return the folder of files that the user writes."""
    return _below_home("config") or platformdirs.user_config_path(_APP)


def history_file() -> Path:
    """Return the path of the history of starts, an SQLite file."""
    return data_dir() / "history.sqlite3"


def settings_file() -> Path:
    """Return the path of the user's settings."""
    return config_dir() / "settings.toml"


def preset_keys_file() -> Path:
    """Return the path of the order of the preset keys per host, which gputuner writes."""
    return config_dir() / "preset-keys.toml"


def recipes_dir() -> Path:
    """Return the folder of the user's recipes."""
    return config_dir() / "recipes"


def presets_dir() -> Path:
    """Return the folder of bundled presets: in an installed package, or beside it in a clone."""
    installed = _PACKAGE / "_presets"
    return installed if installed.is_dir() else _PACKAGE.parent / "presets"


def _below_home(name: str) -> Path | None:
    home = os.environ.get("GPUTUNER_HOME")
    return Path(home).expanduser() / name if home else None
