"""The input line of a log, for a filter text or a search term."""

from __future__ import annotations

from textual.message import Message
from textual.widgets import Input

from tuner.widgets.field import Field


class Entry(Field):
    """An input that is hidden until it is opened for filtering or searching."""

    DEFAULT_CSS = """
    Entry { height: 1; border: none; background: $surface; }
    """

    class Filtered(Message):
        """The filter text has changed; sent at each letter."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Done(Message):
        """Enter was pressed. `search` is the term to search for; empty where the line was open for filtering."""

        def __init__(self, search: str) -> None:
            super().__init__()
            self.search = search

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, compact=True, select_on_focus=False)
        self.display = False
        self.regex = False
        """True where the search term is a regular expression."""
        self._purpose = ""

    @property
    def _hint(self) -> str:
        if self._purpose == "filter":
            return "show lines with (enter: done)"
        return f"{'regular expression' if self.regex else 'search'} (enter: done, escape: leave, ctrl+r: regex)"

    def open_filter(self, text: str) -> None:
        """Open the line for a filter, starting from the present filter text."""
        self._open("filter", text)

    def open_search(self) -> None:
        """Open the line for a search term."""
        self._open("search", "")

    def _open(self, purpose: str, text: str) -> None:
        self._purpose = ""
        self.value = text
        self._purpose = purpose
        self.placeholder = self._hint
        self.display = True
        # The focus moves at once, because the next letter may already be on its way.
        self.screen.set_focus(self)

    def close(self) -> None:
        """Hide the line."""
        self.display = False
        self._purpose = ""

    def toggle_regex(self) -> bool:
        """Switch between regular expressions and plain text; return whether it is regular expressions now."""
        self.regex = not self.regex
        self.placeholder = self._hint
        return self.regex

    def on_input_changed(self, event: Input.Changed) -> None:
        """Send the filter text while it is typed."""
        event.stop()
        if self._purpose == "filter":
            self.post_message(self.Filtered(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send the search term when enter is pressed."""
        event.stop()
        self.post_message(self.Done(event.value if self._purpose == "search" else ""))
