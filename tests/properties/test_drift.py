"""Whatever a server has resolved, its files set and a launch asks for: what changes is told without an error."""

from __future__ import annotations

from typing import Any

import msgspec.structs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.test_recipes import server
from tuner.core.drift import changes, drift
from tuner.domain.recipe import Launch
from tuner.domain.server import Member
from tuner.domain.state import ServerState
from tuner.engines import load_engines

ENGINES = load_engines()
FLAGS = {
    engine: sorted({each.text for knob in ENGINES[engine].knobs().values() for each in knob.spellings})
    for engine in ENGINES
}
ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 1 << 2000), st.floats(), st.text(max_size=8), st.lists(st.integers()),
    st.dictionaries(st.text(max_size=3), st.none()),
)  # fmt: skip
WORDS = st.one_of(
    st.text(st.characters(exclude_characters="\0"), max_size=8), st.sampled_from(("32k", "-1", "nan", "on"))
)
ENV = st.dictionaries(
    st.sampled_from(("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_CUMEM_ENABLE", "HOME", "X", "SSH_TTY")), WORDS
)
FILES = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(("NCCL_MAX_NCHANNELS", "X", "")),
            "value": st.one_of(WORDS, st.none()),
            "path": st.sampled_from(("/etc/nccl.conf", "")),
            "line": st.one_of(st.none(), st.integers(0, 9)),
            "how": st.sampled_from(("assign", "default", "unset", "login", "unit", "else")),
        }
    ),
    max_size=3,
)


@st.composite
def command_lines(draw: st.DrawFn, engine: str) -> tuple[str, ...]:
    words = draw(st.lists(st.one_of(st.sampled_from(FLAGS[engine]), WORDS), max_size=10))
    return (engine, "serve", *words)


@st.composite
def servers(draw: st.DrawFn, engine: str) -> ServerState:
    member = Member(pid=9, ppid=1, start_ticks=1, title="t", env=draw(st.one_of(st.none(), ENV)))
    one = server("x", engine, version=draw(st.sampled_from((None, "0.5.4", "0.5.9", "0.32.0", "z"))))
    identity = msgspec.structs.replace(
        one.identity,
        argv=draw(command_lines(engine)),
        env=draw(st.one_of(st.none(), ENV)),
        members=(member,),
    )
    names = [name for name, knob in ENGINES[engine].knobs().items() if not name.isupper()]
    resolved: dict[str, Any] = draw(st.dictionaries(st.sampled_from(names), ANY, max_size=8))
    return msgspec.structs.replace(one, identity=identity, settings=resolved)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, ServerState, Launch, list[dict[str, Any]]]:
    engine = draw(st.sampled_from(sorted(ENGINES)))
    one = draw(servers(engine))
    like = draw(st.sampled_from(("", f"server:{one.identity.key}", "run:x")))
    launch = Launch(argv=draw(command_lines(engine)), env=draw(ENV), unset=tuple(draw(ENV)), like=like)
    return engine, one, launch, draw(FILES)


@settings(deadline=None, max_examples=300)
@given(cases())
def test_it_is_told_in_words(case: tuple[str, ServerState, Launch, list[dict[str, Any]]]) -> None:
    engine, one, launch, files = case
    for other in (one, None):
        found = changes(launch, other, ENGINES[engine], files)
        names = [(each.kind, each.text or each.name) for each in found]
        assert len(names) == len(set(names))
        for each in found:
            assert each.changed or each.drift
            assert (each.source == "") == (other is None)


@settings(deadline=None, max_examples=200)
@given(cases())
def test_a_server_as_it_is_changes_nothing(case: tuple[str, ServerState, Launch, list[dict[str, Any]]]) -> None:
    engine, one, _, files = case
    assert [each for each in drift(one, ENGINES[engine], files) if each.changed] == []
