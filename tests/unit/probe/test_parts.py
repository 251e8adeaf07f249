"""Parts of the probe that wait for others: drivers, disks, signals; and what they tell when those do not answer."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.probe.agent import checks as checks_module
from tuner.probe.agent import gpu_reader, host, sockets
from tuner.probe.agent.checks import checks
from tuner.probe.agent.output import Outbox, Problems
from tuner.probe.agent.probe import Probe


class Out:
    """Takes lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def put(self, event: dict[str, Any]) -> None:
        self.lines.append(event)


def reader(**more: Any) -> gpu_reader.GpuReader:
    probe: Any = SimpleNamespace(out=Out(), log=print, live_servers=list, **more)
    probe.problems = SimpleNamespace(note=lambda *_: None, clear=lambda *_: None)
    probe.pause = lambda seconds: True
    return gpu_reader.GpuReader(probe)


def test_waiting_for_the_binding_is_no_hang_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = reader()
    since: list[float] = []
    monkeypatch.setattr(gpu_reader, "own_package_folders", list)
    monkeypatch.setattr(gpu_reader, "driver_hints", lambda: True)
    monkeypatch.setattr(gpu_reader, "which", lambda name: None)
    monkeypatch.setattr(gpu, "given", SimpleNamespace(wait=lambda seconds: since.append(gpu._busy_since)))
    gpu.run()
    assert since == [0.0]


def test_the_driver_is_watched_while_it_is_asked() -> None:
    gpu = reader()
    with pytest.raises(ZeroDivisionError), gpu._driver_asked():
        assert gpu._busy_since > 0
        raise ZeroDivisionError
    assert gpu._busy_since == 0


def test_a_changed_power_limit_is_told() -> None:
    gpu = reader()
    limits: list[float | None] = [600.0, None]
    gpus: Any = SimpleNamespace(power_limits=lambda: limits)
    gpu.table = {"t": "gpu_info", "gpus": [{"index": 0, "power_limit_w": 600.0}, {"index": 1}]}
    gpu._look_at_limits(gpus)
    assert gpu.probe.out.lines == []  # type: ignore[attr-defined]
    limits[0] = 450.0
    gpu._look_at_limits(gpus)
    gpu._look_at_limits(gpus)
    (line,) = gpu.probe.out.lines  # type: ignore[attr-defined]
    assert line == {"t": "gpu_info", "gpus": [{"index": 0, "power_limit_w": 450.0}, {"index": 1}]}


def told(gpu: gpu_reader.GpuReader) -> dict[str, str]:
    """Problems that are told and not over."""
    problems: dict[str, str] = {}
    for line in gpu.probe.out.lines:  # type: ignore[attr-defined]
        if line["t"] == "problem" and line.get("cleared"):
            del problems[line["code"]]
        elif line["t"] == "problem":
            problems[line["code"]] = line["detail"]
    return problems


def test_nvidia_smi_that_does_not_answer_is_told_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = reader()
    gpu.probe.problems = Problems(gpu.probe.out)

    def output(argv: list[str], timeout_s: float) -> None:
        gpu._busy_since -= timeout_s
        gpu.watch()
        assert "nvml-hang" in told(gpu)
        raise TimeoutError("no answer")

    gpu.probe.children = SimpleNamespace(output=output)  # type: ignore[assignment]
    monkeypatch.setattr(gpu_reader, "own_package_folders", list)
    monkeypatch.setattr(gpu_reader, "driver_hints", lambda: False)
    monkeypatch.setattr(gpu_reader, "which", lambda name: name)
    gpu.run()
    gpu.watch()
    assert told(gpu) == {"nvml-error": "no answer"}


