"""Endpoints of a server: whose network is asked, and what happens when asking itself fails."""

from __future__ import annotations

import ctypes
import errno
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.probe.agent import polling, sockets
from tuner.probe.agent.http_client import HttpProblem
from tuner.probe.agent.polling import Poller
from tuner.probe.agent.processes import Proc

PLAN = {"id": "info", "paths": ["/info"]}


def poller(parse: str = "json", **probe: Any) -> Poller:
    server: Any = SimpleNamespace(probe=SimpleNamespace(**probe), leader=Proc(4711), ended=threading.Event(), tls=False)
    return Poller(server, {**PLAN, "parse": parse})


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> dict[str, Any]:
    """A process in a network namespace that may not be entered, until `code` is 0."""
    (tmp_path / "4711/ns").mkdir(parents=True)
    (tmp_path / "4711/ns/net").write_text("")
    state: dict[str, Any] = {"code": errno.EPERM, "link": "net:[1]"}

    def setns(fd: int, kind: int) -> int:
        ctypes.set_errno(state["code"])
        return -1 if state["code"] else 0

    monkeypatch.setattr(polling, "HOST_ROOT", "")
    for module in (polling, sockets):
        monkeypatch.setattr(module, "PROC", str(tmp_path))
    monkeypatch.setattr(sockets, "link_of", lambda path: state["link"] if "4711" in path else "net:[2]")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(setns=setns))
    return state


@pytest.mark.parametrize("link", ["net:[1]", None])
def test_a_network_that_cannot_be_entered_is_never_mistaken_for_ours(
    namespace: dict[str, Any], link: str | None
) -> None:
    namespace["link"] = link
    asking = poller()
    for _ in range(3):
        with pytest.raises(HttpProblem, match="namespace"):
            asking._enter()
    namespace["code"] = 0
    asking._enter()
    namespace["code"] = errno.EPERM
    asking._enter()  # entered once is entered


def test_our_own_network_needs_no_entering(namespace: dict[str, Any]) -> None:
    namespace["link"] = "net:[2]"
    poller()._enter()


def test_a_fault_is_told_and_the_endpoint_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[tuple[str, BaseException]] = []
    asking = poller(fault=lambda where, error: faults.append((where, error)))
    turns = iter([RecursionError("too deep"), 0.0])

    def turn() -> float:
        found = next(turns)
        if isinstance(found, Exception):
            raise found
        asking.server.ended.set()
        return found

    monkeypatch.setattr(asking, "_turn", turn)
    monkeypatch.setattr(Poller, "FAULT_S", 0.0)
    asking.run()
    assert asking.asked.is_set()
    assert [(where, str(error)) for where, error in faults] == [("endpoint info", "too deep")]


@pytest.mark.parametrize(("parse", "second"), [("prometheus", 0.5), ("json", 2.0)])
def test_metrics_are_read_twice_when_work_begins(monkeypatch: pytest.MonkeyPatch, parse: str, second: float) -> None:
    """A rate takes two readings, and the last one before is too old for that."""
    asking = poller(parse=parse)
    woken = iter([True, False, False])
    delays: list[float] = []

    def wait(delay: float) -> bool:
        delays.append(delay)
        if len(delays) == 3:
            asking.server.ended.set()
        return next(woken)

    monkeypatch.setattr(asking, "_turn", lambda: 2.0)
    monkeypatch.setattr(asking, "wake", SimpleNamespace(wait=wait, clear=lambda: None))
    asking.run()
    assert delays == [2.0, second, 2.0]


@pytest.mark.parametrize(
    ("problem", "age_s", "told_at"),
    [
        (HttpProblem("http-nonsense", "not HTTP"), 5.0, 1),
        (HttpProblem("http-nonsense", "closed the connection without an answer", passing=True), 5.0, 3),
        (HttpProblem("http-refused", "connection refused"), 100.0, 3),
        (HttpProblem("http-refused", "connection refused"), 5.0, None),
    ],
)
def test_a_server_on_its_way_out_is_not_called_nonsense(
    problem: HttpProblem, age_s: float, told_at: int | None
) -> None:
    told: list[str] = []
    asking = poller(problems=SimpleNamespace(note=lambda code, *rest: told.append(code)))
    asking.server.address, asking.server.key, asking.server.age_s = ("127.0.0.1", 1), "1:1", age_s
    first = None
    for turn in range(1, 5):
        asking._failed(problem)
        first = first or (turn if told else None)
    assert first == told_at
