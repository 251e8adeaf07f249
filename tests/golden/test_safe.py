"""What is called safe is safe: on the simulated host, which shares no code with the forecast, and in the real logs.

Also that cards, the last lines of `diagnose` and the forecast of the same start tell one interval.
"""

from __future__ import annotations

import contextlib
import functools

import msgspec
import pytest

from tests.golden import diagnoses
from tests.golden.test_fractions import LOGS
from tests.support.golden_starts import last_start
from tests.unit.simhost.played import T0, log_of, spec
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of
from tuner.core.forecast import on_gpus
from tuner.core.logtext import clean
from tuner.core.reading import starts_of
from tuner.core.report import report
from tuner.core.report_plan import as_seen
from tuner.core.share import KNOBS
from tuner.domain.findings import Move, Severity
from tuner.domain.forecast import Fit, Forecast, Source
from tuner.domain.starts import Start
from tuner.simhost.engine import memory
from tuner.simhost.engine.config import resolve
from tuner.simhost.engine.server import Server
from tuner.simhost.engine.start import StartFailed

SGLANG = diagnoses.ENGINES["sglang"]
VERSIONS = ("0.5.9", "0.5.23")
LONGEST = memory.activation_bytes(8_192, 131_072)
"""Bytes of the largest pass: the last chunk of a prompt of full length."""


@functools.cache
def played(version: str, fraction: float) -> Server:
    """A server of the demo that has become ready at this fraction, or has failed."""
    told = spec(version, traffic="none")
    told.argv[told.argv.index("--mem-fraction-static") + 1] = f"{fraction:.3f}"
    server = Server(told, resolve(told), -1, None)
    with contextlib.suppress(StartFailed):
        server.replay(T0, T0 + 900)
    return server


def told(version: str, fraction: float) -> Start:
    lines = log_of(played(version, fraction)).splitlines()
    return starts_of([(number, clean(line)) for number, line in enumerate(lines, 1)], diagnoses.ENGINES)[-1]


def survives(version: str, fraction: float) -> bool:
    """Whether the largest pass still finds its memory."""
    server = played(version, fraction)
    box = server.machine.box
    return server.serving is not None and box.least_free() + box.ranks[0].activations >= LONGEST


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fraction", [0.55, 0.88])
@pytest.mark.parametrize("past", [False, True])
def test_the_largest_safe_fraction_survives_the_largest_pass_in_the_demo(
    version: str, fraction: float, past: bool
) -> None:
    earlier = [told(version, 0.88)] if past else []
    forecast = SGLANG.forecast(told(version, fraction), {}, earlier)
    assert forecast.f_max is not None
    assert forecast.f_max > 0.88
    assert survives(version, forecast.f_max)
    assert not survives(version, 0.94), "the case that the demo shows"
    assert forecast.estimated is (fraction == 0.55 and not past)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_start_that_failed_early_is_forecast_from_what_earlier_ones_measured(version: str) -> None:
    good = told(version, 0.88)
    failed = SGLANG.forecast(told(version, 0.55), {}, [good])
    assert failed.fit is Fit.TOO_LOW
    assert rows(failed) == rows(SGLANG.forecast(good, {"mem_fraction_static": 0.55}))
    again = SGLANG.forecast(good, {})
    assert abs((failed.f_max or 0) - (again.f_max or 1)) < 0.0015
    assert (failed.f_whole, failed.context) == (again.f_whole, 131_072)


def rows(forecast: Forecast) -> dict[str, object]:
    return {
        row.what: (row.size_bytes, row.source)
        for row in forecast.rows
        if row.rank == 0 and row.what in ("weights", "graphs", "activation", "other")
    }


@pytest.mark.parametrize("base", ["base", "auto512", "f97"])
def test_real_starts_that_served_are_safe_by_the_log_of_another(base: str) -> None:
    path = "real/sglang-0.5.16-2xH200/{}/server.log"
    for other in ("base", "auto512", "f97"):
        known = SGLANG.effective_fraction(last_start(path.format(other)))
        assert known is not None
        sizes = {"cuda_graph_max_bs": 512 if other == "auto512" else 32}
        then = SGLANG.forecast(last_start(path.format(base)), {"mem_fraction_static": known.value, **sizes})
        assert (then.fit, then.sure) == (Fit.FITS, True), (other, then.f_max)


def test_what_ran_out_of_memory_by_one_request_is_no_sure_fit() -> None:
    failed = last_start("evidence/sglang-0.5.16-h200/oom-logprobs-chunked/server.log")
    again = SGLANG.forecast(failed, {"mem_fraction_static": 0.965, "chunked_prefill_size": -1})
    assert (again.fit, again.sure) == (Fit.FITS, False)


