from __future__ import annotations

import contextlib
import multiprocessing
import os
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from tuner.domain.history import MemoryRecord, StartRecord, UsualTimes
from tuner.domain.logs import LogFact
from tuner.domain.server import Phase
from tuner.domain.starts import Figure, GraphCapture, RankStory, Start
from tuner.store.history import RECENT, History

START = StartRecord(
    host="box",
    engine="sglang",
    version="0.5.23",
    model="/models/a",
    started_at=1000.0,
    source="/log",
    total_s=90.0,
    phases_s={Phase.WEIGHT_LOAD: 40.0, Phase.GRAPH_CAPTURE: 12.0},
)


def test_nothing_is_usual_before_the_first_start(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite3")
    assert history.usual("box", "sglang", "/models/a") == UsualTimes()
    assert not (tmp_path / "h.sqlite3").exists()


def test_what_starts_took(tmp_path: Path) -> None:
    history = History(tmp_path / "deep" / "h.sqlite3")
    history.keep(START)
    history.keep(replace(START, started_at=2000.0, total_s=110.0, phases_s={Phase.WEIGHT_LOAD: 60.0}))
    history.keep(replace(START, started_at=3000.0, total_s=1.0, outcome="failed", phases_s={Phase.WEIGHT_LOAD: 1.0}))
    history.keep(replace(START, started_at=4000.0, model="/models/b", total_s=5.0))
    history.keep(replace(START, started_at=5000.0, host="other", total_s=6.0))
    assert history.usual("box", "sglang", "/models/a") == UsualTimes(
        starts=2,
        total_s=(90.0, 110.0),
        phases_s={Phase.WEIGHT_LOAD: (40.0, 60.0), Phase.GRAPH_CAPTURE: (12.0, 12.0)},
    )
    assert history.problem is None


def test_only_its_owner_may_read_it_and_the_folders_made_for_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        History(tmp_path / "a" / "b" / "h").keep(START)
        # While somebody has it open, the write-ahead log stands beside it.
        with contextlib.closing(sqlite3.connect(tmp_path / "a" / "b" / "h")) as other:
            assert other.execute("SELECT count(*) FROM starts").fetchone() == (1,)
            other.execute("DELETE FROM starts")
            modes = {str(p.relative_to(tmp_path)): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    finally:
        os.umask(before)
    assert {"a/b/h", "a/b/h-wal"} <= modes.keys()
    assert modes == {name: 0o700 if name in ("a", "a/b") else 0o600 for name in modes}


def test_an_llm_that_is_not_known_is_one_of_its_own(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    history.keep(replace(START, model=None))
    assert history.usual("box", "sglang", None).starts == 1
    assert history.usual("box", "sglang", "/models/a").starts == 0


def test_a_start_is_not_compared_with_itself(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    history.keep(START)
    assert history.usual("box", "sglang", "/models/a", START.started_at + 0.5).starts == 0
    history.keep(replace(START, started_at=START.started_at - 3600.0, total_s=70.0))
    assert history.usual("box", "sglang", "/models/a", START.started_at + 0.5).total_s == (70.0, 70.0)


def test_a_start_seen_twice_counts_once(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    history.keep(START)
    history.keep(replace(START, total_s=95.0))
    assert history.starts("box", "sglang", "/models/a") == [replace(START, total_s=95.0)]


def test_a_start_that_was_watched_is_not_counted_again_by_its_old_log(tmp_path: Path) -> None:
    """The process had run for half a minute before it printed its first line."""
    history = History(tmp_path / "h.sqlite3")
    by_log = replace(START, started_at=1030.0, total_s=60.0, by_log=True)
    history.keep(START)
    history.keep(by_log)
    history.keep(replace(by_log, source="/other.log"))
    assert [each.started_at for each in history.starts("box", "sglang", "/models/a")] == [1030.0, 1000.0]
    history.keep(replace(START, started_at=1090.0))
    assert history.usual("box", "sglang", "/models/a").starts == 3, (
        "a quick restart into the same file is another start"
    )

    memory = MemoryRecord(host="box", engine="sglang", started_at=1000.0, source="/log", start=Start(engine="sglang"))
    history.keep(memory)
    history.keep(replace(memory, started_at=1030.0, by_log=True))
    assert [each.started_at for each in history.memories("box")] == [1000.0]
    history.keep(replace(memory, started_at=5000.0, by_log=True))
    assert len(history.memories("box")) == 2


def test_a_process_may_import_for_long_before_its_first_line_and_the_next_one_follow_soon(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite3")
    history.keep(replace(START, total_s=2000.0))
    history.keep(replace(START, started_at=1900.0, total_s=1100.0, by_log=True))
    failed = replace(START, started_at=4000.0, outcome="failed", total_s=None, phases_s={Phase.ARGS: 30.0})
    history.keep(failed)
    history.keep(replace(failed, started_at=4020.0, by_log=True))
    assert [each.started_at for each in history.starts("box", "sglang", "/models/a")] == [4000.0, 1000.0]
    history.keep(replace(START, started_at=4050.0, by_log=True))
    assert [each.started_at for each in history.starts("box", "sglang", "/models/a")] == [4050.0, 4000.0, 1000.0]


@pytest.mark.parametrize("by_log", [True, False])
def test_replicas_that_are_started_together_are_two_starts(tmp_path: Path, by_log: bool) -> None:
    history = History(tmp_path / "h.sqlite3")
    for _ in range(2):
        for source, at in (("/a.log", 1000.0), ("/b.log", 1001.0)):
            history.keep(replace(START, source=source, started_at=at, by_log=by_log))
            history.keep(replace(MEASURED, source=source, started_at=at, by_log=by_log))
    assert [(each.source, each.started_at) for each in history.memories("box", "sglang", "/models/a")] == [
        ("/b.log", 1001.0),
        ("/a.log", 1000.0),
    ]
    assert history.usual("box", "sglang", "/models/a").starts == 2


def test_only_recent_starts_are_usual(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    for number in range(RECENT + 5):
        history.keep(replace(START, started_at=float(number), total_s=float(number)))
    assert history.usual("box", "sglang", "/models/a").total_s == (5.0, RECENT + 4.0)


@pytest.mark.parametrize(
    "content",
    [b"this is no database, but it is long enough to look like a file" * 20, b"SQLite format 3\0" + b"\xff" * 500],
)
def test_a_damaged_file_is_set_aside_and_said_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "h.sqlite3"
    path.write_bytes(content)
    history = History(path)
    history.keep(START)
    assert history.problem is not None
    assert "begun anew" in history.problem
    assert path.with_name("h.sqlite3.damaged").read_bytes() == content
    assert History(path).usual("box", "sglang", "/models/a").starts == 1


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    history = History(path)
    history.keep(START)
    assert history.problem is not None
    assert "newer" in history.problem
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "h")
    history.keep(START)
    assert history.problem is not None


def test_rows_of_something_else_are_passed_over(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    history.keep(START)
    with sqlite3.connect(tmp_path / "h") as db:
        db.execute("UPDATE starts SET phases_s = '{\"no-such-phase\": 1}'")
    db.close()
    assert history.starts("box", "sglang", "/models/a") == []


def _keep_some(path: Path, first: int) -> None:
    history = History(path)
    for number in range(first, first + 20):
        history.keep(replace(START, started_at=float(number)))
    assert history.problem is None, history.problem


def test_several_processes_may_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_keep_some, args=(tmp_path / "h", first)) for first in (0, 100, 200)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(History(tmp_path / "h").starts("box", "sglang", "/models/a")) == 60


MEASURED = MemoryRecord(
    host="box",
    engine="sglang",
    model="/models/a",
    started_at=1000.0,
    start=Start(
        engine="sglang",
        version="0.5.16",
        settings={"mem_fraction_static": 0.85, "cuda_graph_bs": [1, 2], "context_length": None},
        ranks=(
            RankStory(
                tag="TP0",
                number=0,
                before_weights=Figure(138.18, 26),
                graphs=(GraphCapture(what="decode", at=44, used_gib=0.11, sizes=(1, 2, 4)),),
            ),
        ),
        ready_at=50,
        limits={"context_len": Figure(32768, 45)},
        facts=(LogFact(kind="kv-pool", text="KV size: 1 GB", fields={"tokens": 5}),),
    ),
)


def test_what_a_start_measured_comes_back_as_it_was(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite3")
    assert history.memories("box") == []
    history.keep(MEASURED)
    assert history.memories("box", "sglang", "/models/a") == [MEASURED]
    usual, starts = history.look_up("box", "sglang", "/models/a")
    assert (usual, starts) == (UsualTimes(), (replace(MEASURED.start, began=MEASURED.started_at),))
    assert history.problem is None


def test_memories_of_other_hosts_llms_and_the_start_itself_stay_out(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite3")
    for record in (
        MEASURED,
        replace(MEASURED, host="other"),
        replace(MEASURED, model="/models/b", started_at=2000.0),
        replace(MEASURED, model=None, started_at=2500.0),
        replace(MEASURED, started_at=3000.0),
    ):
        history.keep(record)
    assert [m.started_at for m in history.memories("box", "sglang", "/models/a")] == [3000.0, 1000.0]
    assert [m.started_at for m in history.memories("box", "sglang", "/models/a", but=3001.0)] == [1000.0]
    assert len(history.look_up("box", "sglang", None)[1]) == 1
    assert len(history.memories("box")) == 4


def test_a_start_that_is_kept_again_is_kept_once(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite3")
    history.keep(MEASURED)
    later = replace(MEASURED, started_at=1000.4, start=replace(MEASURED.start, version="0.5.17"))
    history.keep(later)
    assert history.memories("box") == [later]


def test_the_oldest_memories_of_an_llm_go(tmp_path: Path) -> None:
    history = History(tmp_path / "h.sqlite3")
    for number in range(60):
        history.keep(replace(MEASURED, started_at=number * 10.0))
    with contextlib.closing(sqlite3.connect(tmp_path / "h.sqlite3")) as db:
        assert db.execute("SELECT count(*), min(started_at) FROM measured").fetchone() == (50, 100.0)


def test_a_file_of_the_first_schema_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    history = History(path)
    history.keep(START)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE measured; PRAGMA user_version = 1")
    history = History(path)
    assert history.memories("box") == []
    history.keep(MEASURED)
    assert history.memories("box") == [MEASURED]
    assert history.usual("box", "sglang", "/models/a").starts == 1, "what was known is still known"
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
    assert history.problem is None


def test_a_file_of_the_second_schema_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    History(path).keep(MEASURED)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE memory (host TEXT, engine TEXT, started_at REAL, model TEXT, start TEXT);"
            "INSERT INTO memory SELECT host, engine, started_at, model, start FROM measured;"
            "CREATE INDEX memory_alike ON memory (host, engine, model, started_at);"
            "DROP TABLE measured; PRAGMA user_version = 2"
        )
    history = History(path)
    assert history.memories("box") == [MEASURED]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert ("memory",) not in db.execute("SELECT name FROM sqlite_master").fetchall()
    assert history.problem is None


def test_a_memory_that_something_else_wrote_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    history = History(path)
    history.keep(MEASURED)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("""INSERT INTO measured VALUES ('box', '', 5.0, 'sglang', '/models/a', '{"ranks": 1}')""")
        db.commit()
    assert history.memories("box") == [MEASURED]
