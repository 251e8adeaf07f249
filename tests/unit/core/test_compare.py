"""What differed between two starts, and what it has to do with the outcome."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.golden_starts import last_start
from tuner.cli import side_by_side
from tuner.cli.paper import Paper
from tuner.core import comparison_words as words
from tuner.core.compare import compare
from tuner.core.differences import flat, llm, same, variables
from tuner.core.surroundings import environment
from tuner.domain.comparison import Difference, Group, Measure, Origin, RankPair, Role
from tuner.domain.findings import Finding, Move, Outcome, Remedy, Severity
from tuner.domain.server import Phase
from tuner.domain.starts import Figure, GraphCapture, PhaseSpan, RankStory, Sign, Start
from tuner.engines import load_engines

SGLANG = load_engines()["sglang"]
BASE = "real/sglang-0.5.16-2xH200/base/server.log"


def start(**changes: Any) -> Start:
    """Two ranks, 80 GiB free before 30 GiB of weights, a pool of 42 GiB at 0.9."""
    weights = changes.pop("weights", 30.0)
    fraction = changes.pop("fraction", 0.9)
    foreign = changes.pop("foreign", 0.0)
    settings = {"model_path": "/m/llama", "tp_size": 2, "mem_fraction_static": fraction} | changes.pop("settings", {})
    ranks = []
    for number in range(2):
        before = 80.0 - (foreign if number == 1 else 0.0)
        ranks.append(
            RankStory(
                tag=f"TP{number}",
                number=number,
                communicators_gib=Figure(0.5, 3),
                before_weights=Figure(before, 4),
                weights_gib=Figure(weights, 5),
                after_weights=Figure(before - weights, 5),
            )
        )
    pool = min(
        r.after_weights.value - r.before_weights.value * (1 - fraction)
        for r in ranks
        if r.after_weights and r.before_weights
    )
    outcome = Outcome.READY if pool > 0 else Outcome.FAILED
    if pool > 0:
        tokens = Figure(float(int(pool * 8192)), 6)
        ranks = [msgspec.structs.replace(r, kv_gib=Figure(round(pool, 2), 6), kv_tokens=tokens) for r in ranks]
    made = Start(
        engine="sglang",
        version="0.5.9",
        outcome=outcome,
        phase=Phase.READY if pool > 0 else Phase.KV_ALLOC,
        settings=settings,
        settings_at=1,
        ranks=tuple(ranks),
        ready_at=9 if pool > 0 else None,
    )
    return msgspec.structs.replace(made, **changes)


def found(name: str, good: Start, bad: Start, *findings: Finding) -> Difference:
    return next(each for each in compare(good, bad, SGLANG, findings).differences if each.name == name)


def test_equal_starts_have_no_difference() -> None:
    comparison = compare(start(), start())
    assert comparison.differences == ()
    assert "Neither failed" in comparison.summary


def test_what_gputuner_sets_itself_is_no_difference() -> None:
    one = start(env={"GPUTUNER_RUN": "20261130-101523-a1b2c3d4", "HOST_ROOT": "/tmp/a", "NCCL_ALGO": "Ring"})
    other = start(env={"GPUTUNER_RUN": "20261130-111523-a1b2c3d4", "HOST_ROOT": "/tmp/b", "NCCL_ALGO": "Tree"})
    assert [each.name for each in variables(one, other)] == ["NCCL_ALGO"]


def test_more_weights_explain_a_pool_that_is_gone() -> None:
    """The fraction is the same: what is left after the weights is not."""
    comparison = compare(start(fraction=0.6), start(fraction=0.6, weights=50.0))
    assert [each.name for each in comparison.explaining] == ["weights"]
    assert "the weights 30 -> 50 GiB is the only change that matters" in comparison.summary
    assert not [each for each in comparison.differences if each.name == "mem_fraction_static"]


def test_what_may_have_moved_that_memory_is_not_acquitted() -> None:
    bad = start(fraction=0.6, weights=50.0, settings={"quantization": None, "mem_fraction_static": 0.6})
    good = start(fraction=0.6, settings={"quantization": "fp8", "mem_fraction_static": 0.6})
    assert found("quantization", good, bad).role is Role.POSSIBLE


@pytest.mark.parametrize(
    ("name", "good", "bad", "role"),
    [
        ("dtype", "bfloat16", "float32", Role.FOLLOWS),
        ("quantization", "fp8", None, Role.FOLLOWS),
        ("lora_backend", "triton", "csgmv", Role.EXPLAINS),
    ],
)
def test_what_is_left_after_the_weights_follows_from_what_decides_what_is_loaded(
    name: str, good: Any, bad: Any, role: Role
) -> None:
    """By the catalogue of knobs, of starts that do not tell their weights apart."""
    starts = []
    for value, weights in ((good, 30.0), (bad, 50.0)):
        made = start(fraction=0.6, weights=weights, settings={name: value, "mem_fraction_static": 0.6})
        ranks = tuple(msgspec.structs.replace(rank, weights_gib=None) for rank in made.ranks)
        starts.append(msgspec.structs.replace(made, ranks=ranks))
    remedy = Remedy(knob=name, move=Move.SET, value=good)
    cause = Finding(cause="weights-do-not-fit", severity=Severity.FATAL, remedies=(remedy,))
    comparison = compare(*starts, SGLANG, (cause,))
    roles = {each.name: each.role for each in comparison.differences}
    assert roles[name] is Role.EXPLAINS
    assert roles["after weights"] is role


def test_a_process_on_one_gpu_is_told_with_its_rank() -> None:
    """70 GiB held on rank 1: before and after are the least of all ranks."""
    comparison = compare(start(fraction=0.6), start(fraction=0.6, foreign=45.0))
    before = next(each for each in comparison.differences if each.name == "before weights")
    assert before.role is Role.EXPLAINS
    assert [(p.rank, p.good, p.bad) for p in before.pairs] == [(0, 80.0, 80.0), (1, 80.0, 35.0)]


def test_a_fraction_that_is_not_enough_does_not_explain_alone() -> None:
    """Even the baseline's fraction would leave nothing beside these weights."""
    good, bad = start(fraction=0.8, weights=30.0), start(fraction=0.7, weights=70.0)
    assert found("mem_fraction_static", good, bad).role is Role.POSSIBLE
    assert found("weights", good, bad).role in (Role.EXPLAINS, Role.POSSIBLE)


