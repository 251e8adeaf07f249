"""All that is known about a start: its phases rank by rank, then every finding in full."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from tuner.domain.state import HostState, ServerState
from tuner.screens.explain_requests import title_of
from tuner.screens.explained import Explained
from tuner.widgets.finding_card import Card
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, dim_lines, text_of
from tuner.widgets.start_story import missing_words, quiet_words, story_lines

_WHOLE = 1 << 20
"""Most lines of a card: practically unlimited, since here the screen scrolls and not the card."""

_TALL = 40
"""Height of the terminal from which on every rank has a row, in lines."""


class Place(Struct, frozen=True):
    """A line of the text that refers to something."""

    row: int
    card: int
    line: int
    """Index of the line within the card."""


class FindingsScreen(Explained):
    """The story of the start, and its findings in full."""

    DEFAULT_CSS = """
    FindingsScreen {
        #story-box { height: 1fr; scrollbar-size-vertical: 1; }
    }
    """
    ENTRY = "findings"
    HELP_TITLE = "Findings"
    COPIES = "the findings"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "enter",
            "Its line",
            key_display="enter",
            id="findings.enter",
            tooltip="The line of the log that says it",
        ),
        Binding("n", "finding(1)", "Next", id="findings.next", tooltip="The next finding"),
        Binding("p", "finding(-1)", "Before", show=False, id="findings.previous", tooltip="The finding before"),
        Binding("up,k", "move(-1)", "Up", show=False, id="findings.up", tooltip="The number or remedy before"),
        Binding("down,j", "move(1)", "Down", show=False, id="findings.down", tooltip="The next number or remedy"),
        Binding("z", "fold", "Fold", id="findings.fold", tooltip="Ranks that are alike in one row, or each"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="findings.page-up", tooltip="One page up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="findings.page-down", tooltip="One page down"),
        Binding("home", "end(-1)", "Top", show=False, id="findings.top", tooltip="The beginning of the story"),
        Binding("end", "end(1)", "Bottom", show=False, id="findings.bottom", tooltip="The end of the last finding"),
    ]

    def compose_content(self) -> ComposeResult:
        """Make the status line, and one scrolling text for the rest."""
        yield Rows(id="status")
        with VerticalScroll(id="story-box", can_focus=False):
            yield Rows(id="story")

    def on_mount(self) -> None:
        """Begin without a selection."""
        self._at = 0
        self._moved = False
        """True once the reader has selected a line. Until then the worst finding is selected, also if it comes late."""
        self._folded: bool | None = None
        """True where ranks with equal values share a row; None: decided by the terminal's height."""
        self._tops: list[int] = []
        self._places: list[Place] = []

    @property
    def card(self) -> Card | None:
        """Return the card of the selected line."""
        return self.cards[min(self._at, len(self.cards) - 1)] if self.cards and self.is_mounted else None

    @property
    def _width(self) -> int:
        """Return the width of a card in cells; the scroll bar takes one."""
        return self.size.width - 3

    @property
    def _folding(self) -> bool:
        return self.size.height < _TALL if self._folded is None else self._folded

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Rebuild the text when something in it has changed."""
        if state is None:
            return
        width, stale = self.size.width, self.shell.stale()
        self.draw_status(state, server)
        mark = self.card.mark if self.card is not None and self._moved else None
        if self.keep_cards(server):
            self._at = next((at for at, card in enumerate(self.cards) if card.mark == mark), 0)
            for card in self.cards:
                if not card.unfolded:
                    card.fold(unfolded=True)
                    card.move(1, self._width, _WHOLE)
        about = (server.start, server.phase, server.usual, server.log.source) if server is not None else ()
        if self.changed("story", *about, self.cards, str(self._chosen), width, stale, self._folding):
            self.query_one("#story", Rows).show(self._lines(server), dimmed=stale)

    def _lines(self, server: ServerState | None) -> list[Line]:
        width, glyphs = self.size.width - 1, self.glyphs
        if server is None:
            return dim_lines(missing_words(None), width)
        lines: list[Line] = []
        if server.start is not None:
            lines += story_lines(
                server.start, width, glyphs, server, engine=title_of(server.start), folded=self._folding
            )
        else:
            lines += dim_lines(missing_words(server), width)
        self._tops, self._places = [], []
        for at, card in enumerate(self.cards):
            lines.append(())
            self._tops.append(len(lines))
            leads = [index for index, each in enumerate(card.inside(self._width)) if each.leads]
            self._places += [Place(len(lines) + 1 + index, at, index) for index in leads]
            drawn = card.lines(self._width, _WHOLE, active=card is self.card, hints=False)
            lines += [((" ", "text"), *line) for line in drawn]
        if not self.cards and (server.start is not None or server.gone):
            sign = (f" {glyphs.down} ", "warn") if server.gone else (f" {glyphs.ok} ", "ok")
            lines += [(), (sign, (quiet_words(server), "text"))]
        return lines

    # Moving ------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable keys that act on a finding only where there is one. Cards are always unfolded here."""
        if action == "unfold":
            return False
        if action == "enter":
            return bool(self.cards)
        if action == "finding":
            return len(self.cards) > 1
        if action == "fold":
            server = self.shell.server()
            return server is not None and server.start is not None and len(server.start.ranks) > 1
        return super().check_action(action, parameters)

    def action_move(self, step: int) -> None:
        """Select the next line that refers to something; scroll where none is near."""
        box = self.query_one("#story-box")
        top, height = box.scroll_y, box.size.height
        seen = [place for place in self._places if top <= place.row < top + height]
        now = next((place for place in seen if (place.card, place.line) == self._chosen), None)
        # Where the reader has scrolled away from the selected line, a visible line is selected.
        ahead = seen if now is None else [place for place in self._places if (place.row - now.row) * step > 0]
        target = (ahead[0] if step > 0 else ahead[-1]) if ahead else None
        if target is None or abs(target.row - (now.row if now else target.row)) > height:
            box.scroll_relative(y=step, animate=False)
        else:
            self._choose(target)

    def action_finding(self, step: int) -> None:
        """Go to the next finding."""
        if self.cards:
            at, self._moved = (self._at + step) % len(self.cards), True
            first = next((place for place in self._places if place.card == at), None)
            self._at = at
            if first is not None:
                self._choose(first)
            self.query_one("#story-box").scroll_to(y=max(0, self._tops[at] - 1), animate=False)

    @property
    def _chosen(self) -> tuple[int, int] | None:
        return (self._at, self.card.row) if self.card is not None else None

    def _choose(self, place: Place) -> None:
        """Select a line, and scroll until it and a line around it are visible."""
        self._at, self._moved = place.card, True
        self.cards[place.card].choose(place.line)
        self.catch_up()
        self.refresh_bindings()
        box = self.query_one("#story-box")
        top, height = round(box.scroll_y), box.size.height
        box.scroll_to(y=min(max(top, place.row + 2 - height), max(0, place.row - 1)), animate=False)

    def action_fold(self) -> None:
        """Show each rank, or one row for ranks with equal values."""
        self._folded = not self._folding
        self.catch_up()

    def action_page(self, step: int) -> None:
        """Scroll by a page."""
        box = self.query_one("#story-box")
        box.scroll_relative(y=step * max(1, box.size.height - 2), animate=False)

    def action_end(self, step: int) -> None:
        """Scroll to the beginning or the end."""
        box = self.query_one("#story-box")
        box.scroll_to(y=0 if step < 0 else box.max_scroll_y, animate=False)

    async def action_enter(self) -> None:
        """Go to the line of the log, or copy the remedy."""
        if self.card is not None:
            await self.enter(self.card.chosen(self._width))

    def copy_text(self) -> str:
        """Return the whole text of the screen."""
        server = self.shell.server()
        story: list[Line] = []
        if server is not None and server.start is not None:
            story = story_lines(server.start, 160, self.glyphs, server, engine=title_of(server.start))
        return "\n".join([*(text_of(line).rstrip() for line in story), *(f"\n{card.text()}" for card in self.cards)])
