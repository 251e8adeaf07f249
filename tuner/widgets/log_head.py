"""The line above a log: its source, what of it is shown, and the reader's position."""

from __future__ import annotations

import re

from tuner.domain.logs import Level
from tuner.domain.state import ServerState
from tuner.units import format_bytes
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.log_index import LogFilter
from tuner.widgets.log_view import LogView
from tuner.widgets.spans import Line, Span, clean, clip, spread, width_of

LEVELS = (Level.INFO, Level.WARNING, Level.ERROR, Level.DEBUG)
"""Levels in the order in which a key steps through them."""
_LEVEL_NAMES = {Level.DEBUG: "all", Level.INFO: "info+", Level.WARNING: "warning+", Level.ERROR: "error"}


def source_text(server: ServerState) -> tuple[str, bool]:
    """Return where a server's log is, in words, and whether it can be read there."""
    source = server.log.source or server.identity.log
    if source is None:
        return "no log known", False
    return clean(source.path or source.note or source.kind), bool(source.path)


def where_spans(view: LogView, glyphs: Glyphs) -> Line:
    """Return whether the view follows the log, or how many lines it is behind."""
    if view.index is not view.live:
        return (("  older part ", "warn"),)
    if view.following:
        return ((f"  {glyphs.up} following ", "ok"),)
    if view.waiting_lines:
        return ((f"  {glyphs.stale} {view.waiting_lines:,} newer ", "warn"),)
    behind = view.index.last - 1 - view.current
    return ((f"  {glyphs.stale} {f'{behind:,} behind' if behind else 'not following'} ", "warn"),)


def name_at(text: str, x: int) -> str:
    """Return the name of the fact at a column of the line; empty between facts."""
    facts = re.finditer(r"\S+(?: \S+)*", text)
    return next((fact[0].split()[0] for fact in facts if fact.start() <= x < fact.end()), "")


def head_line(server: ServerState, view: LogView, log_filter: LogFilter, width: int, glyphs: Glyphs) -> Line:
    """Return the whole line. Facts stand two spaces apart; the first word of each is its name."""

    def part(name: str, value: str, *, special: bool) -> list[Span]:
        return [(f"  {name} ", "dim"), (value, "busy" if special else "text")]

    rank = "all" if log_filter.rank is None else log_filter.rank or "main"
    right = part("rank", clean(rank), special=log_filter.rank is not None)
    right += part("level", _LEVEL_NAMES[log_filter.level], special=log_filter.level != LEVELS[0])
    if log_filter.text:
        right += part("text", f'"{clip(log_filter.text, 16, glyphs.ellipsis)}"', special=True)
    folding = view.live.folding
    right += [("  folded" if folding else "  each line", "text" if folding else "busy"), *where_spans(view, glyphs)]
    room = width - width_of(right) - 3
    where, _ = source_text(server)
    size = format_bytes(server.log.size) if server.log.size else ""
    # A path's end tells more than its beginning.
    shown = where if len(where) <= room else glyphs.ellipsis + where[len(where) - room + 1 :]
    with_size = room >= len(where) + len(size) + 3
    left: Line = ((" ", "text"), (shown, "strong"), (f"  {size}" if with_size else "", "dim"))
    return spread(left, right, width, glyphs.ellipsis)
