"""How fast a log is read, what it leaves in memory, and how soon the end of a large one is shown.

`python benchmarks/bench_ingest.py [speed] [burst] [memory] [open]` runs the named parts, or all:

- speed: lines per second through decoding, masking and folding in this process, beside splitting the same text;
- burst: a log that grows by 20,000 lines per second for ten seconds, through the real probe: lines in and out;
- memory: ten million lines through the real probe; memory of this process at their end;
- open: a log of 1 GB through the real probe, from the start of the session to the first lines of its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from common import Report, own_home, status_kb
from msgspec.structs import replace

from tests.support.growing_log import GrowingServer
from tuner import transports
from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.link import Question, Target
from tuner.domain.plan import EnginePlan
from tuner.engines import load_engines
from tuner.engines.sglang.engine import SGLang
from tuner.session.plans import plan_for
from tuner.session.session import Session
from tuner.session.stream import Stream
from tuner.session.tasks import spawn
from tuner.store.journal import Journal, read_events

LINES = 200_000
EACH = 100
"""Lines per event, as with ten events a second at 1,000 lines a second."""
BURST_LINES_S, BURST_S = 20_000, 10
MEMORY_LINES, MEMORY_BAR_MB = 10_000_000, 120.0
LARGE, OPEN_BAR_S, OPEN_RUNS = 1_000_000_000, 0.5, 5
AHEAD = 16_000_000
"""Bytes that may be unread in the file; a reader more than four times that behind gets a gap."""
ACCESS = '[2026-11-29 16:24:{s:02d}] INFO:     10.0.0.9:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
DECODE = (
    "[2026-11-29 16:24:{s:02d} TP0] Decode batch, #running-req: 32, #token: {n}, token usage: 0.41, cuda graph: True, "
    "gen throughput (token/s): 1505.78, #queue-req: 3\n"
)


def text(kind: str, first: int, count: int) -> str:
    """Return `count` lines of a kind, numbered from `first` on."""
    line = DECODE if kind == "decode" else ACCESS
    return "".join(line.format(s=n // 700 % 60, n=10_000_000 + n) for n in range(first, first + count))


def speed(report: Report, kind: str) -> None:
    """Measure lines per second from the probe's bytes to the state."""
    engines = load_engines()
    identity = {"key": "1:1", "engine": "sglang", "pid": 1, "start_ticks": 1, "argv": ["sglang", "serve"]}
    lines: list[dict[str, Any]] = [
        {"t": "hello", "protocol": 1, "python": "3.11.7", "pid": 2, "uid": 0, "user": "root", "hostname": "box",
         "boot_id": None, "kernel": "6", "at": 1.0, "cpu_count": 8},
        {"t": "server", "server": identity},
        {"t": "log_open", "key": "1:1", "reason": "start", "kind": "file", "path": "/x", "device": 1, "inode": 1},
    ]  # fmt: skip
    parts = [text(kind, first, EACH) for first in range(0, LINES, EACH)]
    end = 0
    for data in parts:
        lines.append({"t": "log", "key": "1:1", "offset": end, "end": end + len(data), "data": data})
        end += len(data)
    blocks = [msgspec.json.encode({"seq": n, "mono": n / 10, **line}) + b"\n" for n, line in enumerate(lines, 1)]
    stream, state = Stream(), initial("box")
    began = time.process_time()
    for block in blocks:
        for event in stream.feed(block, 0.0):
            state, _ = reduce(state, event, engines)  # type: ignore[arg-type]
    took = time.process_time() - began
    assert state.servers[0].log.end == end
    whole = "".join(parts)
    began = time.process_time()
    whole.split("\n")
    split = time.process_time() - began
    report.row(f"ingest, {kind} lines", LINES / took / 1000, "k lines/s", note=f"{took / split:.0f} x splitting them")


