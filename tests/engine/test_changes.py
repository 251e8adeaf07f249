"""Real servers changed by the installed command, through a real sshd: switched, failed, interrupted, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine.changing import Box, causes
from tests.engine.servers import Server, Sglang, Vllm, members, titles, wait_until
from tests.support.sshd import world

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

KINDS: Mapping[str, tuple[type[Server], str]] = {
    "sglang": (Sglang, "sglang::scheduler_TP{}"),
    "vllm": (Vllm, "VLLM::Worker_TP{}"),
}
KEY = "sk-" + "planted" * 4
"""An API key: the server must have it again after each start, and nobody must ever read it."""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with world(tmp_path / "home") as made:
        it = Box(made)
        try:
            yield it
        finally:
            it.close()


@pytest.mark.parametrize("name", KINDS)
def test_a_server_is_changed_and_there_is_always_a_way_back(name: str, engines: Path, tmp_path: Path, box: Box) -> None:
    """One host for several changes, because each start takes half a minute."""
    kind, rank = KINDS[name]
    options = ("--enable-metrics", "--api-key", KEY) if name == "sglang" else ("--api-key", KEY)
    bystander = subprocess.Popen(["tail", "-f", "/dev/null", "-s", "3600"], stdin=subprocess.DEVNULL)
    try:
        with kind(engines / name, tmp_path / "server.log", *options) as server:
            server.wait_ready(240)
            the_switch_goes_on_without_gputuner(box, server)
            a_start_that_fails_is_explained_and_gone_back_from(box)
            a_leader_that_is_killed_leaves_nothing_and_the_last_good_one_comes_back(box, rank)
            a_stop_leaves_nothing(box)
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert_no_secret(box)


def the_switch_goes_on_without_gputuner(box: Box, server: Server) -> None:
    with box.start("apply", "box", "--server", str(server.pid), "--set", "max_running_requests=4", "--yes") as process:
        wait_for(box, lambda record: record["step"] != "check", process)
        process.kill()
    record = wait_for(box, lambda record: record["outcome"] != "running")
    assert record["outcome"] == "ready", record
    assert not members(server.pid)
    assert "4" in asked(record["argv"], "--max-running-requests", "--max-num-seqs")
    code, told = box.json("snapshot", "box")
    assert code == 0
    assert told["runs"][0]["id"] == record["id"]
    assert any(each["pid"] == record["new"]["pid"] and each["phase"] == "ready" for each in told["servers"])


def a_start_that_fails_is_explained_and_gone_back_from(box: Box) -> None:
    pid = box.records()[-1]["new"]["pid"]
    code, told = box.json(
        *("apply", "box", "--server", str(pid), "--set", "context_length=999999", "--yes", "--auto-rollback")
    )
    assert (code, told["outcome"]) == (1, "back"), told
    assert causes(told)[0] == "bad-argument", told
    record = box.records()[-1]
    assert record["going_back"]
    assert record["new"]["pid"] in {each["pid"] for each in box.json("snapshot", "box")[1]["servers"]}


def a_leader_that_is_killed_leaves_nothing_and_the_last_good_one_comes_back(box: Box, rank: str) -> None:
    pid = box.records()[-1]["new"]["pid"]
    arguments = ("apply", "box", "--server", str(pid), "--set", "max_running_requests=6", "--yes")
    with box.start(*arguments) as process:
        record = wait_for(box, lambda record: record["step"] == "loading", process)
        leader = record["new"]["pid"]
        wait_until(lambda: rank.format(1) in titles(leader), 240, message=lambda: str(box.records()[-1]))
        os.kill(leader, signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    record = box.records()[-1]
    assert record["outcome"] == "failed", record
    assert not record["leftovers"]
    assert not members(leader)
    code, told = box.json("apply", "box", "--back", "--yes")
    assert (code, told["outcome"]) == (0, "ready"), told
    assert "4" in asked(box.records()[-1]["argv"], "--max-running-requests", "--max-num-seqs")


def a_stop_leaves_nothing(box: Box) -> None:
    pid = box.records()[-1]["new"]["pid"]
    code, told = box.json("stop", "box", "--server", str(pid), "--yes")
    assert (code, told["outcome"]) == (0, "stopped"), told
    assert not members(pid)
    assert not box.records()[-1]["leftovers"]


def assert_no_secret(box: Box) -> None:
    """Search all that gputuner wrote on either side, but for the orders, which are the launched servers' own."""
    for folder in (box.far, box.own):
        for file in folder.rglob("*"):
            if file.is_file() and file.name != "order.json" and file.suffix != ".log":
                assert KEY.encode() not in file.read_bytes(), file


def asked(argv: list[str], *flags: str) -> list[str]:
    """Return the values of some flags on a command line."""
    return [argv[index + 1] for index, argument in enumerate(argv) if argument in flags]


def wait_for(
    box: Box, true: Callable[[Mapping[str, Any]], bool], process: subprocess.Popen[str] | None = None
) -> Mapping[str, Any]:
    """Wait until the newest run that is not yet known to have ended is as wanted; return its record."""
    known = len(box.records())
    started = process is None

    def there() -> bool:
        nonlocal started
        if process is not None and process.poll() is not None:
            raise AssertionError(process.communicate()[0])
        records = box.records()
        started = started or len(records) > known
        return started and true(records[-1])

    wait_until(there, 240, message=lambda: str(box.records()))
    return box.records()[-1]