def test_of_two_that_work_the_fraction_explains_the_pool() -> None:
    cause = found("mem_fraction_static", start(), start(fraction=0.7))
    assert (cause.role, cause.effect_gib) == (Role.EXPLAINS, pytest.approx(-16.0))
    assert "42.00 to 26.00 GiB" in cause.note


def test_graphs_that_did_not_change_acquit_their_argument() -> None:
    graphs = (GraphCapture(what="decode", at=7, used_gib=1.0, seconds=9.0, sizes=(1, 2, 4)),)
    good, bad = (
        msgspec.structs.replace(each, ranks=tuple(msgspec.structs.replace(r, graphs=graphs) for r in each.ranks))
        for each in (start(settings={"cuda_graph_max_bs": 4}), start(settings={"cuda_graph_max_bs": 5}))
    )
    assert found("cuda_graph_max_bs", good, bad).role is Role.ACQUITTED
    more = (GraphCapture(what="decode", at=7, used_gib=3.0, seconds=30.0, sizes=(1, 2, 4, 8)),)
    bad = msgspec.structs.replace(bad, ranks=tuple(msgspec.structs.replace(r, graphs=more) for r in bad.ranks))
    cause = found("cuda_graph_max_bs", good, bad)
    assert cause.role is Role.EXPLAINS
    assert "1.00 -> 3.00 GiB" in cause.note


def test_another_data_type_of_the_pool_explains_its_tokens() -> None:
    good, bad = start(settings={"kv_cache_dtype": "auto"}), start(settings={"kv_cache_dtype": "fp8_e4m3"})
    twice = tuple(
        msgspec.structs.replace(r, kv_tokens=Figure(r.kv_tokens.value * 2, 6)) for r in bad.ranks if r.kv_tokens
    )
    cause = found("kv_cache_dtype", good, msgspec.structs.replace(bad, ranks=twice))
    assert (cause.role, cause.note) == (Role.EXPLAINS, "bytes per token 131,072 -> 65,536 B")
    assert found("kv_cache_dtype", good, bad).role is Role.ACQUITTED


