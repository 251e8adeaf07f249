"""The sections of the Tune screen: all below each other where there is room, else one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tuner.core import runs
from tuner.core.run_words import STEP_DOING, going_on, interrupted
from tuner.domain.planning import PlanKnob
from tuner.domain.runs import RunRecord
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import PresetChoice, Tuning
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.run_panel import news, outcome_span, run_lines
from tuner.widgets.spans import Line, Span, clean, spread, text_of, wrap_words
from tuner.widgets.status import phase_piece
from tuner.widgets.tune_knobs import knob_lines
from tuner.widgets.tune_list import BARE, BARE_TITLE
from tuner.widgets.tune_text import (
    change_lines,
    changes_of,
    check_lines,
    checks_word,
    command_lines,
    forecast_lines,
    heading,
    order_lines,
)

NAMES = {
    "run": "run",
    "changes": "changes",
    "knobs": "by hand",
    "forecast": "forecast",
    "checks": "checks",
    "command": "command",
}
"""Sections in their order, and what their tabs are called."""
_COPIES: Span = ("y copies", "dim")


class View(Struct, frozen=True, kw_only=True):
    """What the operator looks at on the Tune screen."""

    presets: tuple[PresetChoice, ...] = ()
    knobs: Mapping[str, PlanKnob] = {}
    chosen: str = ""
    """Id of the chosen preset; empty: the bare recipe."""
    overrides: dict[str, Any] = {}
    """Knobs changed by hand: canonical name to value."""
    recipes: int = 0
    """Number of the recipes that are kept for this host."""
    at: int = 0
    """Index of the knob among them that the arrow keys act on."""
    ignore_forecast: bool = False
    """A forecast that does not fit is no reason to refuse."""
    tuning: Tuning | None = None
    error: str = ""
    """Why there is no tuning, or why the host could not be asked about it, in words; empty: neither."""
    old: bool = False
    """A newer answer is awaited."""
    checked: bool = False
    checking: bool = False
    can_act: bool = False
    """Whether the host can be changed from here."""

    @property
    def choice(self) -> PresetChoice | None:
        """Return the chosen preset; None for the bare recipe."""
        if self.chosen == BARE:
            return PresetChoice(id=BARE_TITLE, title="the recipe alone, over which its preset was laid")
        return next((each for each in self.presets if each.id == self.chosen), None) if self.chosen else None


class Section(Struct, frozen=True):
    """One section of the screen."""

    name: str
    title: str
    lines: tuple[Line, ...]
    right: Span | None = None
    """What stands at the end of its heading."""


def shown_run(state: HostState) -> RunRecord | None:
    """Return the run that the screen shows: one that every screen tells of, else the newest."""
    return news(state) or (state.runs[0] if state.runs else None)


def run_keys(state: HostState, run: RunRecord) -> list[str]:
    """Return the keys that do something about a run, each with its words."""
    if going_on(run):
        return [] if run.cancelled_by is not None and not run.going_back else ["K cancels it"]
    keys: list[str] = []
    for left in runs.interrupted(state):
        if left.run is run:
            letters = {"finish": "f", "back": "B", "clean": "C"}
            keys += [f"{letters[each.id]} {each.title}" for each in left.options if each.id in letters]
    if run.outcome in runs.ENDED_WITHOUT and run.back and not run.going_back:
        keys.append(f"B goes back to {run.back}")
    if runs.failed_server(state, run) is not None:
        keys.append("v why it failed")
    if any(each.ours for each in run.leftovers) and not interrupted(run):
        keys.append("C ends what was left over")
    return keys


def doing(state: HostState, run: RunRecord, glyphs: Glyphs) -> str:
    """Return what the server that a run started does at present, from its own log; empty where that is not known."""
    server = runs.server_of(state, run)
    if server is None or not server.phase.starting or not server.phases:
        return ""
    return text_of(phase_piece(state, server, server.phases[-1], glyphs)).removeprefix(glyphs.busy).strip()


def run_section(state: HostState, view: View, width: int, glyphs: Glyphs) -> Section | None:
    """Return the section of the run that is shown; None without one."""
    run = shown_run(state)
    if run is None:
        return None
    keys = run_keys(state, run) if view.can_act else []
    lines = run_lines(state, run, width, glyphs, doing=doing(state, run, glyphs), keys=keys)
    title = "change that goes on" if going_on(run) else "interrupted change" if interrupted(run) else "last change"
    sign, style = outcome_span(run, glyphs)
    doing_now = STEP_DOING[run.step] if going_on(run) else run.outcome.value
    word = f"{sign} {'interrupted' if interrupted(run) else doing_now}", style
    return Section("run", title, tuple(lines), word)


def sections(
    state: HostState, server: ServerState | None, view: View, width: int, room: int, glyphs: Glyphs, *, alone: bool
) -> list[Section]:
    """Return the sections in their order; that of a run stands first while there is news of it, else last.

    Args:
        state: State of the host.
        server: Server on screen.
        view: What the operator looks at.
        width: Width of a line, in cells.
        room: Most lines that can be seen at once, of one section where `alone`, else of all.
        glyphs: Symbols to draw with.
        alone: One section is shown at a time, so the knobs changed by hand are a section too.
    """
    tuning = view.tuning
    waits: Line = ((f"   {view.error}" if view.error else f"   working {glyphs.ellipsis}", "dim"),)
    title = "what is set beside the recipe"
    if server is not None:
        which = "start that ended" if server.gone else "running server"
        title = f"what changes against the {which} (pid {server.identity.pid})"
    parts: list[Section] = []
    changed = _wrapped(waits, width)
    if tuning is not None:
        there, ended = server is not None, server is not None and server.gone
        changed = change_lines(changes_of(tuning), view.knobs, width, glyphs, running=there, ended=ended)
        if tuning.launch is None and tuning.wish.start:
            out: Line = ((f"{glyphs.then} {_recipes(view.recipes)}", "text"),)
            changed = [*order_lines(tuning, width, glyphs), *_wrapped(out, width)]
    old: Span | None = (glyphs.ellipsis, "dim") if view.old else None
    parts.append(Section("changes", title, tuple(changed), old))
    if alone:
        lines = knob_lines(view.knobs, view.overrides, view.at, width, max(2, room), glyphs, active=True)
        parts.append(Section("knobs", "changed by hand", tuple(lines[1:]), ("n adds a knob", "dim")))
    run = run_section(state, view, width, glyphs)
    if tuning is not None and any(going_on(each) for each in state.runs):
        # What runs is changing: what was computed from it is worth nothing before that has ended.
        later: Line = (("checked again when the run has ended", "dim"),)
        parts += [
            Section("forecast", "memory forecast", tuple(_wrapped(later, width))),
            Section("checks", "checks before anything is stopped", tuple(_wrapped(later, width))),
            Section("command", "the exact command", tuple(command_lines(tuning.launch, width, glyphs)), _COPIES),
        ]
    elif tuning is not None:
        fits = forecast_lines(tuning.planned, tuning.planned_error, width, room, glyphs, old=view.old)
        parts.append(Section("forecast", "memory forecast", tuple(fits)))
        command = command_lines(tuning.launch, width, glyphs)
        last = Section("command", "the exact command", tuple(command), _COPIES)
        word = checks_word(tuning.checks, checking=view.checking, checked=view.checked, glyphs=glyphs)
        if not alone:
            taken = (*parts, last, *((run,) if run is not None else ()))
            room -= sum(len(part.lines) + 2 for part in taken) + 2
        checks = check_lines(tuning.checks, width, room, glyphs, checked=view.checked)
        if view.error:
            unasked: Line = ((f"the host could not be asked: {view.error}", "warn"),)
            checks = [*_wrapped(unasked, width), *checks]
        parts += [Section("checks", "checks before anything is stopped", tuple(checks), word), last]
    if run is not None:
        parts.insert(0 if news(state) is not None else len(parts), run)
    return parts


def _recipes(count: int) -> str:
    """Return what a start can begin with where nothing else tells it."""
    if not count:
        return "no recipe is kept for this host: gputuner recipe writes one"
    return f"r chooses {'the recipe that is kept' if count == 1 else f'one of the {count} recipes that are kept'}"


def _wrapped(line: Line, width: int) -> list[Line]:
    return [((f"   {chunk}", style),) for text, style in line for chunk in wrap_words(clean(text), width - 5)]


def page(parts: Sequence[Section], width: int, glyphs: Glyphs) -> tuple[list[Line], dict[str, int]]:
    """Return all sections below each other, and the line at which each begins."""
    lines: list[Line] = []
    tops: dict[str, int] = {}
    for part in parts:
        if lines:
            lines.append(())
        tops[part.name] = len(lines)
        lines += [heading(part.title, part.right, width, glyphs), *part.lines]
    return lines, tops


def tab_line(parts: Sequence[Section], chosen: str, width: int, glyphs: Glyphs) -> Line:
    """Return the names of the sections as one line, the chosen one marked."""
    spans: list[Span] = [(" ", "text")]
    for part in parts:
        here = part.name == chosen
        name = NAMES.get(part.name, part.name)
        sign = part.right[0][:1] if part.right and part.right[1] in ("bad", "warn", "ok", "busy") else ""
        spans.append((f"[{name}" if here else f" {name}", "strong" if here else "dim"))
        if sign and part.right is not None:
            spans.append((f" {sign}", part.right[1]))
        spans.append(("]" if here else " ", "strong"))
    return spread(spans, (("tab ", "busy"), ("next ", "text")), width, glyphs.ellipsis)


def dry_text(tuning: Tuning, command: str, width: int, glyphs: Glyphs) -> str:
    """Return what would be done, as text: the steps of the order, each broken at a width, then the command."""
    steps = "\n".join(text_of(line).rstrip() for line in order_lines(tuning, width, glyphs))
    return "\n\n".join(part for part in (steps, command) if part)
