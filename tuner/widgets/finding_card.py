"""A finding in a box: folded to a few lines, or unfolded with arithmetic, remedies and evidence.

A card does not depend on a terminal. Its lines are made once per width and only moved while a log scrolls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tuner.core.finding_words import ranks_text, sureness, value_text
from tuner.core.remedies import order, safe, typed
from tuner.domain.findings import Finding, Remedy, Severity
from tuner.widgets.finding_words import outcome_text, place_text, severity_span
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.spans import (
    Line,
    Span,
    clean,
    clip,
    clip_line,
    fit,
    spread,
    text_of,
    text_width,
    width_of,
    wrap_words,
)

REMEDY_KEYS = ("A", "B", "C", "D")
"""Keys of the remedies of the finding on screen, in the order of the remedies."""
_LABEL = 12


class CardLine(Struct, frozen=True):
    """One line inside a card, and what it refers to."""

    line: Line
    at: int | None = None
    """Byte offset in the log that enter goes to; None for a line without one."""
    remedy: int | None = None
    """Index among the remedies that have a key; None for a line of no remedy."""

    @property
    def leads(self) -> bool:
        """Return whether enter does something on this line."""
        return self.at is not None or self.remedy is not None


class Card:
    """A finding laid out for the screen.

    Args:
        finding: The finding to show.
        glyphs: Symbols to draw with.
        tags: Tag of each global rank.
        more: Number of other findings.
        keys: Keys of the remedies.
    """

    def __init__(
        self,
        finding: Finding,
        glyphs: Glyphs,
        *,
        tags: Mapping[int, str] | None = None,
        more: int = 0,
        keys: Sequence[str] = REMEDY_KEYS,
    ) -> None:
        self.finding = finding
        self.unfolded = False
        self._slow = finding.severity not in (Severity.FATAL, Severity.ERROR)
        self._glyphs = glyphs
        self._tags = dict(tags or {})
        self._more = more
        self._keys = keys
        self._applies: frozenset[int] = frozenset()
        self._back = ""
        self._chosen = 0
        self._top = 0
        self._laid_out: tuple[int, tuple[CardLine, ...]] = (0, ())
        self._brief_of: tuple[tuple[int, int], tuple[Line, ...]] = ((0, 0), ())
        self._drawn: tuple[tuple[object, ...], tuple[Line, ...]] = ((), ())

    # What can be done --------------------------------------------------------------------------------------------

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Return the remedies that have a key: those that can be typed as they stand."""
        return tuple(each for each in self.finding.remedies if typed(each))[: len(self._keys)]

    @property
    def mark(self) -> tuple[str, int | None]:
        """Return what identifies a finding while its numbers change: cause and place in the log."""
        return self.finding.cause, self.finding.at

    def offer(self, applies: frozenset[int], back: str) -> bool:
        """Say what the keys of the card do now. Returns whether that is a change.

        Args:
            applies: Indices of the remedies that can be applied; the others are copied.
            back: What can be gone back to; empty: nothing.
        """
        if (applies, back) == (self._applies, self._back):
            return False
        self._applies, self._back = applies, back
        self._laid_out, self._drawn = (0, ()), ((), ())
        return True

    def applies(self, index: int) -> bool:
        """Return whether the key of a remedy applies it, and does not only copy it."""
        return index in self._applies

    @property
    def can_go_back(self) -> bool:
        """Return whether there is something to go back to."""
        return bool(self._back)

    def does(self, index: int) -> str:
        """Return what the key of a remedy does: `applies --mem-fraction-static 0.88`."""
        return f"{'applies' if index in self._applies else 'copies'} {clean(typed(self.remedies[index]))}"

    def resume(self, before: Card) -> None:
        """Take over the fold, selection and scroll position from an earlier card of the same finding."""
        self.unfolded, self._chosen, self._top = before.unfolded, before._chosen, before._top

    def fold(self, *, unfolded: bool) -> None:
        """Show all of the finding, or only its first few lines."""
        self.unfolded = unfolded
        self._chosen = self._top = 0

    def chosen(self, width: int) -> CardLine:
        """Return the selected line; where it refers to nothing, with the finding's own place in the log."""
        inside = self.inside(width)
        line = inside[self._chosen] if self.unfolded and self._chosen < len(inside) else CardLine(())
        return line if line.leads else CardLine(line.line, at=self.finding.at)

    @property
    def row(self) -> int:
        """Return the index of the selected line, counted without the box."""
        return self._chosen

    def choose(self, row: int) -> None:
        """Select a line of the unfolded card."""
        self._chosen = row

    def move(self, step: int, width: int, room: int) -> bool:
        """Select the next line that refers to something, or scroll; return False at the end."""
        inside = self.inside(width)
        shown = max(1, room - 2)
        last = max(0, len(inside) - shown)
        ahead = range(self._chosen + step, len(inside) if step > 0 else -1, 1 if step > 0 else -1)
        target = next((at for at in ahead if inside[at].leads), None)
        if target is not None and abs(target - self._chosen) <= shown:
            self._chosen = target
            self._top = min(max(self._top, target - shown + 1), target, last)
            return True
        top = min(max(self._top + step, 0), last)
        moved = top != self._top
        self._top = top
        return moved

    # How it looks ------------------------------------------------------------------------------------------------

    def lines(
        self, width: int, room: int, *, brief: int = 2, active: bool = True, hints: bool = True
    ) -> tuple[Line, ...]:
        """Return the lines of the card with its box; the same object while nothing has changed.

        Args:
            width: Width of a line, in cells.
            room: Most lines that it may take; an unfolded card scrolls within them.
            brief: Lines of text while folded.
            active: Keys act on this card: show them, and the selected line.
            hints: Show keys and the number of other findings.
        """
        made_for = (width, room, brief, active, hints, self.unfolded, self._chosen, self._top)
        if self._drawn[0] != made_for:
            self._drawn = (made_for, self._draw(width, room, brief, active=active, hints=hints))
        return self._drawn[1]

    def _draw(self, width: int, room: int, brief: int, *, active: bool, hints: bool) -> tuple[Line, ...]:
        if not self.unfolded:
            body = self._brief(width, max(1, min(brief, room - 2)))
            foot = self._foot(width, active=active)
            return (self._edge(width, self._title(width)), *body, self._edge(width, foot, below=True))
        inside = self.inside(width)
        shown = min(len(inside), max(1, room - 2))
        self._top = max(0, min(self._top, len(inside) - shown))
        self._chosen = max(0, min(self._chosen, len(inside) - 1))
        leads = bool(inside) and inside[self._chosen].leads
        rows = [
            self._boxed(each.line, width, chosen=active and leads and self._top + row == self._chosen)
            for row, each in enumerate(inside[self._top : self._top + shown])
        ]
        foot = self._foot(width, active=active, below=len(inside) - shown - self._top) if hints else ()
        return (self._edge(width, self._title(width)), *rows, self._edge(width, foot, below=True))

    def height(self, width: int, room: int, *, brief: int = 2) -> int:
        """Return how many lines `lines` returns for the same arguments."""
        if self.unfolded:
            return min(len(self.inside(width)), max(1, room - 2)) + 2
        return len(self._brief(width, max(1, min(brief, room - 2)))) + 2

    def summary(self, width: int) -> Line:
        """Return the finding as one line."""
        finding = self.finding
        sign = severity_span(finding.severity, self._glyphs)
        left: Line = ((" ", "text"), sign, (f"{outcome_text(finding)}: ", sign[1]), (clean(finding.title), "text"))
        return spread(left, (("u ", "busy"), ("unfolds ", "text")), width, self._glyphs.ellipsis)

    def text(self, width: int = 96) -> str:
        """Return all of the finding as plain text, for the clipboard."""
        return "\n".join([text_of(self._title(width)), *(text_of(each.line).rstrip() for each in self.inside(width))])

    def inside(self, width: int) -> tuple[CardLine, ...]:
        """Return every line of the unfolded card, without the box."""
        if self._laid_out[0] != width:
            self._laid_out = (width, tuple(self._lay_out(max(20, width - 4))))
        return self._laid_out[1]

    def _lay_out(self, width: int) -> list[CardLine]:
        finding, glyphs = self.finding, self._glyphs
        lines = [CardLine(((each, "strong"),)) for each in _paragraphs(finding.title, width)]
        lines += [CardLine(((each, "text"),)) for each in _paragraphs(finding.explanation, width)]
        for remedy in finding.remedies:
            lines += self._remedy(remedy, width)
        for advice in finding.wrong_advice:
            lines += _labelled((f"{glyphs.warn} wrong", "warn"), clean(advice), width)
        lines += self._evidence(width)
        if finding.refuted_by:
            lines += _labelled(("refuted by", "dim"), clean(finding.refuted_by), width)
        return lines

    def _evidence(self, width: int) -> list[CardLine]:
        """Return the evidence in columns: what, value, and place."""
        rows = [
            (clean(each.what), clean(value_text(each.value, each.unit, cut=each.cut)), place_text(each), each.at)
            for each in self.finding.evidence
        ]
        places = max((text_width(row[2]) for row in rows), default=0)
        room = width - _LABEL - places - 3
        sizes = [(text_width(what), text_width(value)) for what, value, _, _ in rows]
        # One long value must not push the numbers of the other rows out of their column.
        column = max((value for _, value in sizes if value <= room // 3), default=0)
        whats = min(max((what for what, _ in sizes), default=0), max(8, room - column - 2))
        gaps = [max(0, min(max(2, whats - what + 2) + max(0, column - value), room - what - value))
                for what, value in sizes]  # fmt: skip
        taken = max((what + gap + value for (what, value), gap in zip(sizes, gaps, strict=True) if gap >= 2), default=0)
        lines: list[CardLine] = []
        for (what, value, place, at), gap in zip(rows, gaps, strict=True):
            head: Span = (("evidence" if not lines else "").ljust(_LABEL), "dim")
            body: Line = ((what, "text"), (" " * gap, "text"), (value, "strong")) if gap >= 2 else ((what, "text"),)
            body = clip_line(body, room, self._glyphs.ellipsis)
            fill = " " * max(2, taken - width_of(body) + 3)
            lines.append(CardLine((head, *body, (fill, "text"), (place.rjust(places), "dim")), at=at))
            if gap < 2:
                below = wrap_words(value, max(8, width - _LABEL - 2))
                lines += [CardLine(((" " * (_LABEL + 2), "text"), (each, "strong"))) for each in below]
        return lines

    def _remedy(self, remedy: Remedy, width: int) -> list[CardLine]:
        index = self.remedies.index(remedy) if remedy in self.remedies else None
        key: Span = (f"{self._keys[index]}  ", "busy") if index is not None else ("   ", "text")
        words, interval, why = clean(order(remedy)), safe(remedy, mends=self._slow), clean(remedy.why)
        words = f"apply: {words}" if index in self._applies else words
        first: list[Span] = [key, (words, "strong")]
        if interval:
            first.append((f"   {interval}", "ok"))
        if why and width_of(first) + 3 + text_width(why) <= width:
            first.append((f"   {why}", "dim"))
            why = ""
        lines: list[CardLine] = []
        if width_of(first) > width:
            chunks = wrap_words(words, width - 3)
            lines.append(CardLine((key, (chunks[0], "strong")), remedy=index))
            lines += [CardLine((("   ", "text"), (chunk, "strong"))) for chunk in chunks[1:]]
            why = ". ".join(part for part in (interval, why) if part)
        else:
            lines.append(CardLine(tuple(first), remedy=index))
        lines += [CardLine((("   ", "text"), (each, "dim"))) for each in (wrap_words(why, width - 3) if why else ())]
        return lines

    def _brief(self, width: int, most: int) -> tuple[Line, ...]:
        """Return the title and the beginning of the explanation, in at most `most` lines."""
        if self._brief_of[0] != (width, most):
            self._brief_of = ((width, most), tuple(self._lay_out_brief(width, most)))
        return self._brief_of[1]

    def _lay_out_brief(self, width: int, most: int) -> list[Line]:
        room = max(8, width - 4)
        finding = self.finding
        if finding.severity in (Severity.PERFORMANCE, Severity.INFO):
            most = 1
        parts = [("strong", clean(finding.title)), ("text", " ".join(clean(finding.explanation).split()))]
        rows: list[Line] = []
        for style, text in parts:
            left = most - len(rows)
            if not text or left <= 0:
                continue
            # The explanation keeps at least one line: it holds the arithmetic.
            share = max(1, left - 1) if style == "strong" and parts[1][1] else left
            wrapped = wrap_words(text, room)
            kept = wrapped[:share]
            if len(wrapped) > share:
                kept[-1] = clip(f"{kept[-1]} {wrapped[share]}", room, self._glyphs.ellipsis)
            rows += [((each, style),) for each in kept]
        return [self._boxed(row, width) for row in rows]

    def _title(self, width: int) -> Line:
        finding, glyphs = self.finding, self._glyphs
        sign, style = severity_span(finding.severity, glyphs)
        separator: Span = (f" {glyphs.separator} ", "dim")
        ranks = clean(ranks_text(finding.ranks, self._tags))
        parts: list[Line] = [
            ((f"{sign}{outcome_text(finding)}", style),),
            ((finding.cause, "strong"),),
            ((ranks, "text"),) if ranks else (),
            ((sureness(finding.confidence), "text"),),
        ]
        return fit(parts, width - 5, separator)

    def _foot(self, width: int, *, active: bool, below: int = 0) -> Line:
        """Return the lower edge with the keys that act on this card."""
        glyphs = self._glyphs
        parts: list[Line] = []
        if self.unfolded and active:
            if below or self._top:
                parts.append((("up down ", "busy"), (f"{below} more below" if below else "more above", "text")))
            parts += [(("enter ", "busy"), ("its line", "text")), (("esc ", "busy"), ("folds", "text"))]
            if self._back:
                parts.append((("G ", "busy"), (f"back to {clip(clean(self._back), 24, glyphs.ellipsis)}", "text")))
        elif active:
            if self.remedies:
                words = clip(self.does(0), max(24, width - 38), glyphs.ellipsis)
                parts.append(((f"{self._keys[0]} ", "busy"), (words, "text")))
            if self._back:
                parts.append((("G ", "busy"), (f"back to {clip(clean(self._back), 24, glyphs.ellipsis)}", "text")))
            parts.append((("u ", "busy"), ("unfolds", "text")))
        if self._more:
            more = f"{self._more} more finding{'s' if self._more > 1 else ''}"
            parts.append((("x ", "busy"), (more, "text")))
        return fit(parts, width - 6, (f" {glyphs.separator} ", "dim"))

    def _edge(self, width: int, words: Line, *, below: bool = False) -> Line:
        """Return an upper or lower edge of the box with words in it."""
        box = self._glyphs.box
        left, right = (box[2], box[3]) if below else (box[0], box[1])
        inside: Line = (*words, (" ", "text")) if words else ()
        rule = box[4] * max(0, width - 3 - width_of(inside))
        return ((f"{left} " if words else f"{left}{box[4]}", "dim"), *inside, (f"{rule}{right}", "dim"))

    def _boxed(self, line: Line, width: int, *, chosen: bool = False) -> Line:
        side, room = self._glyphs.box[5], max(1, width - 4)
        kept = clip_line(line, room, self._glyphs.ellipsis)
        left: Span = (f"{self._glyphs.cursor} ", "busy") if chosen else (f"{side} ", "dim")
        return (left, *kept, (" " * (room - width_of(kept)), "text"), (f" {side}", "dim"))


def _paragraphs(text: str, width: int) -> list[str]:
    return [line for part in text.splitlines() if part.strip() for line in wrap_words(clean(part), width)]


def _labelled(label: Span, text: str, width: int) -> list[CardLine]:
    """Return a label with a wrapped text beside it."""
    chunks = wrap_words(text, max(8, width - _LABEL))
    first = CardLine(((label[0].ljust(_LABEL), label[1]), (chunks[0], "text")))
    return [first, *(CardLine(((" " * _LABEL, "text"), (chunk, "text"))) for chunk in chunks[1:])]
