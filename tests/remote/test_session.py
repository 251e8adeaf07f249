"""A session with a puppet for a probe: what it shows, how it loses the link and finds it again, what it refuses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.support.facts import until
from tests.support.plain_engine import PlainEngine
from tests.support.puppet import Puppet
from tuner.core.redact import MASK
from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.history import StartRecord
from tuner.domain.link import LinkPhase, Target
from tuner.domain.state import HostState
from tuner.errors import CatalogError, ConnectionFailed, TunerError
from tuner.session.link import Timing
from tuner.session.session import Session, open_session
from tuner.session.tasks import spawn
from tuner.store.history import History
from tuner.store.journal import Journal, read_events

ENGINES = {"plain": PlainEngine()}
HASTY = Timing(tick=0.02, ping=0.05, stale=0.3, lost=30.0, hello=5.0, backoff=(0.05, 0.1, 0.2), steady=0.2, frame=0.05)

IDLE = """
hello()
send("scanned")
send("gpu_info", gpus=[])
idle()
"""


async def nobody(question: Any) -> str | None:
    raise AssertionError(f"nothing should be asked: {question}")


def session(puppet: Puppet, *, timing: Timing = HASTY, **options: Any) -> Session:
    return Session(Target(name="box", scheme="local"), puppet, ENGINES, ask=nobody, timing=timing, **options)


class Watched:
    """A session at work, and every link state it showed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.links: list[LinkPhase] = []
        self.states: list[HostState] = []

    async def follow(self) -> None:
        async for state in self.session.snapshots():
            self.states.append(state)
            if not self.links or self.links[-1] is not state.link.phase:
                self.links.append(state.link.phase)

    @property
    def state(self) -> HostState:
        return self.session.state

    async def until(self, true: Callable[[HostState], object]) -> HostState:
        await until(lambda: true(self.session.state))
        return self.session.state

    async def up(self) -> HostState:
        return await self.until(lambda state: state.link.phase is LinkPhase.UP)


@contextlib.asynccontextmanager
async def at_work(made: Session) -> AsyncIterator[Watched]:
    watched = Watched(made)
    work = spawn(made.run(), name="session")
    follower = spawn(watched.follow(), name="follower")
    try:
        yield watched
    finally:
        async with asyncio.timeout(15):
            await made.aclose()
            await work
            await follower


def journal(path: Path) -> list[e.AnyEvent]:
    return [event for _, event in read_events(path)]


# From the first attempt to the end


async def test_it_comes_up_and_says_good_bye(tmp_path: Path) -> None:
    puppet = Puppet(
        """
        hello()
        heard = []
        for order in orders():
            heard.append(order["op"])
            if order["op"] == "bye":
                break
        leave("heard", heard)
        """,
        tmp_path,
    )
    async with at_work(session(puppet)) as watched:
        assert watched.state.link.phase is LinkPhase.CONNECTING
        state = await watched.up()
        assert state.hello is not None
        assert state.hello.hostname == "puppet"
        assert state.link.notes == ("a note",)
        await until(lambda: watched.links[-1] is LinkPhase.UP)
    await until(lambda: puppet.left("heard"))
    assert puppet.left("heard")[-1] == "bye"
    assert watched.links == [LinkPhase.CONNECTING, LinkPhase.UP]


async def test_the_plan_is_what_the_engines_want(tmp_path: Path) -> None:
    puppet = Puppet('leave("plan", plan)\n' + IDLE, tmp_path)
    async with at_work(session(puppet)) as watched:
        await watched.up()
    plan = puppet.left("plan")
    assert plan["op"] == "plan"
    assert [engine["name"] for engine in plan["engines"]] == ["plain"]
    assert plan["resume"] == {}


async def test_pings_measure_the_round_trip_and_the_traffic(tmp_path: Path) -> None:
    async with at_work(session(Puppet(IDLE, tmp_path))) as watched:
        state = await watched.until(lambda state: state.link.rtt_s is not None and state.link.received_bytes_s)
        assert 0 < (state.link.rtt_s or 0) < 5
        assert (state.link.sent_bytes_s or 0) > 0


