# mypy: ignore-errors
# ruff: noqa: UP031
"""nvidia-smi of the simulated host: the CSV queries and `topo -m`, from the simulated driver's state file."""

import json
import os
import sys
import threading

_STATE = os.environ.get("SIMHOST_GPU_STATE") or os.path.join(  # noqa: PTH118
    os.path.dirname(os.path.abspath(__file__)), "gpu-state.json"  # noqa: PTH100, PTH120
)  # fmt: skip
_MIB = 1 << 20
_NAMES = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def _fields(gpu, state):
    free = gpu["total"] - gpu["reserved"] - gpu["used"]
    cuda = state["cuda"]
    return {
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "name": gpu["name"],
        "gpu_name": gpu["name"],
        "pci.bus_id": gpu["bus_id"],
        "gpu_bus_id": gpu["bus_id"],
        "driver_version": state["driver"],
        "cuda_version": "%d.%d" % (cuda // 1000, cuda % 1000 // 10),
        "memory.total": (gpu["total"] // _MIB, "MiB"),
        "memory.reserved": (gpu["reserved"] // _MIB, "MiB"),
        "memory.used": (gpu["used"] // _MIB, "MiB"),
        "memory.free": (free // _MIB, "MiB"),
        "utilization.gpu": (gpu["util"], "%"),
        "utilization.memory": (gpu["mem_util"], "%"),
        "power.draw": ("%.2f" % (gpu["power_mw"] / 1000), "W"),
        "power.draw.instant": ("%.2f" % (gpu["power_mw"] / 1000), "W"),
        "power.limit": ("%.2f" % (gpu["limit_mw"] / 1000), "W"),
        "enforced.power.limit": ("%.2f" % (gpu["limit_mw"] / 1000), "W"),
        "temperature.gpu": gpu["temp"],
        "temperature.memory": gpu["mem_temp"],
        "clocks.sm": (gpu["sm_mhz"], "MHz"),
        "clocks.current.sm": (gpu["sm_mhz"], "MHz"),
        "clocks.gr": (gpu["sm_mhz"], "MHz"),
        "clocks.mem": (gpu["mem_mhz"], "MHz"),
        "clocks.current.memory": (gpu["mem_mhz"], "MHz"),
        "clocks_event_reasons.active": "0x%016x" % gpu["throttle"],
        "clocks_throttle_reasons.active": "0x%016x" % gpu["throttle"],
        "pcie.link.gen.current": gpu["pcie_gen"],
        "pcie.link.gen.gpucurrent": gpu["pcie_gen"],
        "pcie.link.width.current": gpu["pcie_width"],
        "pcie.link.gen.max": gpu["pcie_gen_max"],
        "pcie.link.width.max": gpu["pcie_width_max"],
        "ecc.errors.uncorrected.volatile.total": gpu["ecc"],
        "ecc.errors.uncorrected.aggregate.total": gpu["ecc"],
        "compute_cap": "%d.%d" % tuple(gpu["capability"]),
        "mig.mode.current": "[N/A]",
        "count": len(state["gpus"]),
        "persistence_mode": "Enabled",
        "pstate": "P1" if gpu["sm_mhz"] > 1000 else "P8",
        "fan.speed": (gpu["fan"], "%"),
    }


def _table(wanted, rows, options):
    names = [name.strip() for name in wanted.split(",")]
    units = "nounits" not in options
    if "noheader" not in options:
        yield ", ".join(names)
    for row in rows:
        cells = []
        for name in names:
            value = row.get(name, "[N/A]")
            if isinstance(value, tuple):
                value = "%s %s" % value if units else value[0]
            cells.append(str(value))
        yield ", ".join(cells)


def _topology(state):
    count = len(state["gpus"])
    yield "\t" + "\t".join("GPU%d" % i for i in range(count)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    for i, row in enumerate(state["topology"]):
        numa = state["gpus"][i]["numa"]
        cpus = "0-31,64-95" if numa == 0 else "32-63,96-127"
        cells = ["X" if i == j else _NAMES[level] for j, level in enumerate(row)]
        yield "GPU%d\t" % i + "\t".join(" %s " % cell for cell in cells) + "\t%s\t%d\t\tN/A" % (cpus, numa)


def main(argv):
    """Answer one command line and return nvidia-smi's exit status."""
    try:
        with open(_STATE) as file:  # noqa: PTH123
            state = json.load(file)
    except (OSError, ValueError):
        state = {"mode": "missing"}
    mode = state.get("mode")
    if mode == "hang":
        threading.Event().wait()
    if mode is not None:
        sys.stdout.write("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
        return 9
    options = next((a.partition("=")[2] for a in argv if a.startswith("--format")), "")
    query = dict(a.partition("=")[::2] for a in argv if a.startswith("--query"))
    lines = ["NVIDIA-SMI %s" % state["driver"]]
    if "--query-gpu" in query:
        gpus = [gpu for gpu in state["gpus"] if not gpu.get("lost")]
        lines = list(_table(query["--query-gpu"], [_fields(gpu, state) for gpu in gpus], options))
    elif "--query-compute-apps" in query:
        rows = [
            {
                "pid": p["pid"],
                "used_memory": (p["used"] // _MIB, "MiB"),
                "used_gpu_memory": (p["used"] // _MIB, "MiB"),
                "gpu_uuid": state["gpus"][p["gpu"]]["uuid"],
                "gpu_bus_id": state["gpus"][p["gpu"]]["bus_id"],
                "gpu_name": state["gpus"][p["gpu"]]["name"],
                "process_name": p.get("name", "python"),
                "name": p.get("name", "python"),
            }
            for p in state["processes"]
        ]
        lines = list(_table(query["--query-compute-apps"], rows, options))
    elif argv[:2] == ["topo", "-m"]:
        lines = list(_topology(state))
    elif argv[:1] == ["-L"]:
        lines = ["GPU %d: %s (UUID: %s)" % (g["index"], g["name"], g["uuid"]) for g in state["gpus"]]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
