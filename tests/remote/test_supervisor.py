"""A supervisor stops and starts real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.runs.bench import TITLES, Bench, benches, lives
from tuner.domain.runs import RunOutcome, RunStep


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


def test_a_server_is_replaced_by_another(bench: Bench) -> None:
    old = bench.server("--port", str(bench.port), "--ranks", "2")
    run = bench.begin(
        stop=bench.stop(old.pid, port=bench.port),
        start=bench.serving("--ranks", "2", "--name", "new", titles=TITLES, ranks=2, env={"TOY_WORD": "hello"}),
    )
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    assert old.wait() == -signal.SIGTERM
    assert run.signals() == [("TERM", old.pid)]
    assert [step.step for step in record.steps] == [
        RunStep.CHECK, RunStep.STOP, RunStep.MEMORY, RunStep.LAUNCH, RunStep.LOADING, RunStep.PORT, RunStep.HEALTH,
        RunStep.FIRST_TOKEN, RunStep.STEADY,
    ]  # fmt: skip
    assert record.new is not None
    assert lives(record.new.pid, record.new.start_ticks)
    assert bench.living() == {record.new.pid} | {pid for pid, _ in bench.enrolled()[-2:]}
    assert record.log is not None
    assert "starting new hello" in Path(record.log).read_text()
