"""A supervisor watches what it started until it is ready, and ends it if it will not be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.runs.bench import TITLES, Bench, benches, lives, until
from tuner.domain.runs import RunOutcome, RunStep
from tuner.probe.supervisor.readiness import EVERY_S, QUICK_S, TAKEN_S

SECRET = "sk-canary-0123456789abcdef"
PARTS = (r"toy::",)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from benches(tmp_path)


def environ(pid: int) -> dict[str, str]:
    """The environment of a process."""
    parts = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(part.split("=", 1) for part in parts if part)


def test_what_is_started_runs_by_itself(bench: Bench, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    bench.env["GONE"] = "1"
    run = bench.begin(
        start=bench.serving(
            "--api-key", SECRET, cwd=str(work), env={"HF_TOKEN": SECRET, "NCCL_ALGO": "Ring"}, unset=("GONE",),
            secret_flags=("--api-key",), secret_env=("HF_TOKEN",), api_key_flags=("--api-key",),
            log_dir=str(tmp_path / "logs"), log_name="toy", preset="quick", title="Quick",
        ),
    )  # fmt: skip
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    assert record.new is not None
    pid = record.new.pid
    env = environ(pid)
    assert (env["GPUTUNER_RUN"], env["NCCL_ALGO"], env["HF_TOKEN"]) == (run.id, "Ring", SECRET)
    assert "GONE" not in env
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/cwd").readlink() == work
    outputs = {number: str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (0, 1, 2)}
    assert outputs == {0: "/dev/null", 1: record.log, 2: record.log}
    assert record.log == str(tmp_path / "logs" / "toy.log")
    held = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert not any(str(bench.folder) in path for path in held)
    assert (record.preset, record.title, record.cwd, record.port) == ("quick", "Quick", str(work), bench.port)
    assert record.env == {"HF_TOKEN": "***", "NCCL_ALGO": "Ring"}
    for path in bench.folder.rglob("*"):
        if path.is_file() and path.name not in ("order.json", "supervisor.py"):
            assert SECRET not in path.read_text(errors="replace"), path
            assert path.stat().st_mode & 0o077 == 0 or path.suffix == ".log", path


def test_no_signal_is_ignored_by_what_is_started(bench: Bench) -> None:
    record = bench.begin(start=bench.launch(argv=("sleep", "600"))).outcome()
    assert record.new is not None
    bench.adopt(record.new.pid)
    status = Path(f"/proc/{record.new.pid}/status").read_text()
    assert [int(status.split(name)[1].split()[0], 16) for name in ("SigIgn:", "SigBlk:")] == [0, 0]


def test_text_is_handed_on_as_it_is_in_a_login_with_another_character_set(bench: Bench, tmp_path: Path) -> None:
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / "latin")], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this machine cannot make a locale")
    login = {"LC_ALL": "latin", "LOCPATH": str(tmp_path)}
    run = bench.begin(start=bench.serving("--name", "\u2603", env={"WORD": "\xfc\u2603"}), env=login)
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    assert record.new is not None
    assert environ(record.new.pid)["WORD"] == "\xfc\u2603"


def test_what_is_no_text_is_handed_on_byte_by_byte(bench: Bench) -> None:
    odd = os.fsdecode(b"a\xffb")
    run = bench.begin(start=bench.serving("--name", odd, env={"ODD": odd}))
    record = run.outcome()
    assert record.new is not None
    assert b"a\xffb" in Path(f"/proc/{record.new.pid}/cmdline").read_bytes()
    assert b"ODD=a\xffb\0" in Path(f"/proc/{record.new.pid}/environ").read_bytes()
    assert record.env == {"ODD": "a?b"}


def test_one_that_ends_has_failed(bench: Bench) -> None:
    record = bench.begin(start=bench.serving("--exit-code", "7")).outcome()
    assert record.outcome is RunOutcome.FAILED
    assert "ended with exit code 7" in record.failure
    assert record.exit_code == 7
    assert not bench.living()


def test_one_that_is_killed_has_failed(bench: Bench, tmp_path: Path) -> None:
    run = bench.begin(start=bench.serving("--bind-after", str(tmp_path / "never")))
    run.until("loading")
    until(bench.living)
    os.kill(run.record.new.pid, signal.SIGKILL)  # type: ignore[union-attr]
    record = run.outcome()
    assert (record.outcome, record.exit_code) == (RunOutcome.FAILED, -9)
    assert "was ended by SIGKILL" in record.failure
    assert [(step.step, step.failed) for step in record.steps if step.failed] == [(RunStep.LOADING, record.failure)]
    assert record.steps[-1].step is not RunStep.LOADING, "what was done since to end it are steps of their own"


def test_each_rung_is_climbed_in_its_turn(bench: Bench, tmp_path: Path) -> None:
    bind, well = tmp_path / "bind", tmp_path / "well"
    run = bench.begin(start=bench.serving("--bind-after", str(bind), "--ill-until", str(well)))
    run.until("loading")
    until(bench.living)
    assert run.record.step is RunStep.LOADING
    bind.touch()
    run.until("health")
    until(lambda: run.record.detail == "/health answers 503")
    assert run.record.step is RunStep.HEALTH
    well.touch()
    assert run.outcome().outcome is RunOutcome.READY


def test_a_port_that_another_took_meanwhile_ends_the_start(bench: Bench, tmp_path: Path) -> None:
    run = bench.begin(start=bench.serving("--bind-after", str(tmp_path / "never")))
    run.until("loading")
    with socket.create_server(("127.0.0.1", bench.port)):
        record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert f"port {bench.port} is taken by pid {os.getpid()}" in record.failure
    assert not bench.living()


@pytest.mark.parametrize("first", [True, False])
def test_a_port_that_another_shares_ends_the_start(bench: Bench, tmp_path: Path, first: bool) -> None:
    """With SO_REUSEPORT health and tokens may be answered by another server of the same user."""
    bind, well = tmp_path / "bind", tmp_path / "well"
    run = bench.begin(start=bench.serving("--shares-port", "--bind-after", str(bind), "--ill-until", str(well)))
    run.until("loading")
    if not first:
        bind.touch()
        run.until("health")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", bench.port))
        other.listen()
        bind.touch()
        record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert f"pid {os.getpid()} of " in record.failure
    assert f"listens on port {bench.port} too" in record.failure
    assert RunStep.FIRST_TOKEN not in [step.step for step in record.steps]


def test_a_socket_that_goes_away_by_itself_does_not_end_the_start(bench: Bench, tmp_path: Path) -> None:
    bind = tmp_path / "bind"
    run = bench.begin(start=bench.serving("--bind-after", str(bind)))
    run.until("loading")
    with socket.create_server(("127.0.0.1", bench.port)):
        threading.Event().wait(min(2.5 * EVERY_S, TAKEN_S / 1.5))  # so it is seen twice
    bind.touch()
    assert run.outcome().outcome is RunOutcome.READY


def test_a_server_of_another_port_is_not_asked(bench: Bench) -> None:
    """Health and tokens of the old server prove nothing for a new one that does not listen yet."""
    other = bench.server("--port", str(bench.port), "--host", "127.0.0.2")
    run = bench.begin(start=bench.serving("--host", "127.0.0.1", "--bind-after", str(bench.home / "bind")))
    run.until("loading")
    until(lambda: len(bench.living()) == 2)
    assert run.record.step is RunStep.LOADING
    (bench.home / "bind").touch()
    assert run.outcome().outcome is RunOutcome.READY
    assert other.poll() is None
    assert "asked" not in (bench.home / "old-0.log").read_text()


@pytest.mark.parametrize("quick_s", [QUICK_S, 0.0])
def test_a_rank_that_ends_is_named_and_its_server_ended(bench: Bench, tmp_path: Path, quick_s: float) -> None:
    never = str(tmp_path / "never")
    run = bench.begin(
        start=bench.serving("--ranks", "2", "--lingers", "--bind-after", never, titles=TITLES, ranks=2),
        fault=f"import gputuner_run.supervisor.readiness as module\nmodule.QUICK_S = {quick_s}",
    )
    run.until("loading")
    until(lambda: len(bench.enrolled()) == 3)
    until(lambda: "toy::rank_TP1" in (run.folder / "state.json").read_text())
    rank = next(pid for pid, _ in bench.enrolled() if b"TP1" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(rank, signal.SIGKILL)
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert record.failure == f"rank TP1 (pid {rank}) ended while the server started"
    assert not bench.living()


def test_a_part_that_is_no_rank_and_ends_is_named_and_its_server_ended(bench: Bench, tmp_path: Path) -> None:
    """SGLang's main process outlives its detokenizer by a minute, and answers nothing."""
    never = str(tmp_path / "never")
    run = bench.begin(
        start=bench.serving("--ranks", "1", "--part", "--lingers", "--bind-after", never, titles=TITLES, parts=PARTS)
    )
    run.until("loading")
    until(lambda: len(run.parts()) == 2)
    part = next(pid for pid, title in run.parts().items() if title.startswith("toy::a_part"))
    os.kill(part, signal.SIGKILL)
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert record.failure == f"toy::a_part (pid {part}) ended while the server started"
    assert not bench.living()


