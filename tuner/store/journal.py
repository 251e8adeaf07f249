"""A session's events in one append-only file: what is replayed, tested with, and sent with a bug report.

`core.journal` has the format. Events are masked before they get here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tuner import __version__
from tuner.core import journal as form
from tuner.domain.events import AnyEvent
from tuner.errors import JournalError
from tuner.store.private import make_folder, opener


class Journal:
    """Writes one.

    Lines are collected and written by `flush`, as often as the caller likes and, one at a time, from any thread: a
    disk may be slow, and `append` does not wait for it. Nothing is synced to disk, since a killed process loses
    nothing that was written and a lost machine may. When the disk is full the journal ends with its last whole line,
    tells so once, and the session goes on without it.

    Args:
        path: Created, with its folders, for this user alone. A file that exists is not touched.
        host: Name of the host.
        at: Wall clock now.
        max_bytes: With it, a new file `NAME.1`, `NAME.2`, ... is begun at that size, and only `keep` are kept.
        keep: How many files, the current one included.

    Raises:
        JournalError: the file exists or cannot be created.
    """

    def __init__(self, path: Path, host: str, at: float, *, max_bytes: int | None = None, keep: int = 2) -> None:
        self.path = path
        self.problem: JournalError | None = None
        """Why nothing is written any more."""
        self._host = host
        self._started = at
        self._max_bytes = max_bytes
        self._keep = keep
        self._part = 0
        self._pending = bytearray()
        self._taking = threading.Lock()
        self._size = 0
        self._file = self._create(path, at)

    def append(self, event: AnyEvent, at: float) -> None:
        """Add an event.

        Args:
            event: Already masked.
            at: Seconds since the journal's start, of a clock that is not set.
        """
        if self.problem is None:
            line = form.write_entry(event, at)
            with self._taking:
                self._pending += line

    @property
    def waiting_bytes(self) -> int:
        """Collected since the last `flush` began."""
        return len(self._pending)

    def flush(self) -> JournalError | None:
        """Hand the collected lines to the system. Returns the problem once, when there is one."""
        with self._taking:
            data, self._pending = self._pending, bytearray()
        if not data or self.problem is not None:
            return None
        try:
            self._write(data)
            self._size += len(data)
            if self._max_bytes is not None and self._size >= self._max_bytes:
                self._rotate()
        except (OSError, JournalError) as error:
            words = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self.problem = JournalError(
                "The journal ends here", f"{self.path}: {words}", "Free some space, or record elsewhere"
            )
            return self.problem
        return None

    def close(self) -> JournalError | None:
        """Write what is pending and close. Safe to call twice."""
        problem = self.flush()
        with contextlib.suppress(OSError):
            self._file.close()
        return problem

    def _create(self, path: Path, at: float) -> BinaryIO:
        line = form.write_header(form.Header(host=self._host, at=at, version=__version__, part=self._part))
        try:
            make_folder(path.parent)
            file = open(path, "xb", buffering=0, opener=opener)  # noqa: SIM115 - closed by `close`
            self._size = 0
            self._file = file
            self._write(bytearray(line))
        except FileExistsError as error:
            raise JournalError("The file exists already", str(path), "Name another one") from error
        except OSError as error:
            raise JournalError("The journal cannot be written", f"{path}: {error.strerror}") from error
        self._size = len(line)
        return file

    def _write(self, data: bytearray) -> None:
        """Write all, or nothing at all: half a line is taken back."""
        before = self._size
        done = 0
        try:
            with memoryview(data) as view:
                while done < len(view):
                    done += self._file.write(view[done:]) or 0
        except OSError:
            with contextlib.suppress(OSError):
                whole = data.rfind(b"\n", 0, done) + 1
                os.ftruncate(self._file.fileno(), before + whole)
            raise

    def _rotate(self) -> None:
        """Go on in a new file."""
        self._file.close()
        self._part += 1
        for number in range(self._keep - 1, 0, -1):
            older = self._numbered(number)
            if number == self._keep - 1:
                older.unlink(missing_ok=True)
            if (newer := self._numbered(number - 1)).exists() and number < self._keep:
                newer.rename(older)
        if self._keep <= 1:
            self.path.unlink(missing_ok=True)
        self._file = self._create(self.path, self._started)

    def _numbered(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


def read_header(path: Path) -> form.Header:
    """What a journal says about itself.

    Raises:
        JournalError: it cannot be read, is no journal, or is of a version that is not read here.
    """
    with _reading(path) as file:
        return form.parse_header(next(form.read_lines(file, str(path)), b""), str(path))


def read_events(path: Path) -> Iterator[tuple[float, AnyEvent]]:
    """Seconds since the start and event of each line, read one by one.

    Raises:
        JournalError: it cannot be read, is no journal, or is of a version that is not read here.
    """
    with _reading(path) as file:
        yield from form.events(form.read_lines(file, str(path)), str(path))


def holds_events(path: Path) -> bool:
    """Whether a journal tells anything of its host, not only of the attempts to connect to it."""
    with contextlib.suppress(JournalError):
        return any(event.seq for _, event in read_events(path))
    return False


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise JournalError("The journal cannot be read", f"{path}: {error.strerror}") from error
