"""Starts of the past, found in older logs: what they took and what they measured goes into the history."""

from __future__ import annotations

from pathlib import Path

from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.commands import AnyCommand, KeepMemory, KeepStart, LookUpStarts
from tuner.domain.server import LogSource, ServerIdentity
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
    assert memory.record.started_at == times.record.started_at


def test_a_start_that_failed_measured_nothing_to_go_by() -> None:
    kinds = [type(command) for command in commands_for("seed-3-custom-ar-055.log")]
    assert kinds == [KeepStart, LookUpStarts]


def test_a_start_of_another_llm_is_left_alone() -> None:
    assert commands_for("seed-1-baseline.log", "/models/other") == ()
