"""GPUs through a binding, wherever it is found, and through nvidia-smi; with all that drivers do."""

from __future__ import annotations

import base64
import json
import os
import py_compile
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.running import NeedNvml, pythons, running, toy_plan, until
from tests.fixtures.proc.tree import ProcTree, make_venv, toy_server
from tuner.domain import events as e

BINDING = (Path(__file__).parents[1] / "fixtures/proc/fake_pynvml.py").read_text()
GIB = 1 << 30


class Driver:
    """What the fake driver does, changed at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set()

    def set(self, **behaviour: Any) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(behaviour))
        new.rename(self.path)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "nvml.json")


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path / "root")
    toy_server(tree, python=make_venv(tmp_path / "venv", binding=BINDING))
    return tree


@pytest.mark.parametrize("python", pythons())
def test_everything_a_gpu_tells(tree: ProcTree, driver: Driver, tmp_path: Path, python: str) -> None:
    driver.set(gpus=4, counters=True, links=6)
    numa = tree.root / "sys/bus/pci/devices/0000:10:00.0"
    numa.mkdir(parents=True)
    (numa / "numa_node").write_text("1\n")
    with running(tree.root, toy_plan(), python=python, FAKE_NVML=str(driver.path)) as probe:
        table = probe.first(e.GpuTable)
        assert table.source == f"pynvml {tmp_path}/venv/lib/python3.11/site-packages/pynvml.py"
        assert (table.driver, table.cuda, table.reason) == ("580.65.06", "13.0", None)
        gpu = table.gpus[0]
        assert (gpu.index, gpu.uuid, gpu.name, gpu.bus_id) == (0, "GPU-0", "Fake GPU", "00000000:10:00.0")
        assert (gpu.memory_total_bytes, gpu.power_limit_w) == (96 * GIB, 600.0)
        assert (gpu.pcie_gen_max, gpu.pcie_width_max, gpu.nvlink_count) == (5, 16, 6)
        assert (gpu.numa_node, table.gpus[1].numa_node) == (1, None)
        assert (gpu.compute_capability, gpu.mig) == ("12.0", False)
        assert table.topology
        assert table.topology[0] == ("X", "NV6", "NV6", "NV6")
        samples = probe.first(e.GpuSamples, lambda x: x.samples[3].nvlink_rx_bytes_s is not None).samples
        one = samples[1]
        assert (one.index, one.memory_used_bytes) == (1, 10 * GIB + 1), "the driver's reserve is not used memory"
        assert (one.utilization_ratio, one.memory_utilization_ratio, one.power_w) == (0.75, 0.3, 123.5)
        assert (one.temperature_c, one.memory_temperature_c, one.sm_mhz, one.memory_mhz) == (55, None, 1980, 2619)
        assert (one.throttle_mask, one.pcie_gen, one.pcie_width, one.ecc_uncorrected, one.error) == (
            4,
            4,
            8,
            None,
            None,
        )
        assert one.nvlink_rx_bytes_s == pytest.approx(4096 * 1024, rel=0.1)
        assert one.nvlink_tx_bytes_s == pytest.approx(2048 * 1024, rel=0.1)
        assert one.pcie_rx_bytes_s == pytest.approx(3_000_000, rel=0.1)
        assert one.pcie_tx_bytes_s == pytest.approx(1_000_000, rel=0.1)


def test_the_paths_between_gpus_without_links(tree: ProcTree, driver: Driver) -> None:
    driver.set(gpus=4)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        table = probe.first(e.GpuTable)
        assert table.topology
        assert table.topology[1] == ("NODE", "X", "SYS", "SYS")
        assert table.gpus[0].nvlink_count == 0


def test_pcie_traffic_without_counters_comes_in_turn(tree: ProcTree, driver: Driver) -> None:
    driver.set(gpus=3)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        sample = probe.first(e.GpuSamples, lambda x: all(s.pcie_rx_bytes_s for s in x.samples)).samples[2]
        assert (sample.pcie_rx_bytes_s, sample.pcie_tx_bytes_s) == (7_000_000, 9_000_000)
        spans = [later.mono - earlier.mono for earlier, later in zip(*[iter(probe.of(e.GpuSamples))] * 2, strict=False)]
        assert max(spans) < 0.5


def test_who_holds_memory(tree: ProcTree, driver: Driver) -> None:
    tree.add(500, ["python", "train.py", "--token", "canary"], uid=4242)
    driver.set(processes=[[0, 101, 5 * GIB], [1, 102, 6 * GIB], [1, 500, GIB], [0, 77777, None]])
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        event = probe.first(e.GpuProcesses)
        assert [(p.gpu, p.pid, p.used_bytes) for p in event.processes] == [
            (0, 101, 5 * GIB),
            (0, 77777, None),
            (1, 102, 6 * GIB),
            (1, 500, GIB),
        ]
        infos = {info.pid: info for info in event.infos}
        assert set(infos) == {101, 102, 500, 77777}
        assert (infos[500].user, infos[500].command) == ("4242", "python train.py --token ***")
        assert infos[101].started_at == pytest.approx(tree.boot + 500_101 / os.sysconf("SC_CLK_TCK"), abs=0.1)
        assert infos[77777].command is None
        # A new member is news for the GPUs too, before the next regular look.
        driver.set(processes=[[0, 101, 5 * GIB], [1, 103, 2 * GIB]])
        count = probe.count()
        tree.add(103, ["toy::rank_2"], ppid=100)
        later = probe.first(e.GpuProcesses, after=count)
        assert later.mono - event.mono < 4.0
        assert [info.pid for info in later.infos] == [103]


def test_a_lost_gpu_leaves_the_others(tree: ProcTree, driver: Driver) -> None:
    driver.set(gpus=3)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        probe.first(e.GpuSamples)
        driver.set(gpus=3, lost=[1])
        problem = probe.problem("gpu-lost")
        assert problem.subject == "GPU 1"
        samples = probe.first(e.GpuSamples, lambda x: x.samples[1].error is not None).samples
        assert samples[1].memory_used_bytes is None
        assert samples[0].memory_used_bytes == 10 * GIB
        assert samples[2].error is None
        driver.set(gpus=3)
        probe.problem("gpu-lost", cleared=True)


def test_a_gpu_that_is_lost_from_the_start(tree: ProcTree, driver: Driver) -> None:
    driver.set(gpus=2, lost=[0])
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        table = probe.first(e.GpuTable)
        assert [gpu.uuid for gpu in table.gpus] == ["", "GPU-1"]
        assert table.reason
        assert "GPU 0" in table.reason
        assert probe.problem("gpu-lost").subject == "GPU 0"


def test_a_driver_that_hangs_stalls_nothing(tree: ProcTree, driver: Driver, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("x\n")
    toy_server(tree, python=tmp_path / "venv/bin/python", log=log)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        probe.first(e.GpuSamples)
        driver.set(hang=60)
        probe.problem("nvml-hang")
        with log.open("a") as out:
            out.write("the log goes on\n")
        written = time.monotonic()
        probe.first(e.LogBytes, lambda x: "goes on" in x.data)
        assert time.monotonic() - written < 1.0
        before = time.monotonic()
        probe.settle()
        assert time.monotonic() - before < 0.5
        driver.set()
        probe.problem("nvml-hang", cleared=True)
        probe.first(e.GpuSamples, after=probe.count())
        driver.set(hang=60)
    # It ends with the link even so; `running` has seen to that.


def test_a_driver_that_goes_away_and_comes_back(tree: ProcTree, driver: Driver) -> None:
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        probe.first(e.GpuSamples)
        driver.set(error=1, init=9)
        probe.first(e.ProblemSeen, lambda p: p.code == "nvml-error" and p.subject == "")


@pytest.mark.parametrize(("init", "code"), [(9, "no-gpu"), (12, "no-gpu"), (18, "nvml-error"), (999, "nvml-error")])
def test_a_driver_that_does_not_start(tree: ProcTree, driver: Driver, init: int, code: str) -> None:
    driver.set(init=init)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path), PATH="/nonexistent") as probe:
        problem = probe.problem(code)
        table = probe.first(e.GpuTable)
        assert table.source is None
        assert table.reason == problem.detail
        assert table.gpus == ()


def has_binding(python: str) -> bool:
    """Whether an interpreter has NVML's binding among its own packages."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pynvml') is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def send_binding(probe: Any) -> None:
    packed = base64.b64encode(zlib.compress(BINDING.encode())).decode()
    probe.send(op="nvml", z=packed)


