"""Judges of causes in sizing the KV pool: the fraction, tenants of the GPU, uneven ranks, too long a context."""

from __future__ import annotations

import msgspec

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import (
    TOO_MUCH,
    Asked,
    asked_of,
    interval,
    larger_pool,
    raised,
    smaller_weights,
)
from tuner.core.diagnosis.one_request import context_too_long
from tuner.core.diagnosis.proposals import engine_variable, option
from tuner.core.diagnosis.tenants import FOREIGN_GIB, foreign_at_load, less_than_before, poor_rank
from tuner.core.forecast import MOST
from tuner.core.share import down, least
from tuner.domain.findings import Confidence, Evidence, Finding, Meaning, Move, Remedy
from tuner.domain.starts import Sign

_HALF, _ANY = 0.5, 0.1
"""Shares of a GPU's memory: below the first a proposed utilisation carries a caveat, below the second none is made."""


def no_pool(case: Case) -> Finding | None:
    """Diagnose an engine that found no memory for the KV pool.

    The memory figures of the log decide whether the fraction, another process or the weights are the cause.
    """
    sign = case.root_sign("not-enough-memory", "weights-leave-no-memory", "no-kv-memory")
    if sign is None:
        return None
    told = asked_of(case)
    facts = _pool_evidence(case, told, sign)
    everywhere = case.all_ranks if case.share is not None else case.ranks
    poor = poor_rank(case)
    if poor is not None:
        return foreign_at_load(case, poor, facts)
    if (before := less_than_before(case, facts)) is not None:
        return before
    share = case.share
    if share is None and (budget := case.sign_before(sign.at, "kv-available")) is not None:
        return _said_negative(case, sign, budget, facts)
    if share is None or told is None:
        return case.finding(
            "mem-fraction-too-low",
            "The engine found no memory for its KV pool after the weights. The log does not hold the free memory before"
            " and after them, so how much is missing cannot be said.",
            evidence=facts,
            remedies=[larger_pool(case, "the weights leave nothing for it")],
            confidence=Confidence.MEDIUM,
            wrong_advice=_never_lower(sign),
            refuted_by="free memory before and after the weights that leaves a positive pool at this fraction",
        )
    pool = share.pool(told.effective)
    minimum = share.f_min / told.factor
    if pool > 0.1 and (lora := _lora(case, pool, facts)) is not None:
        return lora
    if pool > 0.1 and (few := _few_tokens(case, sign, pool, facts)) is not None:
        return few
    if pool > 0.1:
        return case.finding(
            "foreign-process-on-gpu",
            f"By its own numbers there should be a pool of {pool:.2f} GiB ({share.told(told.effective)}). Between the"
            " weights and the pool something else took memory on a GPU.",
            evidence=facts,
            remedies=[case.advice("gpu-processes", "see what else holds memory on these GPUs: nvidia-smi")],
            confidence=Confidence.LOW,
            refuted_by="nvidia-smi showing no other process while it starts",
        )
    bounds = interval(case, told.factor)
    avoidable = _avoidable(told)
    too_large = share.f_min >= TOO_MUCH
    hopeless = not avoidable and (too_large or (bounds is not None and bounds.empty))
    words = [
        f"KV pool = free after weights - free before x (1 - f): {share.told(told.effective)}, so nothing is left"
        " for it."
        if share.of_free
        else f"{share.told(told.effective)}: nothing is left for the KV cache.",
        f"The fraction must be above {minimum:.4f}.",
    ]
    if told.factor != 1.0:
        words.insert(1, f"In effect was {told.effective:.4g} and not {told.value:g}: {told.why}.")
        words[-1] = (
            f"The fraction in effect must be above {share.f_min:.4f}: what is given counts {told.factor:.2f} times,"
            + (f" so give more than {minimum:.4f}." if minimum < 1 else " and even 1 is too little.")
        )
    if hopeless:
        out_of_reach = not too_large and minimum >= MOST
        words.append(
            "No fraction works: "
            + (
                "so much cannot be given."
                if out_of_reach
                else "what is left beside it is too little for graphs and passes."
            )
        )
        return case.finding(
            "weights-do-not-fit" if too_large else "mem-fraction-too-low",
            " ".join(words),
            title=None if too_large else "No fraction has room for the KV pool and for what is beside it",
            evidence=facts,
            remedies=smaller_weights(case),
            ranks=everywhere,
            wrong_advice=_never_lower(sign),
            refuted_by="a start of the same weights on the same GPUs that got a pool",
        )
    words.append("The message is right, and lowering the fraction makes it worse.")
    return case.finding(
        "mem-fraction-too-low",
        " ".join(words),
        evidence=facts,
        remedies=_without_factor(case, told) if avoidable else [raised(case, told), _without_draft(case)],
        ranks=everywhere,
        confidence=Confidence.MEDIUM if avoidable else Confidence.HIGH,
        wrong_advice=_never_lower(sign),
        refuted_by=f"a start with a fraction {'in effect ' if minimum >= 1 else ''}above"
        f" {share.f_min if minimum >= 1 else minimum:.4f} and the same free memory that fails alike",
    )


