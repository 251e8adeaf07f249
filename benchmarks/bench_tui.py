"""What the terminal costs: CPU, memory, lines lost, and how soon a key shows its effect, in a real terminal.

`python benchmarks/bench_tui.py` runs the application in a pseudo-terminal of its own, on the recorded host of
`recorded_host.py`, whose log grows at a given rate. Probe, session and application are the real ones; the CPU time is
the application's alone. Three parts:

- load: CPU, memory and keys on one screen at several rates;
- opens: every screen, dialog and field by its key, the first time and later, idle and in a burst;
- memory: only with `--lines N`: memory while so many lines go by, with the whole log on screen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import psutil
from common import Report, cpu_s, own_home
from recorded_host import READY, RecordedHost

SIZE = (160, 48)
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
CASES = (
    # Name, screen, lines per second, seconds, bar for CPU in percent of a core.
    ("idle, overview", "o", 0, 20, 2.0),
    ("idle, logs", "l", 0, 20, 2.0),
    ("100 lines/s, overview", "o", 100, 20, 15.0),
    ("1,000 lines/s, overview", "o", 1_000, 20, 15.0),
    ("1,000 lines/s, logs", "l", 1_000, 20, 15.0),
    ("20,000 lines/s, logs", "l", 20_000, 20, None),
)
OPENS = (
    # Name, keys before it, its key, text that it writes.
    ("Logs", "o", "l", "level info+"),
    ("Details", "o", "i", "interpreter"),
    ("Overview", "l", "o", "info and above"),
    ("help", "o", "?", "finds every command by name"),
    ("palette", "o", "\x10", "Search for commands"),
    ("its commands", "o", "\x10", "Go to Details"),
    ("line in full", "lk", "\r", "escape closes"),
    ("search field", "l", "/", "escape: leave"),
)
"""The keys to measure, in the order in which each is pressed for the first time."""
KEY_BAR_MS = 50.0
RSS_BAR_MB = 120.0
BURST = 20_000
BEAT_S = 0.05
SETTLED_S = 4.0
"""Seconds after the first frame by which work that is done once is over."""
DECODE = (
    "[2026-11-29 14:02:11 TP{rank}] Decode batch, #running-req: 4, #token: {n}, token usage: 0.37, "
    "cuda graph: True, gen throughput (token/s): 89.51, #queue-req: 0\n"
)
ACCESS = '[2026-11-29 14:02:11] INFO:     10.0.0.9:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
NUMBER = re.compile(r"(?:#token: |10\.0\.0\.9:)(\d+)")
ESCAPE = "\x1b"


def line(n: int) -> str:
    """Return a line of a busy server: one batch line in ten, otherwise access lines."""
    return DECODE.format(rank=n % 8, n=n) if n % 10 == 0 else ACCESS.format(n=n)


def text(first: int, last: int) -> str:
    """Return the lines with these numbers."""
    return "".join(line(n) for n in range(first, last))


class Growth:
    """A log that grows by `rate` lines per second until it is stopped or has `lines` lines."""

    def __init__(
        self,
        host: RecordedHost,
        rate: int,
        lines: int | None = None,
        make: Callable[[int, int], str] | None = None,
    ) -> None:
        self.lines = 0
        self._log, self._rate, self._most = host.log, rate, lines
        self._make = make or text
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        began = time.monotonic()
        with self._log.open("ab", buffering=0) as log:
            while self._rate and self.lines != self._most and not self._stop.wait(BEAT_S):
                # After this machine was suspended, lines come at twice the rate at most.
                most = self.lines + int(2 * BEAT_S * self._rate)
                due = min(int((time.monotonic() - began) * self._rate), most, self._most or 1 << 60)
                log.write(self._make(self.lines, due).encode())
                self.lines = due

    @property
    def running(self) -> bool:
        """Return whether more lines come."""
        return self._thread.is_alive()

    def stop(self) -> int:
        """Stop the growth; return the number of lines."""
        self._stop.set()
        self._thread.join()
        return self.lines


def child(report: Path) -> None:
    """Run the application itself; it writes its report at its end."""
    from tuner.app import TunerApp
    from tuner.domain.link import Target
    from tuner.screens.ahead import collect_by_hand
    from tuner.session.session import open_session
    from tuner.widgets.log_index import line_of
    from tuner.widgets.log_view import LogView

    answers: list[dict[str, Any]] = []

    class Watched(TunerApp):
        async def action_quit(self) -> None:
            log = self.snapshots[self.host].servers[0].log
            shown = None
            if self.current_mode == "logs":
                view = self.screen.query_one(LogView)
                view.action_follow()
                while view.live.work():
                    pass
                view.show_log(log)
                found = [NUMBER.search(line_of(row).text) for row in view.live.rows]
                numbers = [int(each[1]) for each in found if each]
                last = log.lines_total - 1
                shown = numbers == list(range(last - len(numbers), last)) and len(numbers) >= min(last, 30_000)
            answers.append({"lines": log.lines_total - 1, "complete": shown})
            self.exit()

    # As the installed command does.
    app = Watched(lambda ask: [open_session(Target(name="local", scheme="local"), ask=ask)], ahead_s=1.0)
    collect_by_hand()
    app.run()
    report.write_text(json.dumps(answers[0]))


class Terminal:
    """The application in a pseudo-terminal.

    Its output is kept as text without control sequences: emulating a terminal would cost more than the application
    itself, and would be measured as its delay.
    """

    def __init__(self, host: RecordedHost, report: Path) -> None:
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "HOST_ROOT": str(host.root)}
        argv = [str(Path(__file__)), "--child", str(report)]
        self.process = pexpect.spawn(sys.executable, argv, dimensions=(SIZE[1], SIZE[0]), env=env, timeout=5)
        self.process.delaybeforesend = None
        self.bytes = 0
        self._report = report
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
        """Wait until a text is written; return the time."""
        wanted = text.encode()
        last = wanted.rsplit(b" ", 1)[-1]

        def written() -> bool:
            # The cheap test comes first: removing control sequences from each piece would compete with the application
            # for CPU.
            return last in self._written and wanted in CONTROL.sub(b"", self._written)

        with self._changed:
            if not self._changed.wait_for(written, timeout):
                raise SystemExit(f"never written: {text}")
            return time.perf_counter()

    def press(self, key: str, text: str) -> float:
        """Return the milliseconds from a key to its effect."""
        # People's keys are not in step with frames.
        time.sleep(random.uniform(0.1, 0.4))
        with self._changed:
            self._written = b""
        began = time.perf_counter()
        self.process.send(key)
        return (self.wait_for(text) - began) * 1e3

    def rss(self) -> float:
        """Return the application's memory in MB."""
        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    def end(self, growth: Growth) -> dict[str, Any]:
        """Stop the log, go to its end, and quit; return the application's report."""
        lines = growth.stop()
        self.process.send("o")
        # Longer than probe, session and screen take for the last lines.
        time.sleep(3.0)
        self.press("l", "level info+")
        self.process.send("q")
        self._thread.join(20)
        self.process.close()
        return {"fed": lines, **json.loads(self._report.read_text())}


