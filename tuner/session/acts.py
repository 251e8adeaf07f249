"""The one way from this machine to a change of a host: who may, was it confirmed, and what came of it.

No other module sends the order `act` (`tests/architecture/test_acts.py` proves it). The probe checks lease and
identity again, and keeps the audit: what is refused here is refused before anything is sent.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import getpass
import secrets
import socket
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tuner.core.run_words import holder_words, lease_way_out
from tuner.domain.acts import AnyAct, CancelRun, ReleaseLease, ResumeRun, Switch, TakeLease
from tuner.domain.events import Acted
from tuner.domain.runs import Operator, run_id
from tuner.domain.state import HostState
from tuner.errors import ConnectionFailed
from tuner.probe import bootstrap
from tuner.session.requests import Unanswered

LEASE_DEAD_S = 30.0
"""Seconds without a sign of life after which a lease is free: the probe's limit."""
_UNSEEN = "The next connect shows what came of it: a run goes on without this machine"


@functools.cache
def this_operator() -> Operator:
    """Return who acts in this process: its random id, the user and the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no entry in the password file: a container with a foreign uid
        name = "unknown"
    return Operator(session=secrets.token_hex(8), name=name, machine=socket.gethostname().partition(".")[0])


def new_run_id() -> str:
    """Return the id of a new run, by this machine's clock."""
    return run_id(time.time(), secrets.randbits(32))


class Acts:
    """The acts of one session.

    Args:
        send: Sends an order and returns its answer. It raises `Unanswered` if the order was sent and no answer came,
            and another ConnectionFailed if it was not sent.
        state: Returns the newest state of the host.
        operator: Who acts.
        read_only: True: every act is refused.
        dry_run: True: nothing is sent; the answer tells what would be.
        program: Returns the program of the supervisor, for acts that begin a run.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], Awaitable[Acted]],
        state: Callable[[], HostState],
        operator: Operator,
        *,
        read_only: bool = False,
        dry_run: bool = False,
        program: Callable[[], bytes] = bootstrap.supervisor,
    ) -> None:
        self._send = send
        self._state = state
        self._program = program
        self.operator = operator
        self.read_only = read_only
        self.dry_run = dry_run

    async def act(self, act: AnyAct, *, confirmed: bool) -> Acted:
        """Have the host do something, and return what came of it. Nothing is raised.

        The lease is taken first where nobody has it.

        Args:
            act: What is to be done.
            confirmed: Whether the operator has confirmed it, or asked for it to be done unattended.

        Returns:
            The probe's answer. `error` is None when it was done or has begun. With an error and a `run`, the order was
            sent and no answer came: the run may have begun.
        """
        if (refusal := self._refusal(act, confirmed=confirmed)) is not None:
            return refusal
        if self.dry_run:
            return Acted(id=0, error="dry run: nothing was sent", would=msgspec.to_builtins(act))
        if not isinstance(act, TakeLease | ReleaseLease) and not self._state().lease.mine:
            taken = await self._order(TakeLease())
            if taken.error is not None:
                return msgspec.structs.replace(taken, run="")
        return await self._order(act)

    def _refusal(self, act: AnyAct, *, confirmed: bool) -> Acted | None:
        """Return why an act is not even sent; None if it is."""
        if self.read_only:
            return _refused("this session is read-only", "Connect without --read-only to change the host")
        if not confirmed:
            return _refused("it was not confirmed", "")
        lease, now = self._state().lease, self._state().now
        if lease.mine or isinstance(act, TakeLease | ReleaseLease):
            return None
        dead = lease.beat_at is not None and now is not None and now - lease.beat_at > LEASE_DEAD_S
        if lease.holder is not None and not dead:
            way_out = lease_way_out(lease, self.operator)
            return _refused(holder_words(lease, now, self.operator), way_out[:1].upper() + way_out[1:])
        return None

    async def _order(self, act: AnyAct) -> Acted:
        order: dict[str, Any] = {
            "op": "act",
            "act": msgspec.to_builtins(act),
            "operator": msgspec.to_builtins(self.operator),
        }
        if isinstance(act, Switch | ResumeRun):
            order["code"] = await asyncio.to_thread(lambda: _packed(self._program()))
        try:
            return await self._send(order)
        except Unanswered as error:
            return Acted(id=0, error=f"sent, and no answer came: {error.title}", hint=_UNSEEN, run=_run_of(act))
        except ConnectionFailed as error:
            return _refused(f"not sent: {error.title}", error.hint)


def _refused(error: str, hint: str) -> Acted:
    return Acted(id=0, error=error, hint=hint)


def _run_of(act: AnyAct) -> str:
    """Return the id of the run that an act begins or changes; empty if it is about none."""
    if isinstance(act, Switch):
        return act.order.run
    return act.run if isinstance(act, ResumeRun | CancelRun) else ""


def _packed(program: bytes) -> str:
    return base64.b64encode(zlib.compress(program, 9)).decode()
