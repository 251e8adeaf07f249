"""`gputuner diagnose` on a log of 1 GB: MB/s, memory, and the time that lnav takes for the same file.

`python benchmarks/bench_diagnose.py [--mb N] [--seed N] [--runs N] [--keep FOLDER]` makes a log for each engine: a real
start, then batch and access lines of eight ranks, with one failure at a random place. The installed command must find
the failure: its cause, its rank, its line. Measured beside it are lnav indexing the same file, where lnav is installed,
and the same log compressed by gzip.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from common import GPUTUNER, ROOT, Report, own_home

RANKS = 8
REAL = ROOT / "tests/golden/real"
SPEED_BAR = 400.0
MEMORY_BAR = 200.0
LNAV_BAR = 2.0
_UNIQUE = 24_000_000
"""Bytes of traffic that are made line by line; they are then repeated with other dates."""


class Planted(NamedTuple):
    """A log, and the diagnosis that is expected for it."""

    engine: str
    path: Path
    size: int
    lines: int
    cause: str
    rank: int
    line: int
    """Line number of the exception."""


def sglang_start() -> str:
    """Return a real start of two ranks, with further ranks as copies of the second."""
    text = (REAL / "sglang-0.5.16-2xH200/base/server.log").read_text()
    text = text[: text.index("\n", text.index("The server is fired up")) + 1].replace("tp_size=2", f"tp_size={RANKS}")
    lines = []
    for line in text.split("\n"):
        lines.append(line)
        if re.match(r"\[[^\]]* TP1\] ", line):
            lines.extend(line.replace(" TP1]", f" TP{rank}]", 1) for rank in range(2, RANKS))
    return "\n".join(lines)


def vllm_start() -> str:
    """Return a real start of two workers, with further workers as copies of the second."""
    text = (REAL / "vllm-0.32.0-cpu/tp2-worker-sigkill.log").read_text()
    text = text[: text.index("\n", text.index("Application startup complete.")) + 1]
    text = text.replace("tensor_parallel_size=2", f"tensor_parallel_size={RANKS}")
    lines = []
    for line in text.split("\n"):
        lines.append(line)
        if line.startswith("(Worker_TP1 "):
            lines.extend(line.replace("Worker_TP1 ", f"Worker_TP{rank} ", 1) for rank in range(2, RANKS))
    return "\n".join(lines)


def sglang_traffic(chance: random.Random) -> str:
    """Return batch lines of all ranks, as with attention DP, and an access line per request."""
    lines: list[str] = []
    size = second = 0
    while size < _UNIQUE:
        second += 1
        at = f"2026-11-29 {second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
        for rank in range(RANKS):
            usage = chance.random() * 0.9
            head = f"[{at} DP{rank} TP{rank}] "
            body = f"#token: {int(usage * 348_715)}, token usage: {usage:.2f}"
            running = chance.randrange(1, 128)
            if chance.random() < 0.3:
                lines.append(
                    f"{head}Prefill batch, #new-seq: {chance.randrange(1, 9)}, #new-token: {chance.randrange(8192)}, "
                    f"#cached-token: {chance.randrange(8192)}, token usage: {usage:.2f}, #running-req: {running}, "
                    f"#queue-req: {chance.randrange(30)}, #pending-token: {chance.randrange(20_000)}, cuda graph: "
                    f"{chance.random() < 0.5}, input throughput (token/s): {chance.random() * 30_000:.2f}"
                )
            lines.append(
                f"{head}Decode batch, #running-req: {running}, {body}, cuda graph: True, gen throughput (token/s): "
                f"{chance.random() * 3000:.2f}, #queue-req: {chance.randrange(30)}"
            )
        for _ in range(chance.randrange(20)):
            path = chance.choice(("v1/chat/completions", "v1/completions", "generate"))
            who = f"10.0.{chance.randrange(4)}.{chance.randrange(1, 255)}:{chance.randrange(32_768, 60_000)}"
            lines.append(f'[{at}] INFO:     {who} - "POST /{path} HTTP/1.1" 200 OK')
        size += sum(map(len, lines[-30:])) * 9 // 10
    return "\n".join(lines) + "\n"


def vllm_traffic(chance: random.Random) -> str:
    """Return statistics of all replicas, and an access line per request."""
    lines: list[str] = []
    size = second = 0
    while size < _UNIQUE:
        second += 1
        at = f"11-29 {second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
        lines.extend(
            f"(APIServer pid=27) INFO {at} [loggers.py:335] Engine {rank:03}: "
            f"Avg prompt throughput: {chance.random() * 5000:.1f} tokens/s, "
            f"Avg generation throughput: {chance.random() * 3000:.1f} tokens/s, "
            f"Running: {chance.randrange(256)} reqs, Waiting: {chance.randrange(30)} reqs, "
            f"GPU KV cache usage: {chance.random() * 90:.1f}%, Prefix cache hit rate: {chance.random() * 90:.1f}%"
            for rank in range(RANKS)
        )
        for _ in range(chance.randrange(20)):
            path = chance.choice(("v1/chat/completions", "v1/completions"))
            who = f"10.0.{chance.randrange(4)}.{chance.randrange(1, 255)}:{chance.randrange(32_768, 60_000)}"
            lines.append(f'(APIServer pid=27) INFO:     {who} - "POST /{path} HTTP/1.1" 200 OK')
        size += sum(map(len, lines[-18:]))
    return "\n".join(lines) + "\n"


SGLANG_FAILURE = """\
[2026-11-29 16:24:25 DP5 TP5] Scheduler hit an exception: Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 3412, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 1290, in event_loop_overlap
    batch_result = self.run_batch(batch)
  File "/venv/lib/python3.12/site-packages/sglang/srt/model_executor/model_runner.py", line 2710, in forward_extend
    return self.model.forward(
  File "/venv/lib/python3.12/site-packages/sglang/srt/models/llama.py", line 102, in forward
    gate_up, _ = self.gate_up_proj(x)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 5 has a total capacity of 139.80 GiB of \
which 1.21 GiB is free. Including non-PyTorch memory, this process has 138.58 GiB memory in use. Of the allocated \
memory 134.20 GiB is allocated by PyTorch, with 96.50 MiB allocated in private pools (e.g., CUDA Graphs), and 1.02 GiB \
is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.

[2026-11-29 16:24:25] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
"""
_WORKER = "(Worker_TP5 pid=28409) ERROR 11-29 16:24:25 [multiproc_executor.py:1041] "
_CORE = "(EngineCore pid=28393) ERROR 11-29 16:24:25 [core.py:1290] "
VLLM_FAILURE = f"""\
{_WORKER}WorkerProc hit an exception.
{_WORKER}Traceback (most recent call last):
{_WORKER}  File "/venv/vllm/v1/executor/multiproc_executor.py", line 1034, in worker_busy_loop
{_WORKER}    output = func(*args, **kwargs)
{_WORKER}  File "/venv/vllm/v1/worker/gpu_model_runner.py", line 4218, in execute_model
{_WORKER}    model_output = self._model_forward(
{_WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 5 has a total capacity of \
139.80 GiB of which 1.21 GiB is free. Including non-PyTorch memory, this process has 138.58 GiB memory in use. Of the \
allocated memory 134.20 GiB is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated.
{_CORE}EngineCore encountered a fatal error.
{_CORE}Traceback (most recent call last):
{_CORE}  File "/venv/vllm/v1/engine/core.py", line 1281, in run_engine_core
{_CORE}    engine_core.run_busy_loop()
{_CORE}RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate 1.75 GiB. GPU 5 has a total \
capacity of 139.80 GiB of which 1.21 GiB is free.', please check the stack trace above for the root cause
"""
KINDS = {
    "sglang": (sglang_start, sglang_traffic, SGLANG_FAILURE, "gpu-memory-leak-runtime"),
    "vllm": (vllm_start, vllm_traffic, VLLM_FAILURE, "mem-fraction-too-high-activation"),
}


def planted(engine: str, folder: Path, size: int, seed: int) -> Planted:
    """Write a log with a failure; equal seeds make equal logs."""
    start, traffic, failure, cause = KINDS[engine]
    chance = random.Random(f"{engine} {seed}")
    head, once = start().encode(), traffic(chance).encode()
    day = once.index(b"11-29")
    today = once[day : day + 5]
    place = chance.randrange(size // 10, size * 9 // 10)
    path = folder / f"{engine}.log"
    lines = line = 0
    with path.open("wb") as file:

        def write(data: bytes) -> None:
            nonlocal lines
            file.write(data)
            lines += data.count(b"\n")

        write(head)
        while file.tell() < size:
            number = file.tell() // len(once)
            data = once.replace(today, f"{1 + number // 28 % 12:02}-{1 + number % 28:02}".encode())
            if not line and file.tell() + len(data) > place:
                cut = data.index(b"\n", place - file.tell()) + 1
                write(data[:cut])
                line = lines + 1 + failure[: failure.index("torch.OutOfMemoryError")].count("\n")
                write(failure.encode())
                data = data[cut:]
            write(data)
    return Planted(engine, path, path.stat().st_size, lines, cause, 5, line)


class Cost(NamedTuple):
    """The time that a command took, in seconds."""

    wall: float
    cpu: float
    """CPU time of all its processes, which stays comparable on a busy machine."""


def timed(argv: list[str]) -> tuple[Cost, subprocess.CompletedProcess[bytes]]:
    """Run a command; return its cost and result."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    run = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), run


def diagnose(path: Path) -> tuple[Cost, dict[str, object]]:
    """Run the installed command; return its cost and its report."""
    cost, run = timed([str(GPUTUNER), "diagnose", str(path), "--json"])
    if run.returncode not in (0, 1) or not run.stdout:
        raise SystemExit(f"gputuner diagnose ended with {run.returncode}: {run.stderr.decode()}")
    return cost, json.loads(run.stdout)


def peak_mb(path: Path) -> float:
    """Return the peak memory of all its processes together in MB, sampled every 10 ms."""
    with psutil.Popen([GPUTUNER, "diagnose", str(path), "--json"], stdout=subprocess.DEVNULL) as run:
        most = 0
        while run.poll() is None:
            total = 0
            for process in [run, *_children(run)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            most = max(most, total)
            time.sleep(0.01)
    return most / 1e6


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def lnav(path: Path) -> Cost:
    """Return the cost of lnav indexing a file; it is queried only for the number of lines."""
    cost, run = timed(["lnav", "-n", "-N", "-c", ";SELECT lines FROM lnav_file", str(path)])
    if run.returncode or not re.search(rb"\d{6,}", run.stdout):
        raise SystemExit(f"lnav did not index: {run.stdout[-500:]!r} {run.stderr[-500:]!r}")
    return cost


def found(said: dict[str, object], log: Planted) -> str:
    """Return what is wrong with a diagnosis; empty when it is right."""
    findings = said["findings"]
    assert isinstance(findings, list)
    if not findings:
        return "nothing was found"
    first = findings[0]
    lines = [each["line"] for each in first["evidence"]]
    wrong = []
    if first["cause"] != log.cause:
        wrong.append(f"cause {first['cause']}")
    if first["ranks"] != [log.rank]:
        wrong.append(f"ranks {first['ranks']}")
    if log.line not in lines:
        wrong.append(f"line {log.line} is not in {lines}")
    return ", ".join(wrong)


def main() -> int:
    """Run the benchmark; return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(exist_ok=True)
        own_home(Path(name) / "home")
        version = (
            subprocess.run(["lnav", "-V"], capture_output=True, text=True).stdout.strip()
            if shutil.which("lnav")
            else ""
        )
        for engine in KINDS:
            measure(report, planted(engine, folder, options.mb * 1_000_000, options.seed), options.runs, version)
    return report.code


def measure(report: Report, log: Planted, runs: int, version: str) -> None:
    """Measure one log and print all rows about it."""
    mb = log.size / 1e6
    ours: list[Cost] = []
    theirs: list[Cost] = []
    diagnose(log.path)  # compiles the modules and fills the file cache
    wrong = ""
    for _ in range(runs):
        cost, said = diagnose(log.path)
        ours.append(cost)
        wrong = wrong or found(said, log)
        if version:
            theirs.append(lnav(log.path))
    print(f"{log.engine}: {mb:.0f} MB, {log.lines:,} lines, a failure of rank {log.rank} in line {log.line:,}")
    report.row("  it was found", not wrong, "", note=wrong)
    report.missed += bool(wrong)
    speed = mb / statistics.median(cost.wall for cost in ours)
    report.row("  speed", speed, "MB/s", note=f"{_spread([mb / cost.wall for cost in ours])}, bar {SPEED_BAR:g}")
    report.missed += speed < SPEED_BAR
    report.row("  processor time of all processes", statistics.median(cost.cpu for cost in ours), "s")
    report.row("  memory of all processes", peak_mb(log.path), "MB", MEMORY_BAR)
    if theirs:
        walls = [mb / cost.wall for cost in theirs]
        report.row(f"  {version} indexes it", statistics.median(walls), "MB/s", note=_spread(walls))
        report.row("  its processor time", statistics.median(cost.cpu for cost in theirs), "s")
        ratio = speed / statistics.median(walls)
        if log.engine == "sglang":
            report.row("  times as fast", ratio, "", note=f"bar {LNAV_BAR:g}")
            report.missed += ratio < LNAV_BAR
        else:
            report.row("  times as fast", ratio, "", note="it seems to know no format of these lines")
    packed = log.path.with_suffix(".log.gz")
    with gzip.open(packed, "wb", 1) as out, log.path.open("rb") as file:
        shutil.copyfileobj(file, out, 1 << 20)
    cost, said = diagnose(packed)
    report.row("  packed by gzip", mb / cost.wall, "MB/s", note=f"{cost.cpu:.2g} s of processor {found(said, log)}")
    packed.unlink()


def _spread(values: list[float]) -> str:
    return f"({min(values):.3g} to {max(values):.3g}, {len(values)} runs)"


if __name__ == "__main__":
    sys.exit(main())