def test_a_fault_of_ours_while_gpus_are_read_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[tuple[str, BaseException]] = []
    gpu = reader(fault=lambda where, error: faults.append((where, error)))
    gpu.probe.problems = Problems(gpu.probe.out)
    monkeypatch.setattr(gpu, "_way", lambda: SimpleNamespace(table=lambda: 1 // 0, close=lambda: None))
    gpu.run()
    ((where, error),) = faults
    assert (where, type(error)) == ("gpu", ZeroDivisionError)
    assert "division" not in told(gpu)["nvml-error"]


def test_that_there_is_no_gpu_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = reader()
    out = gpu.probe.out = Outbox(-1)
    monkeypatch.setattr(gpu_reader, "own_package_folders", list)
    monkeypatch.setattr(gpu_reader, "driver_hints", lambda: False)
    monkeypatch.setattr(gpu_reader, "which", lambda name: None)
    gpu.run()
    gpu.run()
    assert len(out._lines) == 1


def test_a_line_leaves_the_table_it_was_made_of_as_it_is() -> None:
    event = {"t": "gpu_info"}
    out = Outbox(-1)
    out.put(event)
    out.put_sample(event)
    assert event == {"t": "gpu_info"}


def test_nothing_is_hidden_from_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "text_of", lambda path: "proc /proc proc rw,hidepid=invisible 0 0\n")
    monkeypatch.setattr(checks_module, "ME", 1000)
    assert "hidepid" in (checks_module.hidepid() or "")
    monkeypatch.setattr(checks_module, "ME", 0)
    assert checks_module.hidepid() is None


def test_of_old_kernel_errors_only_the_last_ones_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev/kmsg"
    log.write_text("".join(f"4,{n},{n},-;NVRM: Xid (PCI:0000:11:00): 31, no. {n}\n4,0,0,-;x\n" for n in range(100)))
    monkeypatch.setattr(host, "HOST_ROOT", str(tmp_path))
    out: Any = Out()
    kernel = host.KernelLog(out)
    kernel.poll()
    assert [line["text"].rpartition(" ")[2] for line in out.lines] == [str(n) for n in range(80, 100)]
    with log.open("a") as more:
        more.write("".join(f"4,{n},{n},-;NVRM: Xid (PCI:0000:11:00): 31, no. {n}\n" for n in range(30)))
    kernel.poll()
    assert len(out.lines) == 50


def test_a_disk_that_does_not_answer_costs_only_its_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def disks(self: host.HostReader) -> dict[str, Any]:
        answer.wait(20.0)
        return {}

    monkeypatch.setattr(host.HostReader, "disks", disks)
    try:
        began = time.monotonic()
        found = checks(Probe(), 0.5)
        assert time.monotonic() - began < 5.0
    finally:
        answer.set()
    assert found["disk"] == {"ok": False, "value": None, "detail": "no answer within 0.5 s"}
    assert found["python"]["ok"] is True
    assert found["memory"]["value"][0] is not None
    assert [name for name, check in found.items() if str(check["detail"]).startswith("no answer")] == ["disk"]


def test_a_signal_while_it_is_ending_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe()
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())

    def interrupted() -> None:
        with probe._exit_lock:
            probe.exit()

    threading.Thread(target=interrupted, daemon=True).start()
    assert ended.wait(5.0)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernel_lists_what_listens(family: int, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if sockets.listeners_here() is None:
        pytest.skip("this kernel has no sock_diag")
    with socket.socket(family) as ours, socket.socket(family) as silent:
        try:
            ours.bind((address, 0))
            silent.bind((address, 0))
        except OSError:
            pytest.skip(f"no {address} here")
        ours.listen()
        port = ours.getsockname()[1]

        def mine(found: list[sockets.Listener]) -> list[tuple[str, int, int, int]]:
            ports = (port, silent.getsockname()[1])
            return [(x.address, x.port, x.inode, x.uid) for x in found if x.port in ports]

        expected = [(address, port, os.fstat(ours.fileno()).st_ino, os.getuid())]
        assert mine(sockets.listeners_here() or []) == expected
        with monkeypatch.context() as patch:
            patch.setattr(sockets, "slurp", lambda *_: pytest.fail("the tables in /proc were read"))
            assert mine(sockets.listeners_of(os.getpid())) == expected
        monkeypatch.setattr(sockets, "listeners_here", lambda: None)
        assert mine(sockets.listeners_of(os.getpid())) == expected
