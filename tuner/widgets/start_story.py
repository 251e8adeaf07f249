"""A start as a table: how long each rank took for each phase, and what its memory is used for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tuner.domain.comparison import where
from tuner.domain.findings import Finding, Outcome, failed_phase
from tuner.domain.server import START_PHASES, Phase
from tuner.domain.starts import Figure, PhaseSpan, RankStory, Start
from tuner.domain.state import ServerState
from tuner.units import format_duration, format_seconds
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.notes import group_name
from tuner.widgets.spans import Line, Span, clean, fit, text_width
from tuner.widgets.status import PHASE_NAMES

_ALIKE_GIB = 0.005
_ALIKE_S = 0.5
_ALIKE_SHARE = 0.02
"""Most by which phases of two ranks may differ, in seconds and as a share, if they are to share a row.

The memory of such ranks must also print alike.
"""
_ODD_GIB = 0.5


class Cell(Struct, frozen=True):
    """One number of a table."""

    text: str
    style: str = "text"


def outcome_span(start: Start, glyphs: Glyphs) -> Span:
    """Return the symbol and the word of a start's outcome."""
    return {
        Outcome.READY: (f"{glyphs.ok} READY", "ok"),
        Outcome.RUNNING: (f"{glyphs.busy} STARTING", "busy"),
        Outcome.FAILED: (f"{glyphs.bad} FAILED", "bad"),
        Outcome.STOPPED: (f"{glyphs.down} STOPPED", "warn"),
        Outcome.UNKNOWN: (f"{glyphs.stale} END NOT SEEN", "warn"),
    }[start.outcome]


def phases_of(start: Start) -> list[Phase]:
    """Return the phases that any rank went through, in the order of a start."""
    seen = {span.phase for rank in start.ranks for span in rank.phases}
    return [phase for phase in START_PHASES if phase in seen]


def took(start: Start) -> float | None:
    """Return the seconds between the first and the last line read of the start; None where either time is unknown."""
    return None if start.began is None or start.ended is None else max(0.0, start.ended - start.began)


def head_line(start: Start, width: int, glyphs: Glyphs, engine: str = "", findings: Sequence[Finding] = ()) -> Line:
    """Return outcome, engine, ranks and the most important settings as one line.

    Args:
        start: The start to show.
        width: Width of the line, in cells.
        glyphs: Symbols to draw with.
        engine: Name of the engine for people; empty for the engine's own.
        findings: Those about the start, the root cause first: it names the phase in which the start failed.
    """
    sign, style = outcome_span(start, glyphs)
    place = ""
    if start.outcome is Outcome.FAILED:
        phase = failed_phase(findings)
        reached = Phase.READY if start.ready_at is not None else start.phase
        place = f" in {phase}" if phase else where(reached)
    engine = engine or clean(start.engine)
    version = clean(start.version or "")
    if version and start.version_inferred:
        version = f"{version}, by its wording"
    fraction = start.setting("mem_fraction_static", "gpu_memory_utilization")
    parts: list[Line] = [
        ((f"{sign}{place}", style),),
        ((f"{engine} {version}".strip(), "text"),),
        ((f"{len(start.ranks)} ranks" if len(start.ranks) != 1 else "one rank", "text"),) if start.ranks else (),
        (("fraction ", "dim"), (str(fraction), "strong")) if fraction is not None else (),
        ((f"log of {format_duration(took(start))}", "dim"),) if took(start) else (),
        ((clean(start.files[0].rsplit("/", 1)[-1]), "dim"),) if start.files else (),
    ]
    return ((" ", "text"), *fit(parts, width - 2, (f" {glyphs.separator} ", "dim")))


