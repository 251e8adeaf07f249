"""A line to type in."""

from __future__ import annotations

from textual import events
from textual.widgets import Input


class Field(Input):
    """An input whose letters are typed by the app.

    Keys on their way to another widget when the field got the focus reach the app late. All letters take that way, so
    that they arrive in the order in which they were typed.
    """

    def on_key(self, event: events.Key) -> None:
        """Let letters pass."""
        if event.is_printable:
            event.prevent_default()
