"""Whatever a log holds, an engine neither raises nor loses any of it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tests.golden.summary import cases, lines
from tuner.core import facts as f
from tuner.core.engine import Engine
from tuner.core.literals import parse_settings
from tuner.domain.logs import Level
from tuner.engines import load_engines

ENGINES = st.sampled_from(list(load_engines().values()))

_REAL = sorted({line for path in cases() for line in list(lines(path))[:60] if 0 < len(line) < 3000})
_WORDS = st.sampled_from(
    ["[2026-02-26 20:01:07 TP0] ", "[2026-02-26 20:01:07] INFO:     ", "(Worker_TP1 pid=3) ",
     "INFO 11-02 09:15:10 [a.py:3] ", "Decode batch, #running-req: ", "server_args=ServerArgs(",
     "non-default args: {", "mem usage=", " GB", "-1", "9" * 400, "KV Cache is allocated. #tokens: ",
     "Capture cuda graph end. ", "Error: ", "'", "{", "(", ")", ",", "=", ": ", "NaN", "0.0.0", "\u2028", "\x00", "é"]
)  # fmt: skip
_BUILT = st.lists(_WORDS, max_size=12).map("".join)
_MUTATED = st.builds(
    lambda line, at, what, cut: line[:at] + what + line[at + cut :],
    st.sampled_from(_REAL), st.integers(0, 200), st.text(max_size=20) | _WORDS, st.integers(0, 40),
)  # fmt: skip
TEXT = st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode("utf-8", "replace")) | _BUILT | _MUTATED


@given(ENGINES, TEXT)
def test_prefix_and_message_make_the_line(engine: Engine, line: str) -> None:
    prefix = engine.prefix(line)
    assert line[: prefix.message_start] + line[prefix.message_start :] == line
    assert 0 <= prefix.message_start <= len(line)
    assert prefix.at is None or math.isfinite(prefix.at)
    assert prefix.rank != ""
    assert prefix.rank is None or all(part[-1].isdigit() for part in prefix.rank.split(" "))


@given(ENGINES, TEXT)
def test_no_line_raises_and_facts_are_of_the_closed_list(engine: Engine, line: str) -> None:
    prefix = engine.prefix(line)
    facts = engine.facts(line, prefix, 11)
    assert isinstance(engine.level(line[prefix.message_start :]), Level)
    assert all(fact.kind in f.KINDS and fact.offset == 11 for fact in facts)
    assert not facts or engine.interesting(line)
    for fact in facts:
        for name, value in fact.fields.items():
            if name.endswith(("_gib", "_s")):
                assert math.isfinite(value)


@given(ENGINES, st.sampled_from(_REAL), st.integers(0, 400))
def test_a_line_torn_anywhere_is_read_without_error(engine: Engine, line: str, at: int) -> None:
    for piece in (line[:at], line[at:]):
        engine.facts(piece, engine.prefix(piece), 0)


@given(st.text(max_size=200) | _BUILT)
def test_settings_are_read_out_of_anything(text: str) -> None:
    assert isinstance(parse_settings(text), dict)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z_]{0,15}", fullmatch=True),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.text(max_size=20)
            | st.floats(allow_nan=False, allow_infinity=False),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=8,
    )
)
def test_settings_survive_both_ways_of_printing_them(settings: dict[str, object]) -> None:
    readable = {name: value for name, value in settings.items() if parse_settings(repr({name: value})) == {name: value}}
    masked = {name: "***" for name, value in settings.items() if name not in readable and value}
    assert set(settings) - set(readable) == set(masked), "only secrets read differently"
    printed = "ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in settings.items()) + ")"
    assert parse_settings(printed) == parse_settings(repr(settings)) == {**settings, **masked}
