"""Acts through a real sshd: a run outlives the link, and the lease goes to whoever comes first after it was cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.asking import Operator as Answers
from tests.support.facts import until
from tests.support.sshd import Sshd, world
from tuner import transports
from tuner.domain.acts import Clean, Switch, TakeLease
from tuner.domain.link import LinkPhase, Target
from tuner.domain.runs import LaunchOrder, Operator, RunOutcome, RunRecord, StopOrder, StopStep, SwitchOrder
from tuner.session import session as session_module
from tuner.session.plans import plan_for
from tuner.session.session import Session
from tuner.session.tasks import spawn

pytestmark = [pytest.mark.sshd, pytest.mark.timeout(180)]

ANN = Operator(session="session-ann", name="ann", machine="laptop-1")
BOB = Operator(session="session-bob", name="bob", machine="laptop-2")
RUN = "20261130-101523-a1b2c3d4"
LADDER = (StopStep(signal="TERM", wait_s=5.0), StopStep(signal="KILL", to="tree", wait_s=5.0))


@pytest.fixture
def remote_home(tmp_path: Path) -> Iterator[Path]:
    """The home folder on the host. Processes that a failed test leaves there are ended by the PIDs in their records."""
    folder = tmp_path / "remote"
    folder.mkdir()
    yield folder
    for record in folder.glob(".gputuner/runs/*/state.json"):
        found = json.loads(record.read_text())
        for process in (found.get("new"), found.get("supervisor")):
            with contextlib.suppress(OSError, TypeError):
                line = Path(f"/proc/{process['pid']}/environ").read_bytes()
                if str(folder).encode() in line or RUN.encode() in line:
                    os.kill(process["pid"], signal.SIGKILL)


@pytest.fixture
def server(tmp_path: Path, remote_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    with world(tmp_path / "home") as made:
        monkeypatch.setenv("HOME", str(made.home))
        yield made.server(options=f"SetEnv HOME={remote_home}")


@contextlib.asynccontextmanager
async def at_work(server: Sshd, who: Operator, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Session]:
    monkeypatch.setattr(session_module, "this_operator", lambda: who)
    target = Target(name="box", host="127.0.0.1", port=server.port)
    session = Session(target, transports.opener(target), {}, ask=Answers(), plan=plan_for({}))
    work = spawn(session.run(), name=f"session of {who.name}")
    try:
        await until(lambda: session.state.link.phase is LinkPhase.UP and session.state.scanned, 60)
        yield session
    finally:
        async with asyncio.timeout(20):
            await session.aclose()
            await work


def run_of(session: Session, ident: str = RUN) -> RunRecord | None:
    return next((run for run in session.state.runs if run.id == ident), None)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_run_goes_on_while_the_link_is_cut(
    server: Sshd, remote_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = SwitchOrder(
        run=RUN,
        operator=ANN,
        start=LaunchOrder(
            argv=("/bin/sh", "-c", "echo serving; exec sleep 600"), steady_s=2.0, stop=LADDER, title="toy"
        ),
    )
    async with at_work(server, ANN, monkeypatch) as ann:
        begun = await ann.act(Switch(order=order), confirmed=True)
        assert (begun.error, begun.run) == (None, RUN)
        assert ann.state.lease.mine
        await until(lambda: (run := run_of(ann)) is not None and run.new is not None, 30)
        server.cut()
        await until(lambda: ann.state.link.phase is not LinkPhase.UP, 30)
        await until(lambda: (run := run_of(ann)) is not None and run.outcome is RunOutcome.READY and run.alive, 60)
        assert (remote_home / ".gputuner/runs" / RUN / "server.log").read_text() == "serving\n"
        # The probe saw its input end, and gave the lease back.
        await until(lambda: ann.state.lease.holder is None, 60)

        async with at_work(server, BOB, monkeypatch) as bob:
            run = run_of(bob)
            assert run is not None
            assert run.supervised
            assert run.new is not None
            assert (await bob.act(TakeLease(), confirmed=True)).error is None
            await until(lambda: ann.state.lease.holder is not None and ann.state.lease.holder.name == "bob", 30)
            refused = await ann.act(Clean(), confirmed=True)
            assert "bob" in (refused.error or "")
            needed = await bob.act(Clean(), confirmed=True)
            assert "needs the folder" in (needed.error or "")
            stop = StopOrder(boot_id=run.boot_id, leader=run.new, steps=LADDER)
            ended = SwitchOrder(run="20261130-101600-00000000", operator=BOB, stop=stop)
            assert (await bob.act(Switch(order=ended), confirmed=True)).error is None
            await until(lambda: (run := run_of(ann, ended.run)) is not None and run.outcome is RunOutcome.STOPPED, 60)
            await until(lambda: (run := run_of(bob)) is not None and not run.alive and not run.supervised, 30)
            await until(lambda: (run := run_of(bob, ended.run)) is not None and not run.supervised, 30)
            assert run_of(bob).exit_code == -signal.SIGTERM  # type: ignore[union-attr]
            assert (await bob.act(Clean(), confirmed=True)).error is None
    assert names_in(remote_home / ".gputuner") == ["audit.ndjson"]
