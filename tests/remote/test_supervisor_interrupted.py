"""Runs that are cancelled, whose supervisor is killed, or whose disk is full: the host is never left in the dark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.runs.bench import HASTY, TITLES, Bench, Run, benches, lives, until
from tuner.domain.runs import RunOutcome, RunStep, StopStep


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


def new_ones(bench: Bench, run: Run) -> set[int]:
    """The leaders that this run started and that live."""
    token = f"GPUTUNER_RUN={run.id}".encode()
    found = {pid for pid in bench.living() if token in Path(f"/proc/{pid}/environ").read_bytes()}
    return {pid for pid in found if os.getsid(pid) == pid}


# -- cancelled --------------------------------------------------------------------------------------------------------


def test_cancelled_before_anything_was_touched(bench: Bench, tmp_path: Path) -> None:
    from tuner.domain.runs import DrainAsk

    old = bench.server("--port", str(bench.port), "--busy-until", str(tmp_path / "never"))
    asks = (DrainAsk(path="/loads", series=("running",)),)
    run = bench.begin(stop=bench.stop(old.pid, port=bench.port, drain_s=60.0, drain=asks), start=bench.serving())
    run.until("drain")
    run.cancel(back=True)
    record = run.outcome()
    assert record.outcome is RunOutcome.CANCELLED
    assert record.cancelled_by is not None
    assert record.cancelled_by.name == "ann"
    assert run.signals() == []
    assert old.poll() is None


@pytest.mark.parametrize("back", [True, False])
def test_cancelled_while_it_stops(bench: Bench, back: bool) -> None:
    old = bench.server("--stubborn")
    steps = (StopStep(signal="TERM", wait_s=1.0), StopStep(signal="KILL", to="tree", wait_s=5.0))
    run = bench.begin(
        stop=bench.stop(old.pid, steps), start=bench.serving("--name", "new"), back=bench.serving("--name", "old")
    )
    until(lambda: run.known and run.signals())
    run.cancel(back=back)
    record = run.outcome()
    assert record.outcome is (RunOutcome.BACK if back else RunOutcome.STOPPED)
    assert len(bench.living()) == int(back)
    logs = "".join(path.read_text() for path in run.folder.glob("*.log"))
    assert logs.split()[:2] == (["starting", "old"] if back else [])


@pytest.mark.parametrize("back", [True, False])
def test_cancelled_while_it_starts(bench: Bench, tmp_path: Path, back: bool) -> None:
    old = bench.server()
    run = bench.begin(
        stop=bench.stop(old.pid), start=bench.serving("--ranks", "1", "--bind-after", str(tmp_path / "never")),
        back=bench.serving("--name", "old"), auto_back=not back,
    )  # fmt: skip
    until(lambda: len(bench.enrolled()) == 3)
    run.cancel(back=back)
    record = run.outcome()
    assert record.outcome is (RunOutcome.BACK if back else RunOutcome.STOPPED)
    assert len(bench.living()) == int(back)


def test_the_way_back_is_cancelled_only_by_who_does_not_want_it(bench: Bench, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    run = bench.begin(
        stop=bench.stop(bench.server().pid), start=bench.serving("--exit-code", "1"),
        back=bench.serving("--bind-after", never), auto_back=True,
    )  # fmt: skip
    until(lambda: run.known and run.record.going_back and run.record.step is RunStep.LOADING)
    run.cancel(back=True)
    until(lambda: run.record.cancelled_by is not None)
    assert run.record.outcome is RunOutcome.RUNNING
    run.cancel(back=False)
    assert run.outcome().outcome is RunOutcome.STOPPED
    assert not bench.living()


# -- killed -----------------------------------------------------------------------------------------------------------

# What a supervisor does at its death is code in it: so each moment can be had for certain.
AFTER_KILL = """
import os
from gputuner_run.supervisor import ladder
real = ladder.send
def send(member, name, *args):
    outcome = real(member, name, *args)
    if name == "KILL":
        os.kill(os.getpid(), 9)
    return outcome
ladder.send = send
"""
AT_STEP = """
import os
from gputuner_run.supervisor import record
real = record.Record.step
def step(self, name, *args, **kwargs):
    real(self, name, *args, **kwargs)
    if name == "{step}":
        os.kill(os.getpid(), 9)
