"""One tab per host, shown only when there are several: name, link and server in a sign each."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from textual import events
from textual.message import Message

from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase
from tuner.domain.state import HostState
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, Span, clean, width_of


class HostTab(Struct, frozen=True):
    """What a tab tells about its host."""

    name: str
    chosen: bool
    link: LinkPhase
    phase: Phase | None
    """Of the host's first server."""


def tab_of(name: str, state: HostState, *, chosen: bool) -> HostTab:
    """The tab of a host."""
    return HostTab(name, chosen, state.link.phase, state.servers[0].phase if state.servers else None)


class HostTabs(Rows):
    """The tab bar."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, host: str) -> None:
            super().__init__()
            self.host = host

    ALLOW_SELECT = False

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._glyphs = glyphs
        self._ends: list[tuple[int, str]] = []

    def show_tabs(self, tabs: Sequence[HostTab]) -> None:
        """Show these hosts; one alone needs no tab."""
        if len(tabs) < 2:
            self.show([])
            return
        spans: list[Span] = [(" ", "text")]
        self._ends = []
        for tab in tabs:
            glyphs = self._glyphs
            link_style = {LinkPhase.UP: "ok", LinkPhase.DOWN: "bad"}.get(tab.link, "warn")
            word = "" if tab.link is LinkPhase.UP else f" {tab.link}"
            if tab.chosen:
                spans.append((f"[{clean(tab.name)}", "strong"))
            else:
                spans.append((f" {clean(tab.name)}", "dim"))
            spans.append((f" {glyphs.link(tab.link)}{word}", link_style))
            if tab.phase is not None:
                style = "ok" if tab.phase is Phase.READY else "bad" if tab.phase is Phase.FAILED else "busy"
                spans.append((f" {glyphs.phase(tab.phase)} {'starting' if tab.phase.starting else tab.phase}", style))
            spans.append(("]" if tab.chosen else " ", "strong"))
            spans.append(("  ", "text"))
            self._ends.append((width_of(spans), tab.name))
        line: Line = (*spans, ("[ ] other host", "dim"))
        self.show([line])

    def on_click(self, event: events.Click) -> None:
        """Choose the tab under the mouse."""
        for end, name in self._ends:
            if event.x < end:
                self.post_message(self.Chosen(name))
                return
