"""What both engines do with a log line: find the facts in it, also where another process wrote on in the same line."""

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
"""Characters of a message that a fact keeps."""
KEPT_ARGS = 120
"""Of a settings line only the beginning: it may hold secrets, and is long."""


class LogReader:
    """Facts out of lines by one catalogue of formats, which is read at first use."""

    def __init__(self, path: Path, split: Callable[[str], LinePrefix], torn: Callable[[str, int], int]) -> None:
        """Keep what is needed to read lines.

        Args:
            path: The engine's `logs.toml`.
            split: The engine's `prefix`.
            torn: Index at or after a given one where another record begins inside the text, or -1.
        """
        self._path = path
        self._split = split
        self._torn = torn

    @functools.cached_property
    def formats(self) -> FormatSet:
        """The catalogue.

        Raises:
            CatalogError: It is wrong.
        """
        return FormatSet(read_formats(self._path))

    def interesting(self, text: str, start: int) -> bool:
        """Whether `facts` could say anything of a line whose message begins at `start`, or a little before."""
        return self.formats.interesting(text, start)

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> list[LogFact]:
        """Facts of one line; two when two processes wrote into it."""
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
