"""`gputuner apply`, `stop` and `clean` on the simulated host: real SSH, real processes, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.remote.test_simhost import _until_serving
from tests.support.facts import until
from tuner import cli, simhost
from tuner.cli.ask import TerminalAsk
from tuner.cli.demo import runtime_folder, target_of
from tuner.domain.acts import Clean, TakeLease
from tuner.session.acts import this_operator
from tuner.session.session import open_session
from tuner.session.tasks import spawn
from tuner.simhost import SimHost

pytestmark = pytest.mark.timeout(120)
VERSION = "0.5.23"


@pytest.fixture
def host() -> Iterator[SimHost]:
    with simhost.start("healthy", version=VERSION, speed=20.0, traffic="none", runtime=runtime_folder()) as made:
        _until_serving(made)
        yield made


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command with `--json`, and return its exit code and what it printed."""
    capsys.readouterr()
    code = cli.run([*arguments, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out.strip() else {}


def folder(host: SimHost) -> Path:
    return host.address.dir / "home" / ".gputuner"


def test_a_switch_a_failed_one_and_the_ways_back(host: SimHost, capsys: pytest.CaptureFixture[str]) -> None:
    code, dry = command(capsys, "apply", "demo", "--set", "max_running_requests=32", "--dry-run")
    assert (code, dry["outcome"]) == (0, "dry-run")
    assert dry["order"]["start"]["argv"] == dry["command"]
    assert not folder(host).exists(), "a dry run leaves nothing"

    code, switched = command(capsys, "apply", "demo", "--set", "max_running_requests=32", "--yes")
    assert (code, switched["outcome"], switched["rolled_back"]) == (0, "ready", False)
    assert switched["command"] == dry["command"]
    assert [change["then"] for change in switched["changes"] if change["name"] == "max_running_requests"] == [32]
    steps = [step["step"] for step in switched["steps"]]
    assert steps[:4] == ["check", "stop", "memory", "launch"]
    assert steps[-2:] == ["first-token", "steady"]
    assert all(step["seconds"] is not None for step in switched["steps"])
    assert all(gpu["before_bytes"] - gpu["after_bytes"] >= 0.98 * gpu["held_bytes"] for gpu in switched["memory"])
    assert switched["leftovers"] == []

    code, seen = command(capsys, "snapshot", "demo")
    assert code == 0
    (server,) = [each for each in seen["servers"] if each["phase"] == "ready"]
    assert (server["pid"], server["run"]) == (switched["server_pid"], switched["run"])
    assert "--max-running-requests" in server["argv"]

    code, refused = command(capsys, "apply", "demo", "--set", "mem_fraction_static=0.97", "--yes")
    assert (code, refused["outcome"], refused["run"]) == (1, "refused", None)
    assert [check["id"] for check in refused["checks"] if check["verdict"] == "fail"] == ["memory"]

    code, failed = command(
        capsys, "apply", "demo", "--set", "mem_fraction_static=0.97", "--yes", "--ignore-forecast", "--auto-rollback"
    )
    assert (code, failed["outcome"], failed["rolled_back"]) == (1, "back", True)
    assert failed["failure"]
    assert failed["findings"][0]["cause"] == "mem-fraction-too-high-graph-capture"
    assert failed["server_pid"] not in (None, failed["old_pid"])

    code, back = command(capsys, "apply", "demo", "--back", "--yes")
    assert (code, back["outcome"]) == (0, "ready")
    assert "--max-running-requests" not in back["command"]

    code, stopped = command(capsys, "stop", "demo", "--yes")
    assert (code, stopped["outcome"], stopped["server_pid"]) == (0, "stopped", None)

    code, again = command(capsys, "apply", "demo", "--restart", "--yes")
    assert (code, again["outcome"]) == (0, "ready")

    code, held = command(capsys, "clean", "demo", "--yes")
    assert (code, held["outcome"]) == (1, "refused")
    assert command(capsys, "stop", "demo", "--yes")[0] == 0
    code, cleaned = command(capsys, "clean", "demo", "--yes")
    assert (code, cleaned["outcome"]) == (0, "cleaned")
    assert [each.name for each in folder(host).iterdir()] == ["audit.ndjson"]
    assert "the audit stays: " in cleaned["reason"]


def test_with_nobody_to_ask_nothing_is_done(host: SimHost) -> None:
    program = [sys.executable, "-u", "-m", "tuner", "apply", "demo", "--restart"]
    alone = subprocess.run(program, capture_output=True, text=True, timeout=60, start_new_session=True, check=False)
    assert alone.returncode == 2
    assert "--yes" in alone.stderr
    assert not folder(host).exists()


@pytest.mark.parametrize(("at", "outcomes"), [("run ", {"cancelled", "back"}), ("started: pid", {"back"})])
def test_an_interrupt_leaves_what_ran_before(
    at: str, outcomes: set[str], host: SimHost, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("apply", "demo", "--set", "max_running_requests=16", "--yes") as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line.strip().startswith(at):
                os.kill(process.pid, signal.SIGINT)
                at = "told once"
        assert process.wait() == 1
    assert "cancelled: going back to what ran before" in text
    assert "runs now: pid" in text
    code, seen = command(capsys, "snapshot", "demo")
    assert code == 0
    (run,) = seen["runs"]
    assert run["outcome"] in outcomes
    (server,) = [each for each in seen["servers"] if each["phase"] == "ready"]
    assert "--max-running-requests" not in server["argv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("apply", "demo", "no-such-preset", "--yes"), "There is no preset no-such-preset"),
        (("apply", "demo", "--recipe", "none", "--yes"), "There is no recipe none"),
        (("apply", "demo", "--yes"), "Name a PRESET"),
        (("apply", "demo", "--back", "--set", "a=1", "--yes"), "--back stands alone"),
    ],
)
def test_what_is_used_wrongly_ends_before_anything_is_connected(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(list(arguments)) == 2
    assert words in capsys.readouterr().err


def test_unknown_knobs_values_and_servers_end_before_anything_is_touched(
    host: SimHost, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting, words in (
        ("max_num_seqs_per_gpu=1", "No engine has a knob max_num_seqs_per_gpu"),
        ("mem_fraction_static=lots", "mem_fraction_static cannot be lots"),
        ("mem_fraction_static", "A change is knob=value"),
    ):
        assert cli.run(["apply", "demo", "--set", setting, "--yes"]) == 2
        assert words in capsys.readouterr().err
    assert cli.run(["apply", "demo", "--restart", "--server", "1", "--yes"]) == 2
    assert "No server has the PID 1" in capsys.readouterr().err
    assert not folder(host).exists()


def started(*arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-u", "-m", "tuner", *arguments]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_a_demo_that_ends_meanwhile_is_not_connected_to_for_ever(host: SimHost) -> None:
    with started("apply", "demo", "--set", "max_running_requests=12", "--yes") as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line.startswith("run "):
                os.kill(host.pid, signal.SIGKILL)
        assert process.wait() == 3
    assert "the demo has ended: what became of the run is not known" in text


def test_a_run_whose_supervisor_was_killed_is_finished_with_the_server_it_started(
    host: SimHost, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("apply", "demo", "--set", "max_running_requests=12", "--yes") as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if "started: pid" in line:
                (place,) = (folder(host) / "runs").iterdir()
                record = json.loads((place / "state.json").read_text())
                os.kill(record["supervisor"]["pid"], signal.SIGKILL)
        assert process.wait() == 1
    assert "its supervisor is gone" in text
    code, seen = command(capsys, "snapshot", "demo")
    assert code == 0
    (run,) = seen["runs"]
    assert (run["outcome"], run["interrupted"]) == ("running", True)
    code, finished = command(capsys, "resume", "demo", "--yes")
    assert (code, finished["outcome"]) == (0, "ready")
    assert finished["server_pid"] == run["new_pid"], "no second server was started"
    code, nothing = command(capsys, "resume", "demo", "--yes")
    assert (code, nothing["outcome"]) == (1, "refused")
    assert "`gputuner apply demo --back` goes back" in nothing["reason"]


async def test_a_second_operator_is_refused_by_name_and_may_take_over(host: SimHost) -> None:
    first = open_session(target_of(host.address), ask=TerminalAsk())
    work = spawn(first.run(), name="first operator")
    try:
        await until(lambda: first.state.scanned)
        assert (await first.act(TakeLease(), confirmed=True)).error is None
        await until(lambda: first.state.lease.mine)
        arguments = ("apply", "demo", "--restart", "--yes", "--json")
        with started(*arguments) as process:
            out, _ = await asyncio.to_thread(process.communicate)
        told = json.loads(out)
        assert (process.returncode, told["outcome"]) == (1, "refused")
        assert this_operator().name in told["reason"]
        assert told["run"] is None
        with started(*arguments, "--take-over") as process:
            out, _ = await asyncio.to_thread(process.communicate)
        assert (process.returncode, json.loads(out)["outcome"]) == (0, "ready")
        await until(lambda: first.state.lease.lost_to is not None)
        assert not first.state.lease.mine
        refused = await first.act(Clean(), confirmed=True)
        assert refused.error is not None
    finally:
        await first.aclose()
        await work
