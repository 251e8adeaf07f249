"""The right side of the Tune screen: what changes, whether it fits, what was checked, and the command that will run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core.change_words import source_words, then_words, value_words
from tuner.core.order_words import steps_of
from tuner.core.shellwords import shell_line, shell_word
from tuner.core.tuning import HAZARD
from tuner.domain.planning import PlanKnob, Planned
from tuner.domain.preflight import Check, Verdict
from tuner.domain.recipe import Launch
from tuner.domain.tuning import Change, PresetChoice, Tuning
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.plan_fields import value_words as knob_words
from tuner.widgets.plan_panel import bar_lines, interval_line, table_lines, verdict_lines
from tuner.widgets.spans import Line, Span, clean, clip, clip_line, spread, text_of, text_width, width_of, wrap_words

_NAME = 26
"""Width of the column with the names of knobs and checks, in cells."""
_NAME_MOST = 40
_VERDICTS: dict[Verdict, tuple[str, str]] = {
    Verdict.FAIL: ("refuses", "bad"),
    Verdict.WARN: ("warns", "warn"),
    Verdict.UNKNOWN: ("unknown", "warn"),
    Verdict.NOTE: ("note", "busy"),
    Verdict.OK: ("ok", "ok"),
}
"""Word and style of each verdict, in the order in which checks are listed."""


def title_lines(choice: PresetChoice | None, overrides: int, width: int, glyphs: Glyphs, *, most: int) -> list[Line]:
    """Return name and title of what is chosen, then why one would want it, or why it is not for this server.

    Args:
        choice: The chosen preset; None: the bare recipe.
        overrides: Number of knobs that the operator set beside it.
        width: Width of a line, in cells.
        glyphs: Symbols to draw with.
        most: Most lines.
    """
    name = clean(choice.id) if choice is not None else "as it is"
    title = clean(choice.title) if choice is not None else "the server as it runs, or as its recipe says"
    more = f" + {overrides} changed by hand" if overrides else ""
    head: Line = ((f" {name}{more}  ", "strong"), (title if title != name else "", "text"))
    lines = [clip_line(head, width, glyphs.ellipsis)]
    if choice is None:
        return lines
    if choice.unmet:
        lines += [
            (((f" {glyphs.bad} " if at == 0 else "   "), "bad"), (chunk, "text"))
            for at, chunk in enumerate(wrap_words(f"not for this server: {clean(choice.unmet)}", width - 5))
        ]
    lines += [((f" {chunk}", "dim"),) for chunk in wrap_words(clean(choice.why), width - 3) if chunk]
    if most == 1:
        return lines[:1]
    if len(lines) > most:
        last = clip_line(lines[most - 1], width - 2, glyphs.ellipsis)
        if not text_of(last).endswith(glyphs.ellipsis):
            last = (*last, (glyphs.ellipsis, "dim"))
        lines = [*lines[: most - 1], last]
    return lines


# What changes ----------------------------------------------------------------------------------------------------


def change_lines(
    changes: Sequence[Change],
    knobs: Mapping[str, PlanKnob],
    width: int,
    glyphs: Glyphs,
    *,
    running: bool,
    ended: bool = False,
) -> list[Line]:
    """Return each changed value as `now > then` with the source of the present one; then what is not as it was set.

    Args:
        changes: Changes and drift.
        knobs: Knobs of the version by name, for units.
        width: Width of a line, in cells.
        glyphs: Symbols to draw with.
        running: There is a server, against which it is held.
        ended: It has ended.
    """
    if not changes:
        again = f"nothing: the server would be started again as it {'ran' if ended else 'runs'}"
        words = again if running else "nothing is set beside the recipe"
        return [((f"   {words}", "dim"),)]
    name = min(_NAME_MOST, max(_NAME, *(text_width(clean(each.name)) + 2 for each in changes)))
    if width < 60:
        name = min(name, _NAME)
    values = [(in_words(each, each.now, knobs), then_in_words(each, knobs)) for each in changes]
    column = min(max(width - name - 24, 16), max(text_width(f"{one} > {two}") for one, two in values) + 2)
    lines: list[Line] = []
    for each, (one, two) in zip(changes, values, strict=True):
        lines += _change(each, one, two, name, column, width, glyphs, running=running)
    return lines


def changes_of(tuning: Tuning) -> list[Change]:
    """Return what is worth showing of the changes: without a server, only what preset and overrides set."""
    launch = tuning.launch
    if tuning.wish.server or launch is None:
        return list(tuning.changes)
    return [each for each in tuning.changes if each.name in launch.values]


def in_words(each: Change, value: Any, knobs: Mapping[str, PlanKnob]) -> str:
    """Return a value of a change in a few words, with its unit where the knob is known."""
    knob = knobs.get(each.name)
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if knob is not None and knob.knob.unit == "bytes" and isinstance(number, int):
        return clean(knob_words(knob, number))
    return clean(value_words(value))


def then_in_words(each: Change, knobs: Mapping[str, PlanKnob]) -> str:
    """Return the value after a change in a few words; where it is left to the engine, the default if that is known."""
    return then_words(each, lambda value: in_words(each, value, knobs))


def _change(
    each: Change, one: str, two: str, name: int, column: int, width: int, glyphs: Glyphs, *, running: bool
) -> list[Line]:
    label = clip(clean(each.name), name - 1, glyphs.ellipsis)
    label += " " * (name - text_width(label))
    sign: Span = (f" {glyphs.warn} ", "warn") if each.drift else ("   ", "text")
    if not each.changed:
        value: Line = ((f"{one} (kept)", "text"),)
    elif running:
        value = ((f"{one} {glyphs.then} ", "dim"), (two, "busy"))
    else:
        value = ((two, "busy"),)
    pad = " " * max(1, column - width_of(value))
    tail = clean(source_words(each))
    lines = [clip_line((sign, (label, "text"), *value, (pad, "text"), (tail, "dim")), width, glyphs.ellipsis)]
    notes = wrap_words(clean(each.drift), width - name - 6) if each.drift else []
    return [*lines, *(((" " * (name + 3), "text"), (chunk, "warn")) for chunk in notes)]


# Whether it fits -------------------------------------------------------------------------------------------------


def forecast_lines(
    planned: Planned | None, error: str, width: int, room: int, glyphs: Glyphs, *, old: bool = False
) -> list[Line]:
    """Return verdict, safe interval, memory bars, and the sizes per rank; the bars are left out where `room` lacks."""
    if planned is None:
        return [((f"   {chunk}", "dim"),) for chunk in wrap_words(clean(error or "no forecast"), width - 5)]
    then = planned.then
    head = verdict_lines(then, width, glyphs, old=old)
    if interval := interval_line(then, width, glyphs):
        head.append(interval)
    table: list[Line] = [((" ", "text"), *line) for line in table_lines(planned, width - 3, glyphs)]
    bars = bar_lines(planned, width, glyphs)
    warnings = [
        (((f" {glyphs.warn} " if at == 0 else "   "), "warn"), (chunk, "text"))
        for text in then.warnings
        for at, chunk in enumerate(wrap_words(clean(text), width - 5))
    ]
    lines: list[Line] = [*head, *warnings]
    if len(lines) + len(bars) + len(table) <= room:
        lines += bars
    return [*lines, *table]


# What was checked ------------------------------------------------------------------------------------------------


def checks_word(checks: Sequence[Check], *, checking: bool, checked: bool, glyphs: Glyphs) -> Span:
    """Return what all checks together say, as words and style."""
    count = {verdict: sum(each.verdict is verdict for each in checks) for verdict in Verdict}
    if count[Verdict.FAIL]:
        return f"{glyphs.bad} {count[Verdict.FAIL]} refuse{'s' if count[Verdict.FAIL] == 1 else ''} it", "bad"
    if checking:
        return f"{glyphs.busy} checking {glyphs.ellipsis}", "busy"
    if not checked:
        return "the host is not asked yet", "dim"
    hazards = sum(each.id == HAZARD and each.verdict is Verdict.NOTE for each in checks)
    doubts = count[Verdict.WARN] + count[Verdict.UNKNOWN] + hazards
    if doubts:
        return f"{glyphs.warn} {doubts} of {len(checks)} to look at", "warn"
    return f"{glyphs.ok} all {len(checks)} ok", "ok"


def check_lines(checks: Sequence[Check], width: int, room: int, glyphs: Glyphs, *, checked: bool) -> list[Line]:
    """Return the checks, those that refuse first; unknown and good ones share lines where `room` lacks.

    Args:
        checks: The checks.
        width: Width of a line, in cells.
        room: Most lines that can be seen at once.
        glyphs: Symbols to draw with.
        checked: The host was asked; until then what is unknown only waits for its answer.
    """
    if not checks:
        return [(("   nothing to check yet", "dim"),)]
    order = list(_VERDICTS)
    ranked = sorted(checks, key=lambda each: order.index(each.verdict))
    full = [line for each in ranked for line in _check(each, width, glyphs)]
    if len(full) <= room and checked:
        return full
    short = (Verdict.UNKNOWN, Verdict.OK)
    lines = [line for each in ranked if each.verdict not in short for line in _check(each, width, glyphs)]
    for verdict in short:
        lines += _together([each for each in ranked if each.verdict is verdict], verdict, width, glyphs)
    return lines


def _together(checks: Sequence[Check], verdict: Verdict, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the names of checks with one verdict in as few lines as they take."""
    word, style = _VERDICTS[verdict]
    sign = "?" if verdict is Verdict.UNKNOWN else glyphs.ok
    text = f" {glyphs.separator} ".join(clean(each.title) for each in checks)
    return [
        ((f" {sign} {word:<8} " if at == 0 else " " * 12, style), (chunk, "text"))
        for at, chunk in enumerate(wrap_words(text, width - 14) if checks else ())
    ]


