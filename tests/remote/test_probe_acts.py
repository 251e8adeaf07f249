"""Acts: the lease, runs and the audit, with the real probe and a home folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.acting import (
    ANN,
    BOB,
    KEY,
    SUPERVISOR,
    TOKEN,
    Operator,
    boot_id,
    end_supervisors,
    operating,
    process_id,
    toy_process,
)
from tests.fixtures.proc.running import RunningProbe, is_alive, pythons, toy_plan
from tests.fixtures.proc.tree import ProcTree
from tuner.domain import events as e
from tuner.probe.bootstrap import supervisor

RUN = "20261130-101523-a1b2c3d4"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    end_supervisors(folder / ".gputuner")


@pytest.fixture
def ann(home: Path) -> Iterator[Operator]:
    with operating(home) as operator:
        yield operator


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- the lease ---------------------------------------------------------------------------------------------------------


def test_nothing_is_made_before_the_first_act(ann: Operator) -> None:
    ann.probe.settle()
    assert ann.refused("switch", order={"run": RUN}) == "nobody has taken the right to change this host"
    ann.done("release-lease")
    assert not ann.folder.exists()
    assert not ann.probe.of(e.LeaseChanged)


def test_a_second_operator_is_refused_until_the_first_gives_the_lease_back(ann: Operator, home: Path) -> None:
    ann.done("take-lease")
    assert ann.lease(mine=True).holder.name == "ann"
    assert mode(ann.folder) == 0o700
    with operating(home, BOB) as bob:
        assert bob.lease(mine=False).holder.machine == "laptop-1"
        assert bob.refused("take-lease") == "ann at laptop-1 has the right to change this host"
        assert bob.refused("switch", order={"run": RUN}).startswith("ann at laptop-1")
        ann.done("release-lease")
        assert bob.lease(holder=None)
        bob.done("take-lease")
        assert ann.lease(by="bob", mine=False).lost_to is None


def test_a_lease_that_is_taken_over_tells_its_former_holder(ann: Operator, home: Path) -> None:
    ann.done("take-lease")
    with operating(home, BOB) as bob:
        bob.done("take-lease", seize=True)
        lost = ann.lease(mine=False).lost_to
        assert (lost.name, lost.session) == ("bob", BOB["session"])
        assert ann.refused("clean").startswith("bob at laptop-2")
        ann.done("take-lease", seize=True)
        assert bob.lease(mine=False).lost_to.name == "ann"
        assert ann.lease(mine=True, lost_to=None)
        # The end of a probe that no longer holds it does not free it.
    ann.probe.settle()
    assert ann.lease(mine=True)
    assert ann.refused("cancel-run", run=RUN) == f"there is no run {RUN} here, or its record is damaged"


@pytest.mark.parametrize("how", ["bye", "eof", "term"])
def test_a_probe_that_ends_in_order_gives_the_lease_back(home: Path, how: str) -> None:
    with operating(home, BOB) as bob:
        ann = Operator(RunningProbe(sys.executable, {"HOME": str(home)}))
        ann.probe.send(**toy_plan())
        ann.done("take-lease")
        bob.lease(mine=False)
        if how == "bye":
            ann.probe.send(op="bye")
        elif how == "eof":
            ann.probe.close_stdin()
        else:
            os.kill(ann.probe.pid, signal.SIGTERM)
        ann.probe.process.wait(10.0)
        assert bob.lease(holder=None)
        bob.done("take-lease")
        ann.probe.end()


def test_the_lease_of_a_probe_that_was_killed_is_free_after_30_seconds_without_a_beat(home: Path) -> None:
    ann = Operator(RunningProbe(sys.executable, {"HOME": str(home)}))
    ann.probe.send(**toy_plan())
    ann.done("take-lease")
    os.kill(ann.probe.pid, signal.SIGKILL)
    ann.probe.process.wait()
    ann.probe.end()
    with operating(home, BOB) as bob:
        assert bob.refused("take-lease").startswith("ann at laptop-1")
        path = bob.folder / "lease.json"
        lease = json.loads(path.read_text())
        assert 0 <= time.monotonic() - lease["mono"] < 30
        # The wall clock that was set is no sign of life, and none of death: the host's monotonic clock decides.
        path.write_text(json.dumps({**lease, "beat": lease["beat"] + 90_000}))
        bob.lease(beat_at=lease["beat"] + 90_000, mine=False)
        path.write_text(json.dumps({**lease, "mono": lease["mono"] - 31}))
        assert bob.lease(holder=None)
        bob.done("take-lease")
        assert bob.lease(mine=True)


def test_the_holder_gives_signs_of_life(ann: Operator) -> None:
    ann.done("take-lease")
    first = ann.lease(mine=True).beat_at
    later = ann.probe.first(e.LeaseChanged, lambda x: x.lease.beat_at is not None and x.lease.beat_at > first + 1)
    assert 4.0 < later.lease.beat_at - first < 7.0
    assert later.lease.holder.since == ann.lease().holder.since


def test_a_lease_from_before_the_host_was_started_again_is_free(ann: Operator) -> None:
    ann.done("take-lease")
    path = ann.folder / "lease.json"
    lease = json.loads(path.read_text())
    path.write_text(json.dumps({**lease, "session": "other", "boot_id": "another", "beat": time.time()}))
    assert ann.lease(mine=False, holder=None).lost_to
    ann.done("take-lease")


def test_a_folder_that_others_may_write_to_is_not_used(home: Path) -> None:
    (home / ".gputuner").mkdir()
    (home / ".gputuner").chmod(0o777)
    with operating(home) as ann:
        assert "not ours alone" in ann.refused("take-lease")


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_is_started_seen_by_all_cancelled_and_audited(ann: Operator, home: Path) -> None:
    ann.done("take-lease")
    order = ann.switch(RUN, start={"argv": ["toy", "serve", "--api-key", "in-the-order"], "cwd": "/"})
    assert order["operator"] == ANN
    record = ann.run(RUN, supervised=True)
    place = ann.folder / "runs" / RUN
    assert [mode(path) for path in (place, place / "order.json", place / "supervisor.py")] == [0o700, 0o600, 0o600]
    supervisor = record.supervisor.pid
    assert os.getsid(supervisor) == supervisor, "it has a session of its own"
    process = Path(f"/proc/{supervisor}")
    assert (process / "cwd").readlink() == Path("/")
    assert {str((process / "fd" / name).readlink()) for name in "012"} == {"/dev/null"}
    with operating(home, BOB) as bob:
        assert bob.run(RUN, supervised=True).operator.name == "ann"
        first = [type(event) for event in bob.probe.events]
        assert first.index(e.RunChanged) < first.index(e.ScanEnded)
        assert ann.refused("switch", order={"run": RUN}) == f"there is a run {RUN} already"
        ann.done("cancel-run", run=RUN, back=False)
        assert json.loads((place / "cancel").read_text()) == {"operator": ANN, "back": False}
        assert bob.run(RUN, supervised=False, outcome="cancelled").cancelled_by.name == "ann"
    assert ann.refused("cancel-run", run=RUN) == "the run has ended already: cancelled"
    lines = [(line["act"], line["outcome"]) for line in ann.audit()]
    assert lines == [
        ("take-lease", "begins"), ("take-lease", "done"), ("switch", "begins"), ("switch", "done"),
        ("switch", "begins"), ("switch", "refused"), ("cancel-run", "begins"), ("cancel-run", "done"),
        ("cancel-run", "begins"), ("cancel-run", "refused"),
    ]  # fmt: skip
    begun = ann.audit()[2]
    assert begun["argv"] == ["toy", "serve", "--api-key", "***"]
    assert (begun["operator"], begun["uid"], begun["run"], begun["by"]) == (ANN, os.getuid(), RUN, "probe")
    assert mode(ann.folder / "audit.ndjson") == 0o600


def test_a_run_outlives_its_probe_and_is_resumed_when_its_supervisor_is_killed(home: Path) -> None:
    with operating(home) as ann:
        ann.done("take-lease")
        ann.switch(RUN)
        supervisor = ann.run(RUN, supervised=True).supervisor.pid
    assert is_alive(supervisor)
    with operating(home, BOB) as bob:
        bob.done("take-lease")
        bob.run(RUN, supervised=True)
        assert bob.refused("resume-run", run=RUN) == "the run goes on: its supervisor lives"
        os.kill(supervisor, signal.SIGKILL)
        bob.run(RUN, supervised=False)
        assert "its supervisor has ended" in bob.refused("cancel-run", run=RUN).replace("the run's", "its")
        bob.done("resume-run", run=RUN, back=True)
        assert bob.run(RUN, supervised=True, detail="resumed").supervisor.pid != supervisor
        told = json.loads((bob.folder / "runs" / RUN / "resume").read_text())
        assert told == {"operator": BOB, "back": True}
        bob.done("cancel-run", run=RUN)


def test_a_supervisor_that_fails_at_once_gives_its_words(ann: Operator) -> None:
    ann.done("take-lease")
    bad = "import os, sys\nos.dup2(os.open(sys.argv[1] + '/supervisor.err', os.O_WRONLY | os.O_CREAT, 0o600), 2)\n"
    operator = Operator(ann.probe, code=bad + "raise OSError('no room left')\n")
    operator._last = 100
    assert operator.refused("switch", order={"run": RUN}).endswith("OSError: no room left")
    operator = Operator(ann.probe, code="raise SystemExit(3)")
    operator._last = 200
    assert operator.refused("switch", order={"run": "20261130-2"}).endswith("exit status 3")


@pytest.mark.timeout(60)
def test_a_supervisor_that_writes_nothing_is_told_to_end(ann: Operator) -> None:
    ann.done("take-lease")
    slow = "import os, sys, time\nwhile not os.path.exists(sys.argv[1] + '/cancel'):\n    time.sleep(0.05)\n"
    operator = Operator(ann.probe, code=slow + SUPERVISOR)
    operator._last = 100
    assert operator.refused("switch", order={"run": RUN}).endswith("for 15 s, and was told to end")
    assert ann.run(RUN, outcome="cancelled")


def test_no_run_begins_while_another_goes_on(ann: Operator) -> None:
    import fcntl

    ann.done("take-lease")
    with (ann.folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("20261129-x")
        file.flush()
        assert ann.refused("switch", order={"run": RUN}) == "the run 20261129-x is going on"
        assert ann.refused("clean") == "the run 20261129-x is going on"
    ann.switch(RUN)
    ann.done("cancel-run", run=RUN)


@pytest.mark.parametrize("run", ["../evil", "", "a/b", ".hidden", "x" * 100])
def test_a_run_cannot_be_a_path(ann: Operator, run: str) -> None:
    ann.done("take-lease")
    assert ann.refused("switch", order={"run": run}).startswith("no id of a run")


def test_what_is_no_act_is_refused(ann: Operator) -> None:
    ann.done("take-lease")
    assert ann.refused("format-disk") == "the probe knows no act 'format-disk'"
    ann.probe.send(op="act", id=50, act=None, operator=ANN)
    ann.probe.send(op="act", id=51, act={"act": "clean"})
    answers = {n: ann.probe.first(e.Acted, lambda x, n=n: x.id == n).error for n in (50, 51)}  # type: ignore[misc]
    assert answers == {50: "the probe knows no act None", 51: "the order does not say who acts"}
    ann.code = "not base64"
    assert "no usable program" in ann.refused("switch", order={"run": RUN})
    assert not (ann.folder / "runs").exists()


# -- what is to be stopped ---------------------------------------------------------------------------------------------


def test_what_is_not_proven_to_be_the_right_process_is_not_stopped(ann: Operator, tmp_path: Path) -> None:
    ann.done("take-lease")
    with toy_process(tmp_path / "toy") as server:
        me = process_id(server.pid)
        cases = {
            "started again": {"boot_id": "another", "leader": me},
            "another process now": {"boot_id": boot_id(), "leader": {**me, "start_ticks": me["start_ticks"] - 1}},
            "belongs to user": {"boot_id": boot_id(), "leader": {**me, "uid": me["uid"] + 1}},
        }
        for why, stop in cases.items():
            assert why in ann.refused("switch", order={"run": RUN, "stop": {"steps": [], **stop}})
        assert is_alive(server.pid)
        server.kill()
        server.wait()
        ended = {"boot_id": boot_id(), "leader": me, "steps": []}
        assert "it has ended" in ann.refused("switch", order={"run": RUN, "stop": ended})
    assert not (ann.folder / "runs").exists()


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_secrets_are_filled_in_from_the_running_server_and_never_sent(home: Path, tmp_path: Path) -> None:
    with (
        toy_process(tmp_path / "toy", "--admin-api-key=sk-admin-0123456789", "--trust") as server,
        operating(home) as ann,
    ):
        key = ann.probe.server(lambda s: s.pid == server.pid).key
        ann.done("take-lease")
        start = {
            "like": f"server:{key}",
            "argv": ["toy", "serve", "--admin-api-key", "***", "--api_key=***", "--port", "8001"],
            "env": {"HF_TOKEN": "***", "MODE": "fast"},
        }
        order = ann.switch(RUN, start=start, back={"like": f"server:{key}"})
        assert order["start"]["argv"] == [
            "toy", "serve", "--admin-api-key", "sk-admin-0123456789", f"--api_key={KEY}", "--port", "8001"
        ]  # fmt: skip
        assert order["start"]["env"] == {"HF_TOKEN": TOKEN, "MODE": "fast"}
        assert order["start"]["cwd"] == str(tmp_path / "toy")
        assert order["back"]["argv"][1:] == [
            "-m", "toyllm.serve", "--port", "7999", "--api-key", KEY, "--admin-api-key=sk-admin-0123456789", "--trust"
        ]  # fmt: skip
        assert order["back"]["base"]["HF_TOKEN"] == TOKEN
        assert "INVOCATION_ID" not in order["back"]["base"]
        ann.done("cancel-run", run=RUN)
        # A later start like that run takes its secrets from the record of the run.
        again = {
            "like": f"run:{RUN}",
            "argv": ["toy", "--api-key", "***"],
            "env": {"HF_TOKEN": "***"},
            "unset": ["MODE"],
        }
        with_run = ann.switch("20261130-2", start=again, back={"like": f"back:{RUN}"})
        assert with_run["start"]["argv"] == ["toy", "--api-key", KEY]
        assert with_run["start"]["base"]["MODE"] == "fast"
        assert with_run["back"]["argv"] == order["back"]["argv"]
        ann.done("cancel-run", run="20261130-2")
        for missing, launch in {
            "--other-key": {"argv": ["toy", "--other-key", "***"]},
            "--api-key": {"argv": ["toy", "--api-key", "***", "***"]},
            "OTHER": {"argv": ["toy"], "env": {"OTHER": "***"}},
        }.items():
            words = ann.refused("switch", order={"run": "20261130-3", "start": {"like": f"server:{key}", **launch}})
            assert words.endswith(f"does not have the secret value of {missing}")
        words = ann.refused("switch", order={"run": "20261130-3", "start": {"argv": ["toy", "--api-key", "***"]}})
        assert words == "the login does not have the secret value of --api-key"
        sent = repr(ann.probe.events)
        audit = (ann.folder / "audit.ndjson").read_text()
        for secret in (KEY, TOKEN, "sk-admin"):
            assert secret not in sent
            assert secret not in audit


def test_bytes_that_are_no_text_are_passed_on_as_they_are(home: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    with (
        toy_process(tmp_path / "toy", "--name", odd, env={"ODD": odd, "ÜMLAUT": "ü"}) as server,
        operating(home) as ann,
    ):
        key = ann.probe.server(lambda s: s.pid == server.pid).key
        ann.done("take-lease")
        order = ann.switch(RUN, start={"like": f"server:{key}"})
        assert os.fsencode(order["start"]["argv"][-1]) == b"caf\xe9"
        assert os.fsencode(order["start"]["base"]["ODD"]) == b"caf\xe9"
        assert order["start"]["base"]["ÜMLAUT"] == "ü"
        ann.done("cancel-run", run=RUN)


def test_what_a_dead_server_left_is_no_model_for_another(home: Path, tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "root")
    tree.add(4_000_100, ["toy::rank_0"], ticks=5)
    with operating(home, root=tree.root) as ann:
        key = ann.probe.server(lambda s: s.orphaned).key
        ann.done("take-lease")
        words = ann.refused("switch", order={"run": RUN, "start": {"like": f"server:{key}"}})
        assert "what a dead server left" in words


# -- leftovers and cleaning --------------------------------------------------------------------------------------------


def told_of(ann: Operator, run: str, **fields: Any) -> None:
    """Write a record of a run that ended."""
    place = ann.folder / "runs" / run
    place.mkdir(parents=True)
    record = {"id": run, "operator": ANN, "began_at": 1.0, "updated_at": 2.0, "step": "end", "outcome": "stopped"}
    (place / "state.json").write_text(json.dumps({**record, "boot_id": boot_id(), **fields}))


def test_leftovers_are_ended_only_if_the_run_calls_them_its_own(ann: Operator, tmp_path: Path) -> None:
    ann.done("take-lease")
    with (
        toy_process(tmp_path / "a") as ours,
        toy_process(tmp_path / "b") as foreign,
        toy_process(tmp_path / "c") as other,
    ):
        mine, theirs, third = (process_id(process.pid) for process in (ours, foreign, other))
        told_of(ann, RUN, leftovers=[{**mine, "ours": True}, {**theirs, "ours": False}])
        assert len(ann.run(RUN).leftovers) == 2
        for wrong in (theirs, third):
            words = ann.refused("end-leftovers", run=RUN, processes=[mine, wrong])
            assert words == f"process {wrong['pid']} is not one that this run left behind"
        assert is_alive(ours.pid)
        assert ann.done("end-leftovers", run=RUN, processes=[mine]).hint == "1 ended"
        assert ours.wait(5.0) == -signal.SIGTERM
        assert foreign.poll() is None
        assert other.poll() is None
        assert len(ann.run(RUN).leftovers) == 1
        signals = [(x["signal"], x["pid"], x["outcome"]) for x in ann.audit() if "signal" in x]
        assert signals == [("TERM", ours.pid, "sent")]


def test_clean_empties_the_folder_unless_it_is_needed_and_keeps_the_audit(ann: Operator, tmp_path: Path) -> None:
    ann.done("take-lease")
    ann.switch(RUN)
    assert "supervisor" in ann.refused("clean")
    ann.done("cancel-run", run=RUN)
    ann.run(RUN, supervised=False)
    with toy_process(tmp_path / "toy") as server:
        told_of(ann, "20261130-9", new=process_id(server.pid))
        assert "a server that was started by run 20261130-9" in ann.refused("clean")
    hint = ann.done("clean").hint
    assert hint.startswith(f"removed from {ann.folder}: 2 runs, ")
    assert hint.endswith(f"the audit stays: {ann.folder}/audit.ndjson")
    assert [each.name for each in ann.folder.iterdir()] == ["audit.ndjson"]
    assert ann.lease(holder=None, mine=False)
    assert "nobody has taken" in ann.refused("clean")
    told = [(line["act"], line["outcome"]) for line in ann.audit() if line["by"] == "probe" and "act" in line]
    assert ("switch", "done") in told, "what was done before stays"
    assert told[-3:] == [("clean", "begins"), ("clean", "done"), ("clean", "refused")]


def test_every_operator_is_told_that_the_runs_are_gone(home: Path) -> None:
    place = home / ".gputuner/runs/20261130-1"
    place.mkdir(parents=True)
    good = {"id": place.name, "operator": ANN, "began_at": 1, "updated_at": 2, "step": "end", "outcome": "ready"}
    (place / "state.json").write_text(json.dumps(good))
    with operating(home) as ann:
        ann.run(place.name, outcome="ready")
        shutil.rmtree(home / ".gputuner/runs")
        ann.probe.first(e.HostCleaned)


def test_clean_spares_a_folder_into_which_a_server_logs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tree = ProcTree(tmp_path / "root")
    log = home / ".gputuner/logs/a.log"
    from tests.fixtures.proc.tree import toy_server

    with operating(home, root=tree.root) as ann:
        ann.done("take-lease")
        log.parent.mkdir()
        log.write_text("toy starts\n")
        toy_server(tree, log=log)
        ann.probe.server()
        assert "logs into the folder" in ann.refused("clean")


@pytest.mark.parametrize("ended", [False, True])
def test_clean_spares_the_server_of_another_host_with_the_same_home_folder(ann: Operator, ended: bool) -> None:
    ann.done("take-lease")
    place = ann.folder / "runs" / RUN
    place.mkdir(parents=True)
    (place / "order.json").write_text('{"hostname":"another-host"}')
    (place / "state.json").write_text(json.dumps({"id": RUN, "outcome": "ready"}))
    if ended:
        (place / "exit.json").write_text("{}")
        ann.done("clean")
        assert not place.exists()
    else:
        assert f"run {RUN} was begun on another-host" in ann.refused("clean")
        assert place.exists()


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_torn_or_alien_record_is_told_and_skipped(home: Path) -> None:
    runs = home / ".gputuner/runs"
    good = {"id": "20261130-5", "operator": ANN, "began_at": 1, "updated_at": 2, "step": "end", "outcome": "ready"}
    records = {
        "20261130-1": "{torn",
        "20261130-2": json.dumps({**good, "id": "20261130-2", "argv": "no list"}),
        "20261130-3": json.dumps([1]),
        "20261130-4": json.dumps(good),
        "20261130-5": json.dumps({**good, "argv": ["x", "--api-key", KEY], "progress": {"more": 1}}),
    }
    for name, text in records.items():
        (runs / name).mkdir(parents=True)
        (runs / name / "state.json").write_text(text)
    (runs / "20261130-6").mkdir()
    with operating(home) as ann:
        assert ann.run("20261130-5").argv == ("x", "--api-key", "***")
        bad = {p.subject: p.detail for p in ann.probe.of(e.ProblemSeen) if p.code == "run-damaged"}
        assert bad == {
            "20261130-1": "its record is torn or is no JSON",
            "20261130-2": "its record has no valid argv",
            "20261130-3": "its record is torn or is no JSON",
            "20261130-4": "its record is that of another run",
        }
        (runs / "20261130-1/state.json").write_text(json.dumps({**good, "id": "20261130-1"}))
        ann.run("20261130-1", outcome="ready")
        assert ann.probe.problem("run-damaged", cleared=True).subject == "20261130-1"


def test_a_record_that_was_only_written_again_is_not_sent_again(home: Path) -> None:
    """The supervisor writes each second, a record has some kilobytes, and most of a run is waiting."""
    files = {}
    for name in ("20261130-1", "20261130-2"):
        (home / ".gputuner/runs" / name).mkdir(parents=True)
        files[name] = home / ".gputuner/runs" / name / "state.json"

    def write(name: str, at: int, detail: str) -> None:
        record = {"id": name, "operator": ANN, "began_at": 1, "updated_at": at, "step": "end", "outcome": "ready"}
        new = files[name].with_name("new")
        new.write_text(json.dumps({**record, "detail": detail}))
        new.replace(files[name])

    write("20261130-1", 2, "waits")
    write("20261130-2", 2, "waits")
    with operating(home) as ann:
        write("20261130-1", 3, "waits")
        for look in ("first", "second"):  # the one that was written again is seen in the first or in the second
            write("20261130-2", 4, look)
            ann.run("20261130-2", detail=look)
        write("20261130-1", 5, "goes on")
        ann.run("20261130-1", detail="goes on")
        told = [each.run for each in ann.probe.of(e.RunChanged) if each.run.id == "20261130-1"]
        assert [(each.updated_at, each.detail) for each in told] == [(2, "waits"), (5, "goes on")]


def test_the_newest_runs_are_told_and_those_of_another_host_are_not(home: Path) -> None:
    good = {"operator": ANN, "began_at": 1, "updated_at": 2, "step": "end", "outcome": "ready"}
    for number in range(30):
        name = f"20261130-{number:02d}"
        place = home / ".gputuner/runs" / name
        place.mkdir(parents=True)
        (place / "state.json").write_text(json.dumps({**good, "id": name}))
    (home / ".gputuner/runs/20261130-29/order.json").write_text('{"hostname":"another-host"}')
    with operating(home) as ann:
        told = {event.run.id for event in ann.probe.of(e.RunChanged)}
        assert told == {f"20261130-{number:02d}" for number in range(10, 29)}


def test_doctor_lists_the_folder(ann: Operator) -> None:
    def folder(number: int) -> Any:
        ann.probe.send(op="checks", id=number)
        return ann.probe.first(e.CheckResult, lambda x: x.id == number).checks["folder"]["value"]

    assert folder(1) is None
    ann.done("take-lease")
    told_of(ann, RUN)
    found = folder(2)
    assert (found["path"], found["runs"], found["lease"]) == (str(ann.folder), 1, "ann at laptop-1")
    assert found["bytes"] > 100


# -- systemd -----------------------------------------------------------------------------------------------------------

SYSTEMD_RUN = """#!{python}
import json, os, subprocess, sys
with open({log!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
words = sys.argv[1:]
if {old} and "OOMPolicy=continue" in words:
    sys.exit("Unknown assignment: OOMPolicy=continue")
at = words.index("--")
env = dict(word[9:].split("=", 1) for word in words if word.startswith("--setenv="))
null = subprocess.DEVNULL
subprocess.Popen(words[at + 1 :], env=env, start_new_session=True, stdin=null, stdout=null, stderr=null)
"""


@pytest.mark.parametrize("old", [False, True], ids=["new systemd", "systemd that knows fewer properties"])
def test_where_systemd_runs_the_supervisor_is_a_unit_of_its_own(home: Path, tmp_path: Path, old: bool) -> None:
    programs, log, tree = tmp_path / "bin", tmp_path / "log", ProcTree(tmp_path / "root")
    programs.mkdir()
    (programs / "systemd-run").write_text(SYSTEMD_RUN.format(python=sys.executable, log=str(log), old=old))
    (programs / "systemctl").write_text("#!/bin/sh\nexit 0\n")
    for path in programs.iterdir():
        path.chmod(0o755)
    (tree.root / "run/systemd/system").mkdir(parents=True)
    (tree.root / "var/lib/systemd/linger").mkdir(parents=True)
    (tree.root / "var/lib/systemd/linger/root").write_text("")
    path = f"{programs}:{os.environ['PATH']}"
    with operating(home, root=tree.root, PATH=path, HF_TOKEN=TOKEN) as ann:
        ann.done("take-lease")
        ann.switch(RUN)
        calls = [json.loads(line) for line in log.read_text().splitlines()]
        assert len(calls) == 1 + old
        words = calls[-1]
        assert words[words.index("--unit") + 1] == f"gputuner-{RUN}"
        assert ("TimeoutStopSec=10" in words) is not old, "the supervisor goes on after TERM; a shutdown must too"
        assert {"--collect", "--quiet", "KillMode=process", "Restart=no", f"--setenv=HOME={home}"} <= set(words)
        assert TOKEN not in log.read_text(), "what a unit's command line holds is shown to everybody"
        (ann.folder / "runs" / RUN / "cancel").write_text(json.dumps({"operator": ANN}))
        assert ann.run(RUN, outcome="cancelled")


# -- the whole way -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", pythons())
def test_a_start_that_fails_is_followed_by_the_old_server_with_its_secrets(
    home: Path, tmp_path: Path, python: str
) -> None:
    """With the real supervisor. Bytes that are no text, in the old command line, do not stop it."""
    odd = os.fsdecode(b"caf\xe9")
    ladder = [{"signal": "TERM", "wait_s": 5.0}, {"signal": "KILL", "to": "tree", "wait_s": 5.0}]
    with (
        toy_process(tmp_path / "toy", "--name", odd) as server,
        operating(home, code=supervisor(), python=python) as ann,
    ):
        key = ann.probe.server(lambda s: s.pid == server.pid).key
        ann.done("take-lease")
        back = {"like": f"server:{key}", "steady_s": 0.3, "stop": ladder, "title": "as before"}
        broken = {**back, "argv": [sys.executable, "-c", "raise SystemExit(7)"]}
        stop = {"boot_id": boot_id(), "leader": process_id(server.pid), "steps": ladder}
        ann.switch(RUN, stop=stop, start=broken, back=back, auto_back=True)
        assert server.wait(20.0) == -signal.SIGTERM
        record = ann.run(RUN, outcome="back", alive=True, going_back=True)
        try:
            assert "7" in record.failure
            words = Path(f"/proc/{record.new.pid}/cmdline").read_bytes().split(b"\0")[:-1]
            assert words[1:] == [
                b"-m",
                b"toyllm.serve",
                b"--port",
                b"7999",
                b"--api-key",
                KEY.encode(),
                b"--name",
                b"caf\xe9",
            ]
            env = Path(f"/proc/{record.new.pid}/environ").read_bytes().split(b"\0")
            assert {f"HF_TOKEN={TOKEN}".encode(), f"GPUTUNER_RUN={RUN}".encode()} <= set(env)
            assert not any(item.startswith((b"INVOCATION_ID=", b"HOME=")) for item in env)
            new = ann.probe.server(lambda s: s.pid == record.new.pid)
            assert (new.manager.kind, new.manager.name) == ("gputuner", RUN)
            assert ann.refused("clean").startswith(f"a server that was started by run {RUN} still lives")
        finally:
            os.kill(record.new.pid, signal.SIGKILL)
        assert ann.run(RUN, alive=False, supervised=False).outcome == "back"
        everything = repr(ann.probe.events) + "".join(
            path.read_text(errors="replace")
            for path in ann.folder.rglob("*")
            if path.is_file() and path.name != "order.json"
        )
        assert KEY not in everything
        assert TOKEN not in everything
