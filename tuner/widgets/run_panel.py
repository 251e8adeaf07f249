"""A run on the screen: one line below the status of every screen, and its steps, memory and leftovers in full."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.run_words import (
    NEAR_S,
    STARTING,
    STEP_DOING,
    STEP_NAMES,
    aim,
    cause_of,
    going_on,
    interrupted,
    left_s,
    leftover_words,
    operator_name,
    outcome,
    progress,
    returned,
    stops_only,
    wait_words,
    way_on,
)
from tuner.core.runs import ended_at, overtaken
from tuner.domain.runs import Leftover, MemoryBack, RunOutcome, RunRecord, RunStep, StepRecord
from tuner.domain.state import HostState
from tuner.units import GIB, format_duration, format_seconds
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.spans import Line, Span, clean, clip, clip_line, fit, spread, width_of, wrap_parts, wrap_words

NEWS_S = 60.0
"""Seconds for which the outcome of a run is shown below the status of every screen, by the host's clock."""
_ORDER = (RunStep.CHECK, RunStep.DRAIN, RunStep.STOP, RunStep.MEMORY, *STARTING)
_STEP = 12
"""Width of the column with the names of steps, in cells."""


def outcome_span(run: RunRecord, glyphs: Glyphs) -> Span:
    """Return the symbol of a run and the style of its words."""
    if interrupted(run):
        return glyphs.warn, "warn"
    return {
        RunOutcome.RUNNING: (glyphs.busy, "busy"),
        RunOutcome.READY: (glyphs.ok, "ok"),
        RunOutcome.STOPPED: (glyphs.down, "warn"),
        RunOutcome.REFUSED: (glyphs.bad, "bad"),
        RunOutcome.FAILED: (glyphs.bad, "bad"),
        RunOutcome.BACK: (glyphs.warn, "warn"),
        RunOutcome.CANCELLED: (glyphs.warn, "warn"),
        RunOutcome.STUCK: (glyphs.bad, "bad"),
    }[run.outcome]


def news(state: HostState) -> RunRecord | None:
    """Return the run that every screen tells of: one going on or interrupted, or one that ended a moment ago."""
    running = (each for each in state.runs if each.outcome is RunOutcome.RUNNING)
    run = next((each for each in running if not overtaken(state, each)), None)
    if run is not None:
        return run
    newest = state.runs[0] if state.runs else None
    if newest is None or state.now is None or state.now - ended_at(newest) > NEWS_S:
        return None
    return newest


def run_line(state: HostState, width: int, glyphs: Glyphs, *, here: bool = False) -> Line:
    """Return the line that every screen shows of a run; empty if there is none to tell of.

    Args:
        state: State of the host.
        width: Width of the line, in cells.
        glyphs: Symbols to draw with.
        here: The screen shows the run in full, so that no key is needed to get there.
    """
    run = news(state)
    if run is None:
        return ()
    sign, style = outcome_span(run, glyphs)
    words = clean(progress(run, state.now, cause_of(state, run)))
    hint: Line = () if here else (("t ", "busy"), ("what can be done ", "text"))
    if not (interrupted(run) or run.outcome in (RunOutcome.FAILED, RunOutcome.STUCK, RunOutcome.BACK)):
        hint = ()
    return spread(((f" {sign} ", style), (words, style)), hint, width, glyphs.ellipsis)


def run_lines(
    state: HostState, run: RunRecord, width: int, glyphs: Glyphs, *, doing: str = "", keys: Sequence[str] = ()
) -> list[Line]:
    """Return a run in full: what it is about, its steps, the memory that came back, and what was left over.

    Args:
        state: State of the host, for its clock.
        run: The run.
        width: Width of a line, in cells.
        glyphs: Symbols to draw with.
        doing: What the new server does at present, in words, from its log.
        keys: Keys with their words, as `K cancels`, for the last line.
    """
    lines = [_head(state, run, width, glyphs)]
    if run.outcome is not RunOutcome.RUNNING or interrupted(run):
        lines += _end(state, run, width, glyphs)
    for step in _begun(run):
        lines += _step(state, run, step, width, glyphs, doing)
    if going_on(run) and (ahead := _ahead(run)):
        names = f" {glyphs.then} ".join(STEP_NAMES[step] for step in ahead)
        lines.append(clip_line((("   then ", "dim"), (names, "dim")), width, glyphs.ellipsis))
    lines += _memory(run.memory, width, glyphs)
    lines += _leftovers(run.leftovers, width, glyphs)
    if keys:
        parts: list[Line] = []
        for key in keys:
            name, _, words = key.partition(" ")
            parts.append(((f"{name} ", "busy"), (words, "text")))
        lines += [((" ", "text"), *line) for line in wrap_parts(parts, width - 2, ("   ", "text"))]
    return lines


def _head(state: HostState, run: RunRecord, width: int, glyphs: Glyphs) -> Line:
    sign, style = outcome_span(run, glyphs)
    end = ended_at(run) if run.outcome is not RunOutcome.RUNNING or state.now is None else state.now
    word = "so far" if run.outcome is RunOutcome.RUNNING else "in all"
    parts: list[Line] = [
        ((clean(aim(run)), "strong"),),
        ((f"{format_duration(max(0.0, end - run.began_at))} {word}", "text"),),
        ((f"by {clean(operator_name(run.operator))}", "dim"),),
    ]
    if run.back and not run.going_back and run.outcome is RunOutcome.RUNNING:
        parts.append(((f"back: {clean(run.back)}", "dim"),))
    if run.cancelled_by is not None:
        parts.append(((f"cancelled by {clean(operator_name(run.cancelled_by))}", "warn"),))
    return ((f" {sign} ", style), *fit(parts, width - 4, (f" {glyphs.separator} ", "dim")))


