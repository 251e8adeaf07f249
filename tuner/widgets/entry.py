"""The line of a log to type in: a text that shown lines contain, or what to search for."""

from __future__ import annotations

from textual.message import Message
from textual.widgets import Input

from tuner.widgets.field import Field


class Entry(Field):
    """Hidden until it is opened for one of its two purposes."""

    DEFAULT_CSS = """
    Entry { height: 1; border: none; background: $surface; }
    """

    class Filtered(Message):
        """The text that shown lines shall contain, at each letter."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Done(Message):
        """Enter was pressed. `search` is what to search for; empty where it filtered."""

        def __init__(self, search: str) -> None:
            super().__init__()
            self.search = search

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, compact=True, select_on_focus=False)
        self.display = False
        self.regex = False
        """What is searched for is a regular expression."""
        self._purpose = ""

    @property
    def _hint(self) -> str:
        if self._purpose == "filter":
            return "show lines with (enter: done)"
        return f"{'regular expression' if self.regex else 'search'} (enter: done, escape: leave, ctrl+r: regex)"

    def open_filter(self, text: str) -> None:
        """Take a text that shown lines contain, beginning with the one they contain now."""
        self._open("filter", text)

    def open_search(self) -> None:
        """Take what to search for."""
        self._open("search", "")

    def _open(self, purpose: str, text: str) -> None:
        self._purpose = ""
        self.value = text
        self._purpose = purpose
        self.placeholder = self._hint
        self.display = True
        # At once: the next letter may be on its way already.
        self.screen.set_focus(self)

    def close(self) -> None:
        """Hide it."""
        self.display = False
        self._purpose = ""

    def toggle_regex(self) -> bool:
        """Search for regular expressions, or for plain text. Returns which it is now."""
        self.regex = not self.regex
        self.placeholder = self._hint
        return self.regex

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        if self._purpose == "filter":
            self.post_message(self.Filtered(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Done typing."""
        event.stop()
        self.post_message(self.Done(event.value if self._purpose == "search" else ""))
