"""Whatever comes in whatever order, the fold answers with a state, never with an exception."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plain_engine import PlainEngine
from tuner.core import logtext
from tuner.core import series as s
from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.gpu import GpuInfo, GpuProcess, GpuSample, ProcessInfo
from tuner.domain.link import LinkPhase
from tuner.domain.server import LogSource, Member, SeriesPoint, ServerIdentity

ENGINES = {"plain": PlainEngine()}
keys = st.sampled_from(["1:1", "2:2", "3:3"])
monos = st.floats(0, 1e6)
texts = st.text(max_size=200) | st.sampled_from(
    ["@1 !args\n", "@9 TP0 !weights used_gib=3\n", "@9 TP1 !error summary=x\n", "@12 !ready\n", "@3 !died\n", "a\rb"]
)


@st.composite
def identities(draw: st.DrawFn) -> ServerIdentity:
    tags = draw(st.lists(st.sampled_from(["TP0", "TP1", "TP2"]), unique=True))
    return ServerIdentity(
        key=draw(keys),
        engine=draw(st.sampled_from(["plain", "novel"])),
        pid=1,
        start_ticks=1,
        started_at=draw(st.none() | st.floats(0, 1e9)),
        port=draw(st.none() | st.just(1)),
        ports=draw(st.sampled_from([(), (1,), (2,)])),
        members=tuple(Member(pid=10 + i, ppid=1, start_ticks=1, title=t) for i, t in enumerate(tags)),
        log=LogSource(kind=draw(st.sampled_from(["file", "docker-json", "none"]))),
    )


def log_bytes(key: str, offset: int, text: str, head: bool, mono: float) -> e.LogBytes:
    return e.LogBytes(key=key, offset=offset, end=offset + len(text), data=text, head=head, mono=mono, seq=1)


events = st.one_of(
    st.builds(e.ServerSeen, server=identities(), mono=monos, seq=st.integers(0, 9)),
    st.builds(log_bytes, keys, st.integers(0, 10**9), texts, st.booleans(), monos),
    st.builds(e.LogOpened, key=keys, reason=st.sampled_from(["start", "resume", "rotated", "vanished", "odd"])),
    st.builds(e.LogGap, key=keys, offset=st.integers(0, 99), end=st.integers(100, 200), reason=st.just("flood")),
    st.builds(e.ServerGone, key=keys, left=st.sampled_from([(), (10,)])),
    st.builds(e.HttpAnswer, key=keys, endpoint=st.just("metrics"), status=st.sampled_from([200, 401, None]),
              series=st.dictionaries(st.sampled_from(["tok_s", "running", "ttft_sum", "ttft_count"]),
                                     st.floats(0, 1e12)), mono=monos),
    st.builds(e.GpuSamples, samples=st.lists(st.builds(GpuSample, st.integers(0, 3))).map(tuple), mono=monos),
    st.builds(e.GpuTable, gpus=st.just((GpuInfo(index=0, uuid="GPU-0", name="x"),))),
    st.builds(e.GpuProcesses, processes=st.lists(
        st.builds(GpuProcess, st.integers(0, 3), st.integers(9, 14), st.none() | st.integers(0, 10**12))).map(tuple),
        infos=st.lists(st.builds(ProcessInfo, pid=st.integers(9, 14))).map(tuple)),
    st.builds(e.OldLog, key=keys, path=st.just("/o"), size=st.just(1), data=texts),
    st.builds(e.LinkChanged, phase=st.sampled_from(list(LinkPhase))),
    st.builds(e.ScanEnded),
    st.builds(e.ProbeHello, protocol=st.just(1), python=st.just("3"), pid=st.just(1), uid=st.just(0),
              hostname=st.just("h"), boot_id=st.sampled_from(["a", "b"]), at=monos, mono=monos, seq=st.just(1)),
)  # fmt: skip


@given(st.lists(events, max_size=40))
def test_no_sequence_of_events_breaks_the_fold(sequence: list[e.AnyEvent]) -> None:
    state = initial("box")
    for event in sequence:
        state, _ = reduce(state, event, ENGINES)
    assert len({server.identity.key for server in state.servers}) == len(state.servers)
    held = [line for server in state.servers for block in server.log.blocks for line in block.lines]
    assert all("\x1b" not in line.text for line in held)


@given(st.lists(events, max_size=20))
def test_events_survive_the_wire(sequence: list[e.AnyEvent]) -> None:
    decoder = msgspec.json.Decoder(e.AnyEvent)
    for event in sequence:
        assert decoder.decode(msgspec.json.encode(event)) == event


@given(st.text(alphabet="ab\n\r é\x00", max_size=80), st.lists(st.integers(0, 80), max_size=4))
def test_cutting_text_anywhere_loses_nothing(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    partial, start, offset = "", 0, 0
    lines: list[str] = []
    for a, b in itertools.pairwise(edges):
        piece = text[a:b]
        end = offset + len(piece.encode())
        more, partial, start = logtext.split(partial, start, piece, offset, end)
        lines += [line for _, line in more]
        offset = end
    whole = text.split("\n")
    # Of a line with returns only what a terminal would still show is kept.
    assert [logtext.segments(line) for line in lines] == [logtext.segments(line) for line in whole[:-1]]
    assert logtext.segments(partial) == logtext.segments(whole[-1])


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(-1e9, 1e9)), max_size=60), st.integers(1, 40))
def test_columns_keep_the_extremes(pairs: list[tuple[float, float]], width: int) -> None:
    points = tuple(SeriesPoint(t, v) for t, v in sorted(pairs))
    found = [c for c in s.columns(points, 0, 1000, width) if c is not None]
    if pairs:
        assert min(c[0] for c in found) == min(v for _, v in pairs)
        assert max(c[1] for c in found) == max(v for _, v in pairs)
