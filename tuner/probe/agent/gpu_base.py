"""The common interface of both ways to read GPUs."""

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
"""Fields of a sample, which is sent as an array in this order."""


class GpuError(Exception):
    """One GPU cannot be read; others may be readable."""

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


class NoGpus(Exception):
    """There is no way to read GPUs; `code` is a problem code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Gpus(Protocol):
    """A way to read GPUs. Construction and readings raise NoGpus where it does not work."""

    source: str
    """Name of the source in the `gpu_info` line."""
    EVERY_S: float
    """Least seconds between two readings."""

    def table(self) -> Json:
        """Return the `gpu_info` line, which holds what does not change."""

    def samples(self) -> Tuple[List[List[Any]], Dict[int, GpuError]]:
        """Read every GPU; return the samples, and the errors of GPUs that could not be read, by index."""

    def processes(self, graphics: bool) -> List[List[Any]]:
        """Return memory by GPU and process as [gpu, pid, bytes or None]; with `graphics` also processes that draw."""

    def power_limits(self) -> List[Optional[float]]:
        """Return the power limit of each GPU in watts, None where unknown."""

    def persistence(self) -> Optional[bool]:
        """Return whether the driver of every GPU stays loaded without a client; None where unknown."""

    def close(self) -> None:
        """Release the driver."""


def numa_node_of(bus_id: str) -> Optional[int]:
    """Return the NUMA node of a PCI device; None where unknown."""
    found = re.match(r"(?:0000)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])", bus_id)
    text = text_of("%s/bus/pci/devices/%s/numa_node" % (SYS, found.group(1).lower())) if found else None
    try:
        node = int(text or "")
    except ValueError:
        return None
    return node if node >= 0 else None
