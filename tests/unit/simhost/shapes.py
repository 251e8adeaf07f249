"""Reduces log lines to their shape: all words, no numbers. Two lines of one shape came from one template."""

from __future__ import annotations

import re

_RULES: tuple[tuple[str, str], ...] = (
    (r"\b(cpu|cuda) graph: ", "cuda graph: "),  # real logs of this version exist only from a CPU
    (r"available_cpu_mem=", "available_gpu_mem="),
    (r"\b(?:True|False)\b", "BOOL"),
    (r'"(?:GET|POST|HEAD) /\S* HTTP/1\.1"', '"REQUEST"'),
    (r"\b(?:200 OK|404 Not Found|503 Service Unavailable)\b", "STATUS"),
    (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
    (r"\d+(?::\d\d){1,2}|(?<=<)\?", "CLOCK"),
    (r" *(?:\?|[\d.]+)(?:it/s|s/it)", " PACE"),
    (r"(?<=detected content format: )\w+", "FORMAT"),
    (r"\|[█▏▎▍▌▋▊▉ ]+\|", "|BAR|"),
    (r"'[0-9a-f]{32}'", "RID"),
    (r"\bscheduler_\d+", "scheduler_N"),
    (r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e-?\d+)?(?=\D|$)", "N"),
    (r"\[(?:RID(?:, )?)*\]", "[RIDS]"),
    (r"\[N(?:, N)*\]", "[NS]"),
    (r" +(?=N%)", " "),
    (r"(?:/[\w.-]+)+/corepipe\S*|/srv/corepipe\S*|/venv\.cuda\S*", "PIPE"),
    (r"type=\w+", "type=MODEL"),
    (r"nccl==[\w.]+", "nccl==V"),
    (r"(?:KiB|MiB|GiB)", "SIZE"),
)


def shape(line: str) -> str:
    """The shape of one line; the dump of arguments keeps only its kind."""
    found = re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: [A-Z_]+\d+)*)\] (.*)", line)
    tag, text = ("[T TP] " if found[1] else "[T] ", found[2]) if found else ("", line)
    if text.startswith("server_args="):
        return tag + text[: text.index("(") if text.startswith("server_args=S") else 13]
    for pattern, word in _RULES:
        text = re.sub(pattern, word, text)
    return tag + text


def lines_of(log: str) -> list[str]:
    """Lines of a log, bars included, without blank ones and the insides of tracebacks."""
    out = []
    for line in re.split(r"[\r\n]+", log):
        if line.strip() and not re.match(r"\s+(File \"|\S|[\^~])", line):
            out.append(line.rstrip())
    return out
