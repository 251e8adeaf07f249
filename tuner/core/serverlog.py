"""Turns the bytes of a server's log into lines to show and facts to fold."""

from __future__ import annotations

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


def received(
    server: ServerState, event: LogBytes, engine: Engine | None, *, live: bool, doubt: Doubt | None = None
) -> ServerState:
    """Fold new bytes of a log, in order.

    Args:
        server: The server they belong to.
        event: The bytes.
        engine: Reads them; None for an engine this version does not know: lines are shown, nothing is concluded.
        live: False for the backlog of a log that was opened late: its batch lines describe the past and must not
            be drawn as if they happened now.
        doubt: Set while lines may be an earlier process's: those that are, are only shown.
    """
    log = server.log
    # Runs of the start-up section have gaps between them: a line torn before a gap ends there.
    contiguous = event.offset == log.end
    torn = [] if contiguous or not log.partial else [(log.partial_start, log.partial)]
    before = log.partial if contiguous else ""
    raw, partial, start = logtext.split(before, log.partial_start, event.data, event.offset, event.end)
    kind = log.source.kind if log.source else "file"
    lines: list[LogLine] = []
    facts: list[LogFact] = []
    own: list[LogLine] = []
    joined = log.joined
    line_at = log.line_at if contiguous else None
    earlier = predecessor = log.earlier and doubt is not None
    for offset, wrapped in (*torn, *raw):
        text, whole = wrapping.unwrap(kind, wrapped)
        if not whole:
            joined = (joined + text)[: logtext.MAX_LINE + 1]
            continue
        if joined:
            text, joined = joined + text, ""
        for segment in logtext.segments(text):
            found: list[LogFact] = []
            at = _read_line(segment, offset, engine, log, lines, found, line_at)
            if doubt is not None and at is not None:
                earlier = doubt.before(at)
            if at is not None:
                line_at = None if earlier else at
            if earlier:
                predecessor = True
                facts.clear()  # lines before it have no time and are as old
                own.clear()
            else:
                facts.extend(found)
                if offset >= log.facts_end:
                    own.append(lines[-1])
    if partial and "\r" in partial and engine is not None and not earlier and event.offset >= log.facts_end:
        # A progress bar has no line end until it is full; its last state is worth having now.
        _facts_of(logtext.clean(logtext.segments(partial)[-1]), start, engine, facts)
    log = msgspec.structs.replace(
        log,
        partial=partial,
        partial_start=start,
        joined=joined,
        earlier=earlier,
        end=event.end,
        grown_at=event.mono,
        line_at=line_at,
        said_at=event.mono if _says_something(lines) else log.said_at,
        start=log.start if log.blocks else event.offset,
        size=None if kind == "journal" else max(log.size or 0, event.end),
        lines_total=log.lines_total + len(lines),
        # A line that goes on in the next piece of the start-up section is not searched yet.
        facts_end=max(log.facts_end, start if partial else event.end) if event.head else log.facts_end,
    )
    if lines:
        log = _kept(log, LogBlock(start=lines[0].offset, end=event.end, lines=tuple(lines)))
    server = msgspec.structs.replace(server, log=log)
    if server.gone and any(fact.kind == f.ARGS and fact.rank is None for fact in facts):
        # Its successor appends to the same file: those lines are not about this server.
        successor = next(fact for fact in facts if fact.kind == f.ARGS and fact.rank is None)
        facts = facts[: facts.index(successor)]
        own = [line for line in own if line.offset < successor.offset]
        server = msgspec.structs.replace(server, log=msgspec.structs.replace(log, facts_end=NEVER))
    if predecessor:
        server = explaining.forgotten(server)
    if engine is not None and own:
        begins = {fact.offset for fact in facts if fact.kind == f.ARGS and fact.rank is None}
        server = explaining.noted(server, own, engine, begins)
    newest: dict[tuple[str, str | None], LogFact] = {}
    for fact in facts:
        if fact.kind in _BATCHES:
            newest[fact.kind, fact.rank] = fact
        server = apply_fact(server, fact, unsure=doubt is not None)
    if live:
        for fact in newest.values():
            server = metrics.from_batch(server, fact, event.mono)
        if any(_of_work(fact) for fact in facts):
            server = msgspec.structs.replace(server, log=msgspec.structs.replace(server.log, worked_at=event.mono))
    return caught_up(server)


def _says_something(lines: list[LogLine]) -> bool:
    """Return whether new lines are more than access-log lines; none yet, as of a progress bar, counts as more."""
    return not lines or any(not logtext.of_a_request(line.text) for line in lines)


def _of_work(fact: LogFact) -> bool:
    """Return whether a fact is of work: a batch, or statistics that are not all zero, as a hung server prints them."""
    if fact.kind == f.STATS:
        return any(fact.fields.get(name) for name in ("tok_s", "prompt_tok_s", "accept_length"))
    return fact.kind in _BATCHES


def _read_line(
    text: str,
    offset: int,
    engine: Engine | None,
    log: LogState,
    lines: list[LogLine],
    facts: list[LogFact],
    line_at: float | None,
) -> float | None:
    """Read one line into `lines` and `facts` and return its own time.

    None if it has none; its facts then get `line_at`.
    """
    text = logtext.cut(text)
    if engine is None:
        lines.append(LogLine(offset=offset, text=text))
        return None
    prefix = engine.prefix(text)
    before = lines[-1] if lines else (log.blocks[-1].lines[-1] if log.blocks else None)
    if prefix.prefixed:
        message = text[prefix.message_start :]
        level = prefix.level or engine.level(message)
        fold = logtext.fold_key(message) if prefix.rank is not None else 0
        lines.append(LogLine(offset=offset, text=text, rank=prefix.rank, level=level, fold=fold))
    else:
        # Continuation lines carry no prefix: they belong to the line before, though ranks may interleave.
        level = engine.level(text)
        rank = before.rank if before is not None and not before.marker else None
        if before is not None and before.level is Level.ERROR and text[:1] in (" ", "\t"):
            level = max(level, Level.ERROR)
        lines.append(LogLine(offset=offset, text=text, rank=rank, level=level, continued=True))
        prefix = LinePrefix(rank, prefix.at, prefix.message_start, prefix.level, prefixed=False)
    if offset >= log.facts_end and engine.interesting(text):
        timed = prefix if prefix.at is not None else msgspec.structs.replace(prefix, at=line_at)
        facts.extend(engine.facts(text, timed, offset))
    return prefix.at


def _facts_of(text: str, offset: int, engine: Engine, facts: list[LogFact]) -> None:
    if engine.interesting(text):
        facts.extend(engine.facts(text, engine.prefix(text), offset))


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