def _check(each: Check, width: int, glyphs: Glyphs) -> list[Line]:
    word, style = _VERDICTS[each.verdict]
    sign = {"bad": glyphs.bad, "warn": glyphs.warn, "ok": glyphs.ok}.get(style, glyphs.note)
    if each.verdict is Verdict.UNKNOWN:
        sign = "?"
    title = clip(clean(each.title), 21, glyphs.ellipsis)
    head: Line = ((f" {sign} {word:<8} ", style), (f"{title:<22} ", "strong" if style == "bad" else "text"))
    indent = width_of(head)
    good = each.verdict is Verdict.OK
    chunks = wrap_words(clean(each.detail), max(16, width - indent - 1)) if each.detail else [""]
    lines: list[Line] = [(*head, (chunks[0], "dim" if good else "text"))]
    lines += [((" " * indent, "text"), (chunk, "dim" if good else "text")) for chunk in chunks[1:]]
    if each.way_out and not good:
        for at, chunk in enumerate(wrap_words(clean(each.way_out), max(16, width - indent - 3))):
            lines.append(((" " * indent, "text"), (f"{glyphs.then if at == 0 else ' '} ", "busy"), (chunk, "text")))
    return lines


# The command -----------------------------------------------------------------------------------------------------


def command_text(launch: Launch) -> str:
    """Return the command with its environment, quoted for a shell; what is secret in it is `***`."""
    words: list[str] = []
    if launch.unset or launch.env:
        words.append("env")
    for name in launch.unset:
        words += ["-u", name]
    words += [f"{name}={value}" for name, value in launch.env.items()]
    words += launch.argv
    return shell_line(words)


