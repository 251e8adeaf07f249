"""The way from this machine to a change of a host, with a puppet for a probe: what is sent, and what never is."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.remote.test_session import session
from tests.support.facts import until
from tests.support.puppet import Puppet
from tuner.core.run_words import operator_name
from tuner.domain.acts import (
    AnyAct,
    CancelRun,
    Clean,
    EndLeftovers,
    ReleaseLease,
    ResumeRun,
    Switch,
    TakeLease,
)
from tuner.domain.preflight import PreflightAsk
from tuner.domain.runs import LaunchOrder, Operator, ProcessId, SwitchOrder
from tuner.errors import ConnectionFailed
from tuner.probe import bootstrap
from tuner.session.acts import new_run_id, this_operator
from tuner.session.session import Session
from tuner.session.tasks import spawn

ORDER = SwitchOrder(run="run-1", operator=this_operator(), start=LaunchOrder(argv=("x", "--api-key", "***")))
EVERY: dict[str, AnyAct] = {
    "take-lease": TakeLease(seize=True),
    "release-lease": ReleaseLease(),
    "switch": Switch(order=ORDER),
    "cancel-run": CancelRun(run="run-1"),
    "resume-run": ResumeRun(run="run-1"),
    "end-leftovers": EndLeftovers(run="run-1", processes=(ProcessId(pid=5, start_ticks=6),)),
    "clean": Clean(),
}
OTHER = '{"session": "s2", "name": "bob", "machine": "desk", "since": time.time() - 60}'

PROBE = """
hello()
send("scanned")
LEASE
taken = False
for number, order in enumerate(serve()):
    leave("order-%d" % number, order)
    act = order.get("act", {})
    if order["op"] == "act":
        if act["act"] == "take-lease":
            send("lease", lease={"holder": order["operator"], "mine": True, "beat_at": time.time()})
        ANSWER
        send("acted", id=order["id"], error=None, run=act.get("order", {}).get("run", act.get("run", "")))
