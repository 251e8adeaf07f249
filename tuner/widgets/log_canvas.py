"""Draw the visible rows of a `LogIndex`.

A card is drawn as further lines of its row, like the lines of a wrapped text: rows and their ids stay the same, and a
log without cards costs nothing more.
"""

from __future__ import annotations

import re

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.selection import Selection
from textual.strip import Strip

from tuner.domain.logs import Level, LogLine
from tuner.widgets.finding_card import Card
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.log_index import Fold, LogIndex, Row, line_of
from tuner.widgets.rows import Styled, overlay
from tuner.widgets.spans import Line, clip

_GUTTER = 3
_PREFIX = re.compile(r"\[[^\]]{4,40}\] ?|\([A-Za-z_]+ ?[^)]{0,30}\) ?")
_CACHED = 400
"""Drawn rows that are cached: one or two screens, since each takes some dozen objects."""
_ID_BASE = 1 << 40
"""Added to a row id, which may be negative, to make it usable as a line number of a text selection."""

_ABOVE_CARD = 2
"""Lines of the log that stay visible above an unfolded card: the one that it is about, and the one before."""

Place = tuple[int, int]
"""A row id, and the index of a line within that row: first those of the wrapped text, then those of its card."""


class LogCanvas(Styled):
    """A view of a log: from a place downwards, or of its end while following."""

    DEFAULT_CSS = """
    LogCanvas { height: 1fr; }
    """

    def __init__(self, glyphs: Glyphs, index: LogIndex | None = None, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._glyphs = glyphs
        self.index = index if index is not None else LogIndex()
        self.following = True
        self.wrap = False
        self.cursor = 0
        """Row id of the current line; not used while following."""
        self.all_ranks: tuple[str, ...] = ()
        """Tags of all ranks, for naming the one that is missing in a fold."""
        self.pattern: re.Pattern[str] | None = None
        """The search pattern, whose matches are highlighted; None for none."""
        self.cards: dict[int, Card] = {}
        """Cards below rows, by row id."""
        self.active: Card | None = None
        """The card that keys act on; None for none."""
        self._top: Place = (0, 0)
        self._x = 0
        self._places: list[Place] = []
        self._places_key: tuple[object, ...] = ()
        self._cached: dict[Place, tuple[Row, int, Strip]] = {}
        self._cached_for: tuple[object, ...] = ()
        self._card_strips: dict[int, tuple[tuple[Line, ...], int, list[Strip]]] = {}

    @property
    def text_width(self) -> int:
        """Return the width of a line's text, in cells."""
        return max(1, self.size.width - _GUTTER - 1)

    def repaint(self) -> None:
        """Redraw all visible rows."""
        self._places_key = ()
        self.refresh()

    def on_resize(self) -> None:
        """Find the visible rows for the new size, with the current line among them."""
        self._places_key = ()
        places = self._visible()
        if not self.following and places and self.cursor > places[-1][0]:
            self._top = self._clamped(self._back(self.cursor, 1 if self.wrap else self.size.height // 2))
            # The new size may have been drawn already.
            self.repaint()

    def _clamped(self, row_id: int) -> tuple[int, int]:
        first, last = self.index.first, self.index.last
        highest = last - 1 if self.wrap else self._back(last, self.size.height)
        return min(max(row_id, first), max(first, highest)), 0

    def _back(self, row_id: int, lines: int) -> int:
        """Return the row from which at most `lines` lines are shown above `row_id`. When wrapped, rows are counted."""
        if self.wrap or not self.cards:
            return row_id - lines
        while row_id > self.index.first:
            lines -= self._height(row_id - 1)
            if lines < 0:
                break
            row_id -= 1
        return row_id

    def _text_height(self, row_id: int) -> int:
        return len(self._pieces(row_id)) if self.wrap else 1

    def _height(self, row_id: int) -> int:
        """Return the number of lines that a row takes, with its card."""
        card = self.cards.get(row_id)
        return self._text_height(row_id) + (card.height(self.card_width, self.card_room) if card else 0)

    @property
    def card_width(self) -> int:
        """Return the width of a card, in cells."""
        return max(24, self.size.width - 2)

    @property
    def card_room(self) -> int:
        """Return the most lines that a card may take."""
        return max(3, self.size.height - _ABOVE_CARD)

    def shown_text(self, line: LogLine) -> str:
        """Return a line's text as it is drawn."""
        return line.text.replace("\t", "    ")

    def _pieces(self, row_id: int) -> list[str]:
        """Return a row's text as the lines that it takes when wrapped."""
        row = self.index[row_id]
        text = self.shown_text(line_of(row))
        badge = self._badge(row)
        # The text must not run under a badge: when wrapped, the covered part could not be seen anywhere.
        width = max(8, self.text_width - (len(badge) + 1 if badge else 0))
        if len(text) <= width and text.isascii():
            return [text]
        if text.isascii():
            return [text[at : at + width] for at in range(0, len(text), width)]
        return chop_cells(text, width) or [""]

    def _visible(self) -> list[tuple[int, int]]:
        """Return row id and line within the row for each line on screen."""
        index = self.index
        key = (index, index.version, self.size, self.wrap, self.following, self._top)
        if key != self._places_key:
            self._places = self._visible_from(None if self.following else self._top)
            self._places_key = key
        return self._places

    def _visible_from(self, top: tuple[int, int] | None) -> list[tuple[int, int]]:
        index, height = self.index, self.size.height
        if not self.wrap and not self.cards:
            start = max(index.first, index.last - height) if top is None else min(max(top[0], index.first), index.last)
            return [(row_id, 0) for row_id in range(start, min(index.last, start + height))]
        places: list[tuple[int, int]] = []
        if top is None:
            for row_id in range(index.last - 1, index.first - 1, -1):
                pieces = [(row_id, piece) for piece in range(self._height(row_id))]
                places[0:0] = pieces
                if len(places) >= height:
                    return places[-height:]
            return places
        for row_id in range(max(top[0], index.first), index.last):
            skip = top[1] if row_id == top[0] else 0
            places += [(row_id, piece) for piece in range(skip, self._height(row_id))]
            if len(places) >= height:
                break
        return places[:height]

    def render_line(self, y: int) -> Strip:
        """Draw one line of the viewport."""
        places = self._visible()
        if y >= len(places):
            return Strip.blank(self.size.width, self.base_style)
        row_id, piece = places[y]
        if row_id in self.cards and (below := piece - self._text_height(row_id)) >= 0:
            return Strip.join([self._card_line(row_id, below), self._scrollbar(y)])
        strip = self._row(row_id, piece)
        if not self.following and row_id == self.cursor:
            strip = self._as_current(strip)
        selection = self.text_selection
        if selection is not None:
            strip = self._mark(strip, row_id, piece, selection)
        return Strip.join([strip, self._scrollbar(y)])

    def _row(self, row_id: int, piece: int) -> Strip:
        """Return a row's strip without cursor, selection and scroll bar. Cached: a scrolling row looks the same."""
        settings = (self.index, self.text_width, self._x, self.wrap, self.pattern, self.all_ranks, self.style_version)
        if settings != self._cached_for or len(self._cached) > _CACHED:
            self._cached_for = settings
            self._cached.clear()
        row = self.index[row_id]
        ranks = len(row.ranks) if isinstance(row, Fold) else 0
        known = self._cached.get((row_id, piece))
        if known is not None and known[0] is row and known[1] == ranks:
            return known[2]
        line = line_of(row)
        badge = self._badge(row) if piece == 0 else ""
        strips = [
            self._gutter(piece, line),
            self._text(row_id, piece, line, self.text_width - len(badge) - bool(badge)),
        ]
        if badge:
            strips.append(self.strip(((f" {badge}", "rank"),), len(badge) + 1))
        strip = Strip.join(strips)
        self._cached[row_id, piece] = (row, ranks, strip)
        return strip

    def _card_line(self, row_id: int, at: int) -> Strip:
        """Return a line of a card. The strips are made again only when the card has changed."""
        card, width = self.cards[row_id], self.card_width
        lines = card.lines(width, self.card_room, active=card is self.active)
        known = self._card_strips.get(row_id)
        if known is None or known[0] is not lines or known[1] != self.style_version:
            strips = [self.strip(((" ", "text"), *line), width + 1) for line in lines]
            known = self._card_strips[row_id] = (lines, self.style_version, strips)
        return known[2][at]

    def _as_current(self, strip: Strip) -> Strip:
        mark = self.strip(((self._glyphs.cursor, "busy"),), 1)
        strip = Strip.join([mark, strip.crop(1)])
        if not self.has_focus:
            return strip
        # Search matches keep their own background.
        under, plain = Style(bgcolor=self.style_named("cursor").bgcolor), self.base_style.bgcolor
        segments = [
            Segment(text, style + under if style and style.bgcolor == plain else style, control)
            for text, style, control in strip
        ]
        return Strip(segments, strip.cell_length)

    def _gutter(self, piece: int, line: LogLine) -> Strip:
        glyphs = self._glyphs
        sign, style = " ", "text"
        if piece == 0 and not line.continued and not line.marker:
            if line.level >= Level.ERROR:
                sign, style = glyphs.bad, "bad"
            elif line.level >= Level.WARNING:
                sign, style = glyphs.warn, "warn"
        return self.strip(((" ", "text"), (sign, style), (" ", "text")), _GUTTER)

    def _text(self, row_id: int, piece: int, line: LogLine, room: int) -> Strip:
        if line.marker:
            return self.strip(((self._rule(line.text, room), "warn"),), room)
        if self.wrap:
            pieces = self._pieces(row_id)
            text, start = pieces[piece], sum(len(each) for each in pieces[:piece])
        else:
            text, start = self.shown_text(line), 0
            if self._x and text.isascii():
                text, start = text[self._x : self._x + room + 1], self._x
        style = "bad" if line.level >= Level.ERROR else "warn" if line.level >= Level.WARNING else "text"
        style = "debug" if line.level <= Level.DEBUG else style
        prefix = _PREFIX.match(text) if start == 0 and style == "text" and not line.continued else None
        spans = self._spans(text[: room + 1] if text.isascii() else text, style, prefix.end() if prefix else 0)
        strip = Strip([Segment(part, self.style_named(name)) for part, name in spans])
        if self._x and not self.wrap and start == 0:
            strip, start = strip.crop(self._x), self._x
        if strip.cell_length > room:
            strip = Strip.join([strip.crop(0, room - 1), self.strip(((self._glyphs.ellipsis, "dim"),), 1)])
        return strip.adjust_cell_length(room, self.base_style).apply_offsets(start, row_id + _ID_BASE)

    def _spans(self, text: str, style: str, prefix: int) -> list[tuple[str, str]]:
        spans = [(text[:prefix], "dim"), (text[prefix:], style)] if prefix else [(text, style)]
        if self.pattern is None:
            return spans
        marked: list[tuple[str, str]] = []
        for part, name in spans:
            at = 0
            for match in self.pattern.finditer(part):
                if match.end() > match.start():
                    marked += [(part[at : match.start()], name), (match[0], "match")]
                    at = match.end()
            marked.append((part[at:], name))
        return [span for span in marked if span[0]]

    def _mark(self, strip: Strip, row_id: int, piece: int, selection: Selection) -> Strip:
        span = selection.get_span(row_id + _ID_BASE)
        if span is None:
            return strip
        start = sum(len(each) for each in self._pieces(row_id)[:piece]) if self.wrap else self._x
        first = max(0, span[0] - start) + _GUTTER
        last = strip.cell_length if span[1] < 0 else min(strip.cell_length, max(0, span[1] - start) + _GUTTER)
        if first >= last:
            return strip
        marked = overlay(strip.crop(first, last), self.selection_style)
        return Strip.join([strip.crop(0, first), marked, strip.crop(last)])

    def _badge(self, row: LogLine | Fold) -> str:
        if not isinstance(row, Fold) or len(row.ranks) < 2:
            return ""
        missing = [tag for tag in self.all_ranks if tag not in row.ranks]
        count = f"{self._glyphs.times}{len(row.ranks)}"
        if missing and len(missing) <= 2:
            return f"{count}, not {' '.join(missing)}"
        return f"{count} ranks"

    def _rule(self, text: str, room: int) -> str:
        rule = self._glyphs.rule
        words = clip(text, max(1, room - 8), self._glyphs.ellipsis)
        return f"{rule * 3} {words} ".ljust(room, rule)[:room]

    def _scrollbar(self, y: int) -> Strip:
        total, height = len(self.index.rows), self.size.height
        if total <= height:
            return self.strip(((" ", "text"),), 1)
        top = self._visible()[0][0] - self.index.first
        size = max(1, round(height * height / total))
        at = round(top / max(1, total - height) * (height - size))
        inside = at <= y < at + size
        return self.strip((((self._glyphs.thumb, "dim") if inside else (self._glyphs.track, "dim")),), 1)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text, for the clipboard."""
        first = self.index.first if selection.start is None else selection.start.y - _ID_BASE
        last = self.index.last - 1 if selection.end is None else selection.end.y - _ID_BASE
        parts: list[str] = []
        for row_id in range(max(first, self.index.first), min(last, self.index.last - 1) + 1):
            text = self.shown_text(line_of(self.index[row_id]))
            span = selection.get_span(row_id + _ID_BASE)
            if span is not None:
                parts.append(text[span[0] : None if span[1] < 0 else span[1]])
        return "\n".join(parts), "\n"
