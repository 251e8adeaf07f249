"""Memory of a rank: the terms and the rest add up to what the driver counts."""

import pytest

from tuner.core import facts as f
from tuner.core.memory import combine, terms_from_fact
from tuner.domain.gpu import GpuProcess
from tuner.domain.logs import LogFact
from tuner.domain.readings import MemoryTerms
from tuner.domain.state import RankState
from tuner.units import GIB, from_gib


def fold(*facts: LogFact) -> MemoryTerms:
    terms = MemoryTerms()
    for fact in facts:
        terms = terms_from_fact(terms, fact)
    return terms


def test_terms_of_a_start() -> None:
    terms = fold(
        LogFact(kind=f.PHASE_END, fields={"phase": "dist-init", "used_gib": 1.07}),
        LogFact(kind=f.WEIGHTS, fields={"used_gib": 64.26}),
        LogFact(kind=f.KV_POOL, fields={"kv_gib": 53.2}),
        LogFact(kind=f.GRAPHS, fields={"used_gib": 2.87, "what": "prefill"}),
        LogFact(kind=f.GRAPHS, fields={"used_gib": 0.11, "what": "decode"}),
    )
    assert terms.context_bytes == from_gib(1.07)
    assert terms.weights_bytes == from_gib(64.26)
    assert terms.kv_bytes == from_gib(53.2)
    assert terms.graphs_bytes == pytest.approx(from_gib(2.98), abs=2)


def test_a_draft_model_adds_its_weights() -> None:
    terms = fold(
        LogFact(kind=f.WEIGHTS, fields={"used_gib": 60.0}),
        LogFact(kind=f.WEIGHTS, fields={"used_gib": 4.0}),
    )
    assert terms.weights_bytes == 64 * GIB


def test_graphs_left_out_of_an_answer_are_taken_from_the_log() -> None:
    """SGLang 0.5.16 on an H200: memory_usage.graph is 0.11, the log shows 2.87 for prefill and 0.11 for decode."""
    rank = RankState(
        tag="TP0",
        log_terms=MemoryTerms(graphs_bytes=from_gib(2.98)),
        http_terms=MemoryTerms(graphs_bytes=from_gib(0.11)),
    )
    assert combine(rank, ()).graphs_bytes == from_gib(2.98)


def test_a_merged_breakdown_is_taken_apart() -> None:
    """vLLM 0.28 and later say how much weights and the rest outside torch hold together."""
    terms = fold(
        LogFact(kind=f.WEIGHTS, fields={"used_gib": 36.0}),
        LogFact(kind=f.MEMORY, fields={"consumed_gib": 37.9, "activation_gib": 2.1, "graphs_gib": 0.44}),
    )
    assert terms.weights_bytes == 36 * GIB
    assert terms.context_bytes == pytest.approx(from_gib(1.9), abs=2)


def test_the_rest_is_other_and_all_adds_up() -> None:
    rank = RankState(
        tag="TP0", gpu=0, pid=7, log_terms=MemoryTerms(weights_bytes=60 * GIB, kv_bytes=20 * GIB, graphs_bytes=GIB)
    )
    memory = combine(rank, (GpuProcess(0, 7, 85 * GIB), GpuProcess(1, 7, GIB), GpuProcess(0, 8, 2 * GIB)))
    assert memory.other_bytes == 4 * GIB
    assert memory.total_bytes == 85 * GIB
    assert memory.source == "log+nvml"


def test_http_beats_the_log_term_by_term() -> None:
    rank = RankState(
        tag="TP0",
        log_terms=MemoryTerms(weights_bytes=1, kv_bytes=2),
        http_terms=MemoryTerms(weights_bytes=10),
    )
    memory = combine(rank, ())
    assert (memory.weights_bytes, memory.kv_bytes, memory.total_bytes, memory.other_bytes) == (10, 2, None, None)


def test_terms_beyond_the_drivers_figure_are_not_hidden() -> None:
    rank = RankState(tag="TP0", gpu=0, pid=7, log_terms=MemoryTerms(weights_bytes=90))
    assert combine(rank, (GpuProcess(0, 7, 80),)).other_bytes == 0


def test_a_process_whose_memory_the_driver_does_not_tell() -> None:
    memory = combine(RankState(tag="TP0", gpu=0, pid=7), (GpuProcess(0, 7, None),))
    assert (memory.total_bytes, memory.other_bytes, memory.source) == (None, None, "")


def test_a_size_no_machine_has_changes_nothing() -> None:
    terms = fold(
        LogFact(kind=f.WEIGHTS, fields={"used_gib": 60.0}),
        LogFact(kind=f.WEIGHTS, fields={"used_gib": 1e300}),
        LogFact(kind=f.KV_POOL, fields={"kv_gib": 1e300}),
        LogFact(kind=f.GRAPHS, fields={"used_gib": 1e300}),
        LogFact(kind=f.MEMORY, fields={"activation_gib": 1e300}),
    )
    assert terms == MemoryTerms(weights_bytes=60 * GIB)
