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
from tuner.probe.agent import gpu_base, gpu_nvml
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
        assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0, "far below the limit nothing is capped"
    driver.update(1020.0, [dict.fromkeys(_BUSY, 0.05)] * 8, [])
    for second in range(30):
        driver.update(1021.0 + second, [dict.fromkeys(_BUSY, 0.0)] * 8, [])
    assert nvml.nvmlDeviceGetPowerUsage(handle) < 10_000
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0x1
    for second in range(30):
        driver.update(1060.0 + second, [{**_BUSY, "watts": 1.2}] * 8, [])
    assert nvml.nvmlDeviceGetPowerUsage(handle) == 600_000
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0x4


def test_pcie_counters_of_ranks_that_work_together_grow_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, driver = _load(tmp_path)
    _tell(driver)
    nvml.nvmlInit()
    clock = [1007.0]
    monkeypatch.setattr(nvml, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))

    def counted() -> list[list[int]]:
        fields = [nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES]
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(8))
        return [[value.value.ullVal for value in nvml.nvmlDeviceGetFieldValues(each, fields)] for each in handles]

    before, seen = counted(), [counted()]
    for step in range(1, 33):
        clock[0] = 1007.0 + step / 4
        seen.append(counted())  # between two states it has gone on already
        driver.update(clock[0], [_BUSY] * 8, [])
        seen.append(counted())
    for gpu in range(8):
        for way, rate in ((0, 3.1e9), (1, 2.9e9)):
            numbers = [each[gpu][way] for each in seen]
            assert numbers == sorted(numbers), "a counter never goes back"
            assert (numbers[-1] - before[gpu][way]) / 8 == pytest.approx(rate, rel=0.05)


def test_traffic_of_a_gpu_that_became_idle_is_unknown_until_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, driver = _load(tmp_path)
    _tell(driver)
    clock = [1007.0]
    for module in (nvml, gpu_nvml):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    reader = gpu_nvml.NvmlGpus(nvml, "simulated")

    def live(seconds: int, load: dict[str, float]) -> list[int | None]:
        for _ in range(seconds):
            clock[0] += 1.0
            driver.update(clock[0], [load] * 8, [])
            reader.traffic()
            samples, _ = reader.samples()
        return [dict(zip(gpu_base.SAMPLE_FIELDS, each, strict=True))["pcie_rx_bytes_s"] for each in samples]

    busy = live(24, _BUSY)
    assert all(each == pytest.approx(3.1e9, rel=0.05) for each in busy)
    idle = dict.fromkeys(_BUSY, 0.0)
    assert all(live(2, idle)), "a moment without work is no end"
    assert not any(live(6, idle)), "no rate of the time before"
    assert live(16, idle) == [0] * 8, "each was read twice since"


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
