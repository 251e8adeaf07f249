"""What is known about the GPUs of one host and who uses their memory."""

from __future__ import annotations

from msgspec import Struct


class GpuInfo(Struct, frozen=True, kw_only=True):
    """What does not change about a GPU while the driver is loaded."""

    index: int
    """NVML index; not necessarily CUDA's."""
    uuid: str
    name: str
    memory_total_bytes: int | None = None
    bus_id: str | None = None
    power_limit_w: float | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    nvlink_count: int | None = None
    """Active NVLink links; 0 where there are none, None where it cannot be read."""
    numa_node: int | None = None
    compute_capability: str | None = None
    mig: bool = False


class GpuSample(Struct, frozen=True, array_like=True, gc=False):
    """One reading of one GPU. None means not readable, never zero. Travels as an array to keep the link thin."""

    index: int
    memory_used_bytes: int | None = None
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttle_mask: int | None = None
    """NVML clocks event reasons, decoded by `core.throttle`."""
    pcie_rx_bytes_s: int | None = None
    pcie_tx_bytes_s: int | None = None
    nvlink_rx_bytes_s: int | None = None
    nvlink_tx_bytes_s: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    ecc_uncorrected: int | None = None
    error: str | None = None
    """Set when the GPU could not be read at all (lost, fallen off the bus); the other fields are then None."""


class GpuProcess(Struct, frozen=True, array_like=True, gc=False):
    """Memory that one process holds on one GPU, as NVML says."""

    gpu: int
    pid: int
    used_bytes: int | None = None
    """None in containers and under WSL, where the driver does not tell."""


class ProcessInfo(Struct, frozen=True, kw_only=True):
    """A process that was seen on a GPU, whoever owns it."""

    pid: int
    user: str | None = None
    command: str | None = None
    started_at: float | None = None
    """Wall clock of the host, seconds since the epoch."""