async def test_the_first_complete_reading_is_shown_at_once(tmp_path: Path) -> None:
    puppet = Puppet('hello()\nwait_for("go")\nsend("gpu_info", gpus=[])\nsend("scanned")\nidle()', tmp_path)
    slow = Timing(tick=0.02, frame=60.0)
    async with at_work(session(puppet, timing=slow)) as watched:
        await watched.up()
        puppet.tell("go")
        await until(lambda: any(state.scanned for state in watched.states), 10)
        assert len(watched.states) <= 3


async def test_snapshots_are_few_and_the_newest(tmp_path: Path) -> None:
    act = 'hello()\nfor n in range(3000):\n    send("problem", code="x", detail=str(n))\nsend("scanned")\nidle()'
    async with at_work(session(Puppet(act, tmp_path), timing=Timing(tick=0.02, frame=0.5))) as watched:
        began = time.monotonic()
        await watched.until(lambda state: state.scanned)
        await until(lambda: watched.states[-1] is watched.state)
        assert len(watched.states) <= (time.monotonic() - began) / 0.5 + 4
        assert watched.state.problems[0].detail == "2999"


async def test_closing_while_the_operator_is_asked(tmp_path: Path) -> None:
    asked = asyncio.Event()

    class Asking:
        notes = ()
        received_bytes = sent_bytes = 0

        async def connect(self, ask: Any) -> None:
            asked.set()
            await asyncio.Event().wait()

        async def aclose(self) -> None: ...

    made = Session(Target(name="box"), Asking, ENGINES, ask=nobody)  # type: ignore[arg-type]
    async with at_work(made):
        await asyncio.wait_for(asked.wait(), 10)


async def test_closing_before_it_ran(tmp_path: Path) -> None:
    made = session(Puppet(IDLE, tmp_path), journal=Journal(tmp_path / "j", "box", 0.0))
    await made.aclose()


# Losing the link


async def test_a_lost_link_comes_back_by_itself(tmp_path: Path) -> None:
    puppet = Puppet(
        'hello()\nwait_for("go") if connection == 1 else None\nvanish() if connection < 3 else idle()', tmp_path
    )
    async with at_work(session(puppet)) as watched:
        await watched.up()
        await until(lambda: watched.links == [LinkPhase.CONNECTING, LinkPhase.UP])
        puppet.tell("go")
        await watched.until(lambda state: state.link.phase is LinkPhase.RECONNECTING)
        assert watched.state.link.reason == "The connection was lost"
        assert watched.state.hello is not None, "what was known stays"
        await watched.up()
        await until(lambda: puppet.connections == 3)


async def test_the_log_goes_on_where_it_was(tmp_path: Path) -> None:
    puppet = Puppet(
        """
        text = "".join("line %d\\n" % n for n in range(100))
        hello()
        server = {"key": "k", "engine": "plain", "pid": 1, "start_ticks": 1}
        send("server", server=server)
        tail = plan["resume"].get("k")
        start = tail["offset"] if tail else 0
        reason = "resume" if tail else "start"
        send("log_open", key="k", reason=reason, path="/log", device=1, inode=2, offset=start, size=len(text))
        leave("resume%d" % connection, tail)
        step = 97
        send("log", key="k", offset=start, end=min(start + step, len(text)), data=text[start:start + step])
        if start + step >= len(text):
            idle()
        vanish()
        """,
        tmp_path,
    )
    file = tmp_path / "j"
    async with at_work(session(puppet, journal=Journal(file, "box", 0.0))) as watched:
        await watched.until(lambda state: state.servers and state.servers[0].log.end >= 790)
        lines = [line.text for block in watched.state.servers[0].log.blocks for line in block.lines if not line.marker]
    assert lines == [f"line {n}" for n in range(100)]
    assert "".join(ev.data for ev in journal(file) if isinstance(ev, e.LogBytes)) == "".join(
        f"line {n}\n" for n in range(100)
    )
    assert puppet.left("resume1") is None
    resumed = puppet.left("resume2")
    assert (resumed["device"], resumed["inode"], resumed["path"]) == (1, 2, "/log")
    assert 0 < resumed["offset"] <= 97


