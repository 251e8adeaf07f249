"""Switches that are interrupted at random: supervisors, leaders and ranks are killed, runs cancelled and resumed."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.runs.bench import TITLES, Bench, Run, benches, until
from tuner.domain.runs import RunOutcome, StopStep

LADDER = (
    StopStep(signal="TERM", wait_s=0.5),
    StopStep(signal="TERM", to="orphans", wait_s=0.5),
    StopStep(signal="KILL", to="tree", wait_s=5.0),
)
HABITS = ("--stubborn", "--orphans", "--ranks-stubborn", "--lingers")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


def leaders(bench: Bench, run: Run) -> set[int]:
    """The leaders that a run started and that live."""
    out = set()
    for pid in bench.living():
        with contextlib.suppress(OSError):
            env = Path(f"/proc/{pid}/environ").read_bytes()
            if f"GPUTUNER_RUN={run.id}".encode() in env and os.getsid(pid) == pid:
                out.add(pid)
    return out


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_host_is_in_a_known_state(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    ranks = str(chance.randint(0, 2))

    def habits() -> list[str]:
        return [habit for habit in HABITS if chance.random() < 0.3]

    bench.server("--ranks", "1", "--name", "bystander")
    bystanders = bench.living()
    old = bench.server("--port", str(bench.port), "--ranks", ranks, *habits()[:3])
    old_ones = bench.living() - bystanders
    fails = ["--exit-code", "3"] if chance.random() < 0.25 else []
    run = bench.begin(
        stop=bench.stop(old.pid, LADDER, port=bench.port),
        start=bench.serving("--ranks", ranks, *habits(), *fails, titles=TITLES, ranks=int(ranks), stop=LADDER),
        back=bench.serving("--name", "old", stop=LADDER), auto_back=chance.random() < 0.5,
    )  # fmt: skip
    killed: set[int] = set()
    for _ in range(chance.randint(1, 3)):
        select.select([], [], [], chance.uniform(0.0, 1.2))  # the moment is the chance
        going_on = run.known and run.record.outcome is RunOutcome.RUNNING
        what = chance.choice(("supervisor", "supervisor", "leader", "rank", "cancel"))
        if what == "supervisor" and (going_on or not run.known):
            run.kill()
            assert len(leaders(bench, run)) <= 1
            if not run.known:
                run.supervise()
            elif run.record.outcome is RunOutcome.RUNNING:
                run.resume(back=chance.random() < 0.3)
        elif what == "cancel" and going_on:
            run.cancel(back=chance.random() < 0.5)
        elif what in ("leader", "rank"):
            others = sorted(bench.living() - bystanders)
            if others:
                pid = others[0 if what == "leader" else -1]
                killed.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert len(leaders(bench, run)) <= 1
    until(lambda: run.known and run.record.outcome is not RunOutcome.RUNNING, 50.0)
    record = run.record
    assert run.errors == ""
    assert bystanders <= bench.living()
    assert len(leaders(bench, run)) <= 1
    ours = bench.living() - bystanders
    if record.outcome in (RunOutcome.READY, RunOutcome.BACK):
        assert not ours & old_ones
        assert record.new is not None
        assert record.new.pid in ours or killed & {pid for pid, _ in bench.enrolled()} - old_ones
    elif record.outcome in (RunOutcome.STOPPED, RunOutcome.FAILED):
        assert not ours
    elif record.outcome is RunOutcome.STUCK:
        assert ours <= {each.pid for each in record.leftovers}
    else:
        assert ours <= old_ones
