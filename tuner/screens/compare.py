"""Compare the start on screen with another one that the operator chooses."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tuner.domain.planning import StartChoice
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.messages import ComparisonArrived, ComparisonRequested, StartsArrived, StartsRequested
from tuner.screens.base import TunerScreen
from tuner.screens.dialogs import Dialog, verbatim
from tuner.widgets import status
from tuner.widgets.comparison_text import Told, told
from tuner.widgets.field import Field
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, clean, clip, dim_lines, text_of
from tuner.widgets.start_story import missing_words

_FILE = "file:"


class StartDialog(Dialog):
    """Asks what to compare with: a known start, or a log file of this machine."""

    DEFAULT_CSS = """
    StartDialog {
        #choices { height: auto; max-height: 12; border: none; padding: 0; background: $surface; }
        #path { height: 1; border: none; background: $panel; margin-top: 1; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "other", "Other", show=False, id="compare.other", tooltip="From the list to the path, and back"),
    ]

    def __init__(self, choices: tuple[StartChoice, ...]) -> None:
        super().__init__()
        self.choices = choices

    def compose(self) -> ComposeResult:
        """Make the list of starts, and an input for a path."""
        with Vertical(classes="dialog wide"):
            yield Static(verbatim("Compare with"), classes="dialog-title")
            if self.choices:
                options = [
                    Option(verbatim(clip(clean(each.title), 100)), id=str(at)) for at, each in enumerate(self.choices)
                ]
                yield OptionList(*options, id="choices", markup=False)
            else:
                yield Static(verbatim("No other start is known: not of this host's servers, and not in the history."))
            yield Field(id="path", placeholder="or the path of a log file on this machine", compact=True)
            words = (
                "enter compares, tab goes to the path, escape closes"
                if self.choices
                else "enter compares, escape closes"
            )
            yield Static(verbatim(f"\n{words}"), classes="dialog-foot")

    def on_mount(self) -> None:
        """Focus the list, or the input where there is no list."""
        self.query_one("#choices" if self.choices else "#path").focus()

    def action_other(self) -> None:
        """Move the focus from the list to the input, or back."""
        path = self.query_one("#path")
        if self.choices:
            (self.query_one("#choices") if path.has_focus else path).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen start."""
        event.stop()
        self.dismiss(self.choices[event.option_index].id)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the typed path."""
        event.stop()
        if event.value.strip():
            self.dismiss(f"{_FILE}{event.value.strip()}")


