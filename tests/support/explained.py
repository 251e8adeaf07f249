"""Findings, starts and forecasts as literal values, for tests and pictures; the case is that of the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core.engine import Engine
from tuner.core.knobs import KnobTable
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Outcome, Remedy, Severity
from tuner.domain.forecast import Fit, Forecast, ForecastRow, Source
from tuner.domain.server import Phase
from tuner.domain.starts import Figure, GraphCapture, PhaseSpan, RankStory, Start
from tuner.units import from_gib


def too_low(*, at: int | None = 412, before: int | None = 388, args: int | None = 3) -> Finding:
    """Return a fatal finding: the memory fraction leaves nothing for the KV pool."""
    return Finding(
        cause="mem-fraction-too-low",
        severity=Severity.FATAL,
        phase="kv-alloc",
        ranks=tuple(range(8)),
        confidence=Confidence.HIGH,
        title="The static share of the memory is smaller than the weights: nothing is left for the KV pool",
        explanation=(
            "KV pool = free after weights - free before x (1 - f) = 21.70 - 94.04 x 0.45 = -20.62 GiB. "
            "f must be above 0.7692; 0.88 gives 10.4 GiB = 159 k tokens; above 0.907 graphs and passes no "
            "longer fit. Custom all-reduce costs 0.03 GiB: not the cause."
        ),
        evidence=(
            Evidence(what="TP5 free after weights", value=21.70, unit="GB", at=at),
            Evidence(what="TP5 free before weights", value=94.04, unit="GB", at=before),
            Evidence(what="mem_fraction_static", value=0.55, at=args),
            Evidence(what="KV pool", value=-20.62, unit="GiB"),
            Evidence(what="least fraction that starts", value=0.7692),
        ),
        remedies=(
            Remedy(
                knob="mem_fraction_static",
                flag="--mem-fraction-static",
                move=Move.RAISE,
                value=0.88,
                min=0.770,
                max=0.907,
                serves=0.861,
                why="10.4 GiB of KV pool, 159,277 tokens, as the last start that worked",
            ),
            Remedy(
                knob="quantization",
                move=Move.OTHER,
                why="A smaller LLM or more GPUs: only if the cards must stay shared with somebody else",
            ),
        ),
        wrong_advice=(),
        refuted_by="A line of the same start with more than 42.3 GB free after weights on every rank.",
        at=at,
    )


def graphs_off(*, at: int | None = 500) -> Finding:
    """Return a performance finding: a proven slowdown without an error."""
    return Finding(
        cause="prefill-graphs-disabled",
        severity=Severity.PERFORMANCE,
        phase="graph-capture",
        ranks=(0,),
        confidence=Confidence.HIGH,
        title="Prefill CUDA graphs were switched off: less than 4 GB were left for them",
        explanation="3.62 GB were left after the decode graphs, and prefill graphs need 4. Mean TTFT about doubles.",
        evidence=(Evidence(what="TP0 free after graphs", value=3.62, unit="GB", at=at),),
        remedies=(
            Remedy(
                knob="mem_fraction_static",
                flag="--mem-fraction-static",
                move=Move.LOWER,
                value=0.87,
                min=0.770,
                max=0.875,
                why="Leaves 4.5 GiB",
            ),
        ),
        refuted_by="A line that says that prefill graphs were captured.",
        at=at,
    )


def variable_ignored(*, at: int | None = None) -> Finding:
    """Return a finding of severity info: worth knowing, and no failure."""
    return Finding(
        cause="env-ignored",
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        title="SGLANG_CUSTOM_ALLREDUCE_ALGO is set, and SGLang 0.5.9 does not read it",
        explanation="The all-reduce that runs is NCCL's: custom all-reduce needs NVLink or two GPUs.",
        evidence=(Evidence(what="SGLANG_CUSTOM_ALLREDUCE_ALGO", value="1stage", at=at),),
        remedies=(Remedy(knob="custom_all_reduce_algo", env="SGLANG_CUSTOM_ALLREDUCE_ALGO", move=Move.UNSET),),
        wrong_advice=("The log's advice to set --disable-custom-all-reduce would change nothing: it is off already",),
        at=at,
    )


SPANS = (
    (Phase.ARGS, 0.0, 2.0, None, None),
    (Phase.DIST_INIT, 2.0, 2.1, 95.2, 94.04),
    (Phase.WEIGHT_LOAD, 4.1, 514.2, 94.04, 21.71),
    (Phase.KV_ALLOC, 518.3, 0.8, 21.71, 11.29),
    (Phase.GRAPH_CAPTURE, 519.1, 71.3, 11.29, 8.69),
    (Phase.WARMUP, 590.4, 8.0, None, None),
)


def rank_story(number: int, *, last: int = len(SPANS), free: float = 21.71, pool: bool = True) -> RankStory:
    """Return a rank that went through the first `last` phases."""
    failed = last < len(SPANS)
    spans = tuple(
        PhaseSpan(
            phase=phase,
            at=100 * (index + 1) + number,
            started=began,
            seconds=None if failed and index == last - 1 else seconds + 0.1 * (number % 3),
            ended=not failed or index < last - 1,
            before_gib=before,
            after_gib=free if phase is Phase.WEIGHT_LOAD else None if failed and index == last - 1 else after,
            used_gib=round(before - after, 2) if before and after and not (failed and index == last - 1) else None,
        )
        for index, (phase, began, seconds, before, after) in enumerate(SPANS[:last])
    )
    return RankStory(
        tag=f"TP{number}",
        number=number,
        phases=spans,
        communicators_gib=Figure(1.16, 210 + number),
        before_weights=Figure(94.04, 388),
        weights_gib=Figure(72.33, 410 + number),
        after_weights=Figure(free, 412),
        kv_gib=Figure(10.42, 420 + number) if pool else None,
        kv_tokens=Figure(159_277, 420 + number) if pool else None,
        after_pool=Figure(11.29, 420 + number) if pool else None,
        graphs=(
            GraphCapture(what="decode", at=500 + number, used_gib=2.6, seconds=71.3, sizes=(1, 2, 4, 8, 16, 32, 64)),
        )
        if pool
        else (),
        total_gib=Figure(95.59, 5),
        last_available=Figure(8.69 if pool else free, 510 + number),
        last_at=510 + number,
    )  # fmt: skip


SETTINGS = {
    "model_path": "/models/kimi-k2.5-int4",
    "tp_size": 8,
    "mem_fraction_static": 0.55,
    "cuda_graph_max_bs": 128,
    "chunked_prefill_size": 8192,
    "disable_custom_all_reduce": False,
}
"""Server args of the failed start."""


def failed_start(*, first: int = 1) -> Start:
    """Return the failed start, with a fraction of 0.55."""
    return Start(
        engine="sglang",
        version="0.5.9",
        first=first,
        last=first + 600,
        outcome=Outcome.FAILED,
        phase=Phase.KV_ALLOC,
        settings=SETTINGS,
        given={"mem_fraction_static": 0.55},
        env={"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": "131072"},
        versions={"nccl": "2.27.3", "torch": "2.8.0", "cuda": "12.8", "flashinfer": "0.3.1"},
        ranks=tuple(
            rank_story(number, last=4, free=21.70 if number == 5 else 21.71, pool=False) for number in range(8)
        ),
        files=("nccl-2ch.log",),
    )


def good_start() -> Start:
    """Return the start that worked, with 0.88."""
    return Start(
        engine="sglang",
        version="0.5.9",
        first=1,
        last=900,
        outcome=Outcome.READY,
        phase=Phase.READY,
        settings={**SETTINGS, "mem_fraction_static": 0.88},
        given={"mem_fraction_static": 0.88},
        env={"NCCL_MAX_NCHANNELS": "16"},
        versions={"nccl": "2.27.3", "torch": "2.8.0", "cuda": "12.8", "flashinfer": "0.3.1"},
        ranks=tuple(rank_story(number) for number in range(8)),
        ready_at=880,
        limits={"max_total_num_tokens": Figure(159_277, 879), "max_running_requests": Figure(48, 879)},
        files=("base-88.log",),
    )


def forecast(fraction: float = 0.88, *, ranks: int = 8) -> Forecast:
    """Return the forecast of this case at a fraction, in round numbers."""
    pool, graphs = 21.71 - 94.04 * (1 - fraction), 2.6
    fit = Fit.TOO_LOW if pool <= 0 else Fit.TOO_HIGH if fraction > 0.945 else Fit.FITS
    sizes = (
        ("weights", 72.33, Source.MEASURED, 0.0, ""),
        ("kv_pool", max(0.0, pool), Source.FORMULA, 0.01, f"21.71 - 94.04 x (1 - {fraction:g})"),
        ("graphs", graphs, Source.MEASURED, 0.02, "7 graphs, as captured before"),
        ("context", 1.55, Source.MEASURED, 0.0, "the card less what is free before the weights"),
        ("activation", 1.5, Source.ESTIMATE, 0.9, "8,192 tokens x 192 KiB"),
        ("free", 95.59 - 72.33 - pool - graphs - 1.55 - 1.5, Source.ESTIMATE, 1.23, "what remains"),
    )
    tokens = int(max(0.0, pool) * 15_286)
    rows = tuple(
        ForecastRow(
            rank=rank,
            what=what,
            size_bytes=from_gib(gib),
            tokens=tokens if what == "kv_pool" else None,
            source=source,
            error_bytes=from_gib(error),
            note=note,
        )
        for rank in range(ranks)
        for what, gib, source, error, note in sizes
    )
    sure = fit is Fit.FITS
    return Forecast(fit=fit, sure=sure, rows=rows, fraction=fraction, f_min=0.7691, f_max=0.945, kv_tokens=tokens)


class SteadyEngine:
    """SGLang's knobs with a fixed forecast, so that pictures do not change with the arithmetic."""

    title = "SGLang"

    def __init__(self, knobs: KnobTable, real: Engine | None = None) -> None:
        self._knobs = knobs
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def knobs(self) -> KnobTable:
        return self._knobs

    def forecast(self, base: Start, changes: Mapping[str, Any], past: Sequence[Start] = ()) -> Forecast:
        return forecast(changes.get("mem_fraction_static", base.settings["mem_fraction_static"]))
