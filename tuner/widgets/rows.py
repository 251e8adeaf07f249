"""A widget that draws lines and repaints only those that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tuner.widgets.spans import STYLES, Line, text_of

_DIM = Style(dim=True)


def overlay(strip: Strip, style: Style) -> Strip:
    """Lay a style over what the strip already has (`Strip.apply_style` lays it under)."""
    segments = [Segment(text, had + style if had else style, control) for text, had, control in strip]
    return Strip(segments, strip.cell_length)


class Styled(Widget):
    """Has the closed list of styles as component classes, and draws lines in them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"styled--{name}" for name in STYLES}

    DEFAULT_CSS = """
    Styled {
        width: 1fr;
        .styled--text { color: $foreground; }
        .styled--dim { color: $foreground-muted; }
        .styled--strong { color: $foreground; text-style: bold; }
        .styled--head { color: $foreground-muted; }
        .styled--ok { color: $text-success; }
        .styled--warn { color: $text-warning; }
        .styled--bad { color: $text-error; text-style: bold; }
        .styled--busy { color: $text-accent; text-style: bold; }
        .styled--weights { color: $memory-weights; }
        .styled--kv { color: $memory-kv; }
        .styled--graphs { color: $memory-graphs; }
        .styled--context { color: $memory-context; }
        .styled--other { color: $memory-other; }
        .styled--foreign { color: $memory-foreign; text-style: bold; }
        .styled--chart { color: $memory-kv; }
        .styled--debug { color: $foreground-muted; }
        .styled--rank { color: $text-primary; }
        .styled--match { color: $background; background: $warning; }
        .styled--cursor { background: $block-cursor-blurred-background; }
        .styled--selected { color: $text-primary; text-style: bold reverse; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._style_cache: dict[str, Style] = {}
        self._dimmed = False

    def notify_style_update(self) -> None:
        """Forget styles when the theme changes."""
        self._style_cache.clear()
        super().notify_style_update()

    def style_named(self, name: str) -> Style:
        """A style of the closed list, as the theme has it."""
        try:
            return self._style_cache[name]
        except KeyError:
            style = self._style_cache[name] = self.get_component_rich_style(f"styled--{name}")
            return style

    def strip(self, line: Line, width: int) -> Strip:
        """A line as the terminal gets it, exactly `width` cells."""
        style_of = self.style_named
        if self._dimmed:
            segments = [Segment(text, style_of(name) + _DIM) for text, name in line]
        else:
            segments = [Segment(text, style_of(name)) for text, name in line]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def mark_selection(self, strip: Strip, y: int) -> Strip:
        """Show what the mouse has selected in content row `y`."""
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is None:
            return strip
        start, end = span
        end = strip.cell_length if end < 0 else min(end, strip.cell_length)
        if start >= end:
            return strip
        return Strip.join(
            [strip.crop(0, start), overlay(strip.crop(start, end), self.selection_style), strip.crop(end)]
        )

    @property
    def selection_style(self) -> Style:
        """Of text selected with the mouse."""
        return self.screen.get_component_rich_style("screen--selection")

    def selection_updated(self, selection: Selection | None) -> None:
        """Repaint when the selection changes."""
        self.refresh()


class Rows(Styled):
    """Draws a tuple of lines, one per row.

    `show` compares with what is on screen: equal rows cost nothing, changed ones are repainted alone, and only a
    change in their number asks for a new layout.
    """

    DEFAULT_CSS = """
    Rows { height: auto; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._lines: tuple[Line, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is shown now."""
        return self._lines

    @property
    def text(self) -> str:
        """What is shown now, without styles."""
        return "\n".join(text_of(line) for line in self._lines)

    def show(self, lines: Sequence[Line], *, dimmed: bool = False) -> None:
        """Show other lines.

        Args:
            lines: One per row; a line wider than the widget is cut by its edge.
            dimmed: The numbers are old.
        """
        old, new = self._lines, tuple(lines)
        repaint_all = dimmed != self._dimmed
        self._lines, self._dimmed = new, dimmed
        if len(old) != len(new):
            self.refresh(layout=True)
        elif repaint_all:
            self.refresh()
        else:
            changed = [Region(0, y, self.size.width, 1) for y in range(len(new)) if old[y] != new[y]]
            if changed:
                self.refresh(*changed)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """As wide as it may be."""
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """One row per line."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw one row."""
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        strip = self.strip(self._lines[y], width)
        return self.mark_selection(strip, y).apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text of selected rows, for the clipboard."""
        return selection.extract("\n".join(text_of(line).rstrip() for line in self._lines)), "\n"
