"""The simulated GPUs: their properties, and how temperature, power and clocks follow the load."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
COUNT = 8
TOTAL_BYTES = 97_887 * MIB
RESERVED_BYTES = 638 * MIB
"""Bytes reserved by driver and firmware; CUDA's total does not include them."""
IDLE_BYTES = 4 * MIB
CAPACITY_BYTES = TOTAL_BYTES - RESERVED_BYTES - IDLE_BYTES
"""Bytes that CUDA can give to processes."""
LIMIT_W = 600.0
_CAPPED = 0.97
"""Share of the power limit from which the driver lowers the clocks and says so."""
DRIVER = "580.95.05"
CUDA = 13_000
_NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
_BUSES = ("11", "2f", "44", "5a", "93", "a7", "bd", "d2")


@dataclass
class Holder:
    """A process that holds memory on a GPU."""

    pid: int
    gpu: int
    used_bytes: int
    name: str = "python"


@dataclass
class _Gpu:
    index: int
    watts: float = 31.0
    temp: float = 34.0
    util: float = 0.0
    mem_util: float = 0.0
    rx: float = 0.0
    tx: float = 0.0
    """PCIe traffic from the GPU in GB/s; `rx`: to it."""
    rx_bytes: float = 0.0
    tx_bytes: float = 0.0
    energy_j: float = 0.0


@dataclass
class Driver:
    """Writes the state file that the simulated NVML and nvidia-smi read."""

    paths: tuple[Path, ...]
    rng: random.Random
    mode: str | None = None
    """Failure of the driver as a whole: missing, error or hang; None for none."""
    lost: set[int] = field(default_factory=set)
    gpus: list[_Gpu] = field(default_factory=lambda: [_Gpu(i) for i in range(COUNT)])
    at: float = 0.0

    def settle(self, loads: list[dict[str, float]]) -> None:
        """Set temperature and power to what a constant load leads to."""
        for gpu, load in zip(self.gpus, loads, strict=True):
            gpu.watts = load["watts"] * LIMIT_W
            gpu.temp = self._target_temp(gpu)
            gpu.util = load["utilization"]

    def update(self, now: float, loads: list[dict[str, float]], holders: list[Holder]) -> None:
        """Advance time, and write the new state.

        Args:
            now: Monotonic seconds.
            loads: Load by GPU, as the engines publish it.
            holders: All processes that hold GPU memory.
        """
        elapsed = now - self.at if self.at else 0.25
        self.at = now
        for gpu, load in zip(self.gpus, loads, strict=True):
            # At the rates that were written last: between two states the guest counts on with them.
            gpu.rx_bytes += gpu.rx * 1e9 * elapsed
            gpu.tx_bytes += gpu.tx * 1e9 * elapsed
            self._let_pass(gpu, load, min(2.0, elapsed))
        state = {
            "mode": self.mode,
            "at": now,
            "driver": DRIVER,
            "nvml": f"13.{DRIVER}",
            "cuda": CUDA,
            "topology": [[_ancestor(a, b) for b in range(COUNT)] for a in range(COUNT)],
            "gpus": [self._tell(gpu, holders) for gpu in self.gpus],
            "processes": [
                {"gpu": h.gpu, "pid": h.pid, "used": h.used_bytes, "name": h.name}
                for h in holders
                if h.used_bytes and h.gpu not in self.lost
            ],
        }
        content = json.dumps(state)
        for path in self.paths:
            temporary = path.with_suffix(".tmp")
            temporary.write_text(content)
            temporary.replace(path)

    def _target_temp(self, gpu: _Gpu) -> float:
        # Cards in the middle of the chassis get warmer air.
        return 31.5 + 2.4 * math.sin(gpu.index * 1.3) + gpu.watts * 0.068

    def _let_pass(self, gpu: _Gpu, load: dict[str, float], passed: float) -> None:
        wanted = load["watts"] * LIMIT_W * self.rng.uniform(0.985, 1.015) + 2.0 * math.sin(gpu.index)
        gpu.watts += (min(wanted, LIMIT_W) - gpu.watts) * min(1.0, passed / 0.6)
        gpu.temp += (self._target_temp(gpu) - gpu.temp) * min(1.0, passed / 14.0)
        gpu.util += (load["utilization"] - gpu.util) * min(1.0, passed / 0.3)
        gpu.mem_util += (load["mem_utilization"] - gpu.mem_util) * min(1.0, passed / 0.3)
        # Whole kB/s, so that what the guest counts with is what is counted here.
        gpu.rx = round(load["pcie_rx"] * self.rng.uniform(0.93, 1.07), 6)
        gpu.tx = round(load["pcie_tx"] * self.rng.uniform(0.93, 1.07), 6)
        gpu.energy_j += gpu.watts * passed

    def _tell(self, gpu: _Gpu, holders: list[Holder]) -> dict[str, Any]:
        index = gpu.index
        busy = gpu.util > 0.02
        capped = gpu.watts > _CAPPED * LIMIT_W
        sm = 180 if not busy else 2_410 - (15 if capped else 0) - int(self.rng.random() * 2) * 8
        used = IDLE_BYTES + sum(h.used_bytes for h in holders if h.gpu == index)
        return {
            "index": index,
            "lost": index in self.lost,
            "uuid": f"GPU-5f3a1c{index}e-8b2d-4e67-9a10-c4d2f7e8b{index:03d}",
            "serial": f"16524250{index:05d}",
            "name": _NAME,
            "bus_id": f"00000000:{_BUSES[index].upper()}:00.0",
            "total": TOTAL_BYTES,
            "reserved": RESERVED_BYTES,
            "used": min(used, TOTAL_BYTES - RESERVED_BYTES),
            "util": round(100 * gpu.util),
            "mem_util": round(100 * gpu.mem_util),
            "power_mw": round(gpu.watts * 1000),
            "limit_mw": round(LIMIT_W * 1000),
            "energy_mj": round(gpu.energy_j * 1000),
            "temp": round(gpu.temp),
            "mem_temp": round(gpu.temp + 6 + 8 * gpu.mem_util),
            "fan": 30 + round(gpu.watts / 12),
            "sm_mhz": sm,
            "sm_mhz_max": 2_617,
            "mem_mhz": 14_001 if busy else 405,
            "mem_mhz_max": 14_001,
            "throttle": 0x4 if capped else 0x0 if busy else 0x1,
            "rx_kb_s": round(gpu.rx * 1e6),
            "tx_kb_s": round(gpu.tx * 1e6),
            "rx_bytes": gpu.rx_bytes,
            "tx_bytes": gpu.tx_bytes,
            "pcie_gen": 5 if busy else 1,
            "pcie_width": 16,
            "pcie_gen_max": 5,
            "pcie_width_max": 16,
            "numa": numa_node(index),
            "capability": [12, 0],
            "ecc": 0,
        }


def numa_node(index: int) -> int:
    """Return the socket of a GPU: four GPUs on each of two."""
    return index * 2 // COUNT


def bus_id(index: int) -> str:
    """Return a GPU's bus id as /sys names the device."""
    return f"0000:{_BUSES[index]}:00.0"


def _ancestor(first: int, second: int) -> int:
    """Return NVML's topology level: via the node's host bridges within a socket, else via the link between sockets."""
    if first == second:
        return 0
    return 40 if numa_node(first) == numa_node(second) else 50
