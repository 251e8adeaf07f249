"""Read the GPUs in the best way available."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Tuple

from .base import PROC, Json, boot_time, until_beat, which
from .gpu_base import SAMPLE_FIELDS, Gpus, NoGpus
from .gpu_binding import binding_in, driver_hints, give_memory_back, load_module, trusted_source
from .gpu_nvml import NVLINK_TURNS, NvmlGpus
from .gpu_smi import SmiGpus
from .installation import own_package_folders
from .processes import describe_process, same_mounts

if TYPE_CHECKING:
    from .probe import Probe

HANG_S = 3.0


class GpuReader:
    """Reads the GPUs in threads of its own, so that a driver that hangs stalls nothing else."""

    LIMITS_EVERY_S = 60.0

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.gpus: Optional[Gpus] = None
        self.table: Json = {}
        self.source_given: Optional[bytes] = None
        self.given = threading.Event()
        self.processes_due = threading.Event()
        self.users: Dict[int, Set[int]] = {}
        """PIDs that hold GPU memory, each with the indexes of its GPUs."""
        self.held: Optional[List[List[Any]]] = None
        """The driver's newest list of processes: GPU, PID, bytes. None before the first."""
        self.held_at = -1e9
        """Monotonic time at which that list was asked for."""
        self._busy_since = 0.0
        self._hung = False
        self._described: Set[int] = set()
        self._procs_at = -1e9
        self._graphics_at = -1e9
        self._limits_at = time.monotonic()

    # -- finding a way --------------------------------------------------------------------------------------------

    def _candidates(self) -> Iterator[Tuple[str, bytes]]:
        """Yield path and source of trusted bindings beside engines and beside our own interpreter."""
        servers = [server for server in self.probe.live_servers() if same_mounts(server.leader.pid)]
        folders = [folder for server in servers for folder in server.site_folders] + own_package_folders()
        for path in filter(None, map(binding_in, dict.fromkeys(folders))):
            source = trusted_source(path)
            if source is not None:
                yield path, source

    def _nvml(self, module: Any, source: str) -> NvmlGpus:
        with self._driver_asked():
            return NvmlGpus(module, source)

    def _way(self) -> Gpus:
        """Return the best way to read GPUs. Raises NoGpus."""
        trouble: Optional[NoGpus] = None
        for path, text in self._candidates():
            try:
                return self._nvml(load_module(text, path), "pynvml " + re.sub(r"^%s/\d+/root" % PROC, "", path))
            except NoGpus as e:
                trouble = e
                break  # the binding works and the driver does not: another binding would report the same
            except Exception as e:
                self.probe.log("binding %s: %s" % (path, e))
        if trouble is None and driver_hints():
            source = self.source_given
            if source is None:
                self.probe.out.put({"t": "need", "what": "nvml"})
                self.given.wait(5.0)
                source = self.source_given
            if source is not None:
                try:
                    return self._nvml(load_module(source), "sent")
                except NoGpus as e:
                    trouble = e
                except Exception as e:
                    self.probe.log("sent binding: %s" % e)
        smi = which("nvidia-smi")
        if smi is not None:
            with self._driver_asked():
                return SmiGpus(self.probe.children, smi)
        if trouble is not None:
            raise trouble
        if driver_hints():
            raise NoGpus("nvml-missing", "there is a driver, but neither an NVML binding nor nvidia-smi")
        raise NoGpus("no-gpu", "no NVIDIA driver was found on this host")

    # -- reading --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read until the probe ends."""
        while True:
            try:
                gpus = self.gpus = self._way()
                with self._driver_asked():
                    self.table = gpus.table()
                self.probe.out.put(self.table)
                give_memory_back()
                for code in ("no-gpu", "nvml-error", "nvml-missing"):
                    self.probe.problems.clear(code)
                if isinstance(gpus, NvmlGpus):
                    self.probe.thread(partial(self._traffic, gpus), "traffic")
                self._loop(gpus)
            except NoGpus as e:
                self._nothing(e)
            except Exception as e:
                self.probe.fault("gpu", e)
                self._nothing(NoGpus("nvml-error", "the GPUs are not read, after a fault of the probe"))
            if self.gpus is not None:
                self.gpus.close()
                self.gpus = None
            if self.probe.pause(15.0):
                return

    def _nothing(self, trouble: NoGpus) -> None:
        self.probe.problems.note(trouble.code, "", str(trouble))
        table: Json = {"t": "gpu_info", "source": None, "gpus": [], "reason": str(trouble)}
        if table != self.table:
            self.table = table
            self.probe.out.put(table)

    @property
    def silent(self) -> bool:
        """Return whether no samples come, because there are no GPUs or the driver does not answer."""
        since = self._busy_since
        return self.gpus is None or bool(since and time.monotonic() - since > 2.0)

    @contextlib.contextmanager
    def _driver_asked(self) -> Iterator[None]:
        """Mark a call that the driver may not answer; `watch` checks how long it takes."""
        self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = 0.0

    def watch(self) -> None:
        """Report when the driver hangs, and when it answers again. Called by the conductor."""
        since = self._busy_since
        hung = since > 0 and time.monotonic() - since > HANG_S
        if hung and not self._hung:
            self.probe.problems.note("nvml-hang", "", "the GPU driver has not answered for %g s" % HANG_S)
        if self._hung and not hung:
            self.probe.problems.clear("nvml-hang")
        self._hung = hung

    def _loop(self, gpus: Gpus) -> None:
        known_bad: Set[int] = set()
        while True:
            with self._driver_asked():
                samples, errors = gpus.samples()
            self.probe.out.put_sample({"t": "gpus", "samples": samples})
            working = {sample[0] for sample in samples if sample[SAMPLE_FIELDS.index("utilization_ratio")]}
            for server in self.probe.live_servers():
                if any(working & self.users.get(pid, set()) for pid in list(server.members)):
                    server.works()
            for gpu in known_bad - set(errors):
                self.probe.problems.clear("gpu-lost", "GPU %d" % gpu)
                self.probe.problems.clear("nvml-error", "GPU %d" % gpu)
            for gpu, error in errors.items():
                self.probe.problems.note("gpu-lost" if error.lost else "nvml-error", "GPU %d" % gpu, str(error))
            known_bad = set(errors)
            if errors and len(errors) == len(samples) and not any(e.lost for e in errors.values()):
                raise NoGpus("nvml-error", str(next(iter(errors.values()))))  # the driver was unloaded: start anew
            sampled = time.monotonic()
            if sampled - self._procs_at >= 4.5:
                self._processes(gpus, sampled)
            if sampled - self._limits_at >= self.LIMITS_EVERY_S:
                self._limits_at = sampled
                self._look_at_limits(gpus)
            due = time.monotonic() + until_beat(max(self.probe.interval_s, gpus.EVERY_S))
            while not self.probe.ending:
                now = time.monotonic()
                left = due - now
                if self.processes_due.is_set() and now - self._procs_at >= 0.5:
                    self.processes_due.clear()
                    self._processes(gpus, now)
                elif left <= 0.001:
                    break
                elif self.processes_due.is_set():
                    self.probe.pause(min(left, 0.1))
                else:
                    self.processes_due.wait(left)
            if self.probe.ending:
                return

    def _look_at_limits(self, gpus: Gpus) -> None:
        """Send the table again when an operator changed a power limit."""
        with self._driver_asked():
            limits = gpus.power_limits()
        infos = [
            {**gpu, "power_limit_w": limit} if limit is not None else gpu
            for gpu, limit in zip(self.table["gpus"], limits)  # noqa: B905 - Python 3.8 has no strict
        ]
        if infos != self.table["gpus"]:
            self.table = {**self.table, "gpus": infos}
            self.probe.out.put(self.table)

    def _processes(self, gpus: Gpus, now: float) -> None:
        self._procs_at = now
        graphics = now - self._graphics_at > 60.0
        if graphics:
            self._graphics_at = now
        with self._driver_asked():
            processes = gpus.processes(graphics)
        self.held, self.held_at = processes, now
        users: Dict[int, Set[int]] = {}
        for gpu, pid, _ in processes:
            users.setdefault(pid, set()).add(gpu)
        self.users = users
        pids = set(users)
        self._described &= pids
        boot = boot_time()
        infos = [describe_process(pid, boot) for pid in sorted(pids - self._described)]
        if self.probe.out.congested and not infos:
            return
        self._described |= pids
        self.probe.out.put({"t": "gpu_procs", "processes": processes, "infos": infos})

    def _traffic(self, gpus: NvmlGpus) -> None:
        # Counters yield a rate only when read twice: first all GPUs in quick succession, then one per second.
        hurry = 2 * NVLINK_TURNS * len(self.table["gpus"])
        while gpus is self.gpus and not self.probe.pause(0.1 if hurry > 0 else until_beat(1.0)):
            gpus.traffic()
            hurry -= 1
