"""A reading as text: fixed columns, no colour, no control characters.

It is made from the values of `core.snapshot`, so that text and JSON cannot disagree.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tuner.core.doctor import Check
from tuner.core.finding_words import ranks_text, sureness
from tuner.core.logtext import clean
from tuner.core.remedies import order
from tuner.core.report import FindingReport
from tuner.units import format_duration, format_gib

MISSING = "-"
COMMAND_WIDTH = 60
_NAME = 22
"""Most characters of a GPU's name in a row: the other columns leave so many of 80."""
_PARTS = {
    "gpus": "the GPUs",
    "samples": "the readings of the GPUs",
    "servers": "the servers",
    "log": "the log",
    "phase": "the phase",
    "findings": "the findings",
    "speed": "the speed",
}
"""Words for each part of a reading that may be missing."""


def lines(reading: dict[str, Any]) -> Iterator[str]:
    """Yield the whole reading as text."""
    yield _headline(reading)
    yield from _gpus(reading["gpus"])
    for server in reading["servers"]:
        yield ""
        yield from _server(server)
    if not reading["servers"] and not reading["missing"]:
        yield ""
        yield "no server runs here"
    yield from _runs(reading)
    if reading["foreign"]:
        yield ""
        yield "foreign processes on the GPUs"
        yield from table(
            ("gpu", "pid", "user", "GiB", "command"),
            [
                (p["gpu"], p["pid"], p["user"], format_gib(p["memory_bytes"]), plain(p["command"], COMMAND_WIDTH))
                for p in reading["foreign"]
            ],
        )
    if reading["problems"]:
        yield ""
        yield "problems"
        for problem in reading["problems"]:
            # A server's key is its PID and start time; people look for the PID.
            subject = re.sub(r"^(\d+):\d+$", r"pid \1", problem["subject"] or "")
            yield "  " + "  ".join(plain(part) for part in (problem["code"], subject, problem["detail"]) if part)
    if reading["missing"]:
        yield ""
        engines = {server["pid"]: plain(server["engine"]) for server in reading["servers"]}
        yield "not told in time: " + ", ".join(_missing(part, engines) for part in reading["missing"])


