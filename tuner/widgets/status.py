"""The lines above and below the rank table: host, link, server, phases, sums, and what is wrong.

Pure functions from state to lines. A part that does not fit is left out whole, the least important first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuner.domain.gpu import GpuInfo
from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase
from tuner.domain.state import HostState, LinkState, PhaseRecord, ServerMetrics, ServerState
from tuner.units import format_bytes, format_duration, format_gib
from tuner.widgets.glyphs import TERMS, Glyphs
from tuner.widgets.rank_table import Row, throttled
from tuner.widgets.spans import Line, Span, clean, clip, clip_line, fit, spread, width_of
from tuner.widgets.wording import problem_text

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
_EDITION = re.compile(r"(?: Blackwell)?(?: (?:Server|Workstation|Max-Q Workstation))? Edition$")


def gpu_name(name: str) -> str:
    """A card's name without vendor and edition: `RTX PRO 6000`, `H200`."""
    return _EDITION.sub("", clean(name).removeprefix("NVIDIA "))


def model_name(model: str | None) -> str:
    """The last part of a path; an organisation/name stays whole."""
    if not model:
        return ""
    text = clean(model).rstrip("/")
    return text.rsplit("/", 1)[-1] if text.startswith(("/", "./", "~")) or text.count("/") > 1 else text


def fabric(infos: Sequence[GpuInfo]) -> str:
    """How the GPUs are connected, in words; empty where it cannot be read."""
    counts = [info.nvlink_count for info in infos]
    if len(infos) < 2 or any(count is None for count in counts):
        return ""
    return "NVLink" if all(counts) else "NVLink on some" if any(counts) else "PCIe, no NVLink"


def gpus_text(state: HostState) -> str:
    """`8x RTX PRO 6000`; several kinds are all named."""
    names: dict[str, int] = {}
    for info in state.gpu_table.gpus if state.gpu_table else ():
        name = gpu_name(info.name)
        names[name] = names.get(name, 0) + 1
    return " + ".join(f"{count}x {name}" for name, count in names.items())


def age(state: HostState, server: ServerState) -> str:
    """How long the server has been running, by the host's own clock."""
    started = server.identity.started_at
    return "" if started is None or state.now is None or server.gone else format_duration(state.now - started)


def link_spans(link: LinkState, glyphs: Glyphs, *, age_s: float | None, wide: bool) -> Line:
    """State of the link in a word, with round trip and traffic while it is up."""
    phase = link.phase
    style = {LinkPhase.UP: "ok", LinkPhase.DOWN: "bad"}.get(phase, "warn")
    word = str(phase)
    if phase is LinkPhase.STALE and age_s is not None:
        word = f"stale {age_s:.0f} s"
    elif phase is LinkPhase.RECONNECTING:
        attempt = f" {link.attempt}" if link.attempt else ""
        word = f"reconnecting{attempt}" + (f" in {link.retry_in_s:.0f} s" if link.retry_in_s and wide else "")
    spans: list[Span] = []
    if phase is LinkPhase.UP:
        if link.rtt_s is not None:
            spans.append((f"{'link ' if wide else ''}{link.rtt_s * 1e3:.0f} ms".rjust(11 if wide else 6) + " ", "dim"))
        if wide and link.received_bytes_s is not None:
            spans.append((f"{format_bytes(link.received_bytes_s)}/s".rjust(9) + "  ", "dim"))
    spans.append((f"{glyphs.link(phase)} {word} ", style))
    return tuple(spans)