def story_lines(
    start: Start,
    width: int,
    glyphs: Glyphs,
    server: ServerState | None = None,
    *,
    engine: str = "",
    folded: bool = False,
) -> list[Line]:
    """Return the heading and the tables; times and memory stand side by side where there is room.

    Args:
        start: The start to show.
        width: Width of a line, in cells.
        glyphs: Symbols to draw with.
        server: Server whose usual times are shown below; None for none.
        engine: Name of the engine for people; empty for the engine's own.
        folded: Ranks with equal values share a row.
    """
    own = server.findings if server is not None and server.start is start else ()
    lines = [head_line(start, width, glyphs, engine, own)]
    if not start.ranks:
        return [*lines, ((" the log tells nothing of its ranks", "dim"),)]
    groups = _groups(start) if folded else [(rank,) for rank in start.ranks]
    labels = [group_name([rank.tag for rank in group], len(start.ranks)) for group in groups]
    usual = server.usual.phases_s if server is not None else {}
    times, sizes = _times(start, groups, glyphs, usual), _sizes(start, groups)
    has_usual = any(phase in usual for phase in phases_of(start))
    if has_usual:
        labels.append("usually")
    label = max(4, *(text_width(each) for each in labels))
    both = [*times, _GAP, *sizes] if times and sizes else [*times, *sizes]
    if _width(both, label) <= width:
        return [*lines, *_table(labels, label, both)]
    lines += _tables(labels, label, times, width)
    if sizes:
        lines += [(), *_tables(labels[: len(groups)], label, sizes, width)]
    return lines


class Column(Struct, frozen=True):
    """A column of a table."""

    group: str
    head: str
    cells: list[Cell]
    gap: int = 2
    """Blank cells before the column."""

    @property
    def width(self) -> int:
        """Return the width in cells, with the gap before the column."""
        return self.gap + max(len(self.head), 4, *(len(cell.text) for cell in self.cells))


_GAP = Column("", "", [Cell("")])


def _width(columns: Sequence[Column], label: int) -> int:
    return 1 + label + sum(column.width for column in columns)


def _tables(labels: Sequence[str], label: int, columns: Sequence[Column], width: int) -> list[Line]:
    """Draw a table. If it is too wide, its columns move closer; those that still do not fit go below."""
    if _width(columns, label) > width:
        columns = [replace(column, gap=1) for column in columns]
    lines: list[Line] = []
    rest = list(columns)
    while rest:
        fits = max((n for n in range(1, len(rest) + 1) if _width(rest[:n], label) <= width), default=1)
        lines += [*([()] if lines else []), *_table(labels, label, rest[:fits])]
        del rest[:fits]
    return lines


def _table(labels: Sequence[str], label: int, columns: Sequence[Column]) -> list[Line]:
    """Draw two lines of headings (units, then names), and a row for each label."""
    groups, heads = "", f" {'rank'.ljust(label)}"
    seen = ""
    for column in columns:
        width = column.width
        if column.group and column.group != seen:
            groups = f"{groups.ljust(len(heads))}  {column.group}"
        heads += column.head.rjust(width)
        seen = column.group
    lines: list[Line] = [((groups.rstrip(), "head"),), ((heads, "head"),)]
    for at, text in enumerate(labels):
        style = "dim" if text == "usually" else "rank"
        cells = [column.cells[at] if at < len(column.cells) else Cell("") for column in columns]
        padded = [(cell.text.rjust(column.width), cell.style) for cell, column in zip(cells, columns, strict=True)]
        lines.append(((f" {text}{' ' * (label - text_width(text))}", style), *padded))
    return lines


Ranks = tuple[RankStory, ...]


def _groups(start: Start) -> list[Ranks]:
    """Group the ranks that went through the same phases in about the same time with the same memory."""
    groups: list[list[RankStory]] = []
    for rank in start.ranks:
        home = next((group for group in groups if _alike(group[0], rank)), None)
        if home is None:
            groups.append([rank])
        else:
            home.append(rank)
    return [tuple(group) for group in groups]


def _alike(one: RankStory, other: RankStory) -> bool:
    if [(span.phase, span.ended) for span in one.phases] != [(span.phase, span.ended) for span in other.phases]:
        return False
    sizes = all(_near(size.value(one), size.value(other), _ALIKE_GIB, 0.0) for size in _SIZES)
    return sizes and all(
        _near(a.seconds, b.seconds, _ALIKE_S, _ALIKE_SHARE) for a, b in zip(one.phases, other.phases, strict=True)
    )