record.Record.step = step
"""
AFTER_SIGNAL = """
import os
from gputuner_run.supervisor import ladder
real = ladder.send
def send(*args):
    real(*args)
    os.kill(os.getpid(), 9)
ladder.send = send
"""
BEFORE_RECORD = """
import os
from gputuner_run.supervisor import start
def recorded(self, leader):
    os.kill(os.getpid(), 9)
start.Start._recorded = recorded
"""
AFTER_RECORD = """
import os
from gputuner_run.supervisor import start
real = start.Start._recorded
def recorded(self, leader):
    real(self, leader)
    os.kill(os.getpid(), 9)
start.Start._recorded = recorded
"""
BEFORE_LAUNCHED = """
import os
from gputuner_run.supervisor import start
def died(*args, **kwargs):
    found = real(*args, **kwargs)
    os.kill(os.getpid(), 9)
real = start.spawn
start.spawn = died
"""
STEPS = ("check", "stop", "memory", "launch", "loading", "port", "health", "first-token", "steady")
DEATHS = {
    **{step: AT_STEP.format(step=step) for step in STEPS},
    "after the first signal": AFTER_SIGNAL,
    "between fork and record": BEFORE_RECORD,
    "between record and exec": AFTER_RECORD,
    "after exec": BEFORE_LAUNCHED,
}


@pytest.mark.parametrize("back", [False, True], ids=["goes on", "goes back"])
@pytest.mark.parametrize("moment", DEATHS)
def test_another_supervisor_goes_on(bench: Bench, moment: str, back: bool) -> None:
    # What the leader left behind must be known to who was not there when it ended.
    old = bench.server("--ranks", "1", *(["--orphans"] if "signal" in moment else []))
    old_ones = bench.living()
    start = bench.serving("--ranks", "1", "--name", "new", titles=TITLES, ranks=1)
    run = bench.begin(stop=bench.stop(old.pid), start=start, back=bench.serving("--name", "old"), fault=DEATHS[moment])
    assert run.supervisor.wait(30) == -signal.SIGKILL
    assert run.record.outcome is RunOutcome.RUNNING
    assert len(new_ones(bench, run)) <= 1
    run.resume(back=back)
    record = run.outcome()
    assert record.new is not None or moment == "check"
    if back and moment == "check":
        # Nothing was touched yet.
        assert record.outcome is RunOutcome.CANCELLED
        assert bench.living() == old_ones
        return
    assert record.outcome is (RunOutcome.BACK if back else RunOutcome.READY)
    assert not bench.living() & old_ones
    assert new_ones(bench, run) == {record.new.pid}  # type: ignore[union-attr]
    log = Path(record.log or "").read_text()
    assert log.splitlines()[0].split()[:2] == ["starting", "old" if back else "new"]


@pytest.mark.parametrize("back", [False, True], ids=["goes on", "goes back"])
@pytest.mark.parametrize("moment", ["stop", "memory", "launch"])
def test_no_second_server_is_started_where_one_was_started_meanwhile(bench: Bench, moment: str, back: bool) -> None:
    old = bench.server()
    start, before = bench.serving("--name", "new"), bench.serving("--name", "old")
    run = bench.begin(stop=bench.stop(old.pid), start=start, back=before, fault=DEATHS[moment])
    assert run.supervisor.wait(30) == -signal.SIGKILL
    old.kill()
    old.wait()
    other = bench.server("--port", str(bench.port))
    run.resume(back=back)
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert record.failure.startswith(f"nothing was started: port {bench.port} is taken by")
    assert record.new is None
    assert bench.living() == {other.pid}


SLOW_TO_END = """
import os, time
from gputuner_run.supervisor import launching
class Slow:
    def __getattr__(self, name):
        return getattr(os, name)
    def _exit(self, code):
        os.closerange(3, 256)
        time.sleep(1.0)
        os._exit(code)
launching.os = Slow()
"""
"""The forked child ends a second after it has given back all files, the host's lock among them."""


def test_a_child_that_is_about_to_end_is_no_server(bench: Bench) -> None:
    """Its PID was recorded, but the supervisor was killed before it let the child run the program."""
    run = bench.begin(start=bench.serving("--name", "new"), fault=SLOW_TO_END + AFTER_RECORD)
    assert run.supervisor.wait(30) == -signal.SIGKILL
    child = run.record.new
    assert child is not None
    assert lives(child.pid)
    run.resume()
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    assert record.new is not None
    assert new_ones(bench, run) == {record.new.pid} != {child.pid}


