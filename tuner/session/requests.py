"""Requests to the probe that it answers: searching and reading logs, and the facts for `doctor`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from tuner.domain import events as e
from tuner.errors import ConnectionFailed

ANSWER_S = 15.0
"""Longest wait for an answer in one piece, seconds. A search has no limit, since it can be cancelled."""

_LOST = "The connection was lost"

_Answer = e.SearchResult | e.ReadResult | e.CheckResult


class Requests:
    """Pairs answers with requests by number.

    Args:
        send: Function that sends the probe an order; it raises ConnectionFailed if the probe is not connected.
        patience_s: Longest wait for an answer in one piece, seconds.
    """

    def __init__(self, send: Callable[[Mapping[str, Any]], Awaitable[None]], *, patience_s: float = ANSWER_S) -> None:
        self._send = send
        self._patience_s = patience_s
        self._waiting: dict[int, asyncio.Queue[_Answer | None]] = {}
        self._last = 0

    def deliver(self, answer: _Answer) -> None:
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

    async def _ask(self, order: Mapping[str, Any]) -> _Answer | None:
        """Send an order and return its answer; None if the link was lost meanwhile.

        Raises:
            ConnectionFailed: The probe is not connected, or did not answer in time.
        """
        with self._question() as (number, answers):
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._send({**order, "id": number})
                    return await answers.get()
            except TimeoutError as error:
                raise ConnectionFailed(
                    f"The probe has not answered for {self._patience_s:.0f} s",
                    f"asked for {order['op']}",
                    "It may wait for a disk or a driver that does not answer; try again",
                ) from error

    @contextlib.contextmanager
    def _question(self) -> Iterator[tuple[int, asyncio.Queue[_Answer | None]]]:
        self._last += 1
        answers: asyncio.Queue[_Answer | None] = asyncio.Queue()
        number = self._last
        self._waiting[number] = answers
        try:
            yield number, answers
        finally:
            del self._waiting[number]
