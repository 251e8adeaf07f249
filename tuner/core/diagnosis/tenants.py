"""Findings about GPU memory held by tenants: taken before this server's weights, or after them."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.core import facts as f
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of
from tuner.core.diagnosis.oom import Oom, evidence_of, fragmentation
from tuner.core.quantity import to_gib
from tuner.core.share import least
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Figure, RankStory

UNEVEN = 0.9
"""Share of another rank's free memory below which a rank counts as uneven; SGLang's own check uses the same."""
FOREIGN_GIB = 2.0
"""GiB above which memory of others is taken for a tenant; less may be CUDA contexts and libraries."""
_CONTAINER_GIB = 0.1
"""Memory in use, GiB, up to which torch's figure for this process is taken for missing: in a container torch may not
recognise its own PID."""
_CONTEXT_GIB = 1.5
"""Upper bound of what CUDA context and libraries take before the first line about memory, GiB."""
_SUMS_GIB = 1.0
"""Tolerance, GiB, when free, own and others' memory are compared with the card's: the driver keeps some itself."""
_PIXELS = ("mm_utils", "vision", "visual", "multimodal", "image", "video", "_vl.py", "_vl_moe.py", "omni", "vit.py")
_OF_IMAGES = ("enable_multimodal", "mm_attention_backend", "limit_mm_per_prompt", "mm_processor_kwargs")


def foreign(case: Case, oom: Oom) -> Finding | None:
    """Return the finding for a tenant that holds what the failed allocation lacked; None if none does."""
    if oom.capacity is None:
        return None
    others = [(each["pid"], amount) for each in oom.sign.fields.get("others", ()) if (amount := to_gib(each["in_use"]))]
    before = case.story.before_weights if case.story is not None else None
    taken = _taken_at_load(case, oom)
    if taken is not None and taken > FOREIGN_GIB:
        return _there_before(case, oom, taken, others)
    held = sum(amount for _, amount in others)
    if held <= FOREIGN_GIB or oom.in_use is None or oom.in_use <= _CONTAINER_GIB:
        # If torch has no figure for this process, the PID it lists is this process itself, seen from a container.
        return None
    if before is None:
        return _named(case, oom, held)
    if held - max(0.0, taken or 0.0) > FOREIGN_GIB and oom.free + held >= oom.tried and not multimodal(case):
        return _came_later(case, oom, held, others)
    return None


def multimodal(case: Case) -> bool:
    """Return whether the server processes images, so that a helper process of its own may hold GPU memory."""
    if any(case.setting(name) for name in _OF_IMAGES) or case.on_stack(*_PIXELS):
        return True
    loaded = (fact.text for fact in case.start.facts if fact.kind == f.WEIGHTS)
    return any("ForConditionalGeneration" in text for text in loaded)


def _taken_at_load(case: Case, oom: Oom) -> float | None:
    """Return the GiB that others held on the GPU before the weights were loaded; None if the log does not tell."""
    rank = case.story
    if rank is None or rank.before_weights is None or oom.capacity is None:
        return None
    own = (rank.communicators_gib.value if rank.communicators_gib else 0.0) + _CONTEXT_GIB
    return oom.capacity - rank.before_weights.value - own


def _there_before(case: Case, oom: Oom, taken: float, others: Iterable[tuple[object, float]]) -> Finding:
    before = case.story.before_weights if case.story is not None else None
    counted = oom.in_use is not None and oom.in_use > _CONTAINER_GIB
    own = oom.in_use if counted else (oom.allocated or 0.0) + (oom.reserved or 0.0)
    missing = (oom.capacity or 0.0) - oom.free - (own or 0.0)
    whose = (
        "belong to somebody else" if counted else "are not torch's: somebody else's, but for this process's own context"
    )
    return case.finding(
        "foreign-process-on-gpu",
        f"Of {oom.capacity:.2f} GiB only {before.value if before else 0:.2f} were free before the weights were"
        f" loaded; {missing:.1f} GiB {whose}. The fraction plays no part in that.",
        evidence=[
            *evidence_of(case, oom),
            case.derived("used by others", round(missing, 1), "GiB"),
            case.figure("avail before load", before),
            *_each(case, others),
        ],
        remedies=[
            _look(case, oom),
            case.remedy("tp_size", Move.RAISE, "spread the weights if the other process must stay", value=2)
            if (case.setting("tp_size", "tensor_parallel_size") or 1) == 1
            else None,
        ],
        confidence=Confidence.HIGH if taken > 2 * FOREIGN_GIB else Confidence.MEDIUM,
        wrong_advice=["a lower fraction frees nothing that another process holds", *fragmentation(oom)],
        refuted_by="nvidia-smi showing no other process on that GPU",
    )


def _came_later(case: Case, oom: Oom, held: float, others: Iterable[tuple[object, float]]) -> Finding:
    rank = case.story
    whole = oom.capacity is not None and abs(oom.capacity - oom.free - held - (oom.in_use or 0.0)) <= _SUMS_GIB
    free = rank.available_at_ready or rank.last_available if rank is not None else None
    then = f" {free.value:.2f} GB were free when the start was done." if free is not None else ""
    return case.finding(
        "foreign-process-on-gpu",
        f"Another process holds {held:.2f} GiB of this GPU, and it came after the weights were loaded: then the memory"
        f" was free.{then} Without it {oom.free + held:.2f} GiB would have been there for the {oom.tried:.2f} that were"
        " asked for. The fraction, the graphs and the size of the pass play no part.",
        evidence=[
            *evidence_of(case, oom),
            case.derived("used by others", round(held, 2), "GiB"),
            case.figure("avail before load", rank.before_weights if rank is not None else None),
            case.figure("available after start", rank.available_at_ready if rank is not None else None),
            *_each(case, others),
        ],
        remedies=[_look(case, oom)],
        confidence=Confidence.HIGH if whole else Confidence.MEDIUM,
        wrong_advice=["a lower fraction only leaves more to the other process", *fragmentation(oom)],
        refuted_by="that process being a rank or a helper of this same server",
    )


def _named(case: Case, oom: Oom, held: float) -> Finding:
    return case.finding(
        "foreign-process-on-gpu",
        f"Other processes hold {held:.2f} GiB on the GPU beside the {oom.in_use:.2f} of this one.",
        evidence=[*evidence_of(case, oom), case.derived("used by others", round(held, 2), "GiB")],
        remedies=[_look(case, oom)],
        confidence=Confidence.LOW,
        wrong_advice=fragmentation(oom),
        refuted_by="those processes being ranks or a tokenizer of this same server",
    )


def _look(case: Case, oom: Oom) -> Remedy:
    return case.advice("gpu-processes", f"nvidia-smi: processes on GPU {oom.sign.fields.get('gpu', '')}")


def _each(case: Case, others: Iterable[tuple[object, float]]) -> Iterable[Evidence]:
    return (case.derived(f"process {pid}", round(amount, 2), "GiB") for pid, amount in others)


def poor_rank(case: Case) -> tuple[RankStory, Figure, Figure] | None:
    """Return the rank with far less free memory before its weights than the others, its figure, and the largest one.

    None if the ranks are about equal, or fewer than two are known.
    """
    known = [(rank, figure) for rank in case.start.ranks if (figure := rank.before_weights) is not None]
    if len(known) < 2:
        return None
    rank, low = min(known, key=lambda each: each[1].value)
    _, high = max(known, key=lambda each: each[1].value)
    if low.value >= UNEVEN * high.value or high.value - low.value < FOREIGN_GIB:
        return None
    return rank, low, high


def foreign_at_load(case: Case, poor: tuple[RankStory, Figure, Figure], facts: list[Evidence | None]) -> Finding:
    """Build the finding for a pool that does not fit because a tenant is on the poorest rank's GPU.

    Args:
        case: The start.
        poor: Result of `poor_rank`.
        facts: Further evidence.
    """
    rank, low, high = poor
    return case.finding(
        "foreign-process-on-gpu",
        f"{rank.tag} had {low.value:.2f} GB free before the weights, other ranks {high.value:.2f} GB: something else"
        f" holds {high.value - low.value:.1f} GiB on its GPU. The pool is sized by the poorest rank.",
        evidence=[
            case.figure(f"avail before load, {rank.tag}", low),
            case.figure("avail before load, others", high),
            case.derived("used by others", round(high.value - low.value, 2), "GiB"),
            *facts,
        ],
        remedies=[case.advice("gpu-processes", f"find and end the process on the GPU of {rank.tag}: nvidia-smi")],
        ranks=(rank.number,),
        wrong_advice=["raising the fraction, as the message says, shares less memory and not the foreign one"],
        refuted_by="nvidia-smi showing no other process on that GPU",
    )


def less_than_before(case: Case, facts: list[Evidence | None]) -> Finding | None:
    """Return the finding for a pool that would fit with the free memory of a past start that became ready.

    None if no past start had far more free memory before the weights, or if the pool would not fit even then.
    """
    now = least(case.start.ranks, lambda rank: rank.before_weights)
    then = next((known for past in case.past if (known := least(past.ranks, lambda r: r.before_weights))), None)
    if now is None or then is None or now.value >= UNEVEN * then.value or then.value - now.value < FOREIGN_GIB:
        return None
    held, told, share = then.value - now.value, asked_of(case), case.share
    if told is None or share is None or share.after is None or not share.of_free:
        return None
    pool = share.after.value + held - then.value * (1 - told.effective)
    if pool <= 0:
        return None
    return case.finding(
        "foreign-process-on-gpu",
        f"{now.value:.2f} GB were free before the weights, and {then.value:.2f} GB in a start of this LLM that worked:"
        f" something else holds {held:.1f} GiB on the GPU. With that memory the same fraction gives a pool of"
        f" {pool:.1f} GiB; a larger one, as the message says, shares what is left.",
        evidence=[
            case.figure("avail before load", now),
            case.derived("avail before load, good start", then.value, "GB"),
            case.derived("used by others", round(held, 2), "GiB"),
            *facts,
        ],
        remedies=[case.advice("gpu-processes", "find and end the process that holds it: nvidia-smi")],
        confidence=Confidence.MEDIUM,
        refuted_by="the good start having run on larger GPUs",
    )
