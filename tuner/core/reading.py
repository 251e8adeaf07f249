"""Reads the starts in the lines of a log; the same for a file and for a live log."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core import facts as f
from tuner.core.engine import Engine
from tuner.core.failures import failures
from tuner.core.outcome import outcome_of
from tuner.core.phases import by_frames, serving_frames
from tuner.core.records import Record, engine_of, record_of
from tuner.core.story import layout_of, stories
from tuner.core.surroundings import environment, parts
from tuner.domain.behaviour import Behaviour
from tuner.domain.logs import LogFact, LogLine
from tuner.domain.server import START_PHASES, Phase
from tuner.domain.starts import BatchLine, Failure, Figure, PhaseSpan, RankStory, Sign, Start

KEPT_LINES = 20_000
"""Most lines of a start whose text is kept; the places of all of them are."""
_BATCHES = frozenset({f.DECODE, f.PREFILL, f.STATS})
_PAST_ARGS = frozenset({f.WEIGHTS, f.KV_POOL, f.GRAPHS, f.READY, f.LIMITS, f.HTTP_UP, *_BATCHES})
_ENDS = frozenset({f.STOPPED, f.STOPPING, f.STOP_ASKED, f.DIED, f.ERROR})
_LIMITS = {
    "kv_tokens": "max_total_num_tokens",
    "context_length": "context_len",
    "available_gib": "available_gpu_mem",
}
"""Names that the engine has for fields of the capacity line."""

Line = tuple[int, str]


class LineRead(Struct, frozen=True, gc=False):
    """What was read of one line."""

    record: Record
    facts: tuple[LogFact, ...]
    signs: tuple[Sign, ...]
    """Signs of the line by itself; those of a traceback are searched when it is whole."""


def read_line(engine: Engine, at: int, text: str) -> LineRead:
    """Read one line; a caller that reads a log again and again may cache the results."""
    record = record_of(engine, at, text)
    facts = tuple(engine.facts(text, record.prefix, at)) if engine.interesting(text) else ()
    if facts and facts[0].kind in _BATCHES:
        return LineRead(record, facts, ())
    signs = engine.signs(record.message, prefixed=record.prefixed)
    return LineRead(record, facts, tuple(_placed(sign, record) for sign in signs))


Read = Callable[[Engine, int, str], LineRead]


def starts_of(lines: Iterable[Line], engines: Mapping[str, Engine], read: Read = read_line) -> list[Start]:
    """Return every start in a log, oldest first; empty if no engine is recognised.

    Args:
        lines: Place and text of each line that may matter, unwrapped and cleaned, in order.
        engines: Engines by name.
        read: Reads one line.
    """
    kept = list(lines)
    engine = engine_of(kept, engines)
    if engine is None:
        return []
    return [start_of(part, engine) for part in parts_of([read(engine, at, text) for at, text in kept])]


def start_of(lines: Sequence[LineRead], engine: Engine) -> Start:
    """Build a start from its lines.

    Args:
        lines: All lines of the start, in order.
        engine: Engine that printed them.
    """
    raised, others = failures((line.record for line in lines), engine.plan().package)
    alone = {id(record) for record in others}
    facts: list[LogFact] = [_asked(failure) for failure in raised if failure.exception == "KeyboardInterrupt"]
    signs: list[Sign] = []
    batches: list[BatchLine] = []
    for line in lines:
        if id(line.record) not in alone:
            continue
        for fact in line.facts:
            if fact.kind in _BATCHES:
                batches.append(BatchLine(fact.offset, fact.at, fact.rank, fact.kind, fact.fields))
            else:
                facts.append(fact)
        signs.extend(line.signs)
    facts.sort(key=lambda fact: fact.offset)
    read = [line.record for line in lines]
    settings, at = _settings(facts)
    ranks = stories(facts, layout_of(engine, settings, [fact.rank for fact in facts]))
    ready = next((fact.offset for fact in facts if fact.kind == f.READY), _other_node_ready(signs))
    start = Start(
        engine=engine.name,
        version=next((fact.fields["version"] for fact in facts if fact.fields.get("version")), None),
        first=read[0].at if read else 0,
        last=read[-1].at if read else 0,
        began=next((record.time for record in read if record.time is not None), None),
        ended=next((record.time for record in reversed(read) if record.time is not None), None),
        settings=settings,
        settings_at=at,
        given=_given(facts),
        ranks=ranks,
        ready_at=ready,
        limits=_limits(facts),
        lines=tuple(_line(record) for record in read[:KEPT_LINES]),
        places=tuple(record.at for record in read),
        facts=tuple(facts),
        signs=tuple(signs),
        batches=tuple(batches),
    )
    start = msgspec.structs.replace(start, phase=_furthest(start))
    marks = Marks.of(start)
    behaviour = engine.behaviour()
    told = tuple(_placed_in_phase(start, failure, behaviour, marks) for failure in raised)
    signs.extend(sign for failure in told for sign in signs_of(failure, engine))
    start = msgspec.structs.replace(start, failures=told, signs=tuple(sorted(signs, key=lambda sign: sign.at)))
    start = msgspec.structs.replace(start, env=environment(start), versions=parts(start))
    version, inferred = engine.infer_version(start)
    start = msgspec.structs.replace(start, version=version, version_inferred=inferred)
    return msgspec.structs.replace(start, outcome=outcome_of(start))


def _asked(failure: Failure) -> LogFact:
    """Return the fact that the operator asked for an end, made of a KeyboardInterrupt (Ctrl-C)."""
    return LogFact(kind=f.STOP_ASKED, rank=failure.rank, offset=failure.at, at=failure.time, text=failure.exception)


def _other_node_ready(signs: Iterable[Sign]) -> int | None:
    """Return where a node that serves no clients says its ranks are ready: it then answers health checks."""
    return next((sign.at for sign in signs if sign.id == "non-zero-node"), None)


def signs_of(failure: Failure, engine: Engine) -> Iterator[Sign]:
    """Yield the signs of an exception, in its own words and in those the engine made of it, each sign once."""
    seen: set[str] = set()
    texts = [(failure.message_at, failure.exception, failure.message)]
    if failure.final_at != failure.message_at:
        texts.append((failure.final_at, failure.final_exception, failure.final_message))
    for at, name, message in texts:
        for sign in engine.signs(f"{name}: {message}", prefixed=False):
            if sign.id not in seen:
                seen.add(sign.id)
                yield msgspec.structs.replace(sign, at=at, rank=failure.rank, time=failure.time)


class Marks(Struct, frozen=True):
    """The facts that tell the phase of a starting engine, indexed once for all failures of a log."""

    http_up: int | None
    """Place of the first line that says that the HTTP server is up."""
    bars: tuple[LogFact, ...]
    """Progress bars whose phase is known, in log order."""

    @classmethod
    def of(cls, start: Start) -> Marks:
        """Index the facts of a start that mark a phase."""
        return cls(
            next((fact.offset for fact in start.facts if fact.kind == f.HTTP_UP), None),
            tuple(fact for fact in start.facts if fact.kind == f.PROGRESS and fact.fields.get("phase")),
        )


def _placed_in_phase(start: Start, failure: Failure, behaviour: Behaviour, marks: Marks) -> Failure:
    """Return the failure with what its stack, or else the log before it, tells of the phase."""
    failure = msgspec.structs.replace(failure, serving=serving_frames(failure.frames, behaviour))
    return msgspec.structs.replace(failure, phase=_phase_at(start, failure, behaviour, marks))


def _phase_at(start: Start, failure: Failure, behaviour: Behaviour, marks: Marks) -> Phase | str:
    """Return the phase in which an exception was raised."""
    named = by_frames(failure.frames, behaviour)
    serving = failure.serving
    if named is not None and not (serving and named in ("graph-capture", "weight-load", "dist-init", "kv-alloc")):
        return named
    if start.ready_at is not None and start.ready_at < failure.at:
        return serving_phase(start, failure.at)
    if serving:
        last = _batch_before(start, failure.at)
        return Phase.WARMUP if last is None else last.kind
    return start_phase(start, failure.rank, failure.at, marks, one_speaks=behaviour.one_rank_speaks)


def serving_phase(start: Start, at: int) -> str:
    """Return what a serving engine did at a place in its log, by the batch line before it."""
    last = _batch_before(start, at)
    return "runtime" if last is None or last.kind == f.STATS else last.kind


def _batch_before(start: Start, at: int) -> BatchLine | None:
    """Return the last batch line before a place, by binary search: batch lines stand in the order of the log."""
    index = bisect.bisect_left(start.batches, at, key=lambda batch: batch.at)
    return start.batches[index - 1] if index else None


def start_phase(
    start: Start, rank: str | None, at: int, marks: Marks | None = None, *, one_speaks: bool = False
) -> Phase:
    """Return the phase of a rank at a place in the log; without a rank, of the one that is furthest behind.

    Args:
        start: The start as its log tells it.
        rank: Tag of the rank; None: the one that is furthest behind.
        at: The place.
        marks: Of the start, where they are known already.
        one_speaks: One rank logs for all (`Behaviour.one_rank_speaks`): then the furthest is where all of them are.
    """
    marks = marks or Marks.of(start)
    if rank is None and marks.http_up is not None and marks.http_up < at:
        return Phase.WARMUP
    stories_ = [r for r in start.ranks if one_speaks or rank in (None, r.tag)] or list(start.ranks)
    reached = [_phase_after(span) for r in stories_ if (span := _span_at(r, at)) is not None]
    if one_speaks or len(stories_) <= 1:
        reached += [phase for phase in _by_bars(marks, at) if phase in START_PHASES]
    if reached:
        return (max if one_speaks or len(stories_) <= 1 else min)(reached, key=START_PHASES.index)
    return Phase.ARGS if start.settings_at is not None and start.settings_at < at else Phase.UNKNOWN


def _by_bars(marks: Marks, at: int) -> Iterator[Phase]:
    """Yield the phase of the last progress bar before a place: a log may lack the line that begins it."""
    index = bisect.bisect_left(marks.bars, at, key=lambda fact: fact.offset)
    if index:
        yield Phase(marks.bars[index - 1].fields["phase"])


_NEXT = {Phase.DIST_INIT: Phase.WEIGHT_LOAD, Phase.KV_ALLOC: Phase.GRAPH_CAPTURE, Phase.GRAPH_CAPTURE: Phase.WARMUP}


def _phase_after(span: PhaseSpan) -> Phase:
    """Return the phase of a span, or the next one if it has ended: that is not announced at once."""
    return _NEXT.get(span.phase, span.phase) if span.ended else span.phase


def _span_at(rank: RankStory, at: int) -> PhaseSpan | None:
    before = [span for span in rank.phases if span.at <= at]
    return before[-1] if before else None


def parts_of(lines: Iterable[LineRead]) -> Iterator[list[LineRead]]:
    """Cut a log where another start begins: new arguments, or ranks that initialise again after the end of a start.

    Args:
        lines: Lines of the log, in order.
    """
    part: list[LineRead] = []
    past_args = ended = False
    nodes: set[Any] = set()
    for line in lines:
        for fact in line.facts:
            kind = fact.kind
            begins = False
            if kind in (f.ARGS, f.VERSION) and fact.rank is None:
                settings = fact.fields.get("settings") or {}
                node = settings.get("node_rank")
                other_node = (settings.get("nnodes") or 1) > 1 and node not in nodes
                begins = (past_args or ended) and not other_node and _begins(fact)
                nodes.add(node)
            elif kind == f.PHASE_BEGIN and fact.fields.get("phase") == Phase.DIST_INIT:
                begins = ended and past_args
            if begins and part:
                yield part
                part, past_args, ended, nodes = [], False, False, set()
            past_args = past_args or kind in _PAST_ARGS or kind == f.PHASE_BEGIN
            ended = ended or (kind in _ENDS and not fact.fields.get("general"))
        part.append(line)
    if part:
        yield part


def _begins(fact: LogFact) -> bool:
    """Return whether the line is the first of a start: some engines print their configuration again later."""
    return fact.kind == f.VERSION or fact.fields.get("begins_start") is True


def _placed(sign: Sign, record: Record) -> Sign:
    return msgspec.structs.replace(sign, at=record.at, rank=record.rank, time=record.time)


def _line(record: Record) -> LogLine:
    return LogLine(
        offset=record.at, text=record.text, rank=record.rank, level=record.level, continued=not record.prefixed
    )


def _settings(facts: Sequence[LogFact]) -> tuple[dict[str, Any], int | None]:
    merged: dict[str, Any] = {}
    at: int | None = None
    for fact in facts:
        if fact.kind == f.ARGS and fact.fields.get("settings"):
            merged.update(fact.fields["settings"])
            at = fact.offset if at is None or fact.fields.get("resolved") else at
    return merged, at


def _given(facts: Sequence[LogFact]) -> dict[str, Any]:
    return next(
        (
            fact.fields.get("settings") or {}
            for fact in facts
            if fact.kind == f.ARGS and not fact.fields.get("resolved")
        ),
        {},
    )


def _limits(facts: Sequence[LogFact]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for fact in facts:
        if fact.kind == f.LIMITS:
            for name, value in fact.fields.items():
                if isinstance(value, int | float):
                    found.setdefault(_LIMITS.get(name, name), Figure(value, fact.offset))
        elif fact.kind == f.KV_POOL and fact.rank is None and fact.fields.get("tokens") is not None:
            found.setdefault("max_total_num_tokens", Figure(fact.fields["tokens"], fact.offset))
    return found


def _furthest(start: Start) -> Phase | str:
    if start.ready_at is not None:
        return Phase.READY
    reached = [span.phase for rank in start.ranks for span in rank.phases]
    if any(fact.kind == f.HTTP_UP for fact in start.facts):
        return Phase.WARMUP
    if reached:
        return max(reached, key=START_PHASES.index)
    if start.batches:
        return Phase.READY
    return Phase.ARGS if start.settings_at is not None else Phase.UNKNOWN
