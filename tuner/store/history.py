"""The history of starts on all hosts, in one SQLite file: the usual duration and memory of a start.

Every call opens and closes the file, since several gputuners may run at once and calls may come from any thread.
Writing waits for other writers. A damaged file is renamed and a new one begun; no problem of the history ever raises.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tuner.domain.history import MemoryRecord, StartRecord, UsualTimes
from tuner.domain.server import Phase
from tuner.domain.starts import Start
from tuner.store.private import make_folder, opener

SCHEMA = 3
"""Version of the tables. 1: durations of starts. 2: their memory too. 3: memory by log, which tells replicas apart."""
RECENT = 20
"""Number of the newest successful starts that define the usual times, and of memory records that are read."""
BUSY_S = 5.0
"""Longest wait for another writer, seconds."""
_SAME_S = 2.0
"""Largest difference, seconds, between two readings of the time at which one process began."""

_TABLES = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS starts (
    host TEXT NOT NULL,
    source TEXT NOT NULL,
    started_at REAL NOT NULL,
    engine TEXT NOT NULL,
    version TEXT,
    model TEXT,
    outcome TEXT NOT NULL,
    total_s REAL,
    phases_s TEXT NOT NULL,
    PRIMARY KEY (host, source, started_at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS starts_alike ON starts (host, engine, model, started_at);
CREATE TABLE IF NOT EXISTS measured (
    host TEXT NOT NULL,
    source TEXT NOT NULL,
    started_at REAL NOT NULL,
    engine TEXT NOT NULL,
    model TEXT,
    start TEXT NOT NULL,
    PRIMARY KEY (host, source, started_at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS measured_alike ON measured (host, engine, model, started_at);
CREATE TABLE IF NOT EXISTS memory (host, engine, started_at, model, start);
INSERT OR IGNORE INTO measured SELECT host, '', started_at, engine, model, start FROM memory;
DROP TABLE memory;
COMMIT;
"""
"""Statements that create what is missing; running all of them also upgrades a file of an earlier schema."""
_KEPT_MEMORIES = 50
"""Number of memory records kept for one LLM on one host; the oldest are deleted."""


