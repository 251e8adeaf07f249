"""Forecasts from one real start of what others on the same hosts then did: the figures are what logs and driver told.

Not all of them are a blind test: prefill graphs, the room kept for drafts, the split of the communicators and the clamp
of the context were shaped with these starts in sight.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_starts import GOLDEN, last_start
from tuner.core.knobs import read_value
from tuner.domain.forecast import Fit, Forecast, Source
from tuner.domain.starts import Start
from tuner.engines import load_engines
from tuner.units import GIB

SGLANG = load_engines()["sglang"]
FOLDER = "evidence/sglang-0.5.16-h200"
LARGE, SMALL, TWO = "ok-40l-f90", "ok-4l-f70-chunk2048-bs8", "tp2-ok-80l-f88"
"""40 layers on one card at 0.9; 4 layers at 0.7 with a short chunk; 80 layers on two cards at 0.88."""


def start(name: str) -> Start:
    return last_start(f"{FOLDER}/{name}/server.log")


def case(name: str) -> dict[str, Any]:
    return tomllib.loads((GOLDEN / FOLDER / name / "case.toml").read_text())


def settings(name: str) -> dict[str, Any]:
    """Knobs that the command line and the environment of a start set; a flag that is not there is off."""
    told, knobs = case(name), SGLANG.knobs()
    found: dict[str, Any] = {}
    flags = told["argv"]
    for index, flag in enumerate(flags):
        knob = knobs.find(flag) if flag.startswith("--") else None
        if knob is not None and knob.forecast:
            value = flags[index + 1] if index + 1 < len(flags) else "--"
            found[knob.name] = True if value.startswith("--") else read_value(knob, value)
    for name_, value in told["env"].items():
        if (knob := knobs.find(name_)) is not None and knob.forecast:
            found[knob.name] = read_value(knob, value)
    return found


def forecast(base: str, other: str, *past: str) -> Forecast:
    before, after = settings(base), settings(other)
    changes = {
        name: after.get(name, False if before.get(name) is True else None)
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }
    return SGLANG.forecast(start(base), changes, [start(name) for name in past])


def gib(told: Forecast, what: str) -> float:
    return sum(row.size_bytes or 0 for row in told.rows if row.what == what and row.rank == 0) / GIB


def error(told: Forecast, what: str) -> float:
    return sum(row.error_bytes or 0 for row in told.rows if row.what == what and row.rank == 0) / GIB


@pytest.mark.parametrize(
    ("base", "other", "past"),
    [
        (LARGE, "ok-40l-bs512", ()),
        (LARGE, "ok-40l-f50", ()),
        (LARGE, "ok-40l-f80-fp8-chunk4096", ()),
        (LARGE, "ok-40l-f93-chunk16384-bs256", ()),
        (LARGE, "ok-40l-f97", ()),
        (LARGE, "tp2-ok-pp2", ()),
        (LARGE, "ok-eagle", ("ok-eagle",)),
        (SMALL, "ok-4l-default", ()),
        (SMALL, "ok-4l-ngram", ()),
        (SMALL, "ok-standalone", ("ok-standalone",)),
        (SMALL, "context-exceeds-pool", ()),
        (SMALL, "ok-hicache", ()),
        (SMALL, "tp2-ok-dp2", ()),
        (SMALL, "tp2-ok-expandable-segments", ()),
        (TWO, "tp2-ok-80l-f90-fp8-no-custom-ar", ()),
        (TWO, "tp2-ok-eagle", ("tp2-ok-eagle",)),
    ],
)
def test_what_a_start_that_worked_then_took(base: str, other: str, past: tuple[str, ...]) -> None:
    told, measured = forecast(base, other, *past), case(other)["measured"]
    assert told.fit is Fit.FITS
    assert told.kv_tokens == pytest.approx(measured["kv_tokens"], rel=1e-2)
    assert abs(gib(told, "kv_pool") - measured["kv_gib"]) <= error(told, "kv_pool") + 0.02
    graphs = sum(value for name, value in measured.items() if name.endswith("_graphs_gib"))
    assert abs(gib(told, "graphs") - graphs) <= error(told, "graphs") + 0.02
    free = gib(told, "free") + gib(told, "activation")
    if not past:  # a draft's own buffers are in no row
        assert abs(free - measured["free_when_ready_gib"]) <= error(told, "free")


@pytest.mark.parametrize(
    ("base", "other", "tokens"),
    [
        (LARGE, "ok-40l-f97", 5e-4),
        (LARGE, "ok-40l-bs512", 5e-4),
        (LARGE, "ok-40l-f93-chunk16384-bs256", 5e-4),
        ("ok-40l-f80-fp8-chunk4096", "ok-40l-f50", 1e-3),
        ("ok-cgroup-4g", "ok-4l-f70-chunk2048-bs8", 1e-4),
        (SMALL, "ok-cgroup-4g", 1e-4),
        (LARGE, "ok-40l-f80-fp8-chunk4096", 5e-4),
        (SMALL, "ok-4l-default", 5e-4),
    ],
)
def test_tokens_on_the_same_card_are_told_almost_exactly(base: str, other: str, tokens: float) -> None:
    assert forecast(base, other).kv_tokens == pytest.approx(case(other)["measured"]["kv_tokens"], rel=tokens)


@pytest.mark.parametrize(
    ("base", "other", "fit"),
    [
        (LARGE, "oom-capture-prefill", Fit.TOO_HIGH),
        (SMALL, "oom-capture-buffers", Fit.TOO_HIGH),
        (SMALL, "oom-capture-decode", Fit.TOO_HIGH),
        (SMALL, "oom-capture-kv-indices", Fit.TOO_HIGH),
        (SMALL, "oom-pool", Fit.TOO_HIGH),
        (SMALL, "oom-pool-fraction-one", Fit.TOO_HIGH),
        (SMALL, "oom-prefill", Fit.TOO_HIGH),
        (SMALL, "torch-compile-memory", Fit.TOO_HIGH),
        (TWO, "tp2-oom-capture", Fit.TOO_HIGH),
        (TWO, "tp2-oom-pool", Fit.TOO_HIGH),
        (TWO, "tp2-oom-prefill", Fit.TOO_HIGH),
        (TWO, "low-fraction-80l", Fit.TOO_LOW),
        (LARGE, "low-fraction-draft", Fit.UNKNOWN),
        (LARGE, "ok-eagle", Fit.UNKNOWN),
    ],
)
def test_starts_that_failed_do_not_fit_and_drafts_that_nobody_saw_are_not_known(
    base: str, other: str, fit: Fit
) -> None:
    assert forecast(base, other).fit is fit


def test_the_fraction_that_is_chosen_when_none_is_given() -> None:
    assert forecast(SMALL, "ok-4l-default").fraction == case("ok-4l-default")["measured"]["fraction"]


def test_prefill_graphs_give_way_where_they_did() -> None:
    off = [
        name for name in ("ok-40l-f97", "ok-40l-bs512") if any("prefill" in w for w in forecast(LARGE, name).warnings)
    ]
    assert off == ["ok-40l-f97"]


def test_a_request_table_that_was_smaller_than_its_formula_says_so() -> None:
    served = last_start("corpus/seed-1-baseline.log")
    row = next(row for row in SGLANG.forecast(served, {}).rows if row.what == "request_table")
    assert row.source is Source.MEASURED
    assert row.note.endswith("= 1.00 GiB, of which the start it is made from shows 13%")


def test_prefill_graphs_come_back_when_nothing_keeps_them_off() -> None:
    told = forecast("ok-40l-f50", "ok-40l-f90")
    assert gib(told, "graphs") + error(told, "graphs") >= 2.57
    base = start("ok-40l-f50")
    off = {"disable_cuda_graph": True}
    assert gib(SGLANG.forecast(base, off), "graphs") == 0
    assert gib(SGLANG.forecast(base, {"cuda_graph_backend_prefill": "disabled"}), "graphs") == gib(
        SGLANG.forecast(base, {}), "graphs"
    )


def test_another_draft_is_not_the_one_that_was_seen() -> None:
    assert forecast("ok-eagle", "low-fraction-draft").fit is Fit.UNKNOWN
    assert forecast(LARGE, "low-fraction-draft", "ok-eagle").fit is Fit.UNKNOWN
    base = start("ok-eagle")
    assert SGLANG.forecast(base, {"speculative_draft_model_path": "/models/other"}).fit is Fit.UNKNOWN
    assert SGLANG.forecast(base, {"speculative_algorithm": "NEXTN"}).fit is Fit.FITS


def test_weights_on_other_ranks_are_taken_from_a_start_that_loaded_them() -> None:
    told = forecast("tp2-ok-pp2", "ok-40l-f97", LARGE)
    assert told.fit is Fit.FITS
    assert told.kv_tokens == pytest.approx(case("ok-40l-f97")["measured"]["kv_tokens"], rel=5e-4)
    assert gib(told, "weights") == pytest.approx(64.74, abs=0.01)


MEMORY = {
    "mem-fraction-too-low": (Fit.TOO_LOW, Fit.NOWHERE),
    "mem-fraction-too-high-graph-capture": (Fit.TOO_HIGH, Fit.NOWHERE),
    "mem-fraction-too-high-activation": (Fit.TOO_HIGH, Fit.NOWHERE),
}
BESIDE = {
    "jit-no-compiler", "ok-4l-f60-context4096-page64", "retractions", "tenant-arrives-at-capture",
    "tenant-arrives-while-serving", "tenant-at-start-fraction", "tenant-at-start-weights", "tenant-beside",
    "tenant-leaves-while-loading", "tp2-tenant-one-rank", "tp2-tenant-unbalanced",
}  # fmt: skip
"""Another server's or a tenant's memory was on the GPU, by which T differs."""
UNTOLD = {"ok-40l-fp8-weights", "tp2-ok-nccl-info-shm", "tp2-ok-80l-f90-fp8-no-custom-ar"}
"""What differs is no knob that is forecast, or nothing that a log tells: quantised weights, NCCL's variables."""
REQUESTED = {"oom-logprobs-chunked", "oom-logprobs-whole"}
"""Ran out of memory by what one request asked for."""
BEYOND = {"ok-40l-f993"}
"""Had 0.12 GiB left, and 1 GiB is kept."""
TOLD = {
    path.parent.name
    for path in (GOLDEN / FOLDER).glob("*/case.toml")
    if "argv" in tomllib.loads(path.read_text())
}  # fmt: skip
EVERY = sorted(TOLD - BESIDE - UNTOLD - REQUESTED - BEYOND)


