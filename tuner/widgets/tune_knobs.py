"""Knobs that the operator changes beside a preset: the list, completion over the catalogue, and typed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tuner.core.knobs import describes
from tuner.domain.knobs import Harm, KnobType, Where
from tuner.domain.planning import PlanKnob
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.plan_fields import label_of, typed_value, value_words
from tuner.widgets.spans import Line, Span, clean, clip, clip_line, spread, text_width, wrap_words

_ANYWHERE = Where()
_SERIOUS = (Harm.HANG, Harm.CORRUPT, Harm.CRASH)
_COMPLETIONS = 6
"""Most knobs that are offered while a name is typed."""


class Said(Struct, frozen=True):
    """What is said of a typed value."""

    text: str
    style: str = "dim"
    good: bool = True
    """False: it is no value of the knob, and is not taken."""


def knob_lines(
    knobs: Mapping[str, PlanKnob],
    overrides: Mapping[str, Any],
    chosen: int,
    width: int,
    height: int,
    glyphs: Glyphs,
    *,
    active: bool,
) -> list[Line]:
    """Return the changed knobs, each with its present and its new value, and what is to be known of the chosen one.

    Args:
        knobs: All knobs of the version, by canonical name, with the values of the running server.
        overrides: The new values, by name.
        chosen: Index of the chosen one.
        width: Width of a line, in cells.
        height: Most lines, with the heading.
        glyphs: Symbols to draw with.
        active: Arrow keys act on this list.
    """
    hint: Line = (("n ", "busy"), ("adds ", "text")) if knobs else ()
    head = spread(((" changed by hand", "head"),), hint, width, glyphs.ellipsis)
    names = list(overrides)
    if not names:
        return [head, ((clip("   nothing: only what the preset says", width, glyphs.ellipsis), "dim"),)]
    column = min(max(12, width - 18), max(text_width(_label(knobs, name)) for name in names) + 1)
    rows: list[Line] = []
    for at, name in enumerate(names):
        is_chosen = at == min(chosen, len(names) - 1)
        mark: Span = (glyphs.cursor if active else ">", "busy") if is_chosen else (" ", "text")
        label = clip(_label(knobs, name), column - 1, glyphs.ellipsis).ljust(column)
        knob = knobs.get(name)
        now = value_words(knob, knob.value) if knob is not None else "?"
        then = value_words(knob, overrides[name]) if knob is not None else clean(str(overrides[name]))
        rows.append(
            clip_line(
                (
                    mark,
                    (label, "strong" if is_chosen and active else "text"),
                    (f"{now} {glyphs.then} ", "dim"),
                    (then, "busy"),
                ),
                width,
                glyphs.ellipsis,
            )
        )
    about: list[Line] = []
    name = names[min(chosen, len(names) - 1)]
    if active and name in knobs:
        said = said_of(knobs[name], overrides[name])
        about += [((f"   {chunk}", said.style),) for chunk in wrap_words(said.text, width - 4)[:2]]
    room = max(1, height - 1 - len(about))
    first = max(0, min(chosen - room // 2, len(rows) - room))
    return [head, *rows[first : first + room], *about][:height]


def _label(knobs: Mapping[str, PlanKnob], name: str) -> str:
    return clean(label_of(knobs[name]) if name in knobs else name)


def completions(knobs: Mapping[str, PlanKnob], text: str) -> list[PlanKnob]:
    """Return the knobs that a text may mean: names that begin with it first, then those that contain its words."""
    wanted = _plain(text)
    words = wanted.replace("_", " ").split()

    def rank(each: PlanKnob) -> int | None:
        own = _names(each)
        if wanted in own:
            return 0
        if any(name.startswith(wanted) for name in own):
            return 1
        whole = " ".join((*own, each.knob.title.lower()))
        return 2 if all(word in whole for word in words) else None

    found = [(place, at, each) for at, each in enumerate(knobs.values()) if (place := rank(each)) is not None]
    return [each for _, _, each in sorted(found, key=lambda one: one[:2])]


def taken_apart(knobs: Mapping[str, PlanKnob], text: str) -> tuple[str, str]:
    """Return name and value of a typed text: `name=value`, `name value`, or words of a name and an empty value."""
    name, equals, value = text.strip().partition("=")
    if equals:
        return name.strip(), value.strip()
    first, _, rest = text.strip().partition(" ")
    if rest and (spells_one(knobs, first) or not completions(knobs, text)):
        return first, rest.strip()
    return text.strip(), ""


def spells_one(knobs: Mapping[str, PlanKnob], name: str) -> bool:
    """Return whether a text is the whole name of a knob."""
    return any(_plain(name) in _names(each) for each in knobs.values())


def _plain(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_").lower()


def _names(each: PlanKnob) -> list[str]:
    """Return all names of a knob, as `_plain` writes them."""
    spelled = (each.knob.name, label_of(each), each.flag or "", each.env or "", *each.knob.also)
    return [_plain(name) for name in spelled if name]


def completion_lines(knobs: Mapping[str, PlanKnob], text: str, chosen: int, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the knobs that a typed text may mean, with value and title; the chosen one is marked."""
    text, _ = taken_apart(knobs, text)
    found = completions(knobs, text)
    if not found:
        return [((f" {glyphs.warn} ", "warn"), (f"no knob of this version is called {clean(text)}", "text"))]
    first = max(0, min(chosen - _COMPLETIONS // 2, len(found) - _COMPLETIONS))
    lines: list[Line] = []
    for at, each in enumerate(found[first : first + _COMPLETIONS], start=first):
        mark: Span = (glyphs.cursor, "busy") if at == chosen else (" ", "text")
        name = clip(label_of(each), 30, glyphs.ellipsis).ljust(31)
        spelled = each.flag or each.env or ""
        body: Line = (
            mark,
            (name, "strong" if at == chosen else "text"),
            (f"{value_words(each, each.value):<10} ", "text"),
            (clean(each.knob.title), "dim"),
        )
        right: Line = ((f"{clean(spelled)} ", "dim"),) if width >= 110 else ()
        lines.append(spread(body, right, width, glyphs.ellipsis))
    rest = len(found) - len(lines)
    if rest > 0:
        lines.append(((f"   {glyphs.ellipsis} {rest} more", "dim"),))
    return lines


def said_of_text(each: PlanKnob, text: str) -> Said:
    """Return what is said of a value while it is typed: what is wrong with it, or what it does."""
    if not text.strip():
        return Said(bounds(each))
    try:
        value = typed_value(each, text)
    except ValueError as error:
        return Said(f"{error}; {bounds(each)}", "bad", good=False)
    return said_of(each, value)


def said_of(each: PlanKnob, value: Any) -> Said:
    """Return what is to be known of a value: the harm that it is known for, else what the knob accepts."""
    # Hazards of combinations and of some hosts are judged with the checks, which know both.
    alone = (one for one in each.knob.hazards if not one.given and one.where == _ANYWHERE)
    harm = next((one for one in alone if describes(one, value)), None)
    if harm is None:
        return Said(bounds(each))
    return Said(f"{harm.outcome.words}: {clean(harm.why)}", "bad" if harm.outcome in _SERIOUS else "warn")


def bounds(each: PlanKnob) -> str:
    """Return which values a knob accepts, in words, what it is, and what the engine takes where nothing sets it."""
    knob = each.knob
    if each.choices:
        accepts = f"one of {', '.join(each.choices)}"
    elif knob.type is KnobType.BOOL:
        accepts = "on or off"
    elif knob.min is not None and knob.max is not None:
        accepts = f"{knob.min:g} to {knob.max:g}"
    elif knob.min is not None:
        accepts = f"{knob.min:g} or more"
    elif knob.max is not None:
        accepts = f"up to {knob.max:g}"
    else:
        accepts = {KnobType.INT: "a whole number", KnobType.FLOAT: "a number"}.get(knob.type, "")
    words = ": ".join(part for part in (accepts, knob.title) if part)
    return clean(f"{words}. Left out: {each.left_out}" if each.left_out else words)
