"""What is no failure: proven slowdowns, and what is worth knowing. Each judge may find something of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, raised
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Severity
from tuner.domain.starts import BatchLine, Sign

_COLLAPSED = 0.5
"""A server that falls below this share of what it did before is slow."""
_OFTEN = 5
"""SGLang's own advice calls a retraction once a minute fine."""
_AROUND, _COMPARED = 40, 400
"""Batch lines beside a retraction that are near, and that are compared."""


def retractions(case: Case) -> Finding | None:
    """Requests were put back for want of KV slots."""
    found = case.signs("kv-pool-full")
    if not found:
        return None
    first = found[0]
    before, after = _throughput_around(case, first)
    taken = sum(int(sign.fields.get("retracted") or 1) for sign in found)
    slow = before is not None and after is not None and after[0] < _COLLAPSED * before[0]
    usage = _last(case.start.batches, first.at, "token_usage")
    words = f"{_times(len(found))} the KV pool was full and requests were put back into the queue ({taken} in all)."
    if slow and before is not None and after is not None:
        words += f" Decode fell from {before[0]:.0f} to {after[0]:.0f} token/s with the first of them."
    words += " These are slots of the pool, not GPU memory."
    pool = case.start.limits.get("max_total_num_tokens")
    return case.finding(
        "kv-pool-exhausted",
        words,
        severity=Severity.PERFORMANCE if slow or len(found) >= _OFTEN else Severity.INFO,
        phase="decode",
        ranks=None,
        evidence=[
            case.figure("KV pool", pool, "tokens"),
            usage,
            case.quote("retracted requests", first, "retracted", "requests"),
            Evidence(what="throughput before", value=before[0], unit="token/s", at=before[1]) if before else None,
            Evidence(what="throughput after", value=after[0], unit="token/s", at=after[1]) if after else None,
            case.derived("retractions", len(found)),
        ],
        remedies=[
            case.remedy("max_running_requests", Move.LOWER, "fewer requests share the pool"),
            case.remedy("schedule_conservativeness", Move.RAISE, "admits fewer at once", value=1.3),
            raised(case, asked_of(case), why="a larger pool")
            or case.remedy("mem_fraction_static", Move.RAISE, "a larger pool"),
            case.remedy("kv_cache_dtype", Move.SET, "twice the tokens in the same memory", value="fp8_e5m2"),
        ],
        confidence=Confidence.HIGH,
        refuted_by="the same fall in throughput without a retraction",
        at=first.at,
    )


def refused_requests(case: Case) -> Finding | None:
    """A request was refused that the context allows and the pool does not."""
    for sign in case.signs("request-too-long"):
        asked, allowed = sign.fields.get("input_tokens"), sign.fields.get("allowed_tokens")
        pool = case.start.limits.get("max_total_num_tokens")
        context = case.start.limits.get("context_len")
        if not (isinstance(asked, int) and isinstance(allowed, int)) or pool is None or context is None:
            continue
        if pool.value >= context.value or asked > context.value or allowed > pool.value:
            continue
        share = case.share
        raise_it = None
        rank = case.story
        if share is not None and rank is not None and rank.kv_gib is not None:
            needed = context.value * rank.kv_gib.value / pool.value
            raise_it = raised(
                case, asked_of(case), need_gib=needed, why=f"{context.value:.0f} tokens need {needed:.2f} GiB"
            )
        return case.finding(
            "context-exceeds-kv-pool",
            f"A request of {asked:,} tokens was refused although {context.value:,.0f} are allowed: the whole KV"
            " pool holds"
            f" {pool.value:,.0f}. The limit that applies is the pool.",
            severity=Severity.ERROR,
            phase="runtime",
            ranks=None,
            evidence=[
                case.quote("input", sign, "input_tokens", "tokens"),
                case.quote("allowed", sign, "allowed_tokens", "tokens"),
                case.figure("max_total_num_tokens", pool, "tokens"),
                case.figure("context_len", context, "tokens"),
                case.arg("mem_fraction_static"),
            ],
            remedies=[
                raise_it or case.remedy("mem_fraction_static", Move.RAISE, "a larger pool"),
                case.remedy("kv_cache_dtype", Move.SET, "twice the tokens in the same memory", value="fp8_e5m2"),
            ],
            wrong_advice=["a longer context length: the pool is what is too short"],
            refuted_by="a pool larger than the context",
            at=sign.at,
        )
    return None


def _throughput_around(case: Case, sign: Sign) -> tuple[tuple[float, int] | None, tuple[float, int] | None]:
    """Decode rates before and after a place: the line in the middle between the slowest and the fastest."""
    rates = [(b.fields["tok_s"], b.at) for b in case.start.batches if b.kind == "decode" and b.fields.get("tok_s")]
    before, after = [r for r in rates if r[1] < sign.at], [r for r in rates if r[1] > sign.at]
    return _middle(before[-_COMPARED:]), _middle(after[:_COMPARED])


def _middle(rates: list[tuple[float, int]]) -> tuple[float, int] | None:
    if not rates:
        return None
    middle = (min(rates)[0] + max(rates)[0]) / 2
    return min(rates, key=lambda rate: abs(rate[0] - middle))


def _last(batches: Sequence[BatchLine], before: int, field: str) -> Evidence | None:
    """The fullest that the pool was shortly before a place."""
    near = [b for b in batches if b.at < before and b.fields.get(field) is not None][-_AROUND:]
    best = max(near, key=lambda b: (b.fields[field], b.at), default=None)
    return None if best is None else Evidence(what="token usage", value=best.fields[field], at=best.at)


def _times(count: int) -> str:
    return "Once" if count == 1 else f"{count:,} times"


JUDGES = (retractions, refused_requests)
"""All are asked."""
