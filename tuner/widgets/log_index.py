"""The rows of a log under a filter: which lines are shown, and which row stands for several. No terminal, no IO.

The index grows with the blocks of `LogState` and never reads a block twice, so that a burst costs only its own lines.
After a change of the filter it is rebuilt from the newest block backwards, in slices: the lines on screen are right at
once, the others follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tuner.domain.logs import Level, LogBlock, LogLine
from tuner.domain.state import LogState

WINDOW = 400
"""Equal lines of several ranks are folded when they are at most this many lines apart."""
SLICE = 1_000
"""Lines indexed in one step of a rebuild: it takes a few milliseconds, which is no noticeable delay of a key."""


class LogFilter(Struct, frozen=True, kw_only=True):
    """Which lines are shown. Markers always are."""

    rank: str | None = None
    """Show only this rank; the empty text stands for lines without a rank, None for all lines."""
    level: Level = Level.DEBUG
    """Show only lines of at least this severity."""
    text: str = ""
    """Show only lines that contain this text, ignoring case."""

    @property
    def active(self) -> bool:
        """Return whether the filter may hide any line."""
        return self.rank is not None or self.level > Level.DEBUG or bool(self.text)


def hides(log_filter: LogFilter, lines: Sequence[LogLine], offset: int) -> bool:
    """Return whether a filter hides the line at a byte offset."""
    found: list[int | None] = []
    for each in (LogFilter(), log_filter):
        index = LogIndex()
        index.refilter(each, folding=False)
        index.extend(lines)
        row = index.at_offset(offset)
        found.append(None if row is None else line_of(index[row]).offset)
    return found[0] != found[1]


class Fold(Struct, gc=False):
    """A row for equal lines of several ranks, of which the first line is shown.

    Tens of thousands exist at a time. `gc=False`: they refer only to texts, so the garbage collector need not visit
    them.
    """

    line: LogLine
    seen: int
    ranks: tuple[str, ...]
    body: tuple[str, ...] = ()
    """The lines that follow the first one (a traceback), with which those of other ranks are compared."""


Row = LogLine | Fold


def line_of(row: Row) -> LogLine:
    """Return the line that a row shows."""
    return row.line if type(row) is Fold else row  # type: ignore[return-value]


class _Folder:
    """Appends lines to rows and joins equal lines of several ranks."""

    def __init__(self) -> None:
        self._open: dict[int, deque[Fold]] = {}
        self._count = 0
        self._body: Fold | None = None
        self._joined: Fold | None = None
        self._at = 0

    def add(self, line: LogLine, rows: list[Row]) -> None:
        self._count += 1
        if line.continued:
            self._continue(line, rows)
            return
        self._body = self._joined = None
        fold = line.fold
        if not fold or line.rank is None:
            rows.append(line)
            return
        groups = self._open.get(fold)
        if groups is None:
            if len(self._open) > 4 * WINDOW:
                self._forget()
            groups = self._open[fold] = deque(maxlen=16)
        while groups and self._count - groups[0].seen > WINDOW:
            groups.popleft()
        for group in groups:
            if line.rank not in group.ranks:
                group.ranks += (line.rank,)
                self._joined, self._at = group, 0
                return
        group = Fold(line, self._count, (line.rank,))
        groups.append(group)
        rows.append(group)
        self._body = group

    def _continue(self, line: LogLine, rows: list[Row]) -> None:
        """Fold the lines of a traceback with its first line; from where they differ they are shown."""
        if self._joined is not None:
            body = self._joined.body
            if self._at < len(body) and body[self._at] == line.text:
                self._at += 1
                return
            self._joined = None
        elif self._body is not None and len(self._body.body) < WINDOW:
            self._body.body += (line.text,)
        rows.append(line)

    def _forget(self) -> None:
        oldest = self._count - WINDOW
        self._open = {key: groups for key, groups in self._open.items() if groups and groups[-1].seen >= oldest}


class LogIndex:
    """The rows of one log under one filter.

    A row keeps its id for as long as it is in the index: `first` is the id of `rows[0]`, and older rows are inserted
    before it with smaller ids.
    """

    def __init__(self, *, keep_rows: int | None = None) -> None:
        """Start empty.

        Args:
            keep_rows: Hold only about this many of the newest rows and never index older ones (a tail); None for all.
        """
        self.rows: list[Row] = []
        self.first = 0
        self.version = 0
        """Incremented with every change."""
        self.filter = LogFilter()
        self.folding = True
        self.ranks: dict[str, None] = {}
        """Rank tags seen so far, in the order of appearance."""
        self.fetched: tuple[LogBlock, ...] = ()
        """Blocks that were fetched from the host and stand before the log's own."""
        self.resets = 0
        """Incremented whenever rows get new ids."""
        self._keep_rows = keep_rows
        self._blocks: tuple[LogBlock, ...] = ()
        self._generation = 0
        self._counts: deque[int] = deque()
        self._todo = 0
        self._folder = _Folder()

    @property
    def last(self) -> int:
        """Return the id after that of the newest row."""
        return self.first + len(self.rows)

    @property
    def building(self) -> bool:
        """Return whether older blocks are still to be indexed."""
        return self._todo > 0

    @property
    def start(self) -> int:
        """Return the byte offset of the first line in the index, shown or not."""
        return next((block.start for block in (*self.fetched, *self._blocks)), 0)

    def __getitem__(self, row_id: int) -> Row:
        return self.rows[row_id - self.first]

    def update(self, log: LogState) -> bool:
        """Take in new blocks and drop those that the log no longer holds.

        Returns:
            Whether anything changed.
        """
        blocks = log.blocks
        old = self._blocks
        if blocks is old:
            return False
        self._blocks = blocks
        at = _position(blocks, old[-1]) if old else None
        if at is None or self._outruns(blocks[at + 1 :]):
            self.fetched = ()
            self._reset()
            return True
        if self._keep_rows is None:
            self._drop(old, blocks)
        self._append(blocks[at + 1 :])
        if self._keep_rows is not None and len(self.rows) > 2 * self._keep_rows:
            self._cut(len(self.rows) - self._keep_rows)
        self.version += 1
        return True

    def refilter(self, log_filter: LogFilter, *, folding: bool) -> None:
        """Change the filter. The newest rows are indexed on return; `work` indexes the others."""
        if log_filter == self.filter and folding == self.folding:
            return
        self.filter, self.folding = log_filter, folding
        self._reset()

    def work(self, lines: int = SLICE) -> bool:
        """Index older blocks, about `lines` lines of them.

        Returns:
            Whether older blocks are still to be indexed.
        """
        done = 0
        parts: list[list[Row]] = []
        blocks = (*self.fetched, *self._blocks)
        while self._todo and done < lines:
            self._todo -= 1
            block = blocks[self._todo]
            done += len(block.lines)
            rows: list[Row] = []
            self._filter(block.lines, rows, _Folder())
            parts.append(rows)
            self._counts.appendleft(len(rows))
        if parts:
            # Inserted once for all blocks, since each insertion moves all rows behind it.
            older = [row for rows in reversed(parts) for row in rows]
            self.rows[0:0] = older
            self.first -= len(older)
            self.version += 1
        return self._todo > 0

    def prepend(self, lines: Sequence[LogLine]) -> None:
        """Insert older lines that were fetched from the host at the beginning."""
        self.fetched = (LogBlock(lines[0].offset, lines[-1].offset + 1, tuple(lines)), *self.fetched)
        self._todo += 1
        if self._todo == 1:
            self.work()

    def extend(self, lines: Sequence[LogLine]) -> None:
        """Append later lines, to a part of a log that is shown apart from its live end."""
        block = LogBlock(lines[0].offset, lines[-1].offset + 1, tuple(lines))
        self.fetched += (block,)
        self._append((block,))
        self.version += 1

    def find(self, text: str, start: int, step: int) -> int | None:
        """Return the id of the next row that contains a text (ignoring case), from `start` on in steps of 1 or -1."""
        rows, first = self.rows, self.first
        needle = text.lower()
        stop = len(rows) if step > 0 else -1
        for index in range(start - first, stop, step):
            if 0 <= index < len(rows) and needle in line_of(rows[index]).text.lower():
                return index + first
        return None

    def find_level(self, level: Level, start: int, step: int) -> int | None:
        """Return the id of the next row of at least this severity that begins a message."""
        rows, first = self.rows, self.first
        stop = len(rows) if step > 0 else -1
        for index in range(start - first, stop, step):
            if 0 <= index < len(rows):
                line = line_of(rows[index])
                if line.level >= level and not line.marker and not line.continued:
                    return index + first
        return None

    def at_offset(self, offset: int) -> int | None:
        """Return the id of the last row that begins at or before a byte offset; None where there is none."""
        found = None
        for index in range(len(self.rows) - 1, -1, -1):
            line = line_of(self.rows[index])
            if not line.marker and line.offset <= offset:
                found = index + self.first
                break
        return found

    def below(self, offset: int) -> int | None:
        """Return the id of the row below which a card about an offset is shown; None where its line is not there."""
        blocks = (*self.fetched, *self._blocks)
        held = any(block.start <= offset < block.end for block in reversed(blocks))
        return self.at_offset(offset) if held else None

    def nearest(self, offset: int) -> int | None:
        """Return the id of the row that begins nearest to a byte offset; None where no row is shown."""
        before = self.at_offset(offset)
        if before is None:
            return self.first if self.rows else None
        after = before + 1
        if after < self.last and line_of(self[after]).offset - offset < offset - line_of(self[before]).offset:
            return after
        return before

    def count(self, text: str) -> int:
        """Return how many rows contain a text, ignoring case."""
        needle = text.lower()
        return sum(needle in line_of(row).text.lower() for row in self.rows)

    def _reset(self) -> None:
        # New ids continue after the old ones, so that a remembered id never refers to another row.
        self.first = self.last
        self.resets += 1
        self.rows = []
        self._counts.clear()
        self._folder = _Folder()
        blocks = (*self.fetched, *self._blocks)
        start, lines = len(blocks), 0
        while start and lines < SLICE and (self._keep_rows is None or lines < 2 * self._keep_rows):
            start -= 1
            lines += len(blocks[start].lines)
        self._todo = start if self._keep_rows is None else 0
        self._append(blocks[start:])
        self.version += 1

    def _outruns(self, blocks: Iterable[LogBlock]) -> bool:
        """Return whether these are more blocks than a tail needs: the newest alone would fill it."""
        return self._keep_rows is not None and sum(len(block.lines) for block in blocks) > SLICE

    def _append(self, blocks: Iterable[LogBlock]) -> None:
        for block in blocks:
            lines: Sequence[LogLine] = block.lines
            if self._keep_rows is not None and len(lines) > 8 * self._keep_rows:
                # A tail shows a handful of rows, so only the end of a burst is indexed.
                lines = lines[-8 * self._keep_rows :]
            before = len(self.rows)
            self._filter(lines, self.rows, self._folder)
            self._counts.append(len(self.rows) - before)

    def _filter(self, lines: Sequence[LogLine], rows: list[Row], folder: _Folder) -> None:
        wanted = self.filter
        ranks = self.ranks
        add = folder.add if self.folding else None
        rank, level = wanted.rank, wanted.level
        needle = wanted.text.lower()
        plain = not wanted.active
        head_passes = True
        for line in lines:
            if line.rank is not None and line.rank not in ranks:
                ranks[line.rank] = None
            if not plain and not line.marker:
                passes = (rank is None or rank == (line.rank or "")) and line.level >= level
                if needle:
                    passes = passes and needle in line.text.lower()
                if line.continued:
                    # The lines of a traceback are shown or hidden with its first line.
                    passes = passes or head_passes
                else:
                    head_passes = passes
                if not passes:
                    continue
            if add is not None:
                add(line, rows)
            else:
                rows.append(line)

    def would_drop(self, log: LogState) -> int:
        """Return how many rows `update` would drop from the beginning."""
        old, new = self._blocks, log.blocks
        gone = (_position(old, new[0]) if new else None) if old else 0
        if gone is None:
            return len(self.rows)
        indexed = max(0, gone + len(self.fetched) - self._todo) if gone else 0
        return sum(count for count, _ in zip(self._counts, range(indexed), strict=False))

    def _drop(self, old: tuple[LogBlock, ...], new: tuple[LogBlock, ...]) -> None:
        gone = _position(old, new[0]) or 0
        if not gone:
            return
        # Fetched blocks are dropped too: there would be a gap behind them.
        gone += len(self.fetched)
        self.fetched = ()
        skipped = min(gone, self._todo)
        self._todo -= skipped
        self._cut(sum(self._counts.popleft() for _ in range(gone - skipped)))

    def _cut(self, count: int) -> None:
        del self.rows[:count]
        self.first += count


def _position(blocks: tuple[LogBlock, ...], block: LogBlock) -> int | None:
    """Return the index of this block (the same object), searched from the end; None where it is not there."""
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index] is block:
            return index
    return None
