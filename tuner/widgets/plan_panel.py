"""The forecast of a start, beside the memory of the start that it is planned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from tuner.core.plan_words import PURPOSES, alike, good, happens, least_whole, missing, reason, verdict, whole
from tuner.domain.findings import Outcome
from tuner.domain.forecast import Fit, Forecast, ForecastRow
from tuner.domain.planning import Planned
from tuner.units import GIB
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.memory_bar import bar
from tuner.widgets.notes import group_name
from tuner.widgets.plan_fields import label_of, value_words
from tuner.widgets.spans import Line, Span, clean, clip, clip_line, spread, width_of, wrap_words

_TERMS = {
    "weights": "weights",
    "draft_weights": "weights",
    "kv_pool": "kv",
    "draft_kv_pool": "kv",
    "mamba": "kv",
    "graphs": "graphs",
    "context": "context",
}
"""Fill of the memory bar for each purpose; purposes not listed are drawn as `other`."""
_STYLES = {Fit.FITS: "warn", Fit.UNKNOWN: "warn"}
_LEFT = 36
_NAME = 21
_WHAT = 12
"""Widths in cells: the left half with the knobs, the name of a knob, and the name of a purpose of memory."""


class Panel(Struct, frozen=True):
    """The lines, and the index of the one with the selected knob."""

    lines: tuple[Line, ...]
    chosen: int


def panel(planned: Planned, values: Mapping[str, Any], chosen: int, width: int, glyphs: Glyphs, *, old: bool) -> Panel:
    """Return all lines except the command line.

    Args:
        planned: The forecasts for the present and the changed values.
        values: Changed knobs, by name.
        chosen: Index of the selected knob.
        width: Width of a line, in cells.
        glyphs: Symbols to draw with.
        old: The forecast for the newest values is still being computed.
    """
    then = planned.then
    lines = verdict_lines(then, width, glyphs, old=old)
    if interval := interval_line(then, width, glyphs):
        lines.append(interval)
    lines += bar_lines(planned, width, glyphs)
    lines.append(())
    top = len(lines)
    left = _fields(planned, values, chosen, glyphs)
    right = table_lines(planned, width - _LEFT - 3, glyphs)
    blank: Line = ((" " * _LEFT, "text"),)
    for one, two in zip_longest(left, right, fillvalue=None):
        first = clip_line(one, _LEFT, glyphs.ellipsis) if one else blank
        pad: Line = ((" " * (_LEFT - width_of(first)), "text"), (f" {glyphs.track} ", "dim"))
        lines.append((*first, *pad, *(two or ())))
    for text, style in (
        *((each, "warn") for each in then.warnings),
        *((f"missing: {each}", "dim") for each in missing(then)),
    ):
        sign = f" {glyphs.warn} " if style == "warn" else "   "
        for at, chunk in enumerate(wrap_words(clean(text), width - 5)):
            lines.append(((sign if at == 0 else "   ", style), (chunk, "text" if style == "warn" else style)))
    return Panel(tuple(lines), top + 1 + chosen)


def verdict_lines(plan: Forecast, width: int, glyphs: Glyphs, *, old: bool) -> list[Line]:
    """Return whether the start fits, with the reason; an ellipsis marks an old answer."""
    word, style = verdict(plan), "ok" if good(plan) else _STYLES.get(plan.fit, "bad")
    sign = {"ok": glyphs.ok, "bad": glyphs.bad}.get(style, glyphs.warn)
    head = f" {sign} {word}  "
    why = reason(plan)
    if served := whole(plan):
        why += f"; {served}"
    chunks = wrap_words(why, width - len(head) - 2)
    lines: list[Line] = [((head, style), (chunks[0], "text"), (f" {glyphs.ellipsis}" if old else "", "dim"))]
    return [*lines, *(((" " * len(head), "text"), (chunk, "text")) for chunk in chunks[1:])]


def interval_line(plan: Forecast, width: int, glyphs: Glyphs) -> Line:
    """Return the safe interval as a bar with the present value on it: `0.7692 [----*---] 0.945`.

    It begins where the KV pool holds one request of full length, if that is safe; a start below is drawn as doubtful.
    """
    if plan.f_min is None or plan.f_max is None:
        return ()
    head: Span = (" safe fractions  ", "dim")
    least = least_whole(plan)
    low, high = f"{plan.f_min:.4f}" if least is None else f"{least:.3f}", f"{plan.f_max:.3f}"
    if plan.f_max <= plan.f_min or plan.fit is Fit.NOWHERE:
        return (head, ("none: no fraction works", "bad"))
    source = " by estimate" if plan.estimated else ""
    room = max(4, min(48, width - len(head[0]) - 30 - len(source)))
    # A fifth of the interval on either side shows how far outside a value is.
    span = plan.f_max - plan.f_min
    first, last = max(0.0, plan.f_min - span / 5), min(1.0, plan.f_max + span / 5)
    scale = (room - 1) / max(1e-9, last - first)

    def place(value: float) -> int:
        return min(room - 1, max(0, round((value - first) * scale)))

    low_at, high_at = place(plan.f_min), place(plan.f_max)
    whole_at = low_at if least is None else place(least)
    cells = [
        (glyphs.box[4], "ok" if at >= whole_at else "warn") if low_at <= at <= high_at else (".", "dim")
        for at in range(room)
    ]
    style = _STYLES.get(plan.fit, "bad")
    if plan.fraction is not None and plan.f_min < plan.fraction <= plan.f_max and plan.fraction >= (least or 0.0):
        style = "ok"
    if plan.fraction is not None:
        # A value beyond the scale is an arrow that points at it, so that the end of the scale is not taken for it.
        cells[place(plan.fraction)] = (glyphs.then if plan.fraction > last else glyphs.up, style)
    spans: list[Span] = [head, (f"{low} ", "text")]
    for sign, ink in cells:
        if spans[-1][1] == ink:
            spans[-1] = (spans[-1][0] + sign, ink)
        else:
            spans.append((sign, ink))
    spans.append((f" {high}{source}", "text"))
    if plan.fraction is not None:
        spans.append((f"   {glyphs.up} {plan.fraction:.4g}", style))
    return tuple(spans)


Sizes = dict[str, ForecastRow]


def _by_rank(plan: Forecast) -> dict[int, Sizes]:
    ranks: dict[int, Sizes] = {}
    for row in plan.rows:
        if happens(plan.fit, row.what):
            ranks.setdefault(row.rank, {})[row.what] = row
    return ranks


def _groups(plan: Forecast) -> list[list[int]]:
    """Return the groups of ranks that share a bar."""
    return alike(
        {
            rank: {what: None if row.size_bytes is None else row.size_bytes / GIB for what, row in sizes.items()}
            for rank, sizes in _by_rank(plan).items()
        }
    )


def _weakest(plan: Forecast) -> int | None:
    """Return the rank with the least memory left; the first rank where that is unknown, None without ranks."""
    ranks = _by_rank(plan)

    def left(rank: int) -> float:
        row = ranks[rank].get("free") or ranks[rank].get("kv_pool")
        return float("inf") if row is None or row.size_bytes is None else row.size_bytes

    return min(ranks, key=left, default=None)


def bar_lines(planned: Planned, width: int, glyphs: Glyphs) -> list[Line]:
    """Return two bars, present and forecast, for each group of equal ranks."""
    now, then = _by_rank(planned.now), _by_rank(planned.then)
    lines: list[Line] = []
    groups = _groups(planned.then) or _groups(planned.now)
    of = len(then or now)
    tags = {story.number: story.tag for story in planned.base.ranks}
    names = [group_name([tags.get(rank, f"rank {rank}") for rank in group], of) for group in groups[:4]]
    column = max([11, *map(len, names)])
    for group, name in zip(groups, names, strict=False):
        total = _card(planned, group[0]) or _total(now.get(group[0], {})) or _total(then.get(group[0], {}))
        for word, sizes in (("now", now.get(group[0])), ("then", then.get(group[0]))):
            if sizes is None:
                continue
            free = sizes.get("free")
            tail = "" if free is None or free.size_bytes is None else f" {free.size_bytes / GIB:6.1f} left"
            head = f" {(name if word == 'now' else ''):<{column}} {word:<5}"
            room = max(12, min(90, width - len(head) - 14))
            style = "bad" if free is not None and (free.size_bytes or 0) < 0 else "text"
            lines.append(((head, "dim"), *bar(_terms(sizes), total, room, glyphs), (tail, style)))
    return lines


def _card(planned: Planned, rank: int) -> int:
    """Return the memory of a rank's GPU in bytes, as far as the log tells; 0 where it does not."""
    told = [story.total_gib or story.before_weights for story in planned.base.ranks if story.number == rank]
    return next((round(figure.value * GIB) for figure in told if figure is not None), 0)


