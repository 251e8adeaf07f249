"""`plan`: forecast the memory of a start from the logs of earlier starts."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from tuner.cli import FINE, PROBLEM
from tuner.cli.inputs import once, say_broken
from tuner.cli.paper import Paper
from tuner.cli.tables import plain
from tuner.core import plan_words as words
from tuner.core.compare import same_llm
from tuner.core.diagnosis import diagnose
from tuner.core.engine import Engine
from tuner.core.knobs import read_value
from tuner.core.reading import starts_of
from tuner.core.redact import mask
from tuner.core.report import model_of
from tuner.core.report_plan import PlanReport, PlanRow, as_seen, plan_report
from tuner.domain.findings import Outcome
from tuner.domain.forecast import Fit
from tuner.domain.knobs import Knob, KnobKind
from tuner.domain.starts import Start
from tuner.engines import load_engines
from tuner.errors import UsageProblem
from tuner.paths import history_file
from tuner.store import logfiles
from tuner.store.history import History

SCHEMA = 1
_LABEL = 10
_INKS = {Fit.FITS: "warn", Fit.UNKNOWN: "warn"}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A knob whose value differs from the earlier start, and the flag or variable that sets it in this version."""

    knob: str
    old: Any
    new: Any
    flag: str | None = None
    env: str | None = None


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """A given log that does not help to forecast this start."""

    file: str
    why: str


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The object that `plan --json` prints."""

    schema: int = SCHEMA
    engine: str
    engine_version: str | None
    engine_version_inferred: bool
    model: str | None
    files: tuple[str, ...]
    """The logs that were used, the one of the start to plan from first."""
    outcome: Outcome
    """Outcome of the start to plan from."""
    host: str | None = None
    """The host whose earlier starts were used as well; None for none. Without files its newest start is planned from.
    """
    past: int = 0
    """Number of other starts of the same LLM that were used."""
    unused: tuple[Unused, ...] = ()
    changes: tuple[Change, ...]
    plan: PlanReport


def plan(files: Sequence[str], assignments: Sequence[str], *, host: str | None = None, as_json: bool) -> int:
    """Print the forecast for a start like the last one in the first log, with some knobs changed.

    Args:
        files: Logs of starts that worked. The first is planned from; the others make the forecast more accurate.
        assignments: `knob=value`, under any name of the knob.
        host: Host whose watched starts are used as well; without files its newest start is planned from.
        as_json: Print one JSON object instead of text.

    Returns:
        0 when the start surely fits and its KV pool holds one request of full length, else 1.

    Raises:
        UsageProblem: A log cannot be read or holds no start, or there is no such knob or value.
    """
    once(files)
    engines = load_engines()
    files = list(dict.fromkeys(files))
    base, past, unused = _starts(files, host, engines)
    engine = engines[base.engine]
    changes: dict[str, Any] = {}
    for text in assignments:
        name, value = _change(engine, base, text)
        if name in changes and changes[name] != value:
            raise UsageProblem(f"{name} is set twice", "", "Give one value of each knob")
        changes[name] = value
    forecast = as_seen(engine.forecast(base, changes, past), diagnose(base, engine, past), changes)
    answer = PlanAnswer(
        engine=engine.name,
        engine_version=base.version,
        engine_version_inferred=base.version_inferred,
        model=model_of(base),
        files=tuple(files),
        outcome=base.outcome,
        host=host,
        past=len(past),
        unused=unused,
        changes=tuple(_changed(engine, base, name, old, new) for name, (old, new) in forecast.changed.items()),
        plan=plan_report(forecast),
    )
    if as_json:
        click.echo(msgspec.json.encode(answer).decode())
    else:
        click.echo("\n".join(lines(answer, engine.title, Paper.of())), color=True)
    return FINE if words.good(answer.plan) else PROBLEM


def _starts(
    files: Sequence[str], host: str | None, engines: dict[str, Engine]
) -> tuple[Start, list[Start], tuple[Unused, ...]]:
    """Return the start to plan from, other starts of the same LLM that became ready, and the logs that do not help."""
    found = [_told(file, engines) for file in files]
    known = [] if host is None else _remembered(host)
    if found:
        good = [start for start in found[0] if start.worked]
        base = good[-1] if good else found[0][-1]
        if not base.ranks:
            raise UsageProblem("The log tells of no rank's memory", files[0], "Give the log of a start that worked")
    elif known:
        base = known[0]
    else:
        raise UsageProblem(
            "No start was watched there yet", host or "", "Give the log of one that worked with --from GOOD.log"
        )
    unused = tuple(
        Unused(file=file, why=why)
        for file, starts in list(zip(files, found, strict=True))[1:]
        if (why := _useless(starts, base))
    )
    others = [start for starts in (*found, known) for start in starts if start is not base]
    return base, [start for start in others if not _useless([start], base)], unused


def _useless(starts: Sequence[Start], base: Start) -> str:
    """Return why none of some starts helps a forecast; an empty text where one does."""
    if all(start.engine != base.engine for start in starts):
        return "of another engine"
    alike = [start for start in starts if start.engine == base.engine and same_llm(start, base)]
    if not alike:
        return "of another LLM"
    return "" if any(start.worked for start in alike) else "no start in it became ready"


def _told(file: str, engines: dict[str, Engine]) -> list[Start]:
    log = logfiles.read([file], [engine.routine() for engine in engines.values()])
    say_broken(log)
    starts = starts_of(log, engines)
    if not starts:
        raise UsageProblem(
            "no line of an inference server is in this file", log.files[0], "Give the log of a start that worked"
        )
    return starts


def _remembered(host: str) -> list[Start]:
    """Return the starts that were watched on a host, newest first."""
    return [record.start for record in History(history_file()).memories(host)]


def _change(engine: Engine, base: Start, text: str) -> tuple[str, Any]:
    """Parse one `--set` into a knob's name and value.

    Raises:
        UsageProblem: This version has no such knob, or the knob no such value.
    """
    name, equals, value = text.partition("=")
    knobs = engine.knobs()
    if not equals or not name.strip() or not value.strip():
        raise UsageProblem("A change is knob=value", repr(text), "For example --set mem_fraction_static=0.9, or =auto")
    named = knobs.named(name)
    if named is None:
        near = difflib.get_close_matches(name.strip().lstrip("-").replace("-", "_"), list(knobs), 3, 0.6)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`gputuner plan --knobs` lists them"
        raise UsageProblem(f"{engine.title} has no knob {plain(name, 60)}", "", hint)
    knob = named.knob
    # A version that is inferred is a range, of which some may have what its own arguments show.
    shown = knobs.value({**base.settings, **base.given}, knob.name) is not None
    if knob.kind is KnobKind.FLAG and not shown and (absent := knobs.absent(knob.name, base.version)):
        raise UsageProblem(f"{engine.title} {base.version} has no {knob.name}", absent)
    try:
        read = named.turned(read_value(knob, value))
    except ValueError as error:
        raise UsageProblem(f"{knob.name} cannot be {plain(value, 60) if value else 'empty'}", str(error)) from error
    spelling = knobs.spelling(knob.name, base.version)
    if read is not None and spelling is not None and spelling.choices and str(read) not in spelling.choices:
        raise UsageProblem(f"{knob.name} cannot be {plain(value, 60)}", f"it is one of {', '.join(spelling.choices)}")
    return knob.name, read


def _changed(engine: Engine, base: Start, name: str, old: object, new: object) -> Change:
    spelling = engine.knob(name, base.version)
    return Change(
        knob=name,
        old=_harmless(old),
        new=_harmless(new),
        flag=None if spelling is None else spelling.flag,
        env=None if spelling is None else spelling.env,
    )


def _harmless(value: object) -> Any:
    return mask(value) if isinstance(value, str) else value


def knob_lines(engines: Sequence[Engine], paper: Paper) -> Iterator[str]:
    """Yield the text about every knob, in groups: name, newest spelling, title and unit.

    Variables that libraries read are the same for all engines and come once, at the end.
    """
    tables = [engine.knobs() for engine in engines]
    shared = {
        name: knob
        for name, knob in tables[0].items()
        if knob.kind is KnobKind.ENV and all(table.get(name) == knob for table in tables[1:])
    }
    for engine, table in zip(engines, tables, strict=True):
        own = [knob for name, knob in table.items() if name not in shared]
        flags = [knob for knob in own if knob.kind is KnobKind.FLAG]
        yield from _group(
            f"{engine.title}, arguments whose memory is forecast", [k for k in flags if k.forecast], paper
        )
        yield from _group(f"{engine.title}, other arguments", [k for k in flags if not k.forecast], paper)
        yield from _group(f"{engine.title}, variables", [k for k in own if k.kind is KnobKind.ENV], paper)
    for title, nccl in (("NCCL, variables", True), ("CUDA and PyTorch, variables", False)):
        knobs = [knob for name, knob in shared.items() if name.startswith("NCCL") is nccl]
        yield from _group(title, knobs, paper)


def _group(title: str, knobs: Sequence[Knob], paper: Paper) -> Iterator[str]:
    """Yield the knobs of one group below its title; nothing for an empty group."""
    if not knobs:
        return
    yield paper.ink(f"{title} ({len(knobs)})", "strong")
    for knob in knobs:
        spelled = knob.spellings[-1].text
        yield paper.letters("  " + knob.name + ("" if spelled == knob.name else paper.ink(f"  {spelled}", "dim")))
        yield from paper.wrapped(knob.title + (f" ({knob.unit})" if knob.unit else ""), indent="      ")
    yield ""


def list_knobs(*, as_json: bool) -> int:
    """Print the knobs that can be set."""
    engines = load_engines()
    if as_json:
        known = {engine.name: [msgspec.to_builtins(knob) for knob in engine.knobs().values()]
                 for engine in engines.values()}  # fmt: skip
        click.echo(json.dumps(known, ensure_ascii=False))
        return FINE
    click.echo("\n".join(knob_lines(list(engines.values()), Paper.of())), color=True)
    return FINE


def lines(answer: PlanAnswer, title: str, paper: Paper) -> Iterator[str]:
    """Yield the answer as text: verdict, safe interval, table, and the source of each number."""
    version = (answer.engine_version or "of unknown version") + (
        " (inferred)" if answer.engine_version and answer.engine_version_inferred else ""
    )
    yield paper.letters(paper.ink(f"{title} {version}", "strong") + f"  {plain(answer.model)}")
    newest = f"the newest start watched on {plain(answer.host)}"
    failed = ": a start that failed" if answer.outcome is Outcome.FAILED else ""
    yield from paper.wrapped((answer.files[0] if answer.files else newest) + failed, label="from", hang=_LABEL)
    if answer.past:
        others = "another start" if answer.past == 1 else f"{answer.past} other starts"
        yield from paper.wrapped(f"{others} of the LLM", label="with", hang=_LABEL)
    for each in answer.unused:
        yield from paper.wrapped(f"{each.file}: {each.why}", label="without", hang=_LABEL)
    for change in answer.changes:
        where = change.flag or change.env or ""
        text = f"{change.knob} {_said(change.old)} → {_said(change.new)}" + (f"  ({where})" if where else "")
        yield from paper.wrapped(text, label="change", hang=_LABEL)
    yield ""
    yield from verdict_lines(answer.plan, paper)
    for warning in answer.plan.warnings:
        yield from paper.wrapped(warning, label="note", hang=_LABEL)
    for unknown in words.missing(answer.plan):
        yield from paper.wrapped(unknown, label="missing", hang=_LABEL)
    if answer.plan.rows:
        yield ""
        yield from table_lines(answer.plan.rows, answer.plan.fit, paper)


def _said(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def verdict_lines(plan: PlanReport, paper: Paper) -> Iterator[str]:
    """Yield the verdict of a forecast with its reason, and the safe interval of the fraction."""
    word, ink = words.verdict(plan), "good" if words.good(plan) else _INKS.get(plan.fit, "bad")
    first, *more = paper.wrapped(words.reason(plan), indent=" " * (len(word) + 2))
    yield paper.ink(word, ink) + first[len(word) :]
    yield from more
    if plan.f_min is not None and plan.f_max is not None and plan.fit is not Fit.NOWHERE:
        text = f"above {plan.f_min:.4f}, up to {plan.f_max:.3f}" + (", by estimate" if plan.estimated else "")
        text += f"; {words.whole(plan)}" if words.whole(plan) else ""
        yield from paper.wrapped(text, label="fraction", hang=_LABEL)


def table_lines(rows: Sequence[PlanRow], fit: Fit, paper: Paper) -> Iterator[str]:
    """Yield the forecast as a table: a row per purpose, a column per rank; ranks with equal numbers share a column."""
    rows = [row for row in rows if words.happens(fit, row.what)]
    sizes_of: dict[int, dict[str, float | None]] = {}
    for row in rows:
        sizes_of.setdefault(row.rank, {})[row.what] = row.gib
    ranks = words.alike(sizes_of)
    whats = list(dict.fromkeys(row.what for row in rows))
    by_place = {(row.rank, row.what): row for row in rows}
    head = ["", *(_title(group) for group in ranks), "±", "from", "how"]
    table = [head]
    for what in whats:
        found = [by_place.get((group[0], what)) for group in ranks]
        told = next(row for row in found if row is not None)
        error = max((row.error_gib or 0.0 for row in found if row is not None), default=0.0)
        sizes = ["" if row is None or row.gib is None else f"{row.gib:.2f}" for row in found]
        tokens = f"{told.tokens:,} tokens: " if told.tokens is not None else ""
        table.append(
            [
                words.PURPOSES.get(what, what),
                *sizes,
                f"{error:.2f}" if error >= 0.005 else "",
                str(told.source),
                tokens + told.note,
            ]
        )
    yield from paper.columns(table, left=(0, len(head) - 2))


def _title(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {ranks[0]}, {ranks[1]}.. ({len(ranks)})"
