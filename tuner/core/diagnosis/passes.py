"""Findings for GPU out-of-memory while serving: too large a pass, logits, images, or a leak."""

from __future__ import annotations

import msgspec

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, lowered
from tuner.core.diagnosis.oom import Oom, evidence_of, fragmentation
from tuner.core.diagnosis.proposals import engine_variable
from tuner.core.forecast import FORWARD_SPARE
from tuner.core.share import OF_FREE
from tuner.domain.findings import Confidence, Evidence, Finding, Meaning, Move
from tuner.domain.starts import Sign

_LEAK_S = 60.0
"""Least time of serving, seconds, after which shrinking free memory counts as a leak."""
_SEEN_BEFORE = 3
"""Least number of earlier passes as large as the failed one for a leak: the size is then not the reason."""
_LARGEST_VOCABULARY = 600_000
"""Largest plausible vocabulary, tokens: twice that of the largest current LLM."""


def serving(case: Case, oom: Oom) -> Finding:
    """Return the finding for a forward pass that ran out of memory while serving."""
    leak = _leak(case, oom)
    if leak is not None:
        return leak
    if of_images(case):
        return _vision(case, oom)
    if oom.capacity is not None and oom.tried > oom.capacity / 4 and case.on_stack("_vl.py", "_vl_moe.py", "omni"):
        # No text pass needs that much; the log lacks the frames that would name the encoder.
        return msgspec.structs.replace(_vision(case, oom), confidence=Confidence.MEDIUM)
    if case.on_stack("logits_processor", "logprob", "compute_logits") and _may_be_logits(case, oom):
        return _logprobs(case, oom)
    return activation(case, oom)


def of_images(case: Case) -> bool:
    """Return whether the failed pass was in an encoder of images, videos or audio."""
    return case.on_stack(
        "get_image_feature", "get_video_feature", "get_audio_feature", "vision", "visual", "mm_utils",
        "embed_multimodal", "get_multimodal_embeddings", "_execute_mm_encoder", "_process_image_input",
        "_process_video_input", "_process_audio_input", "vit.py",
    )  # fmt: skip


def _leak(case: Case, oom: Oom) -> Finding | None:
    """Return the finding for a memory leak; None if the failure is not one.

    A leak is free memory that shrank while serving, although batches as large as the failed one succeeded before.
    """
    rank = case.story
    ready = rank.available_at_ready if rank is not None else None
    if ready is None and case.start.limits.get("available_gpu_mem") is not None:
        ready = case.start.limits["available_gpu_mem"]
    if ready is None or oom.tried > ready.value / 4 or ready.value - oom.free < 1.0:
        return None
    served = [b for b in case.start.batches if b.at < oom.sign.at]
    prefills = [b.fields.get("new_tokens") or 0 for b in served if b.kind == "prefill"]
    if not prefills or _as_large(case, prefills) < _SEEN_BEFORE:
        return None
    times = [b.time for b in served if b.time is not None]
    if times and max(times) - min(times) < _LEAK_S:
        return None
    told = next((b for b in reversed(served) if b.fields.get("token_usage") is not None), None)
    others = [each["in_use"] for each in oom.sign.fields.get("others", ())]
    return case.finding(
        "gpu-memory-leak-runtime",
        f"{ready.value:.2f} GB were free when it became ready, {oom.sign.fields.get('free')} when an allocation of"
        f" {oom.sign.fields.get('tried')} failed, and batches as large as this one passed before. Memory went"
        " away while serving; the KV pool is fixed and cannot be it.",
        evidence=[
            case.figure("available after start", ready),
            case.quote("free at failure", oom.sign, "free"),
            case.quote("tried to allocate", oom.sign, "tried", meaning=Meaning.FAILED_ALLOCATION),
            *(case.quote("other process", _with(oom.sign, amount), "in_use") for amount in others),
            Evidence(what="token usage", value=told.fields["token_usage"], at=told.at) if told is not None else None,
        ],
        remedies=[
            case.advice("version", "features of images and videos were kept too long in several versions: update"),
            case.advice("restart", "gives the memory back"),
            case.remedy(case.named(OF_FREE), Move.OTHER, "a lower one only delays it: it gains time"),
        ],
        confidence=Confidence.MEDIUM,
        wrong_advice=fragmentation(oom),
        refuted_by="free memory that stays constant under the same load",
    )


def _as_large(case: Case, prefills: list[float]) -> int:
    """Return how many passes before the last were as large and as deep in their prompt.

    A prompt longer than a chunk runs as full chunks in sequence, and each chunk attends to all before it.
    """
    chunk = case.setting("chunked_prefill_size", "max_num_batched_tokens")
    if not isinstance(chunk, int) or chunk <= 0:
        told = case.start.limits.get("chunked_prefill_size")
        chunk = int(told.value) if told is not None and told.value > 0 else None
    sized: list[tuple[float, int]] = []
    for tokens in prefills:
        whole = chunk is not None and tokens >= chunk
        sized.append((tokens, (sized[-1][1] if sized else 0) + 1 if whole else 0))
    least, depth = 0.9 * sized[-1][0], sized[-1][1]
    return sum(tokens >= least and deep >= depth for tokens, deep in sized[:-1])


def _with(sign: Sign, amount: object) -> Sign:
    return msgspec.structs.replace(sign, fields={"in_use": amount})


