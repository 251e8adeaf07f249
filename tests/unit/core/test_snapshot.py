from __future__ import annotations

import json
import math

import msgspec
import pytest

from tests.golden import diagnoses
from tests.support import states
from tests.unit.core.test_explaining import CORPUS, live
from tuner.cli.tables import lines
from tuner.core.report import FindingReport, as_data, report
from tuner.core.snapshot import Missing, memory_bytes, missing, snapshot
from tuner.domain.events import GpuTable, ProbeHello, ProblemSeen
from tuner.domain.findings import Evidence, Finding, Severity
from tuner.domain.gpu import GpuInfo, GpuSample
from tuner.domain.runs import Lease, Operator, ProcessId, RunOutcome, RunRecord, RunStep, StepRecord
from tuner.domain.server import LogSource, Phase, ServerIdentity
from tuner.domain.state import (
    ErrorLine,
    ExplainState,
    ForeignProcess,
    HostState,
    LogState,
    PhaseRecord,
    RankMemory,
    RankState,
    ServerMetrics,
    ServerState,
)

GIB = 1 << 30


def busy() -> HostState:
    """One GPU of two readable, one server, one stranger."""
    return HostState(
        name="root@box",
        now=1_700_000_000.5,
        gpu_table=GpuTable(
            source="sent",
            gpus=(
                GpuInfo(index=0, uuid="GPU-a", name="H200", memory_total_bytes=140 * GIB, power_limit_w=700.0),
                GpuInfo(index=1, uuid="GPU-b", name="H200"),
            ),
        ),
        samples=(GpuSample(index=0, memory_used_bytes=90 * GIB, utilization_ratio=0.0, throttle_mask=0x5),),
        foreign=(ForeignProcess(pid=9120, gpu=1, memory_bytes=None, user="alice", command="python x.py"),),
        problems=(
            ProblemSeen(code="log-denied", subject="/l", detail="no"),
            ProblemSeen(code="disk-full", cleared=True),
        ),
        servers=(
            ServerState(
                identity=ServerIdentity(
                    key="7:1",
                    engine="sglang",
                    pid=7,
                    start_ticks=1,
                    argv=("python", "-m", "sglang.launch_server"),
                    port=30000,
                    log=LogSource(kind="file", path="/l"),
                ),
                phase=Phase.READY,
                phases=(
                    PhaseRecord(phase=Phase.WEIGHT_LOAD, started=10.0, ended=12.5),
                    PhaseRecord(phase=Phase.WARMUP, started=12.5),
                ),
                ranks=(
                    RankState(
                        tag="TP0",
                        gpu=0,
                        pid=8,
                        memory=RankMemory(
                            weights_bytes=5, context_bytes=2, other_bytes=3, total_bytes=10, source="log"
                        ),
                    ),
                ),
                metrics=ServerMetrics(source="log", tok_s=0.0),
                errors=(ErrorLine(text="boom", ranks=("TP0",)),),
            ),
        ),
    )


def test_runs_lease_and_preset_are_told() -> None:
    state = states.serving()
    identity = state.servers[0].identity
    me = Operator(session="secret-id", name="ada", machine="laptop", since=5.0)
    run = RunRecord(
        id="run-1",
        operator=me,
        began_at=10.0,
        updated_at=90.0,  # when its server ended
        outcome=RunOutcome.READY,
        preset="base-88",
        title="Base",
        new=ProcessId(pid=identity.pid, start_ticks=identity.start_ticks),
        steps=(StepRecord(step=RunStep.STOP, at=12.5, ended=14.5),),
    )
    state = msgspec.structs.replace(state, runs=(run,), lease=Lease(holder=me, beat_at=9.0))
    reading = json.loads(json.dumps(snapshot(state)))
    server = reading["servers"][0]
    assert (server["run"], server["preset"], server["preset_title"]) == ("run-1", "base-88", "Base")
    assert (reading["runs"][0]["seconds"], reading["runs"][0]["new_pid"]) == (4.5, identity.pid)
    assert reading["runs"][0]["steps"][0]["seconds"] == 2.0
    holder = {"name": "ada", "machine": "laptop"}
    assert reading["lease"] == {"holder": holder, "mine": False, "since": 5.0, "beat_at": 9.0}
    assert "secret-id" not in json.dumps(reading)
    text = list(lines(reading))
    assert "  preset base-88: Base" in text
    assert "ada@laptop may change this host" in text
    assert set(snapshot(states.empty())) == set(reading)


def test_it_has_the_keys_that_scripts_are_promised() -> None:
    reading = snapshot(busy())
    assert list(reading) == ["schema", "host", "at", "gpus", "servers", "foreign", "problems", "missing", "runs",
                             "lease"]  # fmt: skip
    assert reading["schema"] == 1
    assert (reading["host"], reading["at"]) == ("root@box", 1_700_000_000.5)
    promised = {"engine", "version", "pid", "phase", "argv", "model", "user", "started_at", "port", "log", "settings",
                "ranks", "kv_tokens", "metrics", "findings"}  # fmt: skip
    assert promised <= set(reading["servers"][0])
    assert reading["servers"][0]["phase"] == "ready"
    assert reading["servers"][0]["log"]["path"] == "/l"
    assert reading["foreign"] == [
        {"pid": 9120, "user": "alice", "gpu": 1, "memory_bytes": None, "command": "python x.py"}
    ]


