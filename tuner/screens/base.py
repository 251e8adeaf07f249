"""The base of all screens: newest state, host tabs, key bar, and a message when the terminal is too small."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.geometry import Size
from textual.screen import Screen

from tuner.domain.state import HostState, ServerState
from tuner.messages import HostRequested
from tuner.screens.replay import replay_lines
from tuner.screens.shell import Shell
from tuner.widgets import status
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.keybar import KeyBar
from tuner.widgets.rows import Rows
from tuner.widgets.run_panel import run_line
from tuner.widgets.tabs import HostTabs

NEEDED = (80, 24)
"""Least columns and lines with which a screen can be drawn."""


def fits(size: Size) -> bool:
    """Return whether a terminal of this size is large enough."""
    return size.width >= NEEDED[0] and size.height >= NEEDED[1]


class TunerScreen(Screen[None]):
    """Base of the screens in the registry.

    A screen in the background ignores new states and catches up when it is shown again.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy", "Copy", show=False, id="copy", tooltip="Copy the selected text, or what matters here"),
    ]
    ENTRY = ""
    """The screen's name in the registry."""
    HELP_TITLE = "Every screen"
    """Heading of this screen's keys in the help."""

    COPIES = ""
    """Name of what `copy_text` returns, for the notification."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[Any, ...]] = {}

    @property
    def shell(self) -> Shell:
        """Return the app, as far as screens may use it."""
        return cast(Shell, self.app)

    @property
    def glyphs(self) -> Glyphs:
        """Return the symbols to draw with."""
        return self.shell.glyphs

    def compose(self) -> ComposeResult:
        """Make the frame around the screen's content."""
        yield HostTabs(self.glyphs, id="tabs")
        with Container(id="content"):
            yield from self.compose_content()
        yield Rows(id="too-small")
        yield Rows(id="replay")
        yield KeyBar(id="keys")

    def compose_content(self) -> ComposeResult:
        """Make the widgets of this screen."""
        yield from ()

    def on_mount(self) -> None:
        """Watch the app's state."""
        for name in ("snapshot", "server_key", "tick"):
            self.watch(self.app, name, self.catch_up, init=False)

    def on_screen_resume(self) -> None:
        """Draw what changed in the background, once sizes are known."""
        self.call_after_refresh(self.redraw_all)

    def on_resize(self, event: events.Resize) -> None:
        """Show the size that is needed, or draw for the new one."""
        small = not fits(event.size)
        self.set_class(small, "-too-small")
        if small:
            # Short lines, each of which a very narrow terminal shows whole.
            needed = f"gputuner needs {NEEDED[0]}x{NEEDED[1]}"
            has = f"this terminal has {event.size.width}x{event.size.height}"
            self.query_one("#too-small", Rows).show(
                [((needed, "warn"),), ((has, "warn"),), (("Make it larger; q quits", "dim"),)]
            )
        self.call_after_refresh(self.redraw_all)

    def redraw_all(self) -> None:
        """Draw everything again, changed or not."""
        self._seen.clear()
        self.catch_up()

    def catch_up(self) -> None:
        """Draw what changed, if the screen is visible."""
        if not self.is_current or not self.is_mounted or self.has_class("-too-small"):
            return
        self.query_one(HostTabs).show_tabs(self.shell.tabs())
        self.query_one("#replay", Rows).show(replay_lines(self.shell.player(), ended=self.shell.ended()))
        self.draw(self.shell.snapshot, self.shell.server())

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Draw the state. Unchanged parts are the same objects, so `changed` can compare by identity."""

    def draw_status(self, state: HostState, server: ServerState | None) -> None:
        """Draw the first lines (host, server, link; a change that goes on) into the `Rows` with the id `status`."""
        shell = self.shell
        line = status.status_line(
            state,
            server,
            self.size.width,
            self.glyphs,
            age_s=shell.age_s(),
            retry_in_s=shell.retry_in_s(),
            ended=shell.ended(),
        )
        run = run_line(state, self.size.width, self.glyphs, here=self.ENTRY == "tune")
        self.query_one("#status", Rows).show([line, run] if run else [line])

    def changed(self, name: str, *parts: Any) -> bool:
        """Return whether any of the parts is another object than at the last call with this name."""
        before = self._seen.get(name)
        self._seen[name] = parts
        if before is None or len(before) != len(parts):
            return True
        return any(
            old is not new and not (isinstance(new, (int, float, str)) and old == new)
            for old, new in zip(before, parts, strict=True)
        )

    def action_copy(self) -> None:
        """Copy the selected text, or else what `copy_text` returns."""
        selected = self.get_selected_text()
        self.put_on_clipboard(selected or self.copy_text(), "" if selected else self.COPIES)

    def put_on_clipboard(self, text: str, what: str = "") -> None:
        """Copy a text through the terminal (OSC 52), and tell what was copied and how many lines."""
        if not text:
            self.notify("Nothing to copy here", severity="warning", timeout=3)
            return
        self.app.copy_to_clipboard(text)
        count = text.count("\n") + 1
        lines = f"{count} line{'s' if count > 1 else ''}"
        self.notify(f"Copied {what}, {lines}" if what else f"Copied {lines}", timeout=2, markup=False)

    def copy_text(self) -> str:
        """Return what is copied when nothing is selected."""
        return ""

    def idle_reason(self, action: str) -> str:
        """Return why an action of this screen would do nothing now; empty where no explanation is needed."""
        return ""

    def key_words(self) -> dict[str, str]:
        """Return descriptions for the key bar that differ from the binding's own, by binding id."""
        return {}

    def scroll_to_heading(self, box: str, headings: Iterable[int], step: int) -> None:
        """Scroll a box to the next of some lines, or to the one before where `step` is negative; not past the last."""
        there = round(self.query_one(box).scroll_y)
        ahead = [line for line in headings if (line > there if step > 0 else line < there)]
        if ahead:
            self.query_one(box).scroll_to(y=ahead[0 if step > 0 else -1], animate=False)

    def show_place(self, at: int) -> None:
        """Show a byte offset of the log, on screens with a log."""

    def on_host_tabs_chosen(self, message: HostTabs.Chosen) -> None:
        """Request the host whose tab was clicked."""
        message.stop()
        self.post_message(HostRequested(message.host))