def _near(one: float | None, other: float | None, by: float, share: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= max(by, share * abs(one))


def _times(
    start: Start, groups: Sequence[Ranks], glyphs: Glyphs, usual: Mapping[Phase, tuple[float, float]]
) -> list[Column]:
    """Return a column for each phase with its seconds; a group of ranks shows those of the slowest."""
    phases = phases_of(start)
    columns: list[Column] = []
    for phase in phases:
        cells: list[Cell] = []
        for group in groups:
            spans = [span for rank in group if (span := _whole(rank, phase)) is not None]
            slowest = max(spans, key=lambda span: span.seconds or 0.0, default=None)
            last = slowest is not None and any(rank.phases[-1].phase is phase for rank in group if rank.phases)
            cells.append(_time(slowest, start, glyphs, is_last=last))
        if any(each in usual for each in phases):
            cells.append(Cell(_range(usual.get(phase)), "dim"))
        columns.append(Column("seconds", PHASE_NAMES.get(phase, str(phase)), cells))
    return columns


def _whole(rank: RankStory, phase: Phase) -> PhaseSpan | None:
    """Return the total of a phase that comes in several parts, such as the capture of decode and of prefill graphs."""
    parts = [span for span in rank.phases if span.phase is phase]
    if not parts:
        return None
    told = [span.seconds for span in parts if span.seconds is not None]
    return replace(parts[-1], seconds=sum(told) if told else None)


def _range(times: tuple[float, float] | None) -> str:
    if times is None:
        return "-"
    low, high = format_seconds(times[0]), format_seconds(times[1])
    return low if low == high else f"{low}-{high}"


def _time(span: PhaseSpan | None, start: Start, glyphs: Glyphs, *, is_last: bool) -> Cell:
    if span is None:
        return Cell("-", "dim")
    text = format_seconds(span.seconds) if span.seconds is not None else ""
    if not span.ended and is_last:
        if start.outcome is Outcome.FAILED:
            return Cell(f"{glyphs.bad} {text}".strip(), "bad")
        if start.outcome is Outcome.RUNNING:
            return Cell(f"{glyphs.busy} {text}".strip(), "busy")
    return Cell(text or "-", "text" if text else "dim")


class _Size(Struct, frozen=True):
    head: str
    value: Callable[[RankStory], float | None]
    form: str = "{:.2f}"


def _value(figure: Figure | None) -> float | None:
    return figure.value if figure is not None else None


_SIZES = (
    _Size("free", lambda rank: _value(rank.before_weights or rank.total_gib)),
    _Size("NCCL", lambda rank: _value(rank.communicators_gib)),
    _Size("weights", lambda rank: _value(rank.weights_gib)),
    _Size("draft", lambda rank: _value(rank.draft_weights_gib)),
    _Size("then free", lambda rank: _value(rank.after_weights)),
    _Size("KV pool", lambda rank: _value(rank.kv_gib)),
    _Size("draft KV", lambda rank: _value(rank.draft_kv_gib)),
    _Size("mamba", lambda rank: _value(rank.mamba_gib)),
    _Size("tokens", lambda rank: _value(rank.kv_tokens), "{:,.0f}"),
    _Size("profiled", lambda rank: _value(rank.activation_gib)),
    _Size("graphs", lambda rank: rank.graphs_gib),
    _Size("last free", lambda rank: _value(rank.last_available)),
)


def _sizes(start: Start, groups: Sequence[Ranks]) -> list[Column]:
    """Return a column for each purpose, in GiB; one that no rank has is left out, and outliers are marked."""
    columns: list[Column] = []
    for size in _SIZES:
        known = sorted(value for rank in start.ranks if (value := size.value(rank)) is not None)
        if not known:
            continue
        usual = known[len(known) // 2]
        cells: list[Cell] = []
        for group in groups:
            value = size.value(group[0])
            odd = value is not None and len(known) > 2 and abs(value - usual) > max(_ODD_GIB, 0.05 * abs(usual))
            text = "-" if value is None else size.form.format(value)
            cells.append(Cell(text, "dim" if value is None else "warn" if odd else "text"))
        columns.append(Column("GiB", size.head, cells))
    return columns


def missing_words(server: ServerState | None) -> str:
    """Return why there is no story of a start, in words."""
    if server is None:
        return "no server, so nothing to explain"
    if server.log.source is None:
        return "its log cannot be read: the story of its start is in there"
    return "the log does not tell how it started: its first lines are not held, or are not those of a server"


def quiet_words(server: ServerState) -> str:
    """Return in words that no finding was made."""
    if server.phase.starting:
        return "nothing is wrong so far"
    if server.phase in (Phase.FAILED, Phase.STOPPED):
        return "no cause was found in its log"
    return "nothing is wrong"
