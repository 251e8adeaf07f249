"""The lines below the rank table: the legend of the bars, and what needs attention, most urgent first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tuner.core.hang import HANGS, late, stopped_parts
from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase
from tuner.domain.state import HostState, ServerState
from tuner.errors import sentences
from tuner.units import format_duration, format_gib
from tuner.widgets.glyphs import GUESTS, TERMS, Glyphs
from tuner.widgets.rank_table import DEAD, ENDED, Row, throttled
from tuner.widgets.spans import Line, Span, clean, clip, clip_line, fit, width_of
from tuner.widgets.status import PHASE_DOING
from tuner.widgets.wording import problem_text

_OF_GPUS = ("gpu-lost", "nvml-error")
"""Codes of problems whose subject may be a GPU."""


def _spread_text(values: Sequence[int]) -> str:
    low, high = format_gib(min(values)), format_gib(max(values))
    return low if low == high else f"{low}-{high}"


def legend_line(rows: Sequence[Row], server: ServerState | None, width: int, glyphs: Glyphs) -> Line:
    """Return the legend of the bars: each fill with its name and GiB per rank."""
    names = {
        "weights": "weights",
        "loading": "loading weights",
        "kv": "KV pool",
        "graphs": "graphs",
        "context": "context, NCCL" if width >= 100 else "context",
        "other": "other",
        "servers": "other servers",
        "foreign": "foreign",
    }
    by_term: dict[str, list[int]] = {}
    ranks = [row for row in rows if row.is_rank]
    # Memory left on the GPU of a dead rank says nothing about the living ranks.
    for row in [row for row in ranks if row.note not in (DEAD, ENDED)] or ranks or rows:
        for term, value in row.terms:
            by_term.setdefault(term, []).append(value)
    if by_term.keys() <= {"other", *GUESTS}:
        names["other"] = "in use"

    def part(term: str, name: str, more: str = "") -> Line:
        return ((glyphs.terms[term], term), (f" {name} {_spread_text(by_term[term])}{more}", "text"))

    shown = [term for term in TERMS if max(by_term.get(term, (0,))) >= (1 << 26 if term == "other" else 1)]
    tokens = f" ({server.kv_tokens:,} tokens)" if server and server.kv_tokens is not None else ""
    left = fit([part(term, names[term], tokens if term == "kv" else "") for term in shown], width - 2, ("  ", "text"))
    if "servers" in shown and not any(style == "servers" for _, style in left):
        # Nothing below the table explains the memory of other servers, unlike that of foreign processes.
        names["kv"] = "KV"
        left = fit([part(term, names[term]) for term in shown], width - 2, ("  ", "text"))
    return ((" ", "text"), *left) if left else ()


def throttle_lines(rows: Sequence[Row], width: int, glyphs: Glyphs) -> list[Line]:
    """Return which ranks the driver slows down and why, as one item."""
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
    """Return a line for each foreign process: GPU, PID, owner, command, GiB."""
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
    """Return a symbol and a sentence on at most `most` lines, broken between words."""
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
"""A note: its line, and the lines that continue it."""


def failure_items(server: ServerState, width: int, glyphs: Glyphs, most: int, *, explained: bool = False) -> list[Item]:
    """Return why a start failed or a server died: phase, ranks, first failure and its text, if no card shows them."""
    items: list[Item] = []

    def add(sign: str, style: str, text: str, lines: int = 2) -> None:
        items.append(wrapped((sign, style), text, width, glyphs.ellipsis, min(most, lines)))

    first = server.errors[0] if server.errors else None
    if server.phase is Phase.FAILED and explained:
        pass
    elif server.phase is Phase.FAILED:
        where = f" {PHASE_DOING[first.phase]}" if first and first.phase in PHASE_DOING else ""
        ranks = ""
        # The text of a silent death names its ranks itself.
        if first and first.ranks and not first.silent:
            ranks = f" {glyphs.separator} {clean(first.ranks[0])}"
            ranks += f" first of {len(first.ranks)} ranks" if len(first.ranks) > 1 else ""
        words = first.text if first else server.phase_evidence
        text = clean(words or "its processes are gone; the log does not say why")
        add(f"{glyphs.bad} FAILED{where}{ranks}:", "bad", text, 3)
        if first and first.silent and len(server.errors) > 1:
            second = server.errors[1]
            rank = f" {clean(second.ranks[0])}:" if second.ranks else ":"
            add(f"{glyphs.bad} then{rank}", "bad", clean(second.text))
    elif first and server.phase is not Phase.STOPPED:
        ranks = f" {clean(first.ranks[0])}:" if first.ranks and not first.silent else ":"
        add(f"{glyphs.bad} error{ranks}", "bad", clean(first.text))
    elif server.phase is Phase.STOPPED:
        add(f"{glyphs.down} stopped:", "warn", clean(server.phase_evidence or "its processes are gone"))
    for part in stopped_parts(server):
        words = f"{clean(part.name)} was stopped by a signal or a debugger and does nothing; "
        words += f"`kill -CONT {part.pid}` lets it go on"
        add(f"{glyphs.bad} halted:", "bad", words)
    if server.left_pids:
        pids = ", ".join(str(pid) for pid in server.left_pids[:6])
        add(f"{glyphs.warn} left behind:", "warn", f"pid {pids} outlived the server and may hold GPU memory")
    return items


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as a list of ranges: `0-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(str(end) for end in run) for run in runs)


def group_name(tags: Sequence[str], of: int) -> str:
    """Return the name of the ranks that share a row: `TP2`, `TP0-3, 6`, `rank 8-15`, `all 8`.

    Args:
        tags: Tags of the ranks that share the row.
        of: Number of ranks of the server.
    """
    if len(tags) == of and of > 1:
        return f"all {of}"
    numbered = [found for tag in tags if (found := re.fullmatch(r"(TP|rank )(\d+)", tag))]
    if len(tags) > 1 and len(numbered) == len(tags) and len({found[1] for found in numbered}) == 1:
        return f"{numbered[0][1]}{ranges(int(found[2]) for found in numbered)}"
    return clean(tags[0]) if len(tags) == 1 else f"{clean(tags[0])} +{len(tags) - 1}"


def problem_items(state: HostState, server: ServerState | None, width: int, glyphs: Glyphs, most: int) -> list[Item]:
    """Return the problems of the host, serious ones first."""
    names = {each.identity.key: f"pid {each.identity.pid}" for each in state.servers}
    if server:
        names[server.identity.key] = ""
    texts: list[tuple[str, bool]] = []
    by_gpu: dict[tuple[str, str], list[int]] = {}
    for problem in state.problems:
        if problem.cleared:
            continue
        gpu = re.fullmatch(r"(?:GPU )?(\d+)", problem.subject) if problem.code in _OF_GPUS else None
        if gpu:
            detail = problem.detail.removeprefix(f"GPU {gpu[1]}: ")
            by_gpu.setdefault((problem.code, detail), []).append(int(gpu[1]))
        else:
            texts.append(problem_text(problem.code, names.get(problem.subject, problem.subject), problem.detail))
    texts += [problem_text(code, f"GPU {ranges(gpus)}", detail) for (code, detail), gpus in by_gpu.items()]
    if server is not None and server.http_problem:
        texts.append((clean(server.http_problem), False))
    if state.gpu_table is not None and state.gpu_table.reason and not any(p.code == "no-gpu" for p in state.problems):
        texts.append((clean(state.gpu_table.reason), False))
    if state.lost_lines:
        texts.append((f"{state.lost_lines} lines of the probe were lost on the way", False))
    texts.sort(key=lambda each: not each[1])
    signs = {True: (glyphs.bad, "bad"), False: (glyphs.warn, "warn")}
    return [wrapped(signs[serious], text, width, glyphs.ellipsis, most) for text, serious in texts]


SILENT_S = 120.0
"""Seconds without a log line after which a start counts as silent. Compiling kernels before a capture takes a minute.
"""


def silence(state: HostState, server: ServerState | None) -> str:
    """Return a sentence saying that a start stopped logging; empty while it logs or its phase is usually silent."""
    if server is None or not server.phase.starting or server.log.said_at is None:
        return ""
    if state.link.phase is not LinkPhase.UP:
        return ""
    silent_s = state.mono - server.log.said_at
    known = bool(server.phases) and server.phases[-1].phase in server.usual.phases_s
    if any(finding.cause in HANGS for finding in server.findings):
        return ""  # the finding's card says so
    if silent_s < SILENT_S or (known and not late(state, server, server.phases[-1])):
        return ""
    rates = {sample.index: sample.utilization_ratio for sample in state.samples}
    shares = [(rank.tag, rates.get(rank.gpu) if rank.gpu is not None else None) for rank in server.ranks]
    idle = [tag for tag, share in shares if share == 0.0]
    if any(share for _, share in shares) and idle:
        work = f"; {', '.join(idle[:4])}{' and others' if idle[4:] else ''} without work while other ranks have some"
    else:
        work = ""
    return f"no line in the log for {format_duration(silent_s)}{work}"


FINAL_LINES = 10
"""Most lines for the reason why a link was given up."""


def note_items(
    state: HostState,
    server: ServerState | None,
    width: int,
    glyphs: Glyphs,
    *,
    rows: Sequence[Row] = (),
    most: int = 3,
    problems: int | None = None,
    ended: bool = False,
    explained: bool = False,
) -> list[Item]:
    """Return all notes, most urgent first: failure, link, XID, problems, foreign processes, throttling.

    Args:
        state: The host.
        server: The server on screen; None for none.
        width: Width of a line, in cells.
        glyphs: Symbols to draw with.
        rows: Rows whose throttled ranks to name, where the table has no room for that.
        most: Most lines of one item.
        problems: Most problems of the host to show; None for all.
        ended: A recording has come to its end, so nothing is said about the link.
        explained: A card says why the server failed.
    """
    items = failure_items(server, width, glyphs, most, explained=explained) if server is not None else []
    if words := silence(state, server):
        items.append(wrapped((f"{glyphs.warn} silent start:", "warn"), words, width, glyphs.ellipsis, most))
    link = state.link
    if link.reason and link.phase is not LinkPhase.UP and not ended:
        todo = "Press R to try again" if link.final else ""
        sign = (f"{glyphs.link(link.phase)} link {link.phase}:", "bad" if link.final else "warn")
        # A host that cannot be reached shows nothing else, and the last sentence says what to do.
        lines = FINAL_LINES if link.final and most > 1 else most
        items.append(wrapped(sign, sentences(clean(link.reason), todo), width, glyphs.ellipsis, lines))
    bus_ids = {info.bus_id: info.index for info in state.gpu_table.gpus if info.bus_id} if state.gpu_table else {}
    for xid in state.xids[-2:]:
        gpu = bus_ids.get(xid.bus_id)
        where = f"GPU {gpu}" if gpu is not None else clean(xid.bus_id)
        sign = (f"{glyphs.bad} XID {xid.xid} on {where}:", "bad")
        items.append(wrapped(sign, clean(xid.text), width, glyphs.ellipsis, most))
    items += problem_items(state, server, width, glyphs, max(1, most - 1))[:problems]
    items += [[line] for line in foreign_lines(state, width, glyphs)]
    if throttling := throttle_lines(rows, width, glyphs):
        items.append(throttling)
    return items


def note_lines(
    items: Sequence[Item], compact: Sequence[Item], room: int, glyphs: Glyphs, hidden: int = 0
) -> list[Line]:
    """Return the items that fit entirely; the others are counted in the last line.

    Args:
        items: The items at full length.
        compact: The same items in one line each; used for all but the first, the most urgent.
        room: Number of lines available.
        glyphs: Symbols to draw with.
        hidden: Number of items that were left out before.
    """
    shortened = [*items[:1], *compact[1:]] if items and len(items[0]) < room else compact
    for choice in (items, shortened):
        lines = [line for item in choice for line in item]
        if len(lines) + bool(hidden) <= room:
            break
    kept = lines if len(lines) + bool(hidden) <= room else lines[: max(0, room - 1)]
    left = len(lines) - len(kept) + hidden
    return [*kept, ((f" {glyphs.ellipsis} and {left} more: i shows all", "dim"),)] if left else kept
