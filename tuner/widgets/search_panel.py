"""The hits of a search on the host, newest first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tuner.domain.logs import LogHit
from tuner.messages import SearchRequested
from tuner.units import format_bytes
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, Span, clean, clip, spread, width_of

HITS_MAX = 500
_WIDE = 110
_BESIDES = 64
"""Cells of the heading that are not available to the pattern."""


def regex_problem(pattern: str) -> str:
    """Return why a text is no regular expression, in one line; empty if it is one."""
    try:
        re.compile(pattern)
    except RecursionError:
        return "it is nested too deeply"
    except (re.error, OverflowError) as error:
        return str(error)
    return ""


class SearchPanel(Vertical):
    """The progress of a search and its hits; hidden until there is a search."""

    DEFAULT_CSS = """
    SearchPanel {
        height: auto;
        display: none;
        &.-open { display: block; }
        #hits-head { background: $surface; }
        #hits { height: auto; max-height: 9; border: none; padding: 0; background: $background; }
    }
    """

    class Chosen(Message):
        """A hit was chosen."""

        def __init__(self, hit: LogHit) -> None:
            super().__init__()
            self.hit = hit

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs
        self.asked: SearchRequested | None = None
        """The search that the hits belong to; None while there is none."""
        self._hits: list[LogHit] = []
        self._held = 0

    def compose(self) -> ComposeResult:
        """Make the heading and the list."""
        yield Rows(id="hits-head")
        yield OptionList(id="hits", markup=False)

    @property
    def open(self) -> bool:
        """Return whether the panel is shown."""
        return self.has_class("-open")

    def begin(self, asked: SearchRequested) -> None:
        """Show the panel for a new search, without the hits of an earlier one."""
        self.asked, self._hits = asked, []
        self.query_one(OptionList).clear_options()
        self.add_class("-open")
        self._head(0, done=False, error=None)

    def close(self) -> None:
        """Hide the panel."""
        self.asked = None
        self.remove_class("-open")

    def progress(
        self, hits: Sequence[LogHit], scanned_bytes: int, *, done: bool, error: str | None, held: int = 0
    ) -> bool:
        """Add hits.

        Args:
            hits: The new hits.
            scanned_bytes: Bytes of the log that were searched so far.
            done: The search has ended.
            error: Why the host could not search all of the log; None where it could.
            held: Number of matching lines held here; shown beside the hits when the host could not search.

        Returns:
            Whether these are the first hits.
        """
        first = not self._hits
        new = hits[: max(0, HITS_MAX - len(self._hits))]
        self._hits.extend(new)
        self._held = held
        options = self.query_one(OptionList)
        # The panel has no size yet when the first hits come.
        width = max(20, self.app.size.width - 4)
        texts = [self._shown(clean(hit.text), width) for hit in new]
        options.add_options([Option(Text(text, no_wrap=True)) for text in texts])
        self._head(scanned_bytes, done=done, error=error)
        if first and new:
            options.highlighted = 0
        return first and bool(new)

    def _shown(self, text: str, width: int) -> str:
        """Return a line, cut so that the match is visible."""
        asked, ellipsis = self.asked, self._glyphs.ellipsis
        # A regular expression is not run here: it may take minutes on one line.
        at = -1 if asked is None or asked.regex else text.lower().find(asked.pattern.lower())
        end = at + len(asked.pattern) if asked is not None else 0
        if at >= 0 and end >= width:
            text = ellipsis + text[min(at, end - width // 2) :]
        return clip(text, width, ellipsis)

    def step(self, step: int) -> LogHit | None:
        """Select the hit `step` rows on (1: older, -1: newer, 0: the present one) and return it; None at an end."""
        options = self.query_one(OptionList)
        at = (options.highlighted or 0) + step
        if not 0 <= at < len(self._hits):
            return None
        options.highlighted = at
        return self._hits[at]

    def focus_hits(self) -> None:
        """Move the focus to the list of hits."""
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Report the hit that was chosen by enter or a click."""
        event.stop()
        self.post_message(self.Chosen(self._hits[event.option_index]))

    def _head(self, scanned_bytes: int, *, done: bool, error: str | None) -> None:
        glyphs, found, width = self._glyphs, len(self._hits), self.app.size.width
        pattern = self.asked.pattern if self.asked is not None else ""
        count = f"{found}{'+' if found >= HITS_MAX else ''} hit{'' if found == 1 else 's'}"
        if error:
            count = f"{self._held} here, {found} on the host" if self._held else f"{count} on the host"
        words = clip(clean(pattern), max(10, width - _BESIDES), glyphs.ellipsis)
        left: list[Span] = [(f' "{words}"  ', "strong"), (count, "text")]
        if error:
            left.append((f"  {glyphs.warn} {clean(error)}", "warn"))
        elif done:
            where = " on the host" if width >= _WIDE else ""
            left.append((f"  {glyphs.ok} {format_bytes(scanned_bytes)} searched{where}", "ok"))
        else:
            left.append((f"  {glyphs.busy} searching {glyphs.ellipsis} {format_bytes(scanned_bytes)}", "busy"))
        keys = "enter go there  n N next  esc close " if found else "n N next  esc close "
        if width >= _WIDE:
            keys = f"newest first  {keys}"
        right: Line = ((keys, "dim"),)
        if error and width_of(left) + width_of(right) + 2 > width:
            # The reason takes more than one line: all key hints but the one for closing give way.
            right = (("esc close ", "dim"),)
        self.query_one(Rows).show([spread(left, right, width, glyphs.ellipsis)])
