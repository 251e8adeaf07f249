"""The command palette: screens, hosts and servers, themes, search, and every key by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

from textual import events, on
from textual.await_complete import AwaitComplete
from textual.binding import ActiveBinding, Binding
from textual.command import CommandList, CommandPalette, Hit, Hits, Provider, SearchIcon
from textual.content import Content
from textual.dom import DOMNode
from textual.widgets import Input, OptionList

from tuner.messages import HostRequested, ScreenRequested, ServerRequested
from tuner.screens.base import TunerScreen, fits
from tuner.screens.help import shown_keys
from tuner.screens.logs import LogsScreen
from tuner.widgets.spans import clean
from tuner.widgets.status import server_name
from tuner.widgets.themes import THEMES

Command = tuple[str, str, str, Callable[[], object]]
"""Name, key (empty for none), help text, and the function to run."""


class Palette(CommandPalette):
    """The library's palette, made robust against keys that arrive faster than it can follow."""

    def on_mount(self) -> None:
        """Replace the search icon: many fonts have no magnifying glass."""
        self.query_one(SearchIcon).icon = ">"

    def on_resize(self, event: events.Resize) -> None:
        """Close when the terminal gets too small: the screen below says so."""
        if not fits(event.size):
            self.dismiss()

    @property
    def _is_open(self) -> bool:
        return self.app.screen_stack[-1:] == [self]

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _once(self, event: OptionList.OptionSelected | Input.Submitted) -> None:
        """Ignore a second enter: it must neither run the command again nor close what is below."""
        if not self._is_open:
            event.stop()
            event.prevent_default()

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close; do nothing when closed already."""
        return super().dismiss(result) if self._is_open else AwaitComplete()

    def _action_command_list(self, action: str) -> None:
        """Ignore page keys before the list is laid out, since it cannot scroll then."""
        if not action.startswith("page_") or self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)


class ListProvider(Provider):
    """A provider whose commands can be listed."""

    RANK: ClassVar[float] = 0.0
    """Position of the provider's commands in an empty palette, the greatest first."""

    def commands(self) -> Iterator[Command]:
        """Yield all commands, in display order."""
        yield from ()

    def first(self) -> Iterator[Command]:
        """Yield the commands that an empty palette lists."""
        return self.commands()

    def key_of(self, binding_id: str) -> str:
        """Return the key of a binding that works now; empty if there is none."""
        active = (each.binding for each in self.screen.active_bindings.values())
        return next((_shown(each) for each in active if each.id == binding_id), "")

    async def discover(self) -> Hits:
        """Yield what an empty palette shows."""
        for name, key, help_text, run in self.first():
            yield Hit(self.RANK, _with_key(Content(name), key), run, text=name, help=help_text)

    async def search(self, query: str) -> Hits:
        """Yield the commands that match the typed text."""
        matcher = self.matcher(query)
        for name, key, help_text, run in self.commands():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, _with_key(matcher.highlight(name), key), run, text=name, help=help_text)


def _shown(binding: Binding) -> str:
    return binding.key_display or shown_keys(binding.key)


def _with_key(name: Content, key: str) -> Content:
    return Content.assemble(name, ("  ", ""), (key, "not bold $text-accent")) if key else name


class ScreenCommands(ListProvider):
    """Commands for going to a screen."""

    RANK = 4.0

    def commands(self) -> Iterator[Command]:
        """Yield a command for each screen of the registry."""
        from tuner.screens import SCREENS  # the registry imports the screens, which offer these commands

        for entry in SCREENS:
            run = partial(self.app.post_message, ScreenRequested(entry.name))
            yield f"Go to {entry.title}", self.key_of(f"screen.{entry.name}"), entry.help, run


class HostCommands(ListProvider):
    """Commands for going to a host, or to a server of the host on screen."""

    RANK = 2.0

    def commands(self) -> Iterator[Command]:
        """Yield the hosts, then the servers."""
        screen = self.screen
        if not isinstance(screen, TunerScreen):
            return
        for tab in screen.shell.tabs():
            about = "a recording that has ended" if tab.ended else f"link {tab.word}"
            yield f"Host {clean(tab.name)}", "", about, partial(self.app.post_message, HostRequested(tab.name))
        for server in screen.shell.snapshot.servers if screen.shell.snapshot else ():
            run = partial(self.app.post_message, ServerRequested(server.identity.key))
            yield f"Server {clean(server_name(server))} pid {server.identity.pid}", "", str(server.phase), run


class ThemeCommands(ListProvider):
    """Commands for changing the theme."""

    RANK = 1.0

    def commands(self) -> Iterator[Command]:
        """Yield a command for each theme."""
        for name in sorted(self.app.available_themes):
            yield f"Theme {name}", "", "Change the colours", partial(setattr, self.app, "theme", name)

    def first(self) -> Iterator[Command]:
        """Yield the themes of this app; those of the library are found by typing."""
        names = [theme.name for theme in THEMES]
        return (command for command in self.commands() if command[0].removeprefix("Theme ") in names)


class KeyCommands(ListProvider):
    """Commands for every key that works at present."""

    RANK = 3.0

    def commands(self) -> Iterator[Command]:
        """Yield the enabled bindings, except those for screens, which have commands of their own."""
        listed: dict[tuple[str, DOMNode], list[ActiveBinding]] = {}
        for active in self.screen.active_bindings.values():
            listed.setdefault((active.binding.action, active.node), []).append(active)
        # Keys of the screen come before keys for moving in its widgets.
        for active, *more in sorted(listed.values(), key=lambda each: not isinstance(each[0].node, TunerScreen)):
            binding = active.binding
            if (
                active.enabled
                and binding.description
                and not binding.system
                and binding.id
                and not binding.id.startswith("screen.")
            ):
                run = partial(self.app.run_action, binding.action, active.node)
                keys = " ".join(_shown(each.binding) for each in (active, *more))
                yield binding.description, keys, binding.tooltip, run


class SearchCommands(Provider):
    """The command `search TEXT`, which finds a text in the log."""

    async def search(self, query: str) -> Hits:
        """Offer to search the log for the typed text."""
        text = query.removeprefix("search ").removeprefix("/").strip()
        if text:
            name = f"Search the log for {text}"
            score = 1.0 if query.startswith(("search ", "/")) else 0.05
            yield Hit(
                score, Content(name), partial(self._run, text), text=name, help="In what is held, then on the host"
            )

    async def _run(self, text: str) -> None:
        app = self.app
        await app.switch_mode("logs")
        screen = app.screen
        if isinstance(screen, LogsScreen):
            screen.call_after_refresh(screen.search, text)
