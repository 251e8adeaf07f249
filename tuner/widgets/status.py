"""The lines above the rank table: host, link, server, phases, load.

Pure functions from state to lines. A part that does not fit is left out entirely, the least important first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuner.core.hang import late
from tuner.core.metrics import is_late
from tuner.core.runs import preset_of
from tuner.domain.gpu import GpuInfo
from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase
from tuner.domain.state import HostState, LinkState, PhaseRecord, ServerMetrics, ServerState
from tuner.units import format_bytes, format_duration
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.spans import Line, Span, clean, clip_line, fit, spread, width_of

PHASE_NAMES: dict[Phase, str] = {
    Phase.ARGS: "args",
    Phase.CUDA_INIT: "cuda",
    Phase.DIST_INIT: "dist",
    Phase.WEIGHT_LOAD: "weights",
    Phase.DRAFT_INIT: "draft",
    Phase.KV_ALLOC: "kv",
    Phase.AUTOTUNE: "autotune",
    Phase.GRAPH_CAPTURE: "graphs",
    Phase.WARMUP: "warm-up",
}
PHASE_DOING: dict[Phase, str] = {
    Phase.ARGS: "while reading its arguments",
    Phase.CUDA_INIT: "while starting CUDA",
    Phase.DIST_INIT: "while connecting its ranks",
    Phase.WEIGHT_LOAD: "while loading weights",
    Phase.DRAFT_INIT: "while loading the draft",
    Phase.KV_ALLOC: "while allocating KV",
    Phase.AUTOTUNE: "while autotuning",
    Phase.GRAPH_CAPTURE: "while capturing graphs",
    Phase.WARMUP: "in the warm-up",
    Phase.READY: "while serving",
    Phase.STOPPING: "while stopping",
}
"""Activity of a server in each phase, as words that follow a verb."""
_EDITION = re.compile(r"(?: Blackwell)?(?: (?:Server|Workstation|Max-Q Workstation))? Edition$")


def gpu_name(name: str) -> str:
    """Return a card's name without vendor and edition: `RTX PRO 6000`, `H200`."""
    return _EDITION.sub("", clean(name).removeprefix("NVIDIA "))


def model_name(model: str | None) -> str:
    """Return the last part of a path to an LLM; a name like organisation/name stays as it is."""
    if not model:
        return ""
    text = clean(model).rstrip("/")
    return text.rsplit("/", 1)[-1] if text.startswith(("/", "./", "~")) or text.count("/") > 1 else text


def server_name(server: ServerState) -> str:
    """Return engine and LLM as the name of a server."""
    return f"{server.title} {model_name(server.model)}".strip()


def fabric(infos: Sequence[GpuInfo]) -> str:
    """Return how the GPUs are connected, in words; empty where that cannot be read."""
    counts = [info.nvlink_count for info in infos]
    if len(infos) < 2 or any(count is None for count in counts):
        return ""
    return "NVLink" if all(counts) else "NVLink on some" if any(counts) else "PCIe, no NVLink"


def gpus_text(state: HostState) -> str:
    """Return number and kind of the GPUs: `8x RTX PRO 6000`; all kinds are named."""
    names: dict[str, int] = {}
    for info in state.gpu_table.gpus if state.gpu_table else ():
        name = gpu_name(info.name)
        names[name] = names.get(name, 0) + 1
    return " + ".join(f"{count}x {name}" for name, count in names.items())


def age(state: HostState, server: ServerState) -> str:
    """Return how long the server has been running, by the host's own clock."""
    started = server.identity.started_at
    return "" if started is None or state.now is None or server.gone else format_duration(state.now - started)


OLD_S = 5.0
"""Seconds after which GPU readings, which come every second or two, are called stale."""


def metrics_age(state: HostState, server: ServerState) -> float | None:
    """Return the seconds since the server last answered; None while recent, or for numbers from its log."""
    metrics = server.metrics
    if metrics.source not in ("metrics", "loads") or metrics.at is None or not is_late(metrics, state.mono):
        return None
    return state.mono - metrics.at


