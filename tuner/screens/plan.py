"""Plan a start: change knobs, and see the memory it would take."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from tuner.domain.planning import PlanKnob, Planned
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.messages import ForecastArrived, ForecastRequested
from tuner.screens.base import TunerScreen
from tuner.widgets.field import Field
from tuner.widgets.plan_fields import change_words, command_line, label_of, next_value, typed_value
from tuner.widgets.plan_panel import base_line, command_lines, panel
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, clean, dim_lines, text_of

_COMMAND_LINES = 2
_TALL = 40


class PlanScreen(TunerScreen):
    """The forecast of a start, beside the start that it is planned from."""

    DEFAULT_CSS = """
    PlanScreen {
        #plan-box { height: 1fr; scrollbar-size-vertical: 1; }
        #value { height: 1; border: none; background: $panel; }
        #command { background: $surface; }
    }
    """
    AUTO_FOCUS = ""
    """No input is focused at first: the arrow keys change knobs."""
    ENTRY = "plan"
    HELP_TITLE = "Plan"
    COPIES = "the command"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "Up", show=False, id="plan.up", tooltip="The knob above"),
        Binding("down,j", "choose(1)", "Down", show=False, id="plan.down", tooltip="The knob below"),
        Binding(
            "right",
            "turn(1)",
            "Turn",
            key_display="left right",
            id="plan.more",
            tooltip="Give the knob its next greater value",
        ),
        Binding(
            "left", "turn(-1)", "Turn down", show=False, id="plan.less", tooltip="Give the knob its next smaller value"
        ),
        Binding("enter", "type", "Type", key_display="enter", id="plan.type", tooltip="Type a value for the knob"),
        Binding(
            "backspace", "reset", "Undo", show=False, id="plan.reset", tooltip="Give the knob the value that it has now"
        ),
        Binding(
            "delete",
            "reset_all",
            "Undo all",
            show=False,
            id="plan.reset-all",
            tooltip="Give all knobs the values that they have now",
        ),
        Binding("escape", "leave", "Leave", show=False, id="plan.leave", tooltip="Leave the line to type in"),
    ]

    def compose_content(self) -> ComposeResult:
        """Make the line that names the start, the panel, an input line, and the command at the bottom."""
        yield Rows(id="status")
        yield Rows(id="base")
        with VerticalScroll(id="plan-box", can_focus=False):
            yield Rows(id="plan")
        yield Field(id="value", compact=True, select_on_focus=False)
        yield Rows(id="command")

    def on_mount(self) -> None:
        """Begin without changes."""
        self._of: tuple[str, str] | None = None
        self._start: Start | None = None
        self._planned: Planned | None = None
        self._error = ""
        self._values: dict[str, Any] = {}
        self._answered: dict[str, Any] | None = None
        self._at = 0
        self.query_one("#value").display = False

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Request a forecast when another start is on screen, and draw what is known."""
        if state is None:
            return
        width, stale = self.size.width, self.shell.stale()
        self.draw_status(state, server)
        belongs = (state.name, server.identity.key) if server is not None else None
        start = server.start if server is not None else None
        if belongs != self._of:
            self._of, self._planned, self._error, self._values, self._at = belongs, None, "", {}, 0
            self._start = start
            self._ask()
        elif start is not self._start:
            self._start = start
            self._ask()
        if self.changed("plan", self._planned, self._error, str(self._values), self._at, width, stale, server is None):
            self._show(server, width, dimmed=stale)

    def _show(self, server: ServerState | None, width: int, *, dimmed: bool) -> None:
        base, plan, command = (self.query_one(name, Rows) for name in ("#base", "#plan", "#command"))
        planned, glyphs = self._planned, self.glyphs
        if planned is None or server is None:
            base.show([])
            command.show([])
            words = self._error or f"working {glyphs.ellipsis}"
            words = "no server, so nothing to plan from" if server is None else words
            plan.show(dim_lines(clean(words), width - 1))
            return
        base.show([base_line(planned, width, glyphs)], dimmed=dimmed)
        drawn = panel(planned, self._values, self._at, width - 1, glyphs, old=self._answered != self._values)
        plan.show(drawn.lines, dimmed=dimmed)
        command.show(self._command(server, planned, width))
        box = self.query_one("#plan-box")
        top, height = round(box.scroll_y), box.size.height
        box.scroll_to(y=min(max(top, drawn.chosen + 2 - height), max(0, drawn.chosen - 1)), animate=False)

    def _command(self, server: ServerState, planned: Planned, width: int) -> list[Line]:
        words = change_words(planned.knobs, self._changes(planned))
        whole = command_line(server.identity.argv, planned.knobs, self._changes(planned))
        most = 2 * _COMMAND_LINES if self.size.height >= _TALL else _COMMAND_LINES
        return command_lines(words, whole, width, self.glyphs, most=most)

    def _changes(self, planned: Planned) -> dict[str, Any]:
        now = {each.knob.name: each.value for each in planned.knobs}
        return {name: value for name, value in self._values.items() if value != now.get(name)}

    # Asking ------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self._of is not None:
            self.post_message(ForecastRequested(self, *self._of, self._values))

    def on_forecast_arrived(self, message: ForecastArrived) -> None:
        """Show the forecast, unless it is for another server."""
        message.stop()
        if self._of != (message.asked.host, message.asked.key):
            return
        self._planned, self._error, self._answered = message.planned, message.error, message.asked.changes
        self.refresh_bindings()
        self.redraw_all()

    # Turning -----------------------------------------------------------------------------------------------------

    @property
    def _knob(self) -> PlanKnob | None:
        knobs = self._planned.knobs if self._planned is not None else ()
        return knobs[min(self._at, len(knobs) - 1)] if knobs else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys that would do nothing now."""
        if action in ("choose", "turn", "type", "reset", "reset_all"):
            return self.is_mounted and self._knob is not None
        return super().check_action(action, parameters)

    def action_choose(self, step: int) -> None:
        """Select the next knob."""
        if self._planned is not None:
            self._at = (self._at + step) % len(self._planned.knobs)
            self.catch_up()

    def action_turn(self, step: int) -> None:
        """Change the knob to its next value."""
        if (each := self._knob) is not None:
            self._set(each, next_value(each, self._values.get(each.knob.name, each.value), step))

    def _set(self, each: PlanKnob, value: Any) -> None:
        values = {name: old for name, old in self._values.items() if name != each.knob.name}
        if value != each.value:
            values[each.knob.name] = value
        if values != self._values:
            self._values = values
            self._ask()
        self.catch_up()

    def action_reset(self) -> None:
        """Change the knob back to its present value."""
        if (each := self._knob) is not None:
            self._set(each, each.value)

    def action_reset_all(self) -> None:
        """Change all knobs back to their present values."""
        if self._values:
            self._values = {}
            self._ask()
            self.catch_up()

    def action_type(self, first: str = "") -> None:
        """Open the input line for a value."""
        if (each := self._knob) is None:
            return
        field = self.query_one("#value", Input)
        field.value = first
        field.placeholder = f"{label_of(each)}: {each.knob.title} (enter: done, escape: leave)"
        field.display = True
        self.set_focus(field)

    def on_key(self, event: events.Key) -> None:
        """Open the input line when a digit is typed."""
        digit = event.character or ""
        if (digit.isdigit() or digit == ".") and self._knob is not None and not isinstance(self.focused, Input):
            event.stop()
            self.action_type(digit)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Change the knob to the typed value."""
        event.stop()
        each = self._knob
        if each is not None and event.value.strip():
            try:
                value = typed_value(each, event.value)
            except ValueError as error:
                self.notify(f"{label_of(each)}: {error}", severity="error", markup=False)
                return
            self.action_leave()
            self._set(each, value)
        else:
            self.action_leave()

    def action_leave(self) -> None:
        """Close the input line."""
        self.query_one("#value").display = False
        self.set_focus(None)

    def action_copy(self) -> None:
        """Copy the command, and tell which parts are masked."""
        super().action_copy()
        if "***" in self.copy_text():
            self.notify("What was secret in it is *** here: put it in again", timeout=6, markup=False)

    def copy_text(self) -> str:
        """Return the command; without a change, the panel's text."""
        server, planned = self.shell.server(), self._planned
        if server is None or planned is None:
            return ""
        if changes := self._changes(planned):
            return command_line(server.identity.argv, planned.knobs, changes)
        return "\n".join(text_of(line).rstrip() for line in self.query_one("#plan", Rows).lines)
