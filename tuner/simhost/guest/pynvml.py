# mypy: ignore-errors
# ruff: noqa: D103, N802, N816, UP031, PTH116
"""NVML of the simulated host, with the names of nvidia-ml-py; reads the simulated driver's state file.

It is copied into the site-packages of the simulated server's interpreter, where a probe looks for the real one. So it
runs on Python 3.8 and imports only the standard library.
"""

import json
import os
import threading
import time

# Resolved once: a probe loads this module through the server's /proc/PID/root, a path that ends with the process.
_STATE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "gpu-state.json")  # noqa: PTH118, PTH120

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_INSUFFICIENT_SIZE = 7
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_UNKNOWN = 999

NVML_TEMPERATURE_GPU = 0
NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
NVML_CLOCK_GRAPHICS = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_CLOCK_VIDEO = 3
NVML_PCIE_UTIL_TX_BYTES = 0
NVML_PCIE_UTIL_RX_BYTES = 1
NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_AGGREGATE_ECC = 1
NVML_NVLINK_MAX_LINKS = 36
NVML_FEATURE_DISABLED = 0
NVML_FEATURE_ENABLED = 1
NVML_DEVICE_MIG_DISABLE = 0
NVML_DEVICE_MIG_ENABLE = 1
NVML_TOPOLOGY_INTERNAL = 0
NVML_TOPOLOGY_SINGLE = 10
NVML_TOPOLOGY_MULTIPLE = 20
NVML_TOPOLOGY_HOSTBRIDGE = 30
NVML_TOPOLOGY_NODE = 40
NVML_TOPOLOGY_SYSTEM = 50
NVML_P2P_CAPS_INDEX_NVLINK = 2
NVML_P2P_STATUS_OK = 0
NVML_P2P_STATUS_NOT_SUPPORTED = 5
NVML_FI_DEV_MEMORY_TEMP = 82
NVML_FI_DEV_NVLINK_LINK_COUNT = 91
NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197
NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
nvmlClocksEventReasonGpuIdle = 0x1
nvmlClocksThrottleReasonGpuIdle = 0x1
nvmlClocksEventReasonSwPowerCap = 0x4
nvmlClocksThrottleReasonSwPowerCap = 0x4
nvmlMemory_v2 = 0x02000028

_MESSAGES = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    999: "Unknown Error",
}


class NVMLError(Exception):
    """An NVML return code."""

    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return _MESSAGES.get(self.value, "NVML Error with code %d" % self.value)


def _subclass(code):
    def make(self, value=code):
        NVMLError.__init__(self, code)

    return type("NVMLError_" + _MESSAGES[code].replace(" ", ""), (NVMLError,), {"__init__": make})


NVMLError_Uninitialized = _subclass(1)
NVMLError_InvalidArgument = _subclass(2)
NVMLError_NotSupported = _subclass(3)
NVMLError_NoPermission = _subclass(4)
NVMLError_NotFound = _subclass(6)
NVMLError_DriverNotLoaded = _subclass(9)
NVMLError_Timeout = _subclass(10)
NVMLError_LibraryNotFound = _subclass(12)
NVMLError_FunctionNotFound = _subclass(13)
NVMLError_GpuIsLost = _subclass(15)
NVMLError_Unknown = _subclass(999)


class _Struct:
    def __init__(self, **values):
        self.__dict__.update(values)

    def __repr__(self):
        return repr(self.__dict__)


class _Handle:
    """A device handle."""

    def __init__(self, index):
        self.index = index


class _FieldValue(_Struct):
    pass


class _State:
    """The driver's newest state; read again when the file was replaced."""

    def __init__(self):
        self.stamp = None
        self.data = None
        self.users = 0


_state = _State()


def _read():
    if not _state.users:
        raise NVMLError_Uninitialized()
    try:
        found = os.stat(_STATE)
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp != _state.stamp:
            with open(_STATE) as file:  # noqa: PTH123
                _state.data = json.load(file)
            _state.stamp = stamp
    except (OSError, ValueError):
        # A driver that has answered is not unloaded by one failed read: its last state is used.
        if _state.data is None:
            raise NVMLError_DriverNotLoaded() from None
    mode = _state.data.get("mode")
    if mode == "hang":
        threading.Event().wait()
    if mode == "error":
        raise NVMLError_Unknown()
    return _state.data


def _gpu(handle):
    gpu = _read()["gpus"][handle.index]
    if gpu.get("lost"):
        raise NVMLError_GpuIsLost()
    return gpu


def nvmlInit():
    _state.users += 1
    try:
        if _read().get("mode") == "missing":
            raise NVMLError_DriverNotLoaded()
    except NVMLError:
        _state.users -= 1
        raise


def nvmlInitWithFlags(flags):
    nvmlInit()


def nvmlShutdown():
    if not _state.users:
        raise NVMLError_Uninitialized()
    _state.users -= 1


def nvmlErrorString(code):
    return _MESSAGES.get(code, "Unknown Error")


