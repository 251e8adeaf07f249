"""The diagnosis of a live server: which log lines are kept for it, and when it is repeated.

It is the diagnosis that log files get. A followed log may be of any length, so only lines of the present start that
may matter are kept, and of lines with the same shape only the first `ALIKE`. The diagnosis is repeated when something
arrived that may change it: soon if a line means something, seldom if none does.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Sequence
from weakref import WeakKeyDictionary

import msgspec

from tuner.core import hang, sift
from tuner.core.advice import advise
from tuner.core.diagnosis import by_severity, diagnose
from tuner.core.engine import Engine
from tuner.core.logtext import clean, segments
from tuner.core.reading import LineRead, parts_of, read_line, start_of
from tuner.core.roots import ends, root_of
from tuner.core.scene import NOTHING, completed, scene_of, with_host
from tuner.domain.findings import Finding, Outcome, Severity
from tuner.domain.logs import Level, LogLine
from tuner.domain.server import START_PHASES, Phase
from tuner.domain.starts import Start
from tuner.domain.state import ExplainState, HostState, KeptLine, ServerState

MOST, KEEP = 1_500, 1_000
"""Most lines that are kept; when there are more, they are reduced to `KEEP`."""
ALIKE = 64
"""Most lines of one shape that are kept: further ones say nothing new."""
SHAPES = 4_096
"""Most shapes that are counted; lines of further shapes are all kept."""
BATCHES = 300
"""Newest batch lines that are kept."""
URGENT_S = 0.5
"""Seconds between two diagnoses while lines that may be of a failure keep coming; the first is made at once."""
STARTING_S, SERVING_S = 2.0, 10.0
"""Seconds between two diagnoses while no line means anything: during a start, and later."""
ADVISE_EVERY_S = 5.0
"""Seconds between two looks at the numbers of a server."""
MEMORY_STEP = 64 << 20
"""Bytes: GPU memory is compared in steps of this size; smaller changes are no growth."""
_LONG = 2_048
"""Characters: longer lines are never grouped by shape."""
_ENDS, _AFTER = 200, 60
"""Lines at either end of a start, and lines after an error, that are kept whatever they say."""
_NEWS_OF_NOTHING = (False, False, False, 0, *NOTHING.news)
_BEFORE = 1 << 60
"""Offset shift for lines of the previous file; no log is longer."""

_read: WeakKeyDictionary[KeptLine, LineRead] = WeakKeyDictionary()
"""What was read of each line, for as long as the line is kept."""


def read_kept(engine: Engine, line: KeptLine) -> LineRead:
    """Read a kept line, or return what was read before: most lines of a diagnosis were in the last one.

    Args:
        engine: Engine of the server that printed it.
        line: The kept line.
    """
    known = _read.get(line)
    if known is None:
        known = _read[line] = read_line(engine, line.at, line.text)
    return known


# --- What is kept ---------------------------------------------------------------------------------------------------


class _Dull:
    """Shapes that are known to be routine, so that lines of a busy log are looked up and not matched."""

    def __init__(self) -> None:
        self.shapes: set[bytes] = set()
        self.batches: set[bytes] = set()
        """The shapes among them that are of batch lines."""

    def add(self, shape: bytes, text: str) -> None:
        """Remember the shape of a routine line."""
        if len(text) <= _LONG and len(self.shapes) < SHAPES:
            self.shapes.add(shape)
            if " batch" in text or "throughput" in text:
                self.batches.add(shape)


@functools.lru_cache(maxsize=8)
def _dull(routine: bytes) -> _Dull:
    return _Dull()


def noted(server: ServerState, lines: Sequence[LogLine], engine: Engine, begins: Container[int] = ()) -> ServerState:
    """Keep those of the new lines that may matter for a diagnosis.

    Args:
        server: The server that printed them.
        lines: New lines of its log in order, without markers of ours.
        engine: Its engine, which says what is routine.
        begins: Offsets of lines that may begin another start: shapes are counted anew from there.
    """
    told, routine = server.explain, engine.routine()
    dull = _dull(routine)
    shapes = sift.shape("\n".join([line.text for line in lines]).encode("utf-8", "surrogatepass")).split(b"\n")
    notable: list[tuple[LogLine, bytes]] = []
    if not dull.shapes.issuperset(shapes):
        for line, shape in zip(lines, shapes, strict=True):
            if shape in dull.shapes:
                continue
            if shape in told.shapes or sift.notable(line.text, routine):
                notable.append((line, shape))
            else:
                dull.add(shape, line.text)
    batches = told.batches
    if not dull.batches.isdisjoint(shapes):
        found = [line for line, shape in zip(lines, shapes, strict=True) if shape in dull.batches][-BATCHES:]
        batches = (*batches, *(KeptLine(line.offset, line.text) for line in found))[-BATCHES:]
    if not notable:
        return server if batches is told.batches else _with(server, batches=batches, due=True)
    kept, counts, urgent = list(told.lines), dict(told.shapes), told.urgent
    for line, shape in notable:
        if line.offset in begins:
            counts.clear()
        if len(line.text) <= _LONG and (shape in counts or len(counts) < SHAPES):
            counts[shape] = seen = counts.get(shape, 0) + 1
            if seen > ALIKE:
                continue
        kept.append(one := KeptLine(line.offset, line.text))
        urgent = urgent or line.level >= Level.ERROR or sift.alarming(line.text) or bool(read_kept(engine, one).signs)
    if len(kept) > MOST:
        kept = _fewer(kept, engine)
    changed = kept[-1:] != list(told.lines[-1:])
    return _with(
        server,
        lines=tuple(kept) if changed else told.lines,
        batches=batches,
        shapes=counts,
        due=told.due or changed or batches is not told.batches,
        urgent=urgent,
        grown_at=server.log.grown_at if changed else told.grown_at,
    )


def _fewer(lines: list[KeptLine], engine: Engine) -> list[KeptLine]:
    """Reduce the lines to those of the present start, and these to at most `KEEP`.

    Kept are both ends, lines with facts or signs, and errors with the lines after them.
    """
    parts = list(parts_of(read_kept(engine, line) for line in lines))
    last = parts[-1]
    lines = lines[-len(last) :]
    if len(lines) <= KEEP:
        return lines
    wanted = {*range(_ENDS), *range(len(lines) - _ENDS, len(lines))}
    for index, line in enumerate(last):
        if line.facts or line.signs:
            wanted.add(index)
        if line.record.level >= Level.ERROR or "Traceback" in line.record.text:
            wanted.update(range(index, min(index + _AFTER, len(lines))))
    chosen = [lines[index] for index in sorted(wanted)]
    return chosen if len(chosen) <= KEEP else [*chosen[: KEEP // 2], *chosen[-KEEP // 2 :]]


def moved(server: ServerState) -> ServerState:
    """Shift the kept lines to negative offsets: the log goes on in another file, whose offsets begin at 0."""

    def before(lines: tuple[KeptLine, ...]) -> tuple[KeptLine, ...]:
        return tuple(KeptLine(line.at - _BEFORE, line.text) for line in lines)

    told = server.explain
    return _with(server, lines=before(told.lines), batches=before(told.batches), due=bool(told.lines))


def forgotten(server: ServerState) -> ServerState:
    """Drop the kept lines: another process printed them, or the log is read again from its beginning."""
    told = server.explain
    if not (told.lines or told.batches):
        return server
    return _with(server, lines=(), batches=(), shapes={}, due=True, urgent=False)


# --- When it is diagnosed -------------------------------------------------------------------------------------------


def explained(state: HostState, server: ServerState, engine: Engine) -> ServerState:
    """Diagnose a server if there is something new and the last diagnosis is old enough.

    Args:
        state: State of its host.
        server: The server, with the lines that `noted` kept.
        engine: Its engine.
    """
    told = server.explain
    scene = scene_of(state, server)
    seen = (server.phase is Phase.READY, server.phase.ended, server.gone, len(server.past), *scene.news)
    news = seen != (told.seen or _NEWS_OF_NOTHING)
    if not (told.due or news) or (server.log.behind and not server.gone):
        return server
    wait = URGENT_S if told.urgent else STARTING_S if server.phase.starting else SERVING_S
    if told.at is not None and not news and 0 <= state.mono - told.at < wait:
        return server
    start = _start(server, engine)
    if start is None and scene.failed:
        start = _untold(server, engine)
    talking = not server.gone and told.grown_at is not None and 0 <= state.mono - told.grown_at < URGENT_S
    if start is not None and talking and (_announced(server) or _unfinished(start)):
        return server
    if start is None:
        return _with(server, due=False, urgent=False, at=state.mono, seen=seen)
    if told.lines and told.lines[0].at < start.first:
        # Another start has begun: the lines of the last one are no longer needed.
        own = tuple(line for line in told.lines if line.at >= start.first)
        server = _with(server, lines=own, batches=tuple(line for line in told.batches if line.at >= start.first))
    found = completed(diagnose(start, engine, server.past), start, engine, scene)
    if found and found[0].severity is Severity.FATAL and _lives_on(server, start):
        found = found[1:]
    if talking and any(finding.cause == "inconclusive" for finding in found):
        return server  # wait: the line that names the cause may still come
    if found == told.diagnosed:
        found = told.diagnosed
    server = _with(server, due=False, urgent=False, at=state.mono, seen=seen, diagnosed=found)
    server = msgspec.structs.replace(server, start=start)
    return _shown(_failed(server, start, found[0]) if found and found[0].severity is Severity.FATAL else server)


def _failed(server: ServerState, start: Start, root: Finding) -> ServerState:
    """Mark the start as failed, in the phase that the root cause names.

    The log alone may be wrong about both: it can end in full work, or look as if a phase had not begun, or had ended.
    """
    start = msgspec.structs.replace(start, outcome=Outcome.FAILED)
    errors = server.errors
    if root.phase in START_PHASES:
        phase = Phase(root.phase)
        start = msgspec.structs.replace(start, phase=phase, ready_at=None)
        errors = (*(msgspec.structs.replace(each, phase=phase) for each in errors[:1]), *errors[1:])
    return msgspec.structs.replace(server, start=start, errors=errors)


def _start(server: ServerState, engine: Engine) -> Start | None:
    """Build the present start from the kept lines and what is known beside the log; None without lines."""
    told = server.explain
    kept = sorted((*told.lines, *told.batches, *_torn(server)), key=lambda line: line.at)
    parts = list(parts_of(read_kept(engine, line) for line in kept))
    if not parts:
        return None
    return with_host(start_of(parts[-1], engine), server)


def _untold(server: ServerState, engine: Engine) -> Start:
    """Build a failed start of which no line can be read, as far as the host shows it."""
    served = server.metrics.at is not None or any(error.phase is Phase.READY for error in server.errors)
    start = Start(engine=engine.name, outcome=Outcome.FAILED, phase="runtime" if served else "none")
    return with_host(start, server)


def _lives_on(server: ServerState, start: Start) -> bool:
    """Return whether the root failure ended no process: the server was ready and all its processes live."""
    if server.gone or server.phase is not Phase.READY or not all(rank.alive for rank in server.ranks):
        return False
    root = root_of(start)
    return root is not None and root.failure is not None and not ends(root.failure)


def _announced(server: ServerState) -> bool:
    """Return whether the last error only announces another one, which names the reason."""
    return bool(server.errors) and server.errors[-1].header


def _unfinished(start: Start) -> bool:
    """Return whether the log ends in the middle of an exception, whose message comes last."""
    return any(not failure.whole and failure.end >= start.last for failure in start.failures)


def _torn(server: ServerState) -> Iterator[KeptLine]:
    """Yield the torn last line of a server that is gone: nobody will complete it."""
    log = server.log
    if server.gone and log.partial and not log.earlier:
        yield KeptLine(log.partial_start, clean(segments(log.partial)[-1]))


def advised(state: HostState, server: ServerState, engine: Engine) -> ServerState:
    """Renew the advice from the numbers of a server, at most every `ADVISE_EVERY_S`."""
    told = server.explain
    if told.advised_at is not None and 0 <= state.mono - told.advised_at < ADVISE_EVERY_S:
        return server
    used = {rank.gpu for rank in server.ranks}
    held = tuple((sample.memory_used_bytes or 0) // MEMORY_STEP for sample in state.samples if sample.index in used)
    still = told.still_since if held == told.held else state.mono
    halted = tuple(part.pid for part in hang.stopped_parts(server))
    since = told.halted_since if halted == told.halted else state.mono
    server = _with(
        server,
        advised_at=state.mono,
        held=held,
        still_since=still,
        halted=halted,
        halted_since=since if halted else None,
    )
    return _shown(_with(server, advice=advise(state, server, engine)))


def _shown(server: ServerState) -> ServerState:
    """Merge the findings from log and numbers into one list, each cause once, the worst first."""
    told = server.explain
    causes = {finding.cause for finding in told.diagnosed}
    findings = by_severity((*told.diagnosed, *(each for each in told.advice if each.cause not in causes)))
    return server if findings == server.findings else msgspec.structs.replace(server, findings=findings)


def _with(server: ServerState, **changes: object) -> ServerState:
    explain: ExplainState = msgspec.structs.replace(server.explain, **changes)
    return msgspec.structs.replace(server, explain=explain)
