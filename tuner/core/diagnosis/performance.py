"""Judges of proven slowdowns and of conditions worth knowing in a server that did not fail; all of them run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import harmonic_mean, median_low

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, larger_pool
from tuner.core.diagnosis.proposals import smaller_tokens
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Severity
from tuner.domain.forecast import Fit
from tuner.domain.starts import BatchLine, Sign

_COLLAPSED = 0.5
"""Share of its earlier throughput below which a server counts as slowed down."""
_RARELY = 0.05
"""Share of decode batches without a graph below which they are not worth a finding."""
_NOISE = 0.03
"""Relative difference between two rates below which they count as equal."""
_OFTEN = 5
"""Least number of events (retractions, batch lines) that a finding rests on. SGLang calls one retraction a minute
fine."""
_AROUND, _COMPARED = 40, 400
"""Number of batch lines before a retraction searched for the token usage, and on each side compared for throughput."""


def retractions(case: Case) -> Finding | None:
    """Diagnose requests that were retracted for lack of KV slots."""
    found = case.signs("kv-pool-full")
    if not found:
        return None
    first = found[0]
    before, after, slow = _throughput_around(case, first)
    taken = sum(int(sign.fields.get("retracted") or 1) for sign in found)
    usage = _last(case.start.batches, first.at, "token_usage")
    words = f"The KV pool was full {_times(len(found))}, and requests were put back into the queue ({taken} in all)."
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
            case.remedy("schedule_conservativeness", Move.RAISE, "admits fewer at once", value=_warier(case)),
            larger_pool(case, "a larger pool"),
            smaller_tokens(case, "twice the tokens in the same memory"),
        ],
        confidence=Confidence.HIGH,
        refuted_by="the same fall in throughput without a retraction",
        at=first.at,
    )


def _warier(case: Case) -> float:
    """Return a higher `schedule_conservativeness`: 1.3 as SGLang advises, or 0.3 above the current value."""
    now = case.setting("schedule_conservativeness")
    return 1.3 if not isinstance(now, int | float) or now < 1.3 else round(now + 0.3, 2)


def refused_requests(case: Case) -> Finding | None:
    """Diagnose a refused request that the context length allows and the KV pool does not."""
    for sign in case.signs("request-too-long"):
        asked, allowed = sign.fields.get("input_tokens"), sign.fields.get("allowed_tokens")
        pool = case.start.limits.get("max_total_num_tokens")
        context = case.start.limits.get("context_len")
        if not (isinstance(asked, int) and isinstance(allowed, int)) or pool is None or context is None:
            continue
        if pool.value >= context.value or asked > context.value or allowed > pool.value:
            continue
        rank, needed, why = case.story, 0.0, "a larger pool"
        if case.share is not None and rank is not None and rank.kv_gib is not None:
            needed = context.value * rank.kv_gib.value / pool.value
            why = f"{context.value:.0f} tokens need {needed:.2f} GiB"
        return case.finding(
            "context-exceeds-kv-pool",
            f"A request of {asked:,} tokens was refused although {context.value:,.0f} are allowed: the whole KV"
            f" pool holds {pool.value:,.0f}. The limit that applies is the pool.",
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
                larger_pool(case, why, need_gib=needed, tokens=context.value),
                smaller_tokens(case, "twice the tokens in the same memory"),
            ],
            wrong_advice=["a longer context length: the pool is what is too short"],
            refuted_by="a pool larger than the context",
            at=sign.at,
        )
    return None


def graph_coverage(case: Case) -> Finding | None:
    """Diagnose decode batches that ran without a graph because they exceed the largest captured one."""
    largest = _largest_graph(case)
    decodes = [b for b in case.start.batches if b.kind == "decode" and b.fields.get("cuda_graph") is not None]
    outside = [
        b for b in decodes if b.fields["cuda_graph"] is False and (b.fields.get("running") or 0) > (largest or 0)
    ]
    if largest is None or len(outside) < _OFTEN or len(outside) < len(decodes) * _RARELY:
        return None
    most = max(outside, key=lambda b: b.fields["running"])
    inside = [b for b in decodes if b.fields["cuda_graph"] and (b.fields.get("running") or 0) > largest / 2]
    fast, slow = (_typical(batches) for batches in (inside, outside))
    loses = fast is not None and slow is not None and slow < fast
    words = (
        f"{len(outside)} of {len(decodes)} decode batches ran without a graph: up to {most.fields['running']}"
        f" requests, and the largest graph is for {largest}."
    )
    if loses:
        words += f" Typical throughput was {slow:.0f} token/s there against {fast:.0f} with graphs."
    wanted = max(largest * 2, most.fields["running"])
    fits = case.engine.forecast(case.start, {"cuda_graph_max_bs": wanted}, case.past).fit
    told = asked_of(case)
    return case.finding(
        "graph-coverage",
        words,
        severity=Severity.PERFORMANCE if loses else Severity.INFO,
        phase="decode",
        ranks=None,
        evidence=[
            Evidence(what="#running-req", value=most.fields["running"], unit="requests", at=most.at),
            case.derived("largest graph", largest, "requests"),
            case.derived("batches without a graph", len(outside)),
        ],
        remedies=[
            case.remedy("cuda_graph_max_bs", Move.RAISE, "graphs for batches of this size", value=wanted),
            case.remedy(told.knob, Move.LOWER, "graphs of that size need the room")
            if told is not None and fits is Fit.TOO_HIGH else None,
        ],
        confidence=Confidence.HIGH if loses else Confidence.MEDIUM,
        refuted_by="the same throughput with graphs for these batches",
        at=outside[0].at,
    )  # fmt: skip


def speculation(case: Case) -> Finding | None:
    """Diagnose speculation that costs more than it gains.

    It is compared with a past start without speculation at equal load, else with the break-even acceptance length.
    """
    if case.setting("speculative_algorithm") is None:
        return None
    drafted = [b for b in case.start.batches if b.kind == "decode" and (b.fields.get("accept_length") or 0) > 0]
    if len(drafted) < _OFTEN:
        return None
    length = sorted(b.fields["accept_length"] for b in drafted)[len(drafted) // 2]
    shown = min(drafted, key=lambda b: abs(b.fields["accept_length"] - length))
    facts: list[Evidence | None] = [Evidence(what="accept len", value=shown.fields["accept_length"], at=shown.at)]
    plain = next(
        (start for start in case.past if start.setting("speculative_algorithm") is None and start.batches), None
    )
    rates = None if plain is None else _at_equal_load(drafted, plain.batches)
    if rates is not None and rates[0] < rates[1] * (1 - _NOISE):
        words = f"At equal load it makes {rates[0]:.0f} token/s, and {rates[1]:.0f} without a draft."
        facts += [
            case.derived("with", round(rates[0], 1), "token/s"),
            case.derived("without", round(rates[1], 1), "token/s"),
        ]
        severity, confidence = Severity.PERFORMANCE, Confidence.HIGH
    else:
        needed = _break_even(case)
        if rates is not None or needed is None or length >= needed:
            return None
        words = (
            f"{length:.2f} tokens are accepted a step, and {needed:.2f} are needed to pay for the draft: its steps read"
            " its weights, and one of the target's reads the target's."
        )
        facts.append(case.derived("tokens a step that pay", round(needed, 2)))
        severity, confidence = Severity.INFO, Confidence.LOW
    return case.finding(
        "speculation-loses",
        words,
        severity=severity,
        phase="decode",
        ranks=None,
        evidence=facts,
        remedies=[
            case.remedy("speculative_algorithm", Move.UNSET, "no draft"),
            case.remedy("speculative_num_steps", Move.LOWER, "fewer drafts are thrown away"),
        ],
        confidence=confidence,
        refuted_by="more throughput than the same server without a draft at the same load",
        at=shown.at,
    )


def _largest_graph(case: Case) -> int | None:
    sizes = [max(g.sizes) for rank in case.start.ranks for g in rank.graphs if g.sizes and "prefill" not in g.what]
    known = case.setting("cuda_graph_max_bs_decode", "cuda_graph_max_bs")
    captured = any(rank.graphs for rank in case.start.ranks)
    return max(sizes) if sizes else known if captured and isinstance(known, int) else None


def _typical(batches: Sequence[BatchLine]) -> float | None:
    rates = sorted(b.fields["tok_s"] for b in batches if b.fields.get("tok_s"))
    return rates[len(rates) // 2] if rates else None


def _at_equal_load(drafted: Sequence[BatchLine], plain: Sequence[BatchLine]) -> tuple[float, float] | None:
    """Return the median rates (token/s) of both starts at the drafted start's commonest shared number of requests.

    None if they share no load, or the plain start has fewer than `_OFTEN` batch lines at it.
    """
    loads = Counter(b.fields["running"] for b in drafted if b.fields.get("running"))
    for load, _ in loads.most_common():
        with_it = _typical([b for b in drafted if b.fields.get("running") == load])
        others = [b for b in plain if b.kind == "decode" and b.fields.get("running") == load]
        without = _typical(others)
        if with_it is not None and without is not None and len(others) >= _OFTEN:
            return with_it, without
    return None


def _break_even(case: Case) -> float | None:
    rank, steps = case.story, case.setting("speculative_num_steps")
    if rank is None or rank.weights_gib is None or rank.draft_weights_gib is None or not isinstance(steps, int):
        return None
    return 1 + steps * rank.draft_weights_gib.value / rank.weights_gib.value if rank.weights_gib.value > 0 else None


def _throughput_around(case: Case, sign: Sign) -> tuple[tuple[float, int] | None, tuple[float, int] | None, bool]:
    """Return the decode rates before and after a sign, and whether the rate fell lastingly.

    A rate is (token/s, log position), or None without batch lines. After the sign only lines count with at least half
    the usual number of requests, running or queued: a server without work is not slow. The medians decide whether the
    rate fell; if it did, the lines nearest to the averages are returned instead.
    """
    decodes = [b for b in case.start.batches if b.kind == "decode" and b.fields.get("tok_s")]
    before = [b for b in decodes if b.at < sign.at][-_COMPARED:]
    after = [b for b in decodes if b.at > sign.at][:_COMPARED]
    if before:
        asked = median_low(_requests(b) for b in before)
        after = [b for b in after if _requests(b) >= asked / 2]
    usual, then = _middle(before), _middle(after)
    if usual is None or then is None or then[0] >= _COLLAPSED * usual[0]:
        return usual, then, False
    return _average(before), _average(after), True


def _requests(batch: BatchLine) -> int:
    return sum(int(batch.fields.get(name) or 0) for name in ("running", "queued"))


def _middle(batches: Sequence[BatchLine]) -> tuple[float, int] | None:
    return median_low((b.fields["tok_s"], b.at) for b in batches) if batches else None


def _average(batches: Sequence[BatchLine]) -> tuple[float, int]:
    """Return rate and log position of the line nearest to the average rate.

    Lines come after equal numbers of steps, so tokens over time is the harmonic mean weighted by running requests.
    """
    rates = [float(b.fields["tok_s"]) for b in batches]
    rate = harmonic_mean(rates, weights=[b.fields.get("running") or 1 for b in batches])
    return min(((b.fields["tok_s"], b.at) for b in batches), key=lambda shown: (abs(shown[0] - rate), shown[1]))


def _last(batches: Sequence[BatchLine], before: int, field: str) -> Evidence | None:
    """Cite the highest value of `field` in the last `_AROUND` batch lines before a log position."""
    near = [b for b in batches if b.at < before and b.fields.get(field) is not None][-_AROUND:]
    best = max(near, key=lambda b: (b.fields[field], b.at), default=None)
    return None if best is None else Evidence(what="token usage", value=best.fields[field], at=best.at)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


JUDGES = (retractions, refused_requests, graph_coverage, speculation)
"""Judges of slowdowns; all of them run."""
