"""The stacked memory bar of one GPU: bytes by term, drawn as cells."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.units import GIB
from tuner.widgets.glyphs import GUESTS, Glyphs
from tuner.widgets.spans import Line, Span

Terms = tuple[tuple[str, int], ...]
"""Names of `glyphs.TERMS` with their bytes, in stacking order."""

_VISIBLE_FROM = 0.25
"""Share of a cell from which on a term gets a whole cell, so that a small amount is not drawn as nothing."""


def cells_of(values: Sequence[int], total: int, width: int) -> list[int]:
    """Return the cells of each value in a bar of `width` cells for `total` bytes; the others are free.

    The sum is the rounded share of all values together, so that the free part of the bar is right. Within it cells are
    distributed by the largest remainders, and a value of at least `_VISIBLE_FROM` of a cell keeps one. Values are first
    rounded to a tenth of a GiB, as they are printed, so that equal numbers have equal bars.
    """
    if total <= 0 or width <= 0:
        return [0] * len(values)
    per_gib = width * GIB / total
    exact = [round(max(0, value) / GIB, 1) * per_gib for value in values]
    budget = min(width, round(round(sum(max(0, value) for value in values) / GIB, 1) * per_gib))
    overflow = max(1.0, sum(exact) / width)
    exact = [share / overflow for share in exact]
    cells = [int(share) for share in exact]
    for index in sorted(range(len(cells)), key=lambda i: cells[i] - exact[i])[: max(0, budget - sum(cells))]:
        cells[index] += 1
    for index, share in enumerate(exact):
        if share >= _VISIBLE_FROM and not cells[index]:
            if sum(cells) < width:
                cells[index] = 1
            elif max(cells) > 1:
                cells[cells.index(max(cells))] -= 1
                cells[index] = 1
    return cells


def bar(terms: Terms, total: int | None, width: int, glyphs: Glyphs) -> Line:
    """Return the bar with its two ends, `width` cells in all."""
    inner = width - 2
    if inner <= 0:
        return ()
    if not total:
        return ((glyphs.bar_left, "dim"), ("memory unknown".ljust(inner)[:inner], "dim"), (glyphs.bar_right, "dim"))
    # Memory of others is not part of this server's stack. It stands at the right end, so that equal stacks look equal
    # whoever else is on the GPU.
    own = [(name, value) for name, value in terms if name not in GUESTS]
    counts = cells_of([value for _, value in own], total, inner)
    guests: list[Span] = []
    left = inner - sum(counts)
    for name, value in reversed(terms):
        if name not in GUESTS or not value:
            continue
        if not left and max(counts, default=0) > 1:
            counts[counts.index(max(counts))] -= 1
            left = 1
        cells = min(left, max(1, round(value * inner / total)))
        left -= cells
        guests.insert(0, (glyphs.terms[name] * cells, name))
    spans: list[Span] = [(glyphs.bar_left, "dim")]
    spans += [(glyphs.terms[name] * count, name) for (name, _), count in zip(own, counts, strict=True) if count]
    if left:
        spans.append((" " * left, "text"))
    spans += guests
    spans.append((glyphs.bar_right, "dim"))
    return tuple(spans)


def scale(total: int | None, width: int) -> str:
    """Return the numbers above the bar, in GiB, as many as fit: `0        24        48        72      95.6`."""
    if not total:
        return "memory".ljust(width)
    total_gib = total / (1 << 30)
    end = f"{total_gib:.0f}" if abs(total_gib - round(total_gib)) < 0.05 else f"{total_gib:.1f}"
    line = list("0".ljust(width))
    line[width - len(end) :] = end
    steps = 4 if width >= 36 else 2
    unit = next(
        (unit for unit in (1, 2, 4, 5, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80) if unit * steps >= total_gib), 96
    )
    for step in range(1, steps):
        mark = f"{unit * step}"
        at = 1 + round(unit * step / total_gib * (width - 2)) - len(mark) // 2
        if at + len(mark) < width - len(end) - 1:
            line[at : at + len(mark)] = mark
    return "".join(line)
