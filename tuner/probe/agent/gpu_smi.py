"""Read GPUs through nvidia-smi."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

from .base import Json
from .children import Children
from .gpu_base import SAMPLE_FIELDS, GpuError, NoGpus, numa_node_of


class SmiGpus:
    """Reads GPUs through nvidia-smi, where there is no binding.

    Less precise, and each call costs the host a process.
    """

    EVERY_S = 2.0
    _FIELDS = (
        "index",
        "uuid",
        "name",
        "pci.bus_id",
        "memory.total",
        "memory.used",
        "utilization.gpu",
        "utilization.memory",
        "power.draw",
        "power.limit",
        "temperature.gpu",
        "temperature.memory",
        "clocks.sm",
        "clocks.mem",
        "clocks_throttle_reasons.active",
        "pcie.link.gen.current",
        "pcie.link.width.current",
        "pcie.link.gen.max",
        "pcie.link.width.max",
        "ecc.errors.uncorrected.volatile.total",
        "driver_version",
        "compute_cap",
        "mig.mode.current",
        "persistence_mode",
    )

    def __init__(self, children: Children, program: str) -> None:
        self.source = "nvidia-smi"
        self._children = children
        self._program = program
        self._names = list(self._FIELDS)
        self._by_uuid: Dict[str, int] = {}
        self._persistence: Optional[bool] = None
        self._rows = self._query()
        if not self._rows:
            raise NoGpus("no-gpu", "nvidia-smi sees no GPU")

    def _csv(self, query: str) -> List[List[str]]:
        try:
            status, text = self._children.output([self._program, query, "--format=csv,noheader,nounits"], 10.0)
        except TimeoutError as e:
            raise NoGpus("nvml-error", str(e)) from None  # `watch` of the reader reports hangs
        except OSError as e:
            raise NoGpus("nvml-error", "nvidia-smi: %s" % e) from None
        if status != 0:
            raise NoGpus("nvml-error", "nvidia-smi: " + " ".join(text.split())[:300])
        return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]

    def _query(self) -> List[Dict[str, str]]:
        while True:
            try:
                rows = self._csv("--query-gpu=" + ",".join(self._names))
            except NoGpus as e:
                unknown = re.search(r'[Ff]ield "([\w.]+)" is not a valid', str(e))
                if unknown and unknown.group(1) in self._names:
                    self._names.remove(unknown.group(1))  # an older driver does not know this field
                    continue
                raise
            rows = [row for row in rows if len(row) == len(self._names) and row[0].isdigit()]
            return [dict(zip(self._names, row)) for row in rows]  # noqa: B905 - Python 3.8 has no strict

    @staticmethod
    def _number(row: Dict[str, str], name: str, scale: float = 1.0) -> Optional[float]:
        try:
            return float(row[name]) * scale
        except (KeyError, ValueError):
            return None  # [N/A], [Not Supported], [Unknown Error], or the wording of a newer driver

    def _integer(self, row: Dict[str, str], name: str, scale: int = 1) -> Optional[int]:
        value = self._number(row, name)
        return int(value * scale) if value is not None else None

    def table(self) -> Json:
        """Return the `gpu_info` line, which holds what does not change."""
        gpus = []
        for row in self._rows:
            index = int(row["index"])
            self._by_uuid[row.get("uuid", "")] = index
            bus_id = row.get("pci.bus_id") or None
            capability = row.get("compute_cap", "")
            gpus.append(
                {
                    "index": index,
                    "uuid": row.get("uuid", ""),
                    "name": row.get("name", "NVIDIA GPU"),
                    "memory_total_bytes": self._integer(row, "memory.total", 1 << 20),
                    "bus_id": bus_id,
                    "power_limit_w": self._number(row, "power.limit"),
                    "pcie_gen_max": self._integer(row, "pcie.link.gen.max"),
                    "pcie_width_max": self._integer(row, "pcie.link.width.max"),
                    "numa_node": numa_node_of(bus_id) if bus_id else None,
                    "compute_capability": capability if re.match(r"\d+\.\d+$", capability) else None,
                    "mig": row.get("mig.mode.current") == "Enabled",
                }
            )
        modes = [row.get("persistence_mode") for row in self._rows]
        self._persistence = all(mode == "Enabled" for mode in modes) if all(modes) else None
        reason = "no NVML binding; nvidia-smi is asked every 2 s and tells no PCIe and NVLink traffic"
        event: Json = {"t": "gpu_info", "source": self.source, "gpus": gpus, "reason": reason}
        event["driver"] = self._rows[0].get("driver_version")
        event["topology"] = self._topology(len(gpus))
        return event

    def _topology(self, count: int) -> Optional[List[List[str]]]:
        if count < 2:
            return None
        try:
            _, text = self._children.output([self._program, "topo", "-m"], 10.0)
        except OSError:
            return None
        rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
        matrix = [row[1 : count + 1] for row in rows]
        return matrix if len(matrix) == count and all(len(row) == count for row in matrix) else None

    def samples(self) -> Tuple[List[List[Any]], Dict[int, GpuError]]:
        """Read every GPU; return the samples, and the errors of GPUs that could not be read, by index."""
        self._rows = self._query()
        out: List[List[Any]] = []
        errors: Dict[int, GpuError] = {}
        for row in self._rows:
            index = int(row["index"])
            used = row.get("memory.used", "")
            if re.search(r"lost|unknown error", used, re.I):
                errors[index] = GpuError(used.strip("[]"), True)
                out.append([index] + [None] * (len(SAMPLE_FIELDS) - 2) + [used.strip("[]")])
                continue
            mask = row.get("clocks_throttle_reasons.active", "")
            sample = dict.fromkeys(SAMPLE_FIELDS)
            sample.update(
                index=index,
                memory_used_bytes=self._integer(row, "memory.used", 1 << 20),
                utilization_ratio=self._number(row, "utilization.gpu", 0.01),
                memory_utilization_ratio=self._number(row, "utilization.memory", 0.01),
                power_w=self._number(row, "power.draw"),
                temperature_c=self._integer(row, "temperature.gpu"),
                memory_temperature_c=self._integer(row, "temperature.memory"),
                sm_mhz=self._integer(row, "clocks.sm"),
                memory_mhz=self._integer(row, "clocks.mem"),
                throttle_mask=int(mask, 16) if re.match(r"0x[0-9a-fA-F]+$", mask) else None,
                pcie_gen=self._integer(row, "pcie.link.gen.current"),
                pcie_width=self._integer(row, "pcie.link.width.current"),
                ecc_uncorrected=self._integer(row, "ecc.errors.uncorrected.volatile.total"),
            )
            out.append([sample[name] for name in SAMPLE_FIELDS])
        return out, errors

    def processes(self, graphics: bool) -> List[List[Any]]:
        """Return memory by GPU and process as [gpu, pid, bytes or None]."""
        out = []
        for row in self._csv("--query-compute-apps=gpu_uuid,pid,used_memory"):
            if len(row) == 3 and row[0] in self._by_uuid and row[1].isdigit():
                used = int(row[2]) << 20 if row[2].isdigit() else None
                out.append([self._by_uuid[row[0]], int(row[1]), used])
        return out

    def power_limits(self) -> List[Optional[float]]:
        """Return the power limit of each GPU in watts, None where unknown."""
        return [self._number(row, "power.limit") for row in self._rows]

    def persistence(self) -> Optional[bool]:
        """Return whether the driver of every GPU stays loaded without a client; None where unknown."""
        return self._persistence

    def close(self) -> None:
        """Do nothing: no resource is held."""