class CompareScreen(TunerScreen):
    """The differences between two starts, ranked by how far they explain the outcome."""

    DEFAULT_CSS = """
    CompareScreen {
        #pair { background: $background; }
        #compare-box { height: 1fr; scrollbar-size-vertical: 1; }
    }
    """
    ENTRY = "compare"
    HELP_TITLE = "Compare"
    COPIES = "the comparison"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "choose", "With", id="compare.choose", tooltip="Choose a start or a log file to compare with"),
        Binding("z", "ranks", "Ranks", id="compare.ranks", tooltip="Show the numbers of every rank, or of the weakest"),
        Binding("v", "noise", "All", id="compare.noise", tooltip="Show what differs between any two starts too"),
        Binding("n", "section(1)", "Section", show=False, id="compare.next", tooltip="The next section"),
        Binding("p", "section(-1)", "Before", show=False, id="compare.previous", tooltip="The section before"),
    ]

    def compose_content(self) -> ComposeResult:
        """Make the line that names the two starts, and the comparison."""
        yield Rows(id="status")
        yield Rows(id="pair")
        with VerticalScroll(id="compare-box"):
            yield Rows(id="comparison")

    def on_mount(self) -> None:
        """Begin without a choice."""
        self._of: tuple[str, str] | None = None
        self._start: Start | None = None
        self._choices: tuple[StartChoice, ...] | None = None
        self._choice: str | None = None
        self._answer: ComparisonArrived | None = None
        self._told: Told | None = None
        self._noise = self._ranks = self._asking = False
        self.set_focus(self.query_one("#compare-box"))

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Request what is missing, and draw what is there."""
        if state is None:
            return
        width, stale = self.size.width, self.shell.stale()
        self.draw_status(state, server)
        belongs = (state.name, server.identity.key) if server is not None else None
        if belongs != self._of:
            self._of, self._choices, self._choice, self._answer = belongs, None, None, None
            self._start = server.start if server is not None else None
        if server is not None and server.start is not None and self._choices is None:
            self._choices = ()
            self.post_message(StartsRequested(self, state.name, server.identity.key))
        if server is not None and server.start is not self._start:
            # The log has told more of the start since the request.
            self._start = server.start
            if self._choice is not None:
                self._ask(state, server)
        if self.changed("pair", self._choice, self._choices, self._answer, width, server and server.identity):
            self.query_one("#pair", Rows).show([self._pair(server, width)] if server is not None else [])
            self.refresh_bindings()
        shown = (self._answer, self._choices, self._noise, self._ranks, width, stale, server is None, self._choice)
        if self.changed("comparison", *shown, server.start if server is not None else None):
            self.query_one("#comparison", Rows).show(self._lines(server, width - 1), dimmed=stale)

    def _pair(self, server: ServerState, width: int) -> Line:
        """Return the line that names the two starts."""
        other = self._title
        left = f" {clean(status.server_name(server))} pid {server.identity.pid}"
        right = f"  against  {other}" if other else ""
        return ((left, "strong"), (clip(right, max(8, width - len(left) - 1), self.glyphs.ellipsis), "text"))

    @property
    def _title(self) -> str:
        if self._choice is None:
            return ""
        if self._choice.startswith(_FILE):
            return clean(self._choice.removeprefix(_FILE))
        return next((each.title for each in self._choices or () if each.id == self._choice), "an earlier start")

    def _lines(self, server: ServerState | None, width: int) -> list[Line]:
        self._told = None
        if server is None:
            return dim_lines("no server, so nothing to compare", width)
        if server.start is None:
            return dim_lines(missing_words(server), width)
        answer = self._answer
        if answer is None:
            if self._choice is not None:
                return dim_lines(f"comparing {self.glyphs.ellipsis}", width)
            return dim_lines("no other start of its LLM is known: press c to choose another one, or a log file", width)
        if answer.comparison is None:
            return [((f" {self.glyphs.warn} ", "warn"), (clean(answer.error), "text"))]
        names = ("this start", "the other") if answer.own_is_good else ("the other", "this start")
        self._told = told(
            answer.comparison, names, width, self.glyphs, noise=self._noise, each_rank=self._ranks
        )  # fmt: skip
        return list(self._told.lines)

    # What it is compared with ------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys that would do nothing now."""
        server = self.shell.server()
        if action == "choose":
            return server is not None and server.start is not None
        if action in ("ranks", "noise", "section"):
            return self._answer is not None and self._answer.comparison is not None
        return super().check_action(action, parameters)

    def _ask(self, state: HostState, server: ServerState) -> None:
        if self._choice is not None:
            self.post_message(ComparisonRequested(self, state.name, server.identity.key, self._choice))

    def _compare_with(self, choice: str | None) -> None:
        state, server = self.shell.snapshot, self.shell.server()
        if choice is None or state is None or server is None:
            return
        self._choice, self._answer = choice, None
        self._ask(state, server)
        self.catch_up()

    def on_starts_arrived(self, message: StartsArrived) -> None:
        """Compare with the start that is likely to explain most, or offer all starts."""
        message.stop()
        if self._of != (message.asked.host, message.asked.key):
            return
        self._choices = message.choices
        best = next((each for each in message.choices if each.same_llm), None)
        if self._asking:
            self._asking = False
            self.app.push_screen(StartDialog(message.choices), self._compare_with)
        elif self._choice is None and best is not None:
            self._compare_with(best.id)
        self.catch_up()

    def on_comparison_arrived(self, message: ComparisonArrived) -> None:
        """Show the comparison, unless another start was chosen meanwhile."""
        message.stop()
        if self._of == (message.asked.host, message.asked.key) and message.asked.choice == self._choice:
            self._answer = message
            self.refresh_bindings()
            self.catch_up()

    def action_choose(self) -> None:
        """Request the newest list of starts, and offer it."""
        if self._of is not None:
            self._asking = True
            self.post_message(StartsRequested(self, *self._of))

    def action_ranks(self) -> None:
        """Switch between the numbers of every rank and of the weakest."""
        self._ranks = not self._ranks
        self.catch_up()

    def action_noise(self) -> None:
        """Show or hide the differences that any two starts have."""
        self._noise = not self._noise
        self.catch_up()

    def action_section(self, step: int) -> None:
        """Scroll to the next section, or to the one before."""
        self.scroll_to_heading("#compare-box", self._told.headings if self._told is not None else (), step)

    def copy_text(self) -> str:
        """Return the whole comparison as text."""
        lines = self.query_one("#pair", Rows).lines + self.query_one("#comparison", Rows).lines
        return "\n".join(text_of(line).rstrip() for line in lines)