async def test_silence_is_shown_and_forgiven(tmp_path: Path) -> None:
    puppet = Puppet('hello()\nwait_for("go")\nsend("scanned")\nidle()', tmp_path)
    async with at_work(session(puppet)) as watched:
        state = await watched.until(lambda state: state.link.phase is LinkPhase.STALE)
        assert "Nothing has come" in (state.link.reason or "")
        await until(lambda: watched.links[-1] is LinkPhase.STALE)
        puppet.tell("go")
        await watched.up()
        await watched.until(lambda state: state.scanned)
        assert puppet.connections == 1


async def test_long_silence_is_a_lost_link(tmp_path: Path) -> None:
    puppet = Puppet('hello()\nwait_for("never") if connection == 1 else idle()', tmp_path)
    timing = Timing(tick=0.02, ping=0.05, stale=0.1, lost=0.4, backoff=(0.05,))
    file = tmp_path / "j"
    async with at_work(session(puppet, timing=timing, journal=Journal(file, "box", 0.0))) as watched:
        await until(lambda: puppet.connections == 2)
        await watched.up()
    links = [event.phase for event in journal(file) if isinstance(event, e.LinkChanged)]
    assert links[:4] == [LinkPhase.CONNECTING, LinkPhase.UP, LinkPhase.STALE, LinkPhase.RECONNECTING]


async def test_a_machine_that_slept_connects_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    puppet = Puppet(IDLE, tmp_path)
    async with at_work(session(puppet)) as watched:
        await watched.up()
        real = time.time
        with monkeypatch.context() as patched:
            patched.setattr("tuner.session.link.time.time", lambda: real() + 3600)
            await until(lambda: puppet.connections == 2)
            await watched.up()
    reasons = {state.link.reason for state in watched.states}
    assert any("asleep for 3600 s" in reason for reason in reasons if reason)


async def test_a_host_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    puppet = Puppet(IDLE, tmp_path, [ConnectionFailed("Not yet", f"attempt {n}") for n in (1, 2, 3)])
    async with at_work(session(puppet)) as watched:
        await watched.until(lambda state: state.link.retry_in_s is not None)
        assert watched.state.link.phase is LinkPhase.CONNECTING
        assert "Not yet" in (watched.state.link.reason or "")
        await watched.up()


async def test_a_final_failure_waits_for_the_operator(tmp_path: Path) -> None:
    puppet = Puppet(IDLE, tmp_path, [ConnectionFailed("Refused", final=True)])
    async with at_work(session(puppet)) as watched:
        state = await watched.until(lambda state: state.link.phase is LinkPhase.DOWN)
        assert state.link.final
        assert state.link.reason == "Refused"
        watched.session.reconnect()
        await watched.up()


async def test_the_operator_can_cut_the_wait_short(tmp_path: Path) -> None:
    puppet = Puppet(IDLE, tmp_path, [ConnectionFailed("Not yet")])
    async with at_work(session(puppet, timing=Timing(backoff=(3600.0,)))) as watched:
        await watched.until(lambda state: state.link.retry_in_s is not None)
        watched.session.reconnect()
        await watched.up()


async def test_without_retry_a_failure_ends_the_session(tmp_path: Path) -> None:
    made = session(Puppet(IDLE, tmp_path, [ConnectionFailed("Not there")]), retry=False)
    await asyncio.wait_for(made.run(), 10)
    assert made.state.link.phase is LinkPhase.DOWN
    assert made.state.link.final


# Probes that do not start


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("sys.exit('no module named zlib')", "no module named zlib"),
        ("print('This account is not available.'); sys.exit(1)", "This account is not available."),
        ("send('problem', code='python-old', detail='3.6.8'); sys.exit(3)", "no usable Python: found 3.6.8"),
        ("hello(protocol=99); idle()", "99 instead of 1"),
        ("sys.exit('\\x1b[2J\\x07no terminal for you')", "exit status 1: ·no terminal for you"),
    ],
)
async def test_a_probe_that_does_not_start_is_one_clear_line(tmp_path: Path, act: str, words: str) -> None:
    made = session(Puppet(act, tmp_path), retry=False)
    await asyncio.wait_for(made.run(), 20)
    assert made.state.link.phase is LinkPhase.DOWN
    assert words in (made.state.link.reason or "")
    assert (made.state.link.reason or "").isprintable()


