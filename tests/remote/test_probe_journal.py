"""Logs that systemd keeps: followed, searched and read back, though they have no offsets."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.running import END, START, RunningProbe, pythons, running, toy_plan, until
from tests.fixtures.proc.tree import HZ, ProcTree, toy_server
from tuner.core.serverlog import opened, received
from tuner.domain import events as e
from tuner.domain.state import ServerState

KEY = "100:500100"
HIGH = 1 << 39


class Book:
    """A journal, and the journalctl that reads it."""

    def __init__(self, folder: Path, started_at: float) -> None:
        self.path = folder / "book"
        self.entries: list[dict[str, Any]] = []
        self._at = started_at + 1
        tools = folder / "tools"
        tools.mkdir()
        source = Path(__file__).parents[1] / "fixtures/proc/journalctl.py"
        program = tools / "journalctl"
        program.write_text(f"#!{sys.executable} -ISB\n" + source.read_text())
        program.chmod(0o755)
        self.env = {"PATH": f"{tools}:{os.environ['PATH']}", "BOOK": str(self.path)}
        self.write()

    def asked(self) -> list[str]:
        """Arguments of every journalctl so far."""
        return self.path.with_name("asked").read_text().splitlines()

    def add(self, *messages: object, **fields: object) -> Book:
        """More entries; nothing is to be seen of them before `write`."""
        for message in messages:
            self._at += 0.001
            entry = {"i": len(self.entries), "__REALTIME_TIMESTAMP": str(int(self._at * 1e6)), "MESSAGE": message}
            entry |= {"_SYSTEMD_UNIT": "llm.service", "_PID": "100", "_SYSTEMD_INVOCATION_ID": "one"}
            self.entries.append(entry | fields)
        return self

    def write(self, *messages: object, **fields: object) -> None:
        """Add entries and show them all."""
        self.add(*messages, **fields)
        new = self.path.with_name("book.new")
        new.write_text(json.dumps([entry for entry in self.entries if entry]))
        new.rename(self.path)

    def manager(self, message: str, start: str) -> dict[str, object]:
        """Fields of what systemd itself says of the unit."""
        return {"_SYSTEMD_UNIT": "init.scope", "_PID": "1", "UNIT": "llm.service", "INVOCATION_ID": start}


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "root")
    toy_server(tree, log="socket:[5]")
    (tree.proc / "100/cgroup").write_text("0::/system.slice/llm.service\n")
    return tree


@pytest.fixture
def book(tree: ProcTree, tmp_path: Path) -> Book:
    return Book(tmp_path, tree.boot + 500_100 / HZ)


def state(probe: RunningProbe) -> dict[str, Any]:
    """What the laptop would send on its next connect."""
    last = [x for x in probe.of(e.LogBytes) if not x.head][-1]
    path = probe.of(e.LogOpened)[-1].path
    return {KEY: {"path": path, "offset": last.end, "cursor": last.cursor}}


def has(text: str) -> Any:
    return lambda events: "".join(x.data for x in events if isinstance(x, e.LogBytes) and not x.head) == text


def search(probe: RunningProbe, pattern: str, ident: int = 1, **options: Any) -> list[tuple[int, str]]:
    probe.send(op="search", id=ident, key=KEY, pattern=pattern, **options)
    last = probe.first(e.SearchResult, lambda x: x.id == ident and x.done)
    assert last.error is None
    return [(hit.offset, hit.text) for x in probe.of(e.SearchResult) if x.id == ident for hit in x.hits]


def read(probe: RunningProbe, ident: int, offset: int, length: int) -> e.ReadResult:
    probe.send(op="read", id=ident, key=KEY, offset=offset, length=length)
    part = probe.first(e.ReadResult, lambda x: x.id == ident)
    assert part.error is None
    return part


# -- following ------------------------------------------------------------------------------------------------------


def test_the_journal_of_a_unit(tree: ProcTree, book: Book) -> None:
    book.add("another unit's", _SYSTEMD_UNIT="other.service")
    book.write("one", "two", list(b"bin \xff"), ["twice", "given"], None)
    with running(tree.root, toy_plan(), **book.env) as probe:
        assert (probe.server().log.kind, probe.server().log.path) == ("journal", "llm.service")
        probe.wait(has("one\ntwo\nbin \ufffd\ntwice\ngiven\n\n"))
        book.write("three")
        last = probe.first(e.LogBytes, lambda x: "three" in x.data)
        assert (last.offset, last.end, last.cursor) == (27, 33, "s=0;i=6;b=1")
        (child,) = probe.children()
    until(lambda: not Path(f"/proc/{child}").exists())


def test_what_a_start_left_in_the_journal_is_no_news(tree: ProcTree, book: Book) -> None:
    book.write(START, "ready")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has(f"{START}\nready\n"))
        assert probe.first(e.LogOpened).size == len(START) + 7


def test_long_lines_are_whole(tree: ProcTree, book: Book) -> None:
    """Of a message of more than 4 KiB journalctl prints nothing, if not told otherwise; journald cuts at 48 KiB."""
    book.add("args " + "x" * 9000)
    book.write("begins ", "goes on ", _LINE_BREAK="line-max")
    book.write("ends")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("args " + "x" * 9000 + "\nbegins goes on ends\n"))


def test_what_systemd_says_of_the_end_is_part_of_the_log(tree: ProcTree, book: Book) -> None:
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.first(e.LogOpened)
        book.write("working")
        probe.wait(has("working\n"))
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
        text = "llm.service: Main process exited, code=killed, status=9/KILL"
        book.write(text, **book.manager(text, "one"))
        probe.wait(has(f"working\n{text}\n"))


@pytest.mark.parametrize(
    ("cgroup", "fd", "path", "fields"),
    [
        (
            "/user.slice/user-0.slice/user@0.service/app.slice/llm.service",
            "socket:[5]",
            "llm.service of user 0",
            {"_SYSTEMD_USER_UNIT": "llm.service", "_UID": "0"},
        ),
        (f"/machine.slice/libpod-{'cd' * 32}.scope", "pipe:[5]", "container " + "cd" * 6, {"CONTAINER_ID": "cd" * 6}),
    ],
)
def test_user_units_and_containers(
    tree: ProcTree, book: Book, cgroup: str, fd: str, path: str, fields: dict[str, str]
) -> None:
    toy_server(tree, log=fd)
    (tree.proc / "100/cgroup").write_text(f"0::{cgroup}\n")
    mine = {"_SYSTEMD_UNIT": "x", **fields}
    book.add("foreign", _SYSTEMD_UNIT="x", _UID="0")
    book.add("cut ", **mine, CONTAINER_PARTIAL_MESSAGE="true")
    book.write("mine", **mine)
    with running(tree.root, toy_plan(), **book.env) as probe:
        assert probe.server().log.path == path
        probe.wait(has("cut mine\n"))
        resume = state(probe)
        book.write("last", **mine)
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
    with running(tree.root, toy_plan(resume=resume), **book.env) as again:
        again.wait(has("last\n"))
        again.first(e.ServerGone)


def test_a_steady_journal_is_not_held_back(tree: ProcTree, book: Book) -> None:
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.first(e.LogOpened)
        began = time.monotonic()
        while len(probe.of(e.LogBytes)) < 4:
            assert time.monotonic() < began + 5.0
            book.write("line")
            held = time.monotonic() + 0.1
            until(lambda limit=held: time.monotonic() > limit)  # type: ignore[misc]


def test_an_entry_beyond_measure_is_said(tree: ProcTree, book: Book) -> None:
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.first(e.LogOpened)
        book.write("x" * 40_000_000, "after")
        probe.problem("tail-flood")
        probe.wait(has("after\n"))
        assert probe.status("VmHWM") < 60_000


def test_a_journal_that_cannot_be_read_is_said_and_tried_again(tree: ProcTree, book: Book, tmp_path: Path) -> None:
    program = tmp_path / "tools/journalctl"
    text = program.read_text()
    program.write_text("#!/bin/sh\necho No such luck >&2; exit 1\n")
    book.write("at last")
    with running(tree.root, toy_plan(), **book.env) as probe:
        assert "No such luck" in probe.problem("log-denied").detail
        program.write_text(text)
        probe.wait(has("at last\n"))
        probe.problem("log-denied", cleared=True)


def test_a_warning_of_journalctl_costs_no_entry_and_is_no_trouble(tree: ProcTree, book: Book) -> None:
    book.write("one", "two")
    with running(tree.root, toy_plan(), WARN="File /var/log/x.journal is truncated", **book.env) as probe:
        probe.wait(has("one\ntwo\n"))
        book.write("three")
        probe.wait(has("one\ntwo\nthree\n"))
        book.write("four")  # by now each journalctl has warned; its warning may come after the entry that it had
        probe.wait(has("one\ntwo\nthree\nfour\n"))
        probe.problem("log-denied", cleared=True)
        assert "truncated" in probe.problem("log-denied").detail
        told = [problem for problem in probe.of(e.ProblemSeen) if problem.code != "no-gpu"]
        assert {problem.code for problem in told} == {"log-denied"}
        assert told[-1].cleared


def test_of_a_long_backlog_no_more_is_kept_than_is_sent(tree: ProcTree, book: Book) -> None:
    """3 MiB in entries of which each has a cursor and a time of its own: many times the text."""
    used = {}
    for count in (10, 60_000):
        book.write(*(f"{i:06d} " + "x" * 40 for i in range(len(book.entries), count)))
        with running(tree.root, toy_plan(tail_bytes=100_000), **book.env) as probe:
            probe.first(e.LogBytes, lambda x, last=f"{count - 1:06d}": last in x.data)  # type: ignore[misc]
            used[count] = probe.status("VmHWM")
    assert used[60_000] - used[10] < 8_000


def test_start_up_lines_of_a_long_backlog_are_found_wherever_they_are(tree: ProcTree, book: Book) -> None:
    lines = [START, *noise(20_000), "loading 1", "loading 2", *noise(20_000), END, "loading no more", *noise(20_000)]
    book.write(*lines)
    with running(tree.root, toy_plan(tail_bytes=10_000), **book.env) as probe:
        probe.first(e.LogBytes, lambda x: not x.head)
        text = ("\n".join(lines) + "\n").encode()
        heads = [x for x in probe.of(e.LogBytes) if x.head]
        assert [x.data for x in heads] == [f"{START}\n", "loading 1\nloading 2\n", f"{END}\n"]
        assert all(text[x.offset : x.end].decode() == x.data for x in heads)
        assert probe.first(e.LogOpened).size == len(text)


def test_only_what_is_read_of_an_entry_is_asked_for(tree: ProcTree, book: Book) -> None:
    book.write("one", "two")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("one\ntwo\n"))
        assert search(probe, "one") == [(0, "one")]
        for how in ("--follow", "--reverse"):
            call = until(lambda how=how: next((x for x in book.asked() if how in x), None))  # type: ignore[misc]
            assert "--output-fields=MESSAGE," in (call or "")


# -- reconnecting, and the end --------------------------------------------------------------------------------------


def test_a_reconnect_goes_on_exactly_there(tree: ProcTree, book: Book) -> None:
    book.write("one", "two")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("one\ntwo\n"))
        resume = state(probe)
    book.write("three")
    with running(tree.root, toy_plan(resume=resume), **book.env) as again:
        opened = again.first(e.LogOpened)
        assert (opened.reason, opened.offset, opened.kind) == ("resume", 8, "journal")
        again.wait(has("three\n"))
        assert again.of(e.LogGap) == []
        assert search(again, "one") == [(0, "one")], "also what this connection has not seen"


def test_what_the_journal_has_dropped_meanwhile_is_said(tree: ProcTree, book: Book) -> None:
    book.write("one", "two")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("one\ntwo\n"))
        resume = state(probe)
    book.add("three", "four")
    book.entries[:3] = [{}, {}, {}]
    book.write()
    with running(tree.root, toy_plan(resume=resume), **book.env) as again:
        again.wait(has("four\n"))
        (gap,) = again.of(e.LogGap)
        assert (gap.offset, gap.end, gap.reason) == (8, 8, "lost")


def test_the_last_words_of_a_server_that_died_meanwhile(tree: ProcTree, book: Book) -> None:
    book.write("one")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("one\n"))
        resume = state(probe)
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
    text = "llm.service: Failed with result 'oom-kill'"
    book.write("Traceback")
    book.write(text, **book.manager(text, "one"))
    book.write("Started llm.service", **book.manager("", "two"))
    book.write("the next start", _PID="200", _SYSTEMD_INVOCATION_ID="two")
    with running(tree.root, toy_plan(resume=resume), **book.env) as again:
        again.first(e.ScanEnded)
        assert again.log().decode() == f"Traceback\n{text}\n"
        gone = again.first(e.ServerGone)
        assert gone.seq > again.of(e.LogBytes)[-1].seq
        assert again.of(e.LogGap) == []


def test_a_dead_server_whose_place_the_journal_has_dropped(tree: ProcTree, book: Book) -> None:
    book.write("one")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("one\n"))
        resume = state(probe)
    tree.remove(100, 101, 102)
    book.entries[0] = {}
    book.write("whose is this?")
    with running(tree.root, toy_plan(resume=resume), **book.env) as again:
        again.first(e.ServerGone)
        assert [x.reason for x in again.of(e.LogGap)] == ["lost"]
        assert again.of(e.LogBytes) == []


def test_the_next_start_of_a_unit_is_not_taken_for_the_last(tree: ProcTree, book: Book) -> None:
    book.write("one")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("one\n"))
        book.add("last words")
        book.add("Started llm.service", **book.manager("", "two"))
        book.write("the next start", _PID="200", _SYSTEMD_INVOCATION_ID="two")
        probe.wait(has("one\nlast words\n"))
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
        book.write("more of it", _PID="200", _SYSTEMD_INVOCATION_ID="two")
        gone = probe.events[-1].mono
        probe.first(e.HostSample, lambda x: x.mono > gone + 2.5)
        assert probe.log() == b"one\nlast words\n"


def test_what_the_next_start_left_in_the_backlog_is_not_taken_for_the_last(tree: ProcTree, book: Book) -> None:
    """The server died while its journal was read: which start was its own, its own lines tell."""
    book.add("one")
    book.write("Started llm.service", **book.manager("", "two"))
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("one\nStarted llm.service\n"))
        book.write("the next start", _PID="200", _SYSTEMD_INVOCATION_ID="two")
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
        gone = probe.events[-1].mono
        probe.first(e.HostSample, lambda x: x.mono > gone + 2.5)
        assert probe.log() == b"one\nStarted llm.service\n"


# -- searching and reading back -------------------------------------------------------------------------------------


def noise(count: int) -> list[str]:
    return [f"noise {i:06d} " + ("Error €" if i % 1000 == 0 else "is well") for i in range(count)]


def offsets(lines: list[str]) -> dict[str, int]:
    at = 0
    out = {}
    for line in lines:
        out[line] = at
        at += len(line.encode()) + 1
    return out


@pytest.mark.parametrize("python", pythons())
def test_a_journal_is_searched_newest_first(tree: ProcTree, book: Book, python: str) -> None:
    lines = noise(12_000)
    book.add("Error before this start", __REALTIME_TIMESTAMP="1000000")
    book.write(*lines)
    where = offsets(lines)
    whole = [(where[line], line) for line in reversed(lines) if "Error" in line]
    with running(tree.root, toy_plan(tail_bytes=1_000_000), python=python, **book.env) as probe:
        probe.wait(has("\n".join(lines) + "\n"))
        assert search(probe, "error €") == whole
        assert search(probe, "error", 2, ignore_case=False) == []
        assert search(probe, r"00\d000 Error €$", 3, regex=True, limit=4) == whole[2:6]
        assert search(probe, "Error", 4, before=whole[3][0], limit=3) == whole[4:7]
        book.write("Error at last")
        probe.first(e.LogBytes, lambda x: "at last" in x.data)
        assert search(probe, "Error", 5, limit=1) == [(len("\n".join(lines).encode()) + 1, "Error at last")]
        done = [x for x in probe.of(e.SearchResult) if x.id == 1][-1]
        assert done.scanned_bytes == len("\n".join(lines).encode()) + 1


def test_the_end_of_a_long_journal_and_what_lies_before(tree: ProcTree, book: Book) -> None:
    """Only the beginning and the last lines are read; hits between them can be gone to, and both ends be met."""
    lines = [START, *noise(30_000)]
    text = ("\n".join(lines) + "\n").encode()
    book.write(*lines)
    with running(tree.root, toy_plan(tail_bytes=10_000, head_bytes=100_000), **book.env) as probe:
        probe.first(e.LogBytes, lambda x: "029999" in x.data)
        assert [(x.offset, x.data) for x in probe.of(e.LogBytes) if x.head] == [(0, START + "\n")]
        (gap,) = probe.of(e.LogGap)
        assert (gap.offset, gap.end) == (len(START) + 1, len(START) + 1), "nobody knows how much it is"
        tail = next(x for x in probe.of(e.LogBytes) if not x.head)
        assert tail.offset > HIGH
        assert text.endswith(tail.data.encode())
        assert len(tail.data) > 9_000
        # Backwards from the end.
        true = len(text) - tail.end
        hits = search(probe, "Error")
        assert [(at + true, line) for at, line in hits] == [
            (offset, line) for line, offset in reversed(offsets(lines).items()) if "Error" in line
        ]
        for ident, (at, line) in enumerate([hits[1], hits[14], hits[-1]], start=10):
            part = read(probe, ident, max(0, at - 30_000), 60_000)
            assert line + "\n" in part.data
            assert text[part.offset + true : part.end + true].decode() == part.data
        older = read(probe, 20, tail.offset - 50_000, 50_000)
        assert older.end == tail.offset
        read(probe, 21, tail.offset - 400_000, 1000)
        begun = int(book.asked()[-1].split("i=")[1].split(";")[0], 16)
        assert begun < 20_000, "not counted back from the end again"
        assert text[older.offset + true : older.end + true].decode() == older.data
        # Onwards from the beginning, until it meets what is held.
        at = 0
        seen = ""
        for ident in range(30, 60):
            part = read(probe, ident, at, 100_000)
            seen += part.data
            at = part.end
            if at == tail.offset:
                break
            assert at < HIGH
        assert seen.startswith(START)
        assert at == tail.offset
        assert probe.status("VmHWM") < 60_000


def test_a_search_of_a_journal_can_be_cancelled(tree: ProcTree, book: Book, tmp_path: Path) -> None:
    book.write("one")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.first(e.LogOpened)
        book.write("two")
        probe.wait(has("one\ntwo\n"))
        (followed,) = until(lambda: len(probe.children()) == 1 and probe.children())
        (tmp_path / "tools/journalctl").write_text("#!/bin/sh\nexec sleep 1000\n")
        probe.send(op="search", id=1, key=KEY, pattern="one")
        (child,) = until(lambda: set(probe.children()) - {followed})
        probe.send(op="cancel", id=1)
        assert probe.first(e.SearchResult, lambda x: x.done).hits == ()
        until(lambda: not Path(f"/proc/{child}").exists())


def test_a_dead_servers_journal_can_still_be_searched(tree: ProcTree, book: Book) -> None:
    book.write("why it died")
    with running(tree.root, toy_plan(), **book.env) as probe:
        probe.wait(has("why it died\n"))
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
        assert search(probe, "why") == [(0, "why it died")]


def test_the_laptop_shows_no_size_that_nobody_knows(tree: ProcTree, book: Book) -> None:
    book.write(START, *noise(20_000), END)
    with running(tree.root, toy_plan(tail_bytes=10_000, head_bytes=100_000), **book.env) as probe:
        probe.first(e.LogBytes, lambda x: END in x.data)
        server = opened(ServerState(identity=probe.server()), probe.first(e.LogOpened))
        server = received(server, probe.of(e.LogBytes)[-1], None, live=True)
        assert server.log.size is None
