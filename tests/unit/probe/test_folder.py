"""Where gputuner's folder is, and what becomes of acts when it is full."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.probe.agent import acts, folder
from tuner.probe.agent.base import Refused

OPERATOR = {"session": "s", "name": "ann", "machine": ""}


@pytest.mark.parametrize(("me", "owner", "own"), [(0, 0, True), (0, 1000, False), (1000, 1000, True), (1000, 0, True),
                                                  (1000, 1001, False)])  # fmt: skip
def test_the_home_folder_of_another_user_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, me: int, owner: int, own: bool
) -> None:
    """Root often has the $HOME of who called sudo, who could replace what root runs from there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(folder, "ME", me)
    monkeypatch.setattr(folder, "stat_of", lambda path: SimpleNamespace(st_uid=owner))
    monkeypatch.setattr(folder, "home_of", lambda uid: f"/home/{uid}")
    assert folder.our_folder() == (str(tmp_path) if own else f"/home/{me}") + "/.gputuner"


class Full:
    """An audit on a disk that is full once an act has begun, and the probe to which that is a problem."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        monkeypatch.setenv("HOME", str(home))
        (home / ".gputuner").mkdir()
        monkeypatch.setattr(acts, "audit", self.audit)
        self.outcomes: list[str] = []
        self.problems: list[tuple[str, ...]] = []
        problems = SimpleNamespace(note=lambda *told: self.problems.append(told), clear=lambda *_: None)
        lease = SimpleNamespace(require=lambda operator: None, held=True)
        self.door = acts.Door(SimpleNamespace(problems=problems), lease, SimpleNamespace())  # type: ignore[arg-type]

    def audit(self, by: str, operator: Any, outcome: str, **what: Any) -> None:
        self.outcomes.append(outcome)
        if outcome != "begins":
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("refused", [False, True])
def test_an_act_is_answered_as_it_went_though_the_disk_is_full_by_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: bool
) -> None:
    def handler(*_: Any) -> dict[str, Any]:
        if refused:
            raise Refused("not now", "later")
        return {"run": "r"}

    full = Full(monkeypatch, tmp_path)
    full.door.handlers["cancel-run"] = handler
    answer = full.door._answer({"act": {"act": "cancel-run", "run": "r"}, "operator": OPERATOR})
    assert answer == ({"error": "not now", "hint": "later"} if refused else {"run": "r"})
    assert full.outcomes == ["begins", "refused" if refused else "done"]
    assert full.problems == [("folder", str(tmp_path / ".gputuner/audit.ndjson"), "No space left on device")]


@pytest.mark.parametrize(("number", "path"), [(28, None), (28, "x/lock.1.part"), (122, None)])
def test_a_full_home_is_told_with_its_folder_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, path: str | None
) -> None:
    """A write that fails does not name its file, and the name of a temporary file helps nobody."""

    def handler(*_: Any) -> dict[str, Any]:
        raise OSError(number, "No room", path)

    full = Full(monkeypatch, tmp_path)
    full.door.handlers["cancel-run"] = handler
    monkeypatch.setattr(folder.os, "statvfs", lambda _: SimpleNamespace(f_bavail=2, f_frsize=4096, f_favail=1))
    monkeypatch.setattr(folder.os.path, "ismount", lambda place: place == str(tmp_path))
    answer = full.door._answer({"act": {"act": "cancel-run", "run": "r"}, "operator": OPERATOR})
    assert answer == {
        "error": f"{tmp_path}/.gputuner: No room",
        "hint": f"free space on {tmp_path}, which has 8192 bytes left",
    }


def test_a_disk_without_inodes_has_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disk = SimpleNamespace(f_bavail=9, f_frsize=4096, f_favail=0, f_files=100)
    monkeypatch.setattr(folder.os, "statvfs", lambda _: disk)
    assert folder.disk_of(str(tmp_path / "not/there"))[1] == 0
    disk.f_files = 0  # a file system that has no fixed number of them
    assert folder.disk_of(str(tmp_path / "not/there"))[1] == 9 * 4096
