"""Logs: every byte once, through everything that happens to log files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.running import END, START, RunningProbe, pythons, running, toy_plan, until
from tests.fixtures.proc.tree import ProcTree, toy_server
from tuner.domain import events as e

KEY = "100:500100"


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "root")


@pytest.fixture
def log(tree: ProcTree, tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "server.log"
    path.write_bytes(b"")
    toy_server(tree, log=path)
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


def followed(probe: RunningProbe, after: int = 0) -> list[tuple[int, int, str]]:
    return [(x.offset, x.end, x.data) for x in probe.events[after:] if isinstance(x, e.LogBytes) and not x.head]


def has_all(data: bytes) -> Callable[[list[Any]], bool]:
    """All of it came, in order and without a gap."""

    def fact(events: list[Any]) -> bool:
        parts = [x for x in events if isinstance(x, e.LogBytes) and not x.head]
        return "".join(x.data for x in parts).encode() == data

    return fact


@pytest.mark.parametrize("python", pythons())
def test_a_small_log_is_sent_whole_and_followed(tree: ProcTree, log: Path, python: str) -> None:
    log.write_bytes(b"one\ntwo\n")
    with running(tree.root, toy_plan(), python=python) as probe:
        opened = probe.first(e.LogOpened)
        assert (opened.key, opened.reason, opened.kind, opened.offset, opened.size) == (KEY, "start", "file", 0, 8)
        assert (opened.path, opened.inode) == (str(log), log.stat().st_ino)
        probe.wait(has_all(b"one\ntwo\n"))
        append(log, b"three")
        append(log, b"\nfour\n")
        probe.wait(has_all(b"one\ntwo\nthree\nfour\n"))
        assert probe.of(e.LogGap) == []
        assert not [x for x in probe.of(e.LogBytes) if x.head]


def test_characters_are_never_cut_and_nothing_is_lost(tree: ProcTree, log: Path) -> None:
    text = ("€uro " * 3 + "\0 nul \x1b[31m\r 50%|█████ |\n") * 200
    data = text.encode()
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogOpened)
        chooser = random.Random(1)
        at = 0
        while at < len(data):
            step = chooser.randint(1, 900)
            append(log, data[at : at + step])
            at += step
            if chooser.random() < 0.2:
                probe.settle()
        probe.wait(has_all(data))
        end = 0
        for offset, stop, part in followed(probe):
            assert offset == end
            assert stop - offset == len(part.encode())
            end = stop


def test_bytes_that_are_no_text_keep_their_offsets(tree: ProcTree, log: Path) -> None:
    data = b"ok\n" + bytes(range(256)) + b"\n\xff\xfe\n"
    log.write_bytes(data)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes, lambda x: x.end == len(data))
        assert followed(probe)[0][2].startswith("ok\n\0\x01")
        append(log, b"\xe2\x82")
        append(log, b"\xac\n")
        probe.first(e.LogBytes, lambda x: x.end == len(data) + 4)
        assert "".join(part for _, _, part in followed(probe)).endswith("€\n")


def lines(count: int, text: str = "noise") -> bytes:
    return b"".join(b"%s %09d\n" % (text.encode(), i) for i in range(count))


def test_a_long_log_opens_at_its_end_with_its_start_up_lines(tree: ProcTree, log: Path) -> None:
    head = f"{START} now\n".encode() + lines(50) + b"loading weights\n" + lines(50) + f"{END}\n".encode()
    data = head + b"loading later is no start-up\n" + lines(200_000)
    log.write_bytes(data)
    with running(tree.root, toy_plan()) as probe:
        opened = probe.first(e.LogOpened)
        assert opened.offset > len(data) - 262_144 - 100
        assert data[opened.offset - 1 : opened.offset] == b"\n"
        probe.first(e.LogBytes, lambda x: x.end == len(data))
        pieces = [x for x in probe.of(e.LogBytes) if x.head]
        assert [x.data for x in pieces] == [f"{START} now\n", "loading weights\n", f"{END}\n"]
        assert all(data[x.offset : x.end] == x.data.encode() for x in pieces)
        (gap,) = probe.of(e.LogGap)
        assert (gap.offset, gap.end) == (pieces[-1].end, opened.offset)
        tail = "".join(part for _, _, part in followed(probe)).encode()
        assert tail == data[opened.offset :]
        kinds = [type(x) for x in probe.events if isinstance(x, e.LogOpened | e.LogBytes | e.LogGap)]
        assert kinds[:5] == [e.LogOpened, e.LogBytes, e.LogBytes, e.LogBytes, e.LogGap]


def test_a_reused_log_shows_its_last_start(tree: ProcTree, log: Path) -> None:
    old = f"{START} old\nloading old\n{END}\n".encode() + lines(10_000)
    new = f"{START} new\nloading new\n{END}\n".encode() + lines(100_000)
    log.write_bytes(old + new)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes, lambda x: x.end == len(old + new))
        (piece,) = [x for x in probe.of(e.LogBytes) if x.head]
        assert piece.data == f"{START} new\nloading new\n{END}\n"
        assert piece.offset == len(old)


def test_a_huge_log_opens_at_once(tree: ProcTree, log: Path) -> None:
    with log.open("wb") as out:
        out.write(f"{START}\n{END}\n".encode())
        block = lines(70_000)
        for _ in range(300):
            out.write(block)
    size = log.stat().st_size
    with running(tree.root, toy_plan()) as probe:
        seen = probe.first(e.ServerSeen)
        last = probe.first(e.LogBytes, lambda x: x.end == size)
        assert last.mono - seen.mono < 1.0
        assert probe.status("VmHWM") < 40_000


def test_a_line_without_end_is_opened_in_its_middle(tree: ProcTree, log: Path) -> None:
    log.write_bytes(b"x\n" + "€".encode() * 2_000_000)
    with running(tree.root, toy_plan()) as probe:
        opened = probe.first(e.LogOpened)
        probe.first(e.LogBytes, lambda x: x.end == log.stat().st_size)
        assert (opened.offset - 2) % 3 == 0
        assert set("".join(part for _, _, part in followed(probe))) == {"€"}


@pytest.mark.parametrize("unread", [b"", b"last words\n", b"torn \xe2\x82"])
def test_rotation_finishes_the_old_file_first(tree: ProcTree, log: Path, unread: bytes) -> None:
    log.write_bytes(b"before\n")
    with running(tree.root, toy_plan()) as probe:
        probe.wait(has_all(b"before\n"))
        append(log, unread)
        log.rename(log.with_name("server.log.1"))
        new = log.with_name("new")
        new.write_bytes(b"after\n")
        new.rename(log)
        opened = probe.first(e.LogOpened, lambda x: x.reason == "rotated")
        assert (opened.offset, opened.inode) == (0, log.stat().st_ino)
        probe.wait(has_all(b"before\n" + unread.decode(errors="replace").encode() + b"after\n"))
        assert probe.server(lambda s: s.log.inode == log.stat().st_ino)


def test_a_log_that_was_replaced(tree: ProcTree, log: Path) -> None:
    log.write_bytes(b"before\n")
    with running(tree.root, toy_plan()) as probe:
        probe.wait(has_all(b"before\n"))
        new = log.with_name("new")
        new.write_bytes(b"after\n")
        new.rename(log)
        assert probe.first(e.LogOpened, lambda x: x.reason == "replaced").offset == 0
        probe.wait(has_all(b"before\nafter\n"))


def test_a_log_that_was_truncated(tree: ProcTree, log: Path) -> None:
    log.write_bytes(b"a long line before\n")
    with running(tree.root, toy_plan()) as probe:
        probe.wait(has_all(b"a long line before\n"))
        log.write_bytes(b"")
        opened = probe.first(e.LogOpened, lambda x: x.reason == "truncated")
        assert opened.offset == 0
        append(log, b"after\n")
        probe.wait(has_all(b"a long line before\nafter\n"))


def test_a_hole_is_stepped_over(tree: ProcTree, log: Path) -> None:
    """A writer that does not append goes on where it was after its log was truncated."""
    log.write_bytes(b"x" * 1000)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes, lambda x: x.end == 1000)
        with log.open("r+b") as out:
            out.truncate(0)
            probe.first(e.LogOpened, lambda x: x.reason == "truncated")
            out.seek(50_000_000)
            out.write(b"here again\n")
        gap = probe.first(e.LogGap)
        assert "hole" in gap.reason
        last = probe.first(e.LogBytes, lambda x: x.end == 50_000_011)
        assert last.data.lstrip("\0") == "here again\n"
        assert last.end - last.offset < 10_000


@contextmanager
def stopped(probe: RunningProbe) -> Iterator[None]:
    """Whatever is done meanwhile, the probe sees only its end."""
    os.kill(probe.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(probe.pid, signal.SIGCONT)


@pytest.mark.parametrize("before", [b"a\n", b"short\n", lines(30), lines(3000)], ids=len)
@pytest.mark.parametrize("grown", [0, 1, 100_000])
def test_a_log_that_is_truncated_and_grows_beyond_between_two_looks(
    tree: ProcTree, log: Path, before: bytes, grown: int
) -> None:
    log.write_bytes(before)
    after = b"z" * (len(before) + grown) + b"\n"
    with running(tree.root, toy_plan()) as probe:
        probe.wait(has_all(before))
        with stopped(probe):
            log.write_bytes(after)
        opened = probe.first(e.LogOpened, lambda x: x.reason == "truncated")
        assert opened.offset == 0
        append(log, b"more\n")
        probe.wait(has_all(before + after + b"more\n"))
        assert probe.of(e.LogGap) == []
        state = resume(probe)
    with running(tree.root, toy_plan(resume=state)) as again:
        assert again.first(e.LogOpened).reason == "resume"


def test_a_log_that_only_grows_is_not_taken_for_truncated(tree: ProcTree, log: Path) -> None:
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogOpened)
        for number in range(40):
            append(log, b"\xff\xe2\x82\xac\0\n" * (number * 7))
            probe.settle()
        probe.first(e.LogBytes, lambda x: x.end == log.stat().st_size)
        assert [x.reason for x in probe.of(e.LogOpened)] == ["start"]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("size", [3000, 20_000_000])
def test_the_nuls_before_a_writer_that_does_not_append(tree: ProcTree, log: Path, size: int, sparse: bool) -> None:
    """Truncated and written on where it was, between two looks: no NUL is sent, and what follows is whole."""
    log.write_bytes((b"before\n" * size)[: size - 1] + b"\n")
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes, lambda x: x.end == size)
        with stopped(probe), log.open("r+b") as out:
            out.truncate(0)
            out.seek(size) if sparse else out.write(bytes(size))
            out.write("h€re\n".encode())
        seen = probe.count()
        assert probe.first(e.LogOpened, lambda x: x.reason == "truncated").offset == 0
        gap = probe.first(e.LogGap, lambda x: "hole" in x.reason)
        assert (gap.offset, gap.end) == (0, size)
        probe.first(e.LogBytes, lambda x: x.end == size + 7, after=seen)
        assert [part for _, _, part in followed(probe, seen)] == ["h€re\n"]


def test_a_hole_between_lines_and_one_at_the_end(tree: ProcTree, log: Path) -> None:
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogOpened)
        append(log, b"one\n" + bytes(1_000_000) + b"two\n")
        probe.wait(has_all(b"one\ntwo\n"))
        os.truncate(log, 5_000_000)
        probe.first(e.LogGap, lambda x: x.end == 5_000_000)
        append(log, b"three\n")
        probe.wait(has_all(b"one\ntwo\nthree\n"))
        assert [x.reason for x in probe.of(e.LogOpened)] == ["start"]


def test_a_log_that_begins_with_a_hole_is_opened_behind_it(tree: ProcTree, log: Path) -> None:
    with log.open("wb") as out:
        out.seek(7_000_000)
        out.write(f"{START}\nloading\n{END}\n".encode() + lines(20_000))
    with running(tree.root, toy_plan(tail_bytes=100_000)) as probe:
        probe.first(e.LogBytes, lambda x: x.end == log.stat().st_size)
        (head,) = [x for x in probe.of(e.LogBytes) if x.head]
        assert (head.offset, head.data) == (7_000_000, f"{START}\nloading\n{END}\n")
    with running(tree.root, toy_plan(tail_bytes=1_000_000)) as probe:
        probe.first(e.LogBytes, lambda x: x.end == log.stat().st_size)
        assert probe.log().startswith(START.encode())


def test_a_log_that_vanishes_and_comes_back(tree: ProcTree, log: Path) -> None:
    log.write_bytes(b"before\n")
    with running(tree.root, toy_plan()) as probe:
        probe.wait(has_all(b"before\n"))
        append(log, b"last\n")
        log.unlink()
        problem = probe.problem("log-vanished")
        assert problem.subject == KEY
        assert str(log) in problem.detail
        assert probe.first(e.LogOpened, lambda x: x.reason == "vanished")
        log.write_bytes(b"after\n")
        probe.problem("log-vanished", cleared=True)
        probe.wait(has_all(b"before\nlast\nafter\n"))


def test_a_log_that_may_not_be_read(tree: ProcTree, tmp_path: Path) -> None:
    """A folder in the place of the file stands for one that cannot be opened; root may read everything else."""
    path = tmp_path / "server.log"
    path.symlink_to(path)
    toy_server(tree, log=path)
    with running(tree.root, toy_plan()) as probe:
        assert probe.problem("log-denied").subject == KEY
        assert probe.first(e.LogOpened).reason == "unreadable"
        path.unlink()
        path.write_bytes(b"at last\n")
        probe.problem("log-denied", cleared=True)
        probe.wait(has_all(b"at last\n"))


@pytest.mark.parametrize(
    ("target", "code"),
    [("pipe:[77]", "log-pipe"), ("socket:[78]", "log-pipe"), ("/dev/pts/3", "log-terminal"), ("/dev/null", "log-none")],
)
def test_a_server_without_a_log_says_what_to_do(tree: ProcTree, target: str, code: str) -> None:
    toy_server(tree, log=target)
    with running(tree.root, toy_plan()) as probe:
        problem = probe.problem(code)
        assert ">" in problem.detail or "tee" in problem.detail
        assert probe.server().log.kind == "none"
        assert probe.first(e.LogOpened).note == problem.detail


@pytest.mark.parametrize("hops", [1, 2])
def test_a_pipe_is_followed_to_the_file_behind_it(tree: ProcTree, tmp_path: Path, hops: int) -> None:
    path = tmp_path / "teed.log"
    path.write_bytes(b"through a pipe\n")
    toy_server(tree, log="pipe:[77]")
    if hops == 2:
        tree.add(81, ["ts"], fds={0: "pipe:[77]", 1: "pipe:[78]", 2: "/dev/null"})
    tree.add(80, ["tee", str(path)], fds={0: f"pipe:[{76 + hops}]", 1: "/dev/pts/1"})
    tree.descriptor(80, 3, path)
    tree.descriptor(80, 4, tmp_path / "read.only", flags="0100000")
    (tmp_path / "read.only").write_text("")
    with running(tree.root, toy_plan()) as probe:
        server = probe.server()
        assert (server.log.kind, server.log.path) == ("file", str(path))
        probe.wait(has_all(b"through a pipe\n"))


def test_stderr_is_preferred_when_the_engine_logs_there(tree: ProcTree, log: Path, tmp_path: Path) -> None:
    log.write_bytes(b"GET / 200\n")
    other = tmp_path / "err.log"
    other.write_bytes(b"nothing yet\n")
    tree.descriptor(100, 2, other)
    with running(tree.root, toy_plan()) as probe:
        assert probe.server().log.path == str(log)
        append(other, f"{START}\n".encode())
        assert probe.server(lambda s: s.log.path == str(other))
        assert probe.first(e.LogOpened, lambda x: x.path == str(other)).reason == "replaced"


def test_a_file_that_appears_later_is_followed(tree: ProcTree, tmp_path: Path) -> None:
    toy_server(tree, log="pipe:[77]")
    path = tmp_path / "late.log"
    with running(tree.root, toy_plan()) as probe:
        probe.problem("log-pipe")
        path.write_bytes(b"late\n")
        tree.add(80, ["tee", str(path)], fds={0: "pipe:[77]"})
        tree.descriptor(80, 3, path)
        probe.problem("log-pipe", cleared=True)
        probe.wait(has_all(b"late\n"))


# -- reconnecting ---------------------------------------------------------------------------------------------------


def resume(probe: RunningProbe, offset: int | None = None) -> dict[str, Any]:
    """What the laptop would send on its next connect."""
    opened = [x for x in probe.of(e.LogOpened) if x.inode is not None][-1]
    last = [x for x in probe.of(e.LogBytes) if not x.head][-1]
    at = last.end if offset is None else offset
    check = (last.end, last.crc)
    return {KEY: {"device": opened.device, "inode": opened.inode, "path": opened.path, "offset": at, "check": check}}


@pytest.fixture
def connected(tree: ProcTree, log: Path) -> Iterator[tuple[RunningProbe, bytes]]:
    data = f"{START}\n".encode() + lines(30_000)
    log.write_bytes(data)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogBytes, lambda x: x.end == len(data))
        yield probe, data


def test_a_reconnect_goes_on_exactly_there(tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]) -> None:
    probe, data = connected
    state = resume(probe, len(data) - 5)
    append(log, b"missed\n")
    with running(tree.root, toy_plan(resume=state)) as again:
        opened = again.first(e.LogOpened)
        assert (opened.reason, opened.offset) == ("resume", len(data) - 5)
        again.wait(has_all(data[-5:] + b"missed\n"))
        assert again.of(e.LogGap) == []
        assert not [x for x in again.of(e.LogBytes) if x.head]


def test_a_reconnect_after_rotation_finishes_the_old_log(
    tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]
) -> None:
    probe, _ = connected
    state = resume(probe)
    append(log, b"missed\n")
    log.rename(log.with_name("server.log.1"))
    log.write_bytes(b"new\n")
    with running(tree.root, toy_plan(resume=state)) as again:
        again.wait(has_all(b"missed\nnew\n"))
        assert [x.reason for x in again.of(e.LogOpened)] == ["resume", "rotated"]


def test_a_reconnect_after_truncation(tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]) -> None:
    probe, _ = connected
    state = resume(probe)
    log.write_bytes(b"new\n")
    with running(tree.root, toy_plan(resume=state)) as again:
        again.wait(has_all(b"new\n"))
        assert [(x.reason, x.offset) for x in again.of(e.LogOpened)] == [("truncated", 0)]


def test_a_reconnect_when_the_old_log_is_gone(tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]) -> None:
    probe, _ = connected
    state = resume(probe)
    keep = log.open("rb")  # or its inode would be used again at once
    log.unlink()
    log.write_bytes(b"new\n")
    with keep, running(tree.root, toy_plan(resume=state)) as again:
        again.wait(has_all(b"new\n"))
        assert [(x.reason, x.offset) for x in again.of(e.LogOpened)] == [("rotated", 0)]
        gap = again.of(e.LogGap)[0]
        assert (gap.offset, gap.end, gap.reason) == (state[KEY]["offset"], state[KEY]["offset"], "lost")


def test_a_log_that_was_truncated_and_has_grown_beyond(
    tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]
) -> None:
    probe, data = connected
    state = resume(probe)
    new = lines(60_000, "again")
    assert len(new) > len(data)
    log.write_bytes(new)
    with running(tree.root, toy_plan(resume=state, tail_bytes=10_000_000)) as again:
        again.wait(has_all(new))
        assert [(x.reason, x.offset) for x in again.of(e.LogOpened)] == [("truncated", 0)]


@pytest.mark.parametrize("alive", [True, False])
def test_a_file_of_another_disk_is_another_file(
    tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes], alive: bool
) -> None:
    probe, _ = connected
    state = resume(probe)
    state[KEY]["device"] += 1
    append(log, b"more\n")
    if not alive:
        tree.remove(100, 101, 102)
    with running(tree.root, toy_plan(resume=state)) as again:
        again.first(e.ScanEnded)
        assert again.first(e.LogGap).reason == "lost"
        if alive:
            again.first(e.LogBytes)
        else:
            again.first(e.ServerGone)
        assert [x.reason for x in again.of(e.LogOpened)] == (["rotated"] if alive else [])


def test_the_last_words_of_a_server_that_died_meanwhile(
    tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]
) -> None:
    probe, data = connected
    state = resume(probe)
    append(log, b"Traceback: out of memory\n")
    tree.remove(100, 101, 102)
    probe.first(e.ServerGone)
    with running(tree.root, toy_plan(resume=state)) as again:
        again.wait(has_all(b"Traceback: out of memory\n"))
        again.first(e.ScanEnded)
        order = [type(x) for x in again.events if isinstance(x, e.LogBytes | e.ScanEnded)]
        assert order == [e.LogBytes, e.ScanEnded]
        assert again.of(e.LogBytes)[0].offset == len(data)


def test_a_file_that_was_used_again_is_not_the_dead_servers(
    tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]
) -> None:
    probe, _ = connected
    state = resume(probe)
    tree.remove(100, 101, 102)
    log.write_bytes(lines(60_000, "foreign"))
    with running(tree.root, toy_plan(resume=state)) as again:
        assert again.first(e.LogGap).reason == "lost"
        assert again.first(e.ServerGone).key == KEY
        again.first(e.ScanEnded)
        assert again.of(e.LogBytes) == []


def test_the_last_words_are_read_to_their_end_and_delay_nothing(
    tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]
) -> None:
    probe, _ = connected
    state = resume(probe)
    last = lines(150_000, "last")
    append(log, last)
    tree.remove(100, 101, 102)
    with running(tree.root, toy_plan(resume=state, max_log_bytes_s=500_000)) as again:
        scanned = again.first(e.ScanEnded)
        assert scanned.mono - again.events[0].mono < 2.0
        again.first(e.ServerGone)
        assert "".join(part for _, _, part in followed(again)).encode() == last
        assert again.of(e.LogGap) == []


def test_a_zombie_has_last_words_too(tree: ProcTree, log: Path, connected: tuple[RunningProbe, bytes]) -> None:
    probe, _ = connected
    state = resume(probe)
    append(log, b"Killed\n")
    tree.remove(101, 102)
    tree.change(100, state="Z")
    tree.title(100, "")
    with running(tree.root, toy_plan(resume=state)) as again:
        again.wait(has_all(b"Killed\n"))
        again.first(e.ScanEnded)
        assert again.of(e.ServerSeen) == []


def later(probe: RunningProbe, seconds: float) -> None:
    """Wait until the probe itself says that so much time has passed."""
    now = probe.events[-1].mono
    probe.first(e.HostSample, lambda x: x.mono > now + seconds)


@pytest.mark.parametrize("kept", [True, False])
def test_the_next_server_in_the_same_log_is_not_taken_for_the_last(tree: ProcTree, log: Path, kept: bool) -> None:
    log.write_bytes(b"before\n")
    with running(tree.root, toy_plan()) as probe:
        probe.wait(has_all(b"before\n"))
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
        if not kept:
            log.write_bytes(b"")
        other = toy_server(tree, pid=200, log=log)
        probe.first(e.LogOpened, lambda x: x.key == other)
        append(log, b"the next one\n")
        probe.first(e.LogBytes, lambda x: x.key == other and "next" in x.data)
        later(probe, 2.5)
        assert [x.data for x in probe.of(e.LogBytes) if x.key == KEY] == ["before\n"]
        assert [x.reason for x in probe.of(e.LogOpened) if x.key == KEY] == ["start"]


def test_many_cuts_lose_and_repeat_nothing(tree: ProcTree, log: Path) -> None:
    chooser = random.Random(7)
    taken = b""
    written = b""
    state: dict[str, Any] = {}
    for cut in range(30):
        new = lines(chooser.randint(0, 300), f"cut {cut}")
        written += new
        append(log, new)
        with running(tree.root, toy_plan(resume=state)) as probe:
            probe.first(e.LogOpened)
            more = lines(chooser.randint(1, 300), f"live {cut}")
            written += more
            append(log, more)
            until(lambda: followed(probe), 5.0)
            parts = followed(probe)[: chooser.randint(1, 3)]
            taken += "".join(part for _, _, part in parts).encode()
            state = resume(probe, parts[-1][1])
    with running(tree.root, toy_plan(resume=state)) as probe:
        probe.wait(has_all(written[len(taken) :]))
    assert written.startswith(taken)


# -- the end --------------------------------------------------------------------------------------------------------


def test_the_last_lines_come_before_the_end(tree: ProcTree, log: Path) -> None:
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogOpened)
        append(log, lines(20_000, "last"))
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone)
        assert probe.log() == log.read_bytes()
        # Children, and shells, may have a last word still.
        append(log, b"Killed\n")
        probe.wait(has_all(log.read_bytes()))


# -- floods ---------------------------------------------------------------------------------------------------------


def test_a_burst_within_the_limit_loses_nothing(tree: ProcTree, log: Path) -> None:
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.LogOpened)
        data = lines(40_000, "x" * 60)
        append(log, data)
        probe.first(e.LogBytes, lambda x: x.end == len(data))
        assert probe.log() == data
        assert probe.of(e.LogGap) == []


def test_a_flood_is_skipped_and_said(tree: ProcTree, log: Path) -> None:
    with running(tree.root, toy_plan(max_log_bytes_s=1_000_000)) as probe:
        probe.first(e.LogOpened)
        end = time.monotonic() + 20
        block = lines(20_000)
        while not probe.of(e.LogGap):
            assert time.monotonic() < end
            append(log, block)
        gap = probe.of(e.LogGap)[0]
        assert gap.end > gap.offset
        assert probe.problem("tail-flood").subject == KEY
        append(log, b"calm again\n")
        probe.first(e.LogBytes, lambda x: x.data.endswith("calm again\n"))
        at = 0
        for event in probe.events:
            if isinstance(event, e.LogBytes | e.LogGap):
                assert event.offset == at
                at = event.end
        for _ in range(8):
            append(log, b"tick\n")
            probe.settle()
            time_of_last = time.monotonic() + 0.4
            until(lambda limit=time_of_last: time.monotonic() > limit)  # type: ignore[misc]
        probe.problem("tail-flood", cleared=True)


def test_samples_go_on_beside_a_flood(tree: ProcTree, log: Path) -> None:
    log.write_bytes(lines(2_000_000))
    with running(tree.root, toy_plan(tail_bytes=20_000_000)) as probe:
        probe.first(e.LogBytes, lambda x: x.end > 2_000_000)
        before = time.monotonic()
        probe.settle()
        assert time.monotonic() - before < 0.5


# -- older logs -----------------------------------------------------------------------------------------------------


def test_start_up_lines_of_older_logs(tree: ProcTree, log: Path) -> None:
    folder = log.parent
    (folder / "server.log.1").write_bytes(f"noise\n{START} one\n".encode() + lines(1000) + f"{END}\n".encode())
    (folder / "server-2.out").write_bytes(f"{START} two\n".encode())
    (folder / "other.txt").write_bytes(b"not a log of a server\n")
    (folder / "empty.log").write_bytes(b"")
    (folder / "model.bin").write_bytes(f"{START} three\n".encode())
    os.utime(folder / "server.log.1", (1, 1))
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.OldLog, lambda x: x.path.endswith(".1"))
        found = {x.path: x for x in probe.of(e.OldLog)}
        assert set(found) == {str(folder / "server.log.1"), str(folder / "server-2.out")}
        one = found[str(folder / "server.log.1")]
        assert one.data == f"{START} one\n{END}\n"
        assert (one.key, one.size) == (KEY, (folder / "server.log.1").stat().st_size)


def test_older_logs_can_be_left_alone(tree: ProcTree, log: Path) -> None:
    (log.parent / "server.log.1").write_bytes(f"{START} one\n".encode())
    with running(tree.root, toy_plan(old_logs=0)) as probe:
        probe.first(e.HostSample, lambda x: x.mono > probe.events[0].mono + 3)
        assert probe.of(e.OldLog) == []


# -- containers -----------------------------------------------------------------------------------------------------

POD = "1234abcd-12ab-34cd-56ef-1234567890ab"
IDENT = "ef" * 32
ONLY_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can play the folders of container runtimes")


def cri(*texts: str) -> bytes:
    return "".join(f"2026-11-29T14:02:11.123456789Z stderr F {text}\n" for text in texts).encode()


@contextmanager
def folders(*paths: Path) -> Iterator[None]:
    """Folders that the probe looks for at fixed places, and nothing left of them."""
    made: list[Path] = []
    try:
        for path in paths:
            missing = [p for p in (path, *path.parents) if not p.exists()]
            made += reversed(missing)
            path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in reversed(made):
            shutil.rmtree(path)


@ONLY_ROOT
@pytest.mark.parametrize("linked", [True, False])
def test_the_log_of_a_pod(tree: ProcTree, linked: bool) -> None:
    pod = Path("/var/log/pods") / f"llm_toy-0_{POD}"
    links = Path("/var/log/containers")
    inside = f"/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{IDENT}.scope"
    with folders(pod / "server", pod / "sidecar", links):
        path = pod / "server/1.log"
        path.write_bytes(cri(START, "one"))
        (pod / "server/0.log").write_bytes(cri(START, "loading", "before the restart"))
        (pod / "sidecar/3.log").write_bytes(cri("proxy"))
        link = links / f"toy-0_llm_server-{IDENT}.log"
        try:
            if linked:
                link.symlink_to(path)
            toy_server(tree, log="pipe:[9]")
            (tree.proc / "100/cgroup").write_text("0::/kubepods.slice" + inside + "\n")
            with running(tree.root, toy_plan()) as probe:
                server = probe.server()
                assert (server.log.kind, server.log.path) == ("cri", str(path))
                assert (server.manager.kind, server.manager.name) == ("kubernetes", POD)
                assert probe.first(e.LogOpened).kind == "cri"
                probe.wait(has_all(cri(START, "one")))
                # kubelet renames it, and the runtime opens a new one.
                append(path, cri("two"))
                path.rename(pod / "server/1.log.20261129-140300")
                path.write_bytes(cri("three"))
                probe.wait(has_all(cri(START, "one", "two", "three")))
                assert probe.first(e.LogOpened, lambda x: x.reason == "rotated").kind == "cri"
                assert probe.first(e.OldLog, lambda x: x.path.endswith("0.log")).data.encode() == cri(START, "loading")
                state = resume(probe)
                append(path, cri("the end"))
                tree.remove(100, 101, 102)
                probe.first(e.ServerGone)
            with running(tree.root, toy_plan(resume=state)) as again:
                assert again.first(e.LogOpened).kind == "cri"
                again.wait(has_all(cri("the end")))
        finally:
            link.unlink(missing_ok=True)


@ONLY_ROOT
def test_the_log_of_a_container_of_podman(tree: ProcTree) -> None:
    folder = Path("/var/lib/containers/storage/overlay-containers") / IDENT / "userdata"
    with folders(folder):
        (folder / "ctr.log").write_bytes(cri("hello"))
        toy_server(tree, log="pipe:[9]")
        (tree.proc / "100/cgroup").write_text(f"0::/machine.slice/libpod-{IDENT}.scope/container\n")
        with running(tree.root, toy_plan()) as probe:
            server = probe.server()
            assert (server.log.kind, server.log.path) == ("cri", str(folder / "ctr.log"))
            probe.wait(has_all(cri("hello")))


@ONLY_ROOT
def test_docker_json_lines_are_sent_as_they_are(tree: ProcTree) -> None:
    ident = "ab" * 32
    folder = Path("/var/lib/docker/containers") / ident
    with folders(folder):
        path = folder / f"{ident}-json.log"
        path.write_bytes(b'{"log":"hello\\n","stream":"stdout"}\n')
        (folder / "config.v2.json").write_text('{"ID":"x","Name":"/llm"}')
        toy_server(tree, log="pipe:[9]")
        (tree.proc / "100/cgroup").write_text(f"0::/system.slice/docker-{ident}.scope\n")
        with running(tree.root, toy_plan()) as probe:
            server = probe.server()
            assert (server.log.kind, server.log.path) == ("docker-json", str(path))
            assert (server.manager.kind, server.manager.name) == ("docker", "llm")
            assert probe.first(e.LogOpened).kind == "docker-json"
            probe.wait(has_all(b'{"log":"hello\\n","stream":"stdout"}\n'))
