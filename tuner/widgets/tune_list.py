"""The presets of a host as a list: number, name, which one runs, and why one is not for this server."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.domain.recipe import Recipe
from tuner.domain.tuning import PresetChoice
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.spans import Line, Span, clean, clip, clip_line, spread, text_width

AS_IT_IS = "as it is"
"""Name of the entry that changes nothing by itself."""
BARE = "-"
"""Id of the entry that takes the preset away with which the server was started; no preset can be called so."""
BARE_TITLE = "without its preset"
_RECIPES = 6
"""Most recipes that are listed at once."""


def matching(choices: Sequence[PresetChoice], text: str) -> list[PresetChoice]:
    """Return the presets whose id, title, reason or knobs contain every word of a text."""
    words = text.lower().split()

    def whole(choice: PresetChoice) -> str:
        return " ".join((choice.id, choice.title, choice.why, *choice.knobs)).lower()

    return [choice for choice in choices if all(word in whole(choice) for word in words)]


def ids_of(choices: Sequence[PresetChoice], running: str | None) -> list[str]:
    """Return the ids of all entries of the list, in order."""
    return ["", *([BARE] if running else []), *(each.id for each in choices)]


def number_of(choices: Sequence[PresetChoice], choice: PresetChoice) -> int | None:
    """Return the number key of a preset, by its place among all presets; None from the tenth on."""
    place = next((at for at, each in enumerate(choices) if each.id == choice.id), None)
    return None if place is None or place > 8 else place + 1


def list_lines(
    choices: Sequence[PresetChoice],
    chosen: str,
    running: str | None,
    width: int,
    height: int,
    glyphs: Glyphs,
    *,
    filter: str = "",  # noqa: A002
    active: bool = True,
) -> list[Line]:
    """Return the list, scrolled so that the chosen preset is in view.

    Args:
        choices: All presets in the operator's order.
        chosen: Id of the chosen preset; empty for none.
        running: Id of the preset that the running server has; empty for none, None if that is not known.
        width: Width of a line, in cells.
        height: Most lines, with the heading.
        glyphs: Symbols to draw with.
        filter: Words that the shown presets contain.
        active: Arrow keys move in this list.
    """
    shown = matching(choices, filter)
    rows = [_row(0, PresetChoice(id="", title=AS_IT_IS), chosen, running, width, glyphs, active=active)]
    if running:
        bare = PresetChoice(id=BARE, title=BARE_TITLE)
        rows.append(_row(None, bare, chosen, running, width, glyphs, active=active))
    at = len(rows) - 1 if chosen == BARE else 0
    for choice in shown:
        if choice.id == chosen and chosen:
            at = len(rows)
        rows.append(_row(number_of(choices, choice), choice, chosen, running, width, glyphs, active=active))
    room = max(1, height - 1)
    first = max(0, min(at - room // 2, len(rows) - room))
    above, below = first, max(0, len(rows) - first - room)
    more = ", ".join([*([f"{above} above"] if above else []), *([f"{below} below"] if below else [])])
    words = f"{len(shown)} of {len(choices)} with {clean(filter)}" if filter else ""
    right = ", ".join(part for part in (words, more) if part)
    head = spread(((" presets", "head"),), ((f"{right} ", "dim"),) if right else (), width, glyphs.ellipsis)
    return [head, *rows[first : first + room]]


def _row(
    number: int | None,
    choice: PresetChoice,
    chosen: str,
    running: str | None,
    width: int,
    glyphs: Glyphs,
    *,
    active: bool,
) -> Line:
    is_chosen, runs = choice.id == chosen, running is not None and choice.id == running
    name = clean(choice.id if choice.id not in ("", BARE) else choice.title)
    mark: Span = (glyphs.cursor if active else ">", "busy") if is_chosen else (" ", "text")
    key: Span = (f"{number} " if number is not None else "  ", "busy" if not choice.unmet else "dim")
    style = "strong" if is_chosen else "dim" if choice.unmet else "text"
    right: Line = ((("running " if width >= 40 else "* "), "ok"),) if runs else ()
    left: list[Span] = [mark, key, (name, style)]
    if choice.unmet:
        room = width - text_width(name) - 7 - sum(text_width(text) for text, _ in right)
        if room >= 12:
            left.append((f"  {clip(clean(choice.unmet), room, glyphs.ellipsis)}", "dim"))
    return spread(left, right, width, glyphs.ellipsis) if right else clip_line(left, width, glyphs.ellipsis)


def recipe_lines(recipes: Sequence[Recipe], chosen: int, width: int, glyphs: Glyphs) -> list[Line]:
    """Return recipes to choose from, each with LLM and port; the chosen one is marked and in view."""
    if not recipes:
        return [((f" {glyphs.warn} ", "warn"), ("no recipe that is kept for this host is called so", "text"))]
    first = max(0, min(chosen - _RECIPES // 2, len(recipes) - _RECIPES))
    lines: list[Line] = []
    for at, each in enumerate(recipes[first : first + _RECIPES], start=first):
        mark: Span = (glyphs.cursor, "busy") if at == chosen else (" ", "text")
        port = f"port {each.port}" if each.port is not None else ""
        about = "  ".join(part for part in (clean(each.model or ""), port) if part)
        name: Span = (f"{clean(each.name)}  ", "strong" if at == chosen else "text")
        lines.append(clip_line((mark, name, (about, "dim")), width, glyphs.ellipsis))
    return lines
