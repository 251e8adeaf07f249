"""The log screen: live tail, filters by rank, level and text, search in memory and on the host, jumps to errors."""

from __future__ import annotations

import re
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from tuner.domain.logs import Level
from tuner.domain.state import HostState, ServerState
from tuner.messages import LineOpened, LogMoved, SearchProgressed, SearchRequested
from tuner.screens.dialogs import LineDialog
from tuner.screens.log_parts import LogParts
from tuner.screens.log_travel import LogTraveller
from tuner.widgets.entry import Entry
from tuner.widgets.finding_card import Card
from tuner.widgets.log_head import LEVELS, head_line, name_at
from tuner.widgets.log_index import LogFilter, LogIndex
from tuner.widgets.log_view import LogView
from tuner.widgets.rows import Rows
from tuner.widgets.run_panel import run_line
from tuner.widgets.search_panel import SearchPanel, regex_problem

SHOWN = LogFilter(level=Level.INFO)
"""The initial filter. It hides debug lines, which include the access lines of our own requests for numbers."""


class LogsScreen(LogTraveller):
    """A log of any size, read from its end backwards."""

    DEFAULT_CSS = """
    LogsScreen {
        #filters { background: $surface; }
    }
    """
    ENTRY = "logs"
    HELP_TITLE = "Logs"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("F", "follow", "Follow", key_display="F", id="logs.follow", tooltip="The newest line, and stay there"),
        Binding("slash", "search", "Search", key_display="/", id="logs.search", tooltip="Search here and on the host"),
        Binding("n", "hit(-1)", "Older hit", show=False, id="logs.older-hit", tooltip="The next older match"),
        Binding("N", "hit(1)", "Newer hit", show=False, id="logs.newer-hit", tooltip="The next newer match"),
        Binding("e", "error(1)", "Error", id="logs.next-error", tooltip="The next error; from the end: the first one"),
        Binding("E", "error(-1)", "Last error", show=False, id="logs.previous-error", tooltip="The error before"),
        Binding("f", "filter", "Text", id="logs.text", tooltip="Show only lines with this text, as you type"),
        Binding("p", "rank(1)", "Rank", id="logs.rank", tooltip="Show only the next rank; after the last one: all"),
        Binding("P", "rank(-1)", "Rank before", show=False, id="logs.previous-rank", tooltip="Show the rank before"),
        Binding("v", "level", "Level", id="logs.level", tooltip="Only warnings on; then errors, all lines, info on"),
        Binding("z", "fold", "Fold", id="logs.fold", tooltip="Fold equal lines of several ranks, or show each"),
        Binding("w", "wrap", "Wrap", id="logs.wrap", tooltip="Break long lines, or cut them at the edge"),
        Binding("Y", "copy_visible", "Copy screen", show=False, id="logs.copy-visible", tooltip="Copy all lines shown"),
        Binding("escape", "back", "Back", key_display="esc", id="logs.back", tooltip="Close, clear filters, follow"),
        Binding("ctrl+r", "regex", "Regex", show=False, id="logs.regex", tooltip="Search regular expressions or text"),
    ]

    def compose_content(self) -> ComposeResult:
        """Make the line of filters, the log, the list of hits, and an input line."""
        yield Rows(id="filters")
        yield LogView(self.glyphs, id="log")
        yield SearchPanel(self.glyphs)
        yield Entry(id="entry")

    def on_mount(self) -> None:
        """Begin with the initial filter, folded and following."""
        self._of = None
        self._filter = SHOWN
        self._folding = True
        self._building = False
        self._parts = LogParts(self.view)
        self.view.focus()

    @property
    def entry(self) -> Entry:
        """Return the input line."""
        return self.query_one(Entry)

    # Drawing -------------------------------------------------------------------------------------------------

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Take in new blocks, and draw the reader's position."""
        if state is None:
            return
        view = self.view
        stale = self.shell.stale()
        if server is None:
            self.keep_cards(None)
            self.query_one("#filters", Rows).show([((" no server, so no log", "warn"),)])
            view.display = False
            return
        view.display = True
        belongs = (state.name, server.identity.key)
        if belongs != self._of:
            if self.query_one(SearchPanel).open:
                self._end_search()
            self._of = belongs
            self._parts = LogParts(view)
            view.use(LogIndex(), self._filter, folding=self._folding)
        view.all_ranks = tuple(rank.tag for rank in server.ranks)
        changed = self.keep_cards(server)
        view.show_log(server.log, dimmed=stale)
        if changed:
            view.show_cards(self.cards)
        self._build()
        self._draw_filters()

    def _build(self) -> None:
        """Index older lines in slices, so that keys are answered in between."""
        if self.view.building and not self._building:
            self._building = True
            # By timer and not by message: while messages wait, the event loop neither reads keys nor paints.
            self.set_timer(0.005, self._work)

    def _work(self) -> None:
        self._building = False
        if not self.is_current:
            return
        view = self.view
        if view.work():
            self._build()
            return
        if not view.following:
            view.repaint()
        self._draw_filters()

    def _draw_filters(self) -> None:
        server, view = self.shell.server(), self.view
        if server is None:
            return
        line = head_line(server, view, self._filter, self.size.width, self.glyphs)
        state = self.shell.snapshot
        run = run_line(state, self.size.width, self.glyphs) if state is not None else ()
        self.query_one("#filters", Rows).show([line, run] if run else [line])
        view.active = self.card
        if self.changed("keys", view.following, self._filter, self.query_one(SearchPanel).open, view.active):
            self.refresh_bindings()

    def on_log_moved(self, message: LogMoved) -> None:
        """Draw the reader's new position."""
        message.stop()
        self._draw_filters()

    # Findings ------------------------------------------------------------------------------------------------

    @property
    def card(self) -> Card | None:
        """Return the card of the current line, or else that of the root cause."""
        view = self.view
        here = None if view.following else view.cards.get(view.current)
        return here or super().card

    def action_unfold(self) -> None:
        """Unfold a card and go to it, or fold it."""
        card, view = self.card, self.view
        if card is None or (card.unfolded and view.open_card is card):
            super().action_unfold()
            return
        card.fold(unfolded=True)
        row = view.row_of(card)
        if row is not None:
            view.go_to(row)
        elif card.finding.at is not None:
            self.go_to_offset(card.finding.at)
        else:
            self.notify("No line of the log shows it: x tells all of it", timeout=4)
        self.draw_cards()

    def draw_cards(self) -> None:
        """Redraw the log after a card took more or fewer lines."""
        self.view.repaint()
        self._draw_filters()
        self.refresh_bindings()

    async def on_log_view_card_entered(self, message: LogView.CardEntered) -> None:
        """Go where a card's line refers to."""
        message.stop()
        await self.enter(message.line)

    # Filters -------------------------------------------------------------------------------------------------

    def _apply(self, log_filter: LogFilter) -> None:
        self._filter = log_filter
        self.view.refilter(self._filter, folding=self._folding)
        self._build()
        self._draw_filters()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable escape only where it would do something."""
        if action == "back" and self.is_mounted:
            opened = self.entry.display or self.query_one(SearchPanel).open
            unfolded = any(card.unfolded for card in self.cards)
            return opened or unfolded or self._filter != SHOWN or not self.view.following
        return super().check_action(action, parameters)

    def action_rank(self, step: int) -> None:
        """Show only the lines of the next rank."""
        server = self.shell.server()
        tags = [rank.tag for rank in server.ranks] if server else []
        tags += [tag for tag in self.view.live.ranks if tag not in tags]
        choices: list[str | None] = [None, *tags, ""]
        at = choices.index(self._filter.rank) if self._filter.rank in choices else 0
        self._apply(replace(self._filter, rank=choices[(at + step) % len(choices)]))

    def action_level(self) -> None:
        """Show only lines from the next severity on."""
        level = LEVELS[(LEVELS.index(self._filter.level) + 1) % len(LEVELS)]
        self._apply(replace(self._filter, level=level))

    def action_fold(self) -> None:
        """Fold equal lines of several ranks, or stop folding them."""
        self._folding = not self._folding
        self._apply(self._filter)

    def action_wrap(self) -> None:
        """Wrap long lines, or cut them."""
        self.view.toggle_wrap()

    def action_follow(self) -> None:
        """Go to the newest line and follow."""
        self.view.action_follow()

    def action_back(self) -> None:
        """Close what is open, the innermost first."""
        if self.entry.display:
            self._close_entry()
        elif self.fold_all():
            pass
        elif self.query_one(SearchPanel).open:
            self._end_search()
            self.set_focus(self.view)
            self._draw_filters()
        elif self._filter != SHOWN:
            self._apply(SHOWN)
        else:
            self.view.action_follow()

    # The line to type in -------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Open the input line for a filter."""
        self.entry.open_filter(self._filter.text)

    def action_search(self) -> None:
        """Open the input line for a search."""
        self.entry.open_search()

    def action_regex(self) -> None:
        """Switch between searching for regular expressions and plain text."""
        what = "regular expressions" if self.entry.toggle_regex() else "plain text"
        self.notify(f"Searching for {what}", timeout=2, markup=False)

    def _close_entry(self) -> None:
        self.entry.close()
        self.set_focus(self.view)

    def on_entry_filtered(self, message: Entry.Filtered) -> None:
        """Filter while the text is typed."""
        message.stop()
        self._apply(replace(self._filter, text=message.text))

    def on_entry_done(self, message: Entry.Done) -> None:
        """Close the input line; search if it was open for that."""
        message.stop()
        self._close_entry()
        if message.search:
            self.search(message.search)

    # Search --------------------------------------------------------------------------------------------------

    def search(self, text: str) -> None:
        """Search for a text, first in the lines in memory, then on the host in the whole log."""
        if self.entry.regex and (why := regex_problem(text)):
            self.notify(f"Not a regular expression: {why}", severity="error", markup=False)
            return
        view, state, server = self.view, self.shell.snapshot, self.shell.server()
        if state is None or server is None:
            return
        asked = SearchRequested(self, state.name, server.identity.key, text, regex=self.entry.regex)
        self.query_one(SearchPanel).begin(asked)
        # A regular expression may take minutes on one line. It is only run on the host, where a time limit ends it.
        view.pattern = None if self.entry.regex else re.compile(re.escape(text), re.IGNORECASE)
        found = None if self.entry.regex else view.index.find(text, view.current, -1)
        if found is not None:
            view.go_to(found)
        view.repaint()
        self.post_message(asked)

    def _end_search(self) -> None:
        self.query_one(SearchPanel).close()
        self.view.pattern = None
        self.view.repaint()

    def on_search_progressed(self, message: SearchProgressed) -> None:
        """Show hits from the host, newest first."""
        message.stop()
        panel = self.query_one(SearchPanel)
        if message.asked is not panel.asked:
            return
        asked, index = message.asked, self.view.index
        held = index.count(asked.pattern) if message.error and not asked.regex else 0
        first = panel.progress(message.hits, message.scanned_bytes, done=message.done, error=message.error, held=held)
        if first and asked.regex:
            self._go_to_hit(0)
        if first and self.focused is self.view:
            panel.focus_hits()

    def on_search_panel_chosen(self, message: SearchPanel.Chosen) -> None:
        """Go to a hit, fetching its part of the log when that is not in memory."""
        message.stop()
        self.set_focus(self.view)
        self.go_to_offset(message.hit.offset)

    def _go_to_hit(self, step: int) -> None:
        hit = self.query_one(SearchPanel).step(step)
        if hit is not None:
            self.go_to_offset(hit.offset)
        else:
            self.notify("No older hit was found" if step > 0 else "No newer hit was found", timeout=3)

    def action_hit(self, step: int) -> None:
        """Go to the next matching line: older, or newer."""
        view, asked = self.view, self.query_one(SearchPanel).asked
        if asked is None:
            self.notify("Nothing is searched for: press /", timeout=3)
            return
        if asked.regex:
            self._go_to_hit(-step)
            return
        found = view.index.find(asked.pattern, view.current + step, step)
        if found is None:
            self.notify("No older line held matches" if step < 0 else "No newer line matches", timeout=3)
        else:
            view.go_to(found)

    def action_error(self, step: int) -> None:
        """Go to the next or previous error; while following, the next is the first of the log."""
        self.view.when_built(lambda: self._go_to_error(step))

    def _go_to_error(self, step: int) -> None:
        view = self.view
        start = view.index.first if view.following and step > 0 else view.current + step
        found = view.index.find_level(Level.ERROR, start, step)
        if found is None:
            found = view.index.find_level(Level.ERROR, view.index.first if step > 0 else view.index.last - 1, step)
            if found is None:
                self.notify("No error in the lines held", timeout=3)
                return
            self.notify("Round to the other end", timeout=2)
        view.go_to(found)

    # Lines ---------------------------------------------------------------------------------------------------

    def on_line_opened(self, message: LineOpened) -> None:
        """Show a line in full, or go to the lines that a marker stands for."""
        message.stop()
        if message.line.marker:
            self.go_to_offset(message.line.offset)
            return
        self.app.push_screen(LineDialog(message.line, message.ranks, self.glyphs))

    def copy_text(self) -> str:
        """Return the current line."""
        current = self.view.current_row()
        return current[0].text if current else ""

    def action_copy_visible(self) -> None:
        """Copy all lines on screen."""
        self.put_on_clipboard(self.view.visible_text())

    def on_click(self, event: events.Click) -> None:
        """Change a filter by a click on its name."""
        if event.widget is self.query_one("#filters"):
            actions = {
                "rank": lambda: self.action_rank(1),
                "level": self.action_level,
                "text": self.action_filter,
                "folded": self.action_fold,
                "each": self.action_fold,
            }
            if action := actions.get(name_at(self.query_one("#filters", Rows).text, event.x)):
                action()