@pytest.mark.parametrize("role", [Role.ACQUITTED, Role.POSSIBLE])
def test_what_no_catalogue_knows_is_not_acquitted(role: Role) -> None:
    graphs = (GraphCapture(what="decode", at=7, used_gib=1.0, seconds=9.0, sizes=(1, 2, 4)),)
    name = "cuda_graph_bs" if role is Role.ACQUITTED else "my_cuda_graph_bs"
    starts = [start(settings={name: value}) for value in (1, 2)]
    for index, each in enumerate(starts):
        ranks = tuple(msgspec.structs.replace(rank, graphs=graphs) for rank in each.ranks)
        starts[index] = msgspec.structs.replace(each, ranks=ranks)
    assert found(name, *starts).role is role


def broken(phase: Phase = Phase.GRAPH_CAPTURE, **changes: Any) -> Start:
    return msgspec.structs.replace(start(**changes), outcome=Outcome.FAILED, phase=phase, ready_at=None)


@pytest.mark.parametrize(
    ("good", "bad", "remedy", "role"),
    [
        (
            128,
            512,
            Remedy(knob="cuda_graph_max_bs", flag="--cuda-graph-max-bs", move=Move.LOWER, max=256),
            Role.EXPLAINS,
        ),
        (
            384,
            512,
            Remedy(knob="cuda_graph_max_bs", flag="--cuda-graph-max-bs", move=Move.LOWER, max=256),
            Role.POSSIBLE,
        ),
        (
            512,
            128,
            Remedy(knob="cuda_graph_max_bs", flag="--cuda-graph-max-bs", move=Move.LOWER, max=64),
            Role.POSSIBLE,
        ),
        (128, 512, Remedy(knob="graphs", flag="--cuda-graph-max-bs", move=Move.LOWER), Role.EXPLAINS),
        (128, 512, Remedy(knob="something_else", move=Move.LOWER), Role.POSSIBLE),
    ],
)
def test_a_remedy_of_the_finding_names_the_knob(good: int, bad: int, remedy: Remedy, role: Role) -> None:
    finding = Finding(cause="mem-fraction-too-high-graph-capture", severity=Severity.FATAL, remedies=(remedy,))
    one, other = start(settings={"cuda_graph_max_bs": good}), broken(settings={"cuda_graph_max_bs": bad})
    assert found("cuda_graph_max_bs", one, other, finding).role is role


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (Phase.KV_ALLOC, Phase.KV_ALLOC, "Both failed in kv-alloc."),
        (Phase.READY, Phase.READY, "Both failed while serving."),
        (Phase.KV_ALLOC, Phase.READY, "Both failed, the baseline in kv-alloc and the other while serving."),
        (Phase.UNKNOWN, Phase.UNKNOWN, "Both failed."),
        (Phase.UNKNOWN, Phase.KV_ALLOC, "Both failed."),
    ],
)
def test_where_both_failed_is_said_as_far_as_it_is_known(one: Phase, other: Phase, words: str) -> None:
    assert compare(broken(one), broken(other), SGLANG, ()).summary.startswith(words)


def test_memory_that_the_failed_start_had_more_of_is_no_suspect() -> None:
    for good, bad, role in (
        (start(), broken(foreign=10.0), Role.POSSIBLE),
        (start(foreign=10.0), broken(), Role.FOLLOWS),
        (broken(), start(foreign=10.0), Role.FOLLOWS),
    ):
        assert found("before weights", good, bad).role is role


def test_a_switch_that_the_remedy_wants_and_the_baseline_has() -> None:
    remedy = Remedy(knob="disable_custom_all_reduce", flag="--disable-custom-all-reduce", move=Move.SET, value=True)
    finding = Finding(cause="custom-ar-ipc-failure", severity=Severity.FATAL, remedies=(remedy,))
    one, other = (
        start(settings={"disable_custom_all_reduce": True}),
        broken(settings={"disable_custom_all_reduce": False}),
    )
    assert found("disable_custom_all_reduce", one, other, finding).explains


