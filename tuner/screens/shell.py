"""The app as its screens see it: the state on screen, how old it is, and how to draw."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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

from tuner.core import runs
from tuner.core.run_words import holder_words, operator_name
from tuner.domain.link import LinkPhase
from tuner.domain.state import HostState, ServerState
from tuner.screens.replay import Player
from tuner.widgets.finding_words import new_failures
from tuner.widgets.glyphs import ASCII, UNICODE, AsciiFilter
from tuner.widgets.spans import clean
from tuner.widgets.tabs import HostTab, tab_of
from tuner.widgets.themes import THEMES, memory_colors

_SWITCH_S = 0.01
"""Most seconds for which painting is held back when the screen changes."""


def free_name(name: str, taken: Container[str]) -> str:
    """Return `name`, or `name (2)`, `name (3)`, ... if it is taken: two recordings may be of one host."""
    names = (name if count == 1 else f"{name} ({count})" for count in itertools.count(1))
    return next(each for each in names if each not in taken)


class Shell(App[None]):
    """The app without its sessions: the state on screen, and what all screens draw with.

    Args:
        ascii: Draw without box and block characters.
        theme: Name of a theme; None for the default.
        keymap: Keys by binding id, instead of the default ones.
        clock: Returns monotonic seconds; tests pass their own.
    """

    snapshot: var[HostState | None] = var(None)
    """Newest state of the host on screen."""
    server_key: var[str | None] = var(None)
    """Key of the server that the operator chose; None for none."""
    tick: var[int] = var(0)
    """Incremented when something besides `snapshot` must be drawn again: other hosts, the age of stale numbers."""

    def __init__(
        self,
        *,
        ascii: bool = False,  # noqa: A002
        theme: str | None = None,
        keymap: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The library asks for line filters and theme variables during its own initialisation.
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
        """Newest states by host; only the app writes here."""
        self.host = ""
        self.chosen: dict[str, str] = {}
        """Keys of the servers that the operator chose, by host; one that a run started takes the place of its old."""
        self._clock = clock
        self._fresh: dict[str, tuple[float, float]] = {}
        self._link_since: dict[str, float] = {}

    def server(self) -> ServerState | None:
        """Return the server on screen: the chosen one while it is known, else the first; None without servers."""
        servers = self.snapshot.servers if self.snapshot is not None else ()
        return next((each for each in servers if each.identity.key == self.server_key), servers[0] if servers else None)

    def age_s(self) -> float | None:
        """Return the seconds since the host on screen sent anything; None while the link is up or a replay is over."""
        state = self.snapshot
        if state is None or not self.stale() or self.host not in self._fresh:
            return None
        return max(0.0, self._clock() - self._fresh[self.host][1])

    def ended(self) -> bool:
        """Return whether the host on screen is a recording that was played to its end."""
        return self.snapshot is not None and self._has_ended(self.host, self.snapshot)

    def stale(self) -> bool:
        """Return whether the numbers on screen are old because the link is not up."""
        state = self.snapshot
        return state is not None and state.link.phase is not LinkPhase.UP and not self.ended()

    def retry_in_s(self) -> float | None:
        """Return the seconds until the next attempt to connect to the host on screen; None while none is planned."""
        wait = self.snapshot.link.retry_in_s if self.snapshot is not None else None
        return (
            None if wait is None else max(0.0, wait - (self._clock() - self._link_since.get(self.host, self._clock())))
        )

    def keep(self, host: str, state: HostState) -> None:
        """Store a newer state of a host, and when it came by our clock (the host's is not comparable)."""
        before = self.snapshots.get(host)
        if before is None or before.link != state.link:
            self._link_since[host] = self._clock()
        self.snapshots[host] = state
        new = runs.successor(before, state, self.chosen.get(host)) if before is not None else None
        if new is not None:
            self.chosen[host] = new
        self._tell_failures(host, before, state)
        lost = state.lease.lost_to
        if before is not None and before.lease.lost_to is None and lost is not None:
            self.notify(
                clean(f"{operator_name(lost)} took over: you can only watch {host} now"),
                severity="warning",
                timeout=15,
                markup=False,
            )
        if host not in self._fresh or state.mono > self._fresh[host][0]:
            self._fresh[host] = (state.mono, self._clock())

    def _tell_failures(self, host: str, before: HostState | None, state: HostState) -> None:
        """Notify about a server that failed, where the screen does not show it anyway."""
        shown = self.server() if host == self.host else None
        for key, words in new_failures(before, state).items():
            if shown is not None and shown.identity.key == key:
                if self.current_mode in ("overview", "findings"):
                    continue
                words += ". Press x to see why"
            elif host != self.host:
                words = f"{host}: {words}"
            self.notify(words, severity="error", timeout=10, markup=False)

    def bound(self) -> str:
        """Return why this session changes nothing on the host on screen, whoever holds the lease; empty if it may."""
        if self.player() is not None:
            return "A recording: there is no host to change"
        if self.read_only():
            return "Connected with --read-only: nothing on the host is changed"
        if self.snapshot is None or self.snapshot.link.phase is not LinkPhase.UP:
            return "The link is not up: nothing can be ordered"
        return ""

    def hindrance(self) -> str:
        """Return why nothing on the host on screen can be changed from here now, in one line; empty if it can."""
        if why := self.bound():
            return why
        state = self.snapshot
        other = holder_words(state.lease, state.now) if state is not None else ""
        return clean(other)

    def read_only(self) -> bool:
        """Return whether the session of the host on screen may change nothing."""
        return False

    def tabs(self) -> tuple[HostTab, ...]:
        """Return the tabs of all hosts."""
        return tuple(
            tab_of(name, state, chosen=name == self.host, ended=self._has_ended(name, state))
            for name, state in self.snapshots.items()
        )

    def player(self, host: str | None = None) -> Player | None:
        """Return the controls of a host that is a recording, else None; without a name those of the host on screen."""
        return None

    def _has_ended(self, host: str, state: HostState) -> bool:
        return state.link.phase is LinkPhase.DOWN and self.player(host) is not None

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run the action of a key, or notify why it does nothing."""
        done = await super().run_action(action, default_namespace, namespaces)
        name = parse(action)[1] if isinstance(action, str) else action[1]
        if not done and (why := self.idle_reason(name)):
            self.notify(why, timeout=2, markup=False)
        return done

    def idle_reason(self, action: str) -> str:
        """Return why an action would do nothing now; empty where no explanation is needed."""
        own: Callable[[str], str] | None = getattr(self.screen, "idle_reason", None)
        if own is not None and (why := own(action)):
            return why
        link = self.snapshot.link.phase if self.snapshot is not None else None
        if action == "reconnect" and self.player() is None and link in (LinkPhase.UP, LinkPhase.CONNECTING):
            return "The link is up" if link is LinkPhase.UP else "The link is being made"
        return {"next_server": "No other server here", "host": "Only one host"}.get(action, "")

    def on_key(self, event: events.Key) -> None:
        """Insert a letter into the focused input, also one that was typed just before the input got the focus."""
        if event.is_printable and event.character and isinstance(self.focused, Input):
            event.prevent_default()
            self.focused.replace(event.character, *self.focused.selection)

    def action_help_quit(self) -> None:
        """Tell which key quits (ctrl+c), in a single message however often it is pressed."""
        bindings = [active.binding for active in self.active_bindings.values()]
        key = next((self.get_key_display(binding) for binding in bindings if binding.id == "quit"), None)
        self.clear_notifications()
        self.notify(f"Press {key} to quit" if key else "Close this first: press esc", markup=False, timeout=3)

    def action_replay_pause(self) -> None:
        """Pause a replay, or continue it."""
        if (player := self.player()) is not None:
            (player.resume if player.paused else player.pause)()
            self.tick += 1

    def action_replay_speed(self, factor: float) -> None:
        """Multiply the speed of a replay by a factor."""
        if (player := self.player()) is not None:
            player.speed = min(1024.0, max(0.125, (player.speed or 1024.0) * factor))
            self.tick += 1

    def action_replay_seek(self, seconds: float) -> None:
        """Move forwards or backwards in a replay. One that has ended is played again up to there."""
        player = self.player()
        if player is None or (self.ended() and seconds > 0):
            return
        player.seek(max(0.0, player.position + seconds))
        if self.ended():
            self.action_replay_again()
        self.tick += 1

    def action_replay_again(self) -> None:
        """Play a replay that has ended again from its present position."""

    def _fatal_error(self) -> None:
        """Exit with the traceback of an error.

        Unlike the library's it has no local variables, since one may be a password.
        """
        self.bell()
        self.panic(Traceback(show_locals=False, width=None))

    def delay_update(self, delay: float = _SWITCH_S) -> None:
        """Hold painting back at a change of screen, but for less time than the library does, which would delay keys."""
        super().delay_update(min(delay, _SWITCH_S))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the colours of memory for themes that do not define them."""
        return memory_colors(dark=self.current_theme.dark)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the line filters; in ASCII mode one that replaces all other symbols, also the library's own."""
        filters = super().get_line_filters()
        return [*filters, AsciiFilter()] if self.glyphs is ASCII else filters

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield only the library's command for a screenshot: our own providers replace the others."""
        yield SystemCommand("Save a picture", "The screen as SVG", self.deliver_screenshot)
