"""Parts of the supervisor that need no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain import runs
from tuner.probe.agent import identity, processes
from tuner.probe.supervisor import asking, desk, members, orders, readiness, run, start
from tuner.probe.supervisor.files import Folder
from tuner.probe.supervisor.readiness import words_for

BARE = {"run": "r", "operator": {"session": "s", "name": "n"}}
LEADER = {"pid": 7, "start_ticks": 8}


def fields(value: Any) -> Any:
    """A value of either side as plain data."""
    if isinstance(value, (orders.Stop, orders.Launch, orders.Step)):
        return {name: fields(part) for name, part in vars(value).items()}
    if isinstance(value, orders.ProcessId):
        return value.json
    if isinstance(value, list):
        return [fields(each) for each in value]
    return value


@pytest.mark.parametrize(
    ("type_", "own", "least"),
    [
        (runs.StopOrder, orders.Stop, {"boot_id": "b", "leader": LEADER, "steps": [{"signal": "TERM"}]}),
        (runs.LaunchOrder, orders.Launch, {}),
        (runs.StopStep, orders.Step, {"signal": "TERM"}),
    ],
)
def test_the_host_reads_an_order_as_the_laptop_wrote_it(type_: type, own: type, least: dict[str, Any]) -> None:
    """The host has no msgspec, so it reads orders by code of its own: with the same defaults, whether they are sent."""
    whole = json.loads(msgspec.json.encode(msgspec.convert(least, type_)))
    short, long = fields(own(least)), fields(own(whole))
    ladder = [fields(orders.Step(each)) for each in orders.DEFAULT_LADDER]
    for name, value in long.items():
        if name in whole and whole[name] != value:
            # The ladder alone is never empty on the host.
            assert (name, value) == ("stop", ladder)
    assert short == long


def test_an_order_that_is_none_is_refused() -> None:
    for data in (
        {},
        {"run": "r"},
        {**BARE, "stop": {"leader": {}}},
        {**BARE, "stop": {"boot_id": "", "leader": LEADER, "steps": [{}]}},
    ):
        with pytest.raises((KeyError, ValueError, TypeError)):
            orders.Order(data)


# -- lines on a disk that has room for a part of them -----------------------------------------------------------------


@given(
    room=st.lists(st.integers(0, 120), max_size=30),
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=12),
)
def test_lines_survive_a_full_disk(tmp_path_factory: pytest.TempPathFactory, room: list[int], texts: list[str]) -> None:
    """However little of a line is written at a time: all lines are there in the end, once and in order."""
    path = tmp_path_factory.mktemp("runs") / "r"
    path.mkdir()
    folder = Folder(str(path))
    left = list(room)

    class Disk:
        """`os`, with a disk that takes some bytes of each write."""

        def __getattr__(self, name: str) -> Any:
            import os

            return getattr(os, name)

        def write(self, fd: int, data: bytes) -> int:
            import os

            limit = left.pop(0) if left else len(data)
            if limit == 0:
                raise OSError(28, "No space left on device")
            return os.write(fd, bytes(data)[:limit])

    from tuner.probe.supervisor import files

    real = files.os
    files.os = Disk()  # type: ignore[assignment]
    try:
        for text in texts:
            folder.append("journal.ndjson", {"text": text})
        while not folder.flush():
            pass
    finally:
        files.os = real
    found = []
    for line in (path / "journal.ndjson").read_bytes().split(b"\n"):
        try:
            found.append(json.loads(line)["text"])
        except ValueError:
            continue  # a torn line, which is there once more as a whole
    assert found == texts


# -- a start that loads for long --------------------------------------------------------------------------------------


def test_the_process_table_is_read_less_often_while_a_server_loads_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0])
    monkeypatch.setattr(readiness, "time", clock)
    monkeypatch.setattr(desk, "time", clock)
    scans: list[float] = []
    alive = SimpleNamespace(alive=True)
    server = SimpleNamespace(
        scan=lambda: scans.append(now[0]), leader=alive, vanished=list, living_ranks=lambda: 0, ended=False
    )
    launch = SimpleNamespace(argv=[], deadline_s=600.0)
    means: Any = SimpleNamespace(pulse=None)
    watch = readiness.Readiness(means, launch, server, None, now[0])  # type: ignore[arg-type]

    def count(seconds: float) -> int:
        scans.clear()
        for _ in range(int(seconds / readiness.EVERY_S)):
            watch._look()
            now[0] += readiness.EVERY_S
        return len(scans)

    assert count(readiness.QUICK_S) == readiness.QUICK_S / readiness.EVERY_S
    assert count(20.0) == 20.0 / readiness.SLOW_S
    server.ended = True
    assert count(1.0) == 1.0 / readiness.EVERY_S, "what has ended is looked at at once"
    server.ended = False
    watch._look()
    watch._look(fresh=True)
    assert scans[-1] == now[0]


def test_the_end_of_a_member_is_known_without_the_process_table() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        stat = processes.read_stat(child.pid)
        assert stat is not None
        pulse: Any = SimpleNamespace(exits={}, helpers=set())
        found = members.Members(orders.ProcessId(child.pid, stat.ticks, None, ""), pulse=pulse, child=True)
        assert not found.ended
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert found.ended
        found.close()
        assert not found.ended
        pulse.exits[child.pid] = -9
        assert found.ended
    finally:
        child.kill()
        child.wait()


# -- answers of servers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "series", "count"),
    [
        ({"loads": [{"running": 2, "waiting": 1}, {"running": 3}]}, ["running", "waiting"], 6),
        ({"running": True}, ["running"], None),
        ({"other": 1}, ["running"], None),
        ('# HELP x\nvllm:running{engine="0",a="}"} 2.0\nvllm:running{engine="1"} 1\n', ["vllm:running"], 3),
        ("vllm:running NaN\n", ["vllm:running"], None),
        ("vllm:running_total 4\n", ["vllm:running"], None),
    ],
)  # fmt: skip
def test_requests_in_flight_are_counted(body: Any, series: list[str], count: float | None) -> None:
    class Client:
        def get(self, *_: Any) -> tuple[int, bytes]:
            return 200, (body if isinstance(body, str) else json.dumps(body)).encode()

    answer = asking._count(Client(), "", 0, {}, {"path": "/x", "series": series})  # type: ignore[arg-type]
    assert answer.get("count") == count


@pytest.mark.parametrize(
    ("one", "other", "hit"),
    [
        ("0.0.0.0", "0.0.0.0", True), ("127.0.0.1", "0.0.0.0", True), ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "127.0.0.1", False), ("::", "0.0.0.0", False), ("::", "::1", True), ("fd00::1", "::1", False),
    ],
)  # fmt: skip
def test_which_sockets_get_connections_of_each_other(one: str, other: str, hit: bool) -> None:
    assert (asking._overlap(one, other), asking._overlap(other, one)) == (hit, hit)


def test_the_name_of_the_llm_is_filled_in_at_any_depth() -> None:
    body = {"model": "{model}", "list": ["a {model}", 1, {"x": None}]}
    assert asking._filled(body, "m") == {"model": "m", "list": ["a m", 1, {"x": None}]}


@pytest.mark.parametrize(
    ("address", "host", "hit"),
    [
        ("127.0.0.1", None, True), ("0.0.0.0", None, True), ("::", "127.0.0.1", True), ("10.0.0.1", None, False),
        ("10.0.0.1", "0.0.0.0", True), ("127.0.0.1", "10.0.0.1", False), ("127.0.0.2", "127.0.0.1", False),
        ("10.0.0.1", "gpu-box", True), ("::1", "localhost", True),
    ],
)  # fmt: skip
def test_who_listens_elsewhere_is_not_in_the_way(address: str, host: str | None, hit: bool) -> None:
    assert asking._in_the_way(address, host) is hit


def test_an_end_in_words() -> None:
    assert words_for(0) == "ended with exit code 0"
    assert words_for(-9) == "was ended by SIGKILL"
    assert words_for(-62) == "was ended by signal 62"
    assert words_for(None) == "ended"


def test_a_lock_is_told_with_its_run(tmp_path: Path) -> None:
    paths = [tmp_path / "runs" / name for name in ("one", "two")]
    for path in paths:
        path.mkdir(parents=True)
    first, second = (Folder(str(path)) for path in paths)
    assert first.take_lock() is None
    assert second.take_lock() == "one"
    first.release_lock()
    assert second.take_lock() is None


# -- who is a member --------------------------------------------------------------------------------------------------


class Table:
    """A process table, with titles and runs, in place of the host's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stats: dict[int, processes.Stat] = {}
        self.titles: dict[int, str] = {}
        self.runs: dict[int, str] = {}
        monkeypatch.setattr(members, "process_table", lambda: dict(self.stats))
        monkeypatch.setattr(members, "title_of", lambda pid: self.titles.get(pid, ""))
        monkeypatch.setattr(members, "run_of", self.runs.get)
        monkeypatch.setattr(members, "owner_of", lambda pid: 0)
        monkeypatch.setattr(members, "_pidfd", lambda identity: -1)

    def add(self, pid: int, ppid: int = 1, session: int = 1, title: str = "", state: str = "S") -> None:
        self.stats[pid] = processes.Stat(state, ppid, session, 10 * pid)
        self.titles[pid] = title

    def members(self, leader: int, others: tuple[int, ...] = (), run: str = "") -> members.Members:
        known = [orders.ProcessId(pid, 10 * pid) for pid in others]
        aim = orders.ProcessId(leader, 10 * leader)
        return members.Members(aim, known, ["^toy::rank_"], run, pulse=SimpleNamespace(helpers=set(), exits={}))  # type: ignore[arg-type]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(monkeypatch)


