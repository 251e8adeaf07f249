"""The proof that the GPUs have their memory back, with a driver that a test plays."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.runs.bench import Bench, benches, until
from tuner.domain.runs import RunOutcome, RunStep

SMI = Path(__file__).parents[1] / "fixtures" / "runs" / "nvidia_smi.py"
MIB = 1 << 20


class Driver:
    """The driver: what it tells is a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, gpus: list[int], users: list[tuple[int, int, int | str]], **more: Any) -> None:
        """Tell MiB in use by GPU, and by GPU and PID."""
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"gpus": gpus, "users": users, **more}))
        part.rename(self._path)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


@pytest.fixture
def driver(bench: Bench, tmp_path: Path) -> Driver:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -ISB {SMI} "$@"\n')
    program.chmod(0o755)
    bench.env.update(PATH=f"{folder}:{bench.env['PATH']}", TOY_GPUS=str(tmp_path / "gpus"))
    return Driver(tmp_path / "gpus")


def test_nothing_starts_before_the_memory_is_back(bench: Bench, driver: Driver) -> None:
    old = bench.server("--ranks", "1")
    rank = bench.enrolled()[1][0]
    driver.tell([70_000, 900], [(0, rank, 69_000)])
    run = bench.begin(stop=bench.stop(old.pid, gpus=("GPU-0",), memory_s=30.0), start=bench.serving())
    run.until("memory")
    until(lambda: "GiB" in run.record.detail)
    assert run.record.detail == f"GPU memory: GPU 0: pid {rank} still holds 67.4 GiB"
    driver.tell([70_000, 900], [])
    until(lambda: run.record.detail == "GPU memory: GPU 0: 67.4 GiB are not free yet")
    assert run.record.step is RunStep.MEMORY
    assert not bench.living()
    # Another tenant takes what was freed: that is not the server's.
    driver.tell([51_000, 900], [(0, os.getpid(), 50_000)])
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    (back,) = record.memory
    assert (back.gpu, back.before_bytes, back.held_bytes) == (0, 70_000 * MIB, 69_000 * MIB)
    assert back.after_bytes == 51_000 * MIB


def test_memory_that_stays_is_told_with_who_holds_it(bench: Bench, driver: Driver) -> None:
    old = bench.server()
    driver.tell([40_000], [(0, old.pid, 30_000), (0, os.getpid(), 9_000)])
    run = bench.begin(stop=bench.stop(old.pid, gpus=("GPU-0",), memory_s=1.0), start=bench.serving())
    record = run.outcome()
    assert record.outcome is RunOutcome.STUCK
    assert f"pid {old.pid} still holds" in record.detail
    left = {each.pid: each for each in record.leftovers}
    assert set(left) == {old.pid, os.getpid()}
    assert (left[old.pid].ours, left[os.getpid()].ours) == (True, False)
    assert left[os.getpid()].gpu_bytes == 9_000 * MIB
    assert left[os.getpid()].user
    assert record.new is None


def test_a_driver_that_does_not_tell_names_is_judged_by_the_amount(bench: Bench, driver: Driver) -> None:
    old = bench.server()
    driver.tell([40_000], [])
    run = bench.begin(stop=bench.stop(old.pid, gpus=("GPU-0",), memory_s=20.0))
    run.until("memory")
    until(lambda: "does not tell by whom" in run.record.detail)
    driver.tell([700], [])
    assert run.outcome().outcome is RunOutcome.STOPPED


def test_what_was_in_use_before_a_start_of_ours_is_what_must_be_left(bench: Bench, driver: Driver) -> None:
    """A tenant that the driver hides holds more than half of the memory."""
    driver.tell([50_000], [])
    new = bench.begin(start=bench.serving()).outcome().new
    assert new is not None
    driver.tell([80_000], [])
    run = bench.begin(stop=bench.stop(new.pid, gpus=("GPU-0",), memory_s=20.0))
    run.until("memory")
    driver.tell([52_000], [])
    until(lambda: "50.8 GiB in use, and the driver does not tell by whom" in run.record.detail)
    assert "at most 49.7 GiB of 78.1 GiB are to be" in run.record.detail
    driver.tell([50_100], [])
    assert run.outcome().outcome is RunOutcome.STOPPED


