"""The main screen: whether a server is up and healthy, its memory, and its speed."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from tuner.domain.findings import Severity
from tuner.domain.logs import Level
from tuner.domain.server import Phase
from tuner.domain.state import HostState, ServerState
from tuner.messages import ScreenRequested, ServerRequested
from tuner.screens.explained import Explained
from tuner.units import format_bytes
from tuner.widgets import notes, status
from tuner.widgets.chart import Chart, sparkline
from tuner.widgets.curves import CURVES, Curve, curves_of, values
from tuner.widgets.log_head import source_text
from tuner.widgets.log_index import LogFilter, LogIndex
from tuner.widgets.log_view import LogTail
from tuner.widgets.rank_table import layout_for, rows_of, table_lines
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, Span, clean, spread, text_of, wrap_parts

CHART_FROM = 136
"""Columns from which on a chart is shown beside the table; on narrower terminals there is a sparkline."""
_CHART_SHARE = 0.31
_CHART_HEIGHT = 15
_LOG_MIN = 4
_LOG_WITH_CARD = 3
_LOG_BELOW_CARD = 1
"""Lines of log left beside an unfolded card."""
_TALL = 40
"""Height in lines from which on a failure is unfolded by itself, and findings that are no failure have a card too."""
_TABLE_MIN = 3
_ENDED_MAX = 3
"""Most ended servers that are listed; a key shows the others."""
_PROBLEMS_MAX = 3
"""Most problems of the host that are listed; the Details screen has all."""


class OverviewScreen(Explained):
    """Ranks, memory, speed, problems and findings, and the end of the log."""

    DEFAULT_CSS = """
    OverviewScreen {
        #body { height: auto; }
        #left { width: 1fr; height: 100%; }
        #table-box { width: 1fr; scrollbar-size-vertical: 1; }
        #chart { height: 100%; }
        #log-head { background: $surface; }
        #tail { height: 1fr; }
    }
    """
    ENTRY = "overview"
    COPIES = "ranks and problems"
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
        Binding(
            "g",
            "next_curve",
            "Graph",
            id="overview.graph",
            tooltip="Draw another number over time",
        ),
        Binding("f", "follow", "Log", show=False, id="overview.log", tooltip="Open the log at its end"),
        Binding("enter", "enter", "Its line", show=False, id="overview.line", tooltip="The line a finding is about"),
        Binding("up,k", "move(-1)", "Up", show=False, id="overview.up", tooltip="Up in an unfolded finding"),
        Binding("down,j", "move(1)", "Down", show=False, id="overview.down", tooltip="Down in an unfolded finding"),
        Binding("escape", "fold", "Fold", show=False, id="overview.fold", tooltip="Fold the finding"),
    ]

    def compose_content(self) -> ComposeResult:
        """Make the parts, from top to bottom in the order of importance."""
        yield Rows(id="status")
        yield Rows(id="phases")
        yield Rows(id="servers")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                with VerticalScroll(id="table-box", can_focus=False):
                    yield Rows(id="table")
                yield Rows(id="legend")
                yield Rows(id="notes")
            yield Chart(self.glyphs, id="chart")
        yield Rows(id="card")
        yield Rows(id="log-head")
        index = LogIndex(keep_rows=200)
        index.refilter(LogFilter(level=Level.INFO), folding=True)
        yield LogTail(self.glyphs, index, id="tail")

    def on_mount(self) -> None:
        """Begin without a log, with the first curve."""
        self._tail_of: tuple[str, str] | None = None
        self._curve = CURVES[0]
        self._unfolded_once: set[tuple[str, int | None]] = set()

    @property
    def wide(self) -> bool:
        """Return whether there is room for a chart."""
        return self.size.width >= CHART_FROM

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Draw each part that has changed."""
        if state is None:
            return
        width = self.size.width
        stale = self.shell.stale() and state.hello is not None
        self._draw_head(state, server, width, stale=stale)
        with_chart = self.wide and server is not None and bool(curves_of(server))
        left = width - (self._chart_width if with_chart else 0)
        table = self._draw_table(state, server, left, self.shell.age_s(), stale=stale)
        self._draw_card(server, width, stale=stale)
        noted = self._draw_notes(state, server, left, table)
        self._lay_out(table, noted, with_chart=with_chart)
        if with_chart and server is not None:
            self._draw_chart(state, server, stale=stale)
        self._draw_log(state, server, width, stale=stale)

    def _draw_head(self, state: HostState, server: ServerState | None, width: int, *, stale: bool) -> None:
        glyphs = self.glyphs
        self.draw_status(state, server)
        if server is None:
            phases = status.no_server_line(state, glyphs)
        elif not self.wide and server.phase in (Phase.READY, Phase.STOPPING):
            curve = self._curve_of(server)
            spark = sparkline(values(server, curve), state.mono, 9, glyphs)
            phases = status.serving_line(state, server, width, glyphs, spark, curve.number)
        else:
            phases = status.phase_line(state, server, width, glyphs)
        self.query_one("#phases", Rows).show([phases], dimmed=stale)
        if self.changed("servers", state.servers, server, width):
            self.query_one("#servers", Rows).show(self._server_lines(state, server, width))
            self.refresh_bindings()

    def _server_lines(self, state: HostState, server: ServerState | None, width: int) -> list[Line]:
        """Return the servers that run and the newest that ended, by PID: one that is tuned is started often."""
        if len(state.servers) < 2:
            return []
        ended = [each for each in state.servers if each.gone]
        left_out = [each.identity.key for each in ended[_ENDED_MAX:] if each is not server]
        parts: list[Line] = []
        for each in state.servers:
            identity, chosen = each.identity, each is server
            if identity.key in left_out:
                continue
            place = f"pid {identity.pid}" if each.gone or not identity.port else f":{identity.port}"
            again = (
                each.gone
                and not chosen
                and server is not None
                and status.server_name(each) == status.server_name(server)
            )
            words = place if again else f"{clean(status.server_name(each))} {place}"
            words = f"[{words}]" if chosen else f" {words} "
            parts.append(((words, "strong" if chosen else "dim"), (" ", "text"), status.phase_word(each, self.glyphs)))
        if left_out:
            parts.append(((f" {self.glyphs.ellipsis} {len(left_out)} earlier", "dim"),))
        return wrap_parts([((" servers", "head"),), *parts], width, ("  ", "text"), indent=10)

    def _draw_table(
        self, state: HostState, server: ServerState | None, width: int, age: float | None, *, stale: bool
    ) -> int:
        """Draw the table and its legend. Returns the table's height in lines."""
        table, legend = self.query_one("#table", Rows), self.query_one("#legend", Rows)
        title: Span = ("ranks" if server and server.ranks else "GPUs", "head")
        old = None if stale else status.samples_age(state)
        if stale:
            ago = f" {status.as_of(age)}" if age is not None else ": old numbers"
            title = (f"{title[0]}{ago}", "warn")
        elif old is not None:
            title = (f"GPU numbers {status.as_of(old)}", "warn")
        about = (server.identity, server.phase, *(each.ranks for each in state.servers)) if server else ()
        if self.changed("table", state.samples, state.gpu_table, state.foreign, *about, width, *title, stale):
            lines = table_lines(state, server, width, self.glyphs, title, old=old is not None)
            table.show(lines, dimmed=stale)
            line = notes.legend_line(rows_of(state, server), server, width, self.glyphs)
            legend.show([line] if line else [], dimmed=stale)
        return len(table.lines)

    def _draw_card(self, server: ServerState | None, width: int, *, stale: bool) -> None:
        """Draw the first finding, as much of it as fits."""
        tall = self.size.height >= _TALL
        rows, card = self.query_one("#card", Rows), None
        self.keep_cards(server)
        if self.cards:
            card = self.cards[0]
            if tall and card.finding.severity is Severity.FATAL and card.mark not in self._unfolded_once:
                card.fold(unfolded=True)
            self._unfolded_once.add(card.mark)
        if card is None:
            rows.show([])
        elif (
            card.unfolded
            or card.finding.severity in (Severity.FATAL, Severity.ERROR)
            or (tall and card.finding.severity is Severity.PERFORMANCE)
        ):
            rows.show([((" ", "text"), *line) for line in card.lines(width - 2, self._card_room)], dimmed=stale)
        elif card.finding.severity is Severity.PERFORMANCE:
            rows.show([card.summary(width)], dimmed=stale)
        else:
            rows.show([])

    @property
    def _card_room(self) -> int:
        """Return the most lines of an unfolded card: table and log keep a few, and the notes two."""
        return max(5, self.size.height - self._frame - _TABLE_MIN - _LOG_BELOW_CARD - 2)

    @property
    def _log_min(self) -> int:
        if self.card is None or not self.query_one("#card", Rows).lines:
            return _LOG_MIN
        return _LOG_BELOW_CARD if self.card.unfolded else _LOG_WITH_CARD

    def _draw_notes(self, state: HostState, server: ServerState | None, width: int, table: int) -> int:
        """Draw the notes, as many as fit. Returns their height in lines."""
        rows_below = self.query_one("#notes", Rows)
        masks = str([sample.throttle_mask for sample in state.samples])
        parts = (state.link, state.problems, state.foreign, state.xids, state.lost_lines, state.gpu_table, masks)
        about = (
            (server.errors, server.phase, server.left_pids, server.http_problem, server.phase_evidence, server.identity)
            if server
            else ()
        )
        silence = notes.silence(state, server)
        # The card tells the failure better than the first lines of the log, which are shown below.
        explained = self.card is not None and self.card.finding.severity is Severity.FATAL
        rest = (silence, explained, width, self.size.height, table, self._fixed)
        if self.changed("notes", *parts, *about, *rest):
            rows = rows_of(state, server)
            silent = rows if layout_for(rows, width, self.glyphs).note <= 1 else ()
            table = _TABLE_MIN if self._log_min == _LOG_BELOW_CARD else max(_TABLE_MIN, table)
            room = max(2, self.size.height - self._fixed - table - self._log_min)
            options: dict[str, Any] = {"rows": silent, "problems": _PROBLEMS_MAX, "ended": self.shell.ended()}
            options["explained"] = explained
            whole, compact = (
                notes.note_items(state, server, width, self.glyphs, most=most, **options) for most in (3, 1)
            )
            hidden = max(0, len(notes.problem_items(state, server, width, self.glyphs, 1)) - _PROBLEMS_MAX)
            rows_below.show(notes.note_lines(whole, compact, room, self.glyphs, hidden))
        return len(rows_below.lines)

    @property
    def _fixed(self) -> int:
        """Return the number of lines of everything except table, notes and log."""
        return self._frame + len(self.query_one("#card", Rows).lines)

    @property
    def _frame(self) -> int:
        """Return the number of lines of everything except table, notes, log and card."""
        rows = sum(len(self.query_one(name, Rows).lines) for name in ("#tabs", "#status", "#servers", "#replay"))
        return rows + len(("phases", "legend", "log head", "footer"))

    @property
    def _chart_width(self) -> int:
        return round(self.size.width * _CHART_SHARE)

    def _lay_out(self, table: int, noted: int, *, with_chart: bool) -> None:
        """Divide the height: all rows of the table are shown if some lines of log remain, else the table scrolls."""
        legend = len(self.query_one("#legend", Rows).lines)
        box = max(_TABLE_MIN, min(table, self.size.height - self._fixed - noted - self._log_min)) if table else 0
        left = box + legend + noted
        height = max(left, min(_CHART_HEIGHT, self.size.height // 3)) if with_chart else left
        if self.changed("layout", box, height, with_chart, self._chart_width):
            chart = self.query_one(Chart)
            chart.display = with_chart
            chart.styles.width = self._chart_width
            self.query_one("#table-box").styles.height = box
            self.query_one("#body").styles.height = height
            # The chart draws to its size, which is known only after the layout.
            self.call_after_refresh(self.catch_up)

    def _draw_chart(self, state: HostState, server: ServerState, *, stale: bool) -> None:
        chart, curve = self.query_one(Chart), self._curve_of(server)
        series = server.series.get(curve.key, ())
        old = None if stale else status.metrics_age(state, server)
        warning = status.as_of(old) if old is not None else ""
        if self.changed("chart", curve, series, server.metrics, chart.size.width, chart.size.height, stale, warning):
            foot = status.metric_grid(server.metrics, self._chart_width - 1)
            title, drawn = f"{curve.title}, last 10 min", values(server, curve)
            chart.show_series(title, drawn, state.mono, warning=warning, dimmed=stale or bool(warning), foot=foot)

    def _draw_log(self, state: HostState, server: ServerState | None, width: int, *, stale: bool) -> None:
        tail, head = self.query_one(LogTail), self.query_one("#log-head", Rows)
        if server is None:
            head.show([])
            tail.display = False
            return
        tail.display = True
        log = server.log
        belongs = (state.name, server.identity.key)
        if belongs != self._tail_of:
            self._tail_of = belongs
            tail.use(LogIndex(keep_rows=200), LogFilter(level=Level.INFO))
        tail.all_ranks = tuple(rank.tag for rank in server.ranks)
        where, readable = source_text(server)
        left: Line = ((" log  ", "head"), (where, "text" if readable else "warn"))
        size = f"{format_bytes(log.size)}  " if log.size else ""
        right: Line = ((f"{size}all ranks folded, info and above ", "dim"),)
        head.show([spread(left, right, width, self.glyphs.ellipsis)], dimmed=stale)
        tail.show_log(log, dimmed=stale)

    def _curve_of(self, server: ServerState) -> Curve:
        """Return the chosen curve where this server has values for it, else the first that it has."""
        told = curves_of(server)
        return self._curve if self._curve in told or not told else told[0]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys that would do nothing now."""
        if action == "next_server":
            return self.shell.snapshot is not None and len(self.shell.snapshot.servers) > 1
        if action in ("move", "fold"):
            return self.card is not None and self.card.unfolded
        if action in ("enter", "remedy", "unfold") and self.is_mounted and not self.query_one("#card", Rows).lines:
            return False  # a finding that is no failure has no card on a small screen: the Findings screen has it
        if action == "enter":
            return self.card is not None
        if action == "next_curve":
            server = self.shell.server()
            return server is not None and len(curves_of(server)) > 1
        return super().check_action(action, parameters)

    def action_next_server(self) -> None:
        """Show the next server of this host."""
        state, server = self.shell.snapshot, self.shell.server()
        if state is None or server is None:
            return
        keys = [each.identity.key for each in state.servers]
        self.post_message(ServerRequested(keys[(keys.index(server.identity.key) + 1) % len(keys)]))

    def action_next_curve(self) -> None:
        """Draw the next curve."""
        server = self.shell.server()
        told = curves_of(server) if server is not None else ()
        if server is not None and told:
            self._curve = told[(told.index(self._curve_of(server)) + 1) % len(told)]
            self.catch_up()

    def draw_cards(self) -> None:
        """Draw all parts again after a card was folded or unfolded."""
        super().draw_cards()
        self.catch_up()

    async def action_enter(self) -> None:
        """Go to the line of the log that a finding is about."""
        if self.card is not None:
            await self.enter(self.card.chosen(self.size.width - 2))

    def action_move(self, step: int) -> None:
        """Select the next line of an unfolded card that refers to something."""
        if self.card is not None and self.card.move(step, self.size.width - 2, self._card_room):
            self.catch_up()

    def action_fold(self) -> None:
        """Fold the card."""
        self.fold_all()

    def action_follow(self) -> None:
        """Open the log."""
        self.post_message(ScreenRequested("logs"))

    def on_click(self, event: events.Click) -> None:
        """Open the findings by a click on the card."""
        if event.widget is self.query_one("#card"):
            self.post_message(ScreenRequested("findings"))

    def on_log_tail_clicked(self) -> None:
        """Open the log by a click on its tail."""
        self.post_message(ScreenRequested("logs"))

    def copy_text(self) -> str:
        """Return everything above the log as text, for a chat or an issue."""
        parts = ("#status", "#phases", "#servers", "#table", "#legend", "#notes")
        lines = [text_of(line).rstrip() for part in parts for line in self.query_one(part, Rows).lines]
        return "\n".join([*lines, *(card.text() for card in self.cards[:1])])