def test_what_a_server_runs_while_it_loads_may_end(bench: Bench, tmp_path: Path) -> None:
    bind = tmp_path / "bind"
    run = bench.begin(start=bench.serving("--part", "--lingers", "--bind-after", str(bind), titles=TITLES))
    run.until("loading")
    until(lambda: "toy::a_part" in (run.folder / "state.json").read_text())
    part = next(pid for pid, _ in bench.enrolled() if b"a_part" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(part, signal.SIGKILL)
    bind.touch()
    assert run.outcome().outcome is RunOutcome.READY


def test_too_few_ranks_are_not_ready(bench: Bench) -> None:
    record = bench.begin(start=bench.serving("--ranks", "1", titles=TITLES, ranks=2)).outcome()
    assert (record.outcome, record.failure) == (RunOutcome.FAILED, "only 1 of 2 ranks live")
    assert not bench.living()


def test_a_start_has_a_deadline(bench: Bench, tmp_path: Path) -> None:
    run = bench.begin(start=bench.serving("--bind-after", str(tmp_path / "never"), deadline_s=0.5))
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert record.failure.startswith("not ready after")
    assert not bench.living()


def test_no_token_without_the_key(bench: Bench) -> None:
    record = bench.begin(start=bench.serving("--api-key", SECRET, deadline_s=2.0)).outcome()
    assert record.outcome is RunOutcome.FAILED
    assert record.steps[-3].step is RunStep.FIRST_TOKEN
    assert record.steps[-3].detail == "/v1/models answers 401"


def test_what_is_no_program_does_not_start(bench: Bench, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    record = bench.begin(start=bench.launch(argv=(str(program),))).outcome()
    assert record.outcome is RunOutcome.FAILED
    assert record.failure == f"{program}: is no program that this host can run"


# -- the way back -----------------------------------------------------------------------------------------------------


def test_a_start_that_fails_is_followed_by_what_ran_before(bench: Bench) -> None:
    old = bench.server("--port", str(bench.port))
    run = bench.begin(
        stop=bench.stop(old.pid, port=bench.port), start=bench.serving("--exit-code", "3"),
        back=bench.serving("--name", "old", title="Old"), auto_back=True,
    )  # fmt: skip
    record = run.outcome()
    assert record.outcome is RunOutcome.BACK
    assert record.going_back
    assert record.back == "Old"
    assert "exit code 3" in record.failure
    assert record.new is not None
    assert bench.living() == {record.new.pid}
    assert next(step.step for step in record.steps if step.back) is RunStep.LAUNCH
    assert [(step.back, step.failed) for step in record.steps if step.failed] == [(False, record.failure)]
    assert record.log == str(run.folder / "server-back.log")


def test_there_is_one_way_back_and_no_loop(bench: Bench) -> None:
    old = bench.server()
    run = bench.begin(
        stop=bench.stop(old.pid), start=bench.serving("--exit-code", "3"), back=bench.serving("--exit-code", "4"),
        auto_back=True,
    )  # fmt: skip
    record = run.outcome()
    assert record.outcome is RunOutcome.FAILED
    assert record.detail.startswith("what ran before does not start again: the server ended with exit code 4")
    assert "exit code 3" in record.failure
    assert len(bench.enrolled()) == 3
    assert not bench.living()


def test_nobody_goes_back_unasked(bench: Bench) -> None:
    run = bench.begin(stop=bench.stop(bench.server().pid), start=bench.serving("--exit-code", "3"), back=bench.launch())
    assert run.outcome().outcome is RunOutcome.FAILED
    assert not bench.living()


# -- after the run ----------------------------------------------------------------------------------------------------


def test_the_end_of_the_server_is_recorded(bench: Bench) -> None:
    run = bench.begin(start=bench.serving("--ranks", "1", titles=TITLES))
    record = run.outcome()
    assert record.new is not None
    # The lock is free again: another run may begin.
    assert bench.begin(start=bench.launch()).outcome().outcome is RunOutcome.READY
    assert run.supervisor.poll() is None
    os.kill(record.new.pid, signal.SIGKILL)
    assert run.supervisor.wait(20) == 0
    ended = json.loads((run.folder / "exit.json").read_text())
    assert (ended["pid"], ended["exit_code"]) == (record.new.pid, -9)
    assert run.record.exit_code == -9
    assert run.record.outcome is RunOutcome.READY
    assert ("end", -9) in [(line["act"], line.get("exit_code")) for line in run.lines("audit.ndjson")]


def test_the_supervisor_outlives_logins(bench: Bench, tmp_path: Path) -> None:
    bind = tmp_path / "bind"
    run = bench.begin(start=bench.serving("--bind-after", str(bind)))
    run.until("loading")
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        run.supervisor.send_signal(number)
    until(lambda: "got SIGTERM" in (run.folder / "journal.ndjson").read_text())
    bind.touch()
    record = run.outcome()
    assert record.outcome is RunOutcome.READY
    run.kill()
    assert record.new is not None
    assert lives(record.new.pid)


def test_it_costs_next_to_nothing_while_the_server_runs(bench: Bench) -> None:
    run = bench.begin(start=bench.serving())
    run.outcome()
    stat = Path(f"/proc/{run.supervisor.pid}/stat")
    # Asleep without a timeout: no work is left but to wait.
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S" and not (run.folder / "reserve").exists())
    status = Path(f"/proc/{run.supervisor.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 32_000
    assert int(status.split("Threads:")[1].split()[0]) == 1


def test_the_next_server_has_the_limits_of_the_one_before(bench: Bench) -> None:
    server = bench.other(
        "/bin/sh", "-c", "umask 027; ulimit -S -n 321; exec " + " ".join(bench.argv("--port", str(bench.port)))
    )
    until(lambda: len(bench.enrolled()) == 1)
    run = bench.begin(stop=bench.stop(server.pid, port=bench.port), start=bench.serving())
    record = run.outcome()
    assert record.new is not None
    status = Path(f"/proc/{record.new.pid}/status").read_text()
    assert "Umask:\t0027" in status
    limits = Path(f"/proc/{record.new.pid}/limits").read_text()
    assert limits.split("Max open files")[1].split()[0] == "321"