async def test_a_probe_that_says_nothing(tmp_path: Path) -> None:
    made = session(Puppet('wait_for("never")', tmp_path), retry=False, timing=Timing(tick=0.02, hello=0.3))
    await asyncio.wait_for(made.run(), 20)
    assert "says nothing" in (made.state.link.reason or "")


@pytest.mark.parametrize("text", [b"garbage\n", b"\x1b[2Jno end "])
async def test_what_never_stops_and_is_no_probe_is_not_tried_again(tmp_path: Path, text: bytes) -> None:
    puppet = Puppet(f"while True: raw({text!r} * 1000)", tmp_path)
    async with at_work(session(puppet)) as watched:
        state = await watched.until(lambda state: state.link.phase is LinkPhase.DOWN)
        assert state.link.final
        assert "something that is not the probe: first words: " in (state.link.reason or "")
        assert ("garbage garbage" if b"garbage" in text else "no end no end") in (state.link.reason or "")
        assert (state.link.reason or "").isprintable()
        assert puppet.connections == 1


async def test_a_login_that_prints_now_and_then_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    puppet = Puppet('while True:\n raw(b"still here\\n"); time.sleep(0.05)', tmp_path)
    made = session(puppet, retry=False, timing=Timing(tick=0.02, hello=3.0))
    await asyncio.wait_for(made.run(), 20)
    assert "first words: still here" in (made.state.link.reason or "")


async def test_garbage_without_end_does_not_take_a_core(tmp_path: Path) -> None:
    puppet = Puppet('hello()\nwhile True: raw(b"garbage\\n" * 1000)', tmp_path)
    async with at_work(session(puppet)) as watched:
        await watched.until(lambda state: len(state.problems) == 1)
        before, began = time.process_time(), time.monotonic()
        await until(lambda: time.monotonic() - began > 3.0)
        assert time.process_time() - before < 1.5
        assert watched.state.link.phase is LinkPhase.UP


async def test_what_a_login_prints_does_no_harm(tmp_path: Path) -> None:
    async with at_work(session(Puppet('print("Welcome!\\n\\n*** motd ***")\n' + IDLE, tmp_path))) as watched:
        await watched.until(lambda state: state.scanned)
        assert watched.state.problems == ()


async def test_garbage_is_a_problem_and_all_else_goes_on(tmp_path: Path) -> None:
    act = 'hello()\nraw(b"\\xff\\x00 what\\n{\\"t\\":1}\\n")\nsend("scanned")\nidle()'
    async with at_work(session(Puppet(act, tmp_path))) as watched:
        await watched.until(lambda state: state.scanned)
        assert [problem.code for problem in watched.state.problems] == ["probe-error"]


async def test_a_probe_that_dies_again_and_again_is_not_hammered(tmp_path: Path) -> None:
    puppet = Puppet('hello()\nos.write(2, b"Traceback\\nKeyError: 5\\n")\nos._exit(1)', tmp_path)
    timing = Timing(tick=0.02, backoff=(0.02, 0.05, 600.0))
    async with at_work(session(puppet, timing=timing)) as watched:
        state = await watched.until(lambda state: (state.link.retry_in_s or 0) > 100)
        assert state.link.reason == "The probe ended with status 1: KeyError: 5"
        assert puppet.connections == 2


# Orders and answers


async def test_the_binding_is_sent_when_it_is_needed(tmp_path: Path) -> None:
    act = 'hello()\nsend("need", what="nvml")\nfor order in serve():\n    leave("order", order)'
    puppet = Puppet(act, tmp_path)
    async with at_work(session(puppet)):
        await until(lambda: puppet.left("order"))
    order = puppet.left("order")
    assert order["op"] == "nvml"
    assert b"nvmlInit" in zlib.decompress(base64.b64decode(order["z"]))


