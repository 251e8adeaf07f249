"""The command as a shell sees it: exit codes, one line of error, pipes."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def gputuner(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner", *arguments], input=text, capture_output=True, text=True, timeout=30, check=False
    )


def test_help_is_there_at_once() -> None:
    """0.3 s is the promise. Counted is processor time, so that a busy machine does not fail it."""
    used = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = gputuner("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert ran.returncode == 0
        assert "connect" in ran.stdout
    assert min(used) < 0.3


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("connect",),
        ("connect", "a b"),
        ("snapshot", "-oProxyCommand=x"),
        ("--replay", "/no/such/file"),
        ("--replay", "/dev"),
        ("--speed", "2"),
        ("record", "local", "/tmp", "--for", "soon"),
        ("demo", "--scenario", "sunshine"),
        ("completion", "tcsh"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    ran = gputuner(*arguments)
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize("arguments", [("connect", "local"), ("demo",)])
def test_the_dashboard_without_a_terminal_says_what_to_use_instead(arguments: tuple[str, ...]) -> None:
    ran = gputuner(*arguments)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "gputuner snapshot" in ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, tmp_path: Path) -> None:
    ran = gputuner("completion", shell)
    assert ran.returncode == 0
    assert "_GPUTUNER_COMPLETE" in ran.stdout


def test_hosts_are_completed_from_the_ssh_config(_own_home: Path) -> None:
    from tuner.cli.targets import complete_hosts

    (_own_home / ".ssh").mkdir()
    (_own_home / ".ssh/config").write_text("Host gpu-1 gpu-2\n  User root\nHost *.example !gpu-3\nHost other\n")
    assert complete_hosts("g") == ["gpu-1", "gpu-2"]
    assert complete_hosts("root@gpu") == ["root@gpu-1", "root@gpu-2"]
    assert complete_hosts("") == ["local", "demo", "gpu-1", "gpu-2", "other"]


def test_a_reader_that_went_away_is_no_error() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tuner", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    with child.stderr:
        assert child.stderr.read() == ""
    assert child.wait(30) == 141


@pytest.mark.parametrize("arguments", [("snapshot", "local", "--json"), ("presets", "show", "nccl-ring")])
def test_a_closed_output_is_a_problem_without_a_traceback(arguments: tuple[str, ...]) -> None:
    command = shlex.join([sys.executable, "-m", "tuner", *arguments])
    ran = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, timeout=60)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr


def test_a_dashboard_whose_input_is_closed_says_that_it_needs_a_terminal() -> None:
    command = shlex.join([sys.executable, "-m", "tuner", "demo"])
    ran = subprocess.run(["sh", "-c", f"{command} <&-"], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("gputuner: The dashboard needs a terminal")


@pytest.mark.parametrize("arguments", [("--help",), ("completion", "bash"), ("snapshot", "local"), ("doctor", "local")])
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "tuner", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == "gputuner: The output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("apply", "local", "no-such-preset", "--yes"), 2),
        (("apply", "local", "--set", "no_such_knob=1", "--yes"), 2),
        (("apply", "root@127.0.0.1:1", "graphs-16", "--yes"), 3),
        (("stop", "root@127.0.0.1:1", "--yes"), 3),
        (("resume", "root@127.0.0.1:1", "--yes"), 3),
        (("clean", "root@127.0.0.1:1", "--yes"), 3),
    ],
)
def test_a_change_that_ends_with_an_error_prints_its_object_too(arguments: tuple[str, ...], code: int) -> None:
    ran = gputuner(*arguments, "--json")
    told = json.loads(ran.stdout)
    assert (ran.returncode, told["outcome"], told["run"]) == (code, "error", None)
    assert ran.stderr.strip() == f"gputuner: {told['reason']}"
