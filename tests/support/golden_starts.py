"""Starts out of the logs that are kept with the tests."""

from __future__ import annotations

import functools
from pathlib import Path

from tuner.core.logtext import clean
from tuner.core.reading import starts_of
from tuner.domain.starts import Start
from tuner.engines import load_engines

GOLDEN = Path(__file__).parents[1] / "golden"


@functools.cache
def last_start(name: str) -> Start:
    """The last start that a log under `tests/golden` tells of; places are line numbers."""
    text = (GOLDEN / name).read_text("utf-8", errors="replace")
    return starts_of([(n, clean(line)) for n, line in enumerate(text.splitlines(), 1)], load_engines())[-1]