@pytest.mark.parametrize("python", pythons()[1:] or pythons())
def test_a_binding_is_asked_for_and_used(tmp_path: Path, driver: Driver, python: str) -> None:
    tree = ProcTree(tmp_path / "bare")
    (tree.proc / "driver/nvidia").mkdir(parents=True)
    (tree.proc / "driver/nvidia/version").write_text("580\n")
    with running(tree.root, toy_plan(), python=python, FAKE_NVML=str(driver.path), PATH="/nonexistent") as probe:
        answer = probe.wait(lambda all_: [x for x in all_ if isinstance(x, NeedNvml | e.ProblemSeen)])[0]
        if has_binding(python):  # it says that there is no driver
            assert isinstance(answer, e.ProblemSeen)
            assert probe.problem("no-gpu")
        else:
            assert isinstance(answer, NeedNvml)
            send_binding(probe)
            assert probe.first(e.GpuTable).source == "sent"
            probe.first(e.GpuSamples)


def test_a_file_others_can_write_is_not_run(tree: ProcTree, driver: Driver, tmp_path: Path) -> None:
    """It would run as whoever connects, who is often root."""
    (tmp_path / "venv/lib/python3.11/site-packages/pynvml.py").chmod(0o666)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path), PATH="/nonexistent") as probe:
        table = probe.first(e.GpuTable)
        assert not (table.source or "").startswith(f"pynvml {tmp_path}")