def test_an_older_process_with_the_id_of_the_run_is_no_server_of_it(bench: Bench) -> None:
    """An environment is inherited, so it alone proves nothing."""
    bystander = bench.server(env={"GPUTUNER_RUN": bench.next_run})
    run = bench.begin(start=bench.serving("--name", "new"), fault=BEFORE_RECORD)
    assert run.supervisor.wait(30) == -signal.SIGKILL
    run.resume()
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    assert record.new is not None
    assert record.new.pid != bystander.pid
    assert run.signals() == []
    assert bystander.poll() is None


def test_a_server_outlives_its_supervisor_and_is_watched_by_another(bench: Bench) -> None:
    run = bench.begin(start=bench.serving())
    record = run.outcome()
    run.kill()
    assert record.new is not None
    assert lives(record.new.pid)
    run.resume()
    until(lambda: run.record.supervisor is not None and run.record.supervisor.pid == run.supervisor.pid)
    os.kill(record.new.pid, signal.SIGKILL)
    assert run.supervisor.wait(20) == 0
    # It is no child of this one, so nobody knows how it ended.
    assert json.loads((run.folder / "exit.json").read_text())["exit_code"] is None
    assert run.record.outcome is RunOutcome.READY


def test_one_that_ended_while_nobody_watched_has_failed(bench: Bench, tmp_path: Path) -> None:
    run = bench.begin(
        start=bench.serving("--ranks", "1", "--orphans", "--bind-after", str(tmp_path / "never"), titles=TITLES)
    )
    run.until("loading")
    until(lambda: "toy::rank_TP0" in (run.folder / "state.json").read_text())
    run.kill()
    assert run.record.new is not None
    os.kill(run.record.new.pid, signal.SIGKILL)
    until(lambda: len(bench.living()) == 1)
    run.resume()
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert not bench.living()


def test_a_part_that_ended_while_nobody_watched_ends_the_start(bench: Bench, tmp_path: Path) -> None:
    start = bench.serving(
        "--part", "--lingers", "--bind-after", str(tmp_path / "never"), titles=TITLES, parts=("toy::",), deadline_s=60.0
    )
    run = bench.begin(start=start)
    run.until("loading")
    until(run.parts)
    run.kill()
    (part,) = run.parts()
    os.kill(part, signal.SIGKILL)
    run.resume()
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert f"(pid {part}) ended while the server started" in record.failure


FAULTY = """
import sys
from gputuner_run.supervisor import readiness
real = readiness.Readiness._steady
def steady(self):
    if {always} or "--again" not in sys.argv:
        raise KeyError("ours")
    real(self)
readiness.Readiness._steady = steady
"""


def test_a_fault_of_the_supervisor_ends_no_run(bench: Bench) -> None:
    run = bench.begin(start=bench.serving(), fault=FAULTY.format(always=False))
    until(lambda: run.known and run.record.outcome is RunOutcome.READY)
    assert "KeyError" in run.errors
    assert len(new_ones(bench, run)) == 1
    # It is the same process, so the server is still its child.
    os.kill(run.record.new.pid, signal.SIGKILL)  # type: ignore[union-attr]
    assert run.supervisor.wait(20) == 0
    assert run.record.exit_code == -9


def test_a_fault_that_comes_again_leaves_the_run_to_another(bench: Bench) -> None:
    run = bench.begin(start=bench.serving(), fault=FAULTY.format(always=True))
    assert run.supervisor.wait(20) == 1
    assert run.record.outcome is RunOutcome.RUNNING
    assert "can be resumed" in run.record.detail
    assert len(new_ones(bench, run)) == 1
    (run.folder / "supervisor.err").unlink()
    run.resume()
    assert run.outcome().outcome is RunOutcome.READY
    assert len(new_ones(bench, run)) == 1


