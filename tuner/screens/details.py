"""Everything known about a host and its server, as text that can be searched and copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input

from tuner.core.doctor import Check
from tuner.domain.state import HostState, ServerState
from tuner.messages import ChecksArrived, ChecksRequested
from tuner.screens.base import TunerScreen
from tuner.screens.reduction import all_reduce_section
from tuner.screens.sections import Section, argv_lines, broken
from tuner.units import format_bytes, format_gib
from tuner.widgets import notes, status
from tuner.widgets.field import Field
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.rank_table import rows_of
from tuner.widgets.rows import Rows
from tuner.widgets.spans import Line, clean, text_of
from tuner.widgets.wording import source_words

WHOLE = 99
"""Most lines of a note on this screen: practically unlimited."""


def sections(
    state: HostState,
    server: ServerState | None,
    checks: Sequence[Check] | None,
    glyphs: Glyphs,
    width: int,
    *,
    ended: bool = False,
) -> Iterator[Section]:
    """Yield all sections, first those that concern a failure."""
    items = notes.note_items(state, server, width, glyphs, rows=rows_of(state, server), most=WHOLE, ended=ended)
    if items:
        section = Section("problems")
        section.lines = [((" ", "text"), *line) for item in items for line in item]
        yield section
    if server is not None:
        yield from _server(state, server, glyphs)
    yield from _host(state)
    section = Section("checks")
    if checks is None:
        section.line("c asks the host what works there", "dim")
    for check in checks or ():
        section.verdict(check, glyphs)
    yield section


def _server(state: HostState, server: ServerState, glyphs: Glyphs) -> Iterator[Section]:
    identity = server.identity
    section = Section("server")
    section.pair("engine", f"{server.title} {server.version or ''}".strip())
    section.pair("LLM", server.model)
    phase = status.PHASE_NAMES.get(server.phase, str(server.phase))
    section.pair("phase", phase + (f"  ({server.phase_evidence})" if server.phase_evidence else ""))
    section.pair("pid", f"{identity.pid} of {identity.user or identity.uid}" + (" (gone)" if server.gone else ""))
    if age := status.age(state, server):
        section.pair("running for", age)
    manager = identity.manager
    if manager is not None:
        section.pair("started by", f"{manager.kind} {manager.name or ''}".strip())
    section.pair("folder", identity.cwd)
    section.pair("interpreter", identity.interpreter)
    section.pair("port", identity.port)
    if others := [str(port) for port in identity.ports if port != identity.port]:
        section.pair("other ports", ", ".join(others[:8]) + (f" and {len(others) - 8} more" if others[8:] else ""))
    log = server.log.source or identity.log
    section.pair("log", (log.path or log.note) if log else None)
    if server.metrics.source:
        section.pair("numbers from", source_words(server.metrics.source))
    if server.kv_tokens is not None:
        section.pair("KV pool", f"{server.kv_tokens:,} tokens")
    yield section
    section = Section("command")
    for text in argv_lines(identity.argv):
        section.line(text)
    yield section
    section = Section(f"settings ({len(server.settings)})")
    for key in sorted(server.settings):
        value = server.settings[key]
        section.pair(key, "None" if value is None else value)
    yield section
    section = Section("environment" if identity.env is not None else "environment: permission denied")
    for key in sorted(identity.env or {}):
        section.pair(key, (identity.env or {})[key])
    yield section
    section = Section("processes")
    for member in identity.members:
        section.line(f"{member.pid:>8} {member.ppid:>8} {member.state}  {clean(member.title)}")
    yield section
    section = Section("ranks, GiB")
    if server.ranks:
        section.line(
            "rank     gpu      pid  weights     KV  graphs  context  other  total  source",
            "head",
        )
    for rank in server.ranks:
        memory = rank.memory if rank.alive else rank.last_memory
        terms = (
            memory.weights_bytes,
            memory.kv_bytes,
            memory.graphs_bytes,
            memory.context_bytes,
            memory.other_bytes,
            memory.total_bytes,
        )
        cells = "".join(format_gib(value, size) for value, size in zip(terms, (9, 7, 8, 9, 7, 7), strict=True))
        gpu = "n/a" if rank.gpu is None else rank.gpu
        source = (source_words(memory.source) or "n/a") + ("" if rank.alive else ", before it ended")
        section.line(f"{clean(rank.tag):<8}{gpu:>4}{rank.pid or 'n/a':>9}{cells}  {source}")
    yield section
    reduction = all_reduce_section(state, server, glyphs)
    if reduction is not None:
        yield reduction


def _host(state: HostState) -> Iterator[Section]:
    section = Section("host")
    section.pair("name", state.name)
    hello, host, table = state.hello, state.host, state.gpu_table
    if hello is not None:
        section.pair("hostname", hello.hostname)
        section.pair("kernel", hello.kernel)
        section.pair("probe", f"Python {hello.python}, pid {hello.pid} as {hello.user or hello.uid}")
        section.pair("CPUs", hello.cpu_count)
    if host is not None:
        section.pair("CPU use", None if host.cpu_ratio is None else f"{host.cpu_ratio:.0%}")
        section.pair("load, 1 min", None if host.load_1m is None else f"{host.load_1m:.1f}")
        if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
            used = host.memory_total_bytes - host.memory_available_bytes
            section.pair("memory, GiB", f"{format_gib(used)} of {format_gib(host.memory_total_bytes)} used")
        if host.shm_total_bytes is not None:
            section.pair(
                "shared memory, GiB", f"{format_gib(host.shm_free_bytes)} of {format_gib(host.shm_total_bytes)} free"
            )
        for path, (total, free) in sorted((host.disks or {}).items()):
            section.pair(f"disk {path}, GiB", f"{format_gib(free)} of {format_gib(total)} free")
    if table is not None:
        section.pair("driver", table.driver)
        section.pair("CUDA of the driver", table.cuda)
        section.pair("GPUs read through", table.source)
    yield section
    section = Section("link")
    link = state.link
    section.pair("state", str(link.phase) + (f": {link.reason}" if link.reason else ""))
    section.pair("round trip", None if link.rtt_s is None else f"{link.rtt_s * 1e3:.0f} ms")
    section.pair("received", None if link.received_bytes_s is None else f"{format_bytes(link.received_bytes_s)}/s")
    section.pair("sent", None if link.sent_bytes_s is None else f"{format_bytes(link.sent_bytes_s)}/s")
    for note in link.notes:
        section.line(clean(note), "warn")
    yield section
    if table is not None and table.gpus:
        section = Section("GPUs")
        for info in table.gpus:
            size = f"{format_gib(info.memory_total_bytes)} GiB"
            pcie = f"PCIe {info.pcie_gen_max}x{info.pcie_width_max}" if info.pcie_gen_max else "PCIe n/a"
            numa = "n/a" if info.numa_node is None else info.numa_node
            kind = f"CC {clean(info.compute_capability or 'n/a')}" + ("  MIG" if info.mig else "")
            where = f"{clean(info.bus_id or '')}  {clean(info.uuid)}"
            section.line(f"{info.index:>3}  {clean(info.name)}  {size}  {kind}  {pcie}  NUMA {numa}  {where}")
        yield section
    if table is not None and table.topology:
        section = Section("topology")
        cell = max(len(word) for row in table.topology for word in row) + 2
        section.line("    " + "".join(f"{index:>{cell}}" for index in range(len(table.topology))), "head")
        for index, row in enumerate(table.topology):
            section.line(f"{index:>3} " + "".join(f"{clean(word):>{cell}}" for word in row))
        yield section


class DetailsScreen(TunerScreen):
    """Arguments, environment, settings, processes, GPUs, topology, link, and the results of the host's checks."""

    DEFAULT_CSS = """
    DetailsScreen {
        #details-box { height: 1fr; scrollbar-size-vertical: 1; }
        #find { height: 1; border: none; background: $surface; }
    }
    """
    ENTRY = "details"
    HELP_TITLE = "Details"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash", "filter", "Find", key_display="/", id="details.find", tooltip="Show only lines with this text"
        ),
        Binding("n", "section(1)", "Section", id="details.next", tooltip="The next section"),
        Binding("p", "section(-1)", "Section before", show=False, id="details.previous", tooltip="The section before"),
        Binding(
            "c", "checks", "Checks", id="details.checks", tooltip="Ask the host what works there and what is missing"
        ),
        Binding("escape", "clear", "Clear", show=False, id="details.clear", tooltip="Show everything again"),
    ]

    def compose_content(self) -> ComposeResult:
        """Make the status line, the text, and an input for filtering."""
        yield Rows(id="status")
        with VerticalScroll(id="details-box"):
            yield Rows(id="details")
        yield Field(id="find", placeholder="show lines with (enter: done, escape: all)", compact=True)

    def on_mount(self) -> None:
        """Begin without a filter and without results of checks."""
        super().on_mount()
        self._text = ""
        self._headings: dict[str, int] = {}
        self._checks: dict[str, tuple[Check, ...]] = {}
        self.query_one("#find").display = False
        self.set_focus(self.query_one("#details-box"))

    def draw(self, state: HostState | None, server: ServerState | None) -> None:
        """Rebuild the sections when something in them has changed."""
        if state is None:
            return
        width, glyphs = self.size.width, self.glyphs
        stale = self.shell.stale()
        self.draw_status(state, server)
        about = (
            (
                server.identity,
                server.settings,
                server.phase,
                server.ranks,
                server.errors,
                server.model,
                server.gone,
                server.start and len(server.start.signs),
            )
            if server
            else ()
        )
        host = (
            state.gpu_table,
            state.hello,
            state.problems,
            state.xids,
            state.foreign,
            state.link.phase,
            state.link.reason,
        )
        checks = self._checks.get(state.name)
        rough_host = state.host and (state.host.memory_total_bytes, state.host.disks)
        if not self.changed("details", *about, *host, str(rough_host), checks, self._text, width, stale):
            return
        lines: list[Line] = []
        self._headings = {}
        for section in sections(state, server, checks, glyphs, width - 2, ended=self.shell.ended()):
            wanted = self._text.lower()
            whole = wanted in section.title.lower()
            found = [line for line in section.lines if whole or wanted in text_of(line).lower()]
            if found or whole:
                self._headings[section.title] = len(lines)
                lines += [
                    ((f" {section.title}", "strong"),),
                    *(part for line in found for part in broken(line, width)),
                    (),
                ]
        if not lines:
            lines = [((f' nothing contains "{clean(self._text)}"', "warn"),)]
        self.query_one("#details", Rows).show(lines, dimmed=stale)

    def action_section(self, step: int) -> None:
        """Scroll to the next heading, or to the one before."""
        self.scroll_to_heading("#details-box", self._headings.values(), step)

    def action_filter(self) -> None:
        """Open the input for a text that the shown lines must contain."""
        find = self.query_one("#find", Input)
        find.display = True
        self.set_focus(find)

    def action_clear(self) -> None:
        """Remove the filter."""
        find = self.query_one("#find", Input)
        find.value = ""
        self._text = ""
        find.display = False
        self.set_focus(self.query_one("#details-box"))
        self.catch_up()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        event.stop()
        self._text = event.value
        self.catch_up()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave the input; the filter stays."""
        event.stop()
        self.query_one("#find").display = bool(self._text)
        self.set_focus(self.query_one("#details-box"))

    def action_checks(self) -> None:
        """Request the checks of the host."""
        if self.shell.snapshot is not None:
            self.notify("Asking the host", timeout=2)
            self.post_message(ChecksRequested(self, self.shell.snapshot.name))

    def on_checks_arrived(self, message: ChecksArrived) -> None:
        """Show the results of the checks."""
        message.stop()
        if message.error:
            self.notify(message.error, severity="warning", title="Checks")
        elif self.shell.snapshot is not None:
            self._checks[self.shell.snapshot.name] = message.checks
            self.catch_up()
            self.call_after_refresh(self._show_section, "checks")

    def _show_section(self, title: str) -> None:
        if title in self._headings:
            self.query_one("#details-box").scroll_to(y=self._headings[title], animate=False)

    def copy_text(self) -> str:
        """Return all text of the screen."""
        return "\n".join(text_of(line).rstrip() for line in self.query_one("#details", Rows).lines)
