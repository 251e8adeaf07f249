"""What both ways to read GPUs have in common."""

from __future__ import annotations

import re
from typing import Optional

from .base import SYS, text_of

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


def numa_node_of(bus_id: str) -> Optional[int]:
    """NUMA node of a PCI device."""
    found = re.match(r"(?:0000)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])", bus_id)
    text = text_of("%s/bus/pci/devices/%s/numa_node" % (SYS, found.group(1).lower())) if found else None
    try:
        node = int(text or "")
    except ValueError:
        return None
    return node if node >= 0 else None