def pids(found: members.Members) -> set[int]:
    found.scan()
    return {member.id.pid for member in found.living}


LEADER_PID, RANK_PID, CHILD_PID = 9_000_001, 9_000_002, 9_000_003


def test_a_rank_s_child_that_has_not_executed_its_program_yet_is_no_rank(table: Table) -> None:
    """It has the title of the rank that forked it, and its end is no failure."""
    table.add(LEADER_PID)
    table.add(RANK_PID, LEADER_PID, title="toy::rank_TP0")
    table.add(CHILD_PID, RANK_PID, title="toy::rank_TP0")
    found = table.members(LEADER_PID)
    assert pids(found) == {LEADER_PID, RANK_PID, CHILD_PID}
    assert found.living_ranks() == 1
    del table.stats[CHILD_PID]
    assert pids(found) == {LEADER_PID, RANK_PID}
    assert found.vanished() == []
    del table.stats[RANK_PID]
    assert pids(found) == {LEADER_PID}
    assert [member.id.pid for member in found.vanished()] == [RANK_PID]


def test_a_later_daemon_whose_session_has_the_leader_s_number_is_no_member(table: Table) -> None:
    """The leader's PID was used again by a daemon, which ended after it had forked, as daemons do."""
    table.add(CHILD_PID, 1, session=LEADER_PID, title="daemon")
    assert pids(table.members(LEADER_PID, (RANK_PID,), run="r")) == set()


