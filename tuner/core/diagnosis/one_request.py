"""Judge of a KV pool that is too small for one request of the allowed length."""

from __future__ import annotations

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import larger_pool
from tuner.core.diagnosis.proposals import smaller_tokens
from tuner.domain.findings import Evidence, Finding, Move
from tuner.domain.starts import Sign
from tuner.units import GIB, format_small, real

_FEW_DIGITS_GIB = 0.1
"""Size of a pool below which the two digits that the engine prints of it tell too little, GiB."""


def context_too_long(case: Case) -> Finding | None:
    """Diagnose a KV pool too small for a single request of the allowed length."""
    sign = case.root_sign("context-exceeds-pool")
    if sign is None:
        return None
    needed, available = _number(sign, "needed_gib"), _number(sign, "available_gib")
    estimate = sign.fields.get("estimated_max_model_len") or sign.fields.get("kv_tokens")
    blocks = case.sign("gpu-blocks")
    counted = _counted(case, sign) if available is None or available < _FEW_DIGITS_GIB else None
    sizes: list[Evidence | None]
    if counted is not None:
        needed, available = counted
        sizes = [case.derived("KV cache needed", needed, "GiB"), case.derived("KV cache available", available, "GiB")]
    else:
        sizes = [case.quote(f"KV cache {each}", sign, f"{each}_gib", "GiB") for each in ("needed", "available")]
    why = "a larger KV cache"
    if needed is not None and available is not None:
        lacking = needed - available
        why = f"{format_small(lacking)} are lacking" if lacking else "less than 0.01 GiB is lacking"
    forced = case.setting("num_gpu_blocks_override") is not None
    return case.finding(
        "context-exceeds-kv-pool",
        "A single request of the allowed length needs more KV cache than there is altogether."
        + (" The number of blocks was given; memory for more was there." if forced else ""),
        evidence=[
            case.quote("max seq len", sign, "max_model_len", "tokens"),
            case.quote("KV cache", sign, "kv_tokens", "tokens"),
            *sizes,
            case.quote("longest that fits", sign, "estimated_max_model_len", "tokens"),
            case.quote("GPU blocks", blocks, "blocks") if blocks is not None else None,
            case.arg("num_gpu_blocks_override"),
        ],
        remedies=[
            case.remedy("max_model_len", Move.LOWER, "so long a request fits", value=estimate, most=estimate),
            larger_pool(case, why, need_gib=needed or 0.0),
            smaller_tokens(case, "halves the cache's size per token"),
        ],
        refuted_by="a KV cache larger than the length",
    )


def _counted(case: Case, sign: Sign) -> tuple[float, float] | None:
    """Return what a request of full length needs and what the pool has, in GiB, by the bytes that were given for it.

    None if no bytes were given, or if the log does not say which length fits into them.
    """
    cap = case.engine.cap(case.start)
    knob = case.engine.knobs().find(cap) if cap is not None else None
    given = real(case.setting(cap)) if cap is not None and knob is not None and knob.unit == "bytes" else None
    longest, fits = _number(sign, "max_model_len"), _number(sign, "estimated_max_model_len")
    if not given or not longest or not fits:
        return None
    return given / GIB * longest / fits, given / GIB


def _number(sign: Sign, name: str) -> float | None:
    value = sign.fields.get(name)
    return float(value) if isinstance(value, int | float) else None
