"""Read GPUs through NVML."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from .base import Json
from .gpu_base import SAMPLE_FIELDS, GpuError, NoGpus, numa_node_of

_NVML_NEVER = frozenset((2, 3, 4, 13, 25, 26))
"""NVML errors that are permanent: not supported, no permission, function not found and the like."""
_NVML_LOST = frozenset((15, 16, 28))
_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_NVLINK_TX, _FIELD_NVLINK_RX = 138, 139
_FIELD_PCIE_TX, _FIELD_PCIE_RX = 197, 198
_PCIE = (_FIELD_PCIE_RX, _FIELD_PCIE_TX)
_NVLINK = (_FIELD_NVLINK_RX, _FIELD_NVLINK_TX)
NVLINK_TURNS = 2
"""Traffic is read in turns; one of so many turns reads the NVLinks too."""
IDLE_S = 3.0
"""Seconds at 0 % after which traffic of the time before is no longer shown; between two requests it stays."""
LINK_EVERY_S = 5.0
"""Seconds between readings of PCIe generation and width, which change slowly with the load."""
ECC_EVERY_S = 30.0
"""Seconds between readings of ECC errors. They take a millisecond per GPU, and the kernel log tells earlier."""
_ALL_LINKS = 0xFFFFFFFF
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def words(value: Any) -> str:
    """Return a text of NVML, which old bindings return as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class NvmlGpus:
    """Reads GPUs through a pynvml module of any version."""

    EVERY_S = 0.1

    def __init__(self, module: Any, source: str) -> None:
        self.source = source
        self._n = module
        self._handles: List[Any] = []
        self._failed: Dict[int, str] = {}
        self._never: Set[Tuple[int, str]] = set()
        self._counters: Dict[Tuple[int, int], Tuple[float, int]] = {}
        self._fields: Dict[Tuple[int, Tuple[int, ...]], List[Any]] = {}
        self._traffic: Dict[Tuple[int, Tuple[int, ...]], Tuple[float, float, List[Optional[int]]]] = {}
        self._idle_since: Dict[int, float] = {}
        self._turn = 0
        self._seldom: Dict[Tuple[int, str], Tuple[float, Any]] = {}
        self._graphics: Dict[Tuple[int, int], Optional[int]] = {}
        try:
            module.nvmlInit()
        except Exception as e:
            code = getattr(e, "value", None)
            if code in (9, 12):
                raise NoGpus("no-gpu", "no NVIDIA driver is loaded (%s)" % e) from None
            if code == 18:
                text = "the driver was updated while loaded; reboot the host or reload the driver (%s)" % e
                raise NoGpus("nvml-error", text) from None
            raise NoGpus("nvml-error", "NVML does not start: %s" % e) from None
        for index in range(module.nvmlDeviceGetCount()):
            try:
                self._handles.append(module.nvmlDeviceGetHandleByIndex(index))
            except Exception as e:
                self._handles.append(None)
                self._failed[index] = str(e)
        if not self._handles:
            raise NoGpus("no-gpu", "the NVIDIA driver is loaded but sees no GPU")

    def _ask(self, gpu: int, name: str, *args: Any) -> Any:
        """Return the result of an NVML function for a GPU; None where unsupported. Raises GpuError for a lost GPU."""
        if (gpu, name) in self._never:
            return None
        function = getattr(self._n, name, None)
        if function is None:
            self._never.add((gpu, name))
            return None
        try:
            return function(self._handles[gpu], *args)
        except self._n.NVMLError as e:
            code = getattr(e, "value", None)
            if code in _NVML_NEVER:
                self._never.add((gpu, name))
            elif code in _NVML_LOST:
                raise GpuError(str(e), True) from None
            return None
        except (AttributeError, TypeError, ValueError):
            self._never.add((gpu, name))  # the binding is older or newer than any this was written for
            return None

    def _memory(self, gpu: int) -> Any:
        v2 = getattr(self._n, "nvmlMemory_v2", None)
        if v2 is not None and (gpu, "v2") not in self._never:
            try:
                # Version 2 leaves the driver's reserve out of "used", as nvidia-smi does.
                return self._n.nvmlDeviceGetMemoryInfo(self._handles[gpu], version=v2)
            except (self._n.NVMLError, TypeError, AttributeError) as e:
                if getattr(e, "value", None) in _NVML_LOST:
                    raise GpuError(str(e), True) from None
                self._never.add((gpu, "v2"))
        try:
            return self._n.nvmlDeviceGetMemoryInfo(self._handles[gpu])
        except self._n.NVMLError as e:
            code = getattr(e, "value", None)
            if code in _NVML_NEVER:
                return None
            raise GpuError(str(e), code in _NVML_LOST or code == 999) from None

    def table(self) -> Json:
        """Return the `gpu_info` line, which holds what does not change."""
        n = self._n
        event: Json = {"t": "gpu_info", "source": self.source, "gpus": []}
        try:
            event["driver"] = words(n.nvmlSystemGetDriverVersion())
            cuda = int(n.nvmlSystemGetCudaDriverVersion())
            event["cuda"] = "%d.%d" % (cuda // 1000, cuda % 1000 // 10)
        except (n.NVMLError, AttributeError):
            pass
        for gpu in range(len(self._handles)):
            try:
                event["gpus"].append(self._info(gpu))
            except GpuError as e:
                self._failed[gpu] = str(e)
                event["gpus"].append({"index": gpu, "uuid": "", "name": "unreadable GPU"})
        event["topology"] = self._topology(event["gpus"])
        if self._failed:
            event["reason"] = "; ".join("GPU %d: %s" % item for item in sorted(self._failed.items()))
        return event

    def _info(self, gpu: int) -> Json:
        if self._handles[gpu] is None:
            raise GpuError(self._failed[gpu], True)
        memory = self._memory(gpu)
        pci = self._ask(gpu, "nvmlDeviceGetPciInfo")
        bus_id = words(pci.busId) if pci is not None else None
        capability = self._ask(gpu, "nvmlDeviceGetCudaComputeCapability")
        mig = self._ask(gpu, "nvmlDeviceGetMigMode")
        return {
            "index": gpu,
            "uuid": words(self._ask(gpu, "nvmlDeviceGetUUID") or ""),
            "name": words(self._ask(gpu, "nvmlDeviceGetName") or "NVIDIA GPU"),
            "memory_total_bytes": int(memory.total) if memory is not None else None,
            "bus_id": bus_id,
            "power_limit_w": self._power_limit(gpu),
            "pcie_gen_max": self._ask(gpu, "nvmlDeviceGetMaxPcieLinkGeneration"),
            "pcie_width_max": self._ask(gpu, "nvmlDeviceGetMaxPcieLinkWidth"),
            "nvlink_count": self._links(gpu),
            "numa_node": numa_node_of(bus_id) if bus_id else None,
            "compute_capability": "%d.%d" % tuple(capability) if capability else None,
            "mig": bool(mig and mig[0] == 1),
        }

    def _links(self, gpu: int) -> Optional[int]:
        if not hasattr(self._n, "nvmlDeviceGetNvLinkState"):
            return None
        count = 0
        for link in range(36):
            try:
                count += int(self._n.nvmlDeviceGetNvLinkState(self._handles[gpu], link)) == 1
            except self._n.NVMLError as e:
                code = getattr(e, "value", None)
                if code in _NVML_LOST:
                    raise GpuError(str(e), True) from None
                if code not in (2, 3):  # this is beyond the last link, or the GPU has none
                    return count or None
                break
        return count

    def _topology(self, gpus: List[Json]) -> Optional[List[List[str]]]:
        count = len(self._handles)
        if count < 2 or not hasattr(self._n, "nvmlDeviceGetTopologyCommonAncestor"):
            return None
        matrix = [["X" if i == j else "?" for j in range(count)] for i in range(count)]
        for i in range(count):
            for j in range(i + 1, count):
                matrix[i][j] = matrix[j][i] = self._path(i, j, gpus)
        return matrix

    def _path(self, i: int, j: int, gpus: List[Json]) -> str:
        if self._handles[i] is None or self._handles[j] is None:
            return "?"
        links = gpus[i].get("nvlink_count")
        try:
            if links and self._ask(i, "nvmlDeviceGetP2PStatus", self._handles[j], 2) == 0:
                return "NV%d" % (self._direct_links(i, gpus[j].get("bus_id"), links) or links)
            return _ANCESTORS.get(self._ask(i, "nvmlDeviceGetTopologyCommonAncestor", self._handles[j]), "?")
        except GpuError:
            return "?"

    def _direct_links(self, gpu: int, bus_id: Optional[str], links: int) -> int:
        """Return the number of links that end at that other GPU; none do where a switch is between."""
        count = 0
        for link in range(36):
            try:
                pci = self._n.nvmlDeviceGetNvLinkRemotePciInfo(self._handles[gpu], link)
            except (self._n.NVMLError, AttributeError):
                if link >= links:
                    break
                continue
            count += words(pci.busId).lower() == (bus_id or "").lower()
        return count

    def samples(self) -> Tuple[List[List[Any]], Dict[int, GpuError]]:
        """Read every GPU; return the samples, and the errors of GPUs that could not be read, by index."""
        out: List[List[Any]] = []
        errors: Dict[int, GpuError] = {}
        for gpu in range(len(self._handles)):
            try:
                if self._handles[gpu] is None:
                    raise GpuError(self._failed[gpu], True)
                out.append(self._sample(gpu))
            except GpuError as e:
                errors[gpu] = e
                out.append([gpu] + [None] * (len(SAMPLE_FIELDS) - 2) + [str(e)])
        return out, errors

    def _sample(self, gpu: int) -> List[Any]:
        ask = self._ask
        memory = self._memory(gpu)
        rates = ask(gpu, "nvmlDeviceGetUtilizationRates")
        power = ask(gpu, "nvmlDeviceGetPowerUsage")
        throttle = ask(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
        if throttle is None:
            throttle = ask(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
        if rates is not None and rates.gpu == 0:
            self._idle_since.setdefault(gpu, time.monotonic())
        else:
            self._idle_since.pop(gpu, None)
        warm = self._field_values(gpu, (_FIELD_MEMORY_TEMPERATURE,))
        return [
            gpu,
            int(memory.used) if memory is not None else None,
            rates.gpu / 100.0 if rates is not None else None,
            rates.memory / 100.0 if rates is not None else None,
            round(power / 1000.0, 1) if power is not None else None,
            ask(gpu, "nvmlDeviceGetTemperature", 0),
            warm.get(_FIELD_MEMORY_TEMPERATURE) or None,
            ask(gpu, "nvmlDeviceGetClockInfo", 1),
            ask(gpu, "nvmlDeviceGetClockInfo", 2),
            throttle,
            *self._traffic_of(gpu, _PCIE),
            *self._traffic_of(gpu, _NVLINK),
            self._ask_seldom(gpu, LINK_EVERY_S, "nvmlDeviceGetCurrPcieLinkGeneration"),
            self._ask_seldom(gpu, LINK_EVERY_S, "nvmlDeviceGetCurrPcieLinkWidth"),
            self._ask_seldom(gpu, ECC_EVERY_S, "nvmlDeviceGetTotalEccErrors", 1, 0),
            None,
        ]

    def _ask_seldom(self, gpu: int, every_s: float, name: str, *args: Any) -> Any:
        """Return the result of a slow NVML function whose value rarely changes, at most `every_s` seconds old."""
        now = time.monotonic()
        at, value = self._seldom.get((gpu, name), (-1e9, None))
        if now - at >= every_s:
            value = self._ask(gpu, name, *args)
            self._seldom[gpu, name] = (now, value)
        return value

    def _field_values(self, gpu: int, fields: Tuple[int, ...]) -> Dict[int, int]:
        """Return the values of NVML fields, all in one call.

        Fields that a GPU does not know are not requested again.
        """
        wanted = self._fields.get((gpu, fields))
        if wanted is None:
            links = (_FIELD_NVLINK_TX, _FIELD_NVLINK_RX)
            wanted = self._fields[gpu, fields] = [(field, _ALL_LINKS if field in links else 0) for field in fields]
        values = self._ask(gpu, "nvmlDeviceGetFieldValues", wanted) if wanted else None
        out: Dict[int, int] = {}
        if values is None:
            return out
        known = []
        for asked, value in zip(wanted, values):  # noqa: B905 - Python 3.8 has no strict
            if value.nvmlReturn == 0:
                part = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[value.valueType]
                out[asked[0]] = int(getattr(value.value, part))
            if value.nvmlReturn not in _NVML_NEVER:
                known.append(asked)
        self._fields[gpu, fields] = known
        return out

    def _rate(self, gpu: int, field: int, fields: Dict[int, int], now: float) -> Optional[int]:
        """Return the rate of a counter in bytes per second; None at the first reading, and when it wrapped."""
        value = fields.get(field)
        if value is None:
            return None
        before = self._counters.get((gpu, field))
        self._counters[gpu, field] = (now, value)
        if before is None or value < before[1] or now <= before[0]:
            return None
        unit = 1024 if field in (_FIELD_NVLINK_RX, _FIELD_NVLINK_TX) else 1
        return int((value - before[1]) * unit / (now - before[0]))

    def traffic(self) -> None:
        """Read the traffic of one GPU, the next one at each call; at every other call also that of a GPU's NVLinks.

        It costs more than all else together: 0.3 ms for the PCIe counters of one GPU, 1.5 ms for its NVLinks on a host
        with two GPUs and 3.5 ms with four; without counters 20 ms per direction, in which the driver watches the bus.
        """
        self._turn += 1
        count = len(self._handles)
        self._read_traffic(self._turn % count, _PCIE)
        if self._turn % NVLINK_TURNS == 0:
            self._read_traffic(self._turn // NVLINK_TURNS % count, _NVLINK)

    def _read_traffic(self, gpu: int, counters: Tuple[int, ...]) -> None:
        if self._handles[gpu] is None:
            return
        try:
            fields = self._field_values(gpu, counters)
            now = time.monotonic()
            rates = [self._rate(gpu, field, fields, now) for field in counters]
            slow = None
            if counters is _PCIE and _FIELD_PCIE_RX not in fields:
                slow = [self._ask(gpu, "nvmlDeviceGetPcieThroughput", direction) for direction in (1, 0)]
                rates = [value * 1000 if value is not None else None for value in slow]
        except GpuError:
            return
        # A counter's rate is that of the time since its last reading, one that was asked for is that of now.
        before = self._traffic.get((gpu, counters), (now, now, []))[1]
        self._traffic[gpu, counters] = (before if slow is None else now, time.monotonic(), rates)

    def _traffic_of(self, gpu: int, counters: Tuple[int, ...]) -> List[Optional[int]]:
        """Return bytes per second in and out; None each where the reading is older than two rounds.

        None also where the GPU has become idle and the reading is still of the time before: a dead rank moves nothing.
        """
        began, at, rates = self._traffic.get((gpu, counters), (-1e9, -1e9, []))
        now = time.monotonic()
        idle_since = self._idle_since.get(gpu, now)
        worked = began < idle_since and now - idle_since >= IDLE_S
        fresh = now - at <= 10.0 + 2 * NVLINK_TURNS * len(self._handles)
        return rates if rates and fresh and not worked else [None] * len(counters)

    def processes(self, graphics: bool) -> List[List[Any]]:
        """Return memory by GPU and process as [gpu, pid, bytes or None]."""
        if graphics:  # asked seldom: it takes milliseconds on some drivers, and servers rarely have such processes
            self._graphics = self._users("nvmlDeviceGetGraphicsRunningProcesses")
        users = {**self._graphics, **self._users("nvmlDeviceGetComputeRunningProcesses")}
        return [[gpu, pid, used] for (gpu, pid), used in sorted(users.items())]

    def _users(self, name: str) -> Dict[Tuple[int, int], Optional[int]]:
        out: Dict[Tuple[int, int], Optional[int]] = {}
        for gpu, handle in enumerate(self._handles):
            try:
                found = self._ask(gpu, name) if handle is not None else None
            except GpuError:
                continue
            for process in found or ():
                out[gpu, int(process.pid)] = process.usedGpuMemory
        return out

    def power_limits(self) -> List[Optional[float]]:
        """Return the power limit of each GPU in watts, None where unknown."""
        return [self._power_limit(gpu) if handle is not None else None for gpu, handle in enumerate(self._handles)]

    def _power_limit(self, gpu: int) -> Optional[float]:
        try:
            limit = self._ask(gpu, "nvmlDeviceGetEnforcedPowerLimit")
        except GpuError:
            return None
        return limit / 1000.0 if limit is not None else None

    def persistence(self) -> Optional[bool]:
        """Return whether the driver of every GPU stays loaded without a client; None where unknown."""
        try:
            modes = [self._ask(gpu, "nvmlDeviceGetPersistenceMode") for gpu in range(len(self._handles))]
        except GpuError:
            return None
        known = [mode for mode in modes if mode is not None]
        return all(known) if known else None

    def close(self) -> None:
        """Release NVML; it may be initialised again."""
        with contextlib.suppress(Exception):
            self._n.nvmlShutdown()