@contextmanager
def running(rate: int, lines: int | None = None) -> Iterator[tuple[Terminal, Growth]]:
    """Yield the application on a host whose log grows, after its first frame."""
    with tempfile.TemporaryDirectory() as folder:
        own_home(Path(folder) / "home")
        host = RecordedHost(Path(folder))
        host.log.write_text(READY)
        try:
            terminal = Terminal(host, Path(folder) / "report.json")
            terminal.wait_for("TP7")
            time.sleep(SETTLED_S)
            yield terminal, Growth(host, rate, lines)
        finally:
            host.close()


def spread(times: Sequence[float]) -> str:
    """Return the median, the 90th percentile, and the worst time."""
    return f"{statistics.median(times):.0f}, {sorted(times)[int(0.9 * (len(times) - 1))]:.0f}, {max(times):.0f}"


def verdict(got: dict[str, Any]) -> tuple[str, bool]:
    """Return in words how many lines were lost, and whether that is a failure."""
    lost = got["fed"] - got["lines"]
    words = f"{got['fed']:,} fed, {lost} lost" + ("" if got["complete"] is not False else ", view incomplete")
    return words, lost != 0 or got["complete"] is False


def measure(screen: str, rate: int, seconds: float) -> dict[str, Any]:
    """Measure one case."""
    with running(rate) as (terminal, growth):
        if screen == "l":
            terminal.press("l", "level info+")
        time.sleep(3)
        before, began, bytes_before = cpu_s(terminal.process.pid), time.perf_counter(), terminal.bytes
        time.sleep(seconds)
        cpu, took = cpu_s(terminal.process.pid) - before, time.perf_counter() - began
        drawn = (terminal.bytes - bytes_before) / took
        keys = []
        if screen == "l":
            for _ in range(10):
                keys += [terminal.press("v", f"level {level}") for level in ("warning+", "error", "all", "info+")]
        else:
            for _ in range(10):
                keys += [terminal.press("l", "level info+"), terminal.press("o", "info and above")]
        rss = terminal.rss()
        return {
            "cpu": 100 * cpu / took,
            "drawn": drawn,
            "keys": keys,
            "rss": rss,
            **terminal.end(growth),
        }


