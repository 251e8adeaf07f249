from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.domain import events as e
from tuner.domain.link import LinkPhase
from tuner.errors import JournalError
from tuner.store.journal import Journal, holds_events, read_events, read_header

EVENTS = [e.ScanEnded(seq=n, mono=float(n)) for n in range(1, 6)]


def written(path: Path, count: int = 5) -> Path:
    journal = Journal(path, "box", at=1000.0)
    for event in EVENTS[:count]:
        journal.append(event, event.mono)
    journal.close()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a" / "j.ndjson")
    header = read_header(path)
    assert (header.journal, header.protocol, header.host, header.at) == (1, 1, "box", 1000.0)
    assert list(read_events(path)) == [(event.mono, event) for event in EVENTS]


def test_lines_are_what_the_protocol_says(tmp_path: Path) -> None:
    first, second, *_ = written(tmp_path / "j").read_text().splitlines()
    assert json.loads(first).keys() >= {"journal", "protocol", "host", "at", "version"}
    assert json.loads(second) == {"at": 1.0, "e": {"t": "scanned", "mono": 1.0, "seq": 1}}


def test_only_its_owner_may_read_it_and_the_folders_made_for_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        journal = Journal(tmp_path / "a" / "b" / "j", "box", at=0.0, max_bytes=1)
        journal.append(EVENTS[0], 1.0)
        journal.close()
    finally:
        os.umask(before)
    modes = {str(p.relative_to(tmp_path)): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/j": 0o600, "a/b/j.1": 0o600}


def test_a_flush_hands_all_to_the_system(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "box", at=0.0)
    journal.append(EVENTS[0], 1.0)
    assert list(read_events(tmp_path / "j")) == []
    assert journal.flush() is None
    assert len(list(read_events(tmp_path / "j"))) == 1
    journal.close()


def test_a_journal_cut_anywhere_keeps_its_whole_lines(tmp_path: Path) -> None:
    data = written(tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    first = data.index(b"\n") + 1
    for size in range(first, len(data) + 1):
        path.write_bytes(data[:size])
        expected = data[first:size].count(b"\n") + (size < len(data) and data[size : size + 1] == b"\n")
        assert len(list(read_events(path))) == expected


def test_a_damaged_line_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "j")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        b"".join([*lines[:2], b'{"at":2,"e":{"t":"unheard-of"}}\n', b"\xff\0garbage\n", b"\n", *lines[3:]])
    )
    assert [event.seq for _, event in read_events(path)] == [1, 3, 4, 5]


def test_a_file_that_exists_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("mine")
    with pytest.raises(JournalError, match="exists"):
        Journal(path, "box", at=0.0)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("content", [b"", b"\n", b"no json\n", b"[]\n", b'{"host":"x","at":1}\n', b"\xff\xfe\n"])
def test_what_is_no_journal_is_said_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(JournalError, match="Not a journal"):
        read_header(path)
    with pytest.raises(JournalError, match="Not a journal"):
        list(read_events(path))


def test_attempts_to_connect_are_no_events_of_the_host(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "box", at=0.0)
    journal.append(e.LinkChanged(phase=LinkPhase.CONNECTING), 0.0)
    journal.close()
    assert not holds_events(tmp_path / "j")
    assert not holds_events(tmp_path / "none")
    assert holds_events(written(tmp_path / "other", 1))


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text('{"journal":2,"protocol":1,"host":"x","at":1,"version":"9.0"}\n')
    with pytest.raises(JournalError, match=r"9\.0") as failed:
        read_header(path)
    assert failed.value.exit_code == 2


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file"):
        list(read_events(tmp_path / "none"))


DISK = 2000


@contextlib.contextmanager
def small_disk(limit: int = DISK) -> Iterator[None]:
    """No file of this process may grow beyond a limit: writing then fails as on a full disk.

    Not a fixture: the limit must be gone before the test runner writes its own output.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_ends_the_journal_with_a_whole_line_and_is_told_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "box", at=0.0)
    told = []
    with small_disk():
        for number in range(100):
            journal.append(e.ProblemSeen(seq=number + 1, code="no-gpu", detail="x" * 50), float(number))
            if problem := journal.flush():
                told.append(problem)
        journal.close()
    assert len(told) == 1
    assert "journal ends" in str(told[0])
    data = (tmp_path / "j").read_bytes()
    assert data.endswith(b"}\n")
    assert DISK - 200 < len(data) <= DISK
    assert [event.seq for _, event in read_events(tmp_path / "j")] == list(range(1, data.count(b"\n")))


def test_half_of_a_batch_that_did_not_fit_is_kept_by_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "box", at=0.0)
    with small_disk():
        for number in range(100):
            journal.append(e.ProblemSeen(seq=number + 1, code="no-gpu", detail="x" * 50), float(number))
        assert journal.flush() is not None
        journal.close()
    data = (tmp_path / "j").read_bytes()
    assert data.endswith(b"}\n")
    assert len(list(read_events(tmp_path / "j"))) > 5


def test_a_size_limit_begins_new_files_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, "box", at=5.0, max_bytes=1000, keep=3)
    for number in range(1, 201):
        journal.append(e.ScanEnded(seq=number), float(number))
        journal.flush()
    journal.close()
    files = [path.with_name("j.2"), path.with_name("j.1"), path]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["j", "j.1", "j.2"]
    sequence = [event.seq for file in files for _, event in read_events(file)]
    assert sequence == list(range(sequence[0], 201))
    assert len({read_header(file).part for file in files}) == 3
    assert all(file.stat().st_size < 1200 for file in files)


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "box", at=0.0)
    journal.close()
    assert journal.close() is None
