"""Log lines per second that an engine parses: prefix, prefilter, and facts where the prefilter matches.

`python benchmarks/bench_parse.py` prints a row per engine and kind of traffic, with the cost relative to splitting the
same text into lines, which is the least that any parser must do.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tuner.core.engine import Engine
from tuner.core.logtext import clean, segments
from tuner.engines import load_engines

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "tests/golden/logs"
LINES = 40_000
START = {"sglang": "sglang/0.5.16/h200-base.log", "vllm": "vllm/0.32.0/cpu-tp2-worker-sigkill.log"}
BARS = {"plain": 200_000, "decode": 60_000, "start": 20_000}
"""Lines per second that must be reached, by kind of traffic."""


def plain(engine: str) -> list[str]:
    """Return access lines and the like, in which no fact is."""
    if engine == "sglang":
        kinds = (
            '[2026-11-29 16:24:{s:02d}] INFO:     10.0.0.9:{p} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
            "[2026-11-29 16:24:{s:02d} TP0] Tree cache initialized: source=default impl=RadixCache n={p}",
        )
    else:
        kinds = (
            'INFO:     10.0.0.9:{p} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
            "(APIServer pid=27) INFO 11-02 09:20:{s:02d} [serving_chat.py:90] Using default sampling params n={p}",
        )
    return [kinds[i % len(kinds)].format(s=i // 700 % 60, p=40_000 + i % 9000) for i in range(LINES)]


def decode(engine: str) -> list[str]:
    """Return only the line that a busy server prints most."""
    line = {
        "sglang": "[2026-11-29 16:24:{s:02d} TP0] Decode batch, #running-req: 32, #token: {p}, token usage: 0.41, "
        "cuda graph: True, gen throughput (token/s): 1505.78, #queue-req: 3",
        "vllm": "(APIServer pid=27) INFO 11-02 09:20:{s:02d} [loggers.py:335] Engine 000: Avg prompt throughput: {p}.0 "
        "tokens/s, Avg generation throughput: 1973.4 tokens/s, Running: 64 reqs, Waiting: 3 reqs, GPU KV cache usage: "
        "41.7%, Prefix cache hit rate: 22.5%",
    }[engine]
    return [line.format(s=i // 700 % 60, p=40_000 + i % 9000) for i in range(LINES)]


def start(engine: str) -> list[str]:
    """Return a real start, repeated."""
    text = (LOGS / START[engine]).read_text("utf-8", "replace")
    once = [clean(part) for line in text.split("\n") for part in segments(line)]
    return (once * (LINES // len(once) + 1))[:LINES]


def parse(engine: Engine, lines: list[str]) -> float:
    """Return the lines per second of parsing, best of three."""
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        for number, line in enumerate(lines):
            prefix = engine.prefix(line)
            if engine.interesting(line):
                engine.facts(line, prefix, number)
        best = max(best, len(lines) / (time.process_time() - began))
    return best


def split(lines: list[str]) -> float:
    """Return the lines per second of splitting alone."""
    text = "\n".join(lines)
    began = time.process_time()
    count = len(text.split("\n"))
    return count / (time.process_time() - began)


def main() -> int:
    """Print the table; return 1 when a bar is missed."""
    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}")
    traffic: dict[str, Callable[[str], list[str]]] = {"plain": plain, "decode": decode, "start": start}
    missed = 0
    for name, engine in load_engines().items():
        for kind, make in traffic.items():
            lines = make(name)
            rate = parse(engine, lines)
            verdict = "ok" if rate >= BARS[kind] else "MISSED"
            missed += verdict != "ok"
            ratio = split(lines) / rate
            print(f"{name:7} {kind:7} {rate:10,.0f} lines/s, {ratio:4.0f} x split, bar {BARS[kind]:,}: {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
