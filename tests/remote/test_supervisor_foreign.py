"""A supervisor takes no process for its own that is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.runs.bench import Bench, benches, free_port
from tuner.domain.runs import RunOutcome

SYSTEMCTL = """#!/bin/sh
[ "$XDG_RUNTIME_DIR" = /run/toy ] && [ "$1" = --user ] || exit 7
shift
case "$1" in
stop) kill "$(cat {pid})" 2>/dev/null; :>{pid};;
start) {start};;
show) cat {pid};;
esac
"""
MANAGER = ("env", "XDG_RUNTIME_DIR=/run/toy", "systemctl", "--user", "start", "toy.service")
SHORT = "import gputuner_run.supervisor.start as module\nmodule.MANAGER_S = 1.5"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


def systemctl(bench: Bench, folder: Path, start: str) -> None:
    """Let the bench's supervisors have a service manager with one unit."""
    path = folder / "bin" / "systemctl"
    path.parent.mkdir()
    (folder / "main").write_text("0\n")
    path.write_text(SYSTEMCTL.format(pid=folder / "main", start=start))
    path.chmod(0o755)
    bench.env["PATH"] = f"{path.parent}:{bench.env['PATH']}"


def test_who_listens_on_the_port_of_a_unit_without_processes_is_not_its_server(bench: Bench, tmp_path: Path) -> None:
    """The unit's own process ended at once, and somebody else's server answers."""
    systemctl(bench, tmp_path, ":")
    other = bench.server("--port", str(bench.port))
    run = bench.begin(
        start=bench.serving("--exit-code", "7", port=free_port()),
        back=bench.serving(argv=(), manager=MANAGER),
        auto_back=True,
        fault=SHORT,
    )
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert "started no process that could be found" in record.detail
    assert record.new is None
    assert run.signals() == []
    assert other.poll() is None


def test_a_user_s_unit_that_does_not_get_ready_is_stopped_by_its_manager(bench: Bench, tmp_path: Path) -> None:
    argv = " ".join(bench.argv("--port", str(bench.port), "--ill-until", str(tmp_path / "never")))
    systemctl(bench, tmp_path, f"setsid {argv} >/dev/null 2>&1 & echo $! >{tmp_path / 'main'}")
    run = bench.begin(start=bench.serving(argv=(), manager=MANAGER, deadline_s=3.0))
    assert run.outcome().outcome is RunOutcome.FAILED
    assert run.signals() == []
    assert not bench.living()
    stops = [line["argv"] for line in run.lines("audit.ndjson") if line["act"] == "stop"]
    assert stops == [["stop" if word == "start" else word for word in MANAGER]]
