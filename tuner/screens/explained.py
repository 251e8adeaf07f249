"""The base of screens that show findings: the cards, and the keys that act on the one in view."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from tuner.core.remedies import typed
from tuner.domain.findings import Finding
from tuner.domain.state import ServerState
from tuner.screens.base import TunerScreen
from tuner.widgets.finding_card import REMEDY_KEYS, Card, CardLine
from tuner.widgets.finding_words import tags_of
from tuner.widgets.spans import clean

ON_A_FINDING = "On a finding"
"""Heading of these keys in the help."""
FINDING_KEYS: list[BindingType] = [
    Binding("u", "unfold", "Unfold", id="finding.unfold", tooltip="Show all of a finding, or fold it again"),
    *(
        Binding(
            key,
            f"remedy({index})",
            "Copy remedy",
            # Only the best remedy is in the key bar; the others are in the unfolded card.
            show=index == 0,
            id=f"finding.remedy-{index + 1}",
            tooltip=tooltip,
        )
        for index, (key, tooltip) in enumerate(
            zip(
                REMEDY_KEYS,
                (
                    "Copy what the best remedy changes",
                    "Copy the second remedy",
                    "Copy the third remedy",
                    "Copy the fourth remedy",
                ),
                strict=True,
            )
        )
    ),
]


class Explained(TunerScreen):
    """A screen that shows findings."""

    BINDINGS: ClassVar[list[BindingType]] = FINDING_KEYS

    def __init__(self) -> None:
        super().__init__()
        self.cards: tuple[Card, ...] = ()
        """Cards of the server on screen, the root cause first."""
        self._cards_of: tuple[Finding, ...] | None = None

    @property
    def card(self) -> Card | None:
        """Return the card that keys act on: the one in view, or else that of the root cause; None without findings."""
        return self.cards[0] if self.cards else None

    def keep_cards(self, server: ServerState | None) -> bool:
        """Make cards of the server's findings; cards of known findings keep their state.

        Returns whether any changed.
        """
        findings = server.findings if server is not None else ()
        if findings == self._cards_of:
            return False
        before = {each.mark: each for each in self.cards}
        tags = tags_of(server) if server is not None else {}
        cards: list[Card] = []
        for index, finding in enumerate(findings):
            card = Card(finding, self.glyphs, tags=tags, more=len(findings) - 1 if index == 0 else 0)
            if card.mark in before:
                card.resume(before[card.mark])
            cards.append(card)
        self._cards_of, self.cards = findings, tuple(cards)
        self.refresh_bindings()
        return True

    def key_words(self) -> dict[str, str]:
        """Return what each remedy copies, by the id of its key; the key bar shows it where there is room."""
        remedies = self.card.remedies if self.card is not None else ()
        words = {f"finding.remedy-{at + 1}": f"copies {clean(typed(remedy))}" for at, remedy in enumerate(remedies)}
        if self.card is not None and self.card.unfolded:
            words["finding.unfold"] = "Fold"
        if count := len(self.cards):
            words["screen.findings"] = f"{count} finding{'s' if count > 1 else ''}"
        return words

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable remedy keys only where the card has that remedy."""
        if action == "unfold":
            return self.card is not None
        if action == "remedy":
            return self.card is not None and int(str(parameters[0])) < len(self.card.remedies)
        return super().check_action(action, parameters)

    def action_remedy(self, index: int) -> None:
        """Copy what a remedy changes."""
        card = self.card
        if card is not None and index < len(card.remedies):
            text = clean(typed(card.remedies[index]))
            self.app.copy_to_clipboard(text)
            self.notify(f"Copied: {text}", timeout=4, markup=False)

    def action_unfold(self) -> None:
        """Unfold the card, or fold it."""
        if (card := self.card) is not None:
            card.fold(unfolded=not card.unfolded)
            self.draw_cards()

    def draw_cards(self) -> None:
        """Draw the cards after one was folded or unfolded."""
        self.refresh_bindings()

    def fold_all(self) -> bool:
        """Fold all cards. Returns whether any was unfolded."""
        unfolded = [card for card in self.cards if card.unfolded]
        for card in unfolded:
            card.fold(unfolded=False)
        if unfolded:
            self.draw_cards()
        return bool(unfolded)

    async def enter(self, line: CardLine) -> None:
        """Go where a card's line refers to: to its place in the log, or copy its remedy."""
        if line.remedy is not None:
            self.action_remedy(line.remedy)
        elif line.at is not None:
            await self.app.switch_mode("logs")
            if isinstance(self.app.screen, TunerScreen):
                self.app.screen.call_after_refresh(self.app.screen.show_place, line.at)
        else:
            self.notify("That was computed: no line of the log says it", timeout=3)