def _said_negative(case: Case, sign: Sign, budget: Sign, facts: list[Evidence | None]) -> Finding:
    """Build the finding for a negative budget of the KV cache that vLLM printed."""
    left = _number(budget, "available_gib") or 0.0
    return case.finding(
        "mem-fraction-too-low",
        f"Of what the utilisation allows, weights, activations and what is not torch's leave {left:.2f} GiB for the KV"
        f" cache: {max(0.0, -left):.2f} GiB and the cache itself are lacking.",
        evidence=[*facts, case.quote("available KV cache memory", budget, "available_gib", "GiB")],
        remedies=[
            larger_pool(case, f"{max(0.0, -left):.2f} GiB and the cache are lacking"),
            case.remedy("max_num_batched_tokens", Move.LOWER, "activations grow with the tokens of a pass"),
            case.remedy("tensor_parallel_size", Move.RAISE, "smaller weights per GPU"),
        ],
        wrong_advice=_never_lower(sign),
        refuted_by="the same failure with a utilisation that allows as much more",
    )


def _without_draft(case: Case) -> Remedy | None:
    """Propose a smaller draft or none; None if no draft weights share the memory with the pool."""
    drafts = any(rank.draft_weights_gib is not None for rank in case.start.ranks)
    why = "its weights come out of the same share; a smaller draft, or none"
    return case.remedy("speculative_draft_model_path", Move.UNSET, why) if drafts else None


def _few_tokens(case: Case, sign: Sign, pool: float, facts: list[Evidence | None]) -> Finding | None:
    """Return the finding for a requested pool smaller than one page; None if it is not.

    The engine rounds such a pool down to nothing and reports a lack of memory.
    """
    asked, page = case.setting("max_total_tokens"), case.setting("page_size")
    pages = page if isinstance(page, int) and page > 0 else 1
    if not isinstance(asked, int) or asked >= pages:
        return None
    return case.finding(
        "bad-argument",
        f"The memory is there: {pool:.2f} GiB for the pool by its own numbers. It was asked to hold {asked} tokens, and"
        f" a page is {pages}: nothing is left when that is rounded down to whole pages. The engine takes it for a lack"
        " of memory; the fraction plays no part.",
        evidence=[case.arg("max_total_tokens"), case.arg("page_size"), *facts],
        remedies=[
            case.remedy("max_total_tokens", Move.RAISE, "many pages; unset, the memory decides", least=pages),
            case.remedy("page_size", Move.LOWER, "smaller pages", most=asked) if asked > 0 and pages > 1 else None,
        ],
        wrong_advice=["a larger fraction, as the message says: it changes nothing here"],
        refuted_by="the same failure without max_total_tokens",
        at=sign.at,
    )


def _never_lower(sign: Sign) -> list[str]:
    less = "a lower fraction leaves less for the pool, not more"
    return [f"`Not enough memory` sounds like asking for less: {less}" if "Not enough memory" in sign.text else less]


