"""The screen people leave open: is it up, is it healthy, is memory fine, how fast is it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll

from tuner.domain.link import LinkPhase
from tuner.domain.logs import Level
from tuner.domain.server import Phase
from tuner.domain.state import HostState, ServerState
from tuner.messages import ScreenRequested, ServerRequested
from tuner.screens.base import TunerScreen
from tuner.units import format_bytes
from tuner.widgets import status
from tuner.widgets.chart import Chart, sparkline
from tuner.widgets.log_index import LogFilter, LogIndex
from tuner.widgets.log_view import LogTail
from tuner.widgets.rank_table import rows_of, table_lines
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, Span, clean, spread, text_of, wrap_parts

_CHART_FROM = 136
"""Columns from which a chart stands beside the table; below, the speed over time is a sparkline."""
_CHART_SHARE = 0.31
_LOG_MIN = 4


class OverviewScreen(TunerScreen):
    """Ranks, memory, speed, what is wrong, and the end of the log."""

    CSS_PATH = "overview.tcss"
    HELP_TITLE = "Overview"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "full_stop",
            "next_server",
            "Next server",
            key_display=".",
            id="server.next",
            tooltip="Show another server of this host",
        ),
        Binding("f", "follow", "Log", show=False, id="overview.log", tooltip="Open the log at its end"),
    ]

    def compose_content(self) -> ComposeResult:
        """From top to bottom in the order in which the eye needs it."""
        yield Rows(id="status")
        yield Rows(id="phases")
        yield Rows(id="servers")
        with Horizontal(id="body"):
            with VerticalScroll(id="table-box", can_focus=False):
                yield Rows(id="table")
            yield Chart(self.glyphs, id="chart")
        yield Rows(id="legend")
        yield Rows(id="notes")
        yield Rows(id="log-head")
        index = LogIndex(keep_rows=200)
        index.refilter(LogFilter(level=Level.INFO), folding=True)
        yield LogTail(self.glyphs, index, id="tail")

    def on_mount(self) -> None:
        """Know which log the tail belongs to."""
        super().on_mount()
        self._tail_of: tuple[str, str] | None = None

    @property
    def wide(self) -> bool:
        """Whether there is room for a chart."""
        return self.size.width >= _CHART_FROM

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Draw each part that changed."""
        if state is None:
            return
        width = self.size.width
        age = self.shell.age_s()
        stale = state.link.phase is not LinkPhase.UP and state.hello is not None
        self._draw_head(state, server, width, age, stale=stale)
        table = self._draw_table(state, server, age, stale=stale)
        self._draw_chart(state, server, table, stale=stale)
        self._draw_notes(state, server, width, table)
        self._draw_log(state, server, width, stale=stale)

    def _draw_head(
        self, state: HostState, server: ServerState | None, width: int, age: float | None, *, stale: bool
    ) -> None:
        glyphs = self.glyphs
        self.query_one("#status", Rows).show([status.status_line(state, server, width, glyphs, age_s=age)])
        if server is None:
            phases = status.no_server_line(state, glyphs)
        elif not self.wide and server.phase in (Phase.READY, Phase.STOPPING):
            line = sparkline(server.series.get("tok_s", ()), state.mono, 12, glyphs)
            phases = status.serving_line(state, server, width, glyphs, line)
        else:
            phases = status.phase_line(state, server, width, glyphs)
        self.query_one("#phases", Rows).show([phases], dimmed=stale)
        if self.changed("servers", state.servers, server, width):
            self.query_one("#servers", Rows).show(self._server_lines(state, server, width))
            self.refresh_bindings()

    def _server_lines(self, state: HostState, server: ServerState | None, width: int) -> list[Line]:
        if len(state.servers) < 2:
            return []
        parts: list[Line] = []
        for each in state.servers:
            chosen = each is server
            name = f"{each.engine_title or each.identity.engine} {status.model_name(each.model)}".strip()
            port = f" :{each.identity.port}" if each.identity.port else f" pid {each.identity.pid}"
            words = f"[{clean(name)}{port}]" if chosen else f" {clean(name)}{port} "
            parts.append(((words, "strong" if chosen else "dim"), (" ", "text"), status.phase_word(each, self.glyphs)))
        return wrap_parts([((" servers", "head"),), *parts], width, ("  ", "text"), indent=10)

    def _draw_table(self, state: HostState, server: ServerState | None, age: float | None, *, stale: bool) -> int:
        """Draw the table; returns its height."""
        table = self.query_one("#table", Rows)
        width = self.size.width - (self._chart_width if self.wide else 0)
        title: Span = ("ranks" if server and server.ranks else "GPUs", "head")
        if stale:
            ago = f" as of {age:.0f} s ago" if age is not None else ": old numbers"
            title = (f"{title[0]}{ago}", "warn")
        ranks = server.ranks if server else ()
        if self.changed(
            "table",
            state.samples,
            state.gpu_table,
            state.foreign,
            ranks,
            server.phase if server else "",
            width,
            *title,
            stale,
        ):
            table.show(table_lines(state, server, width, self.glyphs, title), dimmed=stale)
            self.query_one("#legend", Rows).show(
                [line]
                if (line := status.legend_line(rows_of(state, server), server, self.size.width, self.glyphs))
                else [],
                dimmed=stale,
            )
        return len(table.lines)

    @property
    def _chart_width(self) -> int:
        return round(self.size.width * _CHART_SHARE)

    def _draw_chart(self, state: HostState, server: ServerState | None, table: int, *, stale: bool) -> None:
        chart = self.query_one(Chart)
        shown = self.wide and server is not None and table > 0
        body = self.query_one("#body")
        height = max(table, 10) if shown else table
        if self.changed("body", height, shown, self._chart_width, self.size.height):
            chart.display = shown
            chart.styles.width = self._chart_width
            # Room for the status above, the notes and a few lines of log below; more ranks scroll.
            body.styles.height = max(3, min(height, self.size.height - 7 - _LOG_MIN))
            self.call_after_refresh(self.catch_up)
        if shown and server is not None:
            series = server.series.get("tok_s", ())
            if self.changed("chart", series, server.metrics, chart.size, stale):
                foot = wrap_parts(
                    status.metric_parts(server.metrics, prompt=True), self._chart_width - 2, ("  ", "text")
                )
                foot = [((" ", "text"), *line) for line in foot]
                chart.show_series("tok/s  output, last 10 min", series, state.mono, dimmed=stale, foot=foot)

    def _draw_notes(self, state: HostState, server: ServerState | None, width: int, table: int) -> None:
        parts = (state.link, state.problems, state.foreign, state.xids, state.lost_lines, state.gpu_table)
        about = (
            (server.errors, server.phase, server.left_pids, server.http_problem, server.phase_evidence)
            if server
            else ()
        )
        if not self.changed("notes", *parts, *about, width, self.size.height, table):
            return
        lines = status.note_lines(state, server, width, self.glyphs)
        fixed = 6 + len(self.query_one("#servers", Rows).lines) + self.query_one("#tabs", Rows).size.height
        room = max(2, self.size.height - fixed - max(3, table) - _LOG_MIN)
        if len(lines) > room:
            more = len(lines) - room + 1
            lines = [*lines[: room - 1], ((f" {self.glyphs.ellipsis} {more} more lines: i shows all", "dim"),)]
        self.query_one("#notes", Rows).show(lines)

    def _draw_log(self, state: HostState, server: ServerState | None, width: int, *, stale: bool) -> None:
        tail, head = self.query_one(LogTail), self.query_one("#log-head", Rows)
        if server is None:
            head.show([])
            tail.display = False
            return
        tail.display = True
        log, source = server.log, server.log.source or server.identity.log
        belongs = (state.name, server.identity.key)
        if belongs != self._tail_of:
            self._tail_of = belongs
            tail.use(LogIndex(keep_rows=200), LogFilter(level=Level.INFO))
        tail.all_ranks = tuple(rank.tag for rank in server.ranks)
        where = clean(source.path or source.note or source.kind) if source else "no log known"
        left: Line = ((" log  ", "head"), (where, "text" if source and source.path else "warn"))
        size = f"{format_bytes(log.size)}  " if log.size else ""
        right: Line = ((f"{size}all ranks folded, info and above ", "dim"),)
        head.show([spread(left, right, width, self.glyphs.ellipsis)], dimmed=stale)
        tail.show_log(log, dimmed=stale)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No key is shown before it works."""
        if action == "next_server":
            return self.state is not None and len(self.state.servers) > 1
        return super().check_action(action, parameters)

    def action_next_server(self) -> None:
        """Show the next server of this host."""
        state, server = self.state, self.server
        if state is None or server is None:
            return
        keys = [each.identity.key for each in state.servers]
        self.post_message(ServerRequested(keys[(keys.index(server.identity.key) + 1) % len(keys)]))

    def action_follow(self) -> None:
        """Open the log."""
        self.post_message(ScreenRequested("logs"))

    def on_log_tail_clicked(self) -> None:
        """The tail is a door to the whole log."""
        self.post_message(ScreenRequested("logs"))

    def copy_text(self) -> str:
        """Everything above the log: what one pastes into a chat."""
        parts = ("#status", "#phases", "#servers", "#table", "#legend", "#notes")
        lines = [text_of(line).rstrip() for part in parts for line in self.query_one(part, Rows).lines]
        return "\n".join(lines)
