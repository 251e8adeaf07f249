"""Find the facts in a log line by an engine's formats, even if a second process wrote into the same line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from tuner.core import facts as f
from tuner.core.engine import LinePrefix
from tuner.core.formats import FormatSet
from tuner.domain.logs import LogFact
from tuner.engines.catalogue import read_formats

KEPT_TEXT = 2000
"""Number of characters of a message that a fact keeps."""
KEPT_ARGS = 120
"""Number of characters kept of the line of server args: it is long and may hold secrets."""


class LogReader:
    """Finds facts in log lines by one catalogue of formats, which is read at first use."""

    def __init__(self, path: Path, split: Callable[[str], LinePrefix], torn: Callable[[str, int], int]) -> None:
        """Store the catalogue's path and the engine's functions; nothing is read yet.

        Args:
            path: The engine's `logs.toml`.
            split: Function that splits a line into prefix and message; the engine's `prefix`.
            torn: Function of a text and a start index that returns the index at which another record begins inside
                the text, or -1.
        """
        self._path = path
        self._split = split
        self._torn = torn

    @functools.cached_property
    def formats(self) -> FormatSet:
        """The compiled formats, read at first use.

        Raises:
            CatalogError: The catalogue is invalid.
        """
        return FormatSet(read_formats(self._path))

    def interesting(self, text: str, start: int) -> bool:
        """Return whether `facts` could find any in a line whose message begins at or shortly after index `start`."""
        return self.formats.interesting(text, start)

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> list[LogFact]:
        """Return the facts of one line: usually none or one, and one more for each other record written into it."""
        found: list[LogFact] = []
        start = prefix.message_start
        while True:
            tear = self._torn(text, start)
            message = text[start:] if tear < 0 else text[start:tear]
            self._add(found, message, prefix, offset)
            if tear < 0:
                return found
            prefix = self._split(text[tear:])
            start = tear + max(prefix.message_start, 1)

    def _add(self, found: list[LogFact], message: str, prefix: LinePrefix, offset: int) -> None:
        hit = self.formats.first(message, prefix.prefixed)
        if hit is None:
            return
        log_format, fields = hit
        kept = KEPT_ARGS if log_format.kind == f.ARGS else KEPT_TEXT
        found.append(
            LogFact(
                kind=log_format.kind,
                rank=prefix.rank,
                offset=offset,
                at=prefix.at,
                format=log_format.id,
                text=message if len(message) <= kept else message[:kept],
                fields=fields,
            )
        )