def samples_age(state: HostState) -> float | None:
    """Return the seconds since the GPUs were last read, or None while that is recent."""
    if state.samples_at is None or not state.samples:
        return None
    old = state.mono - state.samples_at
    return old if old > OLD_S else None


def as_of(age_s: float) -> str:
    """Return the age of numbers in the words that all parts of a screen use."""
    return f"as of {age_s:.0f} s ago"


def link_spans(
    link: LinkState, glyphs: Glyphs, *, age_s: float | None, retry_in_s: float | None = None, wide: bool
) -> Line:
    """Return the state of the link in a word, with round trip and traffic while it is up."""
    phase = link.phase
    style = {LinkPhase.UP: "ok", LinkPhase.DOWN: "bad"}.get(phase, "warn")
    word = str(phase)
    if phase is LinkPhase.STALE and age_s is not None:
        word = f"stale {age_s:.0f} s"
    elif phase in (LinkPhase.CONNECTING, LinkPhase.RECONNECTING) and link.attempt > 1:
        word += f", attempt {link.attempt}" + (f" in {retry_in_s:.0f} s" if retry_in_s is not None and wide else "")
    spans: list[Span] = []
    if phase is LinkPhase.UP:
        if link.rtt_s is not None:
            spans.append((f"{'link ' if wide else ''}{link.rtt_s * 1e3:.0f} ms".rjust(11 if wide else 6) + " ", "dim"))
        if wide and link.received_bytes_s is not None:
            spans.append((f"{format_bytes(link.received_bytes_s)}/s".rjust(9) + "  ", "dim"))
    spans.append((f"{glyphs.link(phase)} {word} ", style))
    return tuple(spans)


def status_line(
    state: HostState,
    server: ServerState | None,
    width: int,
    glyphs: Glyphs,
    *,
    age_s: float | None = None,
    retry_in_s: float | None = None,
    ended: bool = False,
) -> Line:
    """Return the first line: the host, what runs there, and whether the link is up."""
    wide = width >= 120
    right = link_spans(state.link, glyphs, age_s=age_s, retry_in_s=retry_in_s, wide=wide)
    if ended:
        right = ((f"{glyphs.down} end of the recording ", "warn"),)
    infos = state.gpu_table.gpus if state.gpu_table else ()
    host: Line = ((clean(state.name), "strong"),)
    gpus: Line = ((gpus_text(state), "text"),)
    parts: list[Line] = [host, gpus]
    if wide:
        parts.append(((fabric(infos), "text"),))
    if server is not None:
        parts.append(((f"{server.title} {clean(server.version or '')}".strip(), "text"),))
        parts.append(((model_name(server.model), "strong"),))
        if wide:
            parts.append(owner_spans(state, server))
        if preset := preset_name(state, server):
            parts.append((("preset ", "dim"), (preset, "strong")))
    room = width - width_of(right) - 3
    # The LLM matters more than the name of the cards.
    if not wide and sum(width_of(part) + 3 for part in parts if part) > room + 3:
        parts.remove(gpus)
    joined = fit(parts, room, (f" {glyphs.separator} ", "dim"))
    return spread(((" ", "text"), *joined), right, width, glyphs.ellipsis)


def preset_name(state: HostState, server: ServerState) -> str:
    """Return the id of the preset that a server was started with; empty for none, or if gputuner did not start it."""
    return clean(preset_of(state, server)[0]) if state.runs else ""


def owner_spans(state: HostState, server: ServerState) -> Line:
    """Return PID, user and age of a server: `pid 48211 root 2h14m`."""
    identity = server.identity
    words = [f"pid {identity.pid}", clean(identity.user or ""), age(state, server)]
    return ((" ".join(word for word in words if word), "dim"),)


def phase_word(server: ServerState, glyphs: Glyphs) -> Span:
    """Return a phase as symbol and word."""
    phase = server.phase
    style = "ok" if phase is Phase.READY else "bad" if phase is Phase.FAILED else "busy" if phase.starting else "warn"
    return (f"{glyphs.phase(phase)} {str(phase).upper() if not phase.starting else 'STARTING'}", style)