@pytest.mark.parametrize("base", [name for name in EVERY if start(name).worked])
def test_every_other_start_of_the_llm_on_that_host(base: str) -> None:
    """Never said to fit what ran out of memory, nor refused what worked, and tokens within the error that is stated."""
    wrong = []
    for other in (other for other in EVERY if pair(base, other) and judged(other)):
        worked, cause = start(other).worked, case(other)["cause"]
        told = forecast(base, other)
        if told.fit is Fit.UNKNOWN and any("draft" in each for each in told.unknown):
            continue
        if told.fit not in MEMORY.get(cause, (Fit.FITS,)):
            wrong.append(f"{other}: {told.fit} at {told.fraction} of {told.f_min} to {told.f_max}")
        tokens = case(other).get("measured", {}).get("kv_tokens")
        if tokens is None or not told.kv_tokens:
            continue
        stated = error(told, "kv_pool") / gib(told, "kv_pool")
        if abs(told.kv_tokens / tokens - 1) > stated + 2e-4:
            wrong.append(f"{other}: {told.kv_tokens} tokens of {tokens}, +- {stated:.3%}")
        graphs = sum(value for name, value in case(other)["measured"].items() if name.endswith("_graphs_gib"))
        if worked and abs(gib(told, "graphs") - graphs) > error(told, "graphs") + 0.02:
            wrong.append(f"{other}: graphs of {gib(told, 'graphs'):.2f} GiB, not {graphs:.2f}")
    assert not wrong