ANSWERING = """
hello()
asked = []
for order in serve():
    asked.append(order)
    leave("asked", asked)
    if order["op"] == "search":
        send("found", id=order["id"], hits=[[10, order["pattern"]]], scanned_bytes=5)
        if order["pattern"] == "endless":
            continue
        if order["pattern"] == "lost":
            vanish()
        send("found", id=order["id"], hits=[[4, "b"]], scanned_bytes=9, done=True)
    if order["op"] == "read":
        send("read", id=order["id"], offset=order["offset"], end=order["offset"] + 5, size=99, data="a\\nabc")
    if order["op"] == "checks":
        send("checks", id=order["id"], checks={"python": "3.11"})
"""


async def test_a_search_gives_its_hits_as_they_come(tmp_path: Path) -> None:
    puppet = Puppet(ANSWERING, tmp_path)
    async with at_work(session(puppet)) as watched:
        await watched.up()
        results = [result async for result in watched.session.search("k", "OOM", limit=7, before=100, regex=True)]
    assert [hit.offset for result in results for hit in result.hits] == [10, 4]
    assert [result.done for result in results] == [False, True]
    (order,) = puppet.left("asked")
    assert {**order, "id": 0} == {
        "op": "search",
        "id": 0,
        "key": "k",
        "pattern": "OOM",
        "regex": True,
        "ignore_case": True,
        "limit": 7,
        "before": 100,
    }


async def test_a_search_that_is_left_is_ended_on_the_host(tmp_path: Path) -> None:
    puppet = Puppet(ANSWERING, tmp_path)
    async with at_work(session(puppet)) as watched:
        await watched.up()
        search = watched.session.search("k", "endless")
        async with contextlib.aclosing(search):  # type: ignore[type-var]
            await anext(search)
        await until(lambda: len(puppet.left("asked") or []) == 2)
    asked = puppet.left("asked")
    assert asked[1] == {"op": "cancel", "id": asked[0]["id"]}


async def test_a_search_ends_with_the_link(tmp_path: Path) -> None:
    async with at_work(session(Puppet(ANSWERING, tmp_path))) as watched:
        await watched.up()
        results = [result async for result in watched.session.search("k", "lost")]
    assert results[-1].done
    assert results[-1].error == "The connection was lost"


async def test_parts_of_a_log_and_facts_about_the_host(tmp_path: Path) -> None:
    async with at_work(session(Puppet(ANSWERING, tmp_path))) as watched:
        await watched.up()
        part, checks = await asyncio.gather(watched.session.read_log("k", 50, 5), watched.session.checks())
        assert (part.offset, part.end, part.data, part.error) == (51, 55, "\nabc", None)
        assert checks.checks == {"python": "3.11"}


async def test_questions_to_nobody(tmp_path: Path) -> None:
    made = session(Puppet(IDLE, tmp_path))
    (result,) = [result async for result in made.search("k", "x")]
    assert result.done
    assert "Not connected" in (result.error or "")
    assert "Not connected" in ((await made.read_log("k", 0, 1)).error or "")
    with pytest.raises(ConnectionFailed):
        await made.checks()


# The journal and the history


async def test_a_journal_gives_the_same_state_again(tmp_path: Path) -> None:
    file = tmp_path / "j"
    act = 'hello()\nsend("host", load_1m=1.5)\nsend("problem", code="no-gpu")\nsend("scanned")\nidle()'
    async with at_work(session(Puppet(act, tmp_path), journal=Journal(file, "box", 0.0))) as watched:
        await watched.until(lambda state: state.scanned)
    state = initial("box")
    for event in journal(file):
        state, _ = reduce(state, event, ENGINES)
    assert state == watched.state


async def test_a_journal_that_cannot_be_written_is_told_once_and_all_else_goes_on(tmp_path: Path) -> None:
    made = Journal(tmp_path / "j", "box", 0.0)
    made._file.close()
    made._file = Path("/dev/full").open("wb", buffering=0)  # noqa: ASYNC230, SIM115 - the journal closes it
    act = 'hello()\nsend("scanned")\nwait_for("go")\nsend("host", load_1m=2.5)\nidle()'
    puppet = Puppet(act, tmp_path)
    async with at_work(session(puppet, journal=made)) as watched:
        await watched.until(lambda state: state.scanned)
        puppet.tell("go")
        await watched.until(lambda state: state.host and state.host.load_1m == 2.5)
        (problem,) = watched.state.problems
        assert problem.code == "journal"
        assert "No space left" in problem.detail


