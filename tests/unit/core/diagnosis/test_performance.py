"""Graphs that do not cover the batches, and drafts that do not pay."""

from __future__ import annotations

from tests.support.startlogs import ENGINES, SGLang, findings, read
from tuner.core.diagnosis import diagnose
from tuner.domain.findings import Move, Severity

SPECULATIVE = "speculative_algorithm='EAGLE', speculative_num_steps=3"


def served(extra: str = "cuda_graph_max_bs=16", **more: object) -> SGLang:
    log = SGLang("0.5.9", fraction=0.88, extra=extra, **more).communicators().load()  # type: ignore[arg-type]
    return log.pool(200_000, 10.0, 8.0).capture(6.0).ready(200_000)


def decode(log: SGLang, running: int, rate: float, *, graph: bool = True, accepted: float | None = None) -> None:
    told = "" if accepted is None else f"accept len: {accepted:.2f}, accept rate: 0.50, "
    log.rank(
        0, f"Decode batch, #running-req: {running}, #token: 4096, token usage: 0.10, {told}cuda graph: {graph},"
        f" gen throughput (token/s): {rate:.2f}, #queue-req: 0",
    )  # fmt: skip


def test_batches_above_the_largest_graph_that_are_slower_are_a_slowdown() -> None:
    log = served()
    for _ in range(8):
        decode(log, 16, 900.0)
        decode(log, 24, 500.0, graph=False)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.severity) == ("graph-coverage", Severity.PERFORMANCE)
    raised = next(remedy for remedy in finding.remedies if remedy.knob == "cuda_graph_max_bs")
    assert (raised.move, raised.value) == (Move.RAISE, 32)


def test_a_few_batches_without_a_graph_or_a_server_without_graphs_are_nothing() -> None:
    log = served()
    for _ in range(60):
        decode(log, 8, 500.0)
    decode(log, 24, 300.0, graph=False)
    assert findings(log.lines) == ()
    log = SGLang("0.5.9", extra="disable_cuda_graph=True").communicators().load().pool(9_000, 1.0, 8.0).ready(9_000)
    for _ in range(9):
        decode(log, 8, 500.0, graph=False)
    assert findings(log.lines) == ()


def test_speculation_is_compared_with_a_start_without_it_at_equal_load() -> None:
    plain = served()
    for _ in range(6):
        decode(plain, 4, 300.0)
    past = (read(plain.lines),)
    for rate, lost in ((220.0, True), (420.0, False)):
        log = served(SPECULATIVE)
        for _ in range(6):
            decode(log, 4, rate, accepted=1.4)
        found = diagnose(read(log.lines), ENGINES["sglang"], past)
        assert [finding.cause for finding in found] == (["speculation-loses"] if lost else [])


def test_without_a_comparison_only_what_drafts_must_cost_can_be_said() -> None:
    log = SGLang("0.5.16", fraction=0.9, weights=40.0, extra=SPECULATIVE).communicators().load(draft=10.0)
    log.pool(200_000, 10.0, 8.0).capture(6.0).ready(200_000)
    for _ in range(6):
        decode(log, 4, 300.0, accepted=1.2)
    finding = findings(log.lines)[0]
    assert (finding.cause, finding.severity) == ("speculation-loses", Severity.INFO)
    assert any(each.what == "tokens a step that pay" and each.value == 1.75 for each in finding.evidence)
