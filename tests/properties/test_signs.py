"""Whatever a message holds, looking for signs neither raises nor takes long, and says nothing that is no value."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuner.engines
from tuner.core.engine import Engine
from tuner.engines import load_engines
from tuner.engines.signs import COMMON, KINDS, read_entries

ENGINES = list(load_engines().values())
FOLDER = Path(tuner.engines.__file__).parent
LINES = sorted(
    {
        example.line
        for path in (COMMON, *(FOLDER / engine.name / "signs.toml" for engine in ENGINES))
        for _, entry, _ in read_entries(path)
        for example in entry.example
    }
)
MUTATED = st.builds(
    lambda line, at, what, cut: line[:at] + what + line[at + cut :],
    st.sampled_from(LINES), st.integers(0, 300), st.text(max_size=20), st.integers(0, 60),
)  # fmt: skip
JOINED = st.lists(st.sampled_from(LINES), min_size=2, max_size=4).map("\n".join)
TEXT = st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode("utf-8", "replace")) | MUTATED | JOINED


@given(st.sampled_from(ENGINES), TEXT, st.booleans())
def test_no_message_raises(engine: Engine, message: str, prefixed: bool) -> None:
    for sign in engine.signs(message, prefixed=prefixed):
        assert sign.kind in KINDS
        assert len(sign.text) <= 2000
        for value in sign.fields.values():
            assert isinstance(value, str | int | float | bool | list)
            assert not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_long_messages_take_no_longer_than_they_are_long(engine: Engine) -> None:
    """Repeats of what patterns begin with must not make them try every end: a search would take minutes."""
    for line in LINES[::2]:
        for message in (line[:200] * 100, "A" * 9000 + line + " x" * 2000, ("x" * 50 + " ") * 150 + line):
            began = time.process_time()
            engine.signs(message, prefixed=False)
            assert time.process_time() - began < 0.5, message[:80]
