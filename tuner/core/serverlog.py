"""Turns the bytes of a server's log into lines to show and facts to fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tuner.core import explaining, logtext, metrics, wrapping
from tuner.core import facts as f
from tuner.core.engine import Engine, LinePrefix
from tuner.core.lifecycle import apply_fact, caught_up
from tuner.core.predecessor import Doubt
from tuner.domain.events import LogBytes, LogGap, LogOpened
from tuner.domain.logs import Level, LogBlock, LogFact, LogLine
from tuner.domain.server import LogSource
from tuner.domain.state import LogState, ServerState
from tuner.units import format_bytes

KEEP_LINES = 40_000
"""Lines held for scrolling; older ones are read from the host again when asked for."""
KEEP_CHARACTERS = 12_000_000
"""Most characters of these lines."""
NEVER = 1 << 62
"""An offset no log reaches."""
_BATCHES = (f.DECODE, f.PREFILL, f.STATS)
_OPENED = {
    "rotated": "log was rotated",
    "truncated": "log was truncated",
    "replaced": "log was replaced",
    "vanished": "log file vanished; waiting for it to come back",
    "unreadable": "log cannot be read",
}


def opened(server: ServerState, event: LogOpened) -> ServerState:
    """Fold that the probe opened the log, or that it is another file now."""
    log = server.log
    source = LogSource(kind=event.kind, path=event.path, device=event.device, inode=event.inode, note=event.note)
    size = None if event.kind == "journal" else event.size  # its offsets tell the order of lines, not how much there is
    if event.reason in ("start", "resume"):
        log = msgspec.structs.replace(log, source=source, size=size)
        if event.reason == "start":
            log = msgspec.structs.replace(log, backlog_end=event.size or 0)
        if event.reason == "start" and log.blocks:
            log = _marked(log, event.offset, "log opened again", generation=True)
            server = explaining.forgotten(server)
        return msgspec.structs.replace(server, log=log)
    text = _OPENED.get(event.reason, event.reason) + (f": {event.note}" if event.note else "")
    log = _marked(log, event.offset, text, generation=event.reason != "vanished")
    if event.reason != "vanished":
        server = explaining.moved(server)
    return msgspec.structs.replace(server, log=msgspec.structs.replace(log, source=source, size=size))


def gap(server: ServerState, event: LogGap) -> ServerState:
    """Fold a gap of bytes that were not sent; a marker line shows it."""
    size = event.end - event.offset
    how_much = format_bytes(size) if size > 0 else "an unknown part of the log"
    log = _marked(server.log, event.offset, f"{how_much} not shown: {event.reason}")
    log = msgspec.structs.replace(log, dropped_bytes=log.dropped_bytes + size, end=max(log.end, event.end))
    return caught_up(msgspec.structs.replace(server, log=log))


class Piece(NamedTuple):
    """One piece of a log that was read."""

    log: LogState
    """The log with it."""
    lines: list[LogLine]
    facts: list[LogFact]
    """What the server's own lines state."""
    own: list[LogLine]
    """The server's own lines that were not searched for facts before."""
    predecessor: bool
    """Whether some lines, or the newest before them, are an earlier process's."""


