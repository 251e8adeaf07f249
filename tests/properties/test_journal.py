"""A journal gives back what was written, also when it is cut at any byte, and folding it gives the same state."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plain_engine import PlainEngine
from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.link import LinkPhase
from tuner.domain.server import ServerIdentity
from tuner.store.journal import Journal, read_events

ENGINES = {"plain": PlainEngine()}
text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30)
server = ServerIdentity(key="k", engine="plain", pid=1, start_ticks=1, argv=("plain", "m"))
events = st.lists(
    st.one_of(
        st.builds(e.LinkChanged, phase=st.sampled_from(LinkPhase), reason=st.none() | text),
        st.builds(
            e.ProblemSeen,
            code=st.sampled_from(["no-gpu", "http-auth"]),
            subject=text,
            detail=text,
            cleared=st.booleans(),
        ),
        st.builds(e.HostSample, load_1m=st.none() | st.floats(0, 1e9)),
        st.just(e.ServerSeen(server=server)),
        st.builds(e.LogBytes, key=st.just("k"), offset=st.integers(0, 99), end=st.integers(100, 999), data=text),
        st.builds(e.ScanEnded),
        st.builds(e.ServerGone, key=st.just("k")),
    ),
    max_size=12,
)


def written(folder: str, wanted: list[Any]) -> Path:
    path = Path(folder) / "j"
    journal = Journal(path, "box", at=0.0)
    for number, event in enumerate(wanted):
        journal.append(event, number / 7)
    journal.close()
    return path


@settings(deadline=None)
@given(events)
def test_what_is_written_is_read(wanted: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        path = written(folder, wanted)
        assert [event for _, event in read_events(path)] == wanted
        assert path.read_bytes().count(b"\n") == len(wanted) + 1


@settings(deadline=None)
@given(events, st.data())
def test_a_journal_cut_at_any_byte_gives_the_state_up_to_there(wanted: list[Any], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = written(folder, wanted)
        whole = path.read_bytes()
        first = whole.index(b"\n") + 1
        cut = data.draw(st.integers(first, len(whole)))
        path.write_bytes(whole[:cut])
        read = [event for _, event in read_events(path)]
        # The last line counts without its end too, if only that is missing.
        assert len(read) - whole[first:cut].count(b"\n") in (0, 1)
        assert read == wanted[: len(read)]
        assert folded(read) == folded(wanted[: len(read)])


def folded(wanted: list[Any]) -> Any:
    state = initial("box")
    for event in wanted:
        state, _ = reduce(state, event, ENGINES)
    return msgspec.to_builtins(state)  # by value: lines that are kept are compared by identity