def test_noise_counts_where_the_finding_is_about_it() -> None:
    one, other = start(settings={"port": 30000}), broken(Phase.READY, settings={"port": 30001})
    assert found("port", one, other).role is Role.NOISE
    finding = Finding(cause="port-in-use", severity=Severity.FATAL, remedies=(Remedy(knob="port", flag="--port"),))
    assert found("port", one, other, finding).role is Role.POSSIBLE


def test_information_is_no_reason() -> None:
    remedy = Remedy(knob="port", flag="--port")
    finding = Finding(cause="custom-ar-disabled-pcie", severity=Severity.INFO, remedies=(remedy,))
    assert found("port", start(settings={"port": 1}), broken(settings={"port": 2}), finding).role is Role.NOISE


def test_nothing_told_is_said() -> None:
    comparison = compare(start(), broken())
    assert "no difference that could explain it" in comparison.summary


def test_another_llm_engine_or_card_is_said_and_the_rest_compared() -> None:
    other = start(settings={"model_path": "/m/qwen"})
    assert compare(start(), other).obstacles == ("other LLMs: /m/llama and /m/qwen",)
    vllm = msgspec.structs.replace(start(fraction=0.7), engine="vllm")
    comparison = compare(start(), vllm)
    assert comparison.obstacles == ("other engines: sglang and vllm",)
    assert comparison.summary == "", "nothing is listed that a sentence could be about"
    assert "is listed side by side" in compare(start(), start(settings={"model_path": "/m/q", "new": 1})).summary
    assert {each.group for each in comparison.differences} == {Group.POOL}
    small = msgspec.structs.replace(
        start(), ranks=tuple(msgspec.structs.replace(r, before_weights=Figure(40.0, 4)) for r in start().ranks)
    )
    assert "other GPUs" in compare(start(), small).obstacles[0]
    assert compare(start(fraction=0.6), start(fraction=0.6, foreign=45.0)).obstacles == ()


def test_phases_are_told_when_they_took_another_time() -> None:
    def timed(seconds: float) -> Start:
        span = PhaseSpan(phase=Phase.WEIGHT_LOAD, at=4, seconds=seconds, ended=True)
        made = start()
        return msgspec.structs.replace(
            made, ranks=tuple(msgspec.structs.replace(r, phases=(span,)) for r in made.ranks)
        )

    slow = found("weight-load", timed(100.0), timed(300.0))
    assert (slow.role, slow.ratio, slow.note) == (Role.FOLLOWS, 3.0, "3.0 times as long")
    assert not compare(timed(100.0), timed(110.0)).differences
    assert not compare(timed(0.1), timed(1.0)).differences


def test_versions_of_parts() -> None:
    good = msgspec.structs.replace(start(), versions={"nccl": "2.27.5", "torch": "2.9.1"})
    bad = msgspec.structs.replace(start(), versions={"nccl": "2.28.0", "commit": "abc1234", "dirty": "yes"})
    versions = [d for d in compare(good, bad).differences if d.group is Group.VERSION]
    assert {each.name for each in versions} == {"nccl", "commit", "dirty"}, "torch is told by one log only"


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("0.5.9", "0.5.10", True),
        ("0.5.14 - 0.5.18", "0.5.16 - 0.5.18", False),
        ("0.5.3 - 0.5.8", "0.5.9", True),
        (">=0.5.10", "0.5.9", True),
        (">=0.5.10", "0.5.23", False),
        ("<=0.4.3", "0.4.6", True),
        ("0.5.9", None, False),
    ],
)
def test_a_version_that_is_a_range_differs_only_where_it_must(one: str, other: str | None, differs: bool) -> None:
    pair = [msgspec.structs.replace(start(), version=version) for version in (one, other)]
    names = [d.name for d in compare(*pair).differences]
    assert ("engine" in names) is differs
    assert ("engine" in [d.name for d in compare(*reversed(pair)).differences]) is differs


