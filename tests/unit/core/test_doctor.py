from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tuner.core.doctor import Check, Skew, Verdict, examine
from tuner.domain.events import GpuTable, ProblemSeen
from tuner.domain.gpu import GpuInfo
from tuner.domain.server import Phase, ServerIdentity
from tuner.domain.state import HostState, LinkState, ServerMetrics, ServerState

GIB = 1 << 30
WELL: dict[str, dict[str, Any]] = {
    "python": {"ok": True, "value": "3.10.12", "detail": "/usr/bin/python3"},
    "user": {"ok": True, "value": "root", "detail": None},
    "proc": {"ok": True, "value": "readable", "detail": None},
    "nvml": {"ok": True, "value": "pynvml /venv", "detail": None},
    "driver": {"ok": True, "value": "580.65", "detail": "13.0"},
    "topology": {"ok": None, "value": [["X", "NV18"], ["NV18", "X"]], "detail": None},
    "persistence": {"ok": True, "value": None, "detail": None},
    "psutil": {"ok": False, "value": None, "detail": None},
    "engines": {
        "ok": True,
        "value": [{"engine": "sglang", "version": "0.5.23", "prefix": "/venv", "running": True}],
        "detail": None,
    },
    "logs": {"ok": True, "value": {"7:1": {"kind": "file", "path": "/l.log"}}, "detail": None},
    "kernel_log": {"ok": True, "value": None, "detail": None},
    "shm": {"ok": True, "value": [64 * GIB, 60 * GIB], "detail": None},
    "disk": {"ok": True, "value": {"/": [100 * GIB, 50 * GIB]}, "detail": None},
    "memory": {"ok": None, "value": [512 * GIB, 400 * GIB], "detail": None},
    "time": {"ok": None, "value": 1.0, "detail": "+0000 UTC"},
    "limits": {"ok": True, "value": {"NOFILE": [1024, 1048576]}, "detail": None},
    "probe": {"ok": None, "value": {"cpu_s": 0.1, "peak_bytes": 12_000_000}, "detail": None},
}
STATE = HostState(
    name="box",
    link=LinkState(rtt_s=0.012),
    gpu_table=GpuTable(gpus=tuple(GpuInfo(index=i, uuid=f"GPU-{i}", name="H200", numa_node=i) for i in range(2))),
)


def by_name(facts: dict[str, Any], state: HostState = STATE, skew: Skew | None = None) -> dict[str, Check]:
    return {check.what: check for check in examine(facts, state, skew)}


def test_a_host_that_is_well_has_no_costs() -> None:
    checks = examine(WELL, STATE, Skew(ahead_s=0.1, within_s=0.2))
    assert {check.verdict for check in checks} == {Verdict.OK}
    assert not any(check.cost for check in checks)
    values = {check.what: check.value for check in checks}
    assert values["gpus"] == "2 through NVML (pynvml /venv)"
    assert values["topology"] == "NV18 between GPUs, NUMA nodes 0 1"
    assert values["engine"] == "sglang 0.5.23, running (/venv)"
    assert values["log"] == "pid 7: file /l.log"


def test_everything_that_is_not_well_says_what_it_costs() -> None:
    ill = {
        **WELL,
        "user": {"ok": False, "value": "alice"},
        "proc": {"ok": False, "value": "hidepid", "detail": "hidden; connect as root"},
        "nvml": {"ok": False, "value": None, "detail": "no driver is loaded"},
        "topology": {"ok": None, "value": None},
        "persistence": {"ok": False},
        "engines": {"ok": False, "value": []},
        "logs": {"ok": False, "value": {"7:1": {"kind": "none", "note": "its output is a terminal"}}},
        "kernel_log": {"ok": False},
        "shm": {"ok": False, "value": [64 << 20, 64 << 20]},
        "disk": {"ok": False, "value": {"/": [100 * GIB, 1000]}},
        "limits": {"ok": False, "value": {"NOFILE": [1024, 4096]}},
    }
    checks = by_name(ill)
    bad = {name for name, check in checks.items() if check.verdict is not Verdict.OK}
    assert bad == {"user", "/proc", "gpus", "topology", "persistence", "engines", "log", "kernel log", "shm",
                   "disk", "limits"}  # fmt: skip
    assert all(checks[name].cost for name in bad)
    assert {name for name in bad if checks[name].verdict is Verdict.MISSING} == {"/proc", "gpus"}
    assert "no driver is loaded" in checks["gpus"].cost