def status_line(
    state: HostState, server: ServerState | None, width: int, glyphs: Glyphs, *, age_s: float | None = None
) -> Line:
    """The first line: where we are, what runs there, and whether the link is up."""
    wide = width >= 120
    right = link_spans(state.link, glyphs, age_s=age_s, wide=wide)
    infos = state.gpu_table.gpus if state.gpu_table else ()
    host: Line = ((clean(state.name), "strong"),)
    gpus: Line = ((gpus_text(state), "text"),)
    parts: list[Line] = [host, gpus]
    if wide:
        parts.append(((fabric(infos), "text"),))
    if server is not None:
        engine = server.engine_title or server.identity.engine
        parts.append(((f"{engine} {clean(server.version or '')}".strip(), "text"),))
        parts.append(((model_name(server.model), "strong"),))
        if wide:
            parts.append(owner_spans(state, server))
    room = width - width_of(right) - 3
    # Which LLM it is matters more than the cards' name.
    if not wide and sum(width_of(part) + 3 for part in parts if part) > room + 3:
        parts.remove(gpus)
    joined = fit(parts, room, (f" {glyphs.separator} ", "dim"))
    return spread(((" ", "text"), *joined), right, width, glyphs.ellipsis)


def owner_spans(state: HostState, server: ServerState) -> Line:
    """`pid 48211 root 2h14m`."""
    identity = server.identity
    words = [f"pid {identity.pid}", clean(identity.user or ""), age(state, server)]
    return ((" ".join(word for word in words if word), "dim"),)


def phase_word(server: ServerState, glyphs: Glyphs) -> Span:
    """The phase as sign and word."""
    phase = server.phase
    style = "ok" if phase is Phase.READY else "bad" if phase is Phase.FAILED else "busy" if phase.starting else "warn"
    return (f"{glyphs.phase(phase)} {str(phase).upper() if not phase.starting else 'STARTING'}", style)


def _range(times: tuple[float, float] | None, between: str = " to ") -> str:
    if times is None:
        return ""
    low, high = (format_duration(value) for value in times)
    return low if low == high else f"{low}{between}{high}"


def phase_line(state: HostState, server: ServerState, width: int, glyphs: Glyphs) -> Line:
    """The second line: each start-up phase with its time, the running one with progress, beside the usual."""
    head: Line = ((" ", "text"), phase_word(server, glyphs), ("  ", "text"))
    pieces = [_phase(state, server, record, glyphs) for record in server.phases]
    usual = _range(server.usual.total_s)
    words: list[str] = []
    if server.started_in_s is not None:
        took = f"started in {format_duration(server.started_in_s)}"
        words = [f"{took}, usually {usual}", took] if usual else [took]
    elif server.phase.starting and server.phases and state.now is not None:
        took = f"so far {format_duration(state.now - server.phases[0].started)}"
        words = [f"{took}, usually {usual}", took] if usual else [took]
    # What runs now matters most, then the whole, then the phases before, oldest least.
    for right in (*words, ""):
        room = width - width_of(head) - (len(right) + 3 if right else 0)
        body = _last_that_fit(pieces, room, (f" {glyphs.then} ", "dim"))
        if body or not pieces:
            return spread((*head, *body), ((f"{right} ", "dim"),) if right else (), width, glyphs.ellipsis)
    return clip_line((*head, *pieces[-1]), width, glyphs.ellipsis)


def _phase(state: HostState, server: ServerState, record: PhaseRecord, glyphs: Glyphs) -> Line:
    name = PHASE_NAMES.get(record.phase, str(record.phase))
    if record.ended is None and server.phase.starting:
        spans: list[Span] = [(f"{glyphs.busy} {name}", "busy")]
        if record.done is not None and record.total:
            spans.append((f" {record.done}/{record.total}", "strong"))
        if state.now is not None:
            spans.append((f" {format_duration(state.now - record.started)}", "text"))
        usual = _range(server.usual.phases_s.get(record.phase), "-")
        if usual:
            spans.append((f" (usually {usual})", "dim"))
        return tuple(spans)
    took = format_duration(record.ended - record.started) if record.ended is not None else glyphs.dash
    failed = server.phase is Phase.FAILED and record is server.phases[-1]
    return ((f"{name} ", "bad" if failed else "dim"), (took, "bad" if failed else "text"))


def _last_that_fit(pieces: Sequence[Line], room: int, separator: Span) -> Line:
    for first in range(len(pieces)):
        line: list[Span] = []
        for piece in pieces[first:]:
            if line:
                line.append(separator)
            line.extend(piece)
        if width_of(line) <= room:
            return tuple(line)
    return ()