def load(only: str, seconds: float | None) -> bool:
    """Measure the cost of watching; return whether a bar is missed."""
    print(f"{'case':<26}{'CPU %':>8}{'bar':>6}{'RSS MB':>8}{'kB/s out':>10}{'key ms (median, 90 %, worst)':>30}  lines")
    missed = False
    for name, screen, rate, length, bar in CASES:
        if only not in name:
            continue
        got = measure(screen, rate, seconds or length)
        words, bad = verdict(got)
        keys = spread(got["keys"])
        shown = bar if bar is not None else "-"
        print(
            f"{name:<26}{got['cpu']:>8.1f}{shown:>6}{got['rss']:>8.0f}{got['drawn'] / 1e3:>10.1f}{keys:>30}  {words}",
            flush=True,
        )
        missed |= bad or max(got["keys"]) > KEY_BAR_MS or got["rss"] > RSS_BAR_MB
        missed |= bar is not None and got["cpu"] > bar
    return missed


def opens(rate: int, runs: int) -> None:
    """Measure how long each screen, dialog and field takes to open."""
    first: dict[str, list[float]] = {}
    later: dict[str, list[float]] = {}
    for _ in range(runs):
        with running(rate) as (terminal, growth):
            time.sleep(1)
            for times in (first, later, later, later):
                for name, before, key, effect in OPENS:
                    for step in before:
                        terminal.process.send(step)
                        time.sleep(0.5)
                    times.setdefault(name, []).append(terminal.press(key, effect))
                    # Escape leaves a dialog or a field, and does nothing in a log.
                    time.sleep(0.3)
                    terminal.process.send(ESCAPE)
                    time.sleep(0.5)
            terminal.end(growth)

    print(f"{f'opened at {rate:,} lines/s':<26}{'first ms':>18}{'later ms':>18}   (median, 90 %, worst; {runs} runs)")
    for name in first:
        print(f"{name:<26}{spread(first[name]):>18}{spread(later[name]):>18}", flush=True)


def memory(lines: int, rate: int) -> bool:
    """Measure memory while many lines arrive; return whether a bar is missed."""
    with running(rate, lines) as (terminal, growth):
        terminal.press("l", "level info+")
        print(f"{'lines':>12}{'RSS MB':>8}{'CPU s':>8}", flush=True)
        shown = 0
        while growth.running:
            time.sleep(0.5)
            if growth.lines >= shown + lines // 20:
                shown = growth.lines
                print(f"{shown:>12,}{terminal.rss():>8.0f}{cpu_s(terminal.process.pid):>8.0f}", flush=True)
        keys = [terminal.press("v", f"level {level}") for level in ("warning+", "error", "all", "info+")]
        rss = terminal.rss()
        words, bad = verdict(terminal.end(growth))
    print(f"{lines:>12,}{rss:>8.0f}   {words}; keys after it {max(keys):.0f} ms at worst")
    return bad or rss > RSS_BAR_MB


def main() -> int:
    """Run the parts; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", help="load, opens; both without a word")
    parser.add_argument("--only", default="", help="of the load: part of a case's name")
    parser.add_argument("--seconds", type=float, help="of the load: instead of each case's own")
    parser.add_argument("--runs", type=int, default=5, help="of the opens")
    parser.add_argument("--lines", type=int, help="memory while so many lines go by")
    parser.add_argument("--rate", type=int, default=BURST, help="of the memory: lines a second")
    asked = parser.parse_args()
    if asked.child is not None:
        child(asked.child)
        return 0
    Report()
    print(f"terminal {SIZE[0]}x{SIZE[1]}")
    missed = False
    if asked.lines:
        return int(memory(asked.lines, asked.rate))
    if not asked.parts or "load" in asked.parts:
        missed = load(asked.only, asked.seconds)
    if not asked.parts or "opens" in asked.parts:
        opens(0, asked.runs)
        opens(BURST, asked.runs)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