def pair(base: str, other: str) -> bool:
    return base != other and start(base).worked and model_of(base) == model_of(other)


def judged(name: str) -> bool:
    """A start that worked, or failed of memory that a fraction decides."""
    return start(name).worked or case(name)["cause"] in MEMORY


def test_the_page_tells_what_was_held_against_what() -> None:
    """How many pairs there are, and how many starts and pairs are left out for which reason."""
    pairs = [other for base in EVERY for other in EVERY if pair(base, other)]
    page = " ".join((Path(__file__).parents[2] / "docs/forecast.md").read_text().split())
    others = sum(not judged(name) for name in pairs)
    lacking = sum(case(name)["cause"] in MEMORY for name in pairs)
    for said in (
        f"{len(TOLD)} of them tell their command line, and {len(EVERY)} are forecast from each other",
        f"{len(pairs) - others} pairs: {lacking} of a start that had too little memory",
        f"{others} pairs of a start that failed of something else",
        f"{len(BESIDE)} starts beside another process",
        f"{len(UNTOLD)} whose logs do not tell what differs",
        f"{len(REQUESTED)} that ran out of memory by what requests asked for",
        f"{len(BEYOND)} that had 0.12 GiB left",
    ):
        assert said in page


def test_what_one_request_asks_for_is_not_forecast() -> None:
    """Both ran out of memory while they served: one would have been said to fit."""
    assert start("oom-logprobs-whole").failures
    assert start("oom-logprobs-chunked").failures
    assert forecast("oom-logprobs-chunked", "oom-logprobs-whole").fit is Fit.FITS


def model_of(name: str) -> str:
    argv = case(name)["argv"]
    return str(argv[argv.index("--model-path") + 1])


@pytest.mark.parametrize(
    ("name", "knob", "values"),
    [
        ("corpus/sg-4489.log", "chunked_prefill_size", (8192, 16384)),
        ("corpus/sg-12306.log", "cuda_graph_max_bs", (1024, 2048)),
        ("evidence/sglang-0.5.16-h200/oom-logprobs-whole/server.log", "chunked_prefill_size", (16384, 65536)),
    ],
)
def test_more_of_what_ran_out_of_memory_needs_no_less(name: str, knob: str, values: tuple[int, ...]) -> None:
    failed = last_start(name)
    again = SGLANG.forecast(failed, {})
    assert again.f_max is not None
    for value in values:
        more = SGLANG.forecast(failed, {knob: value})
        assert more.f_max is not None
        assert more.f_max <= again.f_max


def test_memory_that_went_to_nobody_knows_whom_is_no_rounding() -> None:
    told = SGLANG.forecast(start("tenant-arrives-at-capture"), {})
    assert any("another process" in warning for warning in told.warnings)
    assert not any("another process" in warning for warning in SGLANG.forecast(start(LARGE), {}).warnings)