def test_a_cancel_that_was_read_is_carried_out_by_the_next_supervisor(bench: Bench, tmp_path: Path) -> None:
    run = bench.begin(
        start=bench.serving("--bind-after", str(tmp_path / "never")), back=bench.serving(), fault=AT_STEP.format(
            step="memory"
        ),
    )  # fmt: skip
    run.until("loading")
    run.cancel(back=True)
    assert run.supervisor.wait(20) == -signal.SIGKILL
    run.resume()
    assert run.outcome().outcome is RunOutcome.BACK
    assert len(new_ones(bench, run)) == 1


def test_the_rung_that_was_reached_is_that_of_one_server(bench: Bench, tmp_path: Path) -> None:
    old = bench.server("--stubborn")
    run = bench.begin(
        stop=bench.stop(old.pid, HASTY), start=bench.serving("--bind-after", str(tmp_path / "never"), stop=HASTY),
        fault=AFTER_KILL,
    )  # fmt: skip
    assert run.supervisor.wait(20) == -signal.SIGKILL
    run.resume()
    until(lambda: len(bench.enrolled()) == 2)
    run.cancel(back=False)
    record = run.outcome()
    assert record.outcome is RunOutcome.STOPPED
    assert record.new is not None
    # The next server is told to end before it is killed, though the run had been killing.
    assert run.signals()[-1] == ("TERM", record.new.pid)


def test_cancelled_before_anything_was_started(bench: Bench) -> None:
    fault = """
import json, os, sys
from gputuner_run.supervisor import run
real = run.Run._first_reading
def reading(self, *args):
    real(self, *args)
    with open(sys.argv[1] + "/part", "w") as file:
        json.dump({"back": True}, file)
    os.rename(sys.argv[1] + "/part", sys.argv[1] + "/cancel")
run.Run._first_reading = reading
"""
    old = bench.server()
    stopping = bench.begin(stop=bench.stop(old.pid), start=bench.serving(), back=bench.serving(), fault=fault)
    assert stopping.outcome().outcome is RunOutcome.CANCELLED
    assert old.poll() is None
    starting = bench.begin(start=bench.serving(), fault=fault)
    assert starting.outcome().outcome is RunOutcome.CANCELLED
    assert len(bench.enrolled()) == 1


def test_a_run_of_an_earlier_boot_is_over(bench: Bench, tmp_path: Path) -> None:
    run = bench.begin(start=bench.serving("--bind-after", str(tmp_path / "never")))
    run.until("loading")
    run.kill()
    state = run.folder / "state.json"
    state.write_text(state.read_text().replace('"boot_id":"', '"boot_id":"0'))
    run.resume()
    record = run.outcome()
    assert (record.outcome, record.detail) == (RunOutcome.FAILED, "the host was started anew during the run")
    assert bench.living()  # it may be anybody's


EARLY = """
import gputuner_run.supervisor.main as module
def read(self, name, real=module.Folder.read, seen=[]):
    early = name == "state.json" and not seen
    seen.append(name) if early else None
    return None if early else real(self, name)
module.Folder.read = read
"""
"""Makes a supervisor look for the record when there is none yet."""


def test_a_second_supervisor_that_was_started_at_once_leaves_the_run_to_the_first(bench: Bench) -> None:
    """A service manager that crawls may start one after the probe has given it up and started another."""
    old = bench.server("--stubborn")
    run = bench.begin(stop=bench.stop(old.pid, (StopStep(signal="TERM", wait_s=5.0), *HASTY)))
    run.until("stop")
    first = run.supervisor
    run.supervise(fault=EARLY)
    assert run.supervisor.wait(20.0) == 1
    assert f"another run is going on: {run.id}" in run.errors
    assert run.record.outcome is RunOutcome.RUNNING
    (run.folder / "supervisor.err").unlink()
    run.supervisor = first
    assert run.outcome().outcome is RunOutcome.STOPPED
    assert [line["outcome"] for line in run.lines("audit.ndjson") if line["act"] == "run"] == ["stopped"]


def test_a_second_supervisor_does_not_carry_out_what_the_first_has_done(bench: Bench) -> None:
    old = bench.server()
    run = bench.begin(stop=bench.stop(old.pid))
    assert run.outcome().outcome is RunOutcome.STOPPED
    run.supervise(fault=EARLY)
    assert run.supervisor.wait(20.0) == 0
    assert run.record.outcome is RunOutcome.STOPPED


