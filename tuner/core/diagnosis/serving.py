"""Judges of causes while serving: KV slots, request slots, state blocks, workspaces, forward passes that hang."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import larger_pool
from tuner.core.diagnosis.proposals import smaller_tokens
from tuner.core.reading import serving_phase
from tuner.core.roots import survived
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Severity
from tuner.domain.starts import BatchLine, Sign

_OF_STATE = {
    "blocks": "state blocks",
    "max_mamba_cache_size": "state blocks",
    "max_num_seqs": "requests allowed",
    "requests": "requests that they suffice for",
    "ratio": "state blocks of a request",
    "rest": "left for state and KV pool",
    "per_request": "state of a request",
    "what": "what there is no space for",
}
"""Evidence names of a lack of state blocks, by field of its sign."""
_OF_SLOTS = {
    "needed_tokens": "slots asked for",
    "available_tokens": "slots to be had",
    "free_tokens": "of them free",
    "evictable_tokens": "of them in the prefix cache",
    "swa_available_tokens": "slots to be had in the sliding window",
}
"""Evidence names of a lack of KV slots, by field of its sign."""


_WAITS = 2
"""Least number of wait lines for a finding; a single one is just a long step."""
_RATES = ("tok_s", "prompt_tok_s")


def kv_leak(case: Case) -> Finding | None:
    """Diagnose an inconsistent count of KV slots that ended the engine."""
    sign = case.root_sign("kv-leak")
    return None if sign is None else _lost_slots(case, sign, Severity.FATAL)


def kv_leak_survived(case: Case) -> Finding | None:
    """Diagnose an inconsistent count of KV slots that the server survived."""
    sign = case.sign("kv-leak")
    return _lost_slots(case, sign, Severity.ERROR) if sign is not None and survived(case.start, sign) else None


def slow_pass(case: Case) -> Finding | None:
    """Diagnose a forward pass that exceeded the soft watchdog's time, which does not end the server."""
    sign = next((s for s in case.signs("watchdog-timeout") if survived(case.start, s)), None)
    if sign is None:
        return None
    return case.finding(
        "watchdog-hang",
        "A forward pass did not return within the soft watchdog's time. The server was not ended: it was slow, or it"
        " still hangs.",
        severity=Severity.ERROR,
        phase=serving_phase(case.start, sign.at),
        ranks=None if sign.rank is None else (case.layout.number(sign.rank),),
        evidence=[case.quote("soft watchdog timeout", sign, "timeout_s", "s")],
        remedies=[case.advice("py-spy", "the stacks that it dumped above say where each rank waits")],
        confidence=Confidence.LOW,
        refuted_by="batches that follow at the usual pace",
        at=sign.at,
    )


def no_answer(case: Case) -> Finding | None:
    """Diagnose a worker of vLLM that hangs while serving: repeated waits for it, and no token after them."""
    start = case.start
    if start.ready_at is None or case.root is not None:
        return None
    worked = [b.at for b in start.batches if any(b.fields.get(name) for name in _RATES)]
    since = max([start.ready_at, *worked])
    waits = [sign for sign in case.signs("broadcast-wait") if sign.at > since]
    if len(waits) < _WAITS:
        return None
    seconds = [value for sign in waits if isinstance(value := sign.fields.get("seconds"), int)]
    return case.finding(
        "watchdog-hang",
        f"The engine's core waited {len(waits)} times for a worker to take its next step, {sum(seconds)} s in all, and"
        " no token was made since: a worker hangs, in a collective or in a kernel, or has gone. The line speaks of"
        " shared memory, and that is not what is wrong.",
        severity=Severity.ERROR,
        phase=serving_phase(start, waits[0].at),
        ranks=None,
        evidence=[
            case.quote("waited", waits[0], "seconds", "s"),
            case.derived("waits without an answer", len(waits)),
            _running(start.batches, waits[0].at),
        ],
        remedies=[
            case.advice("py-spy", "the stacks of the workers say where each rank waits"),
            case.advice("dmesg", "an Xid tells of a card that failed", value="dmesg -T | grep -i xid"),
            case.remedy("nccl_debug", Move.SET, "NCCL then says what it does", value="INFO"),
        ],
        confidence=Confidence.MEDIUM,
        wrong_advice=["a larger /dev/shm: the queue is full because nobody reads it"],
        refuted_by="a token after these lines",
        at=waits[0].at,
    )


def _running(batches: Sequence[BatchLine], at: int) -> Evidence | None:
    last = next((b for b in reversed(batches) if b.at < at and b.fields.get("running") is not None), None)
    return None if last is None else Evidence(what="requests that run", value=last.fields["running"], at=last.at)


