"""`diagnose` and `compare`: read logs from files or the standard input and print what the core finds in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click
import msgspec

from tuner.cli import FINE, PROBLEM
from tuner.cli.inputs import once, say_broken
from tuner.cli.paper import Paper
from tuner.core.compare import compare as compared
from tuner.core.compare import findings_that_weigh, same_llm
from tuner.core.engine import Engine
from tuner.core.gates import all_reduce, with_failures
from tuner.core.reading import starts_of
from tuner.core.report import Report, as_data, report
from tuner.core.report_comparison import ComparisonReport, Locate, report_comparison
from tuner.domain.comparison import Comparison
from tuner.domain.findings import Confidence, Finding, Remedy, Severity, failed_phase
from tuner.domain.forecast import Forecast
from tuner.domain.starts import Start
from tuner.engines import load_engines
from tuner.errors import UsageProblem
from tuner.store import logfiles


class Told(NamedTuple):
    """The last start in a log, with what was found about it."""

    start: Start
    earlier: tuple[Start, ...]
    findings: tuple[Finding, ...]
    forecast: Forecast | None
    """Forecast of the same start if it were repeated; None where it cannot be computed."""
    locate: Locate


def diagnose(files: Sequence[str], baseline: str | None, *, as_json: bool, with_noise: bool = False) -> int:
    """Print the diagnosis of the last start in a log.

    Args:
        files: Parts of one log, in order; `-` is the standard input.
        baseline: The log of a start that worked, to compare with; None for none.
        as_json: Print one JSON object instead of text.
        with_noise: Show differences that any two starts have as well.

    Returns:
        0 without a fatal or error finding, 1 with one.

    Raises:
        UsageProblem: A file cannot be read, or no line in it is of an engine; then `as_json` prints the object first.
    """
    once([*files, *([] if baseline is None else [baseline])])
    engines = load_engines()
    good = None if baseline is None else _told([baseline], engines)
    told = _told(files, engines, () if good is None else (good.start,))
    if not told.start.engine:
        if as_json:  # Scripts get the promised object all the same.
            _print_json(_report(told, None))
        raise _refusal(told)
    comparison = None if good is None else _compared(good, told, engines)
    promised = None
    if good is not None and comparison is not None:
        promised = report_comparison(comparison, good.locate, told.locate, noise=with_noise)
    made = _report(told, promised)
    if as_json:
        _print_json(made)
    else:
        from tuner.cli import side_by_side, story

        paper = Paper.of()
        _print(story.lines(made, paper))
        _print_all_reduce(told, engines, paper, everything=with_noise)
        if comparison is not None:
            _print(side_by_side.against(comparison, paper, noise=with_noise))
    return PROBLEM if made.proven else FINE


def compare(first: str, second: str, *, as_json: bool, with_noise: bool) -> int:
    """Print what differed between the last starts of two logs.

    Args:
        first: The log of the baseline.
        second: The log that is compared with it.
        as_json: Print one JSON object instead of text.
        with_noise: Show differences that any two starts have as well.

    Raises:
        UsageProblem: A file cannot be read, or is no log of an engine.
    """
    once([first, second])
    engines = load_engines()
    good, bad = _told([first], engines), _told([second], engines)
    comparison = _compared(good, bad, engines)
    if as_json:
        _print_json(report_comparison(comparison, good.locate, bad.locate, noise=with_noise))
    else:
        from tuner.cli import side_by_side

        _print(side_by_side.lines(comparison, Paper.of(), noise=with_noise))
    return FINE


def _told(files: Sequence[str], engines: dict[str, Engine], past: Sequence[Start] = ()) -> Told:
    """Read a log and diagnose its last start.

    Args:
        files: Parts of one log, in order.
        engines: All engines, by name.
        past: Starts of other logs that worked. Those of another LLM or engine are ignored.
    """
    with logfiles.begun(files, [engine.routine() for engine in engines.values()]) as reading:
        # Loads the formats and signs in this process while other processes read a big log.
        from tuner.core.diagnosis import diagnose as findings_of

        for engine in engines.values():
            engine.facts("", engine.prefix(""), 0)
            engine.signs("", prefixed=False)
        log = reading.finish()
    say_broken(log)
    starts = starts_of(log, engines)
    if not starts:
        nothing = _nothing(engines, empty=log.size_bytes == 0)
        return Told(Start(engine="", files=log.files), (), (nothing,), None, log.locate)
    *earlier, last = starts
    last = msgspec.structs.replace(last, files=log.files)
    engine = engines[last.engine]
    worked = [
        start
        for start in (*past, *reversed(earlier))
        if start.worked and start.engine == last.engine and same_llm(start, last)
    ]
    return Told(
        start=last,
        earlier=tuple(earlier),
        findings=findings_of(last, engine, worked),
        forecast=engine.forecast(last, {}, worked),
        locate=log.locate,
    )


def _nothing(engines: dict[str, Engine], *, empty: bool) -> Finding:
    """Return the finding of a text that no engine printed."""
    known = " or ".join(engine.title for engine in engines.values())
    return Finding(
        cause="inconclusive",
        severity=Severity.INFO,
        confidence=Confidence.LOW,
        title="The log is empty" if empty else f"No line of {known} is in this text",
        explanation=f"Only what {known} prints can be diagnosed, and nothing of it is in there.",
        remedies=(Remedy(knob="log", why="Give the server's whole log, from the command that starts it on"),),
        refuted_by="a line of an engine in it",
    )


def _refusal(told: Told) -> UsageProblem:
    """Return the error for a text that no engine printed."""
    nothing = told.findings[0]
    title = nothing.title[0].lower() + nothing.title[1:]
    return UsageProblem(title, ", ".join(told.start.files), nothing.remedies[0].why)


def _report(told: Told, comparison: ComparisonReport | None) -> Report:
    return report(told.start, told.findings, told.forecast, told.locate, earlier=told.earlier, comparison=comparison)


def _compared(good: Told, bad: Told, engines: dict[str, Engine]) -> Comparison:
    for told in (good, bad):
        if not told.start.engine:
            raise _refusal(told)
    engine = engines[bad.start.engine] if good.start.engine == bad.start.engine else None
    findings = findings_that_weigh(good.start, bad.start, good.findings, bad.findings)
    failed_in = (failed_phase(good.findings), failed_phase(bad.findings))
    return compared(good.start, bad.start, engine, findings, failed_in)


def _print_all_reduce(told: Told, engines: dict[str, Engine], paper: Paper, *, everything: bool) -> None:
    """Print how the ranks run their all-reduce, if asked for or if a finding is about it."""
    from tuner.cli import reduction

    if not told.start.engine or not (everything or reduction.concerned(told.findings)):
        return
    ways = all_reduce(told.start, engines[told.start.engine])
    if ways is not None:
        _print(reduction.lines(with_failures(ways, told.findings), told.locate, paper, everything=everything))


def _print_json(value: Report | ComparisonReport) -> None:
    click.echo(json.dumps(as_data(value), ensure_ascii=Paper.of().ascii))


def _print(lines: Iterable[str]) -> None:
    # The paper has decided about colour, so click must not strip it.
    click.echo("\n".join(lines), color=True)
