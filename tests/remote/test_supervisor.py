"""A supervisor stops and starts real processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fixtures.proc.running import pythons
from tests.fixtures.runs.bench import HASTY, TITLES, Bench, benches, free_port, lives, ticks_of, until
from tuner.core.run_words import cut_words, outcome
from tuner.domain.runs import DrainAsk, RunOutcome, RunStep, StopStep

NOBODY = 65_534
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


@pytest.mark.parametrize("python", pythons())
def test_a_server_is_replaced_by_another(bench: Bench, python: str) -> None:
    bench.python = python
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
    until(lambda: len(bench.enrolled()) == 6)
    assert bench.living() == {pid for pid, _ in bench.enrolled()[3:]}
    assert record.log is not None
    log = Path(record.log).read_text()
    assert "starting new hello" in log
    assert '{"model": "toy-1", "n": 1}' in log


# -- stop -------------------------------------------------------------------------------------------------------------


def test_a_server_is_only_stopped(bench: Bench) -> None:
    old = bench.server("--ranks", "2")
    record = bench.begin(stop=bench.stop(old.pid)).outcome()
    assert record.outcome is RunOutcome.STOPPED
    assert record.steps[-1].detail == "no GPU"
    stop = next(step for step in record.steps if step.step is RunStep.STOP)
    assert (stop.detail, stop.unclean) == ("all 3 processes have ended, after SIGTERM", False)
    assert not bench.living()


def test_one_that_ignores_signals_is_killed_with_all_its_processes(bench: Bench) -> None:
    old = bench.server("--ranks", "2", "--stubborn", "--ranks-stubborn", "--orphans")
    run = bench.begin(stop=bench.stop(old.pid, HASTY))
    record = run.outcome()
    assert record.outcome is RunOutcome.STOPPED
    stop = next(step for step in record.steps if step.step is RunStep.STOP)
    assert stop.unclean
    assert re.fullmatch(
        "all 3 processes have ended, after SIGKILL to 3 processes: SIGTERM did not end them within [01] s", stop.detail
    )
    assert cut_words(record) == "ended by SIGKILL, which cut its requests in flight"
    assert not bench.living()
    ranks = [pid for pid, _ in bench.enrolled()[1:]]
    assert sorted(run.signals()) == sorted([("TERM", old.pid), *(("KILL", pid) for pid in (old.pid, *ranks))])


def test_processes_that_outlive_their_leader_are_ended(bench: Bench) -> None:
    old = bench.server("--ranks", "2", "--orphans")
    steps = (StopStep(signal="KILL", wait_s=5.0), StopStep(signal="TERM", to="orphans", wait_s=5.0))
    run = bench.begin(stop=bench.stop(old.pid, steps))
    assert run.outcome().outcome is RunOutcome.STOPPED
    assert not bench.living()
    assert [name for name, _ in run.signals()] == ["KILL", "TERM", "TERM"]


def test_a_server_may_have_more_processes_than_its_supervisor_may_have_files(bench: Bench) -> None:
    old = bench.server("--ranks", "20")
    few = """