def _total(sizes: Sizes) -> int:
    return sum(row.size_bytes or 0 for row in sizes.values())


def _terms(sizes: Sizes) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for what, row in sizes.items():
        if what != "free" and row.size_bytes:
            term = _TERMS.get(what, "other")
            found[term] = found.get(term, 0) + max(0, row.size_bytes)
    order = ("weights", "kv", "graphs", "context", "other")
    return tuple((term, found[term]) for term in order if term in found)


def _fields(planned: Planned, values: Mapping[str, Any], chosen: int, glyphs: Glyphs) -> list[Line]:
    """Return the knobs, each with its present and its changed value."""
    lines: list[Line] = [((f" {'knob':<{_NAME}} now", "head"),)]
    for at, each in enumerate(planned.knobs):
        name, now = each.knob.name, value_words(each, each.value)
        mark: Span = (glyphs.cursor, "busy") if at == chosen else (" ", "text")
        label = clip(label_of(each), _NAME, glyphs.ellipsis).ljust(_NAME)
        line: list[Span] = [mark, (f"{label} ", "strong" if at == chosen else "text")]
        if name in values and values[name] != each.value:
            line += [(f"{now} {glyphs.then} ", "dim"), (value_words(each, values[name]), "busy")]
        else:
            line.append((now, "dim" if each.assumed else "text"))
        lines.append(tuple(line))
    return lines