def test_nvidia_smi_is_second_best() -> None:
    check = by_name({"nvml": {"ok": True, "value": "nvidia-smi"}})["gpus"]
    assert check.verdict is Verdict.WARN
    assert "NVLink" in check.cost


def test_clocks_are_compared_within_the_round_trip() -> None:
    far = Skew.measured(100.0, 205.0, 110.0)
    assert (far.ahead_s, far.within_s, far.certain_s) == (100.0, 5.0, 95.0)
    assert by_name({}, skew=far)["clock"].verdict is Verdict.WARN
    slow = Skew.measured(100.0, 108.0, 110.0)
    assert slow.certain_s == 0.0, "a difference smaller than half the round trip is none that is known"
    assert by_name({}, skew=slow)["clock"].verdict is Verdict.OK


def test_problems_and_ignored_ssh_options_are_lines_of_their_own() -> None:
    state = HostState(
        name="box",
        link=LinkState(notes=("jump: ControlMaster auto: not honoured, no connection is shared",)),
        problems=(
            ProblemSeen(code="log-denied", subject="/l", detail="permission denied"),
            ProblemSeen(code="x", cleared=True),
            ProblemSeen(code="no-gpu"),
        ),
    )
    checks = by_name({}, state)
    assert checks["log-denied"].cost == "permission denied"
    assert checks["ssh config"].value == "jump: ControlMaster auto"
    assert checks["ssh config"].cost == "not honoured, no connection is shared"
    assert not {"x", "no-gpu"} & set(checks)


def test_a_check_of_a_newer_probe_is_shown_and_nonsense_is_not_fatal() -> None:
    checks = by_name({"warp": {"ok": False, "value": 9, "detail": "core breach"}, "odd": "text"})
    assert (checks["warp"].verdict, checks["warp"].value, checks["warp"].cost) == (Verdict.WARN, "9", "core breach")
    assert "odd" not in checks


def ready(source: str | None = "metrics", ports: tuple[int, ...] = (30000,), **fields: Any) -> HostState:
    """One server that is ready, by its log or by its answers."""
    identity = ServerIdentity(key="7:1", engine="sglang", pid=7, start_ticks=1, argv=("sglang",), port=30000)
    identity = replace(identity, ports=ports)
    server = ServerState(identity=identity, phase=Phase.READY, metrics=ServerMetrics(source=source))
    return replace(STATE, servers=(server,), **fields)


def test_a_server_that_answers_is_well() -> None:
    check = by_name(WELL, ready())["sglang"]
    assert (check.verdict, check.value, check.cost) == (Verdict.OK, "pid 7, port 30000, ready", "")


@pytest.mark.parametrize("source", [None, "log"])
@pytest.mark.parametrize(("ports", "words"), [((), "its port is closed"), ((30000,), "does not answer with metrics")])
def test_a_server_whose_port_tells_nothing_is_a_warning(source: str | None, ports: tuple[int, ...], words: str) -> None:
    check = by_name(WELL, ready(source, ports))["sglang"]
    assert check.verdict is Verdict.WARN
    assert words in check.cost


def test_a_problem_of_a_port_is_told_once_with_its_server() -> None:
    nonsense = ProblemSeen(code="http-nonsense", subject="7:1", detail="127.0.0.1:30000/metrics: not HTTP: b'x'")
    checks = examine(WELL, ready("log", problems=(nonsense,)), None)
    assert [(c.verdict, c.what, c.cost) for c in checks if c.verdict is not Verdict.OK] == [
        (Verdict.WARN, "sglang", nonsense.detail)
    ]
    # Of a server that is gone nobody else tells it.
    assert "http-nonsense" in by_name(WELL, replace(STATE, problems=(nonsense,)))


def test_the_folder_on_the_host_is_told() -> None:
    value = {"path": "/home/ann/.gputuner", "bytes": 1_200_000, "runs": 1, "lease": None}
    check = by_name({"folder": {"ok": None, "value": value, "detail": None}})["~/.gputuner"]
    assert check.value == "1 run, 1.2 MB in /home/ann/.gputuner"
    held = {**value, "runs": 3, "lease": "bob at laptop-2"}
    check = by_name({"folder": {"ok": None, "value": held, "detail": None}})["~/.gputuner"]
    assert check.value == "3 runs, 1.2 MB in /home/ann/.gputuner; bob at laptop-2 may change this host"
    absent = by_name({"folder": {"ok": None, "value": None, "detail": None}})["~/.gputuner"]
    assert (absent.verdict, absent.value) == (Verdict.OK, "not there: nothing was started from here")