import resource
import gputuner_run.supervisor.members as module
module.HIGHEST_FD = 12
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
"""
    assert bench.begin(stop=bench.stop(old.pid), fault=few).outcome().outcome is RunOutcome.STOPPED
    assert not bench.living()


def test_what_cannot_be_ended_is_listed_and_nothing_is_started(bench: Bench) -> None:
    old = bench.server("--ranks", "1", "--orphans", "--ranks-stubborn")
    run = bench.begin(stop=bench.stop(old.pid, (StopStep(signal="TERM", wait_s=0.3),)), start=bench.launch())
    record = run.outcome()
    assert record.outcome is RunOutcome.STUCK
    (rank,) = bench.living()
    (left,) = record.leftovers
    assert (left.pid, left.start_ticks, left.uid, left.ours) == (rank, ticks_of(rank), os.getuid(), True)
    assert left.title.startswith("toy::rank_TP0")
    assert record.new is None


def test_a_bystander_with_the_same_command_line_lives_on(bench: Bench) -> None:
    flags = ("--ranks", "1", "--stubborn", "--orphans")
    bystander, old = bench.server(*flags), bench.server(*flags)
    before = bench.living()
    gone = {old.pid, bench.enrolled()[-1][0]}
    assert bench.begin(stop=bench.stop(old.pid, HASTY)).outcome().outcome is RunOutcome.STOPPED
    assert bench.living() == before - gone
    assert bystander.poll() is None


def refused(bench: Bench, why: str, **parts: Any) -> None:
    """Begin a run that is refused; nothing was touched."""
    before = bench.living()
    run = bench.begin(**parts)
    record = run.outcome()
    assert record.outcome is RunOutcome.REFUSED
    assert why in record.detail
    assert "\n" not in record.detail
    assert run.signals() == []
    assert bench.living() == before
    assert run.supervisor.wait(10) == 0


def test_a_later_process_with_its_pid_is_not_the_server(bench: Bench) -> None:
    stop = bench.stop(bench.server().pid)
    leader = msgspec.structs.replace(stop.leader, start_ticks=stop.leader.start_ticks - 1)
    refused(bench, "another process now", stop=msgspec.structs.replace(stop, leader=leader))


def test_a_server_of_an_earlier_boot_is_not_the_server(bench: Bench) -> None:
    refused(bench, "started anew", stop=bench.stop(bench.server().pid, boot_id="0-0"))


def test_a_server_that_has_ended_is_not_stopped(bench: Bench) -> None:
    server = bench.server()
    stop = bench.stop(server.pid)
    server.kill()
    server.wait()
    refused(bench, "ended already", stop=stop)


def test_only_members_with_the_right_start_are_signalled(bench: Bench) -> None:
    old, other = bench.server("--stubborn"), bench.server()
    stop = bench.stop(old.pid, HASTY)
    wrong = msgspec.structs.replace(bench.stop(other.pid).leader, start_ticks=7)
    run = bench.begin(stop=msgspec.structs.replace(stop, members=(wrong,)))
    assert run.outcome().outcome is RunOutcome.STOPPED
    assert {pid for _, pid in run.signals()} == {old.pid}
    assert other.poll() is None


def test_two_runs_at_a_time_are_one_too_many(bench: Bench) -> None:
    old = bench.server("--stubborn")
    first = bench.begin(stop=bench.stop(old.pid, (StopStep(signal="TERM", wait_s=30.0),)))
    first.until("stop")
    refused_run = bench.begin(stop=bench.stop(old.pid))
    assert refused_run.outcome().detail == f"another run is going on: {first.id}"
    assert refused_run.signals() == []


def test_a_port_of_somebody_else_is_found_before_anything_is_stopped(bench: Bench) -> None:
    old = bench.server()
    with socket.create_server(("127.0.0.1", bench.port)):
        refused(
            bench, f"port {bench.port} is taken by pid {os.getpid()}",
            stop=bench.stop(old.pid, port=free_port()), start=bench.serving(),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"argv": ("/nowhere/python", "-m", "x")}, "/nowhere/python is not there"),
        ({"argv": ("nosuchprogram",)}, "nosuchprogram is not there"),
        ({"argv": ("/etc/passwd",)}, "/etc/passwd is not executable"),
        ({"argv": ()}, "there is no command"),
        ({"cwd": "/nowhere"}, "the working folder /nowhere is not there"),
        ({"log_dir": "/dev/null/logs"}, "the log folder /dev/null/logs"),
        ({"log_dir": "/proc"}, "the log folder /proc"),
        ({"log_dir": "/tmp", "log_name": "x" * 260}, "the log /tmp/xxx"),
        ({"env": {"A": "x" * (32 * os.sysconf("SC_PAGE_SIZE"))}}, "an argument or a variable is longer than"),
        ({"env": {"A": "x\0y"}}, "an argument or a variable has a NUL in it: 'A'"),
        ({"env": {"A=B": "x"}}, "no variable can be called 'A=B'"),
    ],
)
def test_what_cannot_be_started_is_found_before_anything_is_stopped(
    bench: Bench, changes: dict[str, Any], why: str
) -> None:
    old = bench.server()
    good = bench.launch()
    bad = msgspec.structs.replace(good, **changes)
    refused(bench, why, stop=bench.stop(old.pid), start=bad)
    refused(bench, "the way back: " + why, stop=bench.stop(old.pid), start=good, back=bad)


@pytest.mark.parametrize("name", ["link", "pipe"])
def test_a_log_that_is_no_plain_file_is_found_before_anything_is_stopped(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    """Who may write in its folder must not choose what the server's output, keys among it, is appended to."""
    logs, aim = tmp_path / "logs", tmp_path / "aim"
    logs.mkdir()
    aim.touch()
    (logs / "link.log").symlink_to(aim)
    os.mkfifo(logs / "pipe.log")
    old = bench.server()
    start = bench.launch(log_dir=str(logs), log_name=name)
    refused(bench, f"the log {logs / name}.log: ", stop=bench.stop(old.pid), start=start)
    assert aim.read_text() == ""