def metric_parts(metrics: ServerMetrics) -> list[Line]:
    """The numbers of a serving server, each with its name; a missing one is left out."""

    def part(name: str, text: str) -> Line:
        return ((f"{name} ", "dim"), (text, "strong"))

    parts: list[Line] = []
    if metrics.tok_s is not None:
        parts.append(part("tok/s", f"{metrics.tok_s:7.1f}"))
    if metrics.running is not None:
        parts.append(part("run", f"{metrics.running:3d}"))
    if metrics.queued is not None:
        parts.append(part("queue", f"{metrics.queued:3d}"))
    if metrics.token_usage_ratio is not None:
        parts.append(part("KV", f"{metrics.token_usage_ratio * 100:3.0f} %"))
    if metrics.accept_length is not None:
        parts.append(part("accept", f"{metrics.accept_length:4.2f}"))
    if metrics.ttft_s is not None:
        parts.append(part("ttft", f"{metrics.ttft_s * 1e3:4.0f} ms"))
    if metrics.cache_hit_ratio is not None:
        parts.append(part("cache hit", f"{metrics.cache_hit_ratio * 100:3.0f} %"))
    if metrics.itl_s is not None:
        parts.append(part("itl", f"{metrics.itl_s * 1e3:5.1f} ms"))
    return parts


def metric_grid(metrics: ServerMetrics, width: int) -> list[Line]:
    """The numbers below the chart: names and right-aligned values in columns that do not move."""

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
        ("ttft", number(metrics.ttft_s, ".0f", 1e3, " ms")),
        ("itl", number(metrics.itl_s, ".1f", 1e3, " ms")),
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


def serving_line(state: HostState, server: ServerState, width: int, glyphs: Glyphs, sparkline: str) -> Line:
    """The second line on a narrow screen while the server serves: phase, speed over time, load."""
    head: list[Span] = [(" ", "text"), phase_word(server, glyphs), ("  ", "text")]
    metrics = server.metrics
    parts = metric_parts(metrics)
    if sparkline and parts:
        parts[0] = (*parts[0], (f" {sparkline}", "chart"))
    body = fit([*parts, owner_spans(state, server)], width - width_of(head) - 1, ("  ", "text"))
    return (*head, *body)


def _spread_text(values: Sequence[int]) -> str:
    low, high = format_gib(min(values)), format_gib(max(values))
    return low if low == high else f"{low}-{high}"


def legend_line(rows: Sequence[Row], server: ServerState | None, width: int, glyphs: Glyphs) -> Line:
    """What the fills of the bars stand for, with GiB per rank."""
    names = {
        "weights": "weights",
        "kv": "KV pool",
        "graphs": "graphs",
        "context": "context, NCCL" if width >= 100 else "context",
        "other": "other",
        "foreign": "foreign",
    }
    by_term: dict[str, list[int]] = {}
    for row in rows:
        if row.is_rank or not any(other.is_rank for other in rows):
            for term, value in row.terms:
                by_term.setdefault(term, []).append(value)
    parts: list[Line] = []
    for term in TERMS:
        values = by_term.get(term)
        if not values or (term == "other" and max(values) < 1 << 26):
            continue
        name = "in use" if term == "other" and len(by_term.keys() - {"foreign"}) == 1 else names[term]
        text = f" {name} {_spread_text(values)}"
        if term == "kv" and server and server.kv_tokens is not None:
            text += f" ({server.kv_tokens:,} tokens)"
        parts.append(((glyphs.terms[term], term), (text, "text")))
    left = fit(parts, width - 2, ("  ", "text"))
    return ((" ", "text"), *left) if left else ()


