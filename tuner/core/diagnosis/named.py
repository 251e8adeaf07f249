"""Judges of failures that a single log line names, without numbers to calculate with."""

from __future__ import annotations

from tuner.core.diagnosis.backends import backend_of, other_attention
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, raised, smaller_weights
from tuner.core.diagnosis.proposals import engine_variable, error_of, no_memory_advice, said
from tuner.core.share import least
from tuner.domain.findings import Confidence, Evidence, Finding, Move

_AFTER_ANOTHER = ("previous error", "invalidated", "Invalidated")
"""Texts of a capture error that results from an earlier error."""


def hardly_a_pool(case: Case) -> Finding | None:
    """Diagnose a KV pool too small for a single request (SGLang)."""
    sign = case.root_sign("pool-too-small")
    if sign is None:
        return None
    tokens = least(case.start.ranks, lambda rank: rank.kv_tokens)
    asked = case.setting("max_total_tokens")
    capped = isinstance(asked, int) and (tokens is None or asked <= tokens.value)
    facts = [
        error_of(case, sign),
        case.figure("KV pool", tokens, "tokens"),
        case.arg("max_total_tokens"),
        case.arg("mem_fraction_static"),
    ]
    if capped:
        return case.finding(
            "bad-argument",
            f"The KV pool was asked to hold {asked} tokens, too few for a single request. The memory plays no part.",
            evidence=facts,
            remedies=[case.remedy("max_total_tokens", Move.RAISE, "unset, the memory decides")],
            refuted_by="the same failure without max_total_tokens",
        )
    return case.finding(
        "mem-fraction-too-low",
        "What the fraction leaves beside the weights is hardly a KV pool: it does not hold a single request.",
        evidence=facts,
        remedies=[raised(case, asked_of(case), why="the pool needs room")],
        confidence=Confidence.MEDIUM,
        wrong_advice=["a lower fraction leaves less for the pool, not more"],
        refuted_by="the same failure with a pool of many tokens",
    )


def weights(case: Case) -> Finding | None:
    """Diagnose weights that do not fit by vLLM's own line, if the log lacks torch's error with its numbers."""
    sign = case.root_sign("weights-oom")
    if sign is None:
        return None
    return case.finding(
        "weights-do-not-fit",
        "The weights themselves do not fit on the GPU. Nothing is reserved for the KV cache yet while they are loaded,"
        " so the utilisation plays no part.",
        evidence=[error_of(case, sign), case.arg("gpu_memory_utilization")],
        remedies=smaller_weights(case),
        wrong_advice=["a lower gpu_memory_utilization, as the message says: it bounds what comes after the weights"],
        refuted_by="another process holding the memory: nvidia-smi",
        confidence=Confidence.MEDIUM,
    )


def allocation(case: Case) -> Finding | None:
    """Diagnose a failed allocation of CUDA's async allocator, which prints no numbers."""
    sign = case.root_sign("cuda-oom-async")
    if sign is None:
        return None
    loading = case.phase == "weight-load"
    return case.finding(
        "weights-do-not-fit" if loading else "mem-fraction-too-high-activation",
        "An allocation failed in CUDA's own allocator, which prints no numbers here. "
        + ("The weights were being loaded: they do not fit." if loading else "Too little is free beside the pool."),
        evidence=[error_of(case, sign)],
        remedies=smaller_weights(case)
        if loading
        else [case.advice("log", "the lines before it tell how much is free")],
        confidence=Confidence.LOW,
        refuted_by="free memory on that GPU at the moment of the failure",
    )


def slow_start(case: Case) -> Finding | None:
    """Diagnose vLLM's API server giving up the wait for an engine that was still starting."""
    sign = case.root_sign("engine-start-timeout")
    if sign is None:
        return None
    waited = sign.fields.get("seconds")
    longer = waited * 2 if isinstance(waited, int) else None
    time = f" for {waited} s" if waited is not None else ""
    return case.finding(
        "start-timeout",
        f"The main process waited{time} for its engine, which had failed in nothing: it was still loading or compiling."
        " Its workers may go on alone and hold their GPUs.",
        evidence=[
            case.quote("waited", sign, "seconds", "s"),
            error_of(case, sign),
        ],
        remedies=[
            engine_variable(case, "engine_ready_timeout", Move.RAISE, "time to load", longer, later=True),
            case.advice("gpu-processes", "nvidia-smi: end workers that are left over before the next start"),
            case.advice("disk", "how fast the weights are read: a local disk, or the page cache of a second start"),
        ],
        confidence=Confidence.MEDIUM,
        refuted_by="an error of a worker or of the engine's core before this line, in this log or another",
    )


def capture(case: Case) -> Finding | None:
    """Diagnose an operation that CUDA does not allow during graph capture."""
    sign = case.root_sign("stream-capture-error")
    if sign is None:
        return None
    words = said(case, sign)
    after = any(text in words for text in _AFTER_ANOTHER)
    return case.finding(
        "capture-refused",
        "The capture of a CUDA graph was broken by an error before this one, which the log does not show."
        if after
        else "While a CUDA graph is captured nothing may wait for the GPU or use another stream, and a kernel or a"
        " library did. It is not a lack of memory.",
        evidence=[Evidence(what="error", value=words, at=sign.at), case.arg("attention_backend")],
        remedies=[
            other_attention(case, backend_of(case)),
            case.advice("version", "such operations are kept out of captures in newer kernels"),
            case.remedy(
                "disable_cuda_graph", Move.SET, "as a test: the error itself shows without a capture", value=True
            )
            or case.remedy(
                "enforce_eager", Move.SET, "as a test: the error itself shows without a capture", value=True
            ),
        ],
        wrong_advice=no_memory_advice(case),
        confidence=Confidence.LOW if after else Confidence.MEDIUM,
        refuted_by="another error of the same rank before it",
    )


JUDGES = (hardly_a_pool, weights, allocation, slow_start, capture)
"""Judges of failures named by one line, in the order in which they run."""