def test_a_log_is_as_open_to_others_as_the_server_before_was(bench: Bench, tmp_path: Path) -> None:
    for umask, mode in ((0o022, 0o644), (0o077, 0o600)):
        own = os.umask(umask)
        try:
            old = bench.server()
        finally:
            os.umask(own)
        run = bench.begin(stop=bench.stop(old.pid), start=bench.launch(log_dir=str(tmp_path / "logs")))
        record = run.outcome()
        assert record.log is not None
        assert Path(record.log).stat().st_mode & 0o777 == mode
        assert [path.name for path in (tmp_path / "logs").iterdir()].count(f"{run.id}.log") == 1


def test_requests_in_flight_are_awaited(bench: Bench, tmp_path: Path) -> None:
    done = tmp_path / "done"
    old = bench.server("--port", str(bench.port), "--busy-until", str(done))
    asks = (DrainAsk(path="/nothing"), DrainAsk(path="/loads", series=("running", "waiting")))
    run = bench.begin(stop=bench.stop(old.pid, port=bench.port, drain_s=30.0, drain=asks))
    until(lambda: run.known and run.record.detail == "1 requests in flight")
    assert run.record.step is RunStep.DRAIN
    assert run.signals() == []
    done.touch()
    assert run.outcome().outcome is RunOutcome.STOPPED


def test_requests_that_do_not_end_are_not_awaited_for_ever(bench: Bench, tmp_path: Path) -> None:
    old = bench.server("--port", str(bench.port), "--busy-until", str(tmp_path / "never"))
    asks = (DrainAsk(path="/loads", series=("running", "waiting")),)
    run = bench.begin(stop=bench.stop(old.pid, port=bench.port, drain_s=0.5, drain=asks))
    assert run.outcome().outcome is RunOutcome.STOPPED
    drain = next(step for step in run.record.steps if step.step is RunStep.DRAIN)
    assert (drain.detail, drain.unclean) == ("1 requests still in flight after 0.5 s", True)
    assert outcome(run.record) == f"pid {old.pid} is stopped, its requests in flight were cut"


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_who_has_the_port_in_another_network_gets_no_key(bench: Bench) -> None:
    flags = ("--port", str(bench.port), "--host", "0.0.0.0", "--api-key", "sk-canary")
    old = bench.other("unshare", "-n", *bench.argv(*flags))
    until(lambda: len(bench.enrolled()) == 1 and Path(f"/proc/{old.pid}/net/tcp").read_text().count("\n") > 1)
    with socket.create_server(("127.0.0.1", bench.port)) as stranger:
        stranger.setblocking(False)
        asks = (DrainAsk(path="/loads", series=("running", "waiting")),)
        run = bench.begin(stop=bench.stop(old.pid, port=bench.port, drain_s=2.0, drain=asks))
        assert run.outcome().outcome is RunOutcome.STOPPED
        with pytest.raises(BlockingIOError):
            stranger.accept()


# -- other users ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    os.getuid() != 0 or not Path(SYSTEM_PYTHON).exists(), reason="needs root and a Python for everybody"
)
def test_only_the_own_servers_of_a_user_are_touched() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gputuner-"))
    try:
        for bench in benches(folder):
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
                path.chmod(0o755)
            bench.python, bench.user = SYSTEM_PYTHON, NOBODY
            roots = bench.server()
            refused(bench, "the server belongs to root: only that user or root may stop it", stop=bench.stop(roots.pid))
            own = subprocess.Popen(["sleep", "600"], user=NOBODY, group=NOBODY, stdin=subprocess.DEVNULL)
            try:
                stop = bench.stop(own.pid)
                stop = msgspec.structs.replace(stop, leader=msgspec.structs.replace(stop.leader, uid=NOBODY))
                run = bench.begin(stop=stop, start=bench.launch(argv=("sleep", "600")))
                record = run.outcome()
                assert record.outcome is RunOutcome.READY
                assert own.wait(10) == -signal.SIGTERM
                assert record.new is not None
                assert record.new.uid == NOBODY
                bench.adopt(record.new.pid)
            finally:
                own.kill()
                own.wait()
            assert roots.poll() is None
    finally:
        shutil.rmtree(folder)


