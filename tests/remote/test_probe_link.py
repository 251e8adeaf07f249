"""The probe as a process: it starts anywhere, says who it is, obeys, and ends with the link."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.proc.running import RunningProbe, is_alive, pythons, running, toy_plan, until
from tests.fixtures.proc.tree import ProcTree, make_venv, toy_server
from tuner.domain import events as e
from tuner.probe.bootstrap import argv, payload


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "root")


@pytest.mark.parametrize("python", pythons())
def test_it_says_who_it_is_and_what_it_sees(tree: ProcTree, python: str) -> None:
    key = toy_server(tree)
    with running(tree.root, toy_plan(), python=python) as probe:
        hello = probe.first(e.ProbeHello)
        assert hello.protocol == 1
        assert (hello.hostname, hello.boot_id) == ("gpu-host", "11111111-2222-3333-4444-555555555555")
        assert (hello.pid, hello.uid) == (probe.pid, os.getuid())
        assert probe.events[0] is hello
        assert abs(hello.at - time.time()) < 60
        assert probe.server().key == key
        probe.first(e.ScanEnded)
        host = probe.first(e.HostSample)
        assert (host.load_1m, host.memory_total_bytes, host.memory_available_bytes) == (1.5, 1 << 30, 1 << 29)
        assert host.disks
        assert "/" in host.disks
        assert probe.problem("no-gpu").detail
        assert probe.first(e.GpuTable).reason


def test_it_starts_through_a_shell_as_ssh_does(tree: ProcTree) -> None:
    line = " ".join(shlex.quote(part) for part in argv())
    process = subprocess.Popen(
        line, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "HOST_ROOT": str(tree.root)}
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(payload())
    process.stdin.flush()
    assert b'"t":"hello"' in process.stdout.readline()
    process.communicate(timeout=5.0)
    assert process.returncode == 0


@pytest.mark.parametrize("how", ["eof", "bye", "term", "hup", "no pings", "no plan", "reader gone"])
def test_it_ends(tree: ProcTree, how: str, tmp_path: Path) -> None:
    toy_server(tree, log=tmp_path / "log")
    (tmp_path / "log").write_text("x\n")
    probe = RunningProbe(sys.executable, {"HOST_ROOT": str(tree.root)}, unread=how == "reader gone")
    if how != "no plan":
        probe.send(**toy_plan(ping_timeout_s=0.5 if how == "no pings" else 30.0))
    if how != "reader gone":
        probe.first(e.ProbeHello if how == "no plan" else e.ScanEnded)
    began = time.monotonic()
    if how in ("eof", "no plan"):
        probe.close_stdin()
    elif how == "bye":
        probe.send(op="bye")
    elif how in ("term", "hup"):
        os.kill(probe.pid, signal.SIGTERM if how == "term" else signal.SIGHUP)
    elif how == "reader gone":
        assert probe.process.stdout
        probe.process.stdout.close()
    assert probe.process.wait(5.0) == 0
    assert time.monotonic() - began < 2.0
    probe.end()


def test_a_blocked_output_does_not_keep_it_alive(tree: ProcTree, tmp_path: Path) -> None:
    """A laptop that sleeps reads nothing and sends nothing, and its link stays open."""
    log = tmp_path / "log"
    log.write_bytes(os.urandom(1 << 20).hex().encode())
    toy_server(tree, log=log)
    probe = RunningProbe(sys.executable, {"HOST_ROOT": str(tree.root)}, unread=True)
    probe.send(**toy_plan(ping_timeout_s=1.0, tail_bytes=1 << 22))
    assert probe.process.wait(10.0) == 0
    probe.end()


def test_memory_stays_bounded_on_a_blocked_link(tree: ProcTree, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(os.urandom(20 << 20).hex().encode())
    toy_server(tree, log=log)
    probe = RunningProbe(sys.executable, {"HOST_ROOT": str(tree.root)}, unread=True)
    probe.send(**toy_plan(tail_bytes=1 << 26, interval_s=0.1))
    until(lambda: probe.read_bytes() > 300_000)
    end = time.monotonic() + 1.5
    until(lambda: time.monotonic() > end)
    assert probe.read_bytes() < 4_000_000, "it read on although nobody took what it had read"
    assert probe.status("VmHWM") < 40_000
    probe.read_late()
    size = log.stat().st_size
    probe.first(e.LogBytes, lambda x: x.end == size)
    assert probe.log() == log.read_bytes()
    probe.end()
    probe.check()


def test_pings_are_answered_and_keep_it_alive(tree: ProcTree) -> None:
    with running(tree.root, toy_plan(ping_timeout_s=1.0)) as probe:
        for n in range(20):
            probe.send(op="ping", n=n)
            probe.first(e.Pong, lambda pong, n=n: pong.n == n)  # type: ignore[misc]
            end = time.monotonic() + 0.1
            until(lambda end=end: time.monotonic() > end)
        assert is_alive(probe.pid)


def test_a_host_that_stood_still_is_not_a_silent_laptop(tree: ProcTree) -> None:
    """A virtual machine that is paused wakes with pings unread."""
    with running(tree.root, toy_plan(ping_timeout_s=4.0)) as probe:
        probe.send(op="ping", n=1)
        probe.first(e.Pong)
        os.kill(probe.pid, signal.SIGSTOP)
        end = time.monotonic() + 5.0
        until(lambda: time.monotonic() > end)
        os.kill(probe.pid, signal.SIGCONT)
        later = time.monotonic() + 1.0
        until(lambda: time.monotonic() > later)
        probe.send(op="ping", n=2)
        probe.first(e.Pong, lambda pong: pong.n == 2)
        assert probe.process.wait(10.0) == 0, "and then it is a silent one"


def test_broken_orders_are_told_and_survived(tree: ProcTree) -> None:
    probe = RunningProbe(sys.executable, {"HOST_ROOT": str(tree.root)})
    probe.send_raw(b"not json\n[]\n{}\n\xff\xfe\n" + b'{"op":"cancel","id":"x"}\n')
    broken = toy_plan()
    broken["engines"][0]["leaders"] = ["("]
    probe.send(**broken)
    probe.send(op="nvml", z="bm8gemxpYg==")
    probe.send(**toy_plan())
    probe.first(e.ScanEnded)
    probe.settle()
    assert probe.problem("probe-error").subject == "order"
    probe.send(op="nonsense")
    probe.first(e.ProblemSeen, lambda problem: "nonsense" in problem.detail)
    probe.end()


def test_nothing_is_written_and_no_child_is_left(tree: ProcTree, tmp_path: Path) -> None:
    binding = (Path(__file__).parents[1] / "fixtures/proc/fake_pynvml.py").read_text()
    control = tmp_path / "nvml.json"
    control.write_text("{}")
    python = make_venv(tmp_path / "venv", binding=binding)
    toy_server(tree, python=python)
    home = tmp_path / "home"
    home.mkdir()
    before = sorted(tmp_path.rglob("*"))
    with running(tree.root, toy_plan(), HOME=str(home), FAKE_NVML=str(control)) as probe:
        probe.first(e.GpuSamples)
        assert probe.children() == []
    assert sorted(tmp_path.rglob("*")) == before


def test_checks_for_the_doctor(tree: ProcTree) -> None:
    toy_server(tree)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        probe.send(op="checks", id=7)
        result = probe.first(e.CheckResult)
        assert result.id == 7
        assert all(set(check) == {"ok", "value", "detail"} for check in result.checks.values())
        assert result.checks["python"]["ok"] is True
        assert result.checks["logs"]["ok"] is False
        assert result.checks["engines"]["value"][0]["engine"] == "toy"
        assert {"nvml", "driver", "proc", "shm", "disk", "topology", "persistence", "limits", "time"} <= set(
            result.checks
        )


@pytest.mark.parametrize("python", pythons())
def test_it_looks_at_this_very_machine(python: str) -> None:
    with running(None, toy_plan(), python=python) as probe:
        probe.first(e.ScanEnded)
        probe.first(e.HostSample, lambda host: host.cpu_ratio is not None)
        probe.settle()
        assert probe.status("VmHWM") < 40_000


def test_the_host_is_read_every_five_seconds(tree: ProcTree) -> None:
    with running(tree.root, toy_plan()) as probe:
        second = probe.first(e.HostSample, lambda x: x.mono > probe.events[0].mono + 1)
        third = probe.first(e.HostSample, lambda x: x.mono > second.mono)
        assert 4.0 < third.mono - second.mono < 7.0


def test_where_no_gpu_tells_the_time_the_host_is_read_every_second(tree: ProcTree) -> None:
    """What a server's log says is judged as time passes, and time passes with a line."""
    toy_server(tree)
    with running(tree.root, toy_plan()) as probe:
        probe.server()
        second = probe.first(e.HostSample, lambda x: x.mono > probe.events[0].mono + 1)
        third = probe.first(e.HostSample, lambda x: x.mono > second.mono)
        assert 0.5 < third.mono - second.mono < 2.5
