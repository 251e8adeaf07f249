"""The dialog before anything on a host is changed. Only a capital letter agrees, so nothing typed ahead does."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from tuner.screens.dialogs import Modal, verbatim
from tuner.widgets.confirm_text import Proposal, answer_lines, proposal_lines
from tuner.widgets.rows import Rows

_FRAME = (7, 4)
"""Cells and lines around the facts: border, padding and scroll bar; border and the title with its margin."""
_WIDEST = 110
"""Width of a wide dialog."""


class Agreed(Struct, frozen=True):
    """The operator's answer: do it, in this way."""

    drain: bool = False
    back: bool = False


Propose = Callable[[Agreed], Proposal]
"""Returns what is asked for a choice of options."""
Moot = Callable[[], str]
"""Returns why there is nothing to ask any more, in words; empty while there is."""


class ConfirmDialog(Modal[Agreed | None]):
    """Asks whether a change of the host is meant. `Y` agrees; enter does nothing.

    What is told stays true while the question is open, and the question is withdrawn when it has become moot.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("Y", "agree", "Do it", id="confirm.yes", tooltip="Do what is asked; no other key does"),
        Binding("d", "drain", "Drain", show=False, id="confirm.drain", tooltip="Wait for the requests in flight first"),
        Binding("a", "back", "Back", show=False, id="confirm.back", tooltip="Go back without being asked, or not"),
        Binding("escape,n", "give_up", "No", id="confirm.no", tooltip="Change nothing"),
        Binding("up,k", "scroll(-1)", "Up", show=False, id="confirm.up", tooltip="Scroll up"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="confirm.down", tooltip="Scroll down"),
    ]
    DEFAULT_CSS = """
    ConfirmDialog {
        align: center middle;
        .dialog-text { max-height: 100%; }
        #question, #answers { background: $surface; }
        #answers { margin-top: 1; }
    }
    """

    def __init__(self, propose: Propose, chosen: Agreed | None = None, moot: Moot = str) -> None:
        super().__init__()
        self._propose = propose
        self._moot = moot
        self._chosen = chosen or Agreed()

    @property
    def proposal(self) -> Proposal:
        """Return what is asked at present."""
        return self._propose(self._chosen)

    def compose(self) -> ComposeResult:
        """Make the title, the facts, and the keys."""
        with Vertical(classes="dialog wide"):
            yield Static(verbatim(self.proposal.title), classes="dialog-title", id="confirm-title")
            with VerticalScroll(classes="dialog-text", id="confirm-box", can_focus=False):
                yield Rows(id="question")
            yield Rows(id="answers")

    def on_mount(self) -> None:
        """Show the facts, as many as possible."""
        # What was said before would cover the keys.
        self.app.clear_notifications()
        self.query_one(".dialog").styles.padding = (0, 2)
        self._show()
        self.watch(self.app, "snapshot", self._look, init=False)

    def _look(self) -> None:
        """Tell what has changed meanwhile, or close."""
        if not self.is_current:
            return
        if why := self._moot():
            self.dismiss(None)
            self.app.notify(why, title="The question was withdrawn", severity="warning", timeout=6, markup=False)
        else:
            self._show()

    def on_resize(self, event: events.Resize) -> None:
        """Lay the facts out anew."""
        self._show()

    def _show(self) -> None:
        width = max(24, min(_WIDEST, int(self.app.size.width * 0.96)) - _FRAME[0])
        lines, answers = proposal_lines(self.proposal, width), answer_lines(self.proposal, width)
        self.query_one("#question", Rows).show(lines)
        self.query_one("#answers", Rows).show(answers)
        # The keys and their margin always stay in view.
        most = max(3, int(self.app.size.height * 0.9) - _FRAME[1] - 1 - len(answers))
        self.query_one("#confirm-box").styles.height = min(len(lines), most)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable only the choices that there are."""
        if action == "drain":
            return self.proposal.drain is not None
        if action == "back":
            return self.proposal.back is not None
        return True

    def action_agree(self) -> None:
        """Do it."""
        self.dismiss(self._chosen)

    def action_give_up(self) -> None:
        """Change nothing."""
        self.dismiss(None)

    def action_drain(self) -> None:
        """Wait for the requests in flight, or not."""
        self._chosen = Agreed(not self._chosen.drain, self._chosen.back)
        self._show()

    def action_back(self) -> None:
        """Go back without being asked, or not."""
        self._chosen = Agreed(self._chosen.drain, not self._chosen.back)
        self._show()

    def action_scroll(self, step: int) -> None:
        """Scroll the facts by a line."""
        self.query_one("#confirm-box").scroll_relative(y=step, animate=False)