def test_a_card_the_last_lines_and_the_forecast_tell_one_upper_end() -> None:
    wrong, seen = [], 0
    for path in LOGS:
        start, findings = diagnoses.judged(path)
        engine = diagnoses.ENGINES.get(start.engine)
        if engine is None or not findings or findings[0].severity is not Severity.FATAL:
            continue
        asked = asked_of(Case(start, None, engine))
        moved = [r for r in findings[0].remedies if r.knob in KNOBS and r.move in (Move.RAISE, Move.LOWER)]
        again = engine.forecast(start, {})
        if asked is None or asked.factor != 1.0 or again.f_max is None or not moved or moved[0].max is None:
            continue
        seen += 1
        last = report(start, findings, again, lambda at: ("x", at)).plan
        narrowed = as_seen(again, findings)
        if (narrowed.fit, narrowed.f_max) != (last.fit, last.f_max):
            wrong.append(f"{path}: `plan` says {narrowed.fit} {narrowed.f_max}, `diagnose` {last.fit} {last.f_max}")
        if moved[0].move is Move.LOWER and last.fit is not Fit.TOO_HIGH:
            wrong.append(f"{path}: {moved[0].max} is advised, and {last.fraction} said to be {last.fit}")
        if moved[0].min is not None and again.f_min is not None and float(moved[0].min) < again.f_min:
            wrong.append(f"{path}: advised from {moved[0].min} on, and refused up to {again.f_min}")
        if not moved[0].max == last.f_max <= again.f_max:  # type: ignore[operator]
            wrong.append(f"{path}: {moved[0].max}, {last.f_max}, {again.f_max}")
        if moved[0].max != again.f_max and findings[0].cause not in MORE:
            wrong.append(f"{path}: {findings[0].cause} {moved[0].max}, and the forecast {again.f_max}")
    assert wrong == []
    assert seen > 25


MORE = {"draft-model-unbudgeted", "logprobs-oom"}
"""Findings that know more than the forecast: the draft's own pool, and how much of the memory a tenant held."""


def test_nothing_is_told_of_a_fraction_that_is_no_share_of_a_gpu() -> None:
    cpu = SGLANG.forecast(last_start("real/sglang-0.5.23-cpu/serve-default.log"), {})
    assert (cpu.fit, cpu.f_min, cpu.f_max, cpu.rows) == (Fit.UNKNOWN, None, None, ())
    capped = SGLANG.forecast(last_start("real/sglang-0.5.16-2xH200/retract/server.log"), {})
    assert (capped.fit, capped.sure, capped.f_min, capped.f_max) == (Fit.FITS, True, 0.465, None)
    assert "max_total_tokens=20000 bounds the KV pool, not the fraction" in capped.warnings


@pytest.mark.parametrize(("tp", "divides"), [(2, True), (3, False), (4, True), (6, False), (8, True)])
def test_a_number_of_ranks_that_may_not_divide_the_heads_is_no_sure_fit(tp: int, divides: bool) -> None:
    told = SGLANG.forecast(last_start("corpus/ok-1-llama8b.log"), {"tp_size": tp})
    assert (told.fit, told.sure) == (Fit.FITS, False)
    assert any(f"attention heads must divide by {tp}," in each for each in told.warnings) is not divides
    assert any(f"{tp} ranks need as many GPUs" in each for each in told.warnings)
    assert any(f"hold copies of them, and the pool holds fewer tokens: down to {1 / tp:.0%}" in each
               for each in told.warnings)  # fmt: skip