def _range(times: tuple[float, float] | None, between: str = " to ") -> str:
    if times is None:
        return ""
    low, high = (format_duration(value) for value in times)
    return low if low == high else f"{low}{between}{high}"


def phase_line(state: HostState, server: ServerState, width: int, glyphs: Glyphs) -> Line:
    """Return the second line: each start phase with its time, the running one with progress and usual time."""
    head: Line = ((" ", "text"), phase_word(server, glyphs), ("  ", "text"))
    if server.phase is Phase.UNKNOWN:
        return clip_line((*head, ("neither its log nor its port has told yet", "dim")), width, glyphs.ellipsis)
    pieces = [phase_piece(state, server, record, glyphs) for record in server.phases]
    usual = _range(server.usual.total_s)
    words: list[str] = []
    if server.started_in_s is not None:
        took = f"started in {format_duration(server.started_in_s)}"
        words = [f"{took}, usually {usual}", took] if usual else [took]
    elif server.phase.starting and server.phases and state.now is not None:
        took = f"so far {format_duration(state.now - server.phases[0].started)}"
        words = [f"{took}, usually {usual}", took] if usual else [took]
    # The running phase matters most, then the total, then earlier phases, the oldest least.
    for right in (*words, ""):
        room = width - width_of(head) - (len(right) + 3 if right else 0)
        body = _last_that_fit(pieces, room, (f" {glyphs.then} ", "dim"), glyphs.ellipsis)
        if body or not pieces:
            return spread((*head, *body), ((f"{right} ", "dim"),) if right else (), width, glyphs.ellipsis)
    return clip_line((*head, *pieces[-1]), width, glyphs.ellipsis)


def phase_piece(state: HostState, server: ServerState, record: PhaseRecord, glyphs: Glyphs) -> Line:
    """Return a phase with its time; the one that runs with progress and usual time."""
    name = PHASE_NAMES.get(record.phase, str(record.phase))
    if record.ended is None and server.phase.starting:
        usual = server.usual.phases_s.get(record.phase)
        took_s = 0.0 if state.now is None else state.now - record.started
        overdue = late(state, server, record)
        spans: list[Span] = [(f"{glyphs.warn if overdue else glyphs.busy} {name}", "warn" if overdue else "busy")]
        if record.done is not None and record.total:
            spans.append((f" {record.done}/{record.total}", "strong"))
        if state.now is not None:
            spans.append((f" {format_duration(took_s)}", "warn" if overdue else "text"))
        if overdue:
            spans.append((" longer than usual", "warn"))
        if usual:
            spans.append((f" ({'' if overdue else 'usually '}{_range(usual, '-')})", "dim"))
        return tuple(spans)
    took = format_duration(record.ended - record.started) if record.ended is not None else glyphs.dash
    # A server that failed while serving did so after its start.
    failed = server.phase is Phase.FAILED and record is server.phases[-1] and server.started_in_s is None
    return ((f"{name} ", "bad" if failed else "dim"), (took, "bad" if failed else "text"))


def _last_that_fit(pieces: Sequence[Line], room: int, separator: Span, ellipsis: str) -> Line:
    for first in range(len(pieces)):
        line: list[Span] = [(ellipsis, "dim")] if first else []
        for piece in pieces[first:]:
            if line:
                line.append(separator)
            line.extend(piece)
        if width_of(line) <= room:
            return tuple(line)
    return ()


def latency(seconds: float, places: int) -> str:
    """Return a latency in milliseconds; in seconds from ten seconds on."""
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds * 1e3:.{places}f} ms"


