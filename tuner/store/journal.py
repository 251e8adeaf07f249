"""Write and read journals: a session's events in an append-only file, for replay, tests and bug reports.

The format is in `core.journal`. Secrets in events are masked before they get here.
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
    """Writes one journal.

    `append` collects lines without waiting for the disk; `flush` writes them, from any thread but one call at a time.
    Nothing is synced: a killed process loses nothing that was written, only a machine that fails may. If a write fails,
    the journal ends with its last complete line, reports that once, and the session goes on without it.

    Args:
        path: New file; created with its folders, readable by this user alone.
        host: Name of the host.
        at: Wall clock now, Unix seconds.
        max_bytes: Size at which a new file is begun and the old one renamed to `NAME.1`, `NAME.2`, ...; None: never.
        keep: Number of files kept then, including the current one.

    Raises:
        JournalError: The file exists or cannot be created.
    """

    def __init__(self, path: Path, host: str, at: float, *, max_bytes: int | None = None, keep: int = 2) -> None:
        self.path = path
        self.problem: JournalError | None = None
        """Reason why nothing is written any more; None while the journal works."""
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
        """Collect an event for the next `flush`.

        Args:
            event: Event whose secrets are masked.
            at: Seconds since the journal's start, by a monotonic clock.
        """
        if self.problem is None:
            line = form.write_entry(event, at)
            with self._taking:
                self._pending += line

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes collected since the last `flush` began."""
        return len(self._pending)

    def flush(self) -> JournalError | None:
        """Write the collected lines; return the problem, once, if writing fails."""
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
        """Write the collected lines and close the file; safe to call twice. Returns the problem if writing fails."""
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
        """Write all data; if that fails, truncate the file to its last complete line and raise OSError."""
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
        """Rename the older files and continue in a new one."""
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
    """Read the header of a journal.

    Raises:
        JournalError: The file cannot be read, is not a journal, or has an unsupported version.
    """
    with _reading(path) as file:
        return form.parse_header(next(form.read_lines(file, str(path)), b""), str(path))


def read_events(path: Path) -> Iterator[tuple[float, AnyEvent]]:
    """Yield each event with its seconds since the journal's start, reading line by line.

    Raises:
        JournalError: The file cannot be read, is not a journal, or has an unsupported version.
    """
    with _reading(path) as file:
        yield from form.events(form.read_lines(file, str(path)), str(path))


def holds_events(path: Path) -> bool:
    """Return whether a journal has any event of its host, not only of attempts to connect; False if unreadable."""
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
