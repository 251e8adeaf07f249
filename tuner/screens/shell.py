"""The app as its screens see it: what is on screen now, whose numbers they are, and how to draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.traceback import Traceback
from textual import events
from textual.actions import ActionParseResult, parse
from textual.app import App, SystemCommand
from textual.dom import DOMNode
from textual.filter import LineFilter
from textual.reactive import var
from textual.screen import Screen
from textual.widgets import Input

from tuner.domain.link import LinkPhase
from tuner.domain.state import HostState, ServerState
from tuner.screens.replay import Player
from tuner.widgets.finding_words import new_failures
from tuner.widgets.glyphs import ASCII, UNICODE, AsciiFilter
from tuner.widgets.tabs import HostTab, tab_of
from tuner.widgets.themes import THEMES, memory_colors

_SWITCH_S = 0.01
"""A screen that comes back is drawn by then."""


class Shell(App[None]):
    """State on screen and ways to draw; holds no session.

    Args:
        ascii: Draw without box and block characters.
        theme: Name of a theme; ours is the default.
        keymap: Keys by binding id, instead of the default ones.
        clock: Seconds, monotonic; tests give their own.
    """

    snapshot: var[HostState | None] = var(None)
    """Newest state of the host on screen."""
    server_key: var[str | None] = var(None)
    """The server on screen, where the operator chose one."""
    tick: var[int] = var(0)
    """Changes when something besides `snapshot` is to be drawn again: other hosts, the age of old numbers."""

    def __init__(
        self,
        *,
        ascii: bool = False,  # noqa: A002
        theme: str | None = None,
        keymap: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The library asks for line filters and theme variables while it is set up.
        self.glyphs = ASCII if ascii else UNICODE
        super().__init__()
        for ours in THEMES:
            self.register_theme(ours)
        self.theme = theme if theme in self.available_themes else THEMES[0].name
        self.animation_level = "none"
        self.keymap: Mapping[str, str] = dict(keymap or {})
        self.set_keymap(self.keymap)
        self.set_class(ascii, "-ascii")
        self.snapshots: dict[str, HostState] = {}
        """By host; only the app writes here."""
        self.host = ""
        self._clock = clock
        self._fresh: dict[str, tuple[float, float]] = {}
        self._link_since: dict[str, float] = {}

    def server(self) -> ServerState | None:
        """The server on screen: the chosen one while it is known, else the first."""
        servers = self.snapshot.servers if self.snapshot is not None else ()
        return next((each for each in servers if each.identity.key == self.server_key), servers[0] if servers else None)

    def age_s(self) -> float | None:
        """Seconds since the host on screen last said something; None while the link is up or a recording has ended."""
        state = self.snapshot
        if state is None or not self.stale() or self.host not in self._fresh:
            return None
        return max(0.0, self._clock() - self._fresh[self.host][1])

    def ended(self) -> bool:
        """Whether the host on screen is a recording that was played to its end."""
        return self.snapshot is not None and self._has_ended(self.host, self.snapshot)

    def stale(self) -> bool:
        """Whether the numbers on screen are not those of now: the link is not up."""
        state = self.snapshot
        return state is not None and state.link.phase is not LinkPhase.UP and not self.ended()

    def retry_in_s(self) -> float | None:
        """Seconds until the next attempt to reach the host on screen."""
        wait = self.snapshot.link.retry_in_s if self.snapshot is not None else None
        return (
            None if wait is None else max(0.0, wait - (self._clock() - self._link_since.get(self.host, self._clock())))
        )

    def keep(self, host: str, state: HostState) -> None:
        """Take in a newer state of a host, and when it came: the host's own clock is no measure of our waiting."""
        before = self.snapshots.get(host)
        if before is None or before.link != state.link:
            self._link_since[host] = self._clock()
        self.snapshots[host] = state
        self._tell_failures(host, before, state)
        if host not in self._fresh or state.mono > self._fresh[host][0]:
            self._fresh[host] = (state.mono, self._clock())

    def _tell_failures(self, host: str, before: HostState | None, state: HostState) -> None:
        """Say that a server failed, where that is not on screen anyway."""
        shown = self.server() if host == self.host else None
        for key, words in new_failures(before, state).items():
            if shown is not None and shown.identity.key == key:
                if self.current_mode in ("overview", "findings"):
                    continue
                words += ". Press x to see why"
            elif host != self.host:
                words = f"{host}: {words}"
            self.notify(words, severity="error", timeout=10, markup=False)

    def tabs(self) -> tuple[HostTab, ...]:
        """All hosts."""
        return tuple(
            tab_of(name, state, chosen=name == self.host, ended=self._has_ended(name, state))
            for name, state in self.snapshots.items()
        )

    def player(self, host: str | None = None) -> Player | None:
        """The controls of a host when it is a recording; without a name of the one on screen."""
        return None

    def _has_ended(self, host: str, state: HostState) -> bool:
        return state.link.phase is LinkPhase.DOWN and self.player(host) is not None

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Do what a key means, or say why it does nothing."""
        done = await super().run_action(action, default_namespace, namespaces)
        name = parse(action)[1] if isinstance(action, str) else action[1]
        if not done and (why := self.idle_reason(name)):
            self.notify(why, timeout=2)
        return done

    def idle_reason(self, action: str) -> str:
        """Why an action would do nothing now; empty where that needs no word."""
        link = self.snapshot.link.phase if self.snapshot is not None else None
        if action == "reconnect" and self.player() is None and link in (LinkPhase.UP, LinkPhase.CONNECTING):
            return "The link is up" if link is LinkPhase.UP else "The link is being made"
        return {"next_server": "No other server here", "host": "Only one host"}.get(action, "")

    def on_key(self, event: events.Key) -> None:
        """A letter belongs to the field that has the focus, also one that was typed just before it got it."""
        if event.is_printable and event.character and isinstance(self.focused, Input):
            event.prevent_default()
            self.focused.replace(event.character, *self.focused.selection)

    def action_help_quit(self) -> None:
        """Ctrl+C: say which key quits, in one message however often it is pressed."""
        bindings = [active.binding for active in self.active_bindings.values()]
        key = next((self.get_key_display(binding) for binding in bindings if binding.id == "quit"), None)
        self.clear_notifications()
        self.notify(f"Press {key} to quit" if key else "Close this first: press esc", markup=False, timeout=3)

    def action_replay_pause(self) -> None:
        """Pause a replay, or go on."""
        if (player := self.player()) is not None:
            (player.resume if player.paused else player.pause)()
            self.tick += 1

    def action_replay_speed(self, factor: float) -> None:
        """Change the speed of a replay."""
        if (player := self.player()) is not None:
            player.speed = min(1024.0, max(0.125, (player.speed or 1024.0) * factor))
            self.tick += 1

    def action_replay_seek(self, seconds: float) -> None:
        """Go on or back in a replay; one that has ended is played again up to there."""
        player = self.player()
        if player is None or (self.ended() and seconds > 0):
            return
        player.seek(max(0.0, player.position + seconds))
        if self.ended():
            self.action_replay_again()
        self.tick += 1

    def action_replay_again(self) -> None:
        """Play a replay that has ended from where it is now: its beginning, or where one went back to."""

    def _fatal_error(self) -> None:
        """End with the traceback of a fault. The library's has all locals in it: a password may be among them."""
        self.bell()
        self.panic(Traceback(show_locals=False, width=None))

    def delay_update(self, delay: float = _SWITCH_S) -> None:
        """Hold painting back at a change of screen, but not for as long as the library does: a key may not take it."""
        super().delay_update(min(delay, _SWITCH_S))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Memory colours for themes that are not ours."""
        return memory_colors(dark=self.current_theme.dark)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """In ASCII mode nothing else reaches the terminal, not even the library's borders."""
        filters = super().get_line_filters()
        return [*filters, AsciiFilter()] if self.glyphs is ASCII else filters

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Our providers replace the library's list, but for its screenshot."""
        yield SystemCommand("Save a picture", "The screen as SVG", self.deliver_screenshot)