def _lost_slots(case: Case, sign: Sign, severity: Severity) -> Finding:
    total, free, cached, held = (
        sign.fields.get(name) for name in ("total_tokens", "available_tokens", "evictable_tokens", "protected_tokens")
    )
    lost = None
    if isinstance(total, int) and isinstance(free, int) and isinstance(cached, int):
        lost = total - free - cached - (held if isinstance(held, int) else 0)
    words = "The engine's check of its KV slots does not add up: a fault in its accounting, not leaked GPU memory."
    if lost is not None:
        words += f" {total:,} slots, {free:,} available and {cached:,} in the cache: {abs(lost):,} belong to nobody."
    return case.finding(
        "kv-pool-leak",
        words,
        evidence=[
            case.quote("pool", sign, "total_tokens", "tokens"),
            case.quote("available", sign, "available_tokens", "tokens"),
            case.quote("evictable", sign, "evictable_tokens", "tokens"),
            case.quote("protected", sign, "protected_tokens", "tokens"),
            case.derived("lost", abs(lost), "tokens") if lost is not None else None,
        ],
        remedies=[
            case.advice("version", "another version: the accounting of several features was mended at different times"),
            case.advice("restart", "nothing is damaged; it serves again until it happens again"),
        ],
        wrong_advice=["no memory setting changes it: slots are lost, not bytes"],
        severity=severity,
        phase=case.phase if case.root is not None else "idle-check",
        ranks=case.ranks if case.root is not None or sign.rank is None else (case.layout.number(sign.rank),),
        refuted_by="the same version that runs this load for days",
        at=sign.at,
    )


def request_slots(case: Case) -> Finding | None:
    """Diagnose a table of running requests without a free slot."""
    sign = case.root_sign("request-slots", "alloc-req-slots")
    if sign is None:
        return None
    return case.finding(
        "req-slots-exhausted",
        "The table of running requests has no free slot. It counts requests, not memory: the message's advice to lower"
        " max_running_requests makes the table smaller still.",
        evidence=[case.arg("max_running_requests"), case.figure("max_running_requests",
                  case.start.limits.get("max_running_requests"), "requests")],
        remedies=[case.remedy("max_running_requests", Move.RAISE, "more slots")],
        confidence=Confidence.MEDIUM,
        wrong_advice=["a smaller --max-running-requests, as the message says"],
        refuted_by="the same failure with a larger table",
    )  # fmt: skip


def state_blocks(case: Case) -> Finding | None:
    """Diagnose a hybrid LLM with fewer state blocks than requests that may run."""
    sign = case.root_sign("mamba-pool-too-small", "mamba-blocks-short", "mamba-memory-short")
    if sign is None:
        return None
    told = (sign.fields.get(name) for name in ("blocks", "max_mamba_cache_size"))
    blocks = next((value for value in told if isinstance(value, int) and value > 0), None)
    return case.finding(
        "mamba-pool-too-small",
        "A hybrid LLM keeps one block of state for each running request, and there are fewer blocks than"
        " requests allowed.",
        evidence=[case.quote(what, sign, name) for name, what in _OF_STATE.items()],
        remedies=[
            case.remedy(
                case.named("max_running_requests"), Move.LOWER, "one state block each", value=blocks, most=blocks
            ),
            larger_pool(case, "more blocks fit"),
        ],
        refuted_by="as many blocks as requests",
    )


def workspace(case: Case) -> Finding | None:
    """Diagnose an overflow of FlashInfer's workspace, which has a fixed size."""
    sign = case.root_sign("flashinfer-workspace")
    if sign is None:
        return None
    needed = sign.fields.get("size_bytes")
    least = max(512 << 20, 1 << needed.bit_length()) if isinstance(needed, int) else None
    return case.finding(
        "flashinfer-workspace-too-small",
        "FlashInfer plans into a workspace of fixed size, and this batch needs more of it. It is allocated once at the"
        " start: free GPU memory and the fraction have nothing to do with it.",
        evidence=[case.quote("needed", sign, "size_bytes", "bytes")],
        remedies=[
            case.remedy("flashinfer_workspace_size", Move.RAISE, "bytes of the workspace", value=least, least=least),
            case.remedy("attention_backend", Move.SET, "needs no such workspace", value="triton"),
            case.remedy("max_running_requests", Move.LOWER, "smaller batches need less of it"),
        ],
        wrong_advice=["a lower fraction: the workspace does not grow with free memory"],
        refuted_by="the same failure with a workspace of twice the size",
    )


def slots_fatal(case: Case) -> Finding | None:
    """Diagnose a batch that was admitted although the KV pool had no slots for it."""
    sign = case.root_sign("kv-slots-short", "batch-out-of-slots", "out-of-slots", "retract-all-failed")
    if sign is None:
        return None
    return case.finding(
        "kv-pool-exhausted",
        "The KV pool had no slots for a batch that was already admitted. The message counts KV slots, not GPU memory.",
        evidence=[case.quote("batch", sign, "batch"),
                  *(case.quote(what, sign, name, "tokens") for name, what in _OF_SLOTS.items()),
                  case.figure("KV pool", case.start.limits.get("max_total_num_tokens"), "tokens")],
        remedies=[
            larger_pool(case, "more slots"),
            case.remedy("max_running_requests", Move.LOWER, "fewer requests share the pool"),
            case.remedy("schedule_conservativeness", Move.RAISE, "admits fewer at once"),
            smaller_tokens(case, "twice the slots"),
        ],
        confidence=Confidence.MEDIUM,
        wrong_advice=["a lower fraction: that is for CUDA's out of memory, and this is not it"],
        refuted_by="free slots at the moment of the failure",
    )  # fmt: skip


JUDGES = (kv_leak, request_slots, state_blocks, workspace, slots_fatal)
"""Judges of fatal failures while serving, in the order in which they run."""
ASIDES = (kv_leak_survived, slow_pass, no_answer)
"""Judges of failures that the server survived; all of them run."""