def read_piece(log: LogState, event: LogBytes, engine: Engine | None, doubt: Doubt | None = None) -> Piece:
    """Split new bytes of a log into lines and read them.

    Args:
        log: The log so far.
        event: The bytes.
        engine: Reads them; None for an engine this version does not know: lines are shown, nothing is concluded.
        doubt: Set while lines may be an earlier process's: those that are, are only shown.
    """
    # Runs of the start-up section have gaps between them: a line torn before a gap ends there.
    contiguous = event.offset == log.end
    torn = [] if contiguous or not log.partial else [(log.partial_start, log.partial)]
    before = log.partial if contiguous else ""
    raw, partial, start = logtext.split(before, log.partial_start, event.data, event.offset, event.end)
    kind = log.source.kind if log.source else "file"
    reader = _Reader(log, engine, doubt, log.line_at if contiguous else None)
    for offset, wrapped in (*torn, *raw):
        text, whole = wrapping.unwrap(kind, wrapped)
        reader.take(offset, text, whole=whole)
    lines, facts = reader.lines, reader.facts
    if partial and "\r" in partial and engine is not None and not reader.earlier and event.offset >= log.facts_end:
        # A progress bar has no line end until it is full; its last state is worth having now.
        text = logtext.clean(logtext.segments(partial)[-1])
        if engine.interesting(text):
            facts.extend(engine.facts(text, engine.prefix(text), start))
    log = msgspec.structs.replace(
        log,
        partial=partial,
        partial_start=start,
        joined=reader.joined,
        earlier=reader.earlier,
        end=event.end,
        grown_at=event.mono,
        line_at=reader.line_at,
        said_at=event.mono if _says_something(lines) else log.said_at,
        start=log.start if log.blocks else event.offset,
        size=None if kind == "journal" else max(log.size or 0, event.end),
        lines_total=log.lines_total + len(lines),
        # A line that goes on in the next piece of the start-up section is not searched yet.
        facts_end=max(log.facts_end, start if partial else event.end) if event.head else log.facts_end,
    )
    if lines:
        log = _kept(log, LogBlock(start=lines[0].offset, end=event.end, lines=tuple(lines)))
    return Piece(log, lines, facts, reader.own, reader.predecessor)


def received(
    server: ServerState, event: LogBytes, engine: Engine | None, *, live: bool, doubt: Doubt | None = None
) -> ServerState:
    """Fold new bytes of a log, in order.

    Args:
        server: The server they belong to.
        event: The bytes.
        engine: As in `read_piece`.
        live: False for the backlog of a log that was opened late: its batch lines describe the past and must not
            be drawn as if they happened now.
        doubt: As in `read_piece`.
    """
    log, _, facts, own, predecessor = read_piece(server.log, event, engine, doubt)
    server = msgspec.structs.replace(server, log=log)
    successor = next((fact for fact in facts if server.gone and _begins_a_start(fact)), None)
    if successor is not None:
        # It appends to the same file: those lines are not about this server.
        facts = facts[: facts.index(successor)]
        own = [line for line in own if line.offset < successor.offset]
        server = msgspec.structs.replace(server, log=msgspec.structs.replace(log, facts_end=NEVER))
    if predecessor:
        server = explaining.forgotten(server)
    if engine is not None and own:
        server = explaining.noted(server, own, engine, {fact.offset for fact in facts if _begins_a_start(fact)})
    for fact in facts:
        server = apply_fact(server, fact, unsure=doubt is not None)
    return caught_up(_at_work(server, facts, event.mono) if live else server)


def _begins_a_start(fact: LogFact) -> bool:
    return fact.kind == f.ARGS and fact.rank is None


def _at_work(server: ServerState, facts: list[LogFact], mono: float) -> ServerState:
    """Fold the newest batch line of each kind and rank into the numbers of now."""
    newest = {(fact.kind, fact.rank): fact for fact in facts if fact.kind in _BATCHES}
    for fact in newest.values():
        server = metrics.from_batch(server, fact, mono)
    if any(_of_work(fact) for fact in facts):
        server = msgspec.structs.replace(server, log=msgspec.structs.replace(server.log, worked_at=mono))
    return server


def _says_something(lines: list[LogLine]) -> bool:
    """Return whether new lines are more than access-log lines; none yet, as of a progress bar, counts as more."""
    return not lines or any(not logtext.of_a_request(line.text) for line in lines)


def _of_work(fact: LogFact) -> bool:
    """Return whether a fact is of work: a batch, or statistics that are not all zero, as a hung server prints them."""
    if fact.kind == f.STATS:
        return any(fact.fields.get(name) for name in ("tok_s", "prompt_tok_s", "accept_length"))
    return fact.kind in _BATCHES


