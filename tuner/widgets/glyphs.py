"""Every symbol of the dashboard, once for terminals with Unicode and once in plain ASCII.

Colour alone carries no meaning: whatever is coloured also has its own glyph or a word beside it.
"""

from __future__ import annotations

from msgspec import Struct
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase

TERMS: tuple[str, ...] = ("weights", "loading", "kv", "graphs", "context", "other", "servers", "foreign")
"""Uses of GPU memory, in the order in which a bar stacks them."""
GUESTS = ("servers", "foreign")
"""Terms of memory that does not belong to the server on screen."""


class Glyphs(Struct, frozen=True, kw_only=True):
    """A complete set of symbols, one per meaning."""

    terms: dict[str, str]
    """Fill character of a memory bar, by term."""
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
    """A phase that is running."""
    separator: str
    """Separator between facts of a status line."""
    then: str
    """Arrow from one phase to the next."""
    rule: str
    """Horizontal line of a marker."""
    ellipsis: str
    thumb: str
    track: str
    cursor: str
    spark: str
    """Bars of a sparkline, from the lowest to the highest."""
    chart_marker: str
    """Name of a plotext marker, or the character to draw with."""
    degree: str
    dash: str
    times: str
    plus_minus: str
    note: str
    """Marks information that is no problem."""
    box: str
    """Box of a card: upper left, upper right, lower left, lower right corner, horizontal, vertical."""

    def link(self, phase: LinkPhase) -> str:
        """Return the symbol of a link state."""
        return {LinkPhase.UP: self.up, LinkPhase.STALE: self.stale, LinkPhase.DOWN: self.down}.get(phase, self.waiting)

    def phase(self, phase: Phase) -> str:
        """Return the symbol of a server's phase."""
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
    """Replaces the library's own symbols (borders, scrollbars, icons) in all output to the terminal.

    Letters of other scripts are kept: they are text, and a terminal that cannot show them is no worse off.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Translate each segment that is not ASCII; the width of each symbol is kept."""
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(_TABLE), segment.style, segment.control)
            for segment in segments
        ]
