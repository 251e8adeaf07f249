"""Read an SGLang start's memory: the terms of the KV pool's formula and the effective fraction.

`pool = A - T x (1 - f)`: T is the free memory before the weights, A the free memory when the pool is sized (from 0.5.14
on after the draft's weights), both the least of all ranks, f the fraction. Source: `ModelRunner.profile_max_num_token`
up to 0.5.6, later `KVCacheConfigurator._profile_available_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.core import facts as f
from tuner.core.fit import ROUNDING_GIB, element_bytes
from tuner.core.share import least_value, line_of
from tuner.core.versions import in_range, parse_version, since
from tuner.domain.forecast import Effective
from tuner.domain.starts import RankStory, Start
from tuner.units import GIB, real, whole

_REDUCED = re.compile(r"Automatically reduce --mem-fraction-static to ([\d.]+) because this is a multimodal model")
_SAID = re.compile(r"mem[-_]fraction[-_]static=([\d.]+)")
_HIDDEN_AITER = "- 0.5.3"
"""Versions that multiply the fraction after printing the server args: `ModelRunner`, read in 0.4.9 and 0.5.3. Older
versions are assumed to do so too; a version known only as a range counts by its lower end."""
_AITER_CONTEXT = 8192
"""Context length, tokens, above which those versions multiply the fraction for the aiter backend."""
_AITER = 0.85
"""Factor of the fraction for the aiter backend."""
_TOLERANCE = 0.01
"""Largest difference of two fractions, from the args and from the pool, that counts as equal."""
_MOST_UNPACKED = 131_072
"""Most tokens that latent attention unpacks at once (`ForwardBatch.get_max_chunk_capacity`)."""
_UNPACKED_KIB = 15
"""KiB of one unpacked token: 16 heads of a rank x (256 + 192) elements of two bytes, and its 576 latent elements."""
_LATENT_BACKENDS = frozenset({"flashmla", "trtllm_mla", "cutlass_mla", "nsa", "dsa"})


def before_weights(start: Start) -> float | None:
    """Return T in GiB, the free memory before the weights; None if the log does not tell it."""
    return least_value(start.ranks, lambda rank: rank.before_weights)


def when_sized(start: Start) -> float | None:
    """Return A in GiB, the free memory when the pool is sized, else T minus the weights; None if unknown."""
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
    """Return whether this version loads the draft's weights before it sizes the pool."""
    return since(start.version, "0.5.14")


def speculates(settings: Mapping[str, Any]) -> bool:
    """Return whether speculation is configured with a draft that takes memory of its own."""
    algorithm = settings.get("speculative_algorithm")
    return bool(algorithm and algorithm != "NGRAM")


def static_gib(rank: RankStory, *, with_draft: bool) -> float | None:
    """Return the GiB allocated from the pool's budget on one rank; None if the rank allocated no pool.

    They are keys and values, states of linear attention and, with `with_draft`, the draft's pool.
    """
    if rank.kv_gib is None and rank.mamba_gib is None:
        return None
    return _value(rank.kv_gib) + _value(rank.mamba_gib) + (_value(rank.draft_kv_gib) if with_draft else 0.0)


def effective_fraction(start: Start) -> Effective | None:
    """Return the effective fraction of a start; None if neither server args nor pool nor an error tells it.

    The server args tell it, unless the version multiplies it afterwards or the pool shows another value. Without the
    line of server args it follows from the pool, unless a cap on the tokens bounds that.
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
        # The pool of such a start does not show the fraction. Up to 0.5.5 a draft enlarges the pool; from 0.5.14 on
        # room is reserved for a draft with as large a cell per layer as the target's, whatever it really takes.
        return told
    return Effective(
        value=shown.value, error=shown.error, said=said, how=f"{shown.how}; its arguments say {said}", at=at
    )


def said_fraction(start: Start) -> tuple[float | None, int | None]:
    """Return the fraction in the server args, else the one quoted by an error, and its log position."""
    said = real(start.setting("mem_fraction_static"))
    if said is not None and 0 <= said <= 1:
        return said, start.settings_at
    for failure in start.failures:
        for text, at in ((failure.final_message, failure.final_at), (failure.message, failure.message_at)):
            if (found := _SAID.search(text)) is not None and (value := _fraction(found[1])) is not None:
                return value, at
    return None, None


def hidden_factor(start: Start) -> tuple[float, str]:
    """Return the factor by which a version multiplies the fraction after printing it, and why; 1.0 and '' if none.

    Without a given context the LLM's own counts, which is assumed to be long for LLMs that aiter is used with.
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
    """Return whether `max_total_tokens`, not memory, bounds the pool."""
    cap = start.setting("max_total_tokens")
    tokens = least_value(start.ranks, lambda rank: rank.kv_tokens)
    page = whole(start.setting("page_size")) or 1
    return isinstance(cap, int) and tokens is not None and tokens >= cap - page


