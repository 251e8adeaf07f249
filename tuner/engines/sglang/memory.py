"""What a start of SGLang tells of its memory: the terms of the pool's formula, the fraction it really ran with.

`pool = A - T x (1 - f)`: T is free memory before the weights, A when the pool is sized (after the draft's weights too
from 0.5.14 on), both the least of all ranks. `ModelRunner.profile_max_num_token` up to 0.5.6, later
`KVCacheConfigurator._profile_available_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.core import facts as f
from tuner.core.fit import ROUNDING_GIB
from tuner.core.share import least_value, line_of
from tuner.core.versions import in_range, parse_version, since
from tuner.domain.forecast import Effective
from tuner.domain.starts import RankStory, Start
from tuner.units import GIB

_REDUCED = re.compile(r"Automatically reduce --mem-fraction-static to ([\d.]+) because this is a multimodal model")
_SAID = re.compile(r"mem[-_]fraction[-_]static=([\d.]+)")
_HIDDEN_AITER = "- 0.5.3"
"""Versions that multiply after they printed their arguments: `ModelRunner`, read in 0.4.9 and 0.5.3. What is older is
taken to do the same; a version that is only known as a range counts by its first."""
_AITER_CONTEXT = 8192
_AITER = 0.85
_TOLERANCE = 0.01
"""Arguments and pool that differ by less say the same."""
_DTYPE_BYTES = (("fp4", 0.5625), ("nvfp4", 0.5625), ("mxfp8", 1.03125), ("fp8", 1.0), ("float8", 1.0), ("int8", 1.0),
                ("float32", 4.0), ("bf16", 2.0), ("float16", 2.0), ("bfloat16", 2.0), ("half", 2.0))  # fmt: skip
_LATENT_BACKENDS = frozenset({"flashmla", "trtllm_mla", "cutlass_mla", "nsa", "dsa"})


def before_weights(start: Start) -> float | None:
    """T in GiB."""
    return least_value(start.ranks, lambda rank: rank.before_weights)


def when_sized(start: Start) -> float | None:
    """A in GiB; where only the weights are known, what they leave of T."""
    known = least_value(start.ranks, lambda rank: rank.after_weights)
    if known is not None:
        return known
    left = [
        rank.before_weights.value - rank.weights_gib.value - (_value(rank.draft_weights_gib) if counts(start) else 0.0)
        for rank in start.ranks
        if rank.before_weights is not None and rank.weights_gib is not None
    ]
    return min(left, default=None)


def counts(start: Start) -> bool:
    """Whether this version sizes the pool with the draft's weights already loaded."""
    return since(start.version, "0.5.14")


def speculates(settings: Mapping[str, Any]) -> bool:
    """Whether a draft is configured that takes memory of its own."""
    algorithm = settings.get("speculative_algorithm")
    return bool(algorithm and algorithm != "NGRAM")


def static_gib(rank: RankStory, *, with_draft: bool) -> float | None:
    """What the pool's share went into on one rank: KV, states of linear attention, the draft's pool."""
    if rank.kv_gib is None and rank.mamba_gib is None:
        return None
    return _value(rank.kv_gib) + _value(rank.mamba_gib) + (_value(rank.draft_kv_gib) if with_draft else 0.0)


def effective_fraction(start: Start) -> Effective | None:
    """The fraction a start really ran with, or failed with; None where neither arguments nor pool nor error tell it.

    The arguments say it, unless the version multiplies it afterwards or the pool shows another value. Without the line
    of arguments it follows from the pool, unless a cap on the tokens made that smaller.
    """
    said, at = said_fraction(start)
    factor, why = hidden_factor(start)
    told = None
    if said is not None:
        value = said * factor
        multiplied_by = "attention_backend" if factor != 1.0 else ""
        told = Effective(value=value, said=said, how=why or "its arguments", at=at, multiplied_by=multiplied_by)
    if (reduced := _reduced(start)) is not None:
        told = Effective(
            value=reduced[0], error=0.0005, said=said, how="reduced by itself for a multimodal model", at=reduced[1]
        )
    shown = _shown(start)
    if shown is None or (told is not None and abs(told.value - shown.value) <= _TOLERANCE + shown.error):
        return told
    if told is None:
        return shown
    if capped(start) or speculates(start.settings):
        # Up to 0.5.5 a draft enlarges the pool; from 0.5.14 on room is kept for one with as large a cell per layer as
        # the target's, whatever it really takes.
        return told
    return Effective(
        value=shown.value, error=shown.error, said=said, how=f"{shown.how}; its arguments say {said}", at=at
    )


