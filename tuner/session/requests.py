"""Requests to the probe that it answers: searching and reading logs, facts for checks, and acts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from tuner.domain import events as e
from tuner.domain.preflight import PreflightAsk
from tuner.errors import ConnectionFailed

ANSWER_S = 15.0
"""Longest wait for an answer in one piece, seconds. A search has no limit, since it can be cancelled."""
ACT_S = 60.0
"""Longest wait for the answer to an act, seconds: the probe waits 15 s for a run's first record, and as long for
processes that are ended."""
PREFLIGHT_S = 100.0
"""Longest wait for the facts before a switch, seconds: the probe gives an engine 90 s to print its flags."""

_LOST = "The connection was lost"

Answer = e.SearchResult | e.ReadResult | e.CheckResult | e.Acted | e.PreflightResult
"""What answers a request, by its number."""


class Unanswered(ConnectionFailed):
    """An order was sent, and no answer came."""


class Requests:
    """Pairs answers with requests by number.

    Args:
        send: Function that sends the probe an order; it raises ConnectionFailed if the probe is not connected.
        patience_s: Longest wait for an answer in one piece, seconds.
    """

    def __init__(self, send: Callable[[Mapping[str, Any]], Awaitable[None]], *, patience_s: float = ANSWER_S) -> None:
        self._send = send
        self._patience_s = patience_s
        self._waiting: dict[int, asyncio.Queue[Answer | None]] = {}
        self._last = 0

    def deliver(self, answer: Answer) -> None:
        """Pass an answer to its request; ignore it if the request was given up."""
        if answers := self._waiting.get(answer.id):
            answers.put_nowait(answer)

    def lost(self) -> None:
        """End all pending requests, since the link was lost."""
        for answers in self._waiting.values():
            answers.put_nowait(None)

    async def search(
        self, key: str, pattern: str, *, regex: bool, ignore_case: bool, limit: int, before: int | None
    ) -> AsyncIterator[e.SearchResult]:
        """Search a log; see `Session.search`."""
        with self._question() as (number, answers):
            order = {"op": "search", "id": number, "key": key, "pattern": pattern, "regex": regex}
            try:
                await self._send({**order, "ignore_case": ignore_case, "limit": limit, "before": before})
            except ConnectionFailed as error:
                yield e.SearchResult(id=number, done=True, error=str(error))
                return
            done = False
            try:
                while not done:
                    answer = await answers.get()
                    if not isinstance(answer, e.SearchResult):
                        answer = e.SearchResult(id=number, done=True, error=_LOST)
                    done = answer.done
                    yield answer
            finally:
                if not done:
                    # The link may be lost, and the search with it.
                    with contextlib.suppress(ConnectionFailed):
                        await self._send({"op": "cancel", "id": number})

    async def read(self, key: str, offset: int, length: int) -> e.ReadResult:
        """Read a part of a log; see `Session.read_log`."""
        try:
            answer = await self._ask({"op": "read", "key": key, "offset": offset, "length": length})
        except ConnectionFailed as error:
            return e.ReadResult(id=0, error=str(error))
        return answer if isinstance(answer, e.ReadResult) else e.ReadResult(id=0, error=_LOST)

    async def checks(self) -> e.CheckResult:
        """Ask for the facts for `doctor`; see `Session.checks`."""
        answer = await self._ask({"op": "checks"})
        if not isinstance(answer, e.CheckResult):
            raise ConnectionFailed(_LOST)
        return answer

    async def preflight(self, ask: PreflightAsk) -> e.PreflightResult:
        """Ask for the facts before a switch; see `Session.preflight`."""
        answer = await self._ask(
            {"op": "preflight", "ask": msgspec.to_builtins(ask)}, max(self._patience_s, PREFLIGHT_S)
        )
        if not isinstance(answer, e.PreflightResult):
            raise ConnectionFailed(_LOST)
        return answer

    async def order(self, order: Mapping[str, Any]) -> e.Acted:
        """Send an order that changes the host, for `session.acts` alone.

        Raises:
            Unanswered: It was sent, or may have been, and no answer came.
            ConnectionFailed: It was not sent.
        """
        answer = await self._ask(order, max(self._patience_s, ACT_S))
        if not isinstance(answer, e.Acted):
            raise Unanswered(_LOST)
        return answer

    async def _ask(self, order: Mapping[str, Any], patience_s: float | None = None) -> Answer | None:
        """Send an order and return its answer; None if the link was lost meanwhile.

        Raises:
            Unanswered: The probe did not answer in time.
            ConnectionFailed: The probe is not connected.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        with self._question() as (number, answers):
            try:
                async with asyncio.timeout(patience_s):
                    await self._send({**order, "id": number})
                    return await answers.get()
            except TimeoutError as error:
                raise Unanswered(
                    f"The probe has not answered for {patience_s:.0f} s",
                    f"asked for {order['op']}",
                    "It may wait for a disk or a driver that does not answer; try again",
                ) from error

    @contextlib.contextmanager
    def _question(self) -> Iterator[tuple[int, asyncio.Queue[Answer | None]]]:
        self._last += 1
        answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        number = self._last
        self._waiting[number] = answers
        try:
            yield number, answers
        finally:
            del self._waiting[number]