def _pool_evidence(case: Case, told: Asked | None, sign: Sign) -> list[Evidence | None]:
    start, share = case.start, case.share
    facts: list[Evidence | None] = []
    if told is not None:
        multiplied = told.factor != 1.0
        at = start.settings_at if start.setting(told.knob) is not None else sign.at
        facts.append(
            Evidence(
                what=f"requested {told.knob}" if multiplied else told.knob,
                value=told.value,
                at=at,
                meaning=Meaning.MULTIPLIED_FRACTION if multiplied else None,
            )
        )
        if multiplied:
            facts.append(told.told or case.derived(f"effective {told.knob}", round(told.effective, 4)))
    if share is not None:
        facts.append(case.figure("avail after weights", share.after))
        facts.append(case.figure("pre-load avail", share.before))
    rank = case.story
    if rank is not None:
        facts.append(case.figure("weights", rank.weights_gib))
        facts.append(case.figure("draft weights", rank.draft_weights_gib))
    capped = case.sign("tokens-capped")
    if capped is not None:
        facts.append(case.quote("profiled tokens", capped, "profiled_tokens", "tokens"))
    if share is not None and told is not None:
        facts.append(case.derived("KV budget", round(share.pool(told.effective), 2), "GB"))
        name = "minimum effective fraction" if told.factor != 1.0 else "minimum fraction"
        facts.append(case.derived(name, round(share.f_min, 4)))
        if told.factor != 1.0:
            facts.append(case.derived("minimum fraction", round(share.f_min / told.factor, 4)))
    minimum = sign.fields.get("minimum")
    if minimum is not None:
        facts.append(Evidence(what="minimum the engine says", value=minimum, at=sign.at))
    return facts


def _avoidable(told: Asked) -> bool:
    """Return whether another attention backend would leave the fraction unmultiplied."""
    return told.multiplied_by == "attention_backend"


def _without_factor(case: Case, told: Asked) -> list[Remedy | None]:
    own = msgspec.structs.replace(told, effective=told.value, why="", multiplied_by="")
    return [
        case.remedy("attention_backend", Move.SET, "without aiter the fraction is not multiplied", value="triton"),
        raised(case, own, why="with that backend, above the minimum there is a pool at all"),
    ]


def _lora(case: Case, pool: float, facts: list[Evidence | None]) -> Finding | None:
    if not (case.setting("enable_lora", "lora_paths") or case.sign("lora-memory", "lora-init")):
        return None
    return case.finding(
        "lora-memory-unbudgeted",
        f"Weights and fraction alone leave {pool:.2f} GiB for the pool. LoRA buffers are allocated between the weights"
        " and the pool and are not in the fraction's account: they took it.",
        evidence=[*facts, case.arg("max_loras_per_batch"), case.arg("max_lora_rank")],
        remedies=[
            case.remedy("max_loras_per_batch", Move.LOWER, "each loaded adapter has its own buffers"),
            option(case, "max_lora_rank", "--max-lora-rank", Move.LOWER, "buffers grow with the rank"),
            raised(case, asked_of(case)),
        ],
        confidence=Confidence.MEDIUM,
        refuted_by="the same failure without adapters",
    )


def utilization_check(case: Case) -> Finding | None:
    """Diagnose vLLM's start check failing: less memory is free than the utilisation asks for."""
    sign = case.root_sign("free-memory-short")
    if sign is None:
        return None
    free, total, desired = (_number(sign, name) for name in ("free", "total", "desired"))
    if free is None or total is None:
        return None
    taken = total - free
    most = down(int(free / total * 100 + 1e-6) / 100)
    why = f"{most:g} x {total:g} GiB are free now" + (", if weights and cache fit into that" if most < _HALF else "")
    lower = case.remedy("gpu_memory_utilization", Move.LOWER, why, value=most, most=most) if most >= _ANY else None
    facts = [
        Evidence(what="free", value=free, unit="GiB", at=sign.at),
        Evidence(what="total", value=total, unit="GiB", at=sign.at),
        Evidence(what="desired", value=desired, unit="GiB", at=sign.at) if desired is not None else None,
        case.quote("gpu_memory_utilization", sign, "fraction"),
        case.derived("used by others", round(taken, 2), "GiB"),
    ]
    if taken > FOREIGN_GIB:
        title = case.engine.behaviour().process_title
        return case.finding(
            "foreign-process-on-gpu",
            f"{taken:.2f} of {total:g} GiB were in use on this GPU before anything was loaded. That is another process:"
            " often workers that an earlier server left behind when its leader was killed.",
            evidence=facts,
            remedies=[
                case.advice(
                    "gpu-processes", f"see who holds the memory: nvidia-smi; workers left over are titled {title}"
                ),
                lower,
            ],
            refuted_by="nvidia-smi showing no other process on that GPU",
        )
    wanted = "more" if desired is None else f"{desired:g} GiB"
    return case.finding(
        "mem-fraction-too-high-activation",
        f"The utilisation asks for {wanted}, and {free:g} GiB are free: context and communicators alone take the rest.",
        evidence=facts,
        remedies=[lower],
        title="The utilisation asks for more than is free",
        refuted_by="another process on that GPU",
    )


