"""How soon the installed command answers: `--help`, and the demo's first live frame in a real terminal.

`python benchmarks/bench_start.py [RUNS]` prints medians. A frame is live when it shows every rank's memory and the
tokens per second. It is checked that a later frame has other numbers, and that the memory of each rank equals that in
`gputuner snapshot demo --json` of the same host.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import GPUTUNER, Report, own_home

from tests.e2e.terminal import Terminal
from tuner.units import GIB

HELP_BAR_S = 0.3
DEMO_BAR_S = 2.0
SIZE = {"columns": 160, "rows": 48}
_RANK = re.compile(r"^ TP(\d) +\d+ +\d+ .*?[▌|] *(\d+\.\d) +\d", re.M)
"""Matches a row of the rank table: rank, and GiB used on its GPU."""
_TOK_S = re.compile(r"tok/s +\d")


def used_gib(frame: str) -> dict[str, str]:
    """Return the GiB used by rank, as shown in a frame."""
    return dict(_RANK.findall(frame))


def live(frame: str) -> bool:
    """Return whether a frame shows every rank's memory and tokens per second."""
    return len(used_gib(frame)) == 8 and _TOK_S.search(frame) is not None


def numbers(frame: str) -> list[str]:
    """Return all numbers in the rows of the rank table."""
    return [number for row in frame.splitlines() if _RANK.match(row) for number in re.findall(r"\d+\.?\d*", row)]


def helped() -> float:
    """Return the seconds that `--help` takes."""
    began = time.monotonic()
    subprocess.run([GPUTUNER, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def bare() -> float:
    """Return the seconds that an interpreter takes which does nothing."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", ""], stdin=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def shown(check: bool) -> tuple[float, float]:
    """Return the seconds to the demo's first live frame, and until a number in it has changed."""
    began = time.monotonic()
    with Terminal(GPUTUNER, "demo", **SIZE) as terminal:
        first = terminal.wait(live)
        took = time.monotonic() - began
        terminal.wait(lambda frame: live(frame) and numbers(frame) != numbers(first))
        changed = time.monotonic() - began
        if check:
            compare(terminal)
        terminal.send("q")
        terminal.end()
    return took, changed


def compare(terminal: Terminal) -> None:
    """Wait until the screen shows the memory of each rank that a snapshot prints."""
    said = subprocess.run([GPUTUNER, "snapshot", "demo", "--json"], stdin=subprocess.DEVNULL, capture_output=True)
    reading = json.loads(said.stdout)
    used = {gpu["index"]: gpu["memory_used_bytes"] for gpu in reading["gpus"]}
    ranks = reading["servers"][0]["ranks"]
    expected = {rank["tag"][2:]: f"{used[rank['gpu']] / GIB:.1f}" for rank in ranks}
    frame = terminal.wait(lambda frame: used_gib(frame) == expected)
    print(f"screen and snapshot agree on the memory of {len(used_gib(frame))} ranks")


def main() -> int:
    """Run all parts; return 1 when a bar was missed."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        own_home(Path(folder))
        helped()  # fills the file cache
        help_s, bare_s = report_pair(report, runs)
        print(f"--help takes {help_s / bare_s:.1f} times an interpreter that does nothing")
        took = [shown(check=number == 0) for number in range(runs)]
    report.times("demo to the first live frame", [first for first, _ in took], "s", DEMO_BAR_S)
    report.times("demo until a number on it changed", [changed for _, changed in took], "s")
    return report.code


def report_pair(report: Report, runs: int) -> tuple[float, float]:
    """Measure `--help` and a bare interpreter in turns; return the median of each."""
    pairs = [(helped(), bare()) for _ in range(2 * runs)]
    return (
        report.times("gputuner --help", [pair[0] for pair in pairs], "s", HELP_BAR_S),
        report.times("python -c ''", [pair[1] for pair in pairs], "s"),
    )


if __name__ == "__main__":
    sys.exit(main())
