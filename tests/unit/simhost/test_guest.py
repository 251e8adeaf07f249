"""What lies on the simulated host: an NVML with the real one's names, and an nvidia-smi that agrees with it."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

import tuner.simhost
from tuner.simhost import gpus

_GUEST = Path(tuner.simhost.__file__).parent / "guest"
_BUSY = {"utilization": 0.97, "watts": 0.68, "pcie_rx": 3.1, "pcie_tx": 2.9, "mem_utilization": 0.4}


def _load(folder: Path, **options: Any) -> tuple[types.ModuleType, gpus.Driver]:
    target = folder / "pynvml.py"
    target.write_text((_GUEST / "pynvml.py").read_text())
    driver = gpus.Driver((folder / "gpu-state.json",), random.Random(0), **options)
    found = importlib.util.spec_from_file_location("simulated_pynvml", target)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module, driver


def _tell(driver: gpus.Driver, *holders: gpus.Holder) -> None:
    driver.settle([_BUSY] * 8)
    for second in range(8):
        driver.update(1000.0 + second, [_BUSY] * 8, list(holders))


def test_names_and_numbers_are_those_of_the_real_binding(tmp_path: Path) -> None:
    simulated, _ = _load(tmp_path)
    ours = [name for name in vars(simulated) if name.lower().startswith("nvml") and name != "NVMLError"]
    assert [name for name in ours if not hasattr(pynvml, name)] == []
    for name in ours:
        value = getattr(simulated, name)
        if isinstance(value, int):
            assert getattr(pynvml, name) == value, name


def test_errors_are_caught_by_class_and_carry_their_code(tmp_path: Path) -> None:
    nvml, driver = _load(tmp_path, lost={5})
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    _tell(driver)
    nvml.nvmlInit()
    with pytest.raises(nvml.NVMLError) as lost:
        nvml.nvmlDeviceGetHandleByIndex(5)
    assert lost.value.value == pynvml.NVML_ERROR_GPU_IS_LOST
    assert str(lost.value) == "GPU is lost"
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetNvLinkState(nvml.nvmlDeviceGetHandleByIndex(0), 0)


@pytest.mark.parametrize("mode", ["missing", "error"])
def test_a_driver_that_fails(tmp_path: Path, mode: str) -> None:
    nvml, driver = _load(tmp_path, mode=mode)
    _tell(driver)
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlInit()


def test_a_driver_that_answered_does_not_go_away_by_itself(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "root").symlink_to(tmp_path)  # as /proc/PID/root, by which a probe finds a server's packages
    nvml, _ = _load(tmp_path / "root/site")
    driver = gpus.Driver((site / "gpu-state.json",), random.Random(0))
    _tell(driver)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    before = nvml.nvmlDeviceGetMemoryInfo(handle).used

    (tmp_path / "root").unlink()
    _tell(driver, gpus.Holder(11, 0, 1 << 30))
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used == before + (1 << 30)

    for content in ("", "{"):
        (site / "gpu-state.json").write_text(content)
        assert nvml.nvmlDeviceGetMemoryInfo(handle).used == before + (1 << 30)
    (site / "gpu-state.json").unlink()
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used == before + (1 << 30)


def test_memory_adds_up(tmp_path: Path) -> None:
    nvml, driver = _load(tmp_path)
    _tell(driver, gpus.Holder(11, 3, 80 << 30), gpus.Holder(12, 3, 3 << 30), gpus.Holder(13, 0, 1 << 30))
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(3)

    first, second = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)

    assert first.total == first.used + first.free
    assert second.total == second.used + second.free + second.reserved
    assert {(p.pid, p.usedGpuMemory) for p in processes} == {(11, 80 << 30), (12, 3 << 30)}
    assert second.used == (83 << 30) + gpus.IDLE_BYTES


def test_gpus_behave_under_load(tmp_path: Path) -> None:
    nvml, driver = _load(tmp_path)
    _tell(driver)
    nvml.nvmlInit()
    for index in range(8):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        assert 385_000 < nvml.nvmlDeviceGetPowerUsage(handle) < 430_000
        assert 54 < nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU) < 66
        assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 97
        assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) > 2_380
        assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == (0x4 if index == 2 else 0)
    driver.update(1020.0, [dict.fromkeys(_BUSY, 0.05)] * 8, [])
    for second in range(30):
        driver.update(1021.0 + second, [dict.fromkeys(_BUSY, 0.0)] * 8, [])
    assert nvml.nvmlDeviceGetPowerUsage(handle) < 10_000
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0x1


def test_topology_is_two_sockets_without_nvlink(tmp_path: Path) -> None:
    nvml, driver = _load(tmp_path)
    _tell(driver)
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(8)]
    levels = [[nvml.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in handles] for a in handles]
    assert levels[0] == [0, 40, 40, 40, 50, 50, 50, 50]
    assert all(levels[a][b] == levels[b][a] for a in range(8) for b in range(8))


def test_nvidia_smi_says_what_nvml_says(tmp_path: Path) -> None:
    nvml, driver = _load(tmp_path)
    _tell(driver, gpus.Holder(11, 3, 80 << 30, "sglang::scheduler_TP3"))
    nvml.nvmlInit()
    (tmp_path / "smi.py").write_text((_GUEST / "nvidia_smi.py").read_text())

    def ask(*words: str) -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "smi.py"), *words], capture_output=True, text=True, check=True
        )
        return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]

    table = ask("--query-gpu=index,uuid,memory.used,temperature.gpu,no.such", "--format=csv,noheader,nounits")
    assert len(table) == 8
    handle = nvml.nvmlDeviceGetHandleByIndex(3)
    used = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used
    assert table[3] == [
        "3",
        nvml.nvmlDeviceGetUUID(handle),
        str(used >> 20),
        str(nvml.nvmlDeviceGetTemperature(handle, 0)),
        "[N/A]",
    ]
    apps = ask("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv")
    assert apps[1] == [nvml.nvmlDeviceGetUUID(handle), "11", "81920 MiB"]


def test_state_is_valid_json_all_the_time(tmp_path: Path) -> None:
    _, driver = _load(tmp_path)
    _tell(driver)
    assert len(json.loads((tmp_path / "gpu-state.json").read_text())["gpus"]) == 8