def said_fraction(start: Start) -> tuple[float | None, int | None]:
    """The fraction that the arguments say, else the one that an error quotes, and where."""
    said = start.setting("mem_fraction_static")
    if isinstance(said, (int, float)) and not isinstance(said, bool) and 0 <= said <= 1:
        return float(said), start.settings_at
    for failure in start.failures:
        for text, at in ((failure.final_message, failure.final_at), (failure.message, failure.message_at)):
            if (found := _SAID.search(text)) is not None and (value := _fraction(found[1])) is not None:
                return value, at
    return None, None


def hidden_factor(start: Start) -> tuple[float, str]:
    """What a version multiplies its fraction by after it printed it, and why; 1 where nothing.

    A context that is not given is the LLM's own, and those that aiter is used for have long ones.
    """
    version = parse_version(start.version)
    context = start.limits["context_len"].value if "context_len" in start.limits else start.setting("context_length")
    if (
        version is not None
        and in_range(version, _HIDDEN_AITER)
        and start.setting("attention_backend") == "aiter"
        and (context is None or (isinstance(context, (int, float)) and context > _AITER_CONTEXT))
    ):
        return _AITER, f"its arguments x {_AITER}, for aiter with a context of more than {_AITER_CONTEXT}"
    return 1.0, ""


def capped(start: Start) -> bool:
    """Whether `max_total_tokens`, not memory, bounds the pool."""
    cap = start.setting("max_total_tokens")
    tokens = least_value(start.ranks, lambda rank: rank.kv_tokens)
    page = whole(start.setting("page_size")) or 1
    return isinstance(cap, int) and tokens is not None and tokens >= cap - page


def latent(start: Start) -> bool:
    """Whether attention is latent (MLA), so every rank holds the whole cell: by the pool's line, else the backend."""
    lines = [fact.text for fact in start.facts if fact.kind == f.KV_POOL and "KV size" in fact.text]
    if lines:
        return any("Post-capture" not in text for text in lines)
    backend = start.setting("attention_backend", "decode_attention_backend")
    return isinstance(backend, str) and backend in _LATENT_BACKENDS


def dtype_bytes(name: Any) -> float | None:
    """Bytes of one element of a KV data type, with its scales; None for `auto` and what is not known."""
    if not isinstance(name, str):
        return None
    text = name.lower().removeprefix("torch.")
    return next((size for word, size in _DTYPE_BYTES if text.startswith(word)), None)


def pool_dtype_bytes(start: Start) -> float:
    """Bytes of one element of the start's pool: as printed, as set, or 2."""
    printed = next(
        (fact.fields["dtype"] for fact in start.facts if fact.kind == f.KV_POOL and "dtype" in fact.fields), None
    )
    return dtype_bytes(printed) or dtype_bytes(start.setting("kv_cache_dtype")) or 2.0


def request_table_gib(requests: int, context: int, draft_tokens: int = 0) -> float:
    """The table of each request's tokens: 4 bytes for every request and position. `ReqToTokenPool`."""
    return max(requests, 0) * (max(context, 0) + 4 + max(draft_tokens, 0)) * 4 / GIB


def request_slots(version: str | None, tokens: int, context: int, asked: int | None, replicas: int = 1) -> int:
    """Requests that the table has room for. `resolve_max_num_reqs`."""
    if asked is not None and asked > 0:
        return min(asked // max(replicas, 1), tokens // 2) if since(version, "0.5.10") else asked // max(replicas, 1)
    estimated = int(tokens / context * 512) if context > 0 else 4096
    slots = max(min(estimated, 4096), 2048)
    return min(slots, tokens // 2) if since(version, "0.5.10") else slots


def whole(value: Any) -> int | None:
    """A setting that counts something; None for everything else."""
    return (
        int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 62 else None
    )


def _shown(start: Start) -> Effective | None:
    total, available = before_weights(start), when_sized(start)
    sizes = [static_gib(rank, with_draft=counts(start)) for rank in start.ranks]
    pool = min((size for size in sizes if size is not None), default=None)
    if not total or total < 0 or available is None or pool is None or capped(start):
        return None
    value = line_of(total, available).fraction(pool)
    if not 0 < value < 1:
        return None
    # A and the sizes are rounded, and T is in the divisor, where its own rounding hardly counts.
    parts = 1 + 2 * len({fact.text[:12] for fact in start.facts if fact.kind == f.KV_POOL})
    return Effective(
        value=round(value, 5),
        error=round((1 + parts) * ROUNDING_GIB / total, 5),
        how=f"1 - ({available:.2f} - {pool:.2f}) / {total:.2f}, from the KV pool",
    )


def _reduced(start: Start) -> tuple[float, int] | None:
    for line in start.lines:
        if "multimodal model" in line.text and (found := _REDUCED.search(line.text)) is not None:
            value = _fraction(found[1])
            return None if value is None else (value, line.offset)
    return None


def _fraction(text: str) -> float | None:
    try:
        value = float(text.rstrip("."))
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def _value(figure: Any) -> float:
    return 0.0 if figure is None else float(figure.value)