def divided_by(start: Start, tp: int, copies: int = 1) -> Start:
    """The same start on `tp` ranks: a token takes fewer bytes of each, unless ranks hold copies of KV heads."""
    ranks = [
        msgspec.structs.replace(rank, kv_tokens=msgspec.structs.replace(rank.kv_tokens, value=tokens))
        for rank in start.ranks
        if rank.kv_tokens is not None and (tokens := rank.kv_tokens.value * tp // copies)
    ]
    assert len(ranks) == 1
    ranks = [msgspec.structs.replace(ranks[0], number=number) for number in range(tp)]
    return msgspec.structs.replace(start, settings={**start.settings, "tp_size": tp}, ranks=tuple(ranks))


@pytest.mark.parametrize(("tp", "copies", "sure"), [(4, 1, True), (8, 1, True), (4, 2, False), (2, 1, False)])
def test_ranks_that_have_divided_the_kv_heads_do_so_again(tp: int, copies: int, sure: bool) -> None:
    base = last_start("corpus/ok-1-llama8b.log")
    told = SGLANG.forecast(base, {"tp_size": 4}, [divided_by(base, tp, copies)])
    assert (told.fit, told.sure) == (Fit.FITS, sure)
    assert any("hold copies" in each for each in told.warnings) is not sure
    assert SGLANG.forecast(divided_by(base, tp, copies), {"tp_size": tp}).sure, "as many ranks as before"


def test_latent_attention_has_no_kv_heads_to_divide() -> None:
    more = SGLANG.forecast(last_start("corpus/seed-1-baseline.log"), {"tp_size": 16})
    assert (more.fit, more.sure) == (Fit.FITS, True)
    assert not any("hold copies" in each for each in more.warnings)


def test_with_dp_attention_fewer_ranks_divide_the_heads() -> None:
    base = last_start("corpus/ok-2-scary-warnings.log")
    six = SGLANG.forecast(base, {"tp_size": 6, "dp_size": 3, "enable_dp_attention": True})
    assert (six.fit, six.sure) == (Fit.FITS, False)
    assert not any("heads must divide" in each or "hold copies" in each for each in six.warnings), "two ranks do"
    assert any("the widths of the LLM's layers must divide by 6" in each for each in six.warnings)


@pytest.mark.parametrize(("path", "fraction"), [("sg-4205", 0.4808), ("sg-5389", 0.1921)])
def test_a_small_pool_of_unknown_context_is_no_sure_fit(path: str, fraction: float) -> None:
    small = SGLANG.forecast(last_start(f"corpus/{path}.log"), {"mem_fraction_static": fraction})
    assert (small.fit, small.sure, small.context) == (Fit.FITS, False, None)
    assert small.kv_tokens is not None
    assert 0 < small.kv_tokens < 1_000
    assert small.warnings[0].startswith("no log tells the context length")
    table = next(row for row in small.rows if row.what == "request_table")
    assert (table.source, "no log tells the context length" in table.note) == (Source.ESTIMATE, True)


@pytest.mark.parametrize(("gpus", "sure"), [(None, True), (1, False), (2, True)])
def test_more_ranks_than_the_host_has_gpus_are_no_sure_fit(gpus: int | None, sure: bool) -> None:
    base = last_start("corpus/ok-1-llama8b.log")
    two = on_gpus(SGLANG.forecast(base, {"tp_size": 2}, [divided_by(base, 2)]), gpus)
    said = [each for each in two.warnings if each.startswith("2 ranks need")]
    assert (two.sure, len(said)) == (sure, 0 if gpus == 2 else 1), "said once, and not where there are enough"
    assert gpus != 1 or said[0].endswith("the host has 1")


@pytest.mark.parametrize(("gpus", "nodes", "enough"), [(8, 2, True), (8, 1, False), (4, 2, False)])
def test_ranks_have_the_gpus_of_all_hosts(gpus: int, nodes: int, enough: bool) -> None:
    base = last_start("corpus/ok-2-scary-warnings.log")
    told = on_gpus(SGLANG.forecast(base, {"tp_size": 16, "nnodes": nodes}), gpus, nodes)
    said = [each for each in told.warnings if each.startswith("16 ranks need")]
    assert len(said) == (0 if enough else 1)
    assert enough or said[0].endswith("2 such hosts have 8" if nodes == 2 else "the host has 8")


def test_as_many_ranks_as_before_need_no_more_gpus() -> None:
    again = SGLANG.forecast(last_start("corpus/ok-2-scary-warnings.log"), {})
    assert again.sure
    assert on_gpus(again, 1) == again, "two hosts, of which one is seen"


def test_hosts_that_no_setting_tells_may_have_more_gpus() -> None:
    base = last_start("corpus/ok-2-scary-warnings.log")
    told = SGLANG.forecast(base, {"tp_size": 4})
    assert on_gpus(told, 1, had=2) == told, "Ray placed the two ranks on two hosts"
    assert on_gpus(told, 2, had=2).warnings[0] == "4 ranks need as many GPUs, and the host has 2"


def test_ranks_that_have_worked_divide_the_heads() -> None:
    base = last_start("corpus/ok-1-llama8b.log")
    six = msgspec.structs.replace(base, settings={**base.settings, "tp_size": 6})
    told = SGLANG.forecast(base, {"tp_size": 3}, [six]).warnings
    assert not any("heads must divide" in each for each in told)
    assert any("hold copies" in each for each in told), "a token took as many bytes on each of six ranks"


def test_what_is_not_forecast_does_not_surely_fit() -> None:
    base = last_start("corpus/ok-2-scary-warnings.log")
    told = SGLANG.forecast(base, {"cpu_offload_gb": 20})
    assert (told.fit, told.sure, told.warnings[0]) == (
        Fit.FITS, False, "what cpu_offload_gb does to memory is not forecast",
    )  # fmt: skip
    early = msgspec.structs.replace(base, ranks=())
    assert SGLANG.forecast(early, {"cpu_offload_gb": 20}).warnings[0] == told.warnings[0], "also where nothing is known"
    assert SGLANG.forecast(base, {"schedule_policy": base.setting("schedule_policy")}).sure, "as it was"
