"""Apps on fake sessions, with a clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.sessions import FakeSession
from tuner.app import TunerApp
from tuner.domain.state import HostState


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def app_on(clock: Clock) -> Callable[..., tuple[TunerApp, list[FakeSession]]]:
    """Make an app on states; returns it with its sessions."""

    def make(*hosts: HostState | FakeSession, **options: Any) -> tuple[TunerApp, list[FakeSession]]:
        sessions = [host if isinstance(host, FakeSession) else FakeSession(host) for host in hosts]
        return TunerApp(sessions, clock=clock, **options), sessions

    return make
