"""The base of screens that show findings: the cards, and the keys that act on the one in view."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from tuner.core import runs
from tuner.core.knobs import OFF_WORDS, ON_WORDS
from tuner.core.recipes import read_recipe
from tuner.core.remedies import typed
from tuner.domain.findings import Finding, Move, Remedy, Severity
from tuner.domain.knobs import KnobType
from tuner.domain.recipe import MASK
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Wish
from tuner.errors import TunerError
from tuner.messages import TuneArrived
from tuner.screens.acting import Acting
from tuner.screens.base import TunerScreen
from tuner.screens.explain_requests import engines
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
            "Remedy",
            # Only the best remedy is in the key bar; the others are in the unfolded card.
            show=index == 0,
            id=f"finding.remedy-{index + 1}",
            tooltip=tooltip,
        )
        for index, (key, tooltip) in enumerate(
            zip(
                REMEDY_KEYS,
                (
                    "Apply the best remedy, after a question; copy it where that is not possible",
                    "Apply or copy the second remedy",
                    "Apply or copy the third remedy",
                    "Apply or copy the fourth remedy",
                ),
                strict=True,
            )
        )
    ),
    Binding("G", "last_good", "Go back", show=False, id="finding.back", tooltip="Start again what was good last"),
]


def can_start_again(state: HostState, server: ServerState) -> bool:
    """Return whether all that started a server is at hand.

    What is secret in it lives in its process, in the memory of a probe that has seen it, or in the folder of its run.
    """
    if not server.gone or server.identity.key in state.seen or runs.run_of(state, server) is not None:
        return True
    identity = server.identity
    return MASK not in " ".join((*identity.argv, *(identity.env or {}).values()))


def in_its_place(state: HostState, server: ServerState) -> ServerState | None:
    """Return the server that runs on the port of one that ended; None if none does."""
    port = server.identity.port
    if not server.gone or port is None:
        return None
    return next((each for each in state.servers if not each.gone and each.identity.port == port), None)


def remedy_wish(state: HostState, server: ServerState, remedy: Remedy) -> Wish | None:
    """Return the wish to start a server with a remedy; None if it is no change of a knob.

    Where another server serves in the place of one that failed, as after going back, that one is stopped for it.
    """
    engine = engines().get(server.identity.engine)
    if engine is None or not server.identity.argv or not (remedy.flag or remedy.env):
        return None
    knob = engine.knobs().find(remedy.knob) or engine.knobs().find(remedy.flag or remedy.env or "")
    if knob is None or engine.knobs().spelling(knob.name, server.version) is None:
        return None
    value = remedy.value
    if knob.type is KnobType.BOOL and isinstance(value, str) and value.lower() in ON_WORDS | OFF_WORDS:
        value = value.lower() in ON_WORDS
    match remedy.move:
        case Move.UNSET:
            value = None
        case Move.SET if value is None and knob.type is KnobType.BOOL:
            value = True
        case Move.SET | Move.RAISE | Move.LOWER if value is not None:
            pass
        case _:
            return None
    wish = Wish(server=server.identity.key, overrides={knob.name: value})
    live = in_its_place(state, server)
    if live is None:
        return wish
    leader = (server.identity.pid, server.identity.start_ticks)
    run = next((r for r in state.runs if r.failed and (r.failed.pid, r.failed.start_ticks) == leader), None)
    try:
        recipe = read_recipe(state, server, engine)
    except TunerError:
        return None
    return replace(wish, server=live.identity.key, recipe=recipe, preset=run.preset if run is not None else "")


class Explained(Acting):
    """A screen that shows findings."""

    BINDINGS: ClassVar[list[BindingType]] = FINDING_KEYS

    def __init__(self) -> None:
        super().__init__()
        self.cards: tuple[Card, ...] = ()
        """Cards of the server on screen, the root cause first."""
        self._cards_of: tuple[Finding, ...] | None = None
        self._instead = ""
        """What is copied if the remedy that was asked for cannot be applied."""

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
            return self._offer(server)
        before = {each.mark: each for each in self.cards}
        tags = tags_of(server) if server is not None else {}
        cards: list[Card] = []
        for index, finding in enumerate(findings):
            card = Card(finding, self.glyphs, tags=tags, more=len(findings) - 1 if index == 0 else 0)
            if card.mark in before:
                card.resume(before[card.mark])
            cards.append(card)
        self._cards_of, self.cards = findings, tuple(cards)
        self._offer(server)
        self.refresh_bindings()
        return True

    def _offer(self, server: ServerState | None) -> bool:
        """Tell the cards which remedies can be applied now, and what can be gone back to."""
        state = self.shell.snapshot
        if state is None or server is None or not self.cards:
            return False
        can = not self.shell.hindrance() and runs.active_run(state) is None and can_start_again(state, server)
        back = ""
        alone = server.gone and in_its_place(state, server) is None
        if not self.shell.hindrance() and alone and (before := runs.earlier(state, server)) is not None:
            back = before.title
        changed = False
        for card in self.cards:
            fatal = card.finding.severity is Severity.FATAL
            able = [at for at, each in enumerate(card.remedies) if can and remedy_wish(state, server, each) is not None]
            changed |= card.offer(frozenset(able), back if fatal else "")
        if changed:
            self.cards = tuple(self.cards)
            self.refresh_bindings()
        return changed

    def key_words(self) -> dict[str, str]:
        """Return what the key of each remedy does, by its id; the key bar shows it where there is room."""
        card = self.card
        count = len(card.remedies) if card is not None else 0
        words = {f"finding.remedy-{at + 1}": card.does(at) for at in range(count)} if card is not None else {}
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
        if action == "last_good":
            return self.card is not None and self.card.can_go_back
        return super().check_action(action, parameters)

    def action_remedy(self, index: int) -> None:
        """Propose to start the server with a remedy; copy it where that is not possible."""
        card, state, server = self.card, self.shell.snapshot, self.shell.server()
        if card is None or index >= len(card.remedies):
            return
        text, wish = clean(typed(card.remedies[index])), None
        if state is not None and server is not None and card.applies(index):
            wish = remedy_wish(state, server, card.remedies[index])
        if wish is None:
            self.app.copy_to_clipboard(text)
            self.notify(f"Copied: {text}", timeout=4, markup=False)
        else:
            self._instead = text
            self.propose(wish)

    def refused(self, message: TuneArrived) -> None:
        """Tell why a remedy cannot be applied, and copy it."""
        super().refused(message)
        if self._instead and message.asked.wish.overrides:
            self.app.copy_to_clipboard(self._instead)
            self.notify(f"Copied instead: {self._instead}", timeout=6, markup=False)

    def action_last_good(self) -> None:
        """Propose to start again what was good last."""
        self.go_back()

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
        """Go where a card's line refers to: to its place in the log; or apply or copy its remedy."""
        if line.remedy is not None:
            self.action_remedy(line.remedy)
        elif line.at is not None:
            await self.app.switch_mode("logs")
            if isinstance(self.app.screen, TunerScreen):
                self.app.screen.call_after_refresh(self.app.screen.show_place, line.at)
        else:
            self.notify("That was computed: no line of the log says it", timeout=3)
