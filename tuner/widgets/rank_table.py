"""One row per rank, then one per GPU without a rank: memory by purpose, utilisation, power, temperature, traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from tuner.core import throttle
from tuner.core.hang import stopped_parts
from tuner.domain.gpu import GpuInfo, GpuSample
from tuner.domain.server import Phase
from tuner.domain.state import ForeignProcess, HostState, RankMemory, RankState, ServerState
from tuner.units import GIB
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.memory_bar import Terms, bar, scale
from tuner.widgets.spans import Line, Span, clip
from tuner.widgets.status import PHASE_NAMES

NO_VALUE = "n/a"
DEAD = ("dead", "bad")
"""The note of a rank whose process is gone."""
ENDED = ("ended", "dim")
"""The note of a rank whose process is gone because its server was stopped on purpose."""
_BAR_MIN = 18
_BAR_MAX = 60


class Row(Struct, frozen=True, kw_only=True):
    """One row of the table: a rank and its GPU, or a GPU without a rank."""

    label: str
    gpu: int | None
    pid: int | None = None
    info: GpuInfo | None = None
    sample: GpuSample | None = None
    terms: Terms = ()
    total_bytes: int | None = None
    used_bytes: int | None = None
    note: Span = ("", "dim")
    """A word or two about anything unusual, and its style."""
    trouble: str = ""
    """Text shown in place of the bar when there is nothing to draw."""
    is_rank: bool = True


def stack(
    memory: RankMemory | None,
    used_bytes: int | None,
    foreign_bytes: int,
    servers_bytes: int = 0,
    *,
    loading: bool = False,
) -> Terms:
    """Return the terms of one GPU's bar; their sum is the memory in use according to the driver.

    What the engine does not explain is `other`, or `loading` while weights are being loaded and not yet in the log. The
    host's other servers and foreign processes come last.
    """
    terms: list[tuple[str, int]] = []
    if memory is not None:
        known = (
            ("weights", memory.weights_bytes),
            ("kv", memory.kv_bytes),
            ("graphs", memory.graphs_bytes),
            ("context", memory.context_bytes),
        )
        terms = [(name, value) for name, value in known if value]
    explained = sum(value for _, value in terms)
    guests = foreign_bytes + servers_bytes
    whole = used_bytes - guests if used_bytes is not None else (memory.total_bytes or 0) if memory else 0
    if whole > explained:
        rest = "loading" if loading and not (memory and memory.weights_bytes) else "other"
        terms.append((rest, whole - explained))
    if servers_bytes:
        terms.append(("servers", servers_bytes))
    if foreign_bytes:
        terms.append(("foreign", foreign_bytes))
    return tuple(terms)


def held_by(state: HostState, servers: Sequence[ServerState], gpu: int) -> int:
    """Return the bytes that these servers hold on a GPU, by the driver's process list or else by their ranks' logs."""
    total = 0
    for server in servers:
        pids = {server.identity.pid, *server.left_pids, *(member.pid for member in server.identity.members)}
        pids |= {rank.pid for rank in server.ranks if rank.pid is not None}
        sizes = [process.used_bytes for process in state.processes if process.gpu == gpu and process.pid in pids]
        known = [size for size in sizes if size is not None]
        if not known:
            ranks = [rank.memory for rank in server.ranks if rank.gpu == gpu and rank.alive]
            known = [memory.total_bytes for memory in ranks if memory.total_bytes is not None]
        total += sum(known)
    return total


def rows_of(state: HostState, server: ServerState | None) -> list[Row]:
    """Return the rows for one server: its ranks in order, then the GPUs on which it has none."""
    infos = {info.index: info for info in state.gpu_table.gpus} if state.gpu_table else {}
    samples = {sample.index: sample for sample in state.samples}
    foreign: dict[int, list[ForeignProcess]] = {}
    for process in state.foreign:
        foreign.setdefault(process.gpu, []).append(process)

    def row(
        label: str, rank: RankState | None, owner: ServerState | None, *, gpu: int | None, is_rank: bool, starting: bool
    ) -> Row:
        info = infos.get(gpu) if gpu is not None else None
        sample = samples.get(gpu) if gpu is not None else None
        strangers = foreign.get(gpu, []) if gpu is not None else []
        foreign_bytes = sum(process.memory_bytes or 0 for process in strangers)
        servers_bytes = (
            held_by(state, [each for each in state.servers if each is not owner], gpu) if gpu is not None else 0
        )
        used = sample.memory_used_bytes if sample else None
        memory = rank.memory if rank and rank.alive else None
        loading = bool(starting and rank and rank.alive and rank.phase is Phase.WEIGHT_LOAD)
        if used is None and memory is not None and not (sample and sample.error):
            guests = foreign_bytes + servers_bytes
            used = memory.total_bytes + guests if memory.total_bytes is not None else None
        return Row(
            label=label,
            gpu=gpu,
            pid=rank.pid if rank else None,
            info=info,
            sample=sample,
            terms=stack(memory, used, foreign_bytes, servers_bytes, loading=loading),
            total_bytes=info.memory_total_bytes if info else None,
            used_bytes=used,
            note=_note(rank, owner, sample, strangers, starting=starting),
            trouble=(sample.error or "") if sample else "",
            is_rank=is_rank,
        )

    ranks = server.ranks if server else ()
    starting = bool(server and server.phase.starting)
    rows = [row(rank.tag, rank, server, gpu=rank.gpu, is_rank=True, starting=starting) for rank in ranks]
    taken = {rank.gpu for rank in ranks}
    # GPUs of other servers keep their stacks; the label names the server.
    others = {
        rank.gpu: (each.title, rank, each)
        for each in state.servers
        if each is not server and not each.gone
        for rank in each.ranks
    }
    rows += [
        row(*others.get(index, ("gpu", None, server)), gpu=index, is_rank=False, starting=False)
        for index in sorted(infos.keys() | samples.keys())
        if index not in taken
    ]
    return rows


def _note(
    rank: RankState | None,
    owner: ServerState | None,
    sample: GpuSample | None,
    strangers: Sequence[ForeignProcess],
    *,
    starting: bool,
) -> Span:
    if rank and not rank.alive:
        return ENDED if owner and owner.phase in (Phase.STOPPING, Phase.STOPPED) else DEAD
    if rank and owner and any(part.pid == rank.pid for part in stopped_parts(owner)):
        return ("halted", "bad")
    limits = throttle.limits(sample.throttle_mask) if sample else ()
    if limits:
        return (limits[0], "warn")
    if starting and rank and rank.phase not in (Phase.UNKNOWN, Phase.READY):
        return (PHASE_NAMES.get(rank.phase, str(rank.phase)), "busy")
    if strangers:
        return ("foreign", "foreign")
    return ("", "dim")


class Column(Struct, frozen=True, kw_only=True):
    """A column of numbers: its heading in two lines, and how a row fills it."""

    key: str
    group: str = ""
    head: str
    width: int
    priority: int
    """Rank in the choice of columns: those with the smallest numbers stay when there is little room."""
    value: Callable[[Row], str | None]


def _sample(read: Callable[[GpuSample], float | int | None], form: str = "{:.0f}") -> Callable[[Row], str | None]:
    def value(row: Row) -> str | None:
        number = read(row.sample) if row.sample else None
        return None if number is None else form.format(number)

    return value


def _rate(read: Callable[[GpuSample], int | None]) -> Callable[[Row], str | None]:
    """Format traffic in GB/s: two decimals below 10, so that idle links do not all read 0."""

    def value(row: Row) -> str | None:
        number = read(row.sample) if row.sample else None
        if number is None:
            return None
        rate = number / 1e9
        return f"{rate:.2f}" if rate < 9.995 else f"{rate:.1f}"

    return value


def _gib(value: int | None) -> str | None:
    return None if value is None else f"{value / GIB:.1f}"


def _free(row: Row) -> str | None:
    return None if row.total_bytes is None or row.used_bytes is None else _gib(max(0, row.total_bytes - row.used_bytes))


def _util(sample: GpuSample) -> float | None:
    return None if sample.utilization_ratio is None else sample.utilization_ratio * 100


def columns_for(rows: Sequence[Row], glyphs: Glyphs) -> list[Column]:
    """Return all columns that mean something for these rows, in display order."""
    limits = {row.info.power_limit_w for row in rows if row.info and row.info.power_limit_w}
    power_head = f"/{limits.pop():.0f}" if len(limits) == 1 else "power"
    columns = [
        Column(key="used", group="GiB", head="used", width=5, priority=0, value=lambda row: _gib(row.used_bytes)),
        Column(key="free", group="GiB", head="free", width=5, priority=0, value=_free),
        Column(key="util", group="%", head="util", width=4, priority=0, value=_sample(_util)),
        Column(key="power", group="W", head=power_head, width=5, priority=2, value=_sample(lambda s: s.power_w)),
        Column(
            key="heat",
            group=f"{glyphs.degree}C",
            head="",
            width=4,
            priority=1,
            value=_sample(lambda s: s.temperature_c),
        ),
        Column(key="clock", group="MHz", head="SM", width=5, priority=4, value=_sample(lambda s: s.sm_mhz)),
        Column(key="rx", group="PCIe GB/s", head="rx", width=5, priority=5, value=_rate(lambda s: s.pcie_rx_bytes_s)),
        Column(key="tx", group="PCIe GB/s", head="tx", width=5, priority=5, value=_rate(lambda s: s.pcie_tx_bytes_s)),
    ]
    if any(row.info and row.info.nvlink_count for row in rows):
        columns += [
            Column(
                key="nvrx",
                group="NVLink GB/s",
                head="rx",
                width=5,
                priority=6,
                value=_rate(lambda s: s.nvlink_rx_bytes_s),
            ),
            Column(
                key="nvtx",
                group="NVLink GB/s",
                head="tx",
                width=5,
                priority=6,
                value=_rate(lambda s: s.nvlink_tx_bytes_s),
            ),
        ]
    return columns


class Layout(Struct, frozen=True, kw_only=True):
    """The division of the table's width. It depends only on the width and the rows' contents, so that nothing jumps."""

    label: int
    pid: int
    bar: int
    columns: tuple[Column, ...]
    note: int


def layout_for(rows: Sequence[Row], width: int, glyphs: Glyphs) -> Layout:
    """Choose columns by priority; the bar gets the remaining width."""
    label = max([4, *(len(row.label) for row in rows)])
    pid = max([5, *(len(str(row.pid)) for row in rows if row.pid)])
    columns = columns_for(rows, glyphs)
    note = 13
    room = width - 1 - (label + 1) - 4 - 2
    kept: set[str] = set()
    pid_kept = note_kept = False
    for priority in range(7):
        group = [column for column in columns if column.priority == priority]
        need = sum(column.width + 1 for column in group)
        spare = room - need - (_BAR_MIN if priority < 2 else 28)
        if priority == 3:
            pid_kept = room - (pid + 1) >= 28
            room -= pid + 1 if pid_kept else 0
            note_kept = room - (note + 1) >= 28
            room -= note + 1 if note_kept else 0
        elif priority == 0 or spare >= 0:
            kept |= {column.key for column in group}
            room -= need
    return Layout(
        label=label,
        pid=pid if pid_kept else 0,
        bar=max(3, min(_BAR_MAX, room)),
        columns=tuple(column for column in columns if column.key in kept),
        note=note if note_kept else 1,
    )


def head_lines(rows: Sequence[Row], layout: Layout, title: Span) -> tuple[Line, Line]:
    """Return the two lines above the rows: units, then column names."""
    totals = {row.total_bytes for row in rows if row.total_bytes}
    left = " " + "rank".ljust(layout.label) + " gpu" + (" " + "pid".rjust(layout.pid) if layout.pid else "")
    if len(totals) > 1:
        over_bar = "0 to each GPU's total".ljust(layout.bar)[: layout.bar]
    else:
        over_bar = scale(totals.pop() if totals else None, layout.bar)
    groups, names, seen = "", "", ""
    for column in layout.columns:
        names += " " + column.head.rjust(column.width)
        if column.group == seen:
            groups = groups.rstrip()[: -len(column.group)] if column.group else groups
            groups = groups.ljust(len(names) - len(column.group)) + column.group
        else:
            groups += " " * (len(names) - len(groups) - len(column.group)) + column.group
        seen = column.group
    head = left + " " + over_bar
    first = clip(title[0], len(head))
    return ((" ", "text"), (first.ljust(len(head) - 1), title[1]), (groups, "head")), ((head, "head"), (names, "head"))


def row_line(row: Row, layout: Layout, glyphs: Glyphs, *, old: bool = False) -> Line:
    """Return one row as a line; numbers are dimmed where `old`."""
    dead = row.note == DEAD
    label_style = "bad" if dead else "rank" if row.is_rank else "dim"
    gpu = NO_VALUE if row.gpu is None else str(row.gpu)
    spans: list[Span] = [
        (f" {row.label:<{layout.label}} ", label_style),
        (f"{gpu:>3} ", "text" if row.gpu is not None else "dim"),
    ]
    if layout.pid:
        spans.append(((str(row.pid) if row.pid else "").rjust(layout.pid) + " ", "dim"))
    if row.trouble:
        spans.append((clip(f"{glyphs.bad} {row.trouble}", layout.bar, glyphs.ellipsis).ljust(layout.bar), "bad"))
    else:
        spans.extend(bar(row.terms, row.total_bytes, layout.bar, glyphs))
    for column in layout.columns:
        value = column.value(row)
        style = "dim" if value is None or old else "strong" if column.key in ("used", "free") else "text"
        spans.append((" " + (NO_VALUE if value is None else value).rjust(column.width), style))
    word, style = row.note
    if word:
        signs = {"bad": glyphs.bad, "warn": glyphs.warn, "foreign": glyphs.warn, "dim": glyphs.phase(Phase.STOPPED)}
        sign = signs.get(style, glyphs.busy)
        spans.append((" " + clip(f"{sign} {word}" if layout.note > 1 else sign, layout.note, glyphs.ellipsis), style))
    return tuple(spans)


def table_lines(
    state: HostState,
    server: ServerState | None,
    width: int,
    glyphs: Glyphs,
    title: Span = ("ranks", "head"),
    *,
    old: bool = False,
) -> list[Line]:
    """Return the whole table; empty when there is no row to show."""
    rows = rows_of(state, server)
    if not rows:
        return []
    layout = layout_for(rows, width, glyphs)
    return [*head_lines(rows, layout, title), *(row_line(row, layout, glyphs, old=old) for row in rows)]


def throttled(rows: Iterable[Row]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the label of each row whose GPU the driver slows down, with the reasons."""
    found = []
    for row in rows:
        limits = throttle.limits(row.sample.throttle_mask) if row.sample else ()
        if limits:
            found.append((row.label if row.is_rank else f"gpu {row.gpu}", limits))
    return found
