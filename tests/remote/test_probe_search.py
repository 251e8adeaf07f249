"""Searching and scrolling back on the host, beside everything else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.running import RunningProbe, running, toy_plan
from tests.fixtures.proc.tree import ProcTree, toy_server
from tuner.domain import events as e
from tuner.domain.logs import LogHit

KEY = "100:500100"
LINES = [f"[{i:07d}] " + ("Error: number [x" if i % 1000 == 0 else "all is well €") for i in range(150_000)]


@pytest.fixture(scope="module")
def data() -> bytes:
    return ("\n".join(LINES) + "\n").encode()


@pytest.fixture
def probe(tmp_path: Path, data: bytes) -> Iterator[RunningProbe]:
    tree = ProcTree(tmp_path / "root")
    log = tmp_path / "server.log"
    log.write_bytes(data)
    toy_server(tree, log=log)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes)
        yield probe


def search(probe: RunningProbe, pattern: str, ident: int = 1, **options: Any) -> list[LogHit]:
    probe.send(op="search", id=ident, key=KEY, pattern=pattern, **options)
    last = probe.first(e.SearchResult, lambda x: x.id == ident and x.done)
    assert last.error is None
    return [hit for x in probe.of(e.SearchResult) if x.id == ident for hit in x.hits]


def expected(data: bytes, needle: str) -> list[LogHit]:
    offset = 0
    hits = []
    for line in data.split(b"\n"):
        if needle in line.decode():
            hits.append(LogHit(offset, line.decode()))
        offset += len(line) + 1
    return hits[::-1]


def test_newest_first_over_many_blocks(probe: RunningProbe, data: bytes) -> None:
    found = search(probe, "error: NUMBER [x", limit=1000)
    assert found == expected(data, "Error: number [x")
    assert len(found) == 150
    last = next(x for x in probe.of(e.SearchResult) if x.done)
    assert last.scanned_bytes == len(data)


def test_case_counts_when_asked(probe: RunningProbe) -> None:
    assert search(probe, "error", ignore_case=False) == []
    assert len(search(probe, "Error", 2, ignore_case=False)) == 150


def test_a_limit_and_the_next_page(probe: RunningProbe, data: bytes) -> None:
    whole = expected(data, "Error")
    first = search(probe, "Error", limit=10)
    assert first == whole[:10]
    assert search(probe, "Error", 2, limit=10, before=first[-1].offset) == whole[10:20]


def test_expressions(probe: RunningProbe, data: bytes) -> None:
    assert search(probe, r"^\[01\d+000\] ERROR", regex=True) == [
        hit for hit in expected(data, "Error") if hit.text.startswith("[01")
    ]
    assert search(probe, r"\[x$", 2, regex=True, limit=5) == expected(data, "Error")[:5]
    assert search(probe, "well €", 3, limit=3) == expected(data, "well €")[:3]


BAD = {"open": "(", "bare": "*", "empty": "", "huge": "a{99999999999}", "deep": "(" * 5000 + ")" * 5000}


@pytest.mark.parametrize("pattern", BAD.values(), ids=BAD)
def test_a_bad_pattern_is_said(probe: RunningProbe, pattern: str) -> None:
    probe.send(op="search", id=5, key=KEY, pattern=pattern, regex=True)
    assert probe.first(e.SearchResult, lambda x: x.done).error
    assert search(probe, "Error", limit=1)


def test_an_unknown_server_is_said(probe: RunningProbe) -> None:
    probe.send(op="search", id=5, key="1:1", pattern="x")
    assert probe.first(e.SearchResult, lambda x: x.done).error
    probe.send(op="read", id=6, key="1:1", offset=0, length=10)
    assert probe.first(e.ReadResult).error


def test_an_expression_without_end_is_given_up(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "root")
    log = tmp_path / "server.log"
    log.write_bytes(b"a" * 40 + b"!\n")
    toy_server(tree, log=log)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes)
        probe.send(op="search", id=1, key=KEY, pattern="(a+)+$", regex=True)
        began = time.monotonic()
        assert "simpler" in (probe.first(e.SearchResult, lambda x: x.done).error or "")
        assert time.monotonic() - began < 3.0
        probe.settle()
        assert search(probe, "a!", 2)[0].offset == 0


def test_a_search_can_be_cancelled(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "root")
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        out.truncate(2_000_000_000)
        out.seek(0, 2)
        out.write(b"\nneedle\n")
    toy_server(tree, log=log)
    with running(tree.root, toy_plan(tail_bytes=1000)) as probe:
        probe.first(e.LogBytes)
        probe.send(op="search", id=1, key=KEY, pattern="needle")
        assert probe.first(e.SearchResult).hits
        probe.send(op="cancel", id=1)
        last = probe.first(e.SearchResult, lambda x: x.done)
        assert last.scanned_bytes < 2_000_000_000
        # And one that waits behind it is not even begun.
        probe.send(op="search", id=2, key=KEY, pattern="nothing")
        probe.send(op="search", id=3, key=KEY, pattern="nothing")
        probe.send(op="cancel", id=3)
        probe.send(op="cancel", id=2)
        assert probe.first(e.SearchResult, lambda x: x.id == 3 and x.done).scanned_bytes == 0
        before = time.monotonic()
        probe.settle()
        assert time.monotonic() - before < 0.5


def test_lines_are_cut_around_the_hit(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "root")
    log = tmp_path / "server.log"
    log.write_bytes(b"begin " + b"x" * 5_000_000 + b" needle " + b"y" * 5000 + b"\nINFO needle " + b"z" * 5000 + b"\n")
    toy_server(tree, log=log)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogOpened)
        hits = search(probe, "needle")
        assert all(1500 < len(hit.text) < 2100 for hit in hits)
        assert hits[0].text.startswith("INFO needle zzz")
        assert hits[1].text.startswith("*** yyy"), "the first word of a line that was cut may be half a secret"


@pytest.mark.parametrize("regex", [True, False])
def test_a_line_begins_behind_a_hole(tmp_path: Path, regex: bool) -> None:
    tree = ProcTree(tmp_path / "root")
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        out.seek(3_000_000)
        out.write(b"the needle\n")
    toy_server(tree, log=log)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogOpened)
        assert search(probe, "needle", regex=regex) == [LogHit(3_000_000, "the needle")]


def test_a_dead_servers_log_can_still_be_searched(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "root")
    log = tmp_path / "server.log"
    log.write_bytes(b"why it died\n")
    toy_server(tree, log=log, ranks=0)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes)
        tree.remove(100)
        probe.first(e.ServerGone)
        assert search(probe, "why")[0].text == "why it died"
        probe.first(e.HostSample, lambda x: x.mono > probe.events[0].mono + 4)
        assert search(probe, "why", 2)[0].text == "why it died"


def test_reading_back(probe: RunningProbe, data: bytes) -> None:
    probe.send(op="read", id=1, key=KEY, offset=1000, length=5000)
    part = probe.first(e.ReadResult)
    assert (part.id, part.size) == (1, len(data))
    assert 1000 <= part.offset < 1040, "a line that begins before is not shown"
    assert data[part.offset : part.end].decode() == part.data
    assert 0 <= 6000 - part.end < 4
    probe.send(op="read", id=2, key=KEY, offset=0, length=50_000_000)
    assert 1_000_000 < probe.first(e.ReadResult, lambda x: x.id == 2).end <= 1 << 20
    probe.send(op="read", id=3, key=KEY, offset=len(data) + 5, length=10)
    last = probe.first(e.ReadResult, lambda x: x.id == 3)
    assert (last.offset, last.end, last.data) == (len(data), len(data), "")
