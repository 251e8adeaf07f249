"""Changes of a real host by gputuner, as its probe told them: switches, a start that failed, the way back, a stop.

Two H200 (NVLink), SGLang 0.5.16, a Llama of 68e9 parameters with dummy weights at --tp 2. `real/INDEX.md` says what was
done. The figures are those that the commands printed (`runs/*/apply1.txt` and so on).
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.golden import diagnoses
from tests.golden.test_journals import JOURNALS, states
from tuner.core import runs
from tuner.core.compare import compare
from tuner.core.redact import MASK
from tuner.core.snapshot import snapshot
from tuner.domain.comparison import Group
from tuner.domain.events import RunChanged
from tuner.domain.findings import Finding, Outcome, Severity
from tuner.domain.runs import RunOutcome, RunRecord, RunStep
from tuner.domain.server import Phase
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.probe.wire import Decoder
from tuner.units import GIB

GOLDEN = Path(__file__).parent
FIRST = JOURNALS / "sglang-0.5.16-2xH200-change-custom-all-reduce.ndjson"
SECOND = JOURNALS / "sglang-0.5.16-2xH200-change-back-stop.ndjson"
HOST = GOLDEN / "runs/sglang-0.5.16-2xH200"
LOGS = GOLDEN / "real/sglang-0.5.16-2xH200-changes"
CUSTOM, CHANNELS, FAILED, STOP = (
    "20261130-115147-f84c12d9", "20261130-115502-2028fbd4", "20261130-115711-db40dbef", "20261130-115945-a7e10cbd",
)  # fmt: skip
KEY = "sk-plantedsecret0123456789"
"""The API key of every server, shorter here than what was planted: any part of it would be a leak."""


@pytest.fixture(scope="module")
def first() -> list[tuple[float, HostState]]:
    return list(states(FIRST))


@pytest.fixture(scope="module")
def second() -> list[tuple[float, HostState]]:
    return list(states(SECOND))


def end(history: list[tuple[float, HostState]]) -> HostState:
    return history[-1][1]


def of_pid(state: HostState, pid: int) -> ServerState:
    return next(server for server in state.servers if server.identity.pid == pid)


def run(state: HostState, name: str) -> RunRecord:
    return next(each for each in state.runs if each.id == name)


def test_the_runs_are_there_in_their_order_with_their_ends(
    first: list[tuple[float, HostState]], second: list[tuple[float, HostState]]
) -> None:
    assert [(each.id, each.outcome) for each in end(first).runs] == [(CUSTOM, RunOutcome.READY)]
    assert [(each.id, each.outcome) for each in reversed(end(second).runs)] == [
        (CUSTOM, RunOutcome.READY),
        (CHANNELS, RunOutcome.READY),
        (FAILED, RunOutcome.BACK),
        (STOP, RunOutcome.STOPPED),
    ]
    assert not [each for each in end(second).runs if each.alive or each.leftovers]
    assert [each.exit_code for each in reversed(end(second).runs)] == [-9, -9, -9, None]


def test_a_switch_is_followed_step_by_step(first: list[tuple[float, HostState]]) -> None:
    seen: list[RunStep] = []
    for _, state in first:
        if state.runs and (not seen or seen[-1] is not state.runs[0].step):
            seen.append(state.runs[0].step)
    assert seen[0] in (RunStep.CHECK, RunStep.STOP)
    in_order = [step for step in RunStep if step in seen]
    assert seen == in_order, "none comes twice, and none before its time"
    assert {RunStep.STOP, RunStep.MEMORY, RunStep.LOADING, RunStep.HEALTH, RunStep.STEADY, RunStep.END} <= set(seen)


def test_the_way_back_is_told_as_such(second: list[tuple[float, HostState]]) -> None:
    record = run(end(second), FAILED)
    assert [step.step for step in record.steps if step.back] == [
        RunStep.LAUNCH, RunStep.LOADING, RunStep.PORT, RunStep.HEALTH, RunStep.FIRST_TOKEN, RunStep.STEADY,
    ]  # fmt: skip
    assert record.failed is not None
    assert record.failed.pid == 3873
    assert record.failed_log == f"/opt/logs/{FAILED}.log"
    assert record.failure == "the server was ended by SIGKILL after 45 s"


@pytest.mark.parametrize(("name", "gib"), [(CUSTOM, 249.1), (CHANNELS, 246.9), (FAILED, 278.8), (STOP, 247.7)])
def test_all_the_memory_came_back(second: list[tuple[float, HostState]], name: str, gib: float) -> None:
    memory = run(end(second), name).memory
    assert [each.gpu for each in memory] == [0, 1]
    assert sum(each.held_bytes for each in memory) / GIB == pytest.approx(gib, abs=0.05)
    assert all(each.after_bytes == 0 for each in memory)


def test_what_was_good_last_after_each_change(second: list[tuple[float, HostState]]) -> None:
    seen: list[str] = []
    for _, state in second:
        good = runs.last_good(state)
        if good is not None and (not seen or seen[-1] != good.id):
            seen.append(good.id)
    assert seen == [CUSTOM, CHANNELS, FAILED], "what a failed start was gone back from to serves; a stop is no start"
    again = runs.earlier(end(second), None)
    assert again is not None
    assert again.title == "NCCL with two channels", "what the stop took away can be had again"


def test_each_server_has_the_preset_it_was_started_with(
    first: list[tuple[float, HostState]], second: list[tuple[float, HostState]]
) -> None:
    state = end(first)
    assert {server.identity.pid for server in state.servers} == {748, 2233}
    assert runs.preset_of(state, of_pid(state, 748)) == ("", ""), "was there before gputuner"
    state = end(second)
    told = {server.identity.pid: runs.preset_of(state, server) for server in state.servers}
    assert told == {
        2233: ("custom-all-reduce-on", "Custom all-reduce on with disable_custom_all_reduce off"),
        3001: ("nccl-two-channels", "NCCL with two channels"),
        3873: ("nccl-two-channels", "NCCL with two channels with mem_fraction_static 0.995"),
        4289: ("nccl-two-channels", "NCCL with two channels"),
    }
    assert runs.server_of(state, run(state, FAILED)) == of_pid(state, 4289), "the last that it started"


def test_a_failed_start_has_its_cause_beside_the_server_that_serves(second: list[tuple[float, HostState]]) -> None:
    """`apply` printed that title, and 0.944 as the remedy, with 7.0 GiB to spare."""
    state = next(state for _, state in second if state.runs and state.runs[0].outcome is RunOutcome.BACK)
    failed, serving = of_pid(state, 3873), of_pid(state, 4289)
    assert (failed.phase, failed.gone, serving.phase) == (Phase.FAILED, True, Phase.READY)
    fatal = [finding for finding in failed.findings if finding.severity is Severity.FATAL]
    assert [(each.cause, each.phase, each.ranks) for each in fatal] == [
        ("mem-fraction-too-high-activation", "kv-alloc", (0, 1))
    ]
    assert fatal[0].title == "The pool does not fit where the formula says it would"
    remedy = fatal[0].remedies[0]
    assert (remedy.knob, remedy.value) == ("mem_fraction_static", 0.944)
    assert not [finding for finding in serving.findings if finding.severity in (Severity.FATAL, Severity.ERROR)]


def test_no_line_was_lost(first: list[tuple[float, HostState]], second: list[tuple[float, HostState]]) -> None:
    assert (end(first).lost_lines, end(second).lost_lines) == (0, 0)


def test_servers_that_were_stopped_have_not_failed(
    first: list[tuple[float, HostState]], second: list[tuple[float, HostState]]
) -> None:
    for state, pids in ((end(first), (748,)), (end(second), (2233, 3001, 4289))):
        for pid in pids:
            server = of_pid(state, pid)
            assert (server.phase, server.gone, server.errors) == (Phase.STOPPED, True, ())


def test_the_key_is_nowhere_but_in_the_engines_own_logs() -> None:
    """It is 26 characters and more; SGLang prints it among its arguments, which no tool can hinder."""
    kept = [FIRST, SECOND, *(path for path in HOST.rglob("*") if path.is_file())]
    assert len(kept) == 20
    assert [path.name for path in kept if "plantedsecret" in path.read_text("utf-8")] == []
    logs = list(LOGS.rglob("*.log"))
    assert len(logs) == 5
    assert all("plantedsecret" in path.read_text("utf-8") for path in logs), "else this test proves nothing"


def test_the_key_is_in_no_snapshot(second: list[tuple[float, HostState]]) -> None:
    told = json.dumps(snapshot(end(second)))
    assert STOP in told
    assert "plantedsecret" not in told


def records() -> list[Path]:
    return sorted(HOST.glob("runs/*/state.json"))


def over_the_wire(text: str) -> RunRecord:
    line = f'{{"t":"run","seq":2,"mono":1.0,"run":{text.strip()}}}\n'
    (event,) = Decoder().feed(line.encode())
    assert isinstance(event, RunChanged)
    return event.run


def test_there_is_a_record_of_every_run() -> None:
    assert [path.parent.name for path in records()] == [CUSTOM, CHANNELS, FAILED, STOP]


@pytest.mark.parametrize("path", records(), ids=lambda path: path.parent.name)
def test_the_record_that_a_supervisor_wrote_comes_over_the_wire(path: Path) -> None:
    written = json.loads(path.read_text("utf-8"))
    record = over_the_wire(path.read_text("utf-8"))
    told = json.loads(msgspec.json.encode(record))
    own = written.pop("progress")
    assert own, "what the supervisor keeps for itself"
    assert written.pop("operator") == {k: v for k, v in told["operator"].items() if v is not None}
    # This supervisor did not tell yet in which step a start failed.
    assert {step.pop("failed") for step in told["steps"]} == {""}
    assert not any(step.pop("unclean") for step in told["steps"]), "nor whether it had to cut off requests"
    assert {name: told[name] for name in written} == written
    assert record.outcome is not RunOutcome.RUNNING


@pytest.mark.parametrize("path", records(), ids=lambda path: path.parent.name)
def test_a_key_that_a_record_had_would_be_masked_on_the_way(path: Path) -> None:
    """The supervisor masks it, but the file may be another's."""
    text = path.read_text("utf-8").replace(MASK, KEY)
    assert KEY in text or path.parent.name == STOP
    assert KEY not in msgspec.json.encode(over_the_wire(text)).decode()


