"""What both ways to read GPUs have in common."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Protocol, Tuple

from .base import SYS, Json, text_of

SAMPLE_FIELDS = (
    "index",
    "memory_used_bytes",
    "utilization_ratio",
    "memory_utilization_ratio",
    "power_w",
    "temperature_c",
    "memory_temperature_c",
    "sm_mhz",
    "memory_mhz",
    "throttle_mask",
    "pcie_rx_bytes_s",
    "pcie_tx_bytes_s",
    "nvlink_rx_bytes_s",
    "nvlink_tx_bytes_s",
    "pcie_gen",
    "pcie_width",
    "ecc_uncorrected",
    "error",
)
"""A sample travels as an array in this order."""


class GpuError(Exception):
    """One GPU cannot be read; the others may."""

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


class NoGpus(Exception):
    """There is nothing to read GPUs with; `code` is a problem code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Gpus(Protocol):
    """A way to read GPUs. What nothing can be read with raises NoGpus."""

    source: str
    """What `gpu_info` names."""
    EVERY_S: float
    """Least seconds between two readings."""

    def table(self) -> Json:
        """What does not change: the `gpu_info` line."""

    def samples(self) -> Tuple[List[List[Any]], Dict[int, GpuError]]:
        """One reading of every GPU, and those that could not be read."""

    def processes(self, graphics: bool) -> List[List[Any]]:
        """Memory by GPU and process: [gpu, pid, bytes or None]; `graphics` looks for those that draw, too."""

    def power_limits(self) -> List[Optional[float]]:
        """Power limits in watts, by GPU."""

    def persistence(self) -> Optional[bool]:
        """Whether the driver stays loaded without a client, on every GPU."""

    def close(self) -> None:
        """Let go of what is held."""


def numa_node_of(bus_id: str) -> Optional[int]:
    """NUMA node of a PCI device."""
    found = re.match(r"(?:0000)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])", bus_id)
    text = text_of("%s/bus/pci/devices/%s/numa_node" % (SYS, found.group(1).lower())) if found else None
    try:
        node = int(text or "")
    except ValueError:
        return None
    return node if node >= 0 else None
