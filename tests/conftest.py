"""What holds for every test: a home of its own, no settings of the developer's, no skips where CI forbids them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

# A shell starts background jobs with SIGINT ignored, and programs started from here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_OURS = ("GPUTUNER_", "XDG_")
_LEAKS = ("SSH_AUTH_SOCK", "SSH_ASKPASS", "HOST_ROOT", "NO_COLOR", "COLORTERM", "COLUMNS", "LINES")
_KEPT = ("GPUTUNER_ENGINES", "GPUTUNER_CI_RUN")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite."""
    parser.addoption("--no-skips", action="store_true", help="a skipped test has failed: CI has all that is needed")
    parser.addoption("--update-pictures", action="store_true", help="draw the README's pictures again")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn a skip into a failure where `--no-skips` asks for it."""
    report = yield
    expected = hasattr(report, "wasxfail")
    if report.skipped and not expected and item.config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipped, where nothing may be: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _characters() -> None:
    """Have hypothesis make its table of characters, which takes seconds in a new clone and is no test's fault."""
    st.text().validate()


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither read nor write what belongs to whoever runs the tests; child processes inherit this."""
    home = tmp_path_factory.mktemp("home")
    for name in os.environ:
        if name in _LEAKS or (name.startswith(_OURS) and name not in _KEPT):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
    monkeypatch.setenv("TERM", "xterm-256color")
    return home
