"""Starts of the past, found in older logs: what they took and what they measured goes into the history."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.commands import AnyCommand, KeepMemory, KeepStart, LookUpStarts
from tuner.domain.server import LogSource, Phase, ServerIdentity
from tuner.domain.state import ServerState
from tuner.engines import load_engines

ENGINES = load_engines()
GOLDEN = Path(__file__).parents[2] / "golden" / "corpus"
MODEL = "/models/Kimi-K2.5-INT4"


def commands_for(name: str, model: str = MODEL) -> tuple[AnyCommand, ...]:
    identity = ServerIdentity(
        key="1:1",
        engine="sglang",
        pid=1,
        start_ticks=1,
        argv=("python", "-m", "sglang.launch_server", "--model-path", model),
    )
    state, _ = reduce(initial("host"), e.ServerSeen(seq=1, mono=1.0, server=identity), ENGINES)
    opened = e.LogOpened(seq=2, mono=1.0, key="1:1", kind="file", path="/new.log", offset=0, size=0, reason="start")
    state, _ = reduce(state, opened, ENGINES)
    assert state.servers[0].log.source == LogSource(kind="file", path="/new.log")
    text = (GOLDEN / name).read_text("utf-8")
    _, commands = reduce(
        state, e.OldLog(seq=3, mono=2.0, key="1:1", path="/old.log", size=len(text), data=text), ENGINES
    )
    return commands


def test_a_start_that_worked_leaves_its_times_and_its_memory() -> None:
    times, memory, asked = commands_for("seed-1-baseline.log")
    assert isinstance(times, KeepStart) and times.record.outcome == "ready"
    assert isinstance(memory, KeepMemory) and isinstance(asked, LookUpStarts)
    start = memory.record.start
    assert [rank.number for rank in start.ranks] == list(range(8))
    assert start.ranks[0].kv_tokens is not None and start.ranks[0].kv_tokens.value == 159_277
    assert start.settings["mem_fraction_static"] == 0.88
    assert start.lines == ()
    took = {span.phase: span.seconds for span in start.ranks[0].phases}
    assert took[Phase.WEIGHT_LOAD] == pytest.approx(515, abs=30)
    assert all(span.ended and span.started is None for span in start.ranks[0].phases)
    assert memory.record.started_at == times.record.started_at
    assert memory.record.source == times.record.source == "/old.log"


def test_a_start_that_failed_measured_nothing_to_go_by() -> None:
    kinds = [type(command) for command in commands_for("seed-3-custom-ar-055.log")]
    assert kinds == [KeepStart, LookUpStarts]


def test_a_start_of_another_llm_is_left_alone() -> None:
    assert commands_for("seed-1-baseline.log", "/models/other") == ()


H = 3600.0
OF_VLLM = """\
a line without a time
(APIServer pid=1) INFO 11-29 16:26:06 [api_server.py:9] vLLM API server version 0.11.0
(APIServer pid=1) INFO 11-29 16:26:06 [utils.py:233] non-default args: {'model': '/models/m'}
(APIServer pid=1) INFO 11-29 16:27:36 [launcher.py:42] Available routes are:
(APIServer pid=1) INFO:     Application startup complete.
"""


@pytest.mark.parametrize(
    ("clock", "offset", "zone"),
    [
        (None, 9 * H, 9 * H),
        (None, None, 0.0),
        (9 * H, 0.0, 9 * H),
        (-7 * H, 0.0, -7 * H),
        (-10 * H, -10 * H, -10 * H),
        (-11 * H, -11 * H, -11 * H),
        (-12 * H, -12 * H, -12 * H),
        (-10 * H, 0.0, -10 * H),
        (14 * H, 14 * H, 14 * H),
        (13 * H, 12 * H, 13 * H),
        (0.0, 13 * H, 0.0),
        (0.0, -10 * H, 0.0),
    ],
)
def test_an_older_log_has_the_hosts_time_and_the_year_that_it_does_not_tell(
    clock: float | None, offset: float | None, zone: float
) -> None:
    """vLLM prints neither year nor zone. A container's zone may be another than its host's, though none that is not."""
    now = datetime(2027, 1, 3, 12, 0, tzinfo=UTC).timestamp()
    hello = e.ProbeHello(
        protocol=1, python="3", pid=1, uid=0, hostname="h", boot_id="b", at=now, utc_offset_s=offset
    )  # fmt: skip
    year = datetime(2027, 1, 1, tzinfo=UTC).timestamp() - datetime(2000, 1, 1, tzinfo=UTC).timestamp()
    server = ServerState(
        identity=ServerIdentity(key="1:1", engine="vllm", pid=1, start_ticks=1),
        model="/models/m",
        log_clock=None if clock is None else clock - year,
    )
    state = msgspec.structs.replace(initial("host"), now=now, hello=hello, servers=(server,))
    old = e.OldLog(seq=1, mono=1.0, key="1:1", path="/old.log", size=len(OF_VLLM), data=OF_VLLM)
    _, commands = reduce(state, old, ENGINES)
    (kept,) = (each for each in commands if isinstance(each, KeepStart))
    assert kept.record.started_at == datetime(2026, 11, 29, 16, 26, 6, tzinfo=UTC).timestamp() - zone