def command_lines(launch: Launch | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the working folder, the environment that is set, and the command with one flag a line where it fits."""
    if launch is None:
        return [(("   nothing is to be started", "dim"),)]
    if not launch.argv:
        return [(("   exactly the command line of the server that it is like", "dim"),)]
    lines: list[Line] = []
    if launch.cwd:
        lines.append((("   in  ", "dim"), (clip(clean(launch.cwd), width - 9, glyphs.ellipsis), "text")))
    lines += [(("   unset ", "dim"), (clean(name), "text")) for name in launch.unset]
    given = [[shell_word(f"{name}={value}")] for name, value in launch.env.items()]
    lines += [(("   ", "text"), (chunk, "dim")) for chunk in _joined(given, width - 5)]
    lines += [
        (("   " if at == 0 else "     ", "text"), (chunk, "strong" if at == 0 else "text"))
        for at, chunk in enumerate(_wrapped(launch.argv, width - 7))
    ]
    return lines


def _wrapped(argv: Sequence[str], width: int) -> list[str]:
    """Break a command before flags, so that a flag and its value stay together where they fit."""
    groups: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("-") and groups[-1]:
            groups.append([])
        groups[-1].append(shell_word(word))
    return _joined(groups, width)


def _joined(groups: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return groups of words as lines, each group on one line where it fits."""
    lines = [""]
    for group in groups:
        text = " ".join(group)
        if lines[-1] and text_width(lines[-1]) + 1 + text_width(text) <= width:
            lines[-1] += f" {text}"
        elif text_width(text) <= width:
            lines.append(text)
        else:
            lines += wrap_words(text, width)
    return [line for line in lines if line]


def order_lines(tuning: Tuning, width: int, glyphs: Glyphs) -> list[Line]:
    """Return what the host would be ordered, as steps in words; why it would not be where something refuses it."""
    if tuning.order is None:
        chunks = [chunk for each in tuning.refused for chunk in wrap_words(clean(each), width - 4)]
        return [((f" {glyphs.bad} ", "bad"), (chunk, "text")) for chunk in chunks]
    return [line for at, step in enumerate(steps_of(tuning.order), start=1) for line in numbered(at, step, width)]


def numbered(at: int, text: str, width: int) -> list[Line]:
    """Return a numbered item, broken between words."""
    return [
        (((f" {at:>2}  " if index == 0 else "     "), "dim"), (chunk, "text"))
        for index, chunk in enumerate(wrap_words(clean(text), width - 7))
    ]


def heading(title: str, right: Span | None, width: int, glyphs: Glyphs) -> Line:
    """Return the heading of a section with a word on its right."""
    return spread(((f" {title}", "head"),), ((f"{right[0]} ", right[1]),) if right else (), width, glyphs.ellipsis)
