"""Starts read from the logs of the golden tests."""

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
    """Return the last start in a log below `tests/golden`; places are line numbers."""
    text = (GOLDEN / name).read_text("utf-8", errors="replace")
    return starts_of([(n, clean(line)) for n, line in enumerate(text.splitlines(), 1)], load_engines())[-1]