def nvmlSystemGetDriverVersion():
    return _read()["driver"]


def nvmlSystemGetNVMLVersion():
    return _read()["nvml"]


def nvmlSystemGetCudaDriverVersion():
    return _read()["cuda"]


nvmlSystemGetCudaDriverVersion_v2 = nvmlSystemGetCudaDriverVersion


def nvmlDeviceGetCount():
    return len(_read()["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    gpus = _read()["gpus"]
    if not 0 <= index < len(gpus):
        raise NVMLError_InvalidArgument()
    if gpus[index].get("lost"):
        raise NVMLError_GpuIsLost()
    return _Handle(index)


def nvmlDeviceGetHandleByUUID(uuid):
    if isinstance(uuid, bytes):
        uuid = uuid.decode()
    for index, gpu in enumerate(_read()["gpus"]):
        if gpu["uuid"] == uuid:
            return _Handle(index)
    raise NVMLError_NotFound()


def nvmlDeviceGetHandleByPciBusId(bus_id):
    if isinstance(bus_id, bytes):
        bus_id = bus_id.decode()
    for index, gpu in enumerate(_read()["gpus"]):
        if gpu["bus_id"].lower()[-12:] == bus_id.lower()[-12:]:
            return _Handle(index)
    raise NVMLError_NotFound()


def nvmlDeviceGetIndex(handle):
    return handle.index


def nvmlDeviceGetMinorNumber(handle):
    return _gpu(handle)["index"]


def nvmlDeviceGetName(handle):
    return _gpu(handle)["name"]


def nvmlDeviceGetUUID(handle):
    return _gpu(handle)["uuid"]


def nvmlDeviceGetSerial(handle):
    return _gpu(handle)["serial"]


def nvmlDeviceGetMemoryInfo(handle, version=None):
    gpu = _gpu(handle)
    free = gpu["total"] - gpu["reserved"] - gpu["used"]
    if version is None:
        return _Struct(total=gpu["total"], free=free, used=gpu["used"] + gpu["reserved"])
    return _Struct(version=version, total=gpu["total"], reserved=gpu["reserved"], free=free, used=gpu["used"])


def nvmlDeviceGetBAR1MemoryInfo(handle):
    total = 128 << 30
    _gpu(handle)
    return _Struct(bar1Total=total, bar1Used=8 << 20, bar1Free=total - (8 << 20))


def nvmlDeviceGetUtilizationRates(handle):
    gpu = _gpu(handle)
    return _Struct(gpu=gpu["util"], memory=gpu["mem_util"])


def nvmlDeviceGetPowerUsage(handle):
    return _gpu(handle)["power_mw"]


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return _gpu(handle)["limit_mw"]


nvmlDeviceGetPowerManagementLimit = nvmlDeviceGetEnforcedPowerLimit
nvmlDeviceGetPowerManagementDefaultLimit = nvmlDeviceGetEnforcedPowerLimit


def nvmlDeviceGetPowerManagementLimitConstraints(handle):
    return [150000, _gpu(handle)["limit_mw"]]


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return _gpu(handle)["energy_mj"]


def nvmlDeviceGetTemperature(handle, sensor):
    return _gpu(handle)["temp"]


def nvmlDeviceGetTemperatureV(handle, sensor, version=None):
    return _gpu(handle)["temp"]


def nvmlDeviceGetTemperatureThreshold(handle, threshold):
    _gpu(handle)
    return 95 if threshold == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN else 90


def nvmlDeviceGetFanSpeed(handle):
    return _gpu(handle)["fan"]


def nvmlDeviceGetClockInfo(handle, kind):
    gpu = _gpu(handle)
    return gpu["mem_mhz"] if kind == NVML_CLOCK_MEM else gpu["sm_mhz"]


def nvmlDeviceGetMaxClockInfo(handle, kind):
    gpu = _gpu(handle)
    return gpu["mem_mhz_max"] if kind == NVML_CLOCK_MEM else gpu["sm_mhz_max"]


def nvmlDeviceGetApplicationsClock(handle, kind):
    raise NVMLError_NotSupported()


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    return _gpu(handle)["throttle"]


nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons


def nvmlDeviceGetSupportedClocksEventReasons(handle):
    _gpu(handle)
    return 0x1FF


nvmlDeviceGetSupportedClocksThrottleReasons = nvmlDeviceGetSupportedClocksEventReasons


def nvmlDeviceGetPerformanceState(handle):
    return 1 if _gpu(handle)["sm_mhz"] > 1000 else 8


nvmlDeviceGetPowerState = nvmlDeviceGetPerformanceState


def nvmlDeviceGetPcieThroughput(handle, counter):
    gpu = _gpu(handle)
    return gpu["rx_kb_s"] if counter == NVML_PCIE_UTIL_RX_BYTES else gpu["tx_kb_s"]


def nvmlDeviceGetCurrPcieLinkGeneration(handle):
    return _gpu(handle)["pcie_gen"]


def nvmlDeviceGetCurrPcieLinkWidth(handle):
    return _gpu(handle)["pcie_width"]


def nvmlDeviceGetMaxPcieLinkGeneration(handle):
    return _gpu(handle)["pcie_gen_max"]


def nvmlDeviceGetMaxPcieLinkWidth(handle):
    return _gpu(handle)["pcie_width_max"]


def nvmlDeviceGetPcieReplayCounter(handle):
    _gpu(handle)
    return 0


def nvmlDeviceGetPciInfo(handle):
    bus_id = _gpu(handle)["bus_id"]
    domain, bus, device = bus_id.split(".")[0].split(":")
    return _Struct(
        busIdLegacy=bus_id[4:].encode(),
        domain=int(domain, 16),
        bus=int(bus, 16),
        device=int(device, 16),
        pciDeviceId=0x2BB110DE,
        pciSubSystemId=0x204B10DE,
        busId=bus_id.encode(),
    )


nvmlDeviceGetPciInfo_v3 = nvmlDeviceGetPciInfo


def nvmlDeviceGetNumaNodeId(handle):
    return _gpu(handle)["numa"]


def nvmlDeviceGetCudaComputeCapability(handle):
    return tuple(_gpu(handle)["capability"])


def nvmlDeviceGetArchitecture(handle):
    _gpu(handle)
    return 10


def nvmlDeviceGetMigMode(handle):
    _gpu(handle)
    raise NVMLError_NotSupported()


def nvmlDeviceGetPersistenceMode(handle):
    _gpu(handle)
    return NVML_FEATURE_ENABLED


def nvmlDeviceGetComputeMode(handle):
    _gpu(handle)
    return 0


def nvmlDeviceGetEccMode(handle):
    _gpu(handle)
    return [NVML_FEATURE_ENABLED, NVML_FEATURE_ENABLED]


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    return _gpu(handle)["ecc"] if kind == NVML_MEMORY_ERROR_TYPE_UNCORRECTED else 0


def nvmlDeviceGetNvLinkState(handle, link):
    _gpu(handle)
    raise NVMLError_NotSupported()


nvmlDeviceGetNvLinkVersion = nvmlDeviceGetNvLinkState
nvmlDeviceGetNvLinkRemotePciInfo = nvmlDeviceGetNvLinkState


def nvmlDeviceGetP2PStatus(first, second, index):
    _gpu(first)
    return NVML_P2P_STATUS_NOT_SUPPORTED if index == NVML_P2P_CAPS_INDEX_NVLINK else NVML_P2P_STATUS_OK


def nvmlDeviceGetTopologyCommonAncestor(first, second):
    return _read()["topology"][first.index][second.index]


def nvmlDeviceGetFieldValues(handle, fields):
    gpu = _gpu(handle)
    out = []
    for field in fields:
        ident = field[0] if isinstance(field, (tuple, list)) else field
        known = {
            NVML_FI_DEV_MEMORY_TEMP: gpu["mem_temp"],
            NVML_FI_DEV_NVLINK_LINK_COUNT: 0,
            NVML_FI_DEV_PCIE_COUNT_TX_BYTES: _counted(gpu, "tx"),
            NVML_FI_DEV_PCIE_COUNT_RX_BYTES: _counted(gpu, "rx"),
        }
        code = NVML_SUCCESS if ident in known else NVML_ERROR_NOT_SUPPORTED
        number = known.get(ident, 0)
        value = _Struct(uiVal=number, ulVal=number, ullVal=number, siVal=number, sllVal=number, dVal=float(number))
        kind = 3 if ident in (NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES) else 1
        out.append(_FieldValue(fieldId=ident, scopeId=0, nvmlReturn=code, valueType=kind, value=value, timestamp=0))
    return out


def _counted(gpu, way):
    """Return the bytes that went over PCIe so far: those of the last state, and what its rate adds since."""
    since = max(0.0, time.monotonic() - _read()["at"])
    return int(gpu[way + "_bytes"] + gpu[way + "_kb_s"] * 1000 * since)


def nvmlDeviceGetComputeRunningProcesses(handle):
    _gpu(handle)
    return [
        _Struct(pid=p["pid"], usedGpuMemory=p["used"], gpuInstanceId=0xFFFFFFFF, computeInstanceId=0xFFFFFFFF)
        for p in _read()["processes"]
        if p["gpu"] == handle.index
    ]


nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses
nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses


def nvmlDeviceGetGraphicsRunningProcesses(handle):
    _gpu(handle)
    return []


nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses
nvmlDeviceGetGraphicsRunningProcesses_v3 = nvmlDeviceGetGraphicsRunningProcesses


def nvmlDeviceGetProcessUtilization(handle, since):
    _gpu(handle)
    raise NVMLError_NotFound()


def nvmlSystemGetProcessName(pid):
    raise NVMLError_NotFound()