"""


def probe(lease: str = "", answer: str = "pass") -> str:
    return PROBE.replace("LEASE", lease).replace("ANSWER", answer)


def orders(folder: Path) -> list[dict[str, Any]]:
    found = sorted(folder.glob("order-*"), key=lambda path: int(path.name.partition("-")[2]))
    return [json.loads(path.read_text()) for path in found if path.suffix != ".part"]


def tags(folder: Path) -> list[str]:
    return [order["act"]["act"] for order in orders(folder) if order["op"] == "act"]


@asynccontextmanager
async def connected(act: str, folder: Path, **options: Any) -> AsyncIterator[Session]:
    made = session(Puppet(act, folder), **options)
    work = spawn(made.run(), name="session")
    try:
        await until(lambda: made.state.scanned)
        yield made
    finally:
        await made.aclose()
        await work


@pytest.mark.parametrize("act", EVERY.values(), ids=EVERY)
async def test_a_read_only_session_sends_nothing_whatever_is_confirmed(act: AnyAct, tmp_path: Path) -> None:
    async with connected(probe(), tmp_path, read_only=True) as made:
        done = await made.act(act, confirmed=True)
    assert made.read_only
    assert done.error is not None
    assert "read-only" in done.error
    assert orders(tmp_path) == []


@pytest.mark.parametrize("act", EVERY.values(), ids=EVERY)
async def test_what_is_not_confirmed_is_not_sent(act: AnyAct, tmp_path: Path) -> None:
    async with connected(probe(), tmp_path) as made:
        done = await made.act(act, confirmed=False)
    assert done.error is not None
    assert orders(tmp_path) == []


@pytest.mark.parametrize("act", EVERY.values(), ids=EVERY)
async def test_a_dry_run_tells_what_would_be_sent_and_sends_nothing(act: AnyAct, tmp_path: Path) -> None:
    async with connected(probe(), tmp_path, dry_run=True) as made:
        done = await made.act(act, confirmed=True)
    assert done.error is not None
    assert done.would["act"] in EVERY
    assert done.hint == ""
    assert orders(tmp_path) == []


@pytest.mark.parametrize("act", EVERY.values(), ids=EVERY)
async def test_the_lease_is_taken_first_where_nobody_has_it(act: AnyAct, tmp_path: Path) -> None:
    async with connected(probe(), tmp_path) as made:
        done = await made.act(act, confirmed=True)
        own = [] if isinstance(act, TakeLease | ReleaseLease) else ["take-lease"]
        tag = next(name for name, each in EVERY.items() if each is act)
        assert done.error is None
        assert tags(tmp_path) == [*own, tag]
        again = await made.act(CancelRun(run="run-1"), confirmed=True)
        assert again.error is None
        if own:
            assert tags(tmp_path) == [*own, tag, "cancel-run"], "a lease that one has is not taken again"
    for order in orders(tmp_path):
        assert order["operator"]["name"] == this_operator().name
        assert order["operator"]["session"] == this_operator().session
        code = order.get("code")
        assert (code is not None) is (order["act"]["act"] in ("switch", "resume-run"))
        if code is not None:
            assert zlib.decompress(base64.b64decode(code)) == bootstrap.supervisor()


@pytest.mark.parametrize("act", EVERY.values(), ids=EVERY)
async def test_where_another_has_the_lease_only_taking_it_over_is_sent(act: AnyAct, tmp_path: Path) -> None:
    lease = f'send("lease", lease={{"holder": {OTHER}, "mine": False, "beat_at": time.time()}})'
    async with connected(probe(lease), tmp_path) as made:
        await until(lambda: made.state.lease.holder is not None)
        done = await made.act(act, confirmed=True)
    holder = made.state.lease.holder
    assert holder is not None
    if isinstance(act, TakeLease | ReleaseLease):
        assert done.error is None
        return
    assert done.error is not None
    assert operator_name(Operator(session="", name="bob", machine="desk")) in done.error
    assert orders(tmp_path) == []


async def test_a_lease_without_a_sign_of_life_is_asked_for_and_the_host_decides(tmp_path: Path) -> None:
    lease = f'send("lease", lease={{"holder": {OTHER}, "mine": False, "beat_at": time.time() - 120}})'
    async with connected(probe(lease), tmp_path) as made:
        await until(lambda: made.state.lease.holder is not None)
        done = await made.act(Clean(), confirmed=True)
    assert done.error is None
    assert tags(tmp_path) == ["take-lease", "clean"]
    assert orders(tmp_path)[0]["act"]["seize"] is False


async def test_a_lease_that_the_host_refuses_ends_the_act(tmp_path: Path) -> None:
    refuse = 'send("acted", id=order["id"], error="bob holds it", hint="ask bob"); continue'
    async with connected(probe(answer=refuse), tmp_path) as made:
        made_state = await made.act(Switch(order=ORDER), confirmed=True)
    assert (made_state.error, made_state.hint, made_state.run) == ("bob holds it", "ask bob", "")
    assert tags(tmp_path) == ["take-lease"]


async def test_an_order_whose_answer_never_came_is_told_as_sent(tmp_path: Path) -> None:
    answer = 'vanish() if act["act"] == "switch" else None'
    async with connected(probe(answer=answer), tmp_path) as made:
        done = await made.act(Switch(order=ORDER), confirmed=True)
    assert done.error is not None
    assert done.error.startswith("sent, and no answer came")
    assert done.run == "run-1", "it may have begun"


async def test_without_a_link_nothing_was_sent_and_no_run_can_have_begun(tmp_path: Path) -> None:
    made = session(Puppet(probe(), tmp_path))
    done = await made.act(Switch(order=ORDER), confirmed=True)
    assert done.error is not None
    assert done.error.startswith("not sent")
    assert done.run == ""
    await made.aclose()


async def test_after_a_clean_the_host_has_no_runs(tmp_path: Path) -> None:
    told = 'send("run", run={"id": "run-0", "operator": {"session": "s", "name": "n"}, "began_at": 1, "updated_at": 2})'
    async with connected(probe(told), tmp_path) as made:
        await until(lambda: made.state.runs)
        assert (await made.act(Clean(), confirmed=True)).error is None
        assert made.state.runs == ()


# Facts before a switch.

FACTS = """
hello()
send("scanned")
for number, order in enumerate(serve()):
    leave("order-%d" % number, order)
    facts = {"version": {"package": "x", "version": open(os.path.join(folder, "version")).read()}}
    if order["ask"]["help_argv"]:
        facts["help"] = {"text": "usage of " + facts["version"]["version"]}
    send("preflight", id=order["id"], facts=facts)
"""
ASK = PreflightAsk(command=("x",), help_argv=("x", "--help"))


def asked_for_help(folder: Path) -> list[bool]:
    return [bool(order["ask"]["help_argv"]) for order in orders(folder)]


async def test_the_help_of_a_version_is_run_once_and_again_for_another(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text("1.0")
    seen = 'send("server", server={"key": "1:1", "engine": "plain", "pid": 1, "start_ticks": 1, "version": "1.0"})'
    act = FACTS.replace('send("scanned")', f'{seen}\nsend("scanned")')
    async with connected(act, tmp_path) as made:
        first = await made.preflight(ASK)
        assert first.facts["help"]["text"] == "usage of 1.0"
        second = await made.preflight(ASK)
        assert second.facts["help"]["text"] == "usage of 1.0"
        assert asked_for_help(tmp_path) == [True, False]
        version.write_text("2.0")
        third = await made.preflight(ASK)
        assert third.facts["help"]["text"] == "usage of 2.0", "it was installed meanwhile"
        assert asked_for_help(tmp_path) == [True, False, False, True]
        await made.preflight(PreflightAsk())
        assert asked_for_help(tmp_path)[-1] is False


async def test_facts_of_a_host_that_is_not_connected_are_an_error(tmp_path: Path) -> None:
    made = session(Puppet(FACTS, tmp_path))
    with pytest.raises(ConnectionFailed):
        await made.preflight(ASK)
    await made.aclose()


def test_run_ids_sort_by_time_and_are_never_the_same() -> None:
    made = [new_run_id() for _ in range(50)]
    assert len(set(made)) == 50
    assert all(len(each) == len("20261130-101523-a1b2c3d4") for each in made)
