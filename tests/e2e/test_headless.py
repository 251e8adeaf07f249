"""The installed command without a screen: readings, journals, reports, and the questions a connection may put."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.terminal import Terminal
from tuner import simhost
from tuner.simhost import Address

GPUTUNER = Path(sys.executable).with_name("gputuner")

pytestmark = pytest.mark.timeout(90)


def gputuner(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run it where nobody can be asked: in a session without a terminal."""
    return subprocess.run(
        [GPUTUNER, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
        **options,
    )


@pytest.fixture(scope="module")
def host() -> Iterator[Address]:
    """A simulated host of ours, known to nobody."""
    with simhost.start("healthy", version="0.5.23") as running:
        yield running.address


@pytest.fixture
def alias(host: Address, _own_home: Path) -> str:
    """The same host under a name of ~/.ssh/config."""
    (_own_home / ".ssh").mkdir(mode=0o700)
    (_own_home / ".ssh/config").write_text(
        f"Host simbox\n  HostName {host.host}\n  Port {host.port}\n  User {host.user}\n  IdentityFile {host.identity}\n"
    )
    return "simbox"


def test_one_reading_as_data_and_as_text() -> None:
    ran = gputuner("snapshot", "demo", "--json")
    assert ran.returncode == 0, ran.stderr
    reading = json.loads(ran.stdout)
    assert reading["schema"] == 1
    assert len(reading["gpus"]) == 8
    (server,) = reading["servers"]
    assert (server["engine"], server["version"], server["phase"]) == ("sglang", "0.5.23", "ready")
    for rank in server["ranks"]:
        terms = rank["memory_bytes"]
        assert sum(terms[name] for name in ("weights", "kv", "graphs", "other")) == terms["total"]
    assert server["metrics"]["tok_s"] > 0

    text = gputuner("snapshot", "demo")
    assert text.returncode == 0
    for words in ("8x", "READY", "TP7", "tok/s"):
        assert words in text.stdout


def test_this_machine_without_ssh() -> None:
    ran = gputuner("snapshot", "local", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["host"] == "local"


def test_doctor_says_what_is_missing_and_what_it_costs() -> None:
    ran = gputuner("doctor", "demo", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    checks = json.loads(ran.stdout)["checks"]
    by_name = {check["what"]: check for check in checks}
    assert by_name["gpus"]["verdict"] == "ok"
    assert by_name["python"]["verdict"] == "ok"
    assert all(check["cost"] for check in checks if check["verdict"] != "ok")

    text = gputuner("doctor", "demo")
    assert all(line.split()[0] in ("ok", "warn", "missing") for line in text.stdout.splitlines())


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_a_journal_is_written_and_can_be_replayed(number: signal.Signals | None, tmp_path: Path) -> None:
    file = tmp_path / "session.ndjson"
    arguments = ["record", "demo", str(file), *(["--for", "3s"] if number is None else [])]
    child = subprocess.Popen([GPUTUNER, *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if number is not None:
        while not (file.exists() and b'"t":"gpus"' in file.read_bytes()):
            assert child.poll() is None
        os.kill(child.pid, number)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == (143 if number is signal.SIGTERM else 0), errors
    header, *events = [json.loads(line) for line in file.read_text().splitlines()]
    assert header["journal"] == 1
    assert {"hello", "gpus", "server"} <= {event["e"]["t"] for event in events}

    with Terminal(GPUTUNER, "--replay", file, "--speed", "50", columns=120, rows=40) as terminal:
        terminal.see("TP0", "TP7", "READY")
        terminal.send("q")
        assert terminal.end() == 0


def test_a_journal_that_can_no_longer_be_written_ends_the_recording(tmp_path: Path) -> None:
    file = tmp_path / "x"
    ran = gputuner("record", "local", file, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert "The journal ends here" in line
    header, *events = [json.loads(text) for text in file.read_text().splitlines()]
    assert header["journal"] == 1
    assert "hello" in [event["e"]["t"] for event in events]


def test_a_journal_is_a_file(tmp_path: Path) -> None:
    ran = gputuner("record", "local", "-", cwd=tmp_path)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("precious")
    ran = gputuner("record", "local", tmp_path / "old", "--for", "1s")
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert (tmp_path / "old").read_text() == "precious"


def test_a_journal_needs_a_folder_that_is_there(tmp_path: Path) -> None:
    ran = gputuner("record", "demo", tmp_path / "nonexist/x")
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_was_not_reached_leaves_no_journal(tmp_path: Path) -> None:
    ran = gputuner("record", "127.0.0.1:1", tmp_path / "x")
    assert ran.returncode == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("snapshot",), ("doctor",), ("record",), ("record", "--for", "1m")])
def test_an_interrupt_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name, *options = command
        files = [tmp_path / "x"] if name == "record" else []
        child = subprocess.Popen(
            [GPUTUNER, name, f"127.0.0.1:{silent.getsockname()[1]}", *files, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with silent.accept()[0]:
            os.kill(child.pid, signal.SIGINT)
            output, errors = child.communicate(timeout=30)
    assert (child.returncode, output, errors) == (130, "", "gputuner: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_recording_for_a_time_that_is_interrupted_says_so(tmp_path: Path) -> None:
    file = tmp_path / "x"
    child = subprocess.Popen([GPUTUNER, "record", "demo", file, "--for", "1h"], stderr=subprocess.PIPE, text=True)
    while not (file.exists() and b'"t":"gpus"' in file.read_bytes()):
        assert child.poll() is None
    os.kill(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert (child.returncode, errors) == (130, "gputuner: interrupted\n")
    assert b'"t":"gpus"' in file.read_bytes(), "what was recorded is kept"


def test_a_demo_that_runs_is_joined_and_named(_own_home: Path) -> None:
    folder = _own_home / "state/gputuner/demo"
    with simhost.start("story", version="0.5.9", runtime=folder):
        for command in (("snapshot",), ("doctor", "--json")):
            ran = gputuner(command[0], "demo", *command[1:])
            assert ran.stderr == "reading the demo that runs already, scenario story, SGLang 0.5.9\n"


def test_a_demo_leaves_nothing_behind(_own_home: Path) -> None:
    before = sorted(_own_home.rglob("*"))
    ran = gputuner("snapshot", "demo")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [path for path in sorted(_own_home.rglob("*")) if path not in before and path.name != "state"] == []


def test_what_is_no_journal_is_unreadable_input(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n")
    with Terminal(GPUTUNER, "--replay", tmp_path / "x", columns=100, rows=10) as terminal:
        assert terminal.end() == 2
        assert "gputuner:" in terminal.text
        assert "Traceback" not in terminal.text


@pytest.mark.parametrize("command", [("connect", "local"), ("demo",)])
def test_a_terminal_that_cannot_be_drawn_on(command: tuple[str, ...]) -> None:
    with Terminal(GPUTUNER, *command, columns=200, rows=10, env={"TERM": "dumb"}) as terminal:
        assert terminal.end() == 2
        (line,) = [text for text in terminal.text.splitlines() if text]
        assert "TERM is dumb" in line
        assert "gputuner snapshot" in line


@pytest.mark.parametrize("target", ["127.0.0.1:1", "no-such-host.invalid"])
@pytest.mark.parametrize("command", [("snapshot",), ("doctor",)])
def test_a_host_that_is_not_reached(command: tuple[str, ...], target: str) -> None:
    ran = gputuner(*command, target)
    assert ran.returncode == 3
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert ran.stdout == ""


def test_an_unknown_key_without_a_terminal_is_refused_with_a_way_to_go_on(alias: str) -> None:
    ran = gputuner("snapshot", alias)
    assert ran.returncode == 3
    (line,) = ran.stderr.splitlines()
    assert "SHA256:" in line
    assert "gputuner connect simbox" in line
    assert ran.stdout == ""


def test_an_unknown_key_is_asked_about_once_and_saved(alias: str, host: Address, _own_home: Path) -> None:
    listed = subprocess.run(
        ["ssh-keygen", "-lf", host.known_hosts], capture_output=True, text=True, check=True
    ).stdout.split()
    with Terminal(GPUTUNER, "snapshot", alias, columns=160, rows=50) as terminal:
        terminal.see("[refuse]:")
        assert listed[1] in terminal.text, "the fingerprint as ssh-keygen prints it"
        terminal.send("save\n")
        assert terminal.end(40) == 0
    again = gputuner("snapshot", alias, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["host"] == "simbox"


def test_a_changed_key_is_refused_and_there_is_no_way_to_go_on(alias: str, host: Address, _own_home: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", _own_home / "other"], check=True)
    other = (_own_home / "other.pub").read_text()
    (_own_home / ".ssh/known_hosts").write_text(f"[{host.host}]:{host.port} {other}")
    ran = gputuner("snapshot", alias)
    assert ran.returncode == 3
    (line,) = ran.stderr.splitlines()
    assert "known_hosts:1" in line or "line 1" in line, line


def test_output_to_a_reader_that_left_is_no_error() -> None:
    child = subprocess.Popen(
        [GPUTUNER, "snapshot", "local", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    with child.stderr:
        assert child.stderr.read() == ""
    assert child.wait(30) == 141
