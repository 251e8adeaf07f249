"""What the terminal costs: CPU, memory, lines lost, and how soon a key shows its effect, in a real terminal.

`python benchmarks/bench_tui.py` runs the application in a pseudo-terminal of its own, on a session that feeds it
through the real core (log bytes and GPU readings in, states out) at given rates, and prints one row per case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pexpect
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SIZE = (160, 48)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
CASES = (
    # name, screen, lines a second, seconds, bar for CPU in percent of a core
    ("idle, overview", "o", 0, 20, 2.0),
    ("idle, logs", "l", 0, 20, 2.0),
    ("100 lines/s, overview", "o", 100, 20, 15.0),
    ("1,000 lines/s, overview", "o", 1_000, 20, 15.0),
    ("1,000 lines/s, logs", "l", 1_000, 20, 15.0),
    ("20,000 lines/s, logs", "l", 20_000, 20, None),
)
KEY_BAR_MS = 50.0
RSS_BAR_MB = 120.0
DECODE = (
    "[2026-11-29 14:02:11 TP{rank}] Decode batch, #running-req: 4, #token: {n}, token usage: 0.37, "
    "cuda graph: True, gen throughput (token/s): 89.51, #queue-req: 0\n"
)
ACCESS = '[2026-11-29 14:02:11] INFO:     10.0.0.9:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def line(n: int) -> str:
    """What a busy server prints: batches, and a request's line for most of the rest."""
    return DECODE.format(rank=n % 8, n=58_000 + n) if n % 10 == 0 else ACCESS.format(n=58_000 + n)