def test_a_small_server_beside_a_large_tenant_that_the_driver_hides(bench: Bench, driver: Driver) -> None:
    """Half of the memory in use never comes back, but what its ranks said they allocated does."""
    old = bench.server()
    driver.tell([80_000], [])
    stop = bench.stop(old.pid, gpus=("GPU-0",), claimed={"GPU-0": 10_000 * MIB}, memory_s=20.0)
    run = bench.begin(stop=stop)
    run.until("memory")
    until(lambda: "68.9 GiB of 78.1 GiB are to be" in run.record.detail)
    driver.tell([69_500], [])
    assert run.outcome().outcome is RunOutcome.STOPPED


def test_memory_of_others_is_none_of_ours(bench: Bench, driver: Driver) -> None:
    """A server that is stopped before it held any memory has none to give back."""
    old = bench.server()
    driver.tell([40_000], [(0, os.getpid(), 39_000)])
    run = bench.begin(stop=bench.stop(old.pid, gpus=("GPU-0",), memory_s=5.0))
    record = run.outcome()
    assert record.outcome is RunOutcome.STOPPED
    assert [(each.held_bytes, each.after_bytes) for each in record.memory] == [(0, 40_000 * MIB)]


def test_a_driver_that_hangs_proves_nothing_and_stops_nobody(bench: Bench, driver: Driver) -> None:
    old = bench.server()
    driver.tell([], [], hangs=True)
    run = bench.begin(stop=bench.stop(old.pid, gpus=("GPU-0",), memory_s=1.0), start=bench.serving())
    record = run.outcome()
    assert record.outcome is RunOutcome.REFUSED
    assert "not answer" in record.detail
    assert old.pid in bench.living()


def test_a_server_can_be_stopped_although_the_driver_hangs(bench: Bench, driver: Driver) -> None:
    old = bench.server()
    driver.tell([], [], hangs=True)
    record = bench.begin(stop=bench.stop(old.pid, gpus=("GPU-0",), memory_s=1.0)).outcome()
    assert record.outcome is RunOutcome.STUCK
    assert "not answer" in record.detail
    assert not bench.living()


def test_a_failed_start_must_give_back_what_it_took(bench: Bench, driver: Driver, tmp_path: Path) -> None:
    driver.tell([500], [])
    ends = tmp_path / "ends"
    run = bench.begin(
        start=bench.serving("--exit-code", "3", "--exit-after", str(ends)), back=bench.serving(), auto_back=True
    )
    until(lambda: bench.living())
    driver.tell([60_000], [])
    ends.touch()
    until(lambda: run.record.detail == "GPU memory: GPU 0: 58.1 GiB are not free yet")
    driver.tell([600], [])
    assert run.outcome().outcome is RunOutcome.BACK


@pytest.mark.parametrize("named", [True, False])
def test_a_driver_that_answers_too_late_is_asked_who_still_holds_memory(
    bench: Bench, driver: Driver, named: bool
) -> None:
    """Nothing was read before the first signal, so what must come back is not known: nothing may be left."""
    old = bench.server()
    driver.tell([70_000], [(0, old.pid, 69_000)] if named else [])
    late = "import gputuner_run.supervisor.run as module\nmodule.FIRST_S = 0.0"
    run = bench.begin(stop=bench.stop(old.pid, gpus=("GPU-0",), memory_s=30.0), fault=late)
    run.until("memory")
    until(lambda: "GPU 0" in run.record.detail)
    assert ("still holds" if named else "in use") in run.record.detail
    driver.tell([30_100], [(0, os.getpid(), 30_000)])
    assert run.outcome().outcome is RunOutcome.STOPPED


def test_what_a_tenant_took_while_the_start_loaded_is_not_the_start_s(
    bench: Bench, driver: Driver, tmp_path: Path
) -> None:
    driver.tell([500], [])
    ends = tmp_path / "ends"
    run = bench.begin(
        start=bench.serving("--exit-code", "3", "--exit-after", str(ends)), back=bench.serving(), auto_back=True
    )
    until(lambda: bench.living())
    driver.tell([30_500], [(0, os.getpid(), 30_000)])
    ends.touch()
    assert run.outcome().outcome is RunOutcome.BACK