STARTING = """
hello()
server = {"key": "10:9", "engine": "plain", "pid": 10, "start_ticks": 9, "started_at": time.time() - 100,
          "argv": ["plain", "llama"]}
born = int(server["started_at"])
text = "".join("@%d %s\\n" % (born + at, what) for at, what in [
    (1, "!args"), (5, "TP0 !phase-begin phase=weight-load"), (20, "TP0 !weights used_gib=60"), (31, "!ready")])
send("server", server=server)
send("log_open", key="10:9", reason="start", path="/log", device=1, inode=connection, offset=0, size=len(text))
send("log", key="10:9", offset=0, end=len(text), data=text)
idle()
"""


async def test_starts_are_kept_and_shown_beside_the_next(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    earlier = StartRecord(
        host="box", engine="plain", model="llama", started_at=1e9, source="/old.log", outcome="ready", total_s=44.0
    )
    history.keep(earlier)
    async with at_work(session(Puppet(STARTING, tmp_path), history=history)) as watched:
        await watched.until(lambda state: state.servers and state.servers[0].started_in_s)
        state = await watched.until(lambda state: state.servers[0].usual.starts)
        assert state.servers[0].usual.total_s == (44.0, 44.0), "not with itself"
    assert len(history.starts("box", "plain", "llama")) == 2


async def test_a_damaged_history_is_told(tmp_path: Path) -> None:
    (tmp_path / "history").write_bytes(b"not a database at all, not even nearly" * 50)
    made = session(Puppet(STARTING, tmp_path), history=History(tmp_path / "history"))
    async with at_work(made) as watched:
        await watched.until(lambda state: [problem.code for problem in state.problems] == ["history"])


async def test_a_start_seen_last_is_kept_when_the_session_ends_at_once(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    async with at_work(session(Puppet(STARTING, tmp_path), history=history)) as watched:
        await watched.until(lambda state: state.servers and state.servers[0].started_in_s)
    assert history.usual("box", "plain", "llama").starts == 1


# Recordings


async def test_a_recording_plays_to_the_same_state(tmp_path: Path) -> None:
    file = tmp_path / "j"
    async with at_work(session(Puppet(STARTING, tmp_path), journal=Journal(file, "box", 0.0))) as watched:
        await watched.until(lambda state: state.servers and state.servers[0].started_in_s)
    replayed = open_session(Target(name="j", scheme="replay", host=str(file)), ask=nobody, speed=0, retry=False)
    await asyncio.wait_for(replayed.run(), 20)
    assert replayed.state.name == "box"
    assert replayed.state.servers[0].identity == watched.state.servers[0].identity
    assert replayed.state.lost_lines == 0
    assert replayed.state.link.reason == "The recording ends here"
    (result,) = [result async for result in replayed.search("10:9", "x")]
    assert result.error


async def test_a_recording_can_be_stopped_and_played_from_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "j"
    written = Journal(file, "box", 0.0)
    written.append(e.ProbeHello(seq=1, protocol=1, python="3", pid=1, uid=0, hostname="h", at=0.0), 0.0)
    for number in range(1, 101):
        written.append(e.ProblemSeen(seq=number + 1, code="no-gpu", detail=str(number)), float(number))
    written.close()

    def detail(state: HostState) -> int:
        return int(state.problems[0].detail) if state.problems else 0

    made = open_session(Target(name="j", scheme="replay", host=str(file)), ask=nobody, speed=50)
    player = made.player
    assert player is not None
    assert player.duration == 100.0
    async with at_work(made) as watched:
        await watched.until(lambda state: detail(state) >= 5)
        player.pause()
        held = player.position
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watched.until(lambda state: detail(state) > held + 1), 0.3)
        player.seek(80.0)
        await watched.until(lambda state: detail(state) == 80)
        player.seek(20.0)
        await watched.until(lambda state: detail(state) == 20)
        player.speed = 0
        player.resume()
        await watched.until(lambda state: detail(state) == 100)
        await watched.until(lambda state: state.link.phase is LinkPhase.DOWN)
        player.seek(40.0)
        player.pause()
        made.reconnect()
        await watched.until(lambda state: detail(state) == 40)


async def test_a_recording_played_again_begins_with_nothing(tmp_path: Path) -> None:
    file = tmp_path / "j"
    written = Journal(file, "box", 0.0)
    written.append(e.ProbeHello(seq=1, protocol=1, python="3", pid=1, uid=0, hostname="h", at=0.0), 0.0)
    written.append(e.GpuXid(seq=2, bus_id="0000:11:00.0", xid=79, text="fallen off", at=1.0), 1.0)
    written.close()
    made = open_session(Target(name="j", scheme="replay", host=str(file)), ask=nobody, speed=0)
    player = made.player
    assert player is not None
    async with at_work(made) as watched:
        await watched.until(lambda state: state.link.phase is LinkPhase.DOWN and len(state.xids) == 1)
        player.pause()
        player.seek(0.5)
        made.reconnect()
        await watched.until(lambda state: state.hello is not None and not state.xids)
        player.resume()
        await watched.until(lambda state: state.link.phase is LinkPhase.DOWN and len(state.xids) == 1)


async def test_a_file_that_is_no_recording_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    with pytest.raises(TunerError, match="Not a journal"):
        open_session(Target(name="x", scheme="replay", host=str(tmp_path / "x")), ask=nobody)


# Load and secrets


async def test_a_burst_is_folded_whole_while_the_loop_stays_free(tmp_path: Path) -> None:
    puppet = Puppet(
        """
        hello()
        send("server", server={"key": "k", "engine": "plain", "pid": 1, "start_ticks": 1})
        send("log_open", key="k", reason="start", path="/log", device=1, inode=2, offset=0)
        line = "@1 TP0 some words of a log line, as long as they usually are, and a number %08d\\n"
        offset, n = 0, 0
        while n < 40000:
            text = "".join(line % i for i in range(n, n + 2500))
            send("log", key="k", offset=offset, end=offset + len(text), data=text)
            offset, n = offset + len(text), n + 2500
        send("scanned")
        idle()
        """,
        tmp_path,
    )
    longest = 0.0

    async def heartbeat() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - before)
            await asyncio.sleep(0.001)

    beating = spawn(heartbeat(), name="heartbeat")
    async with at_work(session(puppet)) as watched:
        state = await watched.until(lambda state: state.scanned)
    beating.cancel()
    assert state.servers[0].log.lines_total == 40_000
    assert state.lost_lines == 0
    assert longest < 0.25, "far above what it takes, to hold on a busy machine: benchmarks measure it"