def test_bytecode_beside_a_link_to_a_good_binding_is_not_run(tree: ProcTree, driver: Driver, tmp_path: Path) -> None:
    """It is for whoever owns the folder to write."""
    site = tmp_path / "venv/lib/python3.11/site-packages"
    (tmp_path / "good").mkdir()
    (site / "pynvml.py").rename(tmp_path / "good/pynvml.py")
    (site / "pynvml.py").symlink_to(tmp_path / "good/pynvml.py")
    evil = tmp_path / "evil.py"
    evil.write_text(BINDING.replace("Fake GPU", "Evil GPU"))
    cache = site / f"__pycache__/pynvml.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(evil), str(cache), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path), PATH="/nonexistent") as probe:
        table = probe.first(e.GpuTable)
        assert (table.source, table.gpus[0].name) == (f"pynvml {site}/pynvml.py", "Fake GPU")


GOOD = "0, GPU-a, NVIDIA X, 00000000:10:00.0, 97887, $M, 45, 20, 210.50, 600.00, 51, [N/A], 1980, 2619, 0x4, 4, 16"
LOST = "1, GPU-b, NVIDIA X, 00000000:11:00.0, 97887, [GPU is lost], " + ", ".join(
    ["[N/A]"] * 3 + ["600.00"] + ["[N/A]"] * 7
)
SMI = f"""#!/bin/sh
case "$*" in
*query-compute-apps*) echo "GPU-a, 101, 5120"; echo "GPU-b, 102, [N/A]" ;;
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
*query-gpu*)
  M=$(cat {{state}})
  echo "{GOOD}, 5, 16, 0, 550.1, Disabled, Enabled"
  echo "{LOST}, 5, 16, [N/A], 550.1, Disabled, Enabled"
  ;;
*topo*) printf '\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tSYS\\t0-63\\nGPU1\\tSYS\\t X \\t64-127\\n' ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str], None]:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(SMI.format(state=tmp_path / "state"))
    (tools / "nvidia-smi").chmod(0o755)
    (tmp_path / "state").write_text("1024")
    return lambda text: (tmp_path / "state").write_text(text) and None


def test_nvidia_smi_when_there_is_nothing_better(tmp_path: Path, smi: Callable[[str], None]) -> None:
    tree = ProcTree(tmp_path / "bare")
    with running(tree.root, toy_plan(), PATH=f"{tmp_path / 'tools'}:/usr/bin:/bin") as probe:
        table = probe.first(e.GpuTable)
        assert (table.source, table.driver) == ("nvidia-smi", "550.1")
        assert table.reason
        assert table.topology == (("X", "SYS"), ("SYS", "X"))
        assert (table.gpus[0].memory_total_bytes, table.gpus[0].power_limit_w) == (97887 << 20, 600.0)
        sample = probe.first(e.GpuSamples)
        assert sample.samples[0].memory_used_bytes == GIB
        assert (sample.samples[0].throttle_mask, sample.samples[0].memory_temperature_c) == (4, None)
        assert sample.samples[1].error == "GPU is lost"
        assert probe.problem("gpu-lost").subject == "GPU 1"
        processes = probe.first(e.GpuProcesses)
        assert [(p.gpu, p.pid, p.used_bytes) for p in processes.processes] == [(0, 101, 5 * GIB), (1, 102, None)]
        smi("2048")
        later = probe.first(e.GpuSamples, lambda x: x.samples[0].memory_used_bytes == 2 * GIB)
        assert probe.first(e.GpuSamples, lambda x: x.mono > later.mono).mono - later.mono >= 1.9
        until(lambda: probe.children() == [])


def test_xid_errors_of_the_kernel_log(tree: ProcTree, driver: Driver) -> None:
    (tree.root / "dev").mkdir()
    log = tree.root / "dev/kmsg"
    old = "6,1,5000000,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
    log.write_text("6,0,1,-;unrelated\n" + old)
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        xid = probe.first(e.GpuXid)
        assert (xid.bus_id, xid.xid, xid.at) == ("0000:10:00", 79, tree.boot + 5.0)
        assert "fallen off the bus" in xid.text
        with log.open("a") as out:
            out.write("4,2,9000000,-;NVRM: Xid (PCI:0000:11:00): 31, MMU Fault\n SUBSYSTEM=pci\n")
        assert probe.first(e.GpuXid, lambda x: x.xid == 31).bus_id == "0000:11:00"


def test_processes_that_the_kernel_killed_for_want_of_memory(tree: ProcTree, driver: Driver) -> None:
    (tree.root / "dev").mkdir()
    log = tree.root / "dev/kmsg"
    log.write_text(
        "6,1,5000000,-;Memory cgroup out of memory: Killed process 4711 (sglang::schedul) total-vm:99kB, anon-rss:9kB\n"
        "6,2,5000001,-;oom_reaper: reaped process 4711 (sglang::schedul), now anon-rss:0kB\n"
    )
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        killed = probe.first(e.ProcessKilled)
        assert (killed.pid, killed.name, killed.at) == (4711, "sglang::schedul", tree.boot + 5.0)
        assert killed.text.startswith("Memory cgroup out of memory")
        with log.open("a") as out:
            out.write("3,9,9000000,-;Out of memory: Killed process 12, UID 0, (python) total-vm:1kB\n")
        assert probe.first(e.ProcessKilled, lambda x: x.pid == 12).name == "python"


def test_a_simulated_host_is_not_told_of_real_troubles(tree: ProcTree, driver: Driver) -> None:
    with running(tree.root, toy_plan(), FAKE_NVML=str(driver.path)) as probe:
        probe.first(e.GpuSamples)
        probe.settle()
        assert probe.of(e.GpuXid) == []
