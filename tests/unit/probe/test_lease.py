"""One operator at a time may change a host, whatever is taken, taken over, given back, lost or late."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tuner.probe.agent import acts, lease
from tuner.probe.agent.base import Refused
from tuner.probe.agent.lease import LeaseKeeper, is_live

OPERATORS = [{"session": f"s{n}", "name": f"n{n}", "machine": "m"} for n in range(3)]


class Lines:
    """Stands for the queue of lines to the laptop."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {"holder": None, "mine": False, "beat_at": None, "lost_to": None}

    def put(self, event: dict[str, Any]) -> None:
        self.lease = event["lease"]


class Probes(RuleBasedStateMachine):
    """Three probes on one host, whose clocks are the same."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1_000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now + 1e9)
        self.patch.setattr(lease, "time", clock)
        self.patch.setattr(lease, "boot_id", lambda: "boot")
        self.patch.setenv("HOME", self.folder.name)
        self.lines = [Lines() for _ in OPERATORS]
        self.keepers: list[Any] = [LeaseKeeper(lines) for lines in self.lines]  # type: ignore[arg-type]
        self.beat: dict[int, float] = {}
        """When each operator last took the lease or gave a sign of life."""
        self.holder: int | None = None

    def teardown(self) -> None:
        self.patch.undo()
        self.folder.cleanup()

    def is_free_for(self, who: int) -> bool:
        return self.holder in (None, who) or self.now - self.beat[self.holder] >= 30.0  # type: ignore[index]

    @rule(who=st.integers(0, 2), seize=st.booleans())
    def take(self, who: int, seize: bool) -> None:
        free = self.is_free_for(who)
        try:
            self.keepers[who].take(OPERATORS[who], seize)
        except Refused as refused:
            assert not free
            assert not seize
            assert OPERATORS[self.holder]["name"] in str(refused)  # type: ignore[index]
        else:
            assert free or seize
            self.holder, self.beat[who] = who, self.now

    @rule(who=st.integers(0, 2))
    def release(self, who: int) -> None:
        self.keepers[who].release()
        if self.holder == who:
            self.holder = None

    @rule(who=st.integers(0, 2), seconds=st.sampled_from([0.5, 4.0, 6.0, 29.0, 31.0]))
    def wait(self, who: int, seconds: float) -> None:
        """Only one probe is there meanwhile; the others are killed, or stopped."""
        self.now += seconds
        self.keepers[who].tick()
        if self.holder == who and self.now - self.beat[who] >= 5.0:
            self.beat[who] = self.now

    @rule(who=st.integers(0, 2))
    def act(self, who: int) -> None:
        try:
            self.keepers[who].require(OPERATORS[who])
        except Refused:
            assert self.holder != who
        else:
            assert self.holder == who, "an act of one who does not hold the lease"
            self.beat[who] = self.now

    @invariant()
    def what_is_told_is_true_after_a_look(self) -> None:
        for who, (keeper, lines) in enumerate(zip(self.keepers, self.lines, strict=True)):
            if self.now >= keeper._beat_due and keeper.held:
                continue  # a look would be a sign of life
            keeper.tick()
            assert keeper.held == (self.holder == who)
            told = lines.lease["holder"]
            if self.holder is None or self.now - self.beat[self.holder] >= 30.0:
                assert told is None
            elif self.now - self.beat[self.holder] < 25.0:
                assert told["session"] == OPERATORS[self.holder]["session"]
            assert lines.lease["mine"] == (self.holder == who)


Probes.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestProbes = Probes.TestCase


@pytest.mark.parametrize(
    ("entry", "live"),
    [
        ({"boot_id": "here", "mono": 990.0, "beat": 0.0}, True),
        ({"boot_id": "here", "mono": 969.0, "beat": 5_000.0}, False),
        ({"boot_id": "here", "mono": 9_000.0, "beat": 4_990.0}, True),
        ({"boot_id": "here", "mono": 9_000.0, "beat": 4_000.0}, False),
        ({"boot_id": "before", "hostname": "box", "mono": 990.0, "beat": 5_000.0}, False),
        ({"boot_id": "theirs", "hostname": "other", "mono": 1.0, "beat": 4_990.0}, True),
        ({"boot_id": "theirs", "hostname": "other", "mono": 1.0, "beat": 4_900.0}, False),
        ({"mono": "text"}, False),
        ({}, False),
    ],
)
def test_signs_of_life(monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], live: bool) -> None:
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: 1_000.0, time=lambda: 5_000.0))
    monkeypatch.setattr(lease, "boot_id", lambda: "here")
    monkeypatch.setattr(lease, "hostname", lambda: "box")
    assert is_live(entry) is live


def test_root_respects_the_lease_of_the_user_whose_server_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".gputuner").mkdir()
    path = tmp_path / ".gputuner/lease.json"
    monkeypatch.setattr(lease, "home_of", lambda uid: str(tmp_path))
    monkeypatch.setattr(lease, "boot_id", lambda: "here")
    monkeypatch.setattr(acts, "boot_id", lambda: "here")
    monkeypatch.setattr(acts, "why_not", lambda pid, ticks, uid: "")
    monkeypatch.setattr(acts, "owner_of", lambda pid: 61_234)
    monkeypatch.setattr(acts, "user_name", lambda uid: "alice" if uid else "root")
    monkeypatch.setattr(acts, "ME", 0)
    door: Any = acts.Door(SimpleNamespace(), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    stop = {"boot_id": "here", "leader": {"pid": 5, "start_ticks": 6, "uid": 61_234}}
    door._prove(stop, OPERATORS[0])
    entry = {**OPERATORS[1], "boot_id": "here", "mono": lease.time.monotonic()}
    path.write_text(json.dumps(entry))
    with pytest.raises(Refused, match="n1 at m has the right to change alice's servers"):
        door._prove(stop, OPERATORS[0])
    door._prove(stop, OPERATORS[1])
    path.write_text(json.dumps({**entry, "mono": entry["mono"] - 60}))
    door._prove(stop, OPERATORS[0])
    monkeypatch.setattr(acts, "ME", 1_000)
    with pytest.raises(Refused, match="belongs to alice"):
        door._prove(stop, OPERATORS[0])
