"""The installed command in a real terminal, on its own demo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.terminal import Terminal

GPUTUNER = Path(sys.executable).with_name("gputuner")
SIZES = [(80, 24), (160, 48)]

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def demo(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    columns, rows = request.param
    with Terminal(GPUTUNER, "demo", columns=columns, rows=rows) as terminal:
        terminal.see("TP0", "TP7", "tok/s", limit_s=30)
        yield terminal


def reading() -> dict[str, Any]:
    """What the demo in the other terminal says to a script."""
    ran = subprocess.run(
        [GPUTUNER, "snapshot", "demo", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    read: dict[str, Any] = json.loads(ran.stdout)
    return read


def wait_gone(processes: list[psutil.Process], limit_s: float = 10) -> None:
    """Wait until none of them runs. A zombie waits for its parent, not for us."""

    def alive() -> list[psutil.Process]:
        return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    deadline = time.monotonic() + limit_s
    while alive() and time.monotonic() < deadline:
        psutil.wait_procs(alive(), timeout=0.05)
    assert not alive()


def test_it_comes_up_shows_what_the_snapshot_says_and_leaves_nothing(demo: Terminal) -> None:
    children = psutil.Process(demo.pid).children(recursive=True)
    assert children, "the simulated host is a process of its own"
    said = reading()
    (server,) = said["servers"]
    assert server["phase"] == "ready"
    assert len(said["gpus"]) == len(server["ranks"]) == 8
    pids = [str(rank["pid"]) for rank in server["ranks"]]
    assert all(pid in demo.text for pid in pids), demo.text
    demo.see("READY")

    demo.send("q")
    assert demo.end() == 0
    wait_gone(children)


def test_numbers_move(demo: Terminal) -> None:
    before = demo.text
    demo.wait(lambda text: re.findall(r"\d+", text) != re.findall(r"\d+", before))


def test_keys_work(demo: Terminal) -> None:
    overview = demo.see("READY")
    demo.send("l")
    demo.see("Decode batch")
    demo.wait(lambda text: text != overview)
    demo.send("?")
    demo.see("Keys", "esc closes")
    demo.send("\x1b")
    demo.wait(lambda text: "esc closes" not in text)
    demo.send("o")
    demo.see("TP7", "READY")
    demo.send("q")
    assert demo.end() == 0


def test_a_dead_host_beside_a_living_one() -> None:
    with Terminal(GPUTUNER, "connect", "127.0.0.1:1", "demo", "local", columns=120, rows=40) as terminal:
        terminal.see("127.0.0.1:1", "demo", "local", "nothing listens on port 1")
        terminal.send("]")
        terminal.see("TP0", "TP7", "READY", limit_s=30)
        terminal.send("q")
        assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_the_terminal_back_and_ends_the_host(number: signal.Signals) -> None:
    with Terminal(GPUTUNER, "demo", columns=100, rows=30) as terminal:
        terminal.see("TP0", limit_s=30)
        children = psutil.Process(terminal.pid).children(recursive=True)
        os.kill(terminal.pid, number)
        assert terminal.end() == 128 + number
        wait_gone(children)