def test_unknown_is_null_and_zero_is_zero() -> None:
    first, second = snapshot(busy())["gpus"]
    assert first["utilization_ratio"] == 0.0
    assert second["utilization_ratio"] is None
    assert set(first) == set(second), "a key is never left out"
    assert second["memory_total_bytes"] is None
    server = snapshot(busy())["servers"][0]
    assert server["settings"] is None
    assert server["metrics"]["tok_s"] == 0.0
    assert server["metrics"]["running"] is None


def test_findings_are_those_that_diagnose_tells_of_the_same_log_without_its_lines() -> None:
    path = CORPUS / "seed-3-custom-ar-055.log"
    start, found = diagnoses.judged(path)
    whole = as_data(report(start, found, None, lambda at: (str(path), at)))["findings"]
    told = snapshot(live(path.read_text()).state)["servers"][0]["findings"]
    assert len(told) == len(whole) > 0
    for live_one, one in zip(told, whole, strict=True):
        assert all(each["file"] == (None if each["derived"] else "/log") for each in live_one["evidence"])
        assert {each["line"] for each in live_one["evidence"]} == {None}
        assert [each["derived"] for each in live_one["evidence"]] == [each["derived"] for each in one["evidence"]]
        for finding in (live_one, one):
            finding["evidence"] = [each | {"file": None, "line": None} for each in finding["evidence"]]
        assert live_one == one


def test_what_numbers_tell_is_a_finding_without_a_place() -> None:
    (server,) = busy().servers
    told = Finding(
        cause="watchdog-hang", severity=Severity.ERROR, title="token=hf_abcdefghijklmnopqrstuvwxyz0123456789",
        evidence=(Evidence(what="silence", value=math.inf, unit="s"),),
    )  # fmt: skip
    state = msgspec.structs.replace(busy(), servers=(msgspec.structs.replace(server, findings=(told,)),))
    (finding,) = snapshot(state)["servers"][0]["findings"]
    assert set(finding) == set(FindingReport.__struct_fields__)
    assert "hf_abc" not in finding["title"]
    assert finding["evidence"] == [
        {"what": "silence", "value": None, "unit": "s", "file": None, "line": None, "derived": True}
    ]
    assert json.loads(json.dumps(finding, allow_nan=False)) == finding


def test_memory_terms_add_up_to_the_total() -> None:
    terms = snapshot(busy())["servers"][0]["ranks"][0]["memory_bytes"]
    assert terms == {"weights": 5, "kv": None, "graphs": None, "other": 5, "total": 10}
    assert sum(value or 0 for term, value in terms.items() if term != "total") == terms["total"]
    assert memory_bytes(RankMemory())["other"] is None


def test_idle_is_no_throttling_and_a_cap_is() -> None:
    first, second = snapshot(busy())["gpus"]
    assert first["throttle"] == ["power cap"]
    assert second["throttle"] is None


def test_a_running_phase_has_no_duration_yet() -> None:
    phases = snapshot(busy())["servers"][0]["phases"]
    assert [(p["phase"], p["seconds"]) for p in phases] == [("weight-load", 2.5), ("warmup", None)]


def test_solved_problems_are_not_told() -> None:
    assert [p["code"] for p in snapshot(busy())["problems"]] == ["log-denied"]


def test_it_is_plain_json_from_the_first_moment_on() -> None:
    for state in (HostState(name="box"), busy()):
        reading = snapshot(state)
        assert json.loads(json.dumps(reading)) == reading
        assert msgspec.json.decode(msgspec.json.encode(reading)) == reading


def whole() -> HostState:
    """All was told that a first reading has."""
    (server,) = busy().servers
    log = LogState(source=server.identity.log, start=0, end=900, backlog_end=900)
    return msgspec.structs.replace(
        busy(),
        hello=ProbeHello(protocol=1, python="3.11", pid=1, uid=0, hostname="box", at=0.0),
        scanned=True,
        samples_at=1.0,
        processes_at=1.0,
        servers=(msgspec.structs.replace(server, log=log),),
    )


def test_a_reading_is_whole_when_all_was_told() -> None:
    assert missing(whole()) == ()
    for part, what in (
        ({"hello": None}, "gpus"),
        ({"scanned": False}, "servers"),
        ({"samples_at": None}, "samples"),
        ({"processes_at": None}, "samples"),
    ):
        assert missing(msgspec.structs.replace(whole(), **part)) == (Missing(what=what),)
    (server,) = whole().servers
    for change, what in (
        ({"phase": Phase.UNKNOWN}, "phase"),
        ({"phase": Phase.FAILED, "explain": ExplainState(due=True)}, "findings"),
        ({"metrics": ServerMetrics()}, "speed"),
    ):
        state = msgspec.structs.replace(whole(), servers=(msgspec.structs.replace(server, **change),))
        assert missing(state) == (Missing(what=what, pid=7),)


@pytest.mark.parametrize("log", [LogState(), LogState(source=LogSource(kind="file"), end=50, backlog_end=900)])
@pytest.mark.parametrize("phase", [Phase.WEIGHT_LOAD, Phase.READY])
def test_a_reading_is_not_whole_before_the_logs_end(log: LogState, phase: Phase) -> None:
    """Of a long log the start-up section comes first, and the server has long been ready."""
    (server,) = whole().servers
    state = msgspec.structs.replace(whole(), servers=(msgspec.structs.replace(server, log=log, phase=phase),))
    assert missing(state) == (Missing(what="log", pid=7),)
    assert snapshot(state)["missing"] == [{"what": "log", "pid": 7}]