def profiling_race(case: Case) -> Finding | None:
    """Diagnose another process freeing GPU memory while vLLM measured its own use."""
    sign = case.root_sign("profiling-race")
    if sign is None:
        return None
    return case.finding(
        "memory-profiling-race",
        "Free memory grew while the engine measured what it uses: another process released memory meanwhile,"
        " usually the server that ran before. The measurement means nothing; nothing is wrong with the arguments.",
        evidence=[
            case.quote("initial free", sign, "initial", "GiB"),
            case.quote("current free", sign, "current", "GiB"),
        ],
        remedies=[case.advice("retry", "start again once the GPUs are quiet, unchanged")],
        refuted_by="the same message on a GPU that nobody else used",
    )


def unbalanced(case: Case) -> Finding | None:
    """Diagnose SGLang's check for equal free memory of all ranks failing.

    The rank at fault is one that does not raise: those that raise have more memory than the poorest.
    """
    sign = case.root_sign("memory-unbalanced")
    if sign is None:
        return None
    raised_by = set(case.ranks or ())
    quiet = [rank for rank in case.start.ranks if rank.number not in raised_by]
    poorest = min(
        (rank for rank in quiet if rank.last_available is not None),
        key=lambda rank: rank.last_available.value if rank.last_available else 0.0,
        default=None,
    )
    culprits = (poorest.number,) if poorest is not None else tuple(rank.number for rank in quiet) or None
    before = least(case.start.ranks, lambda rank: rank.before_weights)
    facts = [
        case.quote("min_per_gpu_memory", sign, "minimum_gib", "GB"),
        case.quote("local_gpu_memory", sign, "local_gib", "GB"),
        case.figure("avail before load, all ranks", before),
        case.figure(f"last avail, {poorest.tag}", poorest.last_available) if poorest is not None else None,
    ]
    if case.phase == "draft-init":
        return case.finding(
            "memory-unbalanced",
            "The check for equal free memory ran a second time, for the draft model, when the first rank had allocated"
            " more than the others. Before the weights all ranks were equal, so no other process is involved.",
            evidence=facts,
            ranks=culprits,
            remedies=[
                case.advice("version", "newer versions do not repeat the check for the draft"),
                _skip_check(case),
        ],
            wrong_advice=["no other process occupies a GPU, as the message suspects: they were equal before the load"],
            refuted_by="unequal free memory before the weights",
        )  # fmt: skip
    return case.finding(
        "foreign-process-on-gpu",
        "One rank had less than 0.9 of the others' free memory when the ranks met. The ranks that raise are the healthy"
        " ones: the poor GPU is one whose rank did not.",
        evidence=facts,
        ranks=culprits,
        remedies=[case.advice("gpu-processes", "find and end the process on the poorest GPU: nvidia-smi")],
        confidence=Confidence.MEDIUM,
        wrong_advice=["skipping the check: then all ranks get the pool of the poorest"],
        refuted_by="nvidia-smi showing no other process and equal GPUs",
    )


def _skip_check(case: Case) -> Remedy | None:
    """Propose to skip the check. Some versions have a switch that enables it, others one that disables it."""
    check = case.engine.knob("memory_balance_check", case.start.version)
    value = "0" if check is not None and check.default is True else "1"
    return engine_variable(case, "memory_balance_check", Move.SET, "skips the check: the memory is there", value)


def _number(sign: Sign, name: str) -> float | None:
    value = sign.fields.get(name)
    return float(value) if isinstance(value, int | float) else None


JUDGES = (no_pool, utilization_check, profiling_race, unbalanced, context_too_long)
"""Judges of the pool's sizing, in the order in which they run."""