@pytest.mark.parametrize("state", ["S", "Z"])
def test_all_of_the_leader_s_session_are_members(table: Table, state: str) -> None:
    table.add(LEADER_PID, 1, session=LEADER_PID, state=state)
    table.add(CHILD_PID, 1, session=LEADER_PID)
    assert CHILD_PID in pids(table.members(LEADER_PID, run="r"))
    assert CHILD_PID not in pids(table.members(LEADER_PID))


def test_a_known_member_proves_whose_session_it_is(table: Table) -> None:
    table.add(RANK_PID, 1, session=LEADER_PID)
    table.add(CHILD_PID, 1, session=LEADER_PID)
    assert pids(table.members(LEADER_PID, (RANK_PID,), run="r")) == {RANK_PID, CHILD_PID}
    table.stats[RANK_PID] = table.stats[RANK_PID]._replace(ticks=7)  # another process now
    assert pids(table.members(LEADER_PID, (RANK_PID,), run="r")) == set()
    table.runs[CHILD_PID] = "r"
    assert pids(table.members(LEADER_PID, (RANK_PID,), run="r")) == {CHILD_PID}


# -- children ---------------------------------------------------------------------------------------------------------


def test_a_child_does_not_end_as_an_earlier_one_with_its_pid_did() -> None:
    from tuner.probe.supervisor.pulse import Pulse

    pulse = Pulse.__new__(Pulse)
    pulse.exits, pulse.helpers = {7: -9}, set()
    pulse.born(7)
    assert (pulse.exits, pulse.helpers) == ({}, {7})