class Broken(PlainEngine):
    """An engine that fails where the session looks into a log."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def interesting(self, text: str) -> bool:
        raise self._error


LOOKS = """
hello()
send("server", server={"key": "k", "engine": "plain", "pid": 1, "start_ticks": 1})
send("log_open", key="k", reason="start", path="/log", device=1, inode=2, offset=0)
send("log", key="k", offset=0, end=2, data="x\\n")
send("log", key="k", offset=2, end=4, data="y\\n")
send("gpu_info", gpus=[], source="after")
idle()
"""


def broken(tmp_path: Path, fault: Exception) -> Session:
    engines = {"plain": Broken(fault)}
    return Session(Target(name="box", scheme="local"), Puppet(LOOKS, tmp_path), engines, ask=nobody, timing=HASTY)


async def test_a_data_file_that_is_wrong_ends_the_session_and_is_no_lost_link(tmp_path: Path) -> None:
    fault = CatalogError(Path("/x/logs.toml"), 3, "format is wrong")
    made = broken(tmp_path, fault)
    async with asyncio.timeout(20):
        with pytest.raises(CatalogError):
            await made.run()
        states = [state async for state in made.snapshots()]
    assert made.failure is fault
    assert states[-1].link.final
    assert str(fault) in (states[-1].link.reason or "")


async def test_an_event_that_cannot_be_folded_is_told_once_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work(broken(tmp_path, ZeroDivisionError("ours"))) as watched:
        state = await watched.until(lambda state: state.gpu_table is not None)
    assert [(p.code, p.subject) for p in state.problems] == [("probe-error", "fold")]
    assert "ZeroDivisionError('ours')" in state.problems[0].detail
    assert state.servers[0].log.lines_total == 0
    assert state.link.phase is LinkPhase.UP
    logged = [record for record in caplog.records if record.name == "tuner.session.session"]
    assert len(logged) == 1
    assert logged[0].exc_info is not None
    assert watched.session.failure is None


@pytest.mark.parametrize("command", [("snapshot", "local"), ("doctor", "local"), ("record", "local", "journal")])
def test_data_files_are_checked_before_anything_is_connected(tmp_path: Path, command: tuple[str, ...]) -> None:
    """With a copy of the package in which one pattern is wrong."""
    package = tmp_path / "tuner"
    shutil.copytree(Path(tuner.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    file = package / "engines" / "vllm" / "logs.toml"
    file.write_text(file.read_text().replace("pattern = ", 'pattern = "(" # ', 1))
    run = [sys.executable, "-P", "-c", "from tuner.cli import main; main()", *command]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "GPUTUNER_HOME": str(tmp_path / "home")}
    ran = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 2, ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert f"{file}:" in ran.stderr


CANARY = "canary9in9the9mine"
TOKEN = "hf_CanaryInTheMine0123456789"


async def test_no_secret_gets_past_the_session(tmp_path: Path) -> None:
    puppet = Puppet(
        f"""
        canary, token = {CANARY!r}, {TOKEN!r}
        hello()
        argv = ["plain", "llama", "--api-key", canary, "--hf-token=" + token]
        server = {{"key": "k", "engine": "plain", "pid": 1, "start_ticks": 1, "argv": argv,
                  "env": {{"OPENAI_API_KEY": canary, "X": token, "U": "http://u:" + canary + "@h/"}},
                  "members": [{{"pid": 2, "ppid": 1, "start_ticks": 1, "title": " ".join(argv)}}]}}
        send("server", server=server)
        send("log_open", key="k", reason="start", path="/log", device=1, inode=2, offset=0)
        text = "@1 TP0 error api_key='" + canary + "' " + token + " Authorization: Bearer " + canary + "\\n"
        text = text * 20
        offset = 0
        for size in [7, 22, 3, 1, 30, 11, 5, 40, 2] * 40:
            part = text[offset:offset + size]
            if part:
                send("log", key="k", offset=offset, end=offset + len(part), data=part)
            offset += size
        send("http", key="k", endpoint="info", status=200, body={{"weights": 1, "api_key": canary, "x": token}})
        send("old_log", key="k", path="/old", size=1, data=text)
        send("gpu_procs", processes=[], infos=[{{"pid": 5, "command": " ".join(argv)}}])
        send("problem", code="http-auth", detail="key " + token + " api_key=" + canary)
        raw(("garbage " + token + " --api-key " + canary + "\\n").encode())
        os.write(2, ("stderr " + token + "\\n").encode())
        send("scanned")
        for order in serve():
            if order["op"] == "search":
                send("found", id=order["id"], hits=[[0, text]], done=True)
                os._exit(1)
        """,
        tmp_path,
    )
    file = tmp_path / "journal"
    made = session(puppet, journal=Journal(file, "box", 0.0), retry=False)
    shown: list[str] = []
    async with at_work(made) as watched:
        await watched.until(lambda state: state.scanned)
        await watched.until(lambda state: state.servers[0].log.lines_total == 20)
        shown += [repr(result) async for result in made.search("k", "x")]
        await watched.until(lambda state: state.link.phase is LinkPhase.DOWN)
    shown += [repr(state) for state in watched.states]
    shown.append(file.read_text())
    everything = "".join(shown)
    assert everything.count(MASK) > 50
    for secret in (CANARY, TOKEN, TOKEN[3:], "CanaryInTheMine"):
        assert secret not in everything
    assert json.loads(file.read_text().splitlines()[0])["journal"] == 1


async def test_a_bug_of_ours_is_seen_and_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def transport() -> Any:
        raise ZeroDivisionError("a bug")

    made = Session(Target(name="box"), transport, ENGINES, ask=nobody, timing=HASTY)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(made.run(), 20)
    assert made.state.link.phase is LinkPhase.DOWN
    assert "bug in gputuner" in (made.state.link.reason or "")
    assert "ZeroDivisionError" in caplog.text
