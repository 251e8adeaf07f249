"""Whatever bytes a log is made of, reading it neither raises nor loses a line that may matter."""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.core import logtext, redact, wrapping
from tuner.core.sift import Routine
from tuner.engines import load_engines
from tuner.errors import UsageProblem
from tuner.store import logbytes, sifting
from tuner.store.logfiles import read

ROUTINES = [engine.routine() for engine in load_engines().values()]
ROUTINE = Routine(ROUTINES)

_ROUTINE = st.builds(
    "[2026-02-26 20:05:{:02} TP{}] Decode batch, #running-req: {}, token usage: 0.0{}, #queue-req: 0".format,
    *[st.integers(0, 59), *[st.integers(0, 9)] * 3],
) | st.builds(
    'INFO:     10.0.0.{}:40112 - "GET /metrics HTTP/1.1" {} OK'.format, st.integers(1, 99), st.integers(200, 204)
)
_OTHER = st.sampled_from(
    ["Traceback (most recent call last):", "", "\r", "é", "[2026-02-26 20:07:00 TP5] Scheduler hit an exception:",
     "terminate called", "Loading: 90%|#| 8/9 [00:08<00:01, 1.1s/it]", '{"log": "x\\n"}', "x" * 300, "x" * 3000]
)  # fmt: skip
_LINE = _ROUTINE | _OTHER | st.text(max_size=40)
_TORN = st.builds(lambda a, b, at: a[:at] + b + a[at:], _ROUTINE, _LINE, st.integers(0, 120))
_TEXT = st.lists(st.lists(_ROUTINE, max_size=30) | st.lists(_LINE | _TORN, max_size=4)).map(
    lambda parts: [line.encode("utf-8", "replace") for part in parts for line in part]
)
_BYTES = st.lists(st.binary(max_size=60), max_size=60)
LINES = _TEXT | _BYTES | st.tuples(_TEXT, _BYTES, _TEXT).map(lambda parts: [line for part in parts for line in part])
ENDS = st.sampled_from([b"\n", b"\r\n"])


@contextmanager
def _file(data: bytes) -> Iterator[Path]:
    """A file with these bytes, and pieces and blocks so small that they are cut in all places."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(sifting, "PIECE", 700))
        stack.enter_context(patch.object(logbytes, "BLOCK", 256))
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "a.log"
        path.write_bytes(data)
        yield path


def _slowly(data: bytes) -> tuple[int, list[tuple[int, str]]]:
    """Number of lines, and those that may matter, read in the obvious way."""
    raw = data.replace(b"\0", b"").split(b"\n")
    if not raw[-1]:
        raw.pop()
    found = []
    for at, line in enumerate(raw, 1):
        texts = [logtext.clean(part) for part in logtext.segments(line.decode("utf-8", "replace"))]
        if not all(ROUTINE(text) for text in texts):
            found.extend((at, redact.mask(text)) for text in texts)
    return len(raw), found


@given(LINES, ENDS)
def test_every_line_that_may_matter_comes_with_its_number(lines: list[bytes], end: bytes) -> None:
    data = end.join(lines)
    with _file(data) as path:
        try:
            log = read([path], ROUTINES)
        except UsageProblem:
            assert (
                data[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7", b"PK", b"\x7fE", b"\x28\xb5", b"LP")
                or b"ustar" in data
                or (sum(byte < 32 or byte > 126 for byte in data) * 5 >= len(data.replace(b"\0", b"")))
            )
            return
        texts = list(log)
    total, expected = _slowly(data)
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return
    assert log.left_out == 0
    assert log.lines_total == total
    assert all(a <= b for (a, _), (b, _) in itertools.pairwise(texts))
    wrapped = wrapping.find(data.decode("utf-8", "replace").split("\n")).names
    if not wrapped:
        missing = set(expected) - set(texts)
        assert not missing
        assert {at for at, _ in texts} <= set(range(1, total + 1))


@given(LINES)
def test_a_stream_tells_what_a_file_tells(lines: list[bytes]) -> None:
    data = b"\n".join(lines)
    with _file(data) as path:
        try:
            file = read([path], ROUTINES)
        except UsageProblem:
            return
        stream = read(["-"], ROUTINES, stdin=io.BytesIO(data))
    assert (stream.lines_total, stream.left_out) == (file.lines_total, file.left_out)
    assert list(stream) == list(file)


@settings(max_examples=15, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=3))
def test_one_process_and_two_tell_the_same(logs: list[list[bytes]]) -> None:
    with ExitStack() as stack:
        paths = [stack.enter_context(_file(b"\n".join(lines))) for lines in logs]
        try:
            one = read(paths, ROUTINES, processes=1)
        except UsageProblem:
            return
        two = read(paths, ROUTINES, processes=2)
    assert list(one) == list(two)
    assert one.lines_total == two.lines_total
    assert [one.locate(at) for at, _ in one] == [two.locate(at) for at, _ in two]


@given(st.text(max_size=400) | st.binary(max_size=400).map(lambda data: data.decode("utf-8", "replace")))
def test_no_text_is_too_odd_to_unwrap(text: str) -> None:
    for name in wrapping.NAMES:
        inner, whole = wrapping.Wrapping([name]).unwrap(text)
        assert isinstance(inner, str)
        assert isinstance(whole, bool)
    wrapping.find(text.split("\n"))
