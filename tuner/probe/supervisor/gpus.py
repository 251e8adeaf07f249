"""Memory of the GPUs, read in a helper: by the driver's own library, an NVML binding, or nvidia-smi."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from ..agent.base import HOST_ROOT, Json, which

MAX_USERS = 256
"""Most processes on one GPU that are asked for."""
_NO_FUNCTION = 13
"""NVML's code for a function that the driver's library does not have."""
_ANSWER: Dict[str, Any] = {}
"""The way to read GPUs that this helper found."""


def work(question: Json) -> Json:
    """Read the GPUs, in the helper.

    Args:
        question: `pid`: a process beside whose Python packages an NVML binding may lie.

    Returns:
        `gpus`: index by UUID; `used`: bytes in use by index; `users`: [index, PID, bytes or None]. With `fault` alone
        where they cannot be read, and with `none` where there is no GPU.
    """
    from ..agent.gpu_base import NoGpus

    way = _ANSWER.get("way")
    try:
        if way is None:
            way = _ANSWER["way"] = _way(int(question["pid"]))
        out: Json = way.read()
    except NoGpus as e:
        return {"none": str(e)} if e.code == "no-gpu" else {"fault": str(e)}
    return out


def _folders(pid: int) -> List[str]:
    """Return the package folders of a process and of our own interpreter."""
    from ..agent.base import PROC, link_of, text_of
    from ..agent.installation import interpreter_of, own_package_folders, site_folders
    from ..agent.processes import environ_of, same_mounts

    out: List[str] = []
    if pid and same_mounts(pid):
        argv = (text_of("%s/%d/cmdline" % (PROC, pid)) or "").rstrip("\0").split("\0")
        env = environ_of(pid) or {}
        out += site_folders(pid, interpreter_of(pid, argv, env, link_of("%s/%d/cwd" % (PROC, pid))), env)
    return out + own_package_folders()


def _way(pid: int) -> Any:
    """Return the best way to read GPUs. Raises NoGpus."""
    from ..agent.gpu_base import NoGpus
    from ..agent.gpu_binding import binding_in, load_module, trusted_source

    trouble = NoGpus("no-gpu", "no NVIDIA driver was found on this host")
    if not HOST_ROOT:
        try:
            return Nvml(_library())
        except NoGpus as e:
            trouble = e
    for path in filter(None, map(binding_in, _folders(pid) if HOST_ROOT or trouble.code != "no-gpu" else ())):
        source = trusted_source(path)
        if source is None:
            continue
        try:
            return Nvml(load_module(source, path))
        except NoGpus as e:
            trouble = e
            break
        except Exception as e:
            trouble = NoGpus("nvml-error", "%s: %s" % (path, e))
    program = which("nvidia-smi")
    if program is not None:
        return Smi(program)
    raise trouble


class Nvml:
    """Reads memory through a module with the functions of pynvml."""

    def __init__(self, module: Any) -> None:
        from ..agent.gpu_base import NoGpus

        self._n = module
        try:
            module.nvmlInit()
            self._handles = [module.nvmlDeviceGetHandleByIndex(i) for i in range(module.nvmlDeviceGetCount())]
            ids = [module.nvmlDeviceGetUUID(handle) for handle in self._handles]
        except Exception as e:
            none = getattr(e, "value", None) in (9, 12)  # the driver is not loaded, or its library is not there
            raise NoGpus("no-gpu" if none else "nvml-error", "NVML: %s" % e) from None
        if not ids:
            raise NoGpus("no-gpu", "the NVIDIA driver sees no GPU")
        self._ids = {(each.decode() if isinstance(each, bytes) else str(each)): i for i, each in enumerate(ids)}

    def read(self) -> Json:
        """Return the memory of all GPUs."""
        used: Dict[str, int] = {}
        users: List[Tuple[int, int, Optional[int]]] = []
        for index, handle in enumerate(self._handles):
            try:
                used[str(index)] = self._used(handle)
                found = self._n.nvmlDeviceGetComputeRunningProcesses(handle)
                users += [(index, int(each.pid), each.usedGpuMemory) for each in found]
            except self._n.NVMLError:
                continue  # a GPU that the driver has lost
        return {"gpus": self._ids, "used": used, "users": users}

    def _used(self, handle: Any) -> int:
        version = getattr(self._n, "nvmlMemory_v2", None)
        if version is not None:
            try:
                return int(self._n.nvmlDeviceGetMemoryInfo(handle, version=version).used)
            except (self._n.NVMLError, TypeError, AttributeError):
                pass
        return int(self._n.nvmlDeviceGetMemoryInfo(handle).used)


class Smi:
    """Reads memory through nvidia-smi."""

    def __init__(self, program: str) -> None:
        from ..agent.children import Children
        from ..agent.gpu_smi import SmiGpus

        self._gpus = SmiGpus(Children(), program)
        self._ids = {gpu["uuid"]: gpu["index"] for gpu in self._gpus.table()["gpus"]}

    def read(self) -> Json:
        """Return the memory of all GPUs. Raises NoGpus."""
        samples, _ = self._gpus.samples()
        used = {str(sample[0]): sample[1] for sample in samples if sample[1] is not None}
        return {"gpus": self._ids, "used": used, "users": self._gpus.processes(False)}


def _library() -> Any:
    """Return the few functions of the driver's own library that are needed, named as in pynvml. Raises NoGpus.

    Executing the whole binding would take longer than the stop of a small server.
    """
    import ctypes

    from ..agent.gpu_base import NoGpus

    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise NoGpus("no-gpu", "no NVIDIA driver was found on this host") from None

    class Memory(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint)] + [
            (n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")
        ]

    class Process(ctypes.Structure):
        _fields_ = [
            ("pid", ctypes.c_uint),
            ("bytes", ctypes.c_ulonglong),
            ("gpu_instance", ctypes.c_uint),
            ("compute_instance", ctypes.c_uint),
        ]

        @property
        def usedGpuMemory(self) -> Optional[int]:  # noqa: N802 - pynvml's name
            """Return its memory in bytes; None where the driver may not tell."""
            return None if self.bytes == (1 << 64) - 1 else int(self.bytes)

    class Failure(Exception):
        def __init__(self, code: int) -> None:
            super().__init__("error %d" % code)
            self.value = code

    def call(name: str, *args: Any) -> None:
        function = getattr(lib, name, None)
        code = int(function(*args)) if function is not None else _NO_FUNCTION
        if code:
            raise Failure(code)

    class Library:
        NVMLError = Failure

        @staticmethod
        def nvmlInit() -> None:  # noqa: N802 - this and the others: pynvml's names
            call("nvmlInit_v2")

        @staticmethod
        def nvmlDeviceGetCount() -> int:  # noqa: N802
            count = ctypes.c_uint()
            call("nvmlDeviceGetCount_v2", ctypes.byref(count))
            return count.value

        @staticmethod
        def nvmlDeviceGetHandleByIndex(index: int) -> Any:  # noqa: N802
            handle = ctypes.c_void_p()
            call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            return handle

        @staticmethod
        def nvmlDeviceGetUUID(handle: Any) -> bytes:  # noqa: N802
            text = ctypes.create_string_buffer(96)
            call("nvmlDeviceGetUUID", handle, text, ctypes.c_uint(96))
            return text.value

        @staticmethod
        def nvmlDeviceGetMemoryInfo(handle: Any) -> Any:  # noqa: N802
            memory = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
            try:
                call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
            except Failure:
                plain = (ctypes.c_ulonglong * 3)()  # total, free, used: a driver before 510
                call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(plain))
                memory.used = plain[2]
            return memory

        @staticmethod
        def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> List[Any]:  # noqa: N802
            count = ctypes.c_uint(MAX_USERS)
            found = (Process * MAX_USERS)()
            arguments = (handle, ctypes.byref(count), ctypes.byref(found))
            try:
                call("nvmlDeviceGetComputeRunningProcesses_v3", *arguments)
            except Failure as e:
                if e.value != _NO_FUNCTION:
                    raise
                call("nvmlDeviceGetComputeRunningProcesses_v2", *arguments)  # a driver before 510, with the same fields
            return list(found[: count.value])

    return Library
