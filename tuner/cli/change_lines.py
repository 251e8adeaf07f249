"""Text about a change of a server: what would change, whether it fits, what was checked, and the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.cli.paper import Paper
from tuner.cli.plan import table_lines, verdict_lines
from tuner.core import run_words as words
from tuner.core.change_words import source_words, then_words, value_words
from tuner.core.finding_words import sureness
from tuner.core.order_words import steps_of
from tuner.core.remedies import order, typed
from tuner.core.report_plan import plan_report
from tuner.core.shellwords import shell_line, shell_word
from tuner.domain.findings import Finding
from tuner.domain.knobs import KnobKind
from tuner.domain.preflight import Check, Verdict
from tuner.domain.runs import RunRecord
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Change, Tuning
from tuner.units import format_duration, format_gib

_LABEL = 10
_INKS = {Verdict.OK: "good", Verdict.WARN: "warn", Verdict.FAIL: "bad", Verdict.UNKNOWN: "warn", Verdict.NOTE: "note"}
_WORDS = {Verdict.OK: "ok", Verdict.WARN: "warns", Verdict.FAIL: "refuses", Verdict.UNKNOWN: "unknown"}


def tuning_lines(tuning: Tuning, state: HostState, server: ServerState | None, paper: Paper) -> Iterator[str]:
    """Yield what would be done and what speaks for or against it."""
    yield from paper.wrapped(state.name, label="host", hang=_LABEL)
    if server is not None:
        yield from paper.wrapped(server_words(state, server), label="server", hang=_LABEL)
    if tuning.launch is not None:
        yield from paper.wrapped(tuning.launch.title or "as it was", label="start", hang=_LABEL)
    for change in tuning.changes if server is not None else ():
        yield from paper.wrapped(change_words(change), label="change" if change.changed else "drift", hang=_LABEL)
    notes = tuning.launch.notes if tuning.launch is not None else ()
    checked = tuple(each.detail for each in tuning.checks)
    for note in notes:
        if any(each.startswith(note) for each in checked):
            continue
        yield from paper.wrapped(note, label="note", hang=_LABEL)
    if tuning.launch is not None:
        yield ""
        yield from forecast_lines(tuning, paper)
    yield ""
    for check in tuning.checks:
        yield from check_lines(check, paper)
    if tuning.order is not None:
        yield ""
        for number, step in enumerate(steps_of(tuning.order, "apply --back"), 1):
            yield from paper.wrapped(step, label=f"{number}.", hang=4)
    if tuning.launch is not None and tuning.launch.argv:
        yield ""
        yield from command_lines(tuning, paper)


def server_words(state: HostState, server: ServerState) -> str:
    """Return what identifies a server to its operator: PID, owner, engine, LLM, age, requests in flight."""
    identity = server.identity
    parts = [
        f"pid {identity.pid}" + (f" of {identity.user}" if identity.user else ""),
        f"{server.title} {server.version or ''} {server.model or ''}".strip(),
        "ended" if server.gone else str(server.phase),
    ]
    if not server.gone:
        if identity.started_at is not None and state.now is not None:
            parts.append(f"up {format_duration(max(0.0, state.now - identity.started_at))}")
        parts.append(requests_words(server))
    return ", ".join(part for part in parts if part)


def requests_words(server: ServerState) -> str:
    """Return how many requests a server works on; empty if that is not known."""
    running, queued = server.metrics.running, server.metrics.queued
    if running is None:
        return ""
    count = running + (queued or 0)
    return "no request in flight" if not count else f"{count} request{'s' if count > 1 else ''} in flight"


def change_words(change: Change) -> str:
    """Return one change in a line."""
    text = change.text if change.text and change.text != change.name else ""
    source = source_words(change) if change.now is not None and change.changed else ""
    moved = f"{change.name} {value_words(change.now)}"
    if change.changed:
        moved += f" → {then_words(change)}"
    about = ", ".join(part for part in (text, source) if part)
    where = f"  ({about})" if about else ""
    return moved + where + (f": {change.drift}" if change.drift else "")


def forecast_lines(tuning: Tuning, paper: Paper) -> Iterator[str]:
    """Yield the memory forecast, or why there is none."""
    if tuning.planned is None:
        yield from paper.wrapped(f"not known: {tuning.planned_error}", label="memory", hang=_LABEL)
        return
    report = plan_report(tuning.planned.then)
    yield from verdict_lines(report, paper)
    for warning in report.warnings:
        yield from paper.wrapped(warning, label="note", hang=_LABEL)
    if report.rows:
        yield from table_lines(report.rows, report.fit, paper)


def check_lines(check: Check, paper: Paper) -> Iterator[str]:
    """Yield one check: verdict, what was found, the way out."""
    word = _WORDS.get(check.verdict, str(check.verdict))
    first, *more = paper.wrapped(f"{check.title}: {check.detail}" if check.detail else check.title, indent=" " * _LABEL)
    yield paper.ink(word.ljust(_LABEL), _INKS[check.verdict]) + first[_LABEL:]
    yield from more
    if check.way_out and check.verdict is not Verdict.OK:
        yield from paper.wrapped(check.way_out, indent=" " * (_LABEL + 2))


def command_lines(tuning: Tuning, paper: Paper) -> Iterator[str]:
    """Yield the exact command that will run, as one types it; secrets are ***."""
    launch = tuning.launch
    assert launch is not None
    variables = [change.text or change.name for change in tuning.changes if change.kind is KnobKind.ENV]
    shown = {name: launch.env[name] for name in dict.fromkeys(variables) if name in launch.env}
    words = [f"{name}={shell_word(value)}" for name, value in shown.items()]
    yield from paper.wrapped(" ".join([*words, shell_line(launch.argv)]), label="command", hang=_LABEL)
    if launch.cwd:
        yield from paper.wrapped(launch.cwd, label="in", hang=_LABEL)


def finding_lines(findings: Sequence[Finding], run: RunRecord, paper: Paper) -> Iterator[str]:
    """Yield the diagnosis of a failed start: its cause in a line, then what can be done."""
    log = run.failed_log or (None if run.going_back else run.log)
    if not findings:
        yield from paper.wrapped("unknown: no line of its log that was read tells it", label="cause", hang=_LABEL)
        if log is not None:
            text = f"gputuner diagnose reads it as a whole: {log}, on the host"
            yield from paper.wrapped(text, label="log", hang=_LABEL)
        return
    first = findings[0]
    yield from paper.wrapped(f"{first.title} ({sureness(first.confidence)})", label="cause", hang=_LABEL)
    for remedy in first.remedies:
        how = typed(remedy)
        text = order(remedy) + (f" ({how})" if how and how not in order(remedy) else "")
        yield from paper.wrapped(text + (f": {remedy.why}" if remedy.why else ""), label="remedy", hang=_LABEL)


def end_lines(run: RunRecord, paper: Paper) -> Iterator[str]:
    """Yield what a run left: memory that came back, processes that did not go."""
    if words.memory_is_back(run):
        held = sum(gpu.held_bytes for gpu in run.memory)
        gpus = f"{len(run.memory)} GPUs" if len(run.memory) > 1 else f"GPU {run.memory[0].gpu}"
        yield from paper.wrapped(f"{gpus}: all {format_gib(held)} GiB came back", label="memory", hang=_LABEL)
    for gpu in run.memory if not words.memory_is_back(run) else ():
        back = None if gpu.after_bytes is None else max(0, gpu.before_bytes - gpu.after_bytes)
        told = "it was not read how much" if back is None else f"{format_gib(back)} GiB"
        text = f"GPU {gpu.gpu}: {told} came back of {format_gib(gpu.held_bytes)} GiB"
        yield from paper.wrapped(text, label="memory", hang=_LABEL)
    for left in run.leftovers:
        yield from paper.wrapped(words.leftover_words(left), label="left over", hang=_LABEL)
    if run.cancelled_by is not None:
        yield from paper.wrapped(f"by {words.operator_name(run.cancelled_by)}", label="cancelled", hang=_LABEL)