class Feed:
    """A session whose host says what it is told to, as often as it is told to."""

    def __init__(self, rate: int) -> None:
        from tests.support import states
        from tuner.engines import load_engines

        self.player: Any = None
        self.rate = rate
        self.engines = load_engines()
        state = states.serving()
        self.state = states.REPLACE(state, servers=(states.REPLACE(state.servers[0], log=states.log_of([])),))
        self.key = states.KEY
        self.fed = 0
        self.offset = 0
        self._closed = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Grow the log ten times a second, read the GPUs once."""
        from tests.support import states
        from tuner.core.reduce import reduce
        from tuner.domain.events import GpuSamples, LogBytes

        loop = asyncio.get_running_loop()
        began = loop.time()
        second = 0
        while not self._closed.is_set():
            await asyncio.sleep(0.1)
            passed = loop.time() - began
            mono = states.MONO + passed
            due = int(passed * self.rate)
            if due > self.fed:
                data = "".join(line(n) for n in range(self.fed, due))
                event = LogBytes(key=self.key, offset=self.offset, end=self.offset + len(data), data=data, mono=mono)
                self.state, _ = reduce(self.state, event, self.engines)
                self.fed, self.offset = due, self.offset + len(data)
                self._changed.set()
            if int(passed) > second:
                second = int(passed)
                used = [86.8 + (second * 7 + gpu) % 5 / 10 for gpu in range(8)]
                self.state, _ = reduce(self.state, GpuSamples(samples=states.samples(used), mono=mono), self.engines)
                self._changed.set()

    async def snapshots(self) -> AsyncIterator[Any]:
        """At most five a second."""
        while not self._closed.is_set():
            self._changed.clear()
            yield self.state
            await asyncio.sleep(0.2)
            await self._changed.wait()

    def reconnect(self) -> None:
        """There is no link."""

    async def aclose(self) -> None:
        """End."""
        self._closed.set()
        self._changed.set()


def child(rate: int, report: Path) -> None:
    """The application itself; writes what it saw when it ends."""
    from tuner.app import TunerApp
    from tuner.widgets.log_index import line_of
    from tuner.widgets.log_view import LogView

    sessions: list[Feed] = []
    answers: list[dict[str, Any]] = []

    def make(ask: object) -> list[Feed]:
        sessions.append(Feed(rate))
        return sessions

    class Watched(TunerApp):
        async def action_quit(self) -> None:
            feed = sessions[0]
            log = feed.state.servers[0].log
            shown = None
            if self.current_mode == "logs":
                view = self.screen.query_one(LogView)
                view.action_follow()
                while view.live.work():
                    pass
                view.show_log(log)
                tokens = [
                    int(re.findall(r"(?:#token: |10\.0\.0\.9:)(\d+)", line_of(row).text)[0]) for row in view.live.rows
                ]
                shown = tokens == list(range(58_000 + feed.fed - len(tokens), 58_000 + feed.fed))
                shown = shown and len(tokens) == log.held_lines
            answers.append({"fed": feed.fed, "total": log.lines_total, "complete": shown})
            self.exit()

    app = Watched(make)  # type: ignore[arg-type]
    app.run()
    report.write_text(json.dumps(answers[0]))


class Terminal:
    """A pseudo-terminal with the application in it.

    What was written is kept as text without control sequences: drawing it as a terminal does would cost more than
    the application itself, and would be measured as its delay.
    """

    def __init__(self, rate: int, report: Path) -> None:
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        env.pop("NO_COLOR", None)
        argv = [str(Path(__file__)), "--child", str(rate), "--report", str(report)]
        self.process = pexpect.spawn(sys.executable, argv, dimensions=(SIZE[1], SIZE[0]), env=env, timeout=5)
        self.bytes = 0
        self._written = b""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = self.process.read_nonblocking(65_536, timeout=None)
            except (pexpect.EOF, OSError):
                return
            with self._changed:
                self.bytes += len(data)
                self._written = (self._written + data)[-400_000:]
                self._changed.notify_all()

    def wait_for(self, text: str, timeout: float = 20.0) -> float:
        """Seconds until a text is written."""
        last = text.rsplit(" ", 1)[-1].encode()

        def written() -> bool:
            # Cheap first: taking the control sequences out of each piece would compete with the application.
            return last in self._written and text in CONTROL.sub("", self._written.decode(errors="replace"))

        began = time.perf_counter()
        with self._changed:
            if not self._changed.wait_for(written, timeout):
                raise SystemExit(f"never written: {text}")
        return time.perf_counter() - began

    def close(self) -> None:
        """Wait for the end of its output."""
        self._thread.join(20)
        self.process.close()

    def press(self, key: str, text: str) -> float:
        """Milliseconds from a key to what it does."""
        with self._changed:
            self._written = b""
        self.process.send(key)
        return self.wait_for(text) * 1e3


def measure(screen: str, rate: int, seconds: float) -> dict[str, Any]:
    """One case."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        terminal = Terminal(rate, report)
        terminal.wait_for("TP7")
        if screen == "l":
            terminal.press("l", "level all")
        process = psutil.Process(terminal.process.pid)
        time.sleep(3)
        before, began, bytes_before = process.cpu_times(), time.perf_counter(), terminal.bytes
        time.sleep(seconds)
        after, took = process.cpu_times(), time.perf_counter() - began
        drawn = (terminal.bytes - bytes_before) / took
        keys = []
        if screen == "l":
            for _ in range(3):
                keys += [terminal.press("v", f"level {level}") for level in ("info+", "warning+", "error", "all")]
            terminal.press("z", "each line")
        else:
            for _ in range(6):
                keys += [terminal.press("l", "level all"), terminal.press("o", "weights 72.3")]
        rss = process.memory_info().rss
        terminal.process.send("q")
        terminal.close()
        result: dict[str, Any] = json.loads(report.read_text())
    cpu = 100 * (after.user + after.system - before.user - before.system) / took
    return {"cpu": cpu, "rss": rss / 1e6, "drawn": drawn, "keys": keys, **result}


def main() -> int:
    """Run the cases; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=int)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--seconds", type=float, help="instead of each case's own")
    asked = parser.parse_args()
    if asked.child is not None:
        child(asked.child, asked.report)
        return 0
    print(f"Python {sys.version.split()[0]}, {psutil.cpu_count()} cores, terminal {SIZE[0]}x{SIZE[1]}")
    print(f"{'case':<26}{'CPU %':>8}{'bar':>6}{'RSS MB':>8}{'kB/s out':>10}{'key ms (median, worst)':>25}  lines")
    missed = False
    for name, screen, rate, seconds, bar in CASES:
        if asked.only not in name:
            continue
        got = measure(screen, rate, asked.seconds or seconds)
        lost = got["fed"] - got["total"]
        lines = f"{got['fed']:,} fed, {lost} lost" + ("" if got["complete"] is not False else ", view incomplete")
        worst = max(got["keys"])
        keys = f"{statistics.median(got['keys']):.0f}, {worst:.0f}"
        print(
            f"{name:<26}{got['cpu']:>8.1f}{bar if bar is not None else '-':>6}{got['rss']:>8.0f}"
            f"{got['drawn'] / 1e3:>10.1f}{keys:>25}  {lines}",
            flush=True,
        )
        missed = missed or lost != 0 or got["complete"] is False or worst > KEY_BAR_MS or got["rss"] > RSS_BAR_MB
        missed = missed or (bar is not None and got["cpu"] > bar)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
