"""Pass the requests of screens to a session, and its answers back to them as messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Protocol

from tuner.core import doctor
from tuner.domain.acts import AnyAct
from tuner.domain.events import Acted, CheckResult, PreflightResult, ReadResult, SearchResult
from tuner.domain.preflight import PreflightAsk
from tuner.domain.runs import Operator
from tuner.domain.state import HostState
from tuner.errors import TunerError
from tuner.messages import (
    Asked,
    ChecksArrived,
    ChecksRequested,
    ComparisonRequested,
    ForecastRequested,
    LogPartArrived,
    LogPartRequested,
    SearchProgressed,
    SearchRequested,
    StartsRequested,
)
from tuner.screens import explain_requests, tune_requests
from tuner.screens.explain_requests import ReadStarts, engines
from tuner.screens.replay import Player
from tuner.screens.tune_requests import Bench
from tuner.widgets.log_part import lines_of


class SessionLike(Protocol):
    """The part of `tuner.session.session.Session` that the app uses."""

    state: HostState
    player: Player | None

    async def run(self) -> None:
        """Connect and stay connected until closed."""

    def snapshots(self) -> AsyncIterator[HostState]:
        """Yield states until the session ends; older ones are dropped for newer."""

    def reconnect(self) -> None:
        """Try to connect now."""

    def search(
        self,
        key: str,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = True,
        limit: int = 500,
        before: int | None = None,
    ) -> AsyncIterator[SearchResult]:
        """Search a log on the host."""

    async def read_log(self, key: str, offset: int, length: int) -> ReadResult:
        """Read a part of a log."""

    async def checks(self) -> CheckResult:
        """Check what works on the host."""

    @property
    def read_only(self) -> bool:
        """Return whether everything that would change the host is refused."""

    @property
    def operator(self) -> Operator:
        """Return who acts."""

    async def act(self, act: AnyAct, *, confirmed: bool) -> Acted:
        """Have the host do something that the operator has confirmed. Nothing is raised."""

    async def preflight(self, ask: PreflightAsk) -> PreflightResult:
        """Ask for the facts that are checked before a switch."""

    async def aclose(self) -> None:
        """End the session."""


async def answer(session: SessionLike, ask: Asked, read: ReadStarts | None, bench: Bench) -> None:
    """Answer a request of a screen; `read` reads log files of this machine, `bench` has the operator's presets."""
    match ask:
        case SearchRequested():
            await search(session, ask)
        case LogPartRequested():
            await log_part(session, ask)
        case ChecksRequested():
            await checks(session, ask)
        case StartsRequested():
            explain_requests.starts(session.state, ask)
        case ComparisonRequested():
            await explain_requests.comparison(session.state, ask, read)
        case ForecastRequested():
            await explain_requests.forecast(session.state, ask)
        case _:
            await tune_requests.answer(session, ask, bench)


async def search(session: SessionLike, ask: SearchRequested) -> None:
    """Pass on the hits of a search as they come. The last message says that the search has ended, and why."""
    scanned, done, error = 0, False, None
    post = ask.reply_to.post_message
    try:
        async for found in session.search(ask.key, ask.pattern, regex=ask.regex):
            scanned, done = found.scanned_bytes, found.done
            post(SearchProgressed(ask, found.hits, scanned, done=done, error=found.error))
    except TunerError as problem:
        error = str(problem)
    if not done:
        words = error or "the link was lost"
        post(SearchProgressed(ask, (), scanned, done=True, error=words))


async def log_part(session: SessionLike, ask: LogPartRequested) -> None:
    """Fetch a part of a log and return it as lines."""
    post = ask.reply_to.post_message
    try:
        result = await session.read_log(ask.key, ask.offset, ask.length)
    except TunerError as problem:
        post(LogPartArrived(ask.purpose, (), error=str(problem)))
        return
    server = session.state.server(ask.key)
    lines = () if server is None else lines_of(server, engines().get(server.identity.engine), result)
    post(LogPartArrived(ask.purpose, lines, offset=result.offset, end=result.end, size=result.size, error=result.error))


async def checks(session: SessionLike, ask: ChecksRequested) -> None:
    """Check what works on the host and return the results."""
    asked = time.time()
    try:
        facts = (await session.checks()).checks
    except TunerError as problem:
        ask.reply_to.post_message(ChecksArrived((), str(problem)))
    else:
        skew = doctor.Skew.told(facts, asked, time.time())
        ask.reply_to.post_message(ChecksArrived(doctor.examine(facts, session.state, skew)))
