"""A one-line text input that takes its letters through the app."""

from __future__ import annotations

from textual import events
from textual.widgets import Input


class Field(Input):
    """An input whose letters are inserted by the app.

    Keys that were on their way to another widget when the input got the focus reach the app late. All letters take that
    way, so that they arrive in the order in which they were typed.
    """

    def on_key(self, event: events.Key) -> None:
        """Leave printable characters to the app."""
        if event.is_printable:
            event.prevent_default()
