"""A session without a host, which yields the states that a test gives it and remembers the app's requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tuner.domain.acts import AnyAct
from tuner.domain.events import Acted, CheckResult, PreflightResult, ReadResult, SearchResult
from tuner.domain.preflight import PreflightAsk
from tuner.domain.runs import Operator
from tuner.domain.starts import Start
from tuner.domain.state import HostState
from tuner.errors import UsageProblem

OPERATOR = Operator(session="5e55", name="mia", machine="laptop")


class FakeSession:
    """The part of a session that the app uses.

    Args:
        state: The first state.
        found: Results of any search on the host.
        part: Result of any read of the log.
        checks: Results of the host's checks.
        error: Raised by `run`; None for none.
        read_only: Everything that would change the host is refused.
        facts: Facts of the checks before a switch; None: the host does not answer.
        acted: Answer to any act.
    """

    def __init__(
        self,
        state: HostState,
        *,
        found: tuple[SearchResult, ...] = (),
        part: ReadResult | None = None,
        checks: dict[str, Any] | None = None,
        error: BaseException | None = None,
        read_only: bool = False,
        facts: dict[str, Any] | None = None,
        acted: Acted | None = None,
    ) -> None:
        self.state = state
        self.player: Any = None
        self.found = found
        self.part = part
        self.check_answer = checks or {}
        self.error = error
        self.read_only = read_only
        self.operator = OPERATOR
        self.facts = facts
        self.acted = acted or Acted(id=1)
        self.acts: list[AnyAct] = []
        self.asked: list[PreflightAsk] = []
        self.searched: list[tuple[str, str, bool]] = []
        self.read: list[tuple[str, int, int]] = []
        self.reconnects = 0
        self.closed = asyncio.Event()
        self._newest: asyncio.Queue[HostState | None] = asyncio.Queue()

    def push(self, state: HostState) -> None:
        """Yield a newer state of the host."""
        self.state = state
        self._newest.put_nowait(state)

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        await self.closed.wait()

    async def snapshots(self) -> AsyncIterator[HostState]:
        yield self.state
        while (state := await self._newest.get()) is not None:
            yield state

    def reconnect(self) -> None:
        self.reconnects += 1

    async def search(
        self,
        key: str,
        pattern: str,
        *,
        regex: bool = False,
        ignore_case: bool = True,
        limit: int = 500,
        before: int | None = None,
    ) -> AsyncIterator[SearchResult]:
        self.searched.append((key, pattern, regex))
        for result in self.found:
            yield result

    async def read_log(self, key: str, offset: int, length: int) -> ReadResult:
        self.read.append((key, offset, length))
        return self.part or ReadResult(id=1, error="nothing to read")

    async def checks(self) -> CheckResult:
        return CheckResult(id=1, checks=self.check_answer)

    async def act(self, act: AnyAct, *, confirmed: bool) -> Acted:
        assert confirmed, "nothing is done that was not confirmed"
        self.acts.append(act)
        return self.acted

    async def preflight(self, ask: PreflightAsk) -> PreflightResult:
        self.asked.append(ask)
        if self.facts is None:
            raise UsageProblem("The host does not answer", "")
        return PreflightResult(id=1, facts=self.facts)

    async def aclose(self) -> None:
        self.closed.set()
        self._newest.put_nowait(None)


def shelf(**files: Sequence[Start]) -> Callable[[str], Sequence[Start]]:
    """Return a reader of log files that knows these files, by name without the extension."""

    def read(path: str) -> Sequence[Start]:
        name = path.removesuffix(".log")
        if name not in files:
            raise UsageProblem("That file cannot be read", path)
        return files[name]

    return read


async def settled(pilot: Any) -> None:
    """Wait until every request of a screen is answered."""
    for _ in range(3):
        await pilot.pause()
        while any(worker.group != "session" and not worker.is_finished for worker in pilot.app.workers):
            await pilot.pause(0.01)
    await pilot.pause()
