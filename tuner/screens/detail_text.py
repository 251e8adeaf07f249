"""What the Details screen says: all that is known about a host and its server, a function for each section."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.core.doctor import Check
from tuner.domain.events import GpuTable, HostSample
from tuner.domain.state import HostState, ServerState
from tuner.screens.reduction import all_reduce_section
from tuner.screens.sections import Section, argv_lines
from tuner.units import format_bytes, format_gib
from tuner.widgets import notes, status
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.rank_table import rows_of
from tuner.widgets.spans import clean
from tuner.widgets.wording import source_words

WHOLE = 99
"""Most lines of a note on this screen: practically unlimited."""
_MOST_PORTS = 8


def sections(
    state: HostState,
    server: ServerState | None,
    checks: Sequence[Check] | None,
    glyphs: Glyphs,
    width: int,
    *,
    ended: bool = False,
    asking: bool = False,
) -> Iterator[Section]:
    """Yield all sections, first those that concern a failure."""
    items = notes.note_items(state, server, width, glyphs, rows=rows_of(state, server), most=WHOLE, ended=ended)
    if items:
        section = Section("problems")
        section.lines = [((" ", "text"), *line) for item in items for line in item]
        yield section
    if server is not None:
        yield _server(state, server)
        yield _command(server)
        yield _settings(server)
        yield _environment(server)
        yield _processes(server)
        yield _ranks(server)
        reduction = all_reduce_section(state, server, glyphs)
        if reduction is not None:
            yield reduction
    yield _host(state)
    yield _link(state)
    table = state.gpu_table
    if table is not None and table.gpus:
        yield _gpus(table)
    if table is not None and table.topology:
        yield _topology(table.topology)
    yield _checks(checks, glyphs, asking=asking)


def _server(state: HostState, server: ServerState) -> Section:
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
        more = len(others) - _MOST_PORTS
        section.pair("other ports", ", ".join(others[:_MOST_PORTS]) + (f" and {more} more" if more > 0 else ""))
    log = server.log.source or identity.log
    section.pair("log", (log.path or log.note) if log else None)
    if server.metrics.source:
        section.pair("numbers from", source_words(server.metrics.source))
    if server.kv_tokens is not None:
        section.pair("KV pool", f"{server.kv_tokens:,} tokens")
    return section


def _command(server: ServerState) -> Section:
    section = Section("command")
    for text in argv_lines(server.identity.argv):
        section.line(text)
    return section


def _settings(server: ServerState) -> Section:
    section = Section(f"settings ({len(server.settings)})")
    for key, value in sorted(server.settings.items()):
        section.pair(key, "None" if value is None else value)
    return section


def _environment(server: ServerState) -> Section:
    env = server.identity.env
    section = Section("environment" if env is not None else "environment: permission denied")
    for key, value in sorted((env or {}).items()):
        section.pair(key, value)
    return section


def _processes(server: ServerState) -> Section:
    section = Section("processes")
    for member in server.identity.members:
        section.line(f"{member.pid:>8} {member.ppid:>8} {member.state}  {clean(member.title)}")
    return section


def _ranks(server: ServerState) -> Section:
    section = Section("ranks, GiB")
    if server.ranks:
        section.line("rank     gpu      pid  weights     KV  graphs  context  other  total  source", "head")
    for rank in server.ranks:
        memory = rank.memory if rank.alive else rank.last_memory
        terms = (
            (memory.weights_bytes, 9),
            (memory.kv_bytes, 7),
            (memory.graphs_bytes, 8),
            (memory.context_bytes, 9),
            (memory.other_bytes, 7),
            (memory.total_bytes, 7),
        )
        cells = "".join(format_gib(value, width) for value, width in terms)
        gpu = "n/a" if rank.gpu is None else rank.gpu
        source = (source_words(memory.source) or "n/a") + ("" if rank.alive else ", before it ended")
        section.line(f"{clean(rank.tag):<8}{gpu:>4}{rank.pid or 'n/a':>9}{cells}  {source}")
    return section


def _host(state: HostState) -> Section:
    section = Section("host")
    section.pair("name", state.name)
    hello, table = state.hello, state.gpu_table
    if hello is not None:
        section.pair("hostname", hello.hostname)
        section.pair("kernel", hello.kernel)
        section.pair("probe", f"Python {hello.python}, pid {hello.pid} as {hello.user or hello.uid}")
        section.pair("CPUs", hello.cpu_count)
    if state.host is not None:
        _add_sample(section, state.host)
    if table is not None:
        section.pair("driver", table.driver)
        section.pair("CUDA of the driver", table.cuda)
        section.pair("GPUs read through", table.source)
    return section


def _add_sample(section: Section, host: HostSample) -> None:
    section.pair("CPU use", None if host.cpu_ratio is None else f"{host.cpu_ratio:.0%}")
    section.pair("load, 1 min", None if host.load_1m is None else f"{host.load_1m:.1f}")
    if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
        used = host.memory_total_bytes - host.memory_available_bytes
        section.pair("memory, GiB", f"{format_gib(used)} of {format_gib(host.memory_total_bytes)} used")
    if host.shm_total_bytes is not None:
        free = f"{format_gib(host.shm_free_bytes)} of {format_gib(host.shm_total_bytes)} free"
        section.pair("shared memory, GiB", free)
    for path, (total, left) in sorted((host.disks or {}).items()):
        section.pair(f"disk {path}, GiB", f"{format_gib(left)} of {format_gib(total)} free")


def _link(state: HostState) -> Section:
    section = Section("link")
    link = state.link
    section.pair("state", str(link.phase) + (f": {link.reason}" if link.reason else ""))
    section.pair("round trip", None if link.rtt_s is None else f"{link.rtt_s * 1e3:.0f} ms")
    section.pair("received", None if link.received_bytes_s is None else f"{format_bytes(link.received_bytes_s)}/s")
    section.pair("sent", None if link.sent_bytes_s is None else f"{format_bytes(link.sent_bytes_s)}/s")
    for note in link.notes:
        section.line(clean(note), "warn")
    return section


def _gpus(table: GpuTable) -> Section:
    section = Section("GPUs")
    for info in table.gpus:
        size = f"{format_gib(info.memory_total_bytes)} GiB"
        pcie = f"PCIe {info.pcie_gen_max}x{info.pcie_width_max}" if info.pcie_gen_max else "PCIe n/a"
        numa = "n/a" if info.numa_node is None else info.numa_node
        kind = f"CC {clean(info.compute_capability or 'n/a')}" + ("  MIG" if info.mig else "")
        where = f"{clean(info.bus_id or '')}  {clean(info.uuid)}"
        section.line(f"{info.index:>3}  {clean(info.name)}  {size}  {kind}  {pcie}  NUMA {numa}  {where}")
    return section


def _topology(topology: Sequence[Sequence[str]]) -> Section:
    section = Section("topology")
    cell = max(len(word) for row in topology for word in row) + 2
    section.line("    " + "".join(f"{index:>{cell}}" for index in range(len(topology))), "head")
    for index, row in enumerate(topology):
        section.line(f"{index:>3} " + "".join(f"{clean(word):>{cell}}" for word in row))
    return section


def _checks(checks: Sequence[Check] | None, glyphs: Glyphs, *, asking: bool) -> Section:
    section = Section("checks")
    if asking:
        section.line("the host is being asked", "busy")
    elif checks is None:
        section.line("c asks the host what works there", "dim")
    for check in checks or ():
        section.verdict(check, glyphs)
    return section