def throttle_lines(rows: Sequence[Row], width: int, glyphs: Glyphs) -> list[Line]:
    """Which ranks the driver slows down and why, in one line."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for label, limits in throttled(rows):
        grouped.setdefault(limits, []).append(label)
    if not grouped:
        return []
    words = "; ".join(f"{_labels(labels, len(rows))} {', '.join(limits)}" for limits, labels in grouped.items())
    return wrapped((f"{glyphs.warn} throttle:", "warn"), words, width, glyphs.ellipsis)


def _labels(labels: Sequence[str], of: int) -> str:
    if len(labels) == of and of > 1:
        return f"all {of}"
    return " ".join(labels[:4]) + (f" +{len(labels) - 4}" if len(labels) > 4 else "")


def foreign_lines(state: HostState, width: int, glyphs: Glyphs) -> list[Line]:
    """Processes that hold GPU memory and belong to nobody we know: gpu, pid, owner, command, GiB."""
    by_pid: dict[int, list[int]] = {}
    for index, process in enumerate(state.foreign):
        by_pid.setdefault(process.pid, []).append(index)
    lines: list[Line] = []
    for pid, indices in by_pid.items():
        processes = [state.foreign[index] for index in indices]
        first = processes[0]
        known = [process.memory_bytes for process in processes if process.memory_bytes is not None]
        size = f"{format_gib(sum(known))} GiB" if known else "size n/a"
        gpus = ",".join(str(process.gpu) for process in processes)
        user = clean(first.user or "unknown user")
        lines.append(
            clip_line(
                (
                    (f" {glyphs.terms['foreign']} foreign ", "foreign"),
                    (f"gpu {gpus}  {size}  pid {pid}  {user}  ", "text"),
                    (clean(first.command or "command not readable"), "dim"),
                ),
                width,
                glyphs.ellipsis,
            )
        )
    return lines


def wrapped(sign: Span, text: str, width: int, ellipsis: str, most: int = 2) -> list[Line]:
    """A sign and a sentence over at most `most` lines; words stay whole."""
    room = max(10, width - width_of((sign,)) - 3)
    rows = [""]
    for word in text.split(" "):
        if rows[-1] and len(rows[-1]) + 1 + len(word) > room and len(rows) < most:
            rows.append(word)
            room = max(10, width - 4)
        else:
            rows[-1] = f"{rows[-1]} {word}" if rows[-1] else word
    first = max(10, width - width_of((sign,)) - 3)
    lines: list[Line] = [((" ", "text"), sign, (" ", "text"), (clip(rows[0], first, ellipsis), "text"))]
    lines += [(("   ", "text"), (clip(row, max(10, width - 4), ellipsis), "text")) for row in rows[1:]]
    return lines


Item = list[Line]
"""One thing that wants a look: a line, and its continuation."""


def failure_items(server: ServerState, width: int, glyphs: Glyphs, most: int) -> list[Item]:
    """Why a start failed or a server died: phase, ranks, which came first, and its words."""
    items: list[Item] = []

    def add(sign: str, style: str, text: str, lines: int = 2) -> None:
        items.append(wrapped((sign, style), text, width, glyphs.ellipsis, min(most, lines)))

    first = server.errors[0] if server.errors else None
    if server.phase is Phase.FAILED:
        where = f" in {first.phase}" if first and first.phase is not Phase.UNKNOWN else ""
        ranks = ""
        if first and first.ranks:
            ranks = f" {glyphs.separator} {clean(first.ranks[0])}"
            ranks += f" first of {len(first.ranks)} ranks" if len(first.ranks) > 1 else ""
        words = first.text if first else server.phase_evidence
        text = clean(words or "its processes are gone; the log does not say why")
        add(f"{glyphs.bad} FAILED{where}{ranks}:", "bad", text, 3)
    elif first and server.phase is not Phase.STOPPED:
        ranks = f" {clean(first.ranks[0])}:" if first.ranks else ":"
        add(f"{glyphs.bad} error{ranks}", "bad", clean(first.text))
    elif server.phase is Phase.STOPPED:
        add(f"{glyphs.down} stopped:", "warn", clean(server.phase_evidence or "its processes are gone"))
    if server.left_pids:
        pids = ", ".join(str(pid) for pid in server.left_pids[:6])
        add(f"{glyphs.warn} left behind:", "warn", f"pid {pids} outlived the server and may hold GPU memory")
    return items


def problem_items(state: HostState, server: ServerState | None, width: int, glyphs: Glyphs, most: int) -> list[Item]:
    """What does not work on the host, serious things first."""
    names = {each.identity.key: f"pid {each.identity.pid}" for each in state.servers}
    chosen = server.identity.key if server else None
    texts: list[tuple[str, bool]] = []
    for problem in state.problems:
        if problem.cleared:
            continue
        own = problem.subject == chosen
        subject = names.get(problem.subject, problem.subject)
        if problem.code == "gpu-lost" and subject.isdigit():
            subject = f"GPU {subject}"
        texts.append(problem_text(problem.code, "" if own else subject, problem.detail))
    if server is not None and server.http_problem:
        texts.append((clean(server.http_problem), False))
    if state.gpu_table is not None and state.gpu_table.reason and not any(p.code == "no-gpu" for p in state.problems):
        texts.append((clean(state.gpu_table.reason), False))
    if state.lost_lines:
        texts.append((f"{state.lost_lines} lines of the probe were lost on the way", False))
    texts.sort(key=lambda each: not each[1])
    signs = {True: (glyphs.bad, "bad"), False: (glyphs.warn, "warn")}
    return [wrapped(signs[serious], text, width, glyphs.ellipsis, most) for text, serious in texts]


def note_items(
    state: HostState,
    server: ServerState | None,
    width: int,
    glyphs: Glyphs,
    *,
    rows: Sequence[Row] = (),
    most: int = 3,
) -> list[Item]:
    """Everything that wants a look, most urgent first: failure, link, XID, problems, foreign processes, throttling.

    Args:
        state: The host.
        server: The server on screen.
        width: Cells of a line.
        glyphs: Signs to draw with.
        rows: Name the ranks among these that the driver slows down, where the table has no room for it.
        most: Lines that one item may take.
    """
    items = failure_items(server, width, glyphs, most) if server is not None else []
    link = state.link
    if link.reason and link.phase is not LinkPhase.UP:
        todo = ". Press R to try again" if link.final else ""
        sign = (f"{glyphs.link(link.phase)} link {link.phase}:", "bad" if link.final else "warn")
        items.append(wrapped(sign, f"{clean(link.reason).rstrip('.')}{todo}", width, glyphs.ellipsis, most))
    bus_ids = {info.bus_id: info.index for info in state.gpu_table.gpus if info.bus_id} if state.gpu_table else {}
    for xid in state.xids[-2:]:
        gpu = bus_ids.get(xid.bus_id)
        where = f"GPU {gpu}" if gpu is not None else clean(xid.bus_id)
        sign = (f"{glyphs.bad} XID {xid.xid} on {where}:", "bad")
        items.append(wrapped(sign, clean(xid.text), width, glyphs.ellipsis, most))
    items += problem_items(state, server, width, glyphs, min(most, 2))
    items += [[line] for line in foreign_lines(state, width, glyphs)]
    if throttling := throttle_lines(rows, width, glyphs):
        items.append(throttling)
    return items


def note_lines(items: Sequence[Item], compact: Sequence[Item], room: int, glyphs: Glyphs) -> list[Line]:
    """As many items as there is room for, whole ones only; the rest is counted.

    Args:
        items: The items as they should be.
        compact: The same in one line each.
        room: Lines there are.
        glyphs: Signs to draw with.
    """
    lines = [line for item in items for line in item]
    if len(lines) <= room:
        return lines
    lines = [line for item in compact for line in item]
    if len(lines) <= room:
        return lines
    kept = lines[: max(0, room - 1)]
    return [*kept, ((f" {glyphs.ellipsis} and {len(lines) - len(kept)} more: i shows all", "dim"),)]


def no_server_line(state: HostState, glyphs: Glyphs) -> Line:
    """In place of phases when nothing serves."""
    if state.link.phase is LinkPhase.CONNECTING and state.hello is None:
        return ((f" {glyphs.waiting} connecting to {clean(state.name)} {glyphs.ellipsis}", "busy"),)
    if state.hello is None:
        return ((" nothing is known of this host yet", "dim"),)
    if not state.scanned:
        return ((f" {glyphs.waiting} looking for servers {glyphs.ellipsis}", "busy"),)
    return ((f" {glyphs.down} no inference server runs here", "warn"), ("  a start is noticed within seconds", "dim"))
