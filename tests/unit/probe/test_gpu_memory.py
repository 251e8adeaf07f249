"""What proves that the memory of a server is back where the driver does not tell whose it is."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.probe.agent.processes import Stat
from tuner.probe.supervisor import gpus, memory

GIB = 1 << 30
UUID = "GPU-0"


class Gpu:
    """One GPU, the clock, and the proof that a server's memory on it is back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(memory.time, "monotonic", lambda: self.now)
        self.memory = memory.GpuMemory(SimpleNamespace(pulse=None), 0)  # type: ignore[arg-type]

    def tell(self, used: float, *users: tuple[int, int, int | None]) -> None:
        reading = {"gpus": {UUID: 0}, "used": {"0": int(used * GIB)}, "users": users}
        self.memory.reading, self.memory.fresh = reading, True

    def proof(self, pids: dict[int, int] | None = None, **known: Any) -> memory.Proof:
        before = self.memory.before([UUID], set(pids or ()), **known)
        return memory.Proof(SimpleNamespace(), self.memory, before, pids or {})  # type: ignore[arg-type]

    def is_back(self, proof: memory.Proof) -> bool:
        """Whether the memory counts as back once what is in use has been still for long."""
        proof._missing()
        self.now += 10 * memory.STABLE_S
        return not proof._missing()


@pytest.mark.parametrize(
    ("before", "level", "after", "back"),
    [
        (80, None, 79, False),
        (80, None, 41, False),
        (80, None, 39, True),
        (80, None, 1, True),
        (80, 50, 52, False),
        (80, 50, 50.8, True),
        (80, 5, 20, False),
        (80, 79.9, 60, False),  # others have given memory back since, so it tells nothing
        (80, 79.9, 30, True),
    ],
)
def test_most_of_the_memory_must_be_back_where_the_driver_names_nobody(
    monkeypatch: pytest.MonkeyPatch, before: float, level: float | None, after: float, back: bool
) -> None:
    gpu = Gpu(monkeypatch)
    gpu.tell(before)
    proof = gpu.proof(level=None if level is None else {"0": int(level * GIB)})
    gpu.tell(after)
    assert gpu.is_back(proof) is back


@pytest.mark.parametrize(
    ("claimed", "after", "back"),
    [
        (10, 80, False),
        (10, 72, False),
        (10, 70.4, True),
        (10, 60, True),
        (0, 70, False),
        (0.4, 79.9, False),  # it could be noise
        (90, 70, False),  # it cannot have held more than all
        (70, 39, True),  # what ranks say is no more than they say: half is enough, as ever
    ],
)
def test_what_the_ranks_said_they_allocated_must_be_back_beside_a_large_tenant_that_is_hidden(
    monkeypatch: pytest.MonkeyPatch, claimed: float, after: float, back: bool
) -> None:
    gpu = Gpu(monkeypatch)
    gpu.tell(80)
    proof = gpu.proof(claimed={UUID: int(claimed * GIB)})
    gpu.tell(after)
    assert gpu.is_back(proof) is back


def test_memory_that_still_falls_is_not_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    gpu.tell(80)
    proof = gpu.proof()
    for used in range(39, 30, -1):
        gpu.tell(used)
        gpu.now += memory.STABLE_S
        assert proof._missing() == f"GPU 0: {used}.0 GiB in use"


@pytest.mark.parametrize("open_", [False, True])
def test_pids_of_the_host_are_no_processes_of_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, open_: bool
) -> None:
    """PIDs in the driver's list that exist here by chance: one is that of another process, one that of a member."""
    for pid in (7, 8):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/fd/3").symlink_to("/dev/nvidia0" if open_ else "/dev/null")
    monkeypatch.setattr(memory, "read_stat", lambda pid: Stat("S", 1, 1, {7: 70, 8: 80}[pid]))
    monkeypatch.setattr(memory, "PROC", str(tmp_path))
    monkeypatch.setattr(memory, "_FIRST_NAMESPACE", "another")
    gpu = Gpu(monkeypatch)
    users = ((0, 7, 60 * GIB), (0, 8, 19 * GIB))
    gpu.tell(80, *users)
    proof = gpu.proof({8: 80})
    (item,) = proof._before
    assert (item["told"], item["held_bytes"]) == (open_, 19 * GIB if open_ else 0)
    assert not gpu.is_back(proof)
    gpu.tell(30, (0, 8, 19 * GIB))
    assert gpu.is_back(proof) is not open_, "a member that lives still holds memory, a namesake does not"


def test_what_the_server_held_must_be_back_where_only_others_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "read_stat", lambda pid: Stat("S", 1, 1, 80) if pid == 8 else None)
    gpu = Gpu(monkeypatch)
    gpu.tell(80, (0, 8, 20 * GIB), (0, 9, 59 * GIB))
    proof = gpu.proof({8: 80})
    gpu.tell(65, (0, 9, 59 * GIB))
    assert not gpu.is_back(proof)
    gpu.tell(60.4, (0, 9, 59 * GIB))
    assert gpu.is_back(proof)


def test_on_the_host_itself_the_driver_s_pids_are_those_of_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_FIRST_NAMESPACE", str(Path("/proc/self/ns/pid").readlink()))
    gpu = Gpu(monkeypatch)
    gpu.tell(80, (0, os.getpid(), 79 * GIB))
    (item,) = gpu.proof()._before
    assert (item["told"], item["held_bytes"]) == (True, 0)


@pytest.mark.parametrize("version", ["_v3", "_v2"])
def test_who_uses_a_gpu_is_read_from_older_drivers_too(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Drivers before 510 have the second version of the function only."""

    def users(handle: Any, count: Any, found: Any) -> int:
        count._obj.value = 1
        found._obj[0].pid, found._obj[0].bytes = 7, 5 * GIB
        return 0

    driver = SimpleNamespace(**{"nvmlDeviceGetComputeRunningProcesses" + version: users})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    found = gpus._library().nvmlDeviceGetComputeRunningProcesses(None)
    assert [(each.pid, each.usedGpuMemory) for each in found] == [(7, 5 * GIB)]
