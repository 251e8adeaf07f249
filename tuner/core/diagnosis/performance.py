"""What is no failure: proven slowdowns, and what is worth knowing. Each judge may find something of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, down, raised
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Severity
from tuner.domain.starts import BatchLine, Sign

_COLLAPSED = 0.5
"""A server that falls below this share of what it did before is slow."""
_OFTEN = 5
"""SGLang's own advice calls a retraction once a minute fine."""
_AROUND = 40
"""Batch lines on each side of a retraction that are compared."""
_SLOW_STEP_S = 0.010
"""A decode step of a few requests that takes longer than this on more than two PCIe GPUs is mostly communication."""
_FEW = 4


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


def prefill_graphs(case: Case) -> Finding | None:
    """SGLang switched prefill graphs off because the fraction leaves too little."""
    sign = case.sign("prefill-graphs-off", "prefill-graph-gate")
    free, wanted = (sign.fields.get(n) if sign is not None else None for n in ("free_gib", "required_gib"))
    if sign is None or not isinstance(free, int | float) or not isinstance(wanted, int | float):
        return None
    told = asked_of(case)
    lower = None
    if told is not None and case.share is not None:
        value = down(told.value - (wanted - free + 0.2) / case.share.slope)
        lower = case.remedy(told.knob, Move.LOWER, f"leaves {wanted:g} GiB for them", value=value, most=value)
    return case.finding(
        "prefill-graphs-off",
        f"The fraction leaves {free:g} GiB, and prefill graphs are only captured with {wanted:g} or more: every"
        " prefill runs"
        " without them, and the time to the first token grows (doubled where it was measured).",
        severity=Severity.PERFORMANCE,
        phase="graph-capture",
        ranks=tuple(sorted({case.layout.number(s.rank) for s in case.signs(sign.id)})),
        evidence=[
            Evidence(what="free", value=free, unit="GiB", at=sign.at),
            Evidence(what="required", value=wanted, unit="GiB", at=sign.at),
            case.arg("mem_fraction_static"),
        ],
        remedies=[lower],
        refuted_by="the same time to the first token with prefill graphs",
        at=sign.at,
    )


def custom_all_reduce(case: Case) -> Finding | None:
    """Custom all-reduce is off, by a gate or by a flag."""
    world = case.layout.tp
    sign = case.sign("custom-all-reduce-off")
    if sign is not None and "PCIe" in sign.text:
        step = _slow_step(case)
        return case.finding(
            "custom-ar-disabled-pcie",
            f"{world} GPUs without full NVLink: custom all-reduce is gated off, and every small all-reduce pays NCCL's"
            " latency. It is a limit of the topology, not an error."
            + (f" A decode step takes {step[0] * 1000:.0f} ms." if step is not None else ""),
            severity=Severity.PERFORMANCE if step is not None else Severity.INFO,
            phase="decode" if step is not None else "dist-init",
            ranks=None,
            evidence=[
                case.derived("GPUs in the TP group", world),
                *(step[1] if step is not None else ()),
                Evidence(what="gate", value=sign.text.partition(". ")[0][:160], at=sign.at),
            ],
            remedies=[
                case.remedy("tp_size", Move.LOWER, "two GPUs may use it without NVLink", value=2)
                if world > 2
                else None,
                case.remedy("pcie_ipc_allreduce", Move.SET, "an all-reduce made for PCIe hosts", value="1"),
                case.remedy("nccl_p2p_level", Move.SET, "NCCL may copy directly across sockets", value="SYS"),
            ],
            confidence=Confidence.MEDIUM,
            refuted_by="the same decode step with two GPUs",
            at=sign.at,
        )
    if sign is None and _switched_off(case) and _would_run(case, world):
        return case.finding(
            "custom-ar-disabled",
            "Custom all-reduce is switched off by a flag: NCCL does all of them.",
            severity=Severity.INFO,
            phase="dist-init",
            ranks=None,
            evidence=[case.arg("disable_custom_all_reduce")],
            refuted_by="the flag not being set",
            at=case.start.settings_at,
        )
    return None


def _switched_off(case: Case) -> bool:
    """By its operator: vLLM's own configuration also says so where the platform has none."""
    asked = case.start.given if case.start.engine == "vllm" else case.start.settings
    return asked.get("disable_custom_all_reduce") is True


def _would_run(case: Case, world: int) -> bool:
    """Without the flag custom all-reduce would have been used, as far as the log can tell: two GPUs need no NVLink."""
    on_gpu = case.setting("device") in (None, "cuda", "auto")
    return on_gpu and (world == 2 or (world in (4, 6, 8) and case.sign("nccl-nvls", "nccl-nvlink") is not None))


def _slow_step(case: Case) -> tuple[float, Sequence[Evidence]] | None:
    """The usual duration of a decode step with few requests, where it is long."""
    few = [
        b
        for b in case.start.batches
        if b.kind == "decode" and 0 < (b.fields.get("running") or 0) <= _FEW and (b.fields.get("tok_s") or 0) > 0
    ]
    if len(few) < 3:
        return None
    steps = sorted(few, key=lambda b: b.fields["running"] * (b.fields.get("accept_length") or 1) / b.fields["tok_s"])
    middle = steps[len(steps) // 2]
    seconds = middle.fields["running"] * (middle.fields.get("accept_length") or 1) / middle.fields["tok_s"]
    if seconds < _SLOW_STEP_S:
        return None
    shown = few[0]
    return seconds, (
        Evidence(what="gen throughput", value=shown.fields["tok_s"], unit="token/s", at=shown.at),
        Evidence(what="#running-req", value=shown.fields["running"], unit="requests", at=shown.at),
    )


def _throughput_around(case: Case, sign: Sign) -> tuple[tuple[float, int] | None, tuple[float, int] | None]:
    """Decode rates before and after a place: the line in the middle between the slowest and the fastest."""
    rates = [(b.fields["tok_s"], b.at) for b in case.start.batches if b.kind == "decode" and b.fields.get("tok_s")]
    before, after = [r for r in rates if r[1] < sign.at], [r for r in rates if r[1] > sign.at]
    return _middle(before[-_AROUND:]), _middle(after[:_AROUND])


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


JUDGES = (retractions, refused_requests, prefill_graphs, custom_all_reduce)
"""All are asked."""