def _end(state: HostState, run: RunRecord, width: int, glyphs: Glyphs) -> list[Line]:
    """Return how the run ended, or what an interrupted one has left."""
    if interrupted(run):
        words = f"interrupted while {STEP_DOING[run.step]}: its supervisor is gone; {way_on(state, run)}"
        style = "warn"
    else:
        words, style = outcome(run, cause_of(state, run)), outcome_span(run, glyphs)[1]
        # A server that was killed says so in words already, or its cause is told.
        killed = run.exit_code is not None and run.exit_code < 0 and "ended by SIG" in run.failure
        if run.exit_code is not None and not killed and f"exit code {run.exit_code}" not in words:
            code = f"signal {-run.exit_code}" if run.exit_code < 0 else f"exit code {run.exit_code}"
            words += f" ({code})"
    return [((f"   {chunk}", style),) for chunk in wrap_words(clean(words), width - 5)]


def _begun(run: RunRecord) -> list[StepRecord]:
    return [each for each in run.steps if each.step is not RunStep.END]


def _ahead(run: RunRecord) -> list[RunStep]:
    """Return the steps still to come."""
    if run.step not in _ORDER:
        return []
    ahead = list(_ORDER[_ORDER.index(run.step) + 1 :])
    seen = {each.step for each in run.steps if not each.back}
    if RunStep.DRAIN not in seen and RunStep.DRAIN in ahead:
        ahead.remove(RunStep.DRAIN)
    if run.old is None:
        ahead = [step for step in ahead if step not in (RunStep.STOP, RunStep.MEMORY)]
    return [step for step in ahead if step not in STARTING] if stops_only(run) else ahead


def _step(state: HostState, run: RunRecord, record: StepRecord, width: int, glyphs: Glyphs, doing: str) -> list[Line]:
    """Return a step: how it went, how long it took, and its detail; that of the present one in full."""
    present = record.ended is None and going_on(run)
    last = record is run.steps[-1]
    end = record.ended if record.ended is not None else state.now if present else run.updated_at
    took = "" if end is None else format_seconds(max(0.0, end - record.at), " s")
    if run.outcome is RunOutcome.FAILED:
        # A run that was recorded by an earlier version does not say in which step its start failed.
        failed = bool(record.failed) or (last and not any(each.failed for each in run.steps))
    else:
        failed = bool(record.failed) or (last and run.outcome in (RunOutcome.STUCK, RunOutcome.REFUSED))
    broken = record.ended is None and interrupted(run)
    sign, style = (glyphs.ok, "ok") if record.ended is not None else (glyphs.busy, "busy")
    unclean = record.unclean and not present
    if failed:
        sign, style = glyphs.bad, "bad"
    elif broken or unclean:
        sign, style = glyphs.warn, "warn"
    name = ("back: " if record.back else "") + STEP_NAMES[record.step]
    detail = [record.failed or record.detail]
    if present and not record.failed:
        detail = [run.detail or record.detail, doing if record.step in STARTING else ""]
        if (seconds := left_s(run, state.now)) is not None:
            if record.step in STARTING and seconds >= NEAR_S:
                detail.append(f"gives up in {format_duration(seconds)}")
            else:
                detail.insert(0, wait_words(seconds))
    words = ", ".join(clean(each) for each in detail if each)
    column = max(_STEP, len(name) + 1)
    head: Line = (
        (f"   {sign} ", style),
        (f"{name:<{column}}", "strong" if present else "text"),
        (f"{took:>6}  ", "text" if present else "dim"),
    )
    indent = width_of(head)
    words_style = style if present or failed or unclean else "dim"
    if not (present or failed or unclean):
        return [clip_line((*head, (words, words_style)), width, glyphs.ellipsis)]
    first, *more = wrap_words(words, max(12, width - indent - 1)) or [""]
    return [(*head, (first, words_style)), *(((" " * indent, "text"), (chunk, words_style)) for chunk in more)]


def _memory(gpus: Sequence[MemoryBack], width: int, glyphs: Glyphs) -> list[Line]:
    """Return the memory around the stop, GiB; GPUs with equal numbers share an entry."""
    if not gpus:
        return []
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for each in gpus:
        after = "?" if each.after_bytes is None else f"{each.after_bytes / GIB:.1f}"
        groups.setdefault((f"{each.before_bytes / GIB:.1f}", after, returned(each)), []).append(each.gpu)
    parts: list[Line] = []
    for (before, after, back), members in groups.items():
        sign, style = (glyphs.ok, "ok") if back else (glyphs.waiting, "warn")
        parts.append(((f"{_gpus(members, len(gpus))} ", "dim"), (f"{before} {glyphs.then} {after} {sign}", style)))
    head: Line = (("   GiB".ljust(_STEP + 5), "head"),)
    return [
        ((head if at == 0 else ((" " * (_STEP + 5), "text"),)) + line)
        for at, line in enumerate(wrap_parts(parts, width - _STEP - 6, ("   ", "text")))
    ]


def _gpus(members: Sequence[int], of: int) -> str:
    """Return GPUs by index: `all 8 GPUs`, `GPU 7`, `GPUs 0-6`."""
    if len(members) == of and of > 1:
        return f"all {of} GPUs"
    if len(members) == 1:
        return f"GPU {members[0]}"
    if members[-1] - members[0] == len(members) - 1:
        return f"GPUs {members[0]}-{members[-1]}"
    return f"GPUs {' '.join(str(each) for each in members)}"


def _leftovers(left: Sequence[Leftover], width: int, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    for each in left:
        head: Span = (f" {glyphs.warn} left over  ", "warn")
        lines.append(
            (head, (clip(clean(leftover_words(each)), width - width_of((head,)) - 1, glyphs.ellipsis), "text"))
        )
    return lines
