"""A log on screen that takes in new lines and can be scrolled.

It scrolls by itself instead of through the layout, because thousands of new lines a second must not cause a layout
each. Positions are row ids, so nothing moves under the reader when lines come or go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from tuner.domain.logs import LogLine
from tuner.domain.state import LogState
from tuner.messages import LineOpened, LogMoved, NewerLinesRequested, OlderLinesRequested
from tuner.widgets.finding_card import Card, CardLine
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.log_canvas import LogCanvas
from tuner.widgets.log_index import Fold, LogFilter, LogIndex, line_of

_DATED = re.compile(r"\[\d{4}-\d\d-\d\d ")


class LogView(LogCanvas, can_focus=True):
    """A scrollable view of a log."""

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

    class CardEntered(Message):
        """Enter was pressed on a line of an unfolded card."""

        def __init__(self, card: Card, line: CardLine) -> None:
            super().__init__()
            self.card = card
            self.line = line

    def __init__(self, glyphs: Glyphs, index: LogIndex | None = None, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(glyphs, index, id=id)
        self.live = self.index
        """The index of the log's live end; `index` is another one while an older part is shown."""
        self.waiting_lines = 0
        """Lines that arrived since the reader stopped following and that are not in the index yet."""
        self._log: LogState | None = None
        self._then: Callable[[], None] | None = None
        self._kept: tuple[int, int] | None = None
        """Byte offset of the line that the reader selected, and its row on screen: a filter may hide it for a while."""
        self._findings: tuple[Card, ...] = ()
        self._placed_for: tuple[object, ...] = ()
        self._unplaced: tuple[Card, ...] = ()
        """Cards whose line is not in the index."""

    # What is shown -------------------------------------------------------------------------------------------

    def show_log(self, log: LogState, *, dimmed: bool = False) -> None:
        """Take in a newer state of the log.

        While the reader is not following, blocks that would push the lines on screen out of memory wait.
        """
        repaint = self.set_dimmed(dimmed)
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
        self.place_cards()
        if repaint or self.live.version != before:
            self.repaint()

    # Cards -----------------------------------------------------------------------------------------------------

    def show_cards(self, cards: tuple[Card, ...]) -> None:
        """Show these cards, each below the line it is about; of several for one line only the first."""
        self._findings = cards
        self.place_cards()

    def place_cards(self) -> None:
        """Find the rows of the cards. Row ids are stable, so this is done once per card and not for each new line."""
        index = self.index
        key = (self._findings, index, index.resets, index.building, len(index.fetched))
        placed, wanted = ({}, self._findings) if key != self._placed_for else (dict(self.cards), self._unplaced)
        unplaced: list[Card] = []
        for card in wanted:
            if card.finding.at is None:
                continue
            row_id = index.below(card.finding.at)
            if row_id is None:
                unplaced.append(card)
            else:
                placed.setdefault(row_id, card)
        self._placed_for, self._unplaced = key, tuple(unplaced)
        if placed != self.cards:
            self.cards = placed
            self._card_strips.clear()
            self.repaint()

    def row_of(self, card: Card) -> int | None:
        """Return the id of the row below which a card is shown; None where its line is not in the index."""
        return next((row_id for row_id, each in self.cards.items() if each.finding.at == card.finding.at), None)

    @property
    def open_card(self) -> Card | None:
        """Return the unfolded card of the current row, in which the arrow keys move; None for none."""
        card = None if self.following else self.cards.get(self.current)
        return card if card is not None and card.unfolded else None

    def show_part(self, lines: Sequence[LogLine], offset: int) -> None:
        """Show a part of the log apart from its live end, with the cursor on the line at `offset`."""
        part = LogIndex()
        part.refilter(self.live.filter, folding=self.live.folding)
        part.extend(lines)
        self.index = part
        self.following = False
        self.place_cards()
        self.go_to(part.at_offset(offset) or part.first)

    def use(self, index: LogIndex, log_filter: LogFilter, *, folding: bool = True) -> None:
        """Show another log from now on."""
        index.refilter(log_filter, folding=folding)
        self.index = self.live = index
        self.cards = {}
        self.following = True
        self._log = None
        self._then = self._kept = None
        self._x = 0
        self.repaint()

    def when_built(self, action: Callable[[], None]) -> None:
        """Run an action once all rows are indexed, at once if they are; dropped if the reader moves before that."""
        if self.index.building:
            self._then = action
        else:
            action()

    @property
    def building(self) -> bool:
        """Return whether older lines are still to be indexed."""
        return any(each.building for each in self._indexes)

    @property
    def _indexes(self) -> tuple[LogIndex, ...]:
        return tuple(dict.fromkeys((self.index, self.live)))

    def work(self) -> bool:
        """Index a slice of older lines. Returns whether there are more."""
        for each in self._indexes:
            if each.work():
                return True
        self.place_cards()
        self._return()
        action, self._then = self._then, None
        if action is not None:
            action()
        return False

    def refilter(self, log_filter: LogFilter, *, folding: bool) -> None:
        """Change the filter. The selected line stays on screen, or the nearest one while the filter hides it."""
        current = self.current_row()
        if self._kept is None and current is not None and not self.following:
            rows = [row_id for row_id, _ in self._visible()]
            self._kept = (current[0].offset, rows.index(self.current) if self.current in rows else 0)
        for each in self._indexes:
            each.refilter(log_filter, folding=folding)
        self.place_cards()
        self._return()
        self.repaint()

    def _return(self) -> None:
        """Scroll to the shown line nearest to the one that the reader selected."""
        if self._kept is None or self.following:
            return
        row_id = self.index.nearest(self._kept[0])
        if row_id is not None:
            self.cursor = row_id
            self._top = self._clamped(self._back(row_id, min(self._kept[1], 3) if self.wrap else self._kept[1]))

    # Where we are --------------------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """Return the id of the row that keys act on."""
        return self.index.last - 1 if self.following else min(max(self.cursor, self.index.first), self.index.last - 1)

    def current_row(self) -> tuple[LogLine, tuple[str, ...]] | None:
        """Return the current line and the ranks it stands for; None for an empty log."""
        if not self.index.rows:
            return None
        row = self.index[self.current]
        line = line_of(row)
        return line, row.ranks if isinstance(row, Fold) else ((line.rank,) if line.rank else ())

    def go_to(self, row_id: int) -> None:
        """Make a row current and scroll it into view."""
        places = self._visible()
        self._then = self._kept = None
        self.following = False
        self.cursor = min(max(row_id, self.index.first), max(self.index.first, self.index.last - 1))
        shown = [place[0] for place in places[:-1]]
        if shown.count(self.cursor) < (self._height(self.cursor) if self.cards else 1):
            height = self.size.height
            back = (
                height // 3
                if abs(self.cursor - self._top[0]) > height
                else (height - 2 if self.cursor > self._top[0] else 0)
            )
            if self.cursor in self.cards:
                back = min(back, max(0, height - self._height(self.cursor)))
            self._top = self._clamped(self._back(self.cursor, min(back, 3) if self.wrap else back))
        else:
            self._top = places[0]
        self.repaint()
        self.post_message(LogMoved())
        if self._top[0] <= self.index.first:
            self.post_message(OlderLinesRequested())
        if self.index is not self.live and self.cursor >= self.index.last - 1:
            self.post_message(NewerLinesRequested())

    def action_follow(self) -> None:
        """Go to the newest line and follow the log."""
        self.index = self.live
        self.following = True
        self._then = self._kept = None
        self._x = 0
        if self._log is not None:
            self.live.update(self._log)
        self.waiting_lines = 0
        self.place_cards()
        self.repaint()
        self.post_message(LogMoved())

    def action_move(self, step: int) -> None:
        """Move the current line."""
        if self.following and step > 0:
            return
        card = self.open_card
        if card is not None and card.move(step, self.card_width, self.card_room):
            self.repaint()
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
        """Go to the oldest line in memory, once all are indexed; the screen then fetches older ones."""
        self.when_built(lambda: self.go_to(self.index.first))

    def action_slide(self, direction: int) -> None:
        """Scroll sideways."""
        if not self.wrap:
            self._x = max(0, self._x + direction * max(8, self.text_width // 2))
            self.repaint()

    def action_open(self) -> None:
        """Show the current line in full, or go where the selected line of a card refers to."""
        if (card := self.open_card) is not None:
            self.post_message(self.CardEntered(card, card.chosen(self.card_width)))
            return
        current = self.current_row()
        if current is not None:
            self.post_message(LineOpened(*current))

    def toggle_wrap(self) -> None:
        """Switch between wrapping long lines and cutting them at the edge."""
        self.wrap = not self.wrap
        self._x = 0
        self.repaint()

    def scroll_rows(self, rows: int) -> None:
        """Scroll by mouse wheel; the current line moves along."""
        if self.following and rows > 0:
            return
        places = self._visible()
        if not places:
            return
        following, top = self.following, places[0][0] + rows
        self.following = False
        self._kept = None
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
        """Return the lines on screen in full, for the clipboard."""
        ids = dict.fromkeys(row_id for row_id, _ in self._visible())
        return "\n".join(line_of(self.index[row_id]).text for row_id in ids)

    # Mouse ---------------------------------------------------------------------------------------------------

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll three lines back."""
        event.stop()
        self.scroll_rows(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll three lines on."""
        event.stop()
        self.scroll_rows(3)

    def on_click(self, event: events.Click) -> None:
        """Make the clicked line current; a second click opens it. On the scroll bar: go to that place in the log."""
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


class LogTail(LogView, can_focus=False):
    """The last lines of a log, always following; a click asks for the whole log."""

    class Clicked(Message):
        """The tail was clicked."""

    def on_click(self, event: events.Click) -> None:
        """Ask for the whole log."""
        event.prevent_default()
        if self.text_selection is None:
            self.post_message(self.Clicked())

    def scroll_rows(self, rows: int) -> None:
        """Do nothing: a tail stays at the end."""

    def shown_text(self, line: LogLine) -> str:
        """Return the line without its date: a tail shows recent lines, for which the time is enough."""
        text = super().shown_text(line)
        return f"[{text[12:]}" if _DATED.match(text) else text

    def _scrollbar(self, y: int) -> Strip:
        return self.strip(((" ", "text"),), 1)
