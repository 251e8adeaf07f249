"""How knobs change the throughput of the simulated server: plausible in direction and size, with a little noise."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.unit.simhost.played import T0, server
from tuner.simhost.engine.speed import Speed, speed
from tuner.simhost.engine.traffic import Request

ONE_STAGE = {"SGLANG_FORCE_CUSTOM_AR_PCIE": "1", "SGLANG_CUSTOM_ALLREDUCE_ALGO": "1stage"}
TWO_STAGES = {**ONE_STAGE, "SGLANG_CUSTOM_ALLREDUCE_ALGO": "2stage"}


def tok_s(*flags: str, batch: int = 1, prompt: int = 200, version: str = "0.5.9", **options: Any) -> float:
    """Tokens a second of a batch that decodes."""
    played = server(version, 0.88, *flags, traffic="none", **options)
    played.replay(T0, T0 + 700)
    serving = played.serving
    assert serving is not None
    for number in range(batch):
        serving.submit(Request(f"r{number}", prompt, 0, 4_000, serving.now))
    at = serving.now
    while len(serving.running) < batch:
        at += 0.05
        serving.advance(at)
    began, before = serving.now, serving.counters.realtime_decode
    serving.advance(began + 20)
    return (serving.counters.realtime_decode - before) / (serving.now - began)


def test_the_scenarios_server_is_the_measure() -> None:
    assert tok_s() == pytest.approx(89.5, rel=0.01)
    assert speed(server().config) == speed(server("0.5.23").config)
    assert speed(server().config) == Speed()


@pytest.mark.parametrize(
    ("env", "low", "high"),
    [
        ({"NCCL_P2P_LEVEL": "SYS"}, 1.02, 1.10),
        ({"NCCL_PROTO": "LL"}, 1.02, 1.08),
        ({"NCCL_PROTO": "Simple"}, 0.90, 0.97),
        ({"NCCL_P2P_DISABLE": "1"}, 0.75, 0.90),
        ({"NCCL_MAX_NCHANNELS": "2"}, 1.0, 1.04),
        (ONE_STAGE, 1.15, 1.40),
        (TWO_STAGES, 1.10, 1.25),
    ],
)
def test_all_reduce_counts_in_decode(env: dict[str, str], low: float, high: float) -> None:
    assert low < tok_s(env=env) / tok_s() < high


def test_one_stage_is_for_small_batches() -> None:
    alone = tok_s(env=ONE_STAGE) / tok_s(env=TWO_STAGES)
    together = tok_s(env=ONE_STAGE, batch=64) / tok_s(env=TWO_STAGES, batch=64)
    assert alone > 1.03
    assert together < 0.95


def test_what_helps_decode_can_hurt_prefill() -> None:
    few = speed(server(env={"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": "131072"}).config)
    assert few.step < 1.0
    assert few.prefill > 1.5
    assert speed(server("0.5.9", 0.88, "--chunked-prefill-size", "2048").config).prefill > 1.03


def test_graphs_fp8_and_pcie_ipc() -> None:
    assert tok_s("--cuda-graph-max-bs", "8", batch=16) < 0.5 * tok_s(batch=16)
    assert tok_s("--disable-cuda-graph") == pytest.approx(tok_s() / 2.4, rel=0.02)
    deep = {"batch": 8, "prompt": 12_000}
    assert tok_s("--kv-cache-dtype", "fp8_e4m3", **deep) > 1.15 * tok_s(**deep)
    assert tok_s("--kv-cache-dtype", "fp8_e4m3") < tok_s()
    ipc = {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}
    assert tok_s(env=ipc, version="0.5.23") > 1.25 * tok_s(version="0.5.23")
    assert tok_s(env=ipc) == pytest.approx(tok_s(), rel=0.01), "0.5.9 does not know it"


def test_starts_differ_a_little() -> None:
    found = [tok_s(launched=True, seed=seed) for seed in range(12)]
    assert 0.001 < statistics.stdev(found) / statistics.mean(found) < 0.01
    assert statistics.mean(found) == pytest.approx(89.5, rel=0.01)
    assert tok_s(launched=True, seed=3) == found[3]


def test_fp8_doubles_the_pool_and_a_request_limit_shrinks_the_table() -> None:
    base, halved = server(), server("0.5.9", 0.88, "--kv-cache-dtype", "fp8_e4m3", "--max-running-requests", "64")
    for played in (base, halved):
        played.replay(T0, T0 + 700)
    assert halved.machine.tokens == pytest.approx(2 * base.machine.tokens, rel=0.001)
    assert halved.machine.max_running == 64
    saved = base.machine.box.ranks[0].request_table - halved.machine.box.ranks[0].request_table
    assert saved == (2048 - 64) * (131_072 + 4) * 4