def _runs(reading: dict[str, Any]) -> Iterator[str]:
    """Yield what goes on or was interrupted, and who else may change the host."""
    going = [run for run in reading["runs"] if run["outcome"] == "running"]
    if going:
        yield ""
    for run in going:
        name = plain(run["title"] or run["preset"] or "a stop")
        what = "was interrupted at" if run["interrupted"] else "goes on:"
        yield f"run {run['id']}  {name} {what} {run['step']}  {plain(run['detail'])}"
    lease = reading["lease"]
    if lease["holder"] is not None and not lease["mine"]:
        machine = f"@{plain(lease['holder']['machine'])}" if lease["holder"]["machine"] else ""
        yield ""
        yield f"{plain(lease['holder']['name'])}{machine} may change this host"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    left: Sequence[str] = ("name", "user", "command", "rank"),
) -> Iterator[str]:
    """Yield a table: numbers flush right, the columns named in `left` flush left."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = (
        [max(len(title), *(len(row[i]) for row in cells)) for i, title in enumerate(head)]
        if cells
        else [len(t) for t in head]
    )
    for row in [list(head), *cells]:
        parts = [
            cell.ljust(width) if title in left else cell.rjust(width)
            for title, cell, width in zip(head, row, widths, strict=True)
        ]
        yield ("  " + "  ".join(parts)).rstrip()


def check_lines(checks: Sequence[Check]) -> Iterator[str]:
    """Yield the lines of `doctor`: verdict, what was checked, its value, and what a failure costs."""
    width = max((len(check.what) for check in checks), default=0)
    for check in checks:
        cost = f"  - {plain(check.cost)}" if check.cost else ""
        yield f"{check.verdict:<7}  {plain(check.what):<{width}}  {plain(check.value)}{cost}"


def plain(value: Any, width: int = 0) -> str:
    """Return text of the host safe for a terminal: one line, no control characters, cut at `width` if not 0."""
    if value is None or value == "":
        return MISSING
    text = clean(str(value)).replace("\t", " ").replace("\n", " ")
    return text if not width or len(text) <= width else text[: width - 3] + "..."


def _missing(part: dict[str, Any], engines: dict[int, str]) -> str:
    what = _PARTS.get(part["what"], plain(part["what"]))
    return what if part["pid"] is None else f"{what} of {engines[part['pid']]} (pid {part['pid']})"


def _headline(reading: dict[str, Any]) -> str:
    names = sorted({gpu["name"] for gpu in reading["gpus"]})
    cards = ", ".join(f"{sum(g['name'] == name for g in reading['gpus'])}x {plain(name)}" for name in names)
    at = reading["at"]
    when = "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
    return "  ".join(
        part for part in (plain(reading["host"]), cards or ("" if reading["missing"] else "no GPU"), when) if part
    )


def _gpus(gpus: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not gpus:
        return
    # The headline names the GPUs: only where they differ does a row say which it is, cut so that 80 columns hold it.
    named = len({gpu["name"] for gpu in gpus}) > 1
    yield from table(
        ("gpu", *(("name",) if named else ()), "used GiB", "total", "util %", "W", "limit", "°C", "SM MHz"),
        [
            (
                gpu["index"],
                *((plain(gpu["name"], _NAME),) if named else ()),
                _gib(gpu["memory_used_bytes"]),
                _gib(gpu["memory_total_bytes"]),
                _number(gpu["utilization_ratio"], 100),
                _number(gpu["power_w"]),
                _number(gpu["power_limit_w"]),
                gpu["temperature_c"],
                gpu["sm_mhz"],
            )
            for gpu in gpus
        ],
    )
    for gpu in gpus:
        if gpu["error"]:
            yield f"  gpu {gpu['index']}: {plain(gpu['error'])}"


def _server(server: dict[str, Any]) -> Iterator[str]:
    owner = "" if server["user"] is None else f" of {plain(server['user'])}"
    port = "" if server["port"] is None else f"port {server['port']}"
    title = f"{server['engine']} {server['version'] or ''}".strip()
    parts = (title, plain(server["model"]), f"pid {server['pid']}{owner}", port, server["phase"].upper())
    yield "  ".join(part for part in parts if part)
    log = server["log"]
    if log is not None:
        where = log["path"] or log["note"] or log["kind"]
        yield f"  log {plain(where)}"
    if server.get("preset_title"):
        named = f"preset {plain(server['preset'])}: " if server["preset"] else "started by gputuner: "
        yield f"  {named}{plain(server['preset_title'])}"
    if server["started_in_s"] is not None:
        yield f"  started in {format_duration(server['started_in_s'])}"
    if server["ranks"]:
        yield from table(
            ("rank", "gpu", "pid", "weights", "kv", "graphs", "other", "total GiB"),
            [
                (
                    rank["tag"],
                    rank["gpu"],
                    rank["pid"] if rank["alive"] else f"{rank['pid'] or ''} dead".strip(),
                    *(_gib(rank["memory_bytes"][term]) for term in ("weights", "kv", "graphs", "other", "total")),
                )
                for rank in server["ranks"]
            ],
        )
    yield "  " + _metrics(server)
    if server["http_problem"]:
        yield f"  {plain(server['http_problem'])}"
    for error in server["errors"]:
        ranks = f" [{', '.join(error['ranks'])}]" if error["ranks"] else ""
        yield f"  error{ranks} {plain(error['text'])}"
    tags = {rank["rank"]: rank["tag"] for rank in server["ranks"]}
    for finding in server["findings"]:
        yield from _finding(msgspec.convert(finding, FindingReport), tags)


def _finding(finding: FindingReport, tags: dict[int, str]) -> Iterator[str]:
    """Yield a finding's title and its first remedy; `diagnose` and the dashboard show all of it."""
    where = "" if finding.phase == "none" else f" in {finding.phase}"
    parts = (finding.cause, ranks_text(finding.ranks, tags), sureness(finding.confidence))
    yield f"  {finding.severity}{where}  {'  '.join(part for part in parts if part)}"
    yield f"    {plain(finding.title)}"
    for remedy in finding.remedies[:1]:
        yield f"    do {plain(order(remedy) + (f': {remedy.why}' if remedy.why else ''))}"


def _metrics(server: dict[str, Any]) -> str:
    metrics = server["metrics"]
    tokens = server["kv_tokens"]
    parts = [
        f"tok/s {_number(metrics['tok_s'], digits=1)}",
        f"running {plain(metrics['running'])}",
        f"queued {plain(metrics['queued'])}",
        f"token usage {_number(metrics['token_usage_ratio'], 100)} %",
        f"of {tokens:,} tokens" if tokens is not None else "",
        "" if metrics["accept_length"] is None else f"accept length {metrics['accept_length']:.2f}",
        "" if metrics["source"] is None else f"(from {metrics['source']})",
    ]
    return "  ".join(part for part in parts if part)


def _gib(value: int | None) -> str | None:
    return None if value is None else format_gib(value)


def _number(value: float | None, scale: float = 1, digits: int = 0) -> str:
    return MISSING if value is None else f"{value * scale:.{digits}f}"