class Writer(SGLang):
    """SGLang's log formats for a process that only writes a log: the `GrowingServer` of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._leader = re.escape(f"{folder}/growing_server.py")

    def plan(self) -> EnginePlan:
        """Return a plan that recognises only that process."""
        return replace(super().plan(), leaders=(self._leader,), titles=(), package="", endpoints=())


@contextlib.asynccontextmanager
async def session(folder: Path, journal: Path | None = None, **plan: Any) -> AsyncIterator[Session]:
    """Yield a running session with this machine."""
    engines = {"sglang": Writer(folder)}
    target = Target(name="local", scheme="local")
    made = Session(
        target,
        transports.opener(target),
        engines,
        ask=nobody,
        journal=Journal(journal, "local", time.time()) if journal else None,
        plan=replace(plan_for(engines), **plan),
    )
    work = spawn(made.run(), name="session")
    try:
        yield made
    finally:
        await made.aclose()
        await work


async def nobody(question: Question) -> str | None:
    """Fail: no question may be asked."""
    raise AssertionError(question)


async def until(true: Callable[[], object]) -> None:
    """Wait until `true()` holds."""
    while not true():  # noqa: ASYNC110 - other processes set no event
        await asyncio.sleep(0.005)


def end_of(session: Session) -> int:
    """Return the offset up to which the log was read; -1 without a server."""
    return session.state.servers[0].log.end if session.state.servers else -1


async def burst(report: Report, folder: Path) -> None:
    """Measure lines written in a burst, and lines received."""
    server = GrowingServer(folder)
    written: list[int] = []

    def write() -> None:
        began = time.monotonic()
        with server.log.open("ab", buffering=0) as log:
            for step in range(BURST_S * 20):
                first = step * BURST_LINES_S // 20
                log.write(text("decode", first, BURST_LINES_S // 20).encode())
                time.sleep(max(0.0, began + (step + 1) / 20 - time.monotonic()))
        written.append(server.log.stat().st_size)
        print(f"{BURST_LINES_S * BURST_S:,} lines in {time.monotonic() - began:.1f} s")

    try:
        async with session(folder, folder / "journal") as running:
            await until(lambda: running.state.scanned)
            writer = threading.Thread(target=write)
            writer.start()
            await until(lambda: written and end_of(running) >= written[0])
            writer.join()
    finally:
        server.stop()
    events = [event for _, event in read_events(folder / "journal")]
    lines = "".join(event.data for event in events if isinstance(event, e.LogBytes)).splitlines()
    gaps = [event for event in events if isinstance(event, e.LogGap)]
    expected = server.log.read_text().splitlines()
    report.row("lines lost or repeated in a burst", abs(len(expected) - len(lines)), "lines", 0)
    report.missed += bool(gaps) or lines != expected


async def memory(report: Report, folder: Path) -> None:
    """Measure memory after many lines. The file grows only as fast as it is read."""
    server = GrowingServer(folder)
    block = text("access", 0, 20_000).encode()
    before = status_kb(os.getpid(), "VmRSS") / 1024
    began = time.monotonic()
    try:
        async with session(folder, max_log_bytes_s=1 << 40) as running:
            await until(lambda: running.state.scanned)
            with server.log.open("ab", buffering=0) as log:
                for number in itertools.count(1):
                    log.write(block)
                    if number * 20_000 >= MEMORY_LINES:
                        break
                    await until(lambda n=number: end_of(running) > n * len(block) - AHEAD)  # type: ignore[misc]
                await until(lambda: end_of(running) >= number * len(block))
            took = time.monotonic() - began
            after = status_kb(os.getpid(), "VmRSS") / 1024
            assert len(running.state.servers) == 1
    finally:
        server.stop()
    note = f"({before:.0f} MiB before, {MEMORY_LINES / took / 1000:.0f} k lines/s)"
    report.row(f"memory after {MEMORY_LINES:,} lines", after, "MiB", MEMORY_BAR_MB, note)


async def large(report: Report, folder: Path) -> None:
    """Measure the time to open a large log at its end."""
    server = GrowingServer(folder)
    block = text("decode", 0, 20_000).encode()
    with server.log.open("ab", buffering=0) as log:
        for _ in range(LARGE // len(block) + 1):
            log.write(block)
    size = server.log.stat().st_size
    took: list[float] = []
    after_hello: list[float] = []
    try:
        for _ in range(OPEN_RUNS):
            began = time.monotonic()
            async with session(folder) as running:
                await until(lambda: running.state.hello)
                hello = time.monotonic()
                await until(lambda: end_of(running) > 0)
                seen = time.monotonic()
                await until(lambda: end_of(running) == size)
            took.append(seen - began)
            after_hello.append(seen - hello)
    finally:
        server.stop()
        server.log.unlink()
    report.times(f"log of {size / 1e9:.1f} GB, start to its last lines", took, "s", OPEN_BAR_S)
    report.times("of that, after the probe was there", after_hello, "s")


def main() -> int:
    """Run the named parts; return 1 when a bar was missed."""
    asked = sys.argv[1:] or ["speed", "burst", "memory", "open"]
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        own_home(Path(folder))
        if "speed" in asked:
            speed(report, "access")
            speed(report, "decode")
        parts = {"burst": burst, "memory": memory, "open": large}
        for part in asked:
            if part in parts:
                asyncio.run(parts[part](report, Path(folder)))
    return report.code


if __name__ == "__main__":
    sys.exit(main())
