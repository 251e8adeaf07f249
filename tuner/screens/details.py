"""Everything known about a host and its server, as text that can be searched and copied."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from tuner.core.doctor import Check
from tuner.domain.state import HostState, ServerState
from tuner.messages import ChecksArrived, ChecksRequested
from tuner.screens.base import TunerScreen
from tuner.screens.detail_text import sections
from tuner.screens.sections import broken
from tuner.widgets.field import Field
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, clean, text_of


class DetailsScreen(TunerScreen):
    """Arguments, environment, settings, processes, GPUs, topology, link, and the results of the host's checks."""

    DEFAULT_CSS = """
    DetailsScreen {
        #details-box { height: 1fr; scrollbar-size-vertical: 1; }
        #find { height: 1; border: none; background: $surface; }
    }
    """
    ENTRY = "details"
    HELP_TITLE = "Details"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash", "filter", "Find", key_display="/", id="details.find", tooltip="Show only lines with this text"
        ),
        Binding("n", "section(1)", "Section", id="details.next", tooltip="The next section"),
        Binding("p", "section(-1)", "Section before", show=False, id="details.previous", tooltip="The section before"),
        Binding(
            "c", "checks", "Checks", id="details.checks", tooltip="Ask the host what works there and what is missing"
        ),
        Binding("escape", "clear", "Clear", show=False, id="details.clear", tooltip="Show everything again"),
    ]

    def compose_content(self) -> ComposeResult:
        """Make the status line, the text, and an input for filtering."""
        yield Rows(id="status")
        with VerticalScroll(id="details-box"):
            yield Rows(id="details")
        yield Field(id="find", placeholder="show lines with (enter: done, escape: all)", compact=True)

    def on_mount(self) -> None:
        """Begin without a filter and without results of checks."""
        self._text = ""
        self._headings: dict[str, int] = {}
        self._checks: dict[str, tuple[Check, ...]] = {}
        self._asking = ""
        """Name of the host whose checks are under way; empty: none."""
        self.query_one("#find").display = False
        self.set_focus(self.query_one("#details-box"))

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Rebuild the sections when something in them has changed."""
        if state is None:
            return
        width, glyphs = self.size.width, self.glyphs
        stale = self.shell.stale()
        self.draw_status(state, server)
        about = (
            (
                server.identity,
                server.settings,
                server.phase,
                server.ranks,
                server.errors,
                server.model,
                server.gone,
                server.start and len(server.start.signs),
            )
            if server
            else ()
        )
        host = (
            state.gpu_table,
            state.hello,
            state.problems,
            state.xids,
            state.foreign,
            state.link.phase,
            state.link.reason,
        )
        checks, asking = self._checks.get(state.name), self._asking == state.name
        rough_host = state.host and (state.host.memory_total_bytes, state.host.disks)
        if not self.changed("details", *about, *host, str(rough_host), checks, asking, self._text, width, stale):
            return
        lines: list[Line] = []
        self._headings = {}
        ended = self.shell.ended()
        for section in sections(state, server, checks, glyphs, width - 2, ended=ended, asking=asking):
            wanted = self._text.lower()
            whole = wanted in section.title.lower()
            found = [line for line in section.lines if whole or wanted in text_of(line).lower()]
            if found or whole:
                self._headings[section.title] = len(lines)
                lines += [
                    ((f" {section.title}", "strong"),),
                    *(part for line in found for part in broken(line, width)),
                    (),
                ]
        if not lines:
            lines = [((f' nothing contains "{clean(self._text)}"', "warn"),)]
        self.query_one("#details", Rows).show(lines, dimmed=stale)

    def action_section(self, step: int) -> None:
        """Scroll to the next heading, or to the one before."""
        self.scroll_to_heading("#details-box", self._headings.values(), step)

    def action_filter(self) -> None:
        """Open the input for a text that the shown lines must contain."""
        find = self.query_one("#find", Input)
        find.display = True
        self.set_focus(find)

    def action_clear(self) -> None:
        """Remove the filter."""
        find = self.query_one("#find", Input)
        find.value = ""
        self._text = ""
        find.display = False
        self.set_focus(self.query_one("#details-box"))
        self.catch_up()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        event.stop()
        self._text = event.value
        self.catch_up()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave the input; the filter stays."""
        event.stop()
        self.query_one("#find").display = bool(self._text)
        self.set_focus(self.query_one("#details-box"))

    def action_checks(self) -> None:
        """Request the checks of the host."""
        if self.shell.snapshot is not None:
            self._asking = self.shell.snapshot.name
            self.catch_up()
            self.call_after_refresh(self._show_section, "checks")
            self.post_message(ChecksRequested(self, self._asking))

    def on_checks_arrived(self, message: ChecksArrived) -> None:
        """Show the results of the checks."""
        message.stop()
        self._asking = ""
        if message.error:
            self.catch_up()
            self.notify(message.error, severity="warning", title="Checks", markup=False)
        elif self.shell.snapshot is not None:
            self._checks[self.shell.snapshot.name] = message.checks
            self.catch_up()
            self.call_after_refresh(self._show_section, "checks")

    def _show_section(self, title: str) -> None:
        if title in self._headings:
            self.query_one("#details-box").scroll_to(y=self._headings[title], animate=False)

    def copy_text(self) -> str:
        """Return all text of the screen."""
        return "\n".join(text_of(line).rstrip() for line in self.query_one("#details", Rows).lines)
