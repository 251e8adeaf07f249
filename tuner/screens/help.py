"""The help, generated from the bindings, which are the one source for help screen, docs/keys.md and palette."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from tuner.screens import SCREENS
from tuner.screens.base import TunerScreen
from tuner.screens.confirm import ConfirmDialog
from tuner.screens.dialogs import Modal
from tuner.screens.explained import FINDING_KEYS, ON_A_FINDING
from tuner.widgets.log_view import LogView
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, width_of

_SHOWN = {
    "slash": "/", "question_mark": "?", "left_square_bracket": "[", "right_square_bracket": "]", "full_stop": ".",
    "plus": "+", "minus": "-", "escape": "esc", "pageup": "page up", "pagedown": "page down", "equals_sign": "=",
    "less_than_sign": "<", "greater_than_sign": ">",
}  # fmt: skip

_COLUMN = 72
"""Width of a column of keys, in cells."""
_FRAME = 6
IN_A_LOG = "In a log"
"""Heading of the keys of a log view."""


BEFORE_A_CHANGE = "Before a change"
"""Heading of the keys of the question before a host is changed."""


class Key(Struct, frozen=True):
    """A documented binding."""

    id: str
    keys: str
    name: str
    tooltip: str


def shown_keys(keys: str) -> str:
    """Return a binding's keys in words: `up or k`."""
    return " or ".join(_SHOWN.get(key.strip(), key.strip()) for key in keys.split(","))


def keys_of(bindings: Iterable[BindingType], overrides: Mapping[str, str]) -> list[Key]:
    """Return the bindings of one class that have an id, with the operator's own keys instead of the defaults.

    Bindings with one explanation share an entry: `1 to 9`.
    """
    found: list[Key] = []
    for binding in bindings:
        if isinstance(binding, Binding) and binding.id:
            keys = shown_keys(overrides.get(binding.id, binding.key))
            last = found[-1] if found else None
            if last is not None and binding.tooltip and last.tooltip == binding.tooltip:
                found[-1] = Key(last.id, f"{last.keys.partition(' to ')[0]} to {keys}", last.name, last.tooltip)
            else:
                found.append(Key(binding.id, keys, binding.description, binding.tooltip))
    return found


def sections(
    sources: Sequence[tuple[str, Iterable[BindingType]]], overrides: Mapping[str, str]
) -> list[tuple[str, list[Key]]]:
    """Return lists of keys with headings; empty lists are left out."""
    listed = [(title, keys_of(bindings, overrides)) for title, bindings in sources]
    return [(title, keys) for title, keys in listed if keys]


def all_keys(
    everywhere: Iterable[BindingType],
    overrides: Mapping[str, str],
    *,
    first: Sequence[str] = (),
    without: Container[str] = (),
) -> list[tuple[str, list[Key]]]:
    """Return all documented keys, in lists with headings.

    Args:
        everywhere: The app's own bindings.
        overrides: The operator's keys, by binding id.
        first: Headings that come before the others.
        without: Binding ids to leave out.
    """
    sources: list[tuple[str, Iterable[BindingType]]] = [("Everywhere", everywhere)]
    sources += [(entry.screen.HELP_TITLE, entry.screen.BINDINGS) for entry in SCREENS]
    sources += [(ON_A_FINDING, FINDING_KEYS), (IN_A_LOG, LogView.BINDINGS), (BEFORE_A_CHANGE, ConfirmDialog.BINDINGS)]
    sources += [(TunerScreen.HELP_TITLE, TunerScreen.BINDINGS)]
    sources.sort(key=lambda source: source[0] not in first)
    return [(title, [key for key in keys if key.id not in without]) for title, keys in sections(sources, overrides)]


def markdown(listed: Sequence[tuple[str, Sequence[Key]]]) -> str:
    """Return the contents of docs/keys.md."""
    parts = [
        "# Keys",
        "",
        "Generated from the bindings; `?` shows the same in the app. The id is what a keymap names.",
    ]
    for title, keys in listed:
        parts += ["", f"## {title}", "", "| key | does | id |", "| --- | --- | --- |"]
        for key in keys:
            pressed = " or ".join(
                " to ".join(f"`{one}`" for one in keys.split(" to ")) for keys in key.keys.split(" or ")
            )
            parts.append(f"| {pressed} | {key.tooltip or key.name} | `{key.id}` |")
    return "\n".join(parts) + "\n"


class HelpScreen(Modal[None]):
    """The help screen: all keys, by where they work."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "close", "Close", id="help.close", tooltip="Close the help"),
    ]
    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        .help-text { height: auto; }
    }
    """

    def __init__(self, listed: Sequence[tuple[str, Sequence[Key]]]) -> None:
        super().__init__()
        self._listed = listed

    def compose(self) -> ComposeResult:
        """Make a scrolling list."""
        with Vertical(classes="dialog keys") as dialog:
            dialog.border_title = "Keys"
            with VerticalScroll(classes="help-text"):
                yield Rows(id="help-rows")
            yield Static("up and down scroll, esc closes, ctrl+p finds every command by name", classes="dialog-foot")

    def on_mount(self) -> None:
        """Focus the list, so that arrow keys scroll it."""
        self.query_one(VerticalScroll).focus()

    def on_resize(self, event: events.Resize) -> None:
        """Show the keys in one column, or in two where there is room."""
        blocks = [self._block(title, keys) for title, keys in self._listed]
        wide = event.size.width >= 2 * _COLUMN + _FRAME
        self.query_one(".dialog").set_class(wide, "two")
        at = min(range(len(blocks) + 1), key=lambda at: _higher(blocks[:at], blocks[at:])) if wide else len(blocks)
        left, right = _stacked(blocks[:at]), _stacked(blocks[at:])
        lines = [
            (*one, (" " * (_COLUMN - width_of(one)), "text"), *two) if two else one
            for one, two in itertools.zip_longest(left, right, fillvalue=())
        ]
        self.query_one(Rows).show(lines)
        # All lines except border and foot; the list scrolls beyond that.
        self.query_one(VerticalScroll).styles.max_height = max(1, event.size.height - (4 if wide else 3))

    def _block(self, title: str, keys: Sequence[Key]) -> list[Line]:
        rows: list[Line] = [((f"  {key.keys:<14} ", "busy"), (key.tooltip or key.name, "text")) for key in keys]
        return [((title, "strong"),), *rows]

    def action_close(self) -> None:
        """Close the help."""
        self.dismiss()


def _stacked(blocks: Sequence[Sequence[Line]]) -> list[Line]:
    """Return the lines of blocks below each other, with an empty line between them."""
    lines = [line for block in blocks for line in (*block, ())]
    return lines[:-1]


def _higher(left: Sequence[Sequence[Line]], right: Sequence[Sequence[Line]]) -> int:
    return max(len(_stacked(left)), len(_stacked(right)))