def test_channels_of_nccl_are_a_measure_and_no_variable() -> None:
    line = Sign(id="nccl-channels", at=5, kind="info", fields={"coll_channels": 2})
    bad = msgspec.structs.replace(start(), signs=(line,))
    assert environment(bad) == {}
    compared = compare(start(), bad)
    assert [(m.group, m.good, m.bad) for m in compared.measures if m.name == "NCCL channels"] == [
        (Group.LIMIT, None, 2)
    ]


def test_variables_that_one_log_proves() -> None:
    bad = msgspec.structs.replace(start(), env={"NCCL_MAX_NCHANNELS": "2", "SSH_TTY": "/dev/pts/1"})
    differences = {each.name: each for each in compare(start(), bad).differences}
    channels = differences["NCCL_MAX_NCHANNELS"]
    assert (channels.good, channels.bad, channels.good_origin) == (None, "2", Origin.UNKNOWN)
    assert differences["SSH_TTY"].role is Role.NOISE


def test_arguments_of_one_version_only_are_noise_unless_they_were_given() -> None:
    bad = start(settings={"new_switch": True, "typed": 7})
    bad = msgspec.structs.replace(bad, given={"typed": 7})
    assert found("new_switch", start(), bad).role is Role.NOISE
    typed = found("typed", start(), bad)
    assert (typed.role, typed.bad_origin) == (Role.POSSIBLE, Origin.GIVEN)


def test_paths_to_one_llm_are_one_llm() -> None:
    assert (
        llm("/cache/models--org--Name-8B/snapshots/0a1b2c") == llm("org/name-8b") == llm("/data/Name-8B/") == "name-8b"
    )
    assert same("model_path", "org/name", "/data/name")
    assert not same("model_path", "org/name", None)
    assert not same("load_format", "a/x", "b/x")


def test_composed_settings_are_told_by_their_parts() -> None:
    text = "GraphConfig(decode=Phase(max_bs=32, bs=[1, 2]), prefill=Phase(max_bs=64))"
    assert flat({"graph": text, "plain": "a(b", "n": {"x": 1}}) == {
        "graph.decode.max_bs": 32,
        "graph.decode.bs": [1, 2],
        "graph.prefill.max_bs": 64,
        "plain": "a(b",
        "n.x": 1,
    }


def test_a_real_start_with_a_higher_fraction_and_without_prefill_graphs() -> None:
    comparison = compare(last_start(BASE), last_start("real/sglang-0.5.16-2xH200/f97/server.log"))
    assert [each.name for each in comparison.explaining] == ["mem_fraction_static"]
    gone = next(each for each in comparison.differences if each.name == "prefill memory")
    assert (gone.bad, gone.note) == (None, "graphs, prefill: captured in the baseline only")


def test_a_real_start_with_larger_graphs() -> None:
    comparison = compare(last_start(BASE), last_start("real/sglang-0.5.16-2xH200/auto512/server.log"), SGLANG)
    assert [each.name for each in comparison.explaining] == ["mem_fraction_static", "cuda_graph_max_bs_decode"]


def test_a_real_start_that_was_refused() -> None:
    comparison = compare(last_start(BASE), last_start("real/sglang-0.5.16-2xH200/lowfrac/server.log"))
    assert [each.name for each in comparison.explaining] == ["mem_fraction_static"]
    assert comparison.bad.f_min == 0.4650


def test_a_variable_that_one_log_does_not_tell_explains_nothing_for_sure() -> None:
    comparison = compare(last_start(BASE), last_start("real/sglang-0.5.16-2xH200/nccl2ch/server.log"))
    roles = {each.name: each.role for each in comparison.differences}
    assert roles["communicators"] is Role.EXPLAINS, "0.61 GiB less, and the pool grew by 0.52"
    assert roles["disable_custom_all_reduce"] is Role.EXPLAINS
    assert roles["NCCL_MAX_NCHANNELS"] is Role.POSSIBLE


