"""The last line of the screen: the keys that work now, as many as fit entirely. A click presses the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual import events
from textual.binding import ActiveBinding
from textual.screen import Screen

from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, Span, width_of

_LAST = ("help", "quit")
"""Ids of the keys that are never left out."""
_SELDOM = ("screen.details", "screen.compare", "screen.plan")
"""Ids of the screens whose keys are left out first; those that a screen names itself come before all other screens."""


def _part(key: str, words: str, *, enabled: bool) -> Line:
    return ((key, "busy" if enabled else "dim"), (f" {words}", "text" if enabled else "dim"), ("  ", "text"))


class KeyBar(Rows):
    """Shows the active bindings: help and quit always, then the first keys of the screen, other screens, the rest.

    Keys that are forbidden at present are dim; pressing one tells why.
    """

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._ends: list[tuple[int, str]] = []

    def on_mount(self) -> None:
        """Redraw whenever the bindings change."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def on_resize(self) -> None:
        """Redraw, since another number of keys may fit."""
        self._changed(self.screen)

    def _changed(self, screen: Screen[Any]) -> None:
        if self.is_attached and self.size.width:
            self._show(list(screen.active_bindings.values()))

    def _show(self, active: Sequence[ActiveBinding]) -> None:
        shown = [each.binding for each in active if each.binding.show]
        off = {each.binding.action for each in active if not each.enabled}
        unique = {binding.action: binding for binding in reversed(shown)}
        ordered = [binding for binding in shown if unique.get(binding.action) is binding]
        here = f"screen.{getattr(self.screen, 'ENTRY', '')}"

        words: dict[str | None, str] = getattr(self.screen, "key_words", dict)()

        first: Sequence[str] = getattr(self.screen, "first_keys", tuple)()
        after = 1 + len(first)

        def rank(index: int) -> int:
            name = ordered[index].id or ""
            if name in _LAST:
                return 0
            if name in first:
                return 1 + first.index(name)
            if name in _SELDOM:
                return after + 3
            return after if name.startswith("screen.") else after + 1 if name.startswith("finding.") else after + 2

        parts: dict[int, Line] = {}
        room = self.size.width - 1
        for index in sorted(range(len(ordered)), key=lambda index: (rank(index), index)):
            binding = ordered[index]
            if binding.id == here:
                continue
            key = self.app.get_key_display(binding)
            enabled = binding.action not in off
            part = _part(key, words.get(binding.id, binding.description), enabled=enabled)
            if width_of(part) - 2 > room:
                part = _part(key, binding.description, enabled=enabled)
            if width_of(part) - 2 > room:
                break
            room -= width_of(part)
            parts[index] = part
        spans: list[Span] = [(" ", "text")]
        self._ends = []
        for index in sorted(parts):
            spans += parts[index]
            self._ends.append((width_of(spans) - 1, ordered[index].key))
        # The gap behind the last key may not fit.
        self.show([tuple(spans[:-1] if parts else spans)])

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        for end, key in self._ends:
            if event.x < end:
                self.app.simulate_key(key)
                return
