"""The log on screen: draws the visible rows of a `LogIndex` and nothing else.

It scrolls by itself instead of through the layout, because a log that grows by thousands of lines a second must not
cause a layout each time. Positions are row ids, so nothing moves under the reader when lines come or go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip

from tuner.domain.logs import Level, LogLine
from tuner.domain.state import LogState
from tuner.messages import LineOpened, LogMoved, NewerLinesRequested, OlderLinesRequested
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.log_index import Fold, LogFilter, LogIndex, line_of
from tuner.widgets.rows import Styled, overlay
from tuner.widgets.spans import clip

_GUTTER = 3
_PREFIX = re.compile(r"\[[^\]]{4,40}\] ?|\([A-Za-z_]+ ?[^)]{0,30}\) ?")
_DATED = re.compile(r"\[\d{4}-\d\d-\d\d ")
_ID_BASE = 1 << 40
"""Makes row ids, which may be negative, usable as lines of a text selection."""


class LogView(Styled, can_focus=True):
    """A viewport over a log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="log.up", tooltip="One line up; stops following"),
        Binding("down,j", "move(1)", "Down", show=False, id="log.down", tooltip="One line down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="log.page-up", tooltip="One page up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="log.page-down", tooltip="One page down"),
        Binding("home", "oldest", "Oldest", show=False, id="log.oldest", tooltip="The oldest line held"),
        Binding("end", "follow", "Newest", show=False, id="log.newest", tooltip="The newest line, and follow"),
        Binding("left", "slide(-1)", "Left", show=False, id="log.left", tooltip="Scroll long lines left"),
        Binding("right", "slide(1)", "Right", show=False, id="log.right", tooltip="Scroll long lines right"),
        Binding("enter", "open", "Whole line", show=False, id="log.open", tooltip="The line in full, with its facts"),
    ]

    DEFAULT_CSS = """
    LogView { height: 1fr; }
    """

    def __init__(self, glyphs: Glyphs, index: LogIndex | None = None, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._glyphs = glyphs
        self.index = index if index is not None else LogIndex()
        self.live = self.index
        """The index of the log's live end; `index` is another one while an older part is shown."""
        self.following = True
        self.wrap = False
        self.cursor = 0
        """Row id of the current line; means something while not following."""
        self.all_ranks: tuple[str, ...] = ()
        """Tags of all ranks, to name the one that is missing in a fold."""
        self.pattern: re.Pattern[str] | None = None
        """What is searched for; its matches stand out."""
        self.waiting_lines = 0
        """Lines that arrived since the reader stopped following and that are not taken in yet."""
        self._top = (0, 0)
        self._x = 0
        self._log: LogState | None = None
        self._places: list[tuple[int, int]] = []
        self._places_key: tuple[object, ...] = ()

    # What is shown -------------------------------------------------------------------------------------------

    def show_log(self, log: LogState, *, dimmed: bool = False) -> None:
        """Take in a newer log.

        While the reader looks at old lines, blocks that would push those out of memory wait.
        """
        repaint = dimmed != self._dimmed
        self._dimmed = dimmed
        previous, self._log = self._log, log
        if previous is not None and previous.blocks is log.blocks:
            if repaint:
                self.refresh()
            return
        if not self.following and self.live is self.index and self.live.rows:
            lost = self.live.would_drop(log)
            if lost and self._top[0] < self.live.first + lost:
                self.waiting_lines += max(0, log.lines_total - (previous.lines_total if previous else 0))
                self.post_message(LogMoved())
                return
        before = self.live.version
        self.live.update(log)
        self.waiting_lines = 0
        if repaint or self.live.version != before:
            self.repaint()

    def show_part(self, lines: Sequence[LogLine], offset: int) -> None:
        """Show a part of the log apart from its live end, with the cursor on the line at `offset`."""
        part = LogIndex()
        part.refilter(self.live.filter, folding=self.live.folding)
        part.extend(lines)
        self.index = part
        self.following = False
        self.go_to(part.at_offset(offset) or part.first)

    def use(self, index: LogIndex, log_filter: LogFilter, *, folding: bool = True) -> None:
        """Show another log from now on."""
        index.refilter(log_filter, folding=folding)
        self.index = self.live = index
        self.following = True
        self._log = None
        self._x = 0
        self.repaint()

    def refilter(self) -> None:
        """The index was given another filter: stay near the line the reader is at."""
        if not self.following and self.index.rows:
            self.cursor = min(max(self.cursor, self.index.first), self.index.last - 1)
            self._top = (max(self.index.first, self.cursor - self.size.height // 2), 0)
        self.repaint()

    def repaint(self) -> None:
        """Draw again, all visible rows."""
        self._places_key = ()
        self.refresh()

    # Where we are --------------------------------------------------------------------------------------------

    @property
    def text_width(self) -> int:
        """Cells for the text of a line."""
        return max(1, self.size.width - _GUTTER - 1)

    @property
    def current(self) -> int:
        """Row id that keys act on."""
        return self.index.last - 1 if self.following else min(max(self.cursor, self.index.first), self.index.last - 1)

    def current_row(self) -> tuple[LogLine, tuple[str, ...]] | None:
        """The current line and the ranks it stands for."""
        if not self.index.rows:
            return None
        row = self.index[self.current]
        line = line_of(row)
        return line, tuple(row.ranks) if isinstance(row, Fold) else ((line.rank,) if line.rank else ())

    def go_to(self, row_id: int) -> None:
        """Make a row current and bring it into view."""
        places = self._visible()
        self.following = False
        self.cursor = min(max(row_id, self.index.first), max(self.index.first, self.index.last - 1))
        shown = {place[0] for place in places[:-1]} if places else set()
        if self.cursor not in shown:
            height = self.size.height
            back = (
                height // 3
                if abs(self.cursor - self._top[0]) > height
                else (height - 2 if self.cursor > self._top[0] else 0)
            )
            self._top = self._clamped(self.cursor - back if not self.wrap else self.cursor - min(back, 3))
        else:
            self._top = places[0]
        self.repaint()
        self.post_message(LogMoved())
        if self._top[0] <= self.index.first:
            self.post_message(OlderLinesRequested())
        if self.index is not self.live and self.cursor >= self.index.last - 1:
            self.post_message(NewerLinesRequested())

    def action_follow(self) -> None:
        """Go to the newest line and stay there."""
        self.index = self.live
        self.following = True
        self._x = 0
        if self._log is not None:
            self.live.update(self._log)
        self.waiting_lines = 0
        self.repaint()
        self.post_message(LogMoved())

    def action_move(self, step: int) -> None:
        """Move the current line."""
        if self.following and step > 0:
            return
        target = self.current + step
        if step > 0 and target >= self.index.last and self.index is self.live:
            self.action_follow()
            return
        self.go_to(target)

    def action_page(self, direction: int) -> None:
        """Move by one page."""
        pages = {place[0] for place in self._visible()}
        self.action_move(direction * max(1, len(pages) - 1))

    def action_oldest(self) -> None:
        """The oldest line held; older ones are fetched."""
        while self.index.work():
            pass
        self.go_to(self.index.first)

    def action_slide(self, direction: int) -> None:
        """Scroll sideways."""
        if not self.wrap:
            self._x = max(0, self._x + direction * max(8, self.text_width // 2))
            self.repaint()

    def action_open(self) -> None:
        """Show the current line in full."""
        current = self.current_row()
        if current is not None:
            self.post_message(LineOpened(*current))

    def toggle_wrap(self) -> None:
        """Break long lines, or cut them at the edge."""
        self.wrap = not self.wrap
        self._x = 0
        self.repaint()

    def scroll_rows(self, rows: int) -> None:
        """Scroll without a cursor of its own (mouse wheel): the current line goes along."""
        if self.following and rows > 0:
            return
        places = self._visible()
        if not places:
            return
        following, top = self.following, places[0][0] + rows
        self.following = False
        self._top = self._clamped(top)
        self.cursor = min(max(self.current if not following else places[-1][0], self._top[0]), self.index.last - 1)
        if rows > 0 and self.index is self.live and self._visible_from(self._top)[-1][0] >= self.index.last - 1:
            self.action_follow()
            return
        self.repaint()
        self.post_message(LogMoved())
        if self._top[0] <= self.index.first:
            self.post_message(OlderLinesRequested())

    def visible_text(self) -> str:
        """The lines on screen, whole, for the clipboard."""
        ids = dict.fromkeys(row_id for row_id, _ in self._visible())
        return "\n".join(line_of(self.index[row_id]).text for row_id in ids)

    # Mouse ---------------------------------------------------------------------------------------------------

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Three lines back."""
        event.stop()
        self.scroll_rows(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Three lines on."""
        event.stop()
        self.scroll_rows(3)

    def on_click(self, event: events.Click) -> None:
        """Make the clicked line current; on the scroll bar go there; twice: open it."""
        if event.x >= self.size.width - 1 and self.index.rows:
            share = event.y / max(1, self.size.height - 1)
            self.go_to(self.index.first + round(share * (len(self.index.rows) - 1)))
            return
        places = self._visible()
        row = event.y
        if 0 <= row < len(places) and event.chain == 1 and self.text_selection is None:
            self.go_to(places[row][0])
        elif event.chain == 2:
            self.action_open()

    def on_resize(self) -> None:
        """Other lines are visible."""
        self._places_key = ()

    # Drawing -------------------------------------------------------------------------------------------------

    def _clamped(self, row_id: int) -> tuple[int, int]:
        lowest, highest = self.index.first, max(self.index.first, self.index.last - self.size.height)
        if self.wrap:
            highest = max(self.index.first, self.index.last - 1)
        return min(max(row_id, lowest), highest), 0

    def shown_text(self, line: LogLine) -> str:
        """A line's text as it is drawn."""
        return line.text.replace("\t", "    ")

    def _pieces(self, row_id: int) -> list[str]:
        """A row's text as the lines it takes when wrapped."""
        row = self.index[row_id]
        text = self.shown_text(line_of(row))
        badge = self._badge(row)
        # Text beside a badge must not run under it: what is cut off there would be nowhere.
        width = max(8, self.text_width - (len(badge) + 1 if badge else 0))
        if len(text) <= width and text.isascii():
            return [text]
        if text.isascii():
            return [text[at : at + width] for at in range(0, len(text), width)]
        return chop_cells(text, width) or [""]

    def _visible(self) -> list[tuple[int, int]]:
        """Row id and piece of each line on screen."""
        index = self.index
        key = (index, index.version, self.size, self.wrap, self.following, self._top)
        if key != self._places_key:
            self._places = self._visible_from(None if self.following else self._top)
            self._places_key = key
        return self._places

    def _visible_from(self, top: tuple[int, int] | None) -> list[tuple[int, int]]:
        index, height = self.index, self.size.height
        if not self.wrap:
            start = max(index.first, index.last - height) if top is None else min(max(top[0], index.first), index.last)
            return [(row_id, 0) for row_id in range(start, min(index.last, start + height))]
        places: list[tuple[int, int]] = []
        if top is None:
            for row_id in range(index.last - 1, index.first - 1, -1):
                pieces = [(row_id, piece) for piece in range(len(self._pieces(row_id)))]
                places[0:0] = pieces
                if len(places) >= height:
                    return places[-height:]
            return places
        for row_id in range(max(top[0], index.first), index.last):
            skip = top[1] if row_id == top[0] else 0
            places += [(row_id, piece) for piece in range(skip, len(self._pieces(row_id)))]
            if len(places) >= height:
                break
        return places[:height]

    def render_line(self, y: int) -> Strip:
        """Draw one line of the viewport."""
        width = self.size.width
        places = self._visible()
        if y >= len(places):
            return Strip.blank(width, self.rich_style)
        row_id, piece = places[y]
        row = self.index[row_id]
        line = line_of(row)
        strips = [self._gutter(row_id, piece, line)]
        badge = self._badge(row) if piece == 0 else ""
        room = self.text_width - (len(badge) + 1 if badge else 0)
        strips.append(self._text(row_id, piece, line, room))
        if badge:
            strips.append(self.strip(((f" {badge}", "rank"),), len(badge) + 1))
        strips.append(self._scrollbar(y))
        strip = Strip.join(strips)
        if not self.following and row_id == self.cursor and self.has_focus:
            # What was searched for keeps its own background.
            under, plain = Style(bgcolor=self.style_named("cursor").bgcolor), self.rich_style.bgcolor
            strip = Strip(
                [
                    Segment(text, style + under if style and style.bgcolor == plain else style, control)
                    for text, style, control in strip
                ],
                strip.cell_length,
            )
        return strip

    def _gutter(self, row_id: int, piece: int, line: LogLine) -> Strip:
        glyphs = self._glyphs
        mark = glyphs.cursor if not self.following and row_id == self.cursor else " "
        sign, style = " ", "text"
        if piece == 0 and not line.continued and not line.marker:
            if line.level >= Level.ERROR:
                sign, style = glyphs.bad, "bad"
            elif line.level >= Level.WARNING:
                sign, style = glyphs.warn, "warn"
        return self.strip(((mark, "busy"), (sign, style), (" ", "text")), _GUTTER)

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
        if self._dimmed:
            strip = self.strip(tuple(spans), max(1, strip.cell_length))
        if self._x and not self.wrap and start == 0:
            strip, start = strip.crop(self._x), self._x
        if strip.cell_length > room:
            strip = Strip.join([strip.crop(0, room - 1), self.strip(((self._glyphs.ellipsis, "dim"),), 1)])
        strip = strip.adjust_cell_length(room, self.rich_style)
        selection = self.text_selection
        if selection is not None:
            strip = self._mark(strip, row_id, start, selection)
        return strip.apply_offsets(start, row_id + _ID_BASE)

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

    def _mark(self, strip: Strip, row_id: int, start: int, selection: Selection) -> Strip:
        span = selection.get_span(row_id + _ID_BASE)
        if span is None:
            return strip
        first = max(0, span[0] - start)
        last = strip.cell_length if span[1] < 0 else min(strip.cell_length, span[1] - start)
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
        """The selected text, for the clipboard."""
        first = self.index.first if selection.start is None else selection.start.y - _ID_BASE
        last = self.index.last - 1 if selection.end is None else selection.end.y - _ID_BASE
        parts: list[str] = []
        for row_id in range(max(first, self.index.first), min(last, self.index.last - 1) + 1):
            text = self.shown_text(line_of(self.index[row_id]))
            span = selection.get_span(row_id + _ID_BASE)
            if span is not None:
                parts.append(text[span[0] : None if span[1] < 0 else span[1]])
        return "\n".join(parts), "\n"


class LogTail(LogView, can_focus=False):
    """The last lines of a log, always following; a click asks for the whole."""

    class Clicked(Message):
        """The tail was clicked."""

    def on_click(self, event: events.Click) -> None:
        """Ask for the whole log."""
        event.prevent_default()
        if self.text_selection is None:
            self.post_message(self.Clicked())

    def scroll_rows(self, rows: int) -> None:
        """A tail stays at the end."""

    def shown_text(self, line: LogLine) -> str:
        """A tail is of today: the time says enough."""
        text = super().shown_text(line)
        return f"[{text[12:]}" if _DATED.match(text) else text

    def _scrollbar(self, y: int) -> Strip:
        return self.strip(((" ", "text"),), 1)
