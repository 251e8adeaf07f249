"""Logs of real servers of which is known what was done: how they ended, what is found, every rank's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.golden import diagnoses

REAL = Path(__file__).parent / "real"
H200 = "sglang-0.5.16-2xH200/{}/server.log"
CHANGES = "sglang-0.5.16-2xH200-changes/{}/server.log"


class Owed(NamedTuple):
    """What a diagnosis owes a log."""

    outcome: str
    cause: str | None = None
    severity: str = "fatal"
    phase: str = "none"
    ranks: tuple[int, ...] | None = None


OWED = {
    H200.format("base"): Owed("stopped"),
    H200.format("auto512"): Owed("stopped"),
    H200.format("f97"): Owed("stopped", "prefill-graphs-off", "performance", "graph-capture", (0, 1)),
    H200.format("lowfrac"): Owed("failed", "mem-fraction-too-low", "fatal", "kv-alloc", (0, 1)),
    H200.format("nccl2ch"): Owed("stopped", "custom-ar-disabled", "info", "dist-init"),
    H200.format("retract"): Owed("failed", "rank-died", "fatal", "decode", (1,)),
    CHANGES.format("base"): Owed("stopped", "custom-ar-disabled", "info", "dist-init"),
    CHANGES.format("custom-ar"): Owed("stopped"),
    CHANGES.format("nccl2ch"): Owed("stopped", "custom-ar-disabled", "info", "dist-init"),
    CHANGES.format("f995"): Owed("failed", "mem-fraction-too-high-activation", "fatal", "kv-alloc", (0, 1)),
    CHANGES.format("back"): Owed("stopped", "custom-ar-disabled", "info", "dist-init"),
    "sglang-0.5.23-cpu/fail-bad-attention-backend.log": Owed("failed", "bad-argument", phase="args"),
    "sglang-0.5.23-cpu/fail-bad-model-path.log": Owed("failed", "model-not-found", phase="args"),
    "sglang-0.5.23-cpu/fail-gpu-asked-no-gpu.log": Owed("failed", "binary-mismatch", phase="cuda-init", ranks=(0,)),
    "sglang-0.5.23-cpu/fail-kv-too-big.log": Owed("ready"),
    "sglang-0.5.23-cpu/fail-port-in-use.log": Owed("failed", "port-in-use", phase="warmup"),
    "sglang-0.5.23-cpu/portclash-new.log": Owed("failed", "port-in-use", phase="warmup"),
    "sglang-0.5.23-cpu/portclash-old.log": Owed("stopped"),
    "sglang-0.5.23-cpu/nometrics-queue.log": Owed("stopped"),
    "sglang-0.5.23-cpu/serve-default.log": Owed("stopped"),
    "sglang-0.5.23-cpu/serve-tp2.log": Owed("failed", "rank-died", phase="decode", ranks=(0,)),
    "sglang-0.5.23-cpu/sig-SIGKILL-detokenizer.log": Owed("failed", "rank-died", phase="prefill"),
    "sglang-0.5.23-cpu/sig-SIGKILL-scheduler-load.log": Owed("failed", "rank-died", phase="decode", ranks=(0,)),
    "sglang-0.5.23-cpu/sig-SIGTERM-group-load.log": Owed("stopped"),
    "sglang-0.5.23-cpu/sig-SIGTERM-while-loading.log": Owed("stopped"),
    "sglang-0.5.23-cpu/titles-dp2.log": Owed("stopped"),
    "sglang-0.5.23-cpu/titles-pp2.log": Owed("stopped"),
    "sglang-0.5.9-cpu/serve-default.log": Owed("stopped"),
    "sglang-0.5.9-cpu/serve-tp2.log": Owed("stopped"),
    "vllm-0.32.0-cpu/bad-arg-1.log": Owed("failed", "bad-argument", phase="args"),
    "vllm-0.32.0-cpu/dp2.log": Owed("stopped"),
    "vllm-0.32.0-cpu/fail-kv-too-small.log": Owed("failed", "mem-fraction-too-low", phase="kv-alloc", ranks=(0,)),
    "vllm-0.32.0-cpu/json-logs-and-bench.log": Owed("stopped"),
    "vllm-0.32.0-cpu/kv-too-small.log": Owed("failed", "context-exceeds-kv-pool", phase="kv-alloc"),
    "vllm-0.32.0-cpu/leader-sigkill.log": Owed("failed", "rank-died", phase="runtime"),
    "vllm-0.32.0-cpu/port-in-use.log": Owed("failed", "port-in-use", phase="args"),
    "vllm-0.32.0-cpu/sig-SIGKILL-enginecore-load.log": Owed("failed", "rank-died", phase="runtime"),
    "vllm-0.32.0-cpu/sig-SIGTERM-load.log": Owed("stopped"),
    "vllm-0.32.0-cpu/tp1-start-stop.log": Owed("stopped"),
    "vllm-0.32.0-cpu/tp2-worker-sigkill.log": Owed("failed", "rank-died", phase="runtime", ranks=(1,)),
}


def test_every_log_is_owed_something() -> None:
    assert {str(path.relative_to(REAL)) for path in REAL.rglob("*.log")} == OWED.keys()


@pytest.mark.parametrize("name", OWED)
def test_log_is_judged_by_what_was_done(name: str) -> None:
    owed = OWED[name]
    start, findings = diagnoses.judged(REAL / name)
    assert start.outcome == owed.outcome
    if owed.cause is None:
        assert [finding.cause for finding in findings] == []
    else:
        found = findings[0]
        assert (found.cause, found.severity, found.phase, found.ranks) == owed[1:]


@pytest.mark.parametrize(
    ("name", "tokens", "kv_gib", "graphs_gib", "fraction"),
    [
        (H200.format("base"), 348_715, 53.2, 2.98, 0.85),
        (H200.format("auto512"), 393_099, 59.98, 3.51, 0.899),
        (H200.format("f97"), 455_598, 69.52, 0.11, 0.968),
        (CHANGES.format("base"), 349_154, 53.28, 4.14, 0.85),
        (CHANGES.format("custom-ar"), 348_715, 53.2, 2.98, 0.85),
        (CHANGES.format("nccl2ch"), 351_896, 53.7, 4.14, 0.85),
        (CHANGES.format("back"), 351_896, 53.7, 4.14, 0.85),
    ],
)
def test_numbers_of_every_rank(name: str, tokens: int, kv_gib: float, graphs_gib: float, fraction: float) -> None:
    start, _ = diagnoses.judged(REAL / name)
    assert [rank.number for rank in start.ranks] == [0, 1]
    assert start.limits["max_total_num_tokens"].value == tokens
    assert start.settings["mem_fraction_static"] == fraction
    for rank in start.ranks:
        assert rank.weights_gib is not None and rank.weights_gib.value == pytest.approx(64.26, abs=0.01)
        assert rank.kv_tokens is not None and rank.kv_tokens.value == tokens
        assert rank.kv_gib is not None and rank.kv_gib.value == pytest.approx(kv_gib, abs=0.03)
        assert rank.graphs_gib == pytest.approx(graphs_gib, abs=0.02)
        assert [span.phase for span in rank.phases][:4] == ["dist-init", "weight-load", "kv-alloc", "graph-capture"]
        assert all(span.ended for span in rank.phases)


def test_the_engine_rounds_the_minimum_and_we_do_not() -> None:
    _, findings = diagnoses.judged(REAL / H200.format("lowfrac"))
    values = {each.what: each.value for each in findings[0].evidence}
    assert values["minimum fraction"] == 0.465
    assert findings[0].remedies[0].min == 0.466


def test_retractions_are_told_beside_the_death() -> None:
    _, findings = diagnoses.judged(REAL / H200.format("retract"))
    assert [finding.cause for finding in findings] == ["rank-died", "kv-pool-exhausted"]