def test_the_lock_dies_with_the_supervisor(bench: Bench) -> None:
    old = bench.server("--stubborn")
    run = bench.begin(stop=bench.stop(old.pid, (StopStep(signal="TERM", wait_s=60.0),)))
    until(lambda: run.known and run.signals())
    run.kill()
    assert bench.begin(stop=bench.stop(old.pid, HASTY)).outcome().outcome is RunOutcome.STOPPED


# -- full disks -------------------------------------------------------------------------------------------------------

FULL = """
import errno, os
from gputuner_run.agent import folder
from gputuner_run.supervisor import files
def full(path):
    return os.path.exists({flag!r}) and (not {needs_reserve} or os.path.exists({reserve!r}))
real_bytes, real_append = files.write_bytes, files.Folder._flush
def write_bytes(path, data, **kwargs):
    if full(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    real_bytes(path, data, **kwargs)
def flush(self, path):
    return False if full(path) else real_append(self, path)
files.write_bytes, files.Folder._flush = write_bytes, flush
"""


def test_a_disk_that_fills_up_stops_nothing(bench: Bench, tmp_path: Path) -> None:
    flag, bind = tmp_path / "full", tmp_path / "bind"
    old = bench.server("--stubborn")
    fault = FULL.format(flag=str(flag), needs_reserve=False, reserve="")
    run = bench.begin(
        stop=bench.stop(old.pid, HASTY), start=bench.serving("--bind-after", str(bind)), fault=fault,
    )  # fmt: skip
    until(lambda: run.known and run.signals())
    flag.touch()
    assert old.wait(20) == -signal.SIGKILL
    until(lambda: len(bench.enrolled()) == 2)
    bind.touch()
    until(lambda: "asked" in (run.folder / "server.log").read_text())
    assert run.record.step is RunStep.STOP
    flag.unlink()
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    assert ("KILL", old.pid) in run.signals()
    assert ("KILL", old.pid) in [(line.get("signal"), line.get("pid")) for line in run.lines("audit.ndjson")]


@pytest.mark.parametrize("starts", [False, True], ids=["stop", "switch"])
def test_an_outcome_is_told_once_there_is_room_for_it(bench: Bench, tmp_path: Path, starts: bool) -> None:
    flag, ended = tmp_path / "full", tmp_path / "ended"
    old = bench.server()
    fault = (
        FULL.format(flag=str(flag), needs_reserve=False, reserve="")
        + f"""
from gputuner_run.supervisor import record
real_end = record.Record.end
def end(self, *arguments):
    open({str(flag)!r}, "w").close()
    real_end(self, *arguments)
    open({str(ended)!r}, "w").close()
record.Record.end = end
"""
    )
    run = bench.begin(stop=bench.stop(old.pid), start=bench.serving() if starts else None, fault=fault)
    until(ended.exists, 20.0)
    with pytest.raises(subprocess.TimeoutExpired):
        run.supervisor.wait(1.5)
    assert run.record.outcome is RunOutcome.RUNNING
    flag.unlink()
    assert run.outcome().outcome is (RunOutcome.READY if starts else RunOutcome.STOPPED)


def test_the_reserve_is_for_the_record_of_what_comes_next(bench: Bench, tmp_path: Path) -> None:
    flag = tmp_path / "full"
    old = bench.server()
    run = bench.begin(stop=bench.stop(old.pid), fault=FULL.format(
        flag=str(flag), needs_reserve=True, reserve=str(bench.folder / "runs" / bench.next_run / "reserve"),
    ) + f"open({str(flag)!r}, 'w').close()\n")  # fmt: skip
    assert run.outcome().outcome is RunOutcome.STOPPED
    # The signal was written down before it was sent, in the space that the reserve gave up.
    intended = next(line for line in run.lines() if line.get("processes"))
    assert intended["processes"][0]["pid"] == old.pid
    assert run.signals() == [("TERM", old.pid)]


def test_a_host_without_room_for_the_record_is_left_alone(bench: Bench) -> None:
    old = bench.server()
    fault = """
import errno
from gputuner_run.supervisor import files
def full(self):
    raise OSError(errno.ENOSPC, "No space left on device")
files.Folder.make_reserve = full
"""
    run = bench.begin(stop=bench.stop(old.pid), fault=fault)
    record = run.outcome()
    assert record.outcome is RunOutcome.REFUSED
    assert "No space left" in record.detail
    assert old.poll() is None
