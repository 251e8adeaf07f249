"""How soon a failure has its card: from the failing line in the log on the host to its finding on the screen.

`python benchmarks/bench_explain.py [sglang] [vllm]` runs the application in a pseudo-terminal, as `bench_tui.py` does,
on the recorded host, whose log begins with a real start and then grows by a thousand lines a second: batches and
requests. At a moment of its own a rank runs out of memory: the time is from the return of the write of that traceback
until the title of the finding is written to the terminal, through probe, session, diagnosis and screen. Each run is a
new application and a new host.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench_tui import Growth, Terminal, text
from common import ROOT, Report, own_home
from recorded_host import RecordedHost

from tuner.core.diagnosis import diagnose
from tuner.core.reading import starts_of
from tuner.engines import load_engines

REAL = ROOT / "tests/golden/real"
RATE = 1_000
BAR_S = 1.0
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total capacity of 139.80 GiB"
    " of which 812.25 MiB is free. Including non-PyTorch memory, this process has 139.00 GiB memory in use. Of the"
    " allocated memory 136.90 GiB is allocated by PyTorch, and 212.15 MiB is reserved by PyTorch but unallocated."
)
SGLANG = """\
[2026-11-29 14:10:00 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/site/sglang/srt/managers/scheduler.py", line 4640, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "/opt/site/sglang/srt/managers/scheduler.py", line 1410, in event_loop_overlap
    batch_result = self.run_batch(batch)
  File "/opt/site/sglang/srt/managers/tp_worker.py", line 480, in forward_batch_generation
    out = self.model_runner.forward(forward_batch)
  File "/opt/site/sglang/srt/model_executor/model_runner.py", line 2770, in forward_extend
    return self.model.forward(forward_batch.input_ids)
  File "/opt/site/sglang/srt/models/llama.py", line 105, in forward
    gate_up, _ = self.gate_up_proj(x)
{oom}

"""
VLLM = """\
EngineCore encountered a fatal error.
Traceback (most recent call last):
  File "/opt/site/vllm/v1/engine/core.py", line 1100, in run_engine_core
    engine_core.run_busy_loop()
  File "/opt/site/vllm/v1/engine/core.py", line 490, in step_with_batch_queue
    model_output = self.execute_model(scheduler_output)
  File "/opt/site/vllm/v1/worker/gpu_model_runner.py", line 3610, in execute_model
    model_output = self._model_forward(input_ids=input_ids)
  File "/opt/site/vllm/model_executor/models/llama.py", line 105, in forward
    gate_up, _ = self.gate_up_proj(x)
{oom}
"""
CORE = "(EngineCore pid=4020) ERROR 11-29 14:10:00 [core.py:1110] "
STATS = (
    "(APIServer pid=4000) INFO 11-29 14:02:11 [loggers.py:335] Engine 000: Avg prompt throughput: 2.0 tokens/s, Avg"
    " generation throughput: {n}.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 37.0%, Prefix"
    " cache hit rate: 0.0%\n"
)
VLLM_ACCESS = 'INFO:     10.0.0.9:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


class Case(NamedTuple):
    """The log of one engine, in parts."""

    start: str
    """The log up to the line that says that the server serves."""
    failure: str
    busy: Callable[[int, int], str]
    """Returns the lines of a busy server from one number to another."""


def cases() -> dict[str, Case]:
    """Return the cases by engine."""
    sglang = _until(REAL / "sglang-0.5.16-2xH200/base/server.log", "The server is fired up")
    vllm = _until(REAL / "vllm-0.32.0-cpu/tp1-start-stop.log", "Application startup complete")
    raised = "".join(f"{CORE}{line}\n" for line in VLLM.format(oom=OOM).splitlines())
    return {
        "sglang": Case(sglang, SGLANG.format(oom=OOM), text),
        "vllm": Case(vllm, raised, _vllm_lines),
    }


def _until(path: Path, mark: str) -> str:
    lines = path.read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if mark in line)
    return "".join(lines[: last + 1])


def _vllm_lines(first: int, last: int) -> str:
    return "".join(STATS.format(n=n) if n % 10 == 0 else VLLM_ACCESS.format(n=n) for n in range(first, last))


def title_of(case: Case) -> str:
    """Return the title of the card that the failure gets."""
    engines = load_engines()
    lines = (case.start + case.busy(0, 50) + case.failure).splitlines()
    start = starts_of(list(enumerate(lines, 1)), engines)[-1]
    return diagnose(start, engines[start.engine])[0].title


def once(engine: str, case: Case, title: str) -> float:
    """Return the seconds from the failing line to its card."""
    with tempfile.TemporaryDirectory() as folder:
        own_home(Path(folder) / "home")
        host = RecordedHost(Path(folder), engine)
        host.log.write_text(case.start)
        try:
            terminal = Terminal(host, Path(folder) / "report.json")
            terminal.wait_for("TP7")
            growth = Growth(host, RATE, make=case.busy)
            # Longer than building screens ahead takes, and not in step with anything.
            time.sleep(4 + random.uniform(0, 2))
            with host.log.open("ab", buffering=0) as log:
                log.write(case.failure.encode())
            began = time.perf_counter()
            took = terminal.wait_for(title) - began
            growth.stop()
            terminal.process.close(force=True)
        finally:
            host.close()
    return took


def main() -> int:
    """Run the engines that are named, or both; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", help="sglang, vllm; both without a word")
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args()
    report = Report()
    for engine, case in cases().items():
        if asked.engines and engine not in asked.engines:
            continue
        title = title_of(case)
        times = [once(engine, case, title) for _ in range(asked.runs)]
        print(f"the card's title: {title}")
        report.times(f"{engine}, failing line to card, {RATE:,} lines/s", times, "s", BAR_S)
        report.row(f"{engine}, worst", max(times), "s", BAR_S)
    return report.code


if __name__ == "__main__":
    sys.exit(main())
