"""The whole log: live tail, filter by rank, level and text, search here and on the host, jump to errors."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from tuner.domain.link import LinkPhase
from tuner.domain.logs import Level, LogHit, LogLine
from tuner.domain.state import HostState, ServerState
from tuner.messages import (
    LineOpened,
    LogMoved,
    LogPartArrived,
    LogPartRequested,
    NewerLinesRequested,
    OlderLinesRequested,
    SearchProgressed,
    SearchRequested,
)
from tuner.screens.base import TunerScreen
from tuner.screens.dialogs import LineDialog
from tuner.units import format_bytes
from tuner.widgets.log_index import LogFilter, LogIndex
from tuner.widgets.log_view import LogView
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, Span, clean, clip, spread, width_of

PART_BYTES = 262_144
"""How much of an older part of the log is fetched at once."""
OLDER_ROWS_MAX = 20_000
"""How many fetched rows are held in front of the live part; farther back one goes by search."""
HITS_MAX = 500
_LEVELS = (Level.DEBUG, Level.INFO, Level.WARNING, Level.ERROR)
_LEVEL_NAMES = {Level.DEBUG: "all", Level.INFO: "info+", Level.WARNING: "warning+", Level.ERROR: "error"}


class LogsScreen(TunerScreen):
    """A log of any size, from its end backwards."""

    CSS_PATH = "logs.tcss"
    ENTRY = "logs"
    HELP_TITLE = "Logs"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "F", "follow", "Follow", key_display="F", id="logs.follow", tooltip="Go to the newest line and stay there"
        ),
        Binding(
            "slash",
            "search",
            "Search",
            key_display="/",
            id="logs.search",
            tooltip="Search what is held, then the whole log on the host",
        ),
        Binding(
            "n",
            "hit(-1)",
            "Older hit",
            show=False,
            id="logs.older-hit",
            tooltip="The next older line that matches the search",
        ),
        Binding(
            "N", "hit(1)", "Newer hit", show=False, id="logs.newer-hit", tooltip="The next newer line that matches"
        ),
        Binding(
            "e", "error(1)", "Error", id="logs.next-error", tooltip="The next error; from the end: the first one held"
        ),
        Binding(
            "E",
            "error(-1)",
            "Previous error",
            show=False,
            id="logs.previous-error",
            tooltip="The error before this line",
        ),
        Binding("f", "filter", "Text", id="logs.text", tooltip="Show only lines with this text, as you type"),
        Binding("p", "rank(1)", "Rank", id="logs.rank", tooltip="Show only the next rank; after the last one: all"),
        Binding(
            "P", "rank(-1)", "Previous rank", show=False, id="logs.previous-rank", tooltip="Show only the rank before"
        ),
        Binding("v", "level", "Level", id="logs.level", tooltip="Raise the least severity shown; after errors: all"),
        Binding("z", "fold", "Fold", id="logs.fold", tooltip="Fold equal lines of several ranks, or show each"),
        Binding("w", "wrap", "Wrap", id="logs.wrap", tooltip="Break long lines, or cut them at the edge"),
        Binding(
            "Y", "copy_visible", "Copy screen", show=False, id="logs.copy-visible", tooltip="Copy all lines on screen"
        ),
        Binding(
            "escape",
            "back",
            "Back",
            key_display="esc",
            id="logs.back",
            tooltip="Close the search, then clear the filters",
        ),
        Binding(
            "ctrl+r",
            "regex",
            "Regex",
            show=False,
            id="logs.regex",
            tooltip="Search for a regular expression or for plain text",
        ),
    ]

    def compose_content(self) -> ComposeResult:
        """Filters, the log, hits, and one line to type in."""
        yield Rows(id="filters")
        yield LogView(self.glyphs, id="log")
        with Vertical(id="hits-box"):
            yield Rows(id="hits-head")
            yield OptionList(id="hits", markup=False)
        yield Input(id="entry", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        """Start with everything shown, folded, following."""
        super().on_mount()
        self._of: tuple[str, str] | None = None
        self._filter = LogFilter()
        self._folding = True
        self._regex = False
        self._typing = ""
        self._asked: set[str] = set()
        self._part: tuple[int, int] | None = None
        self._hits: list[LogHit] = []
        self._search_note: Line = ()
        self.query_one("#hits-box").display = False
        self.query_one("#entry").display = False
        self.query_one(LogView).focus()

    @property
    def view(self) -> LogView:
        """The log."""
        return self.query_one(LogView)

    # Drawing -------------------------------------------------------------------------------------------------

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Take in new blocks and say where we are."""
        if state is None:
            return
        view = self.view
        stale = state.link.phase is not LinkPhase.UP
        if server is None:
            self.query_one("#filters", Rows).show([((" no server, so no log", "warn"),)])
            view.display = False
            return
        view.display = True
        belongs = (state.name, server.identity.key)
        if belongs != self._of:
            self._of = belongs
            self._part = None
            self._asked.clear()
            view.use(LogIndex(), self._filter, folding=self._folding)
        view.all_ranks = tuple(rank.tag for rank in server.ranks)
        view.show_log(server.log, dimmed=stale)
        if view.live.building:
            self.call_later(self._work)
        self._draw_filters()

    def _work(self) -> None:
        """Index older lines in slices, so that keys are answered in between."""
        view = self.view
        if self.is_current and view.live.work():
            self.call_later(self._work)
        elif not view.following:
            view.repaint()
        self._draw_filters()

    def _draw_filters(self) -> None:
        server, view = self.server, self.view
        if self.changed("keys", view.following, self._filter, self.query_one("#hits-box").display):
            self.refresh_bindings()
        if server is None:
            return
        width, glyphs = self.size.width, self.glyphs
        source = server.log.source or server.identity.log
        where = clean(source.path or source.note or source.kind) if source else "no log known"
        size = format_bytes(server.log.size) if server.log.size else ""
        rank = "all" if self._filter.rank is None else self._filter.rank or "main"

        def part(name: str, value: str, *, special: bool) -> list[Span]:
            return [(f"  {name} ", "dim"), (value, "busy" if special else "text")]

        spans = part("rank", rank, special=self._filter.rank is not None)
        spans += part("level", _LEVEL_NAMES[self._filter.level], special=self._filter.level > Level.DEBUG)
        if self._filter.text:
            spans += part("text", f'"{clip(self._filter.text, 16, glyphs.ellipsis)}"', special=True)
        spans += [("  folded" if self._folding else "  each line", "text" if self._folding else "busy")]
        if view.index is not view.live:
            spans += [("  older part ", "warn")]
        elif view.following:
            spans += [(f"  {glyphs.up} following ", "ok")]
        elif view.waiting_lines:
            spans += [(f"  {glyphs.stale} {view.waiting_lines:,} newer ", "warn")]
        else:
            behind = view.index.last - 1 - view.current
            spans += [(f"  {glyphs.stale} {behind:,} behind ", "warn")]
        room = width - width_of(spans) - 3
        with_size = room >= len(where) + len(size) + 3
        shown = where if len(where) <= room else glyphs.ellipsis + where[len(where) - room + 1 :]
        left: Line = ((" ", "text"), (shown, "strong"), (f"  {size}" if with_size else "", "dim"))
        self.query_one("#filters", Rows).show([spread(left, spans, width, glyphs.ellipsis)])

    def on_log_moved(self, message: LogMoved) -> None:
        """The view shows another place."""
        message.stop()
        self._draw_filters()

    # Filters -------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        view = self.view
        view.live.refilter(self._filter, folding=self._folding)
        if view.index is not view.live:
            view.action_follow()
        view.refilter()
        if view.live.building:
            self.call_later(self._work)
        self._draw_filters()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape is shown where it would do something."""
        if action == "back" and self.is_mounted:
            opened = self.query_one("#entry").display or self.query_one("#hits-box").display
            return opened or self._filter.active or not self.view.following
        return super().check_action(action, parameters)

    def action_rank(self, step: int) -> None:
        """Show only the next rank."""
        server = self.server
        tags = [rank.tag for rank in server.ranks] if server else []
        tags += [tag for tag in self.view.live.ranks if tag not in tags]
        choices: list[str | None] = [None, *tags, ""]
        at = choices.index(self._filter.rank) if self._filter.rank in choices else 0
        self._filter = LogFilter(
            rank=choices[(at + step) % len(choices)], level=self._filter.level, text=self._filter.text
        )
        self._apply()

    def action_level(self) -> None:
        """Raise the least severity shown."""
        level = _LEVELS[(_LEVELS.index(self._filter.level) + 1) % len(_LEVELS)]
        self._filter = LogFilter(rank=self._filter.rank, level=level, text=self._filter.text)
        self._apply()

    def action_fold(self) -> None:
        """Fold equal lines, or not."""
        self._folding = not self._folding
        self._apply()

    def action_wrap(self) -> None:
        """Break long lines, or not."""
        self.view.toggle_wrap()

    def action_follow(self) -> None:
        """Go to the newest line."""
        self.view.action_follow()

    def action_back(self) -> None:
        """Close what is open, innermost first."""
        if self.query_one("#entry").display:
            self._close_entry()
        elif self.query_one("#hits-box").display:
            self.query_one("#hits-box").display = False
            self.view.pattern = None
            self.view.repaint()
            self.view.focus()
        elif self._filter.active:
            self._filter = LogFilter()
            self._apply()
        else:
            self.view.action_follow()

    # The line to type in -------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Type a text that shown lines contain."""
        self._open_entry("filter", "show lines with", self._filter.text)

    def action_search(self) -> None:
        """Type what to search for."""
        self._open_entry("search", "regular expression" if self._regex else "search", "")

    def action_regex(self) -> None:
        """Search for a regular expression, or for plain text."""
        self._regex = not self._regex
        entry = self.query_one("#entry", Input)
        if entry.display and self._typing == "search":
            entry.border_title = entry.placeholder = "regular expression" if self._regex else "search"
        self.notify("Searching for regular expressions" if self._regex else "Searching for plain text", timeout=2)

    def _open_entry(self, what: str, hint: str, value: str) -> None:
        entry = self.query_one("#entry", Input)
        self._typing = ""
        entry.placeholder = (
            f"{hint} (enter: done, escape: leave, ctrl+r: regex)" if what == "search" else f"{hint} (enter: done)"
        )
        entry.value = value
        entry.display = True
        entry.focus()
        self._typing = what

    def _close_entry(self) -> None:
        self.query_one("#entry").display = False
        self._typing = ""
        self.view.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        if self._typing == "filter":
            self._filter = LogFilter(rank=self._filter.rank, level=self._filter.level, text=event.value)
            self._apply()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Done typing."""
        event.stop()
        what, value = self._typing, event.value
        self._close_entry()
        if what == "search" and value:
            self.search(value)

    # Search --------------------------------------------------------------------------------------------------

    def search(self, text: str) -> None:
        """Find a text: at once in what is held, then on the host in the whole log."""
        try:
            pattern = re.compile(text if self._regex else re.escape(text), re.IGNORECASE)
        except re.error as error:
            self.notify(f"Not a regular expression: {error}", severity="error")
            return
        view, state, server = self.view, self.state, self.server
        if state is None or server is None:
            return
        view.pattern = pattern
        self._hits = []
        hits = self.query_one("#hits", OptionList)
        hits.clear_options()
        self.query_one("#hits-box").display = True
        self._search_head(text, 0, done=False, error=None)
        found = view.index.find(pattern, view.current, -1)
        if found is not None:
            view.go_to(found)
        view.repaint()
        self.post_message(SearchRequested(self, state.name, server.identity.key, text, regex=self._regex))

    def on_search_progressed(self, message: SearchProgressed) -> None:
        """Hits of the host, newest first."""
        message.stop()
        if self.view.pattern is None:
            return
        new = message.hits[: max(0, HITS_MAX - len(self._hits))]
        self._hits.extend(new)
        options = self.query_one("#hits", OptionList)
        width = max(20, self.size.width - 4)
        options.add_options(
            [Option(Text(clip(clean(hit.text), width, self.glyphs.ellipsis), no_wrap=True)) for hit in new]
        )
        if len(self._hits) == len(new) and new:
            options.highlighted = 0
            if self.focused is self.view:
                options.focus()
        self._search_head(message.pattern, message.scanned_bytes, done=message.done, error=message.error)

    def _search_head(self, text: str, scanned: int, *, done: bool, error: str | None) -> None:
        found = len(self._hits)
        count = f"{found}{'+' if found >= HITS_MAX else ''} hit{'' if found == 1 else 's'}"
        left: list[Span] = [(f' "{clip(clean(text), 30, self.glyphs.ellipsis)}"  ', "strong"), (count, "text")]
        if error:
            left.append((f"  {self.glyphs.warn} {clean(error)}", "warn"))
        elif done:
            left.append((f"  {self.glyphs.ok} {format_bytes(scanned)} searched on the host", "ok"))
        else:
            left.append((f"  {self.glyphs.busy} searching {self.glyphs.ellipsis} {format_bytes(scanned)}", "busy"))
        keys: Line = ()
        if self.size.width >= 110:
            keys = (("newest first  enter: go there  n N: next  esc: close ", "dim"),)
        self.query_one("#hits-head", Rows).show([spread(left, keys, self.size.width, self.glyphs.ellipsis)])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Go to a hit, fetching its part of the log when it is not held."""
        event.stop()
        self.go_to_offset(self._hits[event.option_index].offset)

    def go_to_offset(self, offset: int) -> None:
        """Show the line at a byte offset of the current log."""
        view, server = self.view, self.server
        if server is None:
            return
        log = server.log
        if log.blocks and log.start <= offset <= log.end:
            view.action_follow()
            while (found := view.live.at_offset(offset)) is None and view.live.work():
                pass
            if found is not None:
                view.go_to(found)
                view.focus()
                return
        self._fetch("hit", max(0, offset - PART_BYTES // 2), PART_BYTES, about=offset)

    def action_hit(self, step: int) -> None:
        """The next line that matches, older or newer."""
        view = self.view
        if view.pattern is None:
            self.notify("Nothing is searched for: press /", timeout=3)
            return
        found = view.index.find(view.pattern, view.current + step, step)
        if found is None:
            self.notify("No older line held matches" if step < 0 else "No newer line matches", timeout=3)
        else:
            view.go_to(found)

    def action_error(self, step: int) -> None:
        """The next or previous error; from the end the first one."""
        view = self.view
        while view.index.work():
            pass
        start = view.index.first if view.following and step > 0 else view.current + step
        found = view.index.find_level(Level.ERROR, start, step)
        if found is None:
            found = view.index.find_level(Level.ERROR, view.index.first if step > 0 else view.index.last - 1, step)
            if found is None:
                self.notify("No error in the lines held", timeout=3)
                return
            self.notify("Round to the other end", timeout=2)
        view.go_to(found)

    # Older parts ---------------------------------------------------------------------------------------------

    def _fetch(self, purpose: str, offset: int, length: int, about: int | None = None) -> None:
        state, server = self.state, self.server
        if state is None or server is None or purpose in self._asked or length <= 0:
            return
        self._asked.add(purpose)
        self._about = about
        self.post_message(LogPartRequested(self, state.name, server.identity.key, offset, length, purpose))

    def on_older_lines_requested(self, message: OlderLinesRequested) -> None:
        """The reader is at the oldest line held: fetch more."""
        message.stop()
        view, server = self.view, self.server
        if server is None or view.index.building:
            return
        if view.index is view.live:
            start = self._oldest_offset(server)
            if view.live.older_rows >= OLDER_ROWS_MAX:
                self.notify("So far back one goes by search: press /", timeout=4)
                return
        else:
            start = self._part[0] if self._part else 0
        if start > 0:
            offset = max(0, start - PART_BYTES)
            self._fetch("older", offset, start - offset)

    def _oldest_offset(self, server: ServerState) -> int:
        rows = self.view.live.rows
        first = rows[0] if rows and self.view.live.older_rows else None
        if first is None:
            return server.log.start
        return first.offset if isinstance(first, LogLine) else first.line.offset

    def on_newer_lines_requested(self, message: NewerLinesRequested) -> None:
        """The reader is at the end of a part shown apart: fetch on."""
        message.stop()
        server = self.server
        if self._part is None or server is None:
            return
        if server.log.blocks and self._part[1] >= server.log.start:
            self.go_to_offset(self._part[1])
            return
        self._fetch("newer", self._part[1], PART_BYTES)

    def on_log_part_arrived(self, message: LogPartArrived) -> None:
        """Older or later lines came from the host."""
        message.stop()
        self._asked.discard(message.purpose)
        view = self.view
        if message.error:
            self.notify(message.error, severity="warning", title="Older lines")
            return
        if not message.lines:
            return
        if message.purpose == "hit":
            about = self._about if self._about is not None else message.offset
            self._part = (message.lines[0].offset, message.end)
            view.show_part(message.lines, about)
            view.focus()
        elif message.purpose == "older":
            view.index.prepend(message.lines)
            if self._part is not None and view.index is not view.live:
                self._part = (message.lines[0].offset, self._part[1])
            view.repaint()
        elif message.purpose == "newer" and view.index is not view.live:
            view.index.extend(message.lines)
            if self._part is not None:
                self._part = (self._part[0], message.end)
            view.repaint()
        self._draw_filters()

    # Lines ---------------------------------------------------------------------------------------------------

    def on_line_opened(self, message: LineOpened) -> None:
        """Show a line in full."""
        message.stop()
        self.app.push_screen(LineDialog(message.line, message.ranks, self.glyphs))

    def copy_text(self) -> str:
        """The current line."""
        current = self.view.current_row()
        return current[0].text if current else ""

    def action_copy_visible(self) -> None:
        """Copy all lines on screen."""
        self.put_on_clipboard(self.view.visible_text())

    def on_click(self, event: events.Click) -> None:
        """A click on the filters changes them."""
        if event.widget is self.query_one("#filters"):
            # Facts stand two spaces apart; their first word is their name.
            facts = re.finditer(r"\S+(?: \S+)*", self.query_one("#filters", Rows).text)
            word = next((fact[0].split()[0] for fact in facts if fact.start() <= event.x < fact.end()), "")
            actions = {
                "rank": lambda: self.action_rank(1),
                "level": self.action_level,
                "text": self.action_filter,
                "folded": self.action_fold,
                "each": self.action_fold,
            }
            if word in actions:
                actions[word]()