def metric_parts(metrics: ServerMetrics, *, old: bool = False) -> list[Line]:
    """Return the numbers of a serving server, each with its name; unknown ones are left out."""

    def part(name: str, text: str) -> Line:
        return ((f"{name} ", "dim"), (text, "dim" if old else "strong"))

    parts: list[Line] = []
    if metrics.tok_s is not None:
        parts.append(part("tok/s", f"{metrics.tok_s:7.1f}"))
    if metrics.source is not None:
        # These two may be unknown for a moment; they keep their places.
        parts.append(part("run", "  -" if metrics.running is None else f"{metrics.running:3d}"))
        parts.append(part("queue", "  -" if metrics.queued is None else f"{metrics.queued:3d}"))
    if metrics.token_usage_ratio is not None:
        parts.append(part("KV", f"{metrics.token_usage_ratio * 100:3.0f} %"))
    if metrics.accept_length is not None:
        parts.append(part("accept", f"{metrics.accept_length:4.2f}"))
    if metrics.ttft_s is not None:
        parts.append(part("ttft", latency(metrics.ttft_s, 0).rjust(7)))
    if metrics.cache_hit_ratio is not None:
        parts.append(part("cache hit", f"{metrics.cache_hit_ratio * 100:3.0f} %"))
    if metrics.itl_s is not None:
        parts.append(part("itl", latency(metrics.itl_s, 1).rjust(8)))
    return parts


def metric_grid(metrics: ServerMetrics, width: int) -> list[Line]:
    """Return the numbers below the chart: names and right-aligned values in columns that do not move."""

    def cell(name: str, text: str | None, size: int) -> Line:
        value = "-" if text is None else text
        pad = max(1, size - len(name) - len(value))
        return ((name, "dim"), (" " * pad, "text"), (value, "dim" if text is None else "strong"))

    def number(value: float | None, form: str, scale: float = 1.0, unit: str = "") -> str | None:
        return None if value is None else f"{value * scale:{form}}{unit}"

    cells = [
        ("tok/s", number(metrics.tok_s, ".1f")),
        ("running", number(metrics.running, ".0f")),
        ("queued", number(metrics.queued, ".0f")),
        ("KV used", number(metrics.token_usage_ratio, ".0f", 100, " %")),
        ("cache hit", number(metrics.cache_hit_ratio, ".0f", 100, " %")),
        ("accepted", number(metrics.accept_length, ".2f")),
        ("ttft", None if metrics.ttft_s is None else latency(metrics.ttft_s, 0)),
        ("itl", None if metrics.itl_s is None else latency(metrics.itl_s, 1)),
        ("prompt/s", number(metrics.prompt_tok_s, ".0f")),
    ]
    columns = 3
    size = max(8, (width - 1 - 2 * (columns - 1)) // columns)
    lines: list[Line] = []
    for at in range(0, len(cells), columns):
        spans: list[Span] = [(" ", "text")]
        for index, (name, text) in enumerate(cells[at : at + columns]):
            spans += [("  ", "text")] if index else []
            spans += cell(name, text, size)
        lines.append(tuple(spans))
    return lines


def serving_line(
    state: HostState, server: ServerState, width: int, glyphs: Glyphs, sparkline: str, drawn: str = "tok/s"
) -> Line:
    """Return the second line of a narrow screen for a serving server: phase and numbers, one with a sparkline."""
    head: list[Span] = [(" ", "text"), phase_word(server, glyphs), ("  ", "text")]
    old = metrics_age(state, server)
    parts = metric_parts(server.metrics, old=old is not None)
    for index, part in enumerate(parts):
        if sparkline and part[0][0] == f"{drawn} ":
            parts[index] = (*part, (f" {sparkline}", "chart" if old is None else "dim"))
    if old is not None:
        parts.insert(0, ((as_of(old), "warn"),))
    body = fit([*parts, owner_spans(state, server)], width - width_of(head) - 1, ("  ", "text"))
    return (*head, *body)


def no_server_line(state: HostState, glyphs: Glyphs) -> Line:
    """Return the line shown in place of phases when no server runs."""
    if state.link.phase is LinkPhase.CONNECTING and state.hello is None:
        return ((f" {glyphs.waiting} connecting to {clean(state.name)} {glyphs.ellipsis}", "busy"),)
    if state.hello is None:
        return ((" nothing is known of this host yet", "dim"),)
    if not state.scanned:
        return ((f" {glyphs.waiting} looking for servers {glyphs.ellipsis}", "busy"),)
    return ((f" {glyphs.down} no inference server runs here", "warn"), ("  a start is noticed within seconds", "dim"))