def table_lines(planned: Planned, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the memory of the rank with least left: GiB before and after, error, and source of the number."""
    now, then = _by_rank(planned.now), _by_rank(planned.then)
    rank = _weakest(planned.then)
    rank = _weakest(planned.now) if rank is None else rank
    if rank is None:
        return [((clip("no sizes: see what is missing", width, glyphs.ellipsis), "dim"),)]
    before, after = now.get(rank, {}), then.get(rank, {})
    whats = list(dict.fromkeys([*before, *after]))
    order = list(PURPOSES)
    whats.sort(key=lambda what: order.index(what) if what in order else len(order))
    tags = {story.number: clean(story.tag) for story in planned.base.ranks}
    many = len(then or now) > 1
    title = f"GiB of {tags.get(rank, f'rank {rank}')}" if many else "GiB"
    lines: list[Line] = [((f"{title:<{_WHAT}}{'now':>7}{'then':>7} {glyphs.plus_minus:>4} from", "head"),)]
    for what in whats:
        old, new = before.get(what), after.get(what)
        lines.append(_row(what, old, new, width, glyphs))
        tokens = (old.tokens if old else None, new.tokens if new else None)
        if what == "kv_pool" and any(each is not None for each in tokens):
            cells = [f"{_short(each):>7}" for each in tokens]
            lines.append((("  tokens".ljust(_WHAT), "dim"), *((cell, "text") for cell in cells)))
    return lines


def _short(tokens: int | None) -> str:
    """Return a number of tokens in at most six cells; the verdict has the exact number."""
    if tokens is None:
        return "-"
    if tokens < 10_000:
        return f"{tokens:,}"
    return f"{tokens / 1e3:.1f}k" if tokens < 999_950 else f"{tokens / 1e6:.2f}M"


def _row(what: str, old: ForecastRow | None, new: ForecastRow | None, width: int, glyphs: Glyphs) -> Line:
    def cell(row: ForecastRow | None) -> str:
        return "-" if row is None or row.size_bytes is None else f"{row.size_bytes / GIB:.2f}"

    source = new or old
    error = source.error_bytes / GIB if source is not None and source.error_bytes else 0.0
    moved = cell(old) != cell(new)
    words = str(source.source) if source is not None else ""
    short = source is not None and new is not None and (new.size_bytes or 0) < 0
    line: Line = (
        (f"{PURPOSES.get(what, what)[: _WHAT - 1]:<{_WHAT}}", "strong" if what in ("kv_pool", "free") else "text"),
        (f"{cell(old):>7}", "dim"),
        (f"{cell(new):>7}", "bad" if short else "busy" if moved else "text"),
        (f" {f'{error:.2f}' if error >= 0.005 else '':>4} {words:<8}", "dim"),
    )
    room = width - width_of(line) - 2
    if source is not None and source.note and room >= 16:
        line = (*line, (f"   {clip(clean(source.note), room - 1, glyphs.ellipsis)}", "dim"))
    return line


def base_line(planned: Planned, width: int, glyphs: Glyphs) -> Line:
    """Return the line that names the start that is planned from."""
    start = planned.base
    name = planned.title or clean(start.engine)
    words = f" planned from the start of {name} {clean(start.version or '')}".rstrip()
    failed = start.outcome is Outcome.FAILED
    words += f", which {'failed' if failed else 'worked' if start.worked else 'is not ready yet'}"
    helping = f"{planned.past} earlier starts help" if planned.past > 1 else "an earlier start helps"
    more = f"{helping} " if planned.past else ""
    return spread(((words, "text"),), ((more, "dim"),) if more else (), width, glyphs.ellipsis)


def command_lines(words: Sequence[str], command: str, width: int, glyphs: Glyphs, *, most: int) -> list[Line]:
    """Return what to type: the changes, then the whole command in at most `most` lines."""
    if not words:
        return [((" nothing is turned yet: left and right change a value, enter takes a typed one", "dim"),)]
    lines: list[Line] = [((" change   ", "dim"), (clip(" ".join(words), width - 11, glyphs.ellipsis), "strong"))]
    chunks = wrap_words(command, width - 11)
    for at, chunk in enumerate(chunks[:most]):
        cut = at == most - 1 and len(chunks) > most
        shown = clip(f"{chunk} {chunks[at + 1]}", width - 11, glyphs.ellipsis) if cut else chunk
        lines.append((((" command  " if at == 0 else " " * 10), "dim"), (shown, "text")))
    return lines
