"""Go to any line of a log, fetching parts of it from the host where needed."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.domain.logs import LogLine
from tuner.messages import LogPartArrived, LogPartRequested, NewerLinesRequested, OlderLinesRequested
from tuner.screens.explained import Explained
from tuner.screens.log_parts import LogParts, Wanted, held
from tuner.widgets.log_index import LogFilter, hides
from tuner.widgets.log_view import LogView


class LogTraveller(Explained):
    """A screen with a log of which only a part is in memory."""

    _of: tuple[str, str] | None
    """Host and server key of the log on screen; None for none."""
    _parts: LogParts
    _filter: LogFilter

    @property
    def view(self) -> LogView:
        """Return the view of the log."""
        return self.query_one(LogView)

    def _apply(self, log_filter: LogFilter) -> None:
        """Change the filter."""
        raise NotImplementedError

    def _draw_filters(self) -> None:
        """Draw the line above the log."""
        raise NotImplementedError

    def show_place(self, at: int) -> None:
        """Show a byte offset of the log."""
        self.go_to_offset(at)

    def go_to_offset(self, offset: int) -> None:
        """Show the line at a byte offset of the current log, fetching it if needed."""
        view, server = self.view, self.shell.server()
        if server is None:
            return
        log = server.log
        if held(log, offset):
            view.action_follow()
            view.when_built(lambda: self._go_to_held(offset))
        else:
            self._fetch(self._parts.around(offset))

    def _go_to_held(self, offset: int) -> None:
        server = self.shell.server()
        block = held(server.log, offset) if server is not None else None
        if block is not None and self._show_also(block.lines, offset):
            self.view.when_built(lambda: self._go_to_held(offset))
            return
        found = self.view.live.at_offset(offset)
        if found is not None:
            self.view.go_to(found)
        else:
            self._fetch(self._parts.around(offset))

    def _show_also(self, lines: Sequence[LogLine], offset: int) -> bool:
        """Remove filters that would hide the line to go to. Returns whether there were any."""
        hidden = bool(lines) and self._filter.active and hides(self._filter, lines, offset)
        if hidden:
            self._apply(LogFilter())
            self.notify("All lines are shown: this one was filtered out", timeout=4)
        return hidden

    def _fetch(self, wanted: Wanted | None) -> None:
        if wanted is not None and self._of is not None:
            message = LogPartRequested(self, *self._of, wanted.offset, wanted.length, wanted.purpose)
            self.post_message(message)

    def on_older_lines_requested(self, message: OlderLinesRequested) -> None:
        """Fetch lines before the oldest one in memory."""
        message.stop()
        server = self.shell.server()
        if self._parts.full:
            self.notify("So far back one goes by search: press /", timeout=4)
        elif server is not None:
            self._fetch(self._parts.older(server))

    def on_newer_lines_requested(self, message: NewerLinesRequested) -> None:
        """Continue behind a part that is shown apart: with the lines in memory if they follow, or else by fetching."""
        message.stop()
        server = self.shell.server()
        offset = self._parts.reached_live(server) if server is not None else None
        if offset is not None:
            self.go_to_offset(offset)
        else:
            self._fetch(self._parts.newer())

    def on_log_part_arrived(self, message: LogPartArrived) -> None:
        """Show older or later lines that came from the host."""
        message.stop()
        if message.purpose == "hit":
            self._show_also(message.lines, self._parts.about)
        self._parts.arrived(message)
        if message.error:
            self.notify(message.error, severity="warning", title="Older lines", markup=False)
        self._draw_filters()
