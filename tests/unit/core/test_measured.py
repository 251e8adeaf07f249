"""What a live start measured of its memory becomes a record that forecasts can use."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.golden_starts import GOLDEN
from tuner.core.measured import STEP_BYTES, with_peak
from tuner.core.reduce import initial, reduce
from tuner.domain import events as e
from tuner.domain.commands import AnyCommand, KeepMemory
from tuner.domain.forecast import Fit, Source
from tuner.domain.gpu import GpuInfo, GpuProcess
from tuner.domain.server import LogSource, Member, ServerIdentity
from tuner.domain.state import HostState, RankMemory, RankState
from tuner.engines import load_engines
from tuner.units import GIB, MIB

ENGINES = load_engines()
LOG = (GOLDEN / "real/sglang-0.5.16-2xH200/base/server.log").read_text()
READY = LOG[: LOG.index("fired up and ready to roll!") + 40]
KEY = "1798:99"
IDENTITY = ServerIdentity(
    key=KEY,
    engine="sglang",
    pid=1798,
    start_ticks=99,
    started_at=1_795_969_300.0,
    argv=("python3", "-m", "sglang.launch_server", "--model-path", "/models/llama-68b", "--tp", "2"),
    env={"NCCL_BUFFSIZE": "131072", "HF_TOKEN": "hf_secret"},
    members=(
        Member(pid=1971, ppid=1798, start_ticks=1, title="sglang::scheduler_TP0"),
        Member(pid=1972, ppid=1798, start_ticks=1, title="sglang::scheduler_TP1"),
    ),
    log=LogSource(kind="file", path="/log", device=1, inode=2),
)
HELLO = e.ProbeHello(
    seq=1, mono=100.0, protocol=1, python="3", pid=1, uid=0, hostname="h", boot_id="b", at=1_795_969_600.0
)
TABLE = e.GpuTable(
    seq=2,
    mono=100.1,
    source="pynvml",
    gpus=tuple(
        GpuInfo(index=i, uuid=f"GPU-{i}", name="NVIDIA H200", memory_total_bytes=143_771 * MIB) for i in range(2)
    ),
)


def run(*events: Any, state: HostState | None = None) -> tuple[HostState, list[AnyCommand]]:
    state = initial("box") if state is None else state
    commands: list[AnyCommand] = []
    for event in events:
        state, asked = reduce(state, event, ENGINES)
        commands += asked
    return state, commands


def log(text: str, offset: int = 0) -> e.LogBytes:
    return e.LogBytes(seq=0, mono=101.0, key=KEY, offset=offset, end=offset + len(text.encode()), data=text)


def held(*gib: float, mono: float = 102.0) -> e.GpuProcesses:
    processes = tuple(GpuProcess(gpu=i, pid=1971 + i, used_bytes=round(size * GIB)) for i, size in enumerate(gib))
    return e.GpuProcesses(seq=0, mono=mono, processes=processes)


def started() -> tuple[HostState, list[AnyCommand]]:
    return run(
        HELLO,
        TABLE,
        e.ServerSeen(seq=3, mono=100.2, server=IDENTITY),
        e.LogOpened(seq=4, mono=100.3, key=KEY, reason="start", path="/log", size=len(READY)),
        held(123.4, 123.4, mono=100.4),
        log(READY),
    )


def kept(commands: list[AnyCommand]) -> list[KeepMemory]:
    return [command for command in commands if isinstance(command, KeepMemory)]


def test_a_start_that_becomes_ready_is_kept_once_with_what_decides_memory() -> None:
    state, commands = started()
    (command,) = kept(commands)
    record = command.record
    assert (record.host, record.engine, record.model) == ("box", "sglang", "/models/llama-68b")
    assert record.started_at == IDENTITY.started_at
    start = record.start
    assert start.settings["mem_fraction_static"] == 0.85
    assert "random_seed" not in start.settings
    assert "api_key" not in start.settings
    assert start.env == {"NCCL_BUFFSIZE": "131072"}
    assert [rank.total_gib.value for rank in start.ranks if rank.total_gib] == [pytest.approx(140.4, abs=0.01)] * 2
    assert not start.lines
    assert not start.signs
    size = len(msgspec.json.encode(start))
    assert size < 20_000
    _, more = run(held(123.4, 123.4, mono=103.0), state=state)
    assert not kept(more)


def test_a_forecast_from_the_record_is_as_from_the_log() -> None:
    _, commands = started()
    (command,) = kept(commands)
    start = msgspec.json.decode(msgspec.json.encode(command.record.start), type=type(command.record.start))
    engine = ENGINES["sglang"]
    forecast = engine.forecast(start, {"mem_fraction_static": None, "cuda_graph_max_bs": 512})
    assert (forecast.fit, forecast.fraction) == (Fit.FITS, 0.899)
    assert forecast.kv_tokens == pytest.approx(393_099, rel=1e-3)
    context = next(row for row in forecast.rows if row.what == "context")
    assert context.source is Source.MEASURED
    assert not forecast.unknown


def test_what_a_rank_takes_while_serving_is_seen() -> None:
    state, commands = started()
    before = len(kept(commands))
    assert before == 1
    state, commands = run(held(123.5, 123.4, mono=104.0), state=state)
    assert not kept(commands), "less than a step is not worth a word"
    state, commands = run(held(127.0, 123.4, mono=105.0), state=state)
    (command,) = kept(commands)
    grown = command.record.start.ranks[0].activation_gib
    assert grown is not None
    assert grown.value == pytest.approx(3.6, abs=0.01)
    need = next(row for row in ENGINES["sglang"].forecast(command.record.start, {}).rows if row.what == "activation")
    assert need.source is Source.MEASURED
    _, commands = run(held(124.0, 123.4, mono=106.0), state=state)
    assert not kept(commands), "the most stays the most"


def test_a_figure_that_was_older_than_the_readiness_is_no_need_of_a_pass() -> None:
    state, _ = started()
    _, commands = run(held(124.0, 123.4 + 60.0, mono=105.0), state=state)
    (command,) = kept(commands)
    assert command.record.start.ranks[1].activation_gib is None, "more than was left when it became ready"


def test_what_was_kept_before_reaches_the_server() -> None:
    state, commands = started()
    (command,) = kept(commands)
    found = e.HistoryFound(key=KEY, usual=state.servers[0].usual, starts=(command.record.start,))
    state, _ = run(found, state=state)
    assert state.servers[0].past == (command.record.start,)


def test_the_peak_counts_only_while_serving() -> None:
    rank = RankState(tag="TP0", memory=RankMemory(total_bytes=10 * GIB))
    assert with_peak(rank, serving=False) is rank
    ready = with_peak(rank, serving=True)
    assert (ready.ready_bytes, ready.peak_bytes) == (10 * GIB, 10 * GIB)
    more = with_peak(msgspec.structs.replace(ready, memory=RankMemory(total_bytes=10 * GIB + STEP_BYTES)), serving=True)
    assert (more.ready_bytes, more.peak_bytes) == (10 * GIB, 10 * GIB + STEP_BYTES)
    less = with_peak(msgspec.structs.replace(more, memory=RankMemory(total_bytes=GIB)), serving=True)
    assert (less.ready_bytes, less.peak_bytes) == (10 * GIB, 10 * GIB + STEP_BYTES)
    unknown = msgspec.structs.replace(more, memory=RankMemory())
    assert with_peak(unknown, serving=True) is unknown