def test_a_variable_that_one_log_does_not_tell_is_shown_only_where_something_speaks_for_it() -> None:
    bad = broken(env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    alone = compare(start(), bad)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in alone.summary
    assert [each.name for each in alone.of(Role.POSSIBLE) if each.untold] == ["CUDA_DEVICE_MAX_CONNECTIONS"]
    for text in (list(words.sections(alone)), list(side_by_side.lines(alone, Paper(width=100), noise=True))):
        assert "CUDA_DEVICE_MAX_CONNECTIONS" not in str(text)
    named = Remedy(knob="x", env="CUDA_DEVICE_MAX_CONNECTIONS", move=Move.UNSET)
    finding = Finding(cause="rank-died", severity=Severity.FATAL, remedies=(named,))
    assert not found("CUDA_DEVICE_MAX_CONNECTIONS", start(), bad, finding).untold, "a remedy is about it"
    both = compare(start(env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), bad)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in both.summary


def test_numbers_of_a_comparison_in_words() -> None:
    pair = Measure(
        group=Group.PHASE,
        name="weight-load",
        unit="s",
        good=10,
        bad=200,
        pairs=(RankPair(0, 10, 10), RankPair(1, 10, 200)),
    )
    assert words.numbers(pair, 10, 200) == ("10.0", "3:20")
    assert words.beside(pair) == "x 20.00  rank 0 10.0 -> 10.0  rank 1 10.0 -> 3:20", "of two that differ, both"
    pool = Measure(group=Group.POOL, name="size", unit="GiB", good=10.42, bad=-20.62)
    assert words.numbers(pool, pool.good, None) == ("10.42 GiB", "-")
    assert words.numbers(pool, 131072 / 2**30, 12 / 1024) == ("128.0 KiB", "12.0 MiB")
    assert words.numbers(pool, 0.0, 0.1) == ("< 0.1 GiB", "0.10 GiB"), "a log with one decimal says 0.0 of 50 MiB"
    assert (words.number(159277, "tokens"), words.value_of(60.0, "s"), words.value_of(True)) == (
        "159,277",
        "1:00",
        "on",
    )


def test_secrets_are_masked_whoever_shows_them() -> None:
    word = "hf_" + "Ab1" * 8
    made = compare(start(settings={"note": "x"}), broken(settings={"note": word}))
    assert word not in str(made)


def test_a_cap_on_the_pool_explains_a_pool_that_is_too_small() -> None:
    finding = Finding(cause="context-exceeds-kv-pool", severity=Severity.FATAL)
    capped = broken(Phase.KV_ALLOC, settings={"max_total_tokens": 128})
    free = start(settings={"max_total_tokens": None})
    cause = found("max_total_tokens", free, capped, finding)
    assert (cause.role, cause.note) == (Role.EXPLAINS, "it caps the KV pool, whatever the fraction")
    other = Finding(cause="rank-died", severity=Severity.FATAL)
    assert found("max_total_tokens", free, capped, other).role is Role.POSSIBLE


def test_what_was_asked_for_is_suspected_before_what_the_engine_chose() -> None:
    bad = msgspec.structs.replace(broken(settings={"a": 1, "z": 2, "b": {"c": 3}}), given={"z": 2})
    good = start(settings={"a": 0, "z": 0, "b": {"c": 0}})
    possible = [each.name for each in compare(good, bad).of(Role.POSSIBLE)]
    assert possible == ["z", "a", "b.c"]


def test_of_variables_that_one_side_tells_only_those_of_engines_and_libraries_are_acquitted_in_words() -> None:
    sides = {"good": None, "bad": "x", "good_origin": Origin.UNKNOWN, "bad_origin": Origin.GIVEN}
    told = {
        name: Difference(group=Group.ENVIRONMENT, name=name, role=Role.ACQUITTED, **sides).untold  # type: ignore[arg-type]
        for name in ("NCCL_BUFFSIZE", "SGLANG_FORCE_CUSTOM_AR_PCIE", "PATH", "HF_TOKEN", "VIRTUAL_ENV")
    }
    assert [name for name, untold in told.items() if not untold] == ["NCCL_BUFFSIZE", "SGLANG_FORCE_CUSTOM_AR_PCIE"]
