"""What came of a change: its last lines, and the object that `--json` prints."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import click
import msgspec

from tuner.cli import FINE
from tuner.cli.change_lines import end_lines, finding_lines, server_words
from tuner.cli.following import Followed
from tuner.cli.paper import Paper
from tuner.cli.tables import plain
from tuner.core.report_plan import plan_report
from tuner.core.runs import ended_at, stopped_by_run
from tuner.domain.preflight import Check
from tuner.domain.runs import RunOutcome, StepRecord
from tuner.domain.state import HostState
from tuner.domain.tuning import Change, Tuning

SCHEMA = 1
_TOLD_AT = 11
"""Column at which the words about a step of a run begin."""
_STAMPED = re.compile(r" +[\d.]+ s  | {11}")
"""Beginning of a line about a run: seconds since the order, or as many blanks."""


@dataclass
class Told:
    """What came of a command, for its last line and its JSON."""

    host: str = ""
    code: int = FINE
    outcome: str = ""
    """An outcome of a run, or `refused`, `dry-run`, `declined`, `lost`, `left`."""
    reason: str = ""
    more: tuple[str, ...] = ()
    """Lines for people after the reason: what else refuses it, and the command that helps."""
    tuning: Tuning | None = None
    followed: Followed | None = None
    state: HostState | None = None
    sent: Any = None
    """What a dry run would have sent."""


class Printer:
    """Prints lines for people; nothing where one JSON object is wanted."""

    def __init__(self, *, as_json: bool) -> None:
        self.paper = replace(Paper.of(), whole_words=True)
        self._silent = as_json

    def say(self, text: str) -> None:
        """Print a text: its lines are broken between words, and continued with an indent."""
        if not self._silent:
            for line in text.split("\n"):
                # Long words are paths mostly, which are copied.
                parts = textwrap.wrap(
                    line,
                    self.paper.width,
                    subsequent_indent=" " * (_TOLD_AT if _STAMPED.match(line) else 2),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                click.echo(self.paper.letters("\n".join(parts)), color=True)

    def all(self, lines: Iterable[str]) -> None:
        """Print lines that are laid out already."""
        if not self._silent:
            click.echo("\n".join(lines), color=True)


def ended(told: Told, printer: Printer, *, as_json: bool) -> int:
    """Print how it ended, and return the exit code."""
    followed = told.followed
    if as_json:
        click.echo(json.dumps(_body(told), ensure_ascii=False))
        return told.code
    if followed is not None and followed.run is not None:
        printer.all([*end_lines(followed.run, printer.paper)] or [])
        failed = followed.run.outcome in (RunOutcome.FAILED, RunOutcome.BACK) and followed.run.cancelled_by is None
        if failed and (followed.findings or followed.run.log is not None):
            printer.all(finding_lines(followed.findings, followed.run, printer.paper))
    if told.reason or told.outcome == "declined":
        printer.say(plain(told.reason or "nothing was changed"))
    for line in told.more:
        printer.say(plain(line))
    if followed is not None and followed.run is not None and told.state is not None:
        for server in told.state.servers:
            # The one that was stopped is in the state until the next scan.
            if not server.gone and not stopped_by_run(told.state, server):
                printer.say(plain(f"runs now: {server_words(told.state, server)}"))
    return told.code


def failed(host: str, error: BaseException) -> str:
    """Return what `--json` prints where a command ended with an error, or was interrupted before a run began."""
    if isinstance(error, KeyboardInterrupt):
        told = Told(host=host, outcome="interrupted", reason="interrupted before a run began")
    else:
        told = Told(host=host, outcome="error", reason=str(error))
    return json.dumps(_body(told), ensure_ascii=False)


def _body(told: Told) -> dict[str, Any]:
    """Return what `--json` prints. A key is never left out; what is not known is None."""
    tuning, followed = told.tuning, told.followed
    run = followed.run if followed is not None else None
    launch = tuning.launch if tuning is not None else None
    return {
        "schema": SCHEMA,
        "host": told.host,
        "run": run.id if run is not None else None,
        "outcome": str(told.outcome),
        "reason": told.reason or None,
        "preset": (run.preset if run is not None else launch.preset if launch is not None else "") or None,
        "title": (run.title if run is not None else launch.title if launch is not None else "") or None,
        "seconds": None if run is None else round(ended_at(run) - run.began_at, 3),
        "server_pid": run.new.pid if run is not None and run.new is not None and run.alive else None,
        "old_pid": run.old.pid if run is not None and run.old is not None else None,
        "rolled_back": run is not None and run.outcome is RunOutcome.BACK,
        "failure": (run.failure or None) if run is not None else None,
        "steps": [_step(each) for each in run.steps] if run is not None else [],
        "checks": [_check(each) for each in tuning.checks] if tuning is not None else [],
        "changes": [_change(each) for each in tuning.changes if each.changed or each.drift]
        if tuning is not None
        else [],
        "forecast": msgspec.to_builtins(plan_report(tuning.planned.then))
        if tuning is not None and tuning.planned is not None
        else None,
        "command": list(launch.argv) if launch is not None else [],
        "log": (run.failed_log or run.log) if run is not None else None,
        "findings": []
        if followed is None
        else [
            {"cause": each.cause, "title": each.title, "confidence": str(each.confidence)} for each in followed.findings
        ],
        "memory": [] if run is None else [msgspec.to_builtins(each) for each in run.memory],
        "leftovers": [] if run is None else [msgspec.to_builtins(each) for each in run.leftovers],
        "order": told.sent,
    }


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "step": str(step.step),
        "back": step.back,
        "seconds": None if step.ended is None else round(step.ended - step.at, 3),
        "detail": step.detail or None,
        "unclean": step.unclean,
    }


def _check(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "verdict": str(check.verdict),
        "title": check.title,
        "detail": check.detail or None,
        "way_out": check.way_out or None,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "name": change.name,
        "kind": str(change.kind),
        "now": change.now,
        "then": change.then,
        "drift": change.drift or None,
    }
