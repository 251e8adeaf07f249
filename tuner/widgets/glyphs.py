"""Every sign the product draws, once for terminals with Unicode and once in plain ASCII.

A colour never carries meaning alone: whatever is coloured also has its own glyph here or a word beside it.
"""

from __future__ import annotations

from msgspec import Struct
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase

TERMS: tuple[str, ...] = ("weights", "loading", "kv", "graphs", "context", "other", "servers", "foreign")
"""What GPU memory is used for, in the order in which a bar stacks it."""
GUESTS = ("servers", "foreign")
"""The terms that are no part of the server on screen."""


class Glyphs(Struct, frozen=True, kw_only=True):
    """One sign per meaning."""

    terms: dict[str, str]
    """Fill of a memory bar, by term."""
    bar_left: str
    bar_right: str
    up: str
    waiting: str
    stale: str
    down: str
    ok: str
    warn: str
    bad: str
    busy: str
    """A phase that runs now."""
    separator: str
    """Between facts of a status line."""
    then: str
    """From one phase to the next."""
    rule: str
    """Horizontal line of a marker."""
    ellipsis: str
    thumb: str
    track: str
    cursor: str
    spark: str
    """Heights from lowest to highest."""
    chart_marker: str
    """Name or character of plotext's marker."""
    degree: str
    dash: str
    times: str
    plus_minus: str
    note: str
    """Worth knowing, and nothing wrong."""
    box: str
    """Corners and sides of a card: two corners above, two below, horizontal, vertical."""

    def link(self, phase: LinkPhase) -> str:
        """Sign of a link state."""
        return {LinkPhase.UP: self.up, LinkPhase.STALE: self.stale, LinkPhase.DOWN: self.down}.get(phase, self.waiting)

    def phase(self, phase: Phase) -> str:
        """Sign of a server phase."""
        if phase is Phase.READY:
            return self.ok
        if phase is Phase.FAILED:
            return self.bad
        if phase.starting:
            return self.busy
        return self.down if phase is Phase.STOPPED else self.stale


UNICODE = Glyphs(
    terms=dict(zip(TERMS, "█▚▒▓░·◇#", strict=True)),
    bar_left="▐",
    bar_right="▌",
    up="●",
    waiting="◌",
    stale="◐",
    down="○",
    ok="✔",
    warn="▲",
    bad="✖",
    busy="▶",
    separator="·",
    then="›",
    rule="─",
    ellipsis="…",
    thumb="█",
    track="│",
    cursor="▌",
    spark="▁▂▃▄▅▆▇█",
    chart_marker="hd",
    degree="°",
    dash="-",
    times="×",
    plus_minus="±",
    note="i",
    box="┌┐└┘─│",
)

ASCII = Glyphs(
    terms=dict(zip(TERMS, "WwKGcoS#", strict=True)),
    bar_left="[",
    bar_right="]",
    up="*",
    waiting=".",
    stale="~",
    down="x",
    ok="+",
    warn="!",
    bad="X",
    busy=">",
    separator="|",
    then=">",
    rule="-",
    ellipsis="~",
    thumb="#",
    track="|",
    cursor=">",
    spark="_.,-=+*#",
    chart_marker="*",
    degree="",
    dash="-",
    times="x",
    plus_minus="+-",
    note="i",
    box="++++-|",
)

_LOOKALIKES = (
    ("─━═╌╍┄┅┈┉╴╶╸╺", "-"),
    ("│┃║╎╏┆┇┊┋▏▕╵╷╹╻⎸⎹", "|"),
    ("┌┍┎┏┐┑┒┓└┕┖┗┘┙┚┛├┤┬┴┼┝┞┟┠┡┢┣┥┦┧┨┩┪┫╒╓╔╕╖╗╘╙╚╛╜╝╞╟╠╡╢╣╤╥╦╧╨╩╪╫╬╭╮╯╰", "+"),
    ("█▉▊▋▌▐▓▒▇▆▅▄▀▙▛▜▟■▪", "#"),
    ("▁▂▃▔▖▗▘▝░", " "),
    ("›▶▸►→▷❯", ">"),
    ("‹◀◂◄←◁❮", "<"),
    ("▲▴↑△", "^"),
    ("▼▾↓▽", "v"),
    ("●•◉⬤★", "*"),
    ("○◌◐◯☆", "o"),
    ("…", "~"),
    ("·‧∙", "."),
    ("–—−", "-"),
    ("‘’", "'"),
    ("“”", '"'),
    ("✔✓", "+"),
    ("✖✗✘×", "x"),
    ("🔎🔍", "? "),
)
_TABLE = {ord(char): ascii_char for chars, ascii_char in _LOOKALIKES for char in chars}


class AsciiFilter(LineFilter):
    """Replaces the library's own decoration (borders, scrollbars, icons) in whatever reaches the terminal.

    Letters of other scripts stay: they are text, and a terminal that cannot show them is no worse off.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Translate each segment that is not ASCII; each sign keeps its width."""
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(_TABLE), segment.style, segment.control)
            for segment in segments
        ]