def test_a_session_of_another_run_that_got_the_leader_s_number_has_no_members(
    monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    """An interrupted stop is resumed when the PID of its leader is that of a server of another run."""
    table.add(LEADER_PID, session=LEADER_PID)
    table.add(CHILD_PID, LEADER_PID, session=LEADER_PID)
    table.runs.update({LEADER_PID: "another", CHILD_PID: "another"})
    monkeypatch.setattr(run, "read_stat", table.stats.get)
    monkeypatch.setattr(run, "run_of", table.runs.get)
    stop = {"boot_id": "b", "leader": {"pid": LEADER_PID, "start_ticks": 1}}
    record = SimpleNamespace(progress={"phase": "stop"}, journal=lambda *_, **__: True)
    pulse = SimpleNamespace(helpers=set(), exits={})
    means: Any = SimpleNamespace(order=orders.Order({**BARE, "stop": stop}), record=record, pulse=pulse)
    found = run.Run(means)._old_members()
    assert found is not None
    assert found.living == []


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
def test_a_signal_goes_to_the_process_that_was_checked_also_in_a_python_without_pidfds(
    monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """Python 3.8 has no functions for them, but a kernel since 5.3 has the calls."""
    if old:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)

    def by_number(*_: Any) -> None:
        raise AssertionError("the PID could be another process's by now")

    child = subprocess.Popen(["sleep", "600"])
    try:
        stat = processes.read_stat(child.pid)
        assert stat is not None
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", by_number)
            assert identity.send(child.pid, stat.ticks + 1, None, signal.SIGKILL) != ""
            assert identity.send(child.pid, stat.ticks, None, signal.SIGTERM) == ""
        assert child.wait(20) == -signal.SIGTERM
        assert identity.send(child.pid, stat.ticks, None, signal.SIGTERM) == identity.NO_PROCESS
        assert members.Member(orders.ProcessId(os.getpid(), own_ticks())).fd >= 0
    finally:
        child.kill()
        child.wait()


def own_ticks() -> int:
    found = processes.read_stat(os.getpid())
    assert found is not None
    return found.ticks


# -- adopted by another supervisor ------------------------------------------------------------------------------------


def test_a_server_that_a_simulated_process_table_does_not_show_yet_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor was killed when it had recorded the real start ticks, and not yet those of the simulated table."""
    real, shown = processes.Stat("S", 1, 7, 70), processes.Stat("S", 1, 7, 700)
    monkeypatch.setattr(start, "HOST_ROOT", "/simulated")
    monkeypatch.setattr(start, "read_stat", lambda pid, proc="": real if proc == "/proc" else None)
    monkeypatch.setattr(start, "own_stat", lambda pid, pulse: shown)
    monkeypatch.setattr(start, "_by_token", lambda run, since: [])
    monkeypatch.setattr(start, "_await_program", lambda desk, pid: None)
    monkeypatch.setattr(members.Members, "scan", lambda self: None)
    record: Any = SimpleNamespace(
        data={"new": {"pid": 7, "start_ticks": 70}}, progress={}, process=lambda name, value: None
    )
    means: Any = SimpleNamespace(record=record, folder=SimpleNamespace(run="r"), pulse=None)
    found = start.Start.found(means, orders.Launch({}), back=False)
    assert found is not None
    assert found.members.leader.id.ticks == 700