def latent(start: Start) -> bool | None:
    """Return whether attention is latent (MLA), so that every rank holds the complete cell; None if unknown.

    The pool's line tells it, else the attention backend.
    """
    lines = [fact.text for fact in start.facts if fact.kind == f.KV_POOL and "KV size" in fact.text]
    if lines:
        return any("Post-capture" not in text for text in lines)
    if any(fact.kind == f.KV_POOL for fact in start.facts):
        return False
    backend = start.setting("attention_backend", "decode_attention_backend")
    return True if isinstance(backend, str) and backend in _LATENT_BACKENDS else None


def prefix_gib(latent: bool | None, context: int | None, chunk: int) -> float:
    """Return the GiB that keys and values of a long prompt may take while a later chunk of it runs.

    Latent attention unpacks what earlier chunks left in the pool. An LLM of unknown attention may be latent.

    Args:
        latent: Whether attention is latent; None if unknown.
        context: Context length, tokens; None if unknown.
        chunk: Tokens of a prefill step; a shorter prompt has no earlier chunks.
    """
    if latent is False or (context is not None and context <= chunk):
        return 0.0
    return min(context or _MOST_UNPACKED, _MOST_UNPACKED) * _UNPACKED_KIB / (1 << 20)


def pool_dtype_bytes(start: Start) -> float:
    """Return the bytes of one element of the start's pool: as printed, else as configured, else 2.0."""
    printed = next(
        (fact.fields["dtype"] for fact in start.facts if fact.kind == f.KV_POOL and "dtype" in fact.fields), None
    )
    return element_bytes(printed) or element_bytes(start.setting("kv_cache_dtype")) or 2.0


def request_table_gib(requests: int, context: int, draft_tokens: int = 0) -> float:
    """Return the GiB of the request table: 4 bytes for every request and position (`ReqToTokenPool`)."""
    return max(requests, 0) * (max(context, 0) + 4 + max(draft_tokens, 0)) * 4 / GIB


def request_slots(version: str | None, tokens: int, context: int, asked: int | None, replicas: int = 1) -> int:
    """Return the number of requests in the request table (`resolve_max_num_reqs`).

    Args:
        version: Version of SGLang.
        tokens: Tokens of the KV pool.
        context: Context length, tokens.
        asked: `max_running_requests`; None if it was not given.
        replicas: Number of replicas that divide the requests among them.
    """
    if asked is not None and asked > 0:
        return min(asked // max(replicas, 1), tokens // 2) if since(version, "0.5.10") else asked // max(replicas, 1)
    estimated = int(tokens / context * 512) if context > 0 else 4096
    slots = max(min(estimated, 4096), 2048)
    return min(slots, tokens // 2) if since(version, "0.5.10") else slots


def _shown(start: Start) -> Effective | None:
    total, available = before_weights(start), when_sized(start)
    sizes = [static_gib(rank, with_draft=counts(start)) for rank in start.ranks]
    pool = min((size for size in sizes if size is not None), default=None)
    if not total or total < 0 or available is None or pool is None or capped(start):
        return None
    value = line_of(total, available).fraction(pool)
    if not 0 < value < 1:
        return None
    # A and the sizes are rounded. The rounding of T, in the divisor, is negligible.
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