class History:
    """The history of starts in one file.

    Args:
        path: SQLite file; created with its folders, readable by this user alone, when the first start is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem: str | None = None
        """Newest problem, in words for the screen; None if there was none. Later calls still try."""

    def keep(self, record: StartRecord | MemoryRecord) -> None:
        """Store the durations or the memory of a start; an earlier record of the same start is replaced."""
        if isinstance(record, MemoryRecord):
            self._keep_memory(record)
        else:
            self._keep_times(record)

    def look_up(
        self, host: str, engine: str, model: str | None, but: float | None = None
    ) -> tuple[UsualTimes, tuple[Start, ...]]:
        """Return the usual times of this engine and LLM on a host, and its starts with memory figures, newest first.

        Args:
            host: Name of the host.
            engine: Name of the engine, as in the servers' identities.
            model: The LLM.
            but: Time at which a start to leave out began (host wall clock), since it is compared with the others.
        """
        past = self.memories(host, engine, model, but)
        starts = (msgspec.structs.replace(each.start, began=each.started_at) for each in past if each.model == model)
        return self.usual(host, engine, model, but), tuple(starts)

    def _keep_times(self, record: StartRecord) -> None:
        row = (
            record.host,
            record.source,
            record.started_at,
            record.engine,
            record.version,
            record.model,
            record.outcome,
            record.total_s,
            msgspec.json.encode(record.phases_s).decode(),
        )

        def write(db: sqlite3.Connection) -> None:
            if record.by_log and _watched(db, record):
                return
            db.execute("INSERT OR REPLACE INTO starts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

        self._try(write)

    def usual(self, host: str, engine: str, model: str | None, but: float | None = None) -> UsualTimes:
        """Return the usual times of the newest successful starts of this engine and LLM on a host.

        Args:
            host: Name of the host.
            engine: Name of the engine, as in the servers' identities.
            model: The LLM.
            but: Time at which a start to leave out began (host wall clock), since it is compared with the others.
        """
        good = [each for each in self.starts(host, engine, model) if each.outcome == "ready"]
        records = [each for each in good if but is None or abs(each.started_at - but) > _SAME_S][:RECENT]
        totals = [record.total_s for record in records if record.total_s is not None]
        phases: dict[Phase, list[float]] = {}
        for record in records:
            for phase, seconds in record.phases_s.items():
                phases.setdefault(phase, []).append(seconds)
        return UsualTimes(
            starts=len(records),
            total_s=(min(totals), max(totals)) if totals else None,
            phases_s={phase: (min(times), max(times)) for phase, times in phases.items()},
        )

    def starts(self, host: str, engine: str, model: str | None) -> list[StartRecord]:
        """Return the starts of an engine and LLM on a host, newest first, at most 200."""
        rows: list[tuple[object, ...]] = []

        def select(db: sqlite3.Connection) -> None:
            rows.extend(
                db.execute(
                    "SELECT host, engine, version, model, started_at, source, outcome, total_s, phases_s FROM starts"
                    " WHERE host = ? AND engine = ? AND model IS ? ORDER BY started_at DESC LIMIT 200",
                    (host, engine, model),
                )
            )

        if self._path.exists():
            self._try(select)
        return [record for row in rows if (record := _record(row)) is not None]

    def _keep_memory(self, record: MemoryRecord) -> None:
        start = msgspec.json.encode(record.start).decode()

        def write(db: sqlite3.Connection) -> None:
            if record.by_log and _watched(db, record):
                return
            near = (record.host, record.source, record.started_at - _SAME_S, record.started_at + _SAME_S)
            db.execute("DELETE FROM measured WHERE host = ? AND source = ? AND started_at BETWEEN ? AND ?", near)
            row = (record.host, record.source, record.started_at, record.engine, record.model, start)
            db.execute("INSERT INTO measured VALUES (?, ?, ?, ?, ?, ?)", row)
            alike = (record.host, record.engine, record.model)
            db.execute(
                "DELETE FROM measured WHERE host = ? AND engine = ? AND model IS ? AND started_at NOT IN"
                " (SELECT started_at FROM measured WHERE host = ? AND engine = ? AND model IS ?"
                " ORDER BY started_at DESC LIMIT ?)",
                (*alike, *alike, _KEPT_MEMORIES),
            )

        self._try(write)

    def memories(
        self, host: str, engine: str | None = None, model: str | None = None, but: float | None = None
    ) -> list[MemoryRecord]:
        """Return the memory records of starts on a host, newest first, at most `RECENT`.

        Args:
            host: Name of the host.
            engine: Only starts of this engine; None: of all engines.
            model: Only starts of this LLM; None: of all LLMs.
            but: Time at which a start to leave out began (host wall clock).
        """
        rows: list[tuple[str, str, str | None, float, str, str]] = []
        if self._path.exists():
            self._try(
                lambda db: rows.extend(
                    db.execute(
                        "SELECT host, engine, model, started_at, source, start FROM measured"
                        " WHERE host = ?1 AND (?2 IS NULL OR engine = ?2) AND (?3 IS NULL OR model = ?3)"
                        " AND (?4 IS NULL OR abs(started_at - ?4) > ?5)"
                        " ORDER BY started_at DESC LIMIT ?6",
                        (host, engine, model, but, _SAME_S, RECENT),
                    )
                )
            )
        return [record for row in rows if (record := _memory(row)) is not None]

    def _try(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run `work` on the open file; if the file is damaged, begin a new one and run it again."""
        for attempt in (1, 2):
            try:
                with self._open() as db:
                    work(db)
                return
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError) or attempt == 2:
                    self.problem = f"The history of starts cannot be used: {self._path}: {error}"
                    return
                self._set_aside(error)
            except OSError as error:
                self.problem = f"The history of starts cannot be used: {self._path}: {error.strerror}"
                return

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        make_folder(self._path.parent)
        # SQLite gives its side files the same mode. An existing file must not be opened here: closing it would release
        # the POSIX locks that another thread of this process holds.
        with contextlib.suppress(FileExistsError):
            open(self._path, "xb", opener=opener).close()
        db = sqlite3.connect(self._path, timeout=BUSY_S)
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise sqlite3.OperationalError(f"written by a newer gputuner (schema {version})")
            if version < SCHEMA:
                db.execute("PRAGMA journal_mode = WAL")
                db.executescript(_TABLES)
                db.execute(f"PRAGMA user_version = {SCHEMA}")
            with db:
                yield db
        finally:
            db.close()

    def _set_aside(self, error: Exception) -> None:
        aside = self._path.with_name(self._path.name + ".damaged")
        with contextlib.suppress(OSError):
            self._path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.problem = f"The history of starts was damaged ({error}) and begun anew; the old one is {aside}"


def _watched(db: sqlite3.Connection, record: StartRecord | MemoryRecord) -> bool:
    """Return whether a start known only from its log was also watched live.

    It was if its first line came while the newest watched start of the same source was starting.
    """
    before = (record.host, record.source, record.started_at, record.started_at + _SAME_S)
    row = db.execute(
        "SELECT host, engine, version, model, started_at, source, outcome, total_s, phases_s FROM starts"
        " WHERE host = ? AND source = ? AND started_at <> ? AND started_at <= ? ORDER BY started_at DESC LIMIT 1",
        before,
    ).fetchone()
    last = None if row is None else _record(row)
    if last is None:
        return False
    took = last.total_s if last.total_s is not None else sum(last.phases_s.values())
    return record.started_at <= last.started_at + max(took, _SAME_S)


def _record(row: tuple[object, ...]) -> StartRecord | None:
    """Convert a row to a record; None if the row is invalid."""
    host, engine, version, model, started_at, source, outcome, total_s, phases_s = row
    try:
        return msgspec.convert(
            {
                "host": host,
                "engine": engine,
                "version": version,
                "model": model,
                "started_at": started_at,
                "source": source,
                "outcome": outcome,
                "total_s": total_s,
                "phases_s": msgspec.json.decode(str(phases_s)),
            },
            StartRecord,
        )
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def _memory(row: tuple[str, str, str | None, float, str, str]) -> MemoryRecord | None:
    """Convert a row to a record; None if the row is invalid."""
    host, engine, model, started_at, source, start = row
    try:
        told = msgspec.json.decode(start, type=Start)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None
    return MemoryRecord(host=host, engine=engine, model=model, started_at=started_at, source=source, start=told)