# -- managers ---------------------------------------------------------------------------------------------------------

MANAGER = """#!/bin/sh
case "$1" in
stop) kill "$(cat {pid})";;
start) [ -e {pid}.broken ] && {{ echo "it is broken" >&2; exit 4; }}; setsid {start} >/dev/null 2>&1 & echo $! >{pid};;
pid) cat {pid};;
*) echo "no such command" >&2; exit 5;;
esac
"""


@pytest.fixture
def manager(bench: Bench, tmp_path: Path) -> str:
    """A service manager that knows one server."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "supervisorctl"
    start = " ".join(bench.argv("--port", str(bench.port), "--name", "managed"))
    path.write_text(MANAGER.format(pid=tmp_path / "pid", start=start))
    path.chmod(0o755)
    bench.env["PATH"] = f"{folder}:{bench.env['PATH']}"
    return str(path)


def test_a_manager_stops_and_starts_its_server(bench: Bench, manager: str, tmp_path: Path) -> None:
    old = bench.server("--ranks", "1", "--orphans")
    (tmp_path / "pid").write_text(str(old.pid))
    run = bench.begin(
        stop=bench.stop(old.pid, manager=("supervisorctl", "stop", "toy")),
        start=bench.serving(argv=(), manager=("supervisorctl", "start", "toy")),
    )
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    assert run.signals() == [("TERM", bench.enrolled()[1][0])]  # the rank that the manager left
    assert record.new is not None
    assert record.new.pid == int((tmp_path / "pid").read_text())
    acts = [(line["act"], line.get("exit_code")) for line in run.lines("audit.ndjson")]
    assert ("stop", 0) in acts
    assert ("start", 0) in acts


def test_what_a_manager_started_is_ended_by_it(bench: Bench, manager: str, tmp_path: Path) -> None:
    run = bench.begin(
        start=bench.serving(argv=(), manager=("supervisorctl", "start", "toy"), port=free_port(), deadline_s=2.0)
    )
    assert run.outcome().outcome is RunOutcome.FAILED
    assert run.signals() == []
    assert not bench.living()
    assert [line["argv"][1] for line in run.lines("audit.ndjson") if line["act"] == "stop"] == ["stop"]


def test_a_manager_that_cannot_start_its_server_is_told_to_leave_it(bench: Bench, manager: str, tmp_path: Path) -> None:
    (tmp_path / "pid.broken").touch()
    (tmp_path / "pid").write_text("999999999")
    run = bench.begin(start=bench.serving(argv=(), manager=("supervisorctl", "start", "toy")))
    record = run.outcome()
    assert (record.outcome, record.failure) == (RunOutcome.FAILED, "supervisorctl start toy: it is broken")
    acts = [line["argv"][1] for line in run.lines("audit.ndjson") if "argv" in line]
    assert acts == ["start", "stop"]


@pytest.mark.parametrize("more", ["", "; printf 'more%.0s ' $(seq 100)"], ids=["alone", "before-more"])
def test_a_manager_that_refuses_without_an_exit_code_leaves_the_server_alone(
    bench: Bench, tmp_path: Path, more: str
) -> None:
    """So does supervisorctl before 4.0. A server that were killed all the same would be started by it again."""
    path = tmp_path / "supervisorctl"
    path.write_text(f"#!/bin/sh\necho 'toy: ERROR (no such process)'{more}\n")
    path.chmod(0o755)
    old = bench.server()
    told = "more more" if more else "toy: ERROR"
    refused(bench, told, stop=bench.stop(old.pid, HASTY, manager=(str(path), "stop", "toy"), manager_wait_s=2.0))


def test_a_manager_that_refuses_leaves_the_server_alone(bench: Bench, manager: str) -> None:
    old = bench.server()
    refused(bench, "no such command", stop=bench.stop(old.pid, manager=(manager, "halt", "toy")), start=bench.launch())
