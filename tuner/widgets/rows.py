"""A widget that draws lines and repaints only those that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tuner.widgets.spans import Line, text_of

_DIM = Style(dim=True)


def overlay(strip: Strip, style: Style) -> Strip:
    """Return a strip with a style that takes precedence over its own (`Strip.apply_style` does the opposite)."""
    segments = [Segment(text, had + style if had else style, control) for text, had, control in strip]
    return Strip(segments, strip.cell_length)


class Look(Struct, frozen=True):
    """A text style, in names of theme variables."""

    color: str
    bold: bool = False
    background: str = ""


LOOKS: dict[str, Look] = {
    "text": Look("foreground"),
    "dim": Look("foreground-muted"),
    "strong": Look("foreground", bold=True),
    "head": Look("foreground-muted"),
    "ok": Look("text-success"),
    "warn": Look("text-warning"),
    "bad": Look("text-error", bold=True),
    "busy": Look("text-accent", bold=True),
    "weights": Look("memory-weights"),
    "loading": Look("memory-weights"),
    "kv": Look("memory-kv"),
    "graphs": Look("memory-graphs"),
    "context": Look("memory-context"),
    "other": Look("memory-other"),
    "servers": Look("memory-servers"),
    "foreign": Look("memory-foreign", bold=True),
    "chart": Look("memory-kv"),
    "debug": Look("foreground-muted"),
    "rank": Look("text-primary"),
    "match": Look("background", background="warning"),
    "cursor": Look("foreground", background="block-cursor-blurred-background"),
}
"""All styles, by name.

They are no component classes: the library would match selectors for each of them on each widget at every change of
screen, which takes a tenth of a second.
"""


def theme_color(variables: Mapping[str, str], name: str, over: Color) -> Color:
    """Return a theme variable as a colour on a background; a variable may have an opacity (`#d5d9e3 60%`)."""
    base, _, opacity = variables[name].partition(" ")
    color = Color.parse(base)
    if opacity.endswith("%"):
        color = color.with_alpha(float(opacity[:-1]) / 100)
    return color if color.ansi is not None else over + color


class Styled(Widget):
    """A widget that draws lines in the styles of `LOOKS`."""

    DEFAULT_CSS = """
    Styled { width: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._style_cache: dict[str, Style] = {}
        self.style_version = 0
        """Incremented when styles change; whoever caches strips compares it."""
        self._dimmed = False

    def notify_style_update(self) -> None:
        """Drop cached styles when the theme changes."""
        self._forget_styles()
        super().notify_style_update()

    def _forget_styles(self) -> None:
        self._style_cache.clear()
        self.style_version += 1

    def style_named(self, name: str) -> Style:
        """Return a style of `LOOKS` in the colours of the theme; dimmed while the numbers are stale."""
        try:
            return self._style_cache[name]
        except KeyError:
            style = self._style(LOOKS[name])
            if self._dimmed:
                style += _DIM
            self._style_cache[name] = style
            return style

    def _style(self, look: Look) -> Style:
        variables = self.app.theme_variables
        under = self.background_colors[1]
        if look.background:
            under = theme_color(variables, look.background, under)
        color = theme_color(variables, look.color, under)
        return Style(color=color.rich_color, bgcolor=under.rich_color, bold=look.bold or None)

    @property
    def base_style(self) -> Style:
        """Return the style of cells without text; cached, because the library computes `rich_style` at each use."""
        try:
            return self._style_cache[""]
        except KeyError:
            style = self._style_cache[""] = self.rich_style
            return style

    def set_dimmed(self, dimmed: bool) -> bool:
        """Dim everything, or nothing. Returns whether that is a change."""
        if dimmed == self._dimmed:
            return False
        self._dimmed = dimmed
        self._forget_styles()
        return True

    def strip(self, line: Line, width: int) -> Strip:
        """Return a line as a strip of exactly `width` cells."""
        style_of = self.style_named
        return Strip([Segment(text, style_of(name)) for text, name in line]).adjust_cell_length(width, self.base_style)

    def mark_selection(self, strip: Strip, y: int) -> Strip:
        """Highlight what is selected with the mouse in content row `y`."""
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
        """Return the style of text selected with the mouse."""
        return self.screen.get_component_rich_style("screen--selection")

    def selection_updated(self, selection: Selection | None) -> None:
        """Repaint when the selection changes."""
        self.refresh()


class Rows(Styled):
    """A widget that draws a tuple of lines, one per row.

    `show` compares with what is on screen: equal rows cost nothing, changed ones are repainted alone, and only a change
    in
    their number requests a new layout.
    """

    DEFAULT_CSS = """
    Rows { height: auto; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._lines: tuple[Line, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """Return the lines on screen."""
        return self._lines

    @property
    def text(self) -> str:
        """Return the lines on screen as text without styles."""
        return "\n".join(text_of(line) for line in self._lines)

    def show(self, lines: Sequence[Line], *, dimmed: bool = False) -> None:
        """Show other lines.

        Args:
            lines: One per row; a line wider than the widget is cut at its edge.
            dimmed: The numbers are stale.
        """
        old, new = self._lines, tuple(lines)
        repaint_all = self.set_dimmed(dimmed)
        self._lines = new
        if len(old) != len(new):
            self.refresh(layout=True)
        elif repaint_all:
            self.refresh()
        else:
            changed = [Region(0, y, self.size.width, 1) for y in range(len(new)) if old[y] != new[y]]
            if changed:
                self.refresh(*changed)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """Return the full width of the container."""
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw one row."""
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.base_style)
        strip = self.strip(self._lines[y], width)
        return self.mark_selection(strip, y).apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the text of the selected rows, for the clipboard."""
        return selection.extract("\n".join(text_of(line).rstrip() for line in self._lines)), "\n"
