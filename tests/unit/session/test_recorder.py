from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.support.facts import until
from tuner.domain import events as e
from tuner.errors import JournalError
from tuner.session import recorder
from tuner.session.recorder import Recorder
from tuner.session.tasks import spawn
from tuner.store.journal import Journal, read_events


class SlowDisk(Journal):
    """Each write waits until it is let go."""

    def __init__(self, path: Path) -> None:
        self.go = threading.Event()
        self.go.set()
        self.writes = 0
        super().__init__(path, "box", 0.0)
        self.go.clear()

    def _write(self, data: bytearray) -> None:
        self.writes += 1
        assert self.go.wait(10)
        super()._write(data)


def untold(problem: JournalError) -> None:
    raise AssertionError(problem)


async def test_a_slow_disk_is_not_waited_for_and_the_order_is_kept(tmp_path: Path) -> None:
    journal = SlowDisk(tmp_path / "j")
    kept = Recorder(journal, untold)
    async with asyncio.timeout(5):
        for number in range(1, 500):
            kept.note(e.ScanEnded(seq=number))
            kept.write()
            await kept.keep_up()
        await until(lambda: journal.writes == 2)
        assert list(read_events(journal.path)) == []
        journal.go.set()
        await kept.close()
    assert [event.seq for _, event in read_events(journal.path)] == list(range(1, 500))


async def test_who_lies_too_far_behind_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "BEHIND_BYTES", 100)
    journal = SlowDisk(tmp_path / "j")
    kept = Recorder(journal, untold)
    kept.note(e.ScanEnded(seq=1))
    kept.write()
    await until(lambda: journal.writes == 2)
    kept.note(e.ProblemSeen(seq=2, code="x", detail="x" * 100))
    waiting = spawn(kept.keep_up(), name="waiting")
    await asyncio.sleep(0)
    assert not waiting.done()
    journal.go.set()
    await waiting
    await kept.close()
    assert [event.seq for _, event in read_events(journal.path)] == [1, 2]


async def test_trouble_is_told_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "box", 0.0)
    journal._file.close()
    journal._file = Path("/dev/full").open("wb", buffering=0)  # noqa: ASYNC230, SIM115 - the journal closes it
    told: list[JournalError] = []
    kept = Recorder(journal, told.append)
    for number in range(3):
        kept.note(e.ScanEnded(seq=number))
        kept.write()
        await until(lambda: told)
    await kept.close()
    assert len(told) == 1


async def test_trouble_at_the_end_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "box", 0.0)
    journal._file.close()
    journal._file = Path("/dev/full").open("wb", buffering=0)  # noqa: ASYNC230, SIM115 - the journal closes it
    told: list[JournalError] = []
    kept = Recorder(journal, told.append)
    kept.note(e.ScanEnded(seq=1))
    await kept.close()
    assert len(told) == 1
