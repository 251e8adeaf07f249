"""What a switch takes beyond the engine's own times: from the order until the new server runs.

`python benchmarks/bench_switch.py [SWITCHES]` switches a server on a simulated host that stops at once on TERM and
whose memory is free at once. The time is from the call of `session.act`, which is what the key does, until the new
process is let go: its PID and start are written down, and it becomes the server. The old one is stopped and its GPU
memory proven to be back in between, all checks included. For information, one more row tells the same from the start of
the command `gputuner apply --yes`, with its connection and its checks before the order.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from changed_host import ALIAS, ChangedHost, began_at, changed_host, free_port, serves, step_at, wait_for
from common import GPUTUNER, Report, own_home

from tuner.catalog import load_presets
from tuner.core.tuning import tune
from tuner.domain.acts import Switch
from tuner.domain.link import Question
from tuner.domain.runs import RunOutcome
from tuner.domain.tuning import Wish
from tuner.engines import load_engines
from tuner.session.acts import new_run_id
from tuner.session.session import Session, open_session
from tuner.session.targets import parse
from tuner.session.tasks import spawn

BAR_S = 1.0
COMMANDS = 3
SPEED = 40.0
PARTS = (
    "order to the probe's audit",
    "until the supervisor's process",
    "until its first record",
    "check",
    "stop",
    "memory proven to be back",
    "launch",
)


async def nobody(question: Question) -> str | None:
    """Fail: the keys are known, so no question may be asked."""
    raise AssertionError(question)


async def switched(session: Session, host: ChangedHost, value: int) -> tuple[float, list[float], str]:
    """Switch the server once; return the overhead, its parts, and the id of the run."""
    state = session.state
    server = next(each for each in state.servers if not each.gone)
    wish = Wish(server=server.identity.key, overrides={"max_running_requests": value})
    engines, presets, run = load_engines(), load_presets().found, new_run_id()
    asked = tune(state, wish, engines, presets, run=run, operator=session.operator)
    assert asked.ask is not None, asked
    facts = (await session.preflight(asked.ask)).facts
    tuning = tune(session.state, wish, engines, presets, run=run, operator=session.operator, facts=facts)
    assert tuning.order is not None, tuning.refused
    ordered = time.time()
    acted = await session.act(Switch(order=tuning.order), confirmed=True)
    assert acted.error is None, acted
    record = await asyncio.to_thread(ended, host, run)
    assert record["outcome"] == "ready", record
    return running_at(host, record) - ordered, parts(host, record, ordered), run


def ended(host: ChangedHost, run: str) -> dict[str, Any]:
    """Wait for the end of a run; return its record."""
    record = wait_for(lambda: (r := host.record(run)) is not None and r["outcome"] != "running" and r, 60)
    assert record, f"run {run} does not end"
    return dict(record)


def running_at(host: ChangedHost, record: Mapping[str, Any]) -> float:
    """Return when the new server was let go: its process is there, and it is written down.

    It becomes the server's program some 2 ms after this. The start of the process by /proc is earlier.
    """
    told = next(line["at"] for line in host.journal(record["id"]) if line["detail"] == f"pid {record['new']['pid']}")
    return max(float(told), began_at(record["new"]["pid"]))


def parts(host: ChangedHost, record: Mapping[str, Any], ordered: float) -> list[float]:
    """Return the seconds of each of `PARTS`."""
    begun = next(
        line["at"]
        for line in host.audit()
        if (line.get("act"), line.get("outcome"), line.get("run")) == ("switch", "begins", record["id"])
    )
    steps = [step_at(record, step) for step in ("check", "stop", "memory", "launch")]
    marks = [ordered, begun, began_at(record["supervisor"]["pid"]), *steps, running_at(host, record)]
    return [after - before for before, after in itertools.pairwise(marks)]


async def switches(host: ChangedHost, count: int) -> tuple[list[float], list[list[float]]]:
    """Switch the server so many times in one session."""
    session = open_session(parse(ALIAS), ask=nobody)
    work = spawn(session.run(), name="session")
    took, shares = [], []
    try:
        for number in range(count):
            async for state in session.snapshots():
                alive = [each for each in state.servers if not each.gone]
                over = all(run.outcome is not RunOutcome.RUNNING for run in state.runs)
                if state.scanned and over and len(alive) == 1 and alive[0].phase.value == "ready":
                    break
            seconds, each, _ = await switched(session, host, 32 + number % 2)
            print(f"switch {number + 1}: {seconds:.3f} s", flush=True)
            took.append(seconds)
            shares.append(each)
    finally:
        await session.aclose()
        await work
    return took, shares


def by_command(host: ChangedHost, value: int) -> float:
    """Switch the server by the installed command; return the seconds from its start until the new server runs."""
    known = set(host.runs())
    began = time.time()
    words = [str(GPUTUNER), "apply", ALIAS, "--set", f"max_running_requests={value}", "--yes"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = set(host.runs()) - known
    return running_at(host, ended(host, run)) - began


def p90(values: Sequence[float]) -> float:
    """Return the value below which nine of ten lie."""
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


def main() -> int:
    """Run all; return 1 when the bar was missed."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        own_home(Path(folder))
        port = free_port()
        with changed_host(Path(folder), speed=SPEED) as host:
            host.start_server(port, fault="instant-stop")
            assert wait_for(lambda: serves(port), 60), "the first server does not serve"
            took, shares = asyncio.run(switches(host, count))
            commands = [by_command(host, 48 + number) for number in range(COMMANDS)]
        load = os.getloadavg()[0]
        report.times(f"order to the new server (load {load:.1f} at the end)", took, "s", BAR_S)
        report.row("nine of ten within", p90(took), "s", BAR_S)
        report.row("the longest", max(took), "s")
        for number, name in enumerate(PARTS):
            report.times(f"  {name}", [each[number] for each in shares], "s")
        report.times("`gputuner apply --yes` to the new server", commands, "s")
    return report.code


if __name__ == "__main__":
    sys.exit(main())
