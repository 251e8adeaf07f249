"""The commands without a screen (`snapshot`, `doctor`, `record`), on the same session as the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click

from tuner.cli import FINE, PROBLEM
from tuner.cli.ask import TerminalAsk
from tuner.cli.demo import at_home
from tuner.cli.running import run
from tuner.cli.tables import check_lines, lines
from tuner.core import doctor as judge
from tuner.core.snapshot import missing
from tuner.core.snapshot import snapshot as as_data
from tuner.domain.link import LinkPhase, Target
from tuner.domain.state import HostState
from tuner.errors import ConnectionFailed, JournalError, TunerError, UsageProblem
from tuner.session.session import Session, open_session
from tuner.session.tasks import spawn
from tuner.store.journal import holds_events
from tuner.units import format_bytes

SETTLE_S = 6.0
"""Seconds that a first complete reading may take after the probe's first line; then it is printed incomplete."""


def snapshot(target: Target, *, as_json: bool) -> int:
    """Print one reading of a host."""

    async def reading() -> dict[str, Any]:
        async with connected(target) as (session, ask):
            return as_data(await settled(session, ask))

    got = run(reading())
    if as_json:
        click.echo(json.dumps(got, ensure_ascii=False))
    else:
        click.echo("\n".join(lines(got)))
    return FINE


def doctor(target: Target, *, as_json: bool) -> int:
    """Print what works on a host, what is missing, and what each missing thing costs."""

    async def examined() -> tuple[HostState, tuple[judge.Check, ...]]:
        async with connected(target) as (session, ask):
            await settled(session, ask)
            asked = time.time()
            facts = (await session.checks()).checks
            skew = judge.Skew.told(facts, asked, time.time())
            return session.state, judge.examine(facts, session.state, skew)

    state, checks = run(examined())
    missing = [check for check in checks if check.verdict is judge.Verdict.MISSING]
    if as_json:
        body = [{"verdict": c.verdict.value, "what": c.what, "value": c.value, "cost": c.cost or None} for c in checks]
        click.echo(json.dumps({"schema": 1, "host": state.name, "at": state.now, "checks": body}, ensure_ascii=False))
    else:
        click.echo("\n".join(check_lines(checks)))
    return PROBLEM if missing else FINE


def record(target: Target, file: Path, duration: float | None) -> int:
    """Write the journal of a session for `duration` seconds, or until interrupted where that is None.

    A file that holds no event of the host is removed, so that its name is free for the next attempt.
    """
    if file == Path("-"):
        raise UsageProblem("A journal is not written to the output", hint="Name a file")
    if file.exists():
        raise JournalError("The file is there already", str(file), "Choose another name: no journal is overwritten")
    if not file.parent.is_dir():
        raise JournalError("There is no such folder", str(file.parent), "Make it first, or choose another one")

    session: Session | None = None

    async def recorded() -> None:
        nonlocal session
        async with connected(target, record=file) as (session, ask):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(duration):
                    await until(session, ask, lambda state: _unwritten(state) is not None)

    try:
        run(recorded())
    except KeyboardInterrupt:
        # An interrupt is how a recording without --for is ended.
        if duration is not None or session is None:
            raise
    finally:
        if not holds_events(file):
            file.unlink(missing_ok=True)
    if session is not None and (problem := _unwritten(session.state)) is not None:
        raise TunerError(problem)
    click.echo(f"{file}: {format_bytes(file.stat().st_size)}", err=True)
    return FINE


def _unwritten(state: HostState) -> str | None:
    """Return why the journal is incomplete, or None where it is not."""
    return next((problem.detail for problem in state.problems if problem.code == "journal"), None)


@asynccontextmanager
async def connected(
    target: Target, *, record: Path | None = None, retry: bool = False, dry_run: bool = False
) -> AsyncIterator[tuple[Session, TerminalAsk]]:
    """Yield a running session and the object that asks its questions; both end with the context.

    Args:
        target: The host.
        record: Path of a journal to write; None: none.
        retry: Whether a link that is lost later is connected again.
        dry_run: Whether nothing is sent that changes the host.

    Raises:
        ConnectionFailed: The host was not reached. There is no second attempt.
    """
    async with AsyncExitStack() as stack:
        host = stack.enter_context(at_home(target, lambda text: click.echo(text, err=True)))
        ask = TerminalAsk()
        session = open_session(host, ask=ask, record=record, retry=retry, dry_run=dry_run)
        work = spawn(session.run(), name=f"session {target.name}")
        stack.push_async_callback(asyncio.wait, [work])
        stack.push_async_callback(session.aclose)
        await until(session, ask, lambda state: state.hello is not None)
        yield session, ask


async def until(session: Session, ask: TerminalAsk, true: Callable[[HostState], bool]) -> HostState:
    """Wait until `true` holds for a state of the session, and return that state.

    Raises:
        ConnectionFailed: The link went down, or the session ended before.
        Exception: The session's task failed; its exception is raised again.
    """
    async for state in session.snapshots():
        if true(state):
            return state
        if state.link.phase is LinkPhase.DOWN or (state.hello is None and state.link.reason):
            break
    if session.failure is not None:
        raise session.failure
    link = session.state.link
    raise ConnectionFailed(f"{session.state.name} was not reached", link.reason or "", ask.refusal or "")


async def settled(session: Session, ask: TerminalAsk, *, speed: bool = True) -> HostState:
    """Return the first complete state, or an incomplete one after `SETTLE_S` seconds.

    Args:
        session: A session that runs.
        ask: What asks its questions.
        speed: False: it is complete without the speed of a server, for which two readings are needed.
    """

    def complete(state: HostState) -> bool:
        return not any(speed or part.what != "speed" for part in missing(state))

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            return await until(session, ask, complete)
    return session.state
