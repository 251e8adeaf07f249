"""A server that was started again into its predecessor's log is not taken for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.plain_engine import PlainEngine
from tuner.core.predecessor import Doubt, doubt_about
from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.commands import AnyCommand, KeepStart
from tuner.domain.server import LogSource, Phase, ServerIdentity
from tuner.domain.state import HostState, ServerState

BORN = 1_772_000_000
KEY = "10:99"
HOUR = 3600
ENGINES = {"plain": PlainEngine()}
HELLO = e.ProbeHello(
    seq=1, mono=100.0, protocol=1, python="3.11", pid=1, uid=0, hostname="h", at=BORN + 1.0, utc_offset_s=0.0
)


def identity(**changes: Any) -> ServerIdentity:
    fields: dict[str, Any] = {
        "key": KEY, "engine": "plain", "pid": 10, "start_ticks": 99, "started_at": float(BORN), "port": 8000,
        "argv": ("plain", "llama"), "log": LogSource(kind="file", path="/log", device=1, inode=2),
    }  # fmt: skip
    return ServerIdentity(**{**fields, **changes})


def log(start: int, end: str) -> str:
    """A start that began then, and how it ended."""
    lines = ["a line without a time", f"@{start} !args", f"@{start + 5} !phase-begin phase=weight-load"]
    return "\n".join([*lines, f"@{start + 20} !weights used_gib=60", f"@{start + 30} !http-up", end]) + "\n"


class Watched:
    """A host with one server, and what it asked for."""

    def __init__(self, text: str, hello: e.ProbeHello = HELLO, **changes: Any) -> None:
        self.state: HostState = initial("h")
        self.kept: list[AnyCommand] = []
        self.seq = 0
        self.size = len(text)
        self.see(hello)
        self.see(e.ServerSeen(server=identity(**changes)))
        source = {"kind": "file", "path": "/log", "device": 1, "inode": 2}
        self.see(e.LogOpened(key=KEY, reason="start", offset=0, size=self.size, **source))
        self.see(e.LogBytes(key=KEY, offset=0, end=self.size, data=text))

    def see(self, event: e.AnyEvent) -> None:
        self.seq += 1
        event = msgspec.structs.replace(event, seq=self.seq, mono=100.0)
        self.state, commands = reduce(self.state, event, ENGINES)
        self.kept += [command for command in commands if isinstance(command, KeepStart)]

    def append(self, text: str) -> None:
        self.see(e.LogBytes(key=KEY, offset=self.size, end=self.size + len(text), data=text))
        self.size += len(text)

    @property
    def server(self) -> ServerState:
        return self.state.servers[0]


ENDS = {
    "ready": "@{} !ready",
    "failed": "@{} !error summary=x fatal=1",
    "died": "@{} !died",
    "unsaid": "!error summary=x",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("ago", [100, 900, 5000])
def test_what_an_earlier_process_printed_is_shown_and_not_believed(end: str, ago: int) -> None:
    watched = Watched(log(BORN - ago, end.format(BORN - ago + 31)))
    assert watched.server.log.lines_total == 6
    assert watched.server.phase is Phase.UNKNOWN
    assert (watched.server.errors, watched.server.facts, watched.kept) == ((), (), [])
    watched.append(log(BORN + 2, f"@{BORN + 33} !ready"))
    assert watched.server.phase is Phase.READY
    assert watched.server.started_in_s == 33
    assert len(watched.kept) == 1


@pytest.mark.parametrize(("host", "zone"), [(0, 0), (5.5, 0), (5.5, 5.5), (-7, 0), (-7, -7)])
def test_lines_of_its_own_count_in_the_zones_they_may_be_in(host: float, zone: float) -> None:
    hello = msgspec.structs.replace(HELLO, at=BORN + 60.0, utc_offset_s=host * HOUR)
    start = BORN + 2 + int(zone * HOUR)
    watched = Watched(log(start, f"@{start + 31} !ready"), hello, ports=(8000,))
    assert (watched.server.phase, watched.server.started_in_s) == (Phase.READY, 33)


@pytest.mark.parametrize(("host", "zone"), [(5.5, 5.5), (5.5, 0), (-7, -7), (-7, 0)])
def test_an_earlier_start_is_recognised_in_either_zone(host: float, zone: float) -> None:
    hello = msgspec.structs.replace(HELLO, utc_offset_s=host * HOUR)
    start = BORN - 10 * HOUR + int(zone * HOUR)
    assert Watched(log(start, f"@{start + 31} !ready"), hello).server.phase is Phase.UNKNOWN


def test_a_host_that_does_not_tell_its_zone_shows_ready_only_with_the_port() -> None:
    hello = msgspec.structs.replace(HELLO, utc_offset_s=None)
    watched = Watched(log(BORN - 1000, f"@{BORN - 969} !ready"), hello)
    assert watched.server.phase is Phase.WARMUP
    assert not watched.kept
    watched.see(e.ServerSeen(server=identity(ports=(8000,))))
    assert watched.server.phase is Phase.READY
    assert not watched.kept, "the start began before the process did"


def test_a_server_whose_port_was_told_after_its_line_is_ready_and_its_start_is_kept() -> None:
    watched = Watched("", ports=(26001,))
    watched.append(log(BORN + 2, f"@{BORN + 33} !ready"))
    assert watched.server.phase is Phase.WARMUP
    watched.see(e.ServerSeen(server=identity(ports=(8000, 26001))))
    assert (watched.server.phase, watched.server.started_in_s) == (Phase.READY, 33)
    assert len(watched.kept) == 1


def test_only_a_young_server_in_a_known_zone_is_doubted() -> None:
    assert doubt_about(identity(), BORN + 4000.0, HELLO) is None
    assert doubt_about(identity(started_at=None), BORN + 1.0, HELLO) is None
    abroad = doubt_about(identity(env={"TZ": "Asia/Tokyo"}), BORN + 1.0, HELLO)
    assert abroad is not None
    assert not abroad.before(BORN - 1000.0)


def test_times_without_a_year_are_of_the_year_that_ends_now() -> None:
    def yearless(month_day_seconds: float) -> float:
        return 946_684_800.0 + month_day_seconds

    new_year = 1_767_225_600.0  # 2026
    doubt = Doubt(started_at=new_year + 10, now=new_year + 20, utc_offset_s=0.0)
    assert doubt.before(yearless(2))
    assert not doubt.before(yearless(15))
    assert doubt.before(yearless(366 * 86_400 - 5)), "the last seconds of the old year"