class _Reader:
    """Reads the lines of one piece, in order.

    Args:
        log: The log before the piece.
        engine: As in `read_piece`.
        doubt: As in `read_piece`.
        line_at: Time of the newest line before the piece, seconds on the log's clock; None where it has none.
    """

    def __init__(self, log: LogState, engine: Engine | None, doubt: Doubt | None, line_at: float | None) -> None:
        self.lines: list[LogLine] = []
        self.facts: list[LogFact] = []
        self.own: list[LogLine] = []
        self.joined = log.joined
        self.line_at = line_at
        self.earlier = self.predecessor = log.earlier and doubt is not None
        self._engine = engine
        self._doubt = doubt
        self._facts_end = log.facts_end
        self._before = log.blocks[-1].lines[-1] if log.blocks else None

    def take(self, offset: int, text: str, *, whole: bool) -> None:
        """Read one line of a log's driver, of which several may be one line of the server."""
        if not whole:
            self.joined = (self.joined + text)[: logtext.MAX_LINE + 1]
            return
        if self.joined:
            text, self.joined = self.joined + text, ""
        for segment in logtext.segments(text):
            self._segment(offset, segment)

    def _segment(self, offset: int, text: str) -> None:
        at, facts = self._line(offset, logtext.cut(text))
        if at is not None:
            if self._doubt is not None:
                self.earlier = self._doubt.before(at)
            self.line_at = None if self.earlier else at
        if self.earlier:
            self.predecessor = True
            self.facts.clear()  # lines before it have no time and are as old
            self.own.clear()
            return
        self.facts.extend(facts)
        if offset >= self._facts_end:
            self.own.append(self.lines[-1])

    def _line(self, offset: int, text: str) -> tuple[float | None, Sequence[LogFact]]:
        """Keep one line; return its own time, None if it has none, and what it states."""
        engine = self._engine
        if engine is None:
            self.lines.append(LogLine(offset=offset, text=text))
            return None, ()
        prefix = engine.prefix(text)
        before = self.lines[-1] if self.lines else self._before
        if prefix.prefixed:
            message = text[prefix.message_start :]
            level = prefix.level or engine.level(message)
            fold = logtext.fold_key(message) if prefix.rank is not None else 0
            self.lines.append(LogLine(offset=offset, text=text, rank=prefix.rank, level=level, fold=fold))
        else:
            # Continuation lines carry no prefix: they belong to the line before, though ranks may interleave.
            level = engine.level(text)
            rank = before.rank if before is not None and not before.marker else None
            if before is not None and before.level is Level.ERROR and text[:1] in (" ", "\t"):
                level = max(level, Level.ERROR)
            self.lines.append(LogLine(offset=offset, text=text, rank=rank, level=level, continued=True))
            prefix = LinePrefix(rank, prefix.at, prefix.message_start, prefix.level, prefixed=False)
        if offset < self._facts_end or not engine.interesting(text):
            return prefix.at, ()
        timed = prefix if prefix.at is not None else msgspec.structs.replace(prefix, at=self.line_at)
        return prefix.at, engine.facts(text, timed, offset)


def _marked(log: LogState, offset: int, text: str, *, generation: bool = False) -> LogState:
    line = LogLine(offset=offset, text=text, level=Level.WARNING, marker=True)
    log = _kept(log, LogBlock(start=offset, end=offset, lines=(line,)))
    if generation:
        return msgspec.structs.replace(
            log,
            generation=log.generation + 1,
            partial="",
            joined="",
            partial_start=offset,
            end=offset,
            facts_end=0,
            earlier=False,
        )
    return msgspec.structs.replace(log, partial="", partial_start=offset)


def _kept(log: LogState, block: LogBlock) -> LogState:
    """Append a block and drop the oldest beyond the limits, never the newest."""
    blocks = (*log.blocks, block)
    held = log.held_lines + len(block.lines)
    characters = log.held_characters + sum(len(line.text) for line in block.lines)
    drop = 0
    while drop < len(blocks) - 1 and (held > KEEP_LINES or characters > KEEP_CHARACTERS):
        held -= len(blocks[drop].lines)
        characters -= sum(len(line.text) for line in blocks[drop].lines)
        drop += 1
    kept = blocks[drop:] if drop else blocks
    return msgspec.structs.replace(log, blocks=kept, start=kept[0].start, held_lines=held, held_characters=characters)
