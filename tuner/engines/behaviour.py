"""Read `behaviour.toml`: properties of an engine that no line of its log states."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from tuner.core.causes import PHASES
from tuner.domain.behaviour import Behaviour
from tuner.errors import CatalogError


@functools.cache
def load_behaviour(path: Path) -> Behaviour:
    """Load and check the behaviour of an engine.

    Raises:
        CatalogError: The file cannot be read, is not TOML, or has an invalid value.
    """
    try:
        behaviour = msgspec.toml.decode(path.read_bytes(), type=Behaviour)
        number = re.compile(behaviour.process_number)
    except (OSError, msgspec.DecodeError, re.error) as error:
        raise CatalogError(path, None, f"cannot be read ({error})") from error
    if behaviour.process_number and number.groups != 1:
        raise CatalogError(path, None, "process_number has not exactly one group")
    unknown = {entry.phase for entry in behaviour.stack} - set(PHASES)
    if unknown:
        raise CatalogError(path, None, f"stack has the unknown phase {sorted(unknown)[0]}")
    return behaviour