def judged(name: str) -> tuple[Start, tuple[Finding, ...]]:
    return diagnoses.judged(LOGS / name / "server.log")


def test_two_channels_against_the_start_before_them() -> None:
    """Half a GiB less for NCCL goes to the pool. No argument differs: channels are set by a variable."""
    comparison = compare(judged("base")[0], judged("nccl2ch")[0])
    assert comparison.obstacles == ()
    (memory,) = comparison.explaining
    assert (memory.name, [(each.good, each.bad) for each in memory.pairs]) == ("communicators", [(0.97, 0.48)] * 2)
    pool = {each.name: (each.good, each.bad) for each in comparison.differences if each.group is Group.POOL}
    assert pool == {"size": (53.28, 53.7), "tokens": (349_154, 351_896)}
    assert judged("nccl2ch")[0].outcome is Outcome.STOPPED


def test_the_fraction_explains_the_start_that_failed() -> None:
    bad, findings = judged("f995")
    comparison = compare(judged("nccl2ch")[0], bad, findings=findings)
    assert [each.name for each in comparison.explaining] == ["mem_fraction_static"]


def test_what_was_gone_back_to_is_what_ran_before() -> None:
    before, back = judged("nccl2ch")[0], judged("back")[0]
    seeds = {"random_seed": None}
    assert {**before.settings, **seeds} == {**back.settings, **seeds}
    assert before.limits["max_total_num_tokens"].value == back.limits["max_total_num_tokens"].value == 351_896