def _vision(case: Case, oom: Oom) -> Finding:
    huge = oom.capacity is not None and oom.tried > oom.capacity / 4
    why = "encodes them in parts"
    parts = engine_variable(case, "max_patches_at_once", Move.SET, why, 10_000, later=True)
    return case.finding(
        "vision-encoder-oom",
        f"The vision encoder asked for {oom.sign.fields.get('tried')} for the images of one batch, and"
        f" {oom.sign.fields.get('free')} are free. It grows with patches, not with the fraction.",
        evidence=evidence_of(case, oom),
        remedies=[
            case.advice("client", "fewer or smaller images in one request"),
            parts,
            engine_variable(case, "max_images_at_once", Move.SET, "encodes them in parts", 32, later=True),
            case.remedy("limit_mm_per_prompt", Move.LOWER, "fewer items in one request"),
            case.advice("version", "versions that encode in parts", value=">=0.5.9") if parts is not None else None,
            None if huge else lowered(case, asked_of(case), oom.lacking, FORWARD_SPARE),
        ],
        wrong_advice=[*(["a lower fraction alone: no fraction leaves that much"] if huge else []), *fragmentation(oom)],
        refuted_by="the same failure with text alone",
    )


def _last_prefill(case: Case, oom: Oom) -> Evidence | None:
    last = next((b for b in reversed(case.start.batches) if b.kind == "prefill" and b.at < oom.sign.at), None)
    if last is None or last.fields.get("new_tokens") is None:
        return None
    return Evidence(what="#new-token", value=last.fields["new_tokens"], unit="tokens", at=last.at)


def _may_be_logits(case: Case, oom: Oom) -> bool:
    """Return whether the failed allocation can be a matrix of logits: 4 bytes x tokens x a plausible vocabulary.

    The batch line of the failed pass itself may be missing; the chunk size then bounds its tokens.
    """
    if case.on_stack("logprob"):
        return True
    chunk = case.setting("chunked_prefill_size", "max_num_batched_tokens")
    told = _last_prefill(case, oom)
    tokens = [each for each in (chunk, told.value if told is not None else None) if isinstance(each, int) and each > 0]
    return not tokens or _words_of(oom, max(tokens)) <= _LARGEST_VOCABULARY


def _words_of(oom: Oom, tokens: int) -> int:
    return round(oom.tried * 1024**3 / 4 / tokens)


def _logprobs(case: Case, oom: Oom) -> Finding:
    tokens = _last_prefill(case, oom)
    words = "Logits of the prompt's tokens are made 32-bit numbers at once, and that does not fit."
    sure = case.on_stack("logprob")
    if tokens is not None and isinstance(tokens.value, int) and tokens.value > 0:
        vocabulary = _words_of(oom, tokens.value)
        if vocabulary <= _LARGEST_VOCABULARY:
            sure = True
            words += f" {tokens.value:,} tokens x about {vocabulary:,} words x 4 bytes = {oom.sign.fields['tried']}."
    return case.finding(
        "logprobs-oom",
        words,
        evidence=[*evidence_of(case, oom), tokens],
        remedies=[
            case.remedy(
                "chunked_prefill_size", Move.LOWER, "fewer tokens' logits at once", value=_chunk(case), most=4096
            ),
            lowered(case, asked_of(case), oom.lacking, FORWARD_SPARE),
            case.advice("version", "newer versions compute prompt log-probabilities in parts"),
            case.advice("client", "ask for no prompt log-probabilities, or from a later position (logprob_start_len)"),
        ],
        wrong_advice=fragmentation(oom),
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        refuted_by="no request asking for prompt log-probabilities",
    )


def _chunk(case: Case) -> int:
    """Return a smaller chunk size: half the current one within 256 to 4096; 4096 if it is unknown."""
    now = case.setting("chunked_prefill_size")
    return min(4096, max(256, now // 2)) if isinstance(now, int) and now > 0 else 4096


def activation(case: Case, oom: Oom) -> Finding:
    """Return the finding for activations that do not fit beside the static share."""
    told = asked_of(case)
    tokens = _last_prefill(case, oom)
    lower = lowered(case, told, oom.lacking, FORWARD_SPARE)
    prefill = case.phase != "decode"
    batched = case.named("chunked_prefill_size")
    requests = case.named("max_running_requests")
    return case.finding(
        "mem-fraction-too-high-activation",
        f"The start succeeded, and a {case.phase} pass asked for {oom.sign.fields.get('tried')} with"
        f" {oom.sign.fields.get('free')} free: the fraction leaves too little for passes of this size."
        + ("" if lower is not None or told is None else " A lower fraction would leave no pool."),
        evidence=[*evidence_of(case, oom), tokens],
        remedies=[
            lower,
            case.remedy("max_prefill_tokens", Move.LOWER, "smaller passes", value=_quarter(case, tokens),
                        most=_quarter(case, tokens)) if prefill else None,
            case.remedy(batched, Move.LOWER, "smaller passes") if prefill else None,
            case.remedy(requests, Move.LOWER, "fewer sequences in a pass") if not prefill else None,
        ],
        wrong_advice=fragmentation(oom),
        refuted_by="the same failure with half the batch",
    )  # fmt: skip


def _quarter(case: Case, tokens: Evidence | None) -> int | None:
    """Return a quarter of the pass's tokens, rounded up to a power of two; None if it had 4096 or fewer."""
    value = tokens.value if tokens is not None else case.setting("max_prefill_tokens")
    return 1 << (value // 4 - 1).bit_length() if isinstance(value, int) and value > 4096 else None
