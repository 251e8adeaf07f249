from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.facts import until
from tuner.domain import events as e
from tuner.errors import ConnectionFailed
from tuner.session.requests import Requests
from tuner.session.tasks import spawn


class Probe:
    """Takes orders and says nothing unless told to."""

    def __init__(self) -> None:
        self.orders: list[Mapping[str, Any]] = []

    async def __call__(self, order: Mapping[str, Any]) -> None:
        self.orders.append(order)


async def stuck(order: Mapping[str, Any]) -> None:
    await asyncio.Event().wait()


async def test_facts_that_do_not_come_are_an_error_that_says_so() -> None:
    probe = Probe()
    requests = Requests(probe, patience_s=0.01)
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionFailed, match=r"has not answered for .* s: asked for checks"):
            await requests.checks()
    requests.deliver(e.CheckResult(id=probe.orders[0]["id"], checks={}))


async def test_a_part_that_does_not_come_has_an_error_that_says_so() -> None:
    async with asyncio.timeout(5):
        part = await Requests(Probe(), patience_s=0.01).read("k", 5, 6)
    assert "has not answered" in (part.error or "")


async def test_an_order_that_cannot_be_sent_is_not_waited_for_without_end() -> None:
    async with asyncio.timeout(5):
        part = await Requests(stuck, patience_s=0.01).read("k", 5, 6)
        assert "has not answered" in (part.error or "")


async def test_an_answer_in_time_goes_to_who_asked() -> None:
    probe = Probe()
    requests = Requests(probe)
    first, second = (spawn(requests.read("k", n, 1), name=f"read {n}") for n in (1, 2))
    await until(lambda: len(probe.orders) == 2)
    for order in reversed(probe.orders):
        requests.deliver(e.ReadResult(id=order["id"], offset=order["offset"]))
    assert [(await first).offset, (await second).offset] == [1, 2]
