"""Judges of GPU out-of-memory failures; the phase decides what lacked memory and which way the fraction should go."""

from __future__ import annotations

import msgspec

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, lowered, smaller_weights
from tuner.core.diagnosis.oom import Oom, evidence_of, fragmentation, fragmented, oom_of, segments
from tuner.core.diagnosis.passes import activation, of_images, serving
from tuner.core.diagnosis.proposals import container, error_of, variable
from tuner.core.diagnosis.tenants import foreign
from tuner.core.forecast import CAPTURE_SPARE, FORWARD_SPARE
from tuner.core.share import OF_CARD, OF_FREE
from tuner.domain.findings import Confidence, Finding, Move, Remedy
from tuner.domain.starts import Figure, Sign

_NOTHING_YET = frozenset({"args", "cuda-init", "dist-init"})
"""Phases in which the server has nothing large on the GPU yet."""


def out_of_memory(case: Case) -> Finding | None:
    """Diagnose a failed allocation of torch: another process on the GPU if the numbers say so, else by phase."""
    oom = oom_of(case)
    if oom is None:
        return None
    tenant = foreign(case, oom)
    if tenant is not None:
        return tenant
    by_phase = {
        "weight-load": _weights,
        "draft-init": _draft,
        "kv-alloc": _pool_allocation,
        "autotune": _autotune,
        "graph-capture": _capture,
        "warmup": _warmup,
    }
    judge = by_phase.get(case.phase)
    if judge is None:
        judge = serving if case.phase in ("prefill", "decode", "runtime", "idle-check") else _unplaced
    return _of_fragments(case, oom, judge(case, oom))


def _of_fragments(case: Case, oom: Oom, finding: Finding) -> Finding:
    """Add the remedy against fragmentation in front if torch holds enough unused memory; else leave the finding."""
    if not fragmented(oom):
        return finding
    words = f" {oom.reserved:.2f} GiB are reserved by torch and unused, more than was asked for: they are fragments."
    return msgspec.structs.replace(
        finding, explanation=finding.explanation + words, remedies=(segments(case), *finding.remedies)
    )


def _weights(case: Case, oom: Oom) -> Finding:
    draft = case.setting("speculative_algorithm") is not None
    return case.finding(
        "weights-do-not-fit",
        "The weights themselves do not fit on the GPU. Nothing is reserved for the KV pool yet while they are"
        " loaded, so"
        " the fraction plays no part.",
        evidence=evidence_of(case, oom),
        remedies=[
            *smaller_weights(case),
            case.remedy("speculative_algorithm", Move.UNSET, "a draft model's weights come on top") if draft else None,
        ],
        wrong_advice=[f"moving {case.named(OF_FREE)} either way", *fragmentation(oom)],
        refuted_by="another process holding the memory: avail mem before the load far below the card's capacity",
    )


def _draft(case: Case, oom: Oom) -> Finding:
    rank, told = case.story, asked_of(case)
    loaded = rank is not None and rank.draft_weights_gib is not None
    after = rank.last_available if rank is not None else None
    facts = evidence_of(case, oom)
    lacking = oom.lacking
    if loaded and rank is not None and rank.kv_tokens is not None and rank.kv_gib is not None and after is not None:
        needed = rank.kv_gib.value
        lacking = max(lacking, needed - after.value)
        words = (
            f"After the target's pool ({rank.kv_tokens.value:.0f} tokens) the draft model was loaded, and its own"
            " pool for"
            f" as many tokens wants up to {needed:.1f} GiB of the {after.value:.1f} that are left. The target's"
            " pool was"
            " sized without it."
        )
        facts += [
            case.figure("avail after draft weights", after),
            case.derived("draft KV needed", round(needed, 1), "GB"),
            case.figure("KV tokens", rank.kv_tokens, "tokens"),
        ]
    else:
        words = (
            "The draft model is loaded after the target's pool was sized without it, and its weights do not fit"
            " into what"
            f" is left: {oom.sign.fields.get('tried')} asked for, {oom.sign.fields.get('free')} free."
        )
        facts.insert(0, case.figure("avail before draft load", after))
    if case.share is not None:
        facts.append(case.derived("minimum fraction", round(case.share.f_min, 4)))
    lower = lowered(case, told, lacking, FORWARD_SPARE)
    remedies = [lower]
    if loaded and (lower is None or lower.knob != "max_total_tokens"):
        remedies.append(case.remedy("max_total_tokens", Move.LOWER, "both pools hold as many tokens"))
    if lower is None:
        tp = case.setting("tp_size") or 1
        if told is not None and case.share is not None:
            words += " Lowering the fraction enough would leave no pool: no fraction works."
        remedies.append(case.remedy("tp_size", Move.RAISE, "more room on each GPU", value=tp * 2))
    remedies.append(case.remedy("speculative_draft_model_path", Move.UNSET, "a smaller draft, or none"))
    return case.finding(
        "draft-model-unbudgeted",
        words,
        evidence=facts,
        remedies=remedies,
        confidence=Confidence.HIGH if loaded else Confidence.MEDIUM,
        wrong_advice=["raising the fraction makes the target's pool larger and leaves less", *fragmentation(oom)],
        refuted_by="the same failure without a draft model",
    )


def _pool_allocation(case: Case, oom: Oom) -> Finding:
    behaviour = case.engine.behaviour()
    sized = case.sign_before(oom.sign.at, "kv-available") is not None or case.start.limits.get("max_total_num_tokens")
    profiles = case.on_stack(*behaviour.frames.profile)
    if behaviour.profiles_before_pool and (profiles or not sized):
        return case.finding(
            "profile-run-oom",
            "The forward pass that measures activations ran out of memory, before any KV cache exists: the utilisation"
            " plays no part.",
            evidence=evidence_of(case, oom),
            remedies=[
                *_images_of_the_profile(case),
                case.remedy("max_num_batched_tokens", Move.LOWER, "activations grow with the tokens of a pass"),
                case.remedy("max_num_seqs", Move.LOWER, "logits grow with the sequences of a pass"),
                case.remedy("tensor_parallel_size", Move.RAISE, "smaller weights per GPU"),
            ],
            confidence=Confidence.HIGH if profiles else Confidence.MEDIUM,
            wrong_advice=[f"lowering {case.named(OF_CARD)}: nothing is reserved yet", *fragmentation(oom)],
            refuted_by="another process on the GPU",
        )
    told = asked_of(case)
    return case.finding(
        "mem-fraction-too-high-activation",
        "The pool was sized, and the memory was not there when it was allocated: the fraction leaves too little"
        f" beside it for {behaviour.beside_pool} and what the driver keeps.",
        evidence=evidence_of(case, oom),
        remedies=[
            lowered(case, told, oom.lacking, FORWARD_SPARE),
            case.remedy(case.named("max_running_requests"), Move.LOWER, behaviour.requests_take),
        ],
        confidence=Confidence.MEDIUM,
        title="The pool does not fit where the formula says it would",
        wrong_advice=fragmentation(oom),
        refuted_by="another process that took memory between the weights and the pool",
    )


def _images_of_the_profile(case: Case) -> list[Remedy | None]:
    """Return remedies that shrink the encoder's dummy pass; it is sized by the largest request that is allowed."""
    if not of_images(case):
        return []
    return [
        case.remedy("limit_mm_per_prompt", Move.LOWER, "the encoder is measured with as many items as are allowed"),
        case.advice("mm_processor_kwargs", "smaller images, as max_pixels of the LLM's processor"),
    ]


def _autotune(case: Case, oom: Oom) -> Finding:
    told, rank = asked_of(case), case.story
    return case.finding(
        "moe-autotune-oom",
        "The autotuning of kernels between KV pool and graph capture runs a dummy batch, and its workspace does not fit"
        " into what the fraction leaves.",
        evidence=[
            *evidence_of(case, oom),
            case.figure("avail after memory pool", rank.after_pool) if rank is not None else None,
        ],
        remedies=[
            lowered(case, told, oom.lacking, FORWARD_SPARE),
            case.remedy(
                "disable_flashinfer_autotune", Move.SET, "skips it; kernels may be slower", value=True, later=True
            ),
            case.remedy("max_prefill_tokens", Move.LOWER, "the dummy batch is as large"),
        ],
        wrong_advice=fragmentation(oom),
        refuted_by="the same failure with autotuning switched off",
    )


def _capture(case: Case, oom: Oom) -> Finding:
    told, rank = asked_of(case), case.story
    compiled = case.on_stack("_inductor", "torch/_dynamo", "triton_heuristics") or case.root_sign("compile-failed")
    before = next((span.before_gib for span in (rank.phases if rank else ()) if span.phase == "graph-capture"), None)
    facts = evidence_of(case, oom)
    if before is not None and rank is not None:
        at = next(span.at for span in rank.phases if span.phase == "graph-capture")
        facts.append(case.figure("avail before capture", Figure(before, at)))
    if oom.outside_torch is not None:
        facts.append(case.derived("outside PyTorch", round(oom.outside_torch, 1), "GiB"))
    bar = case.sign_before(oom.sign.at, "capture-bar", "graph-capture-progress")
    if bar is not None:
        facts.append(case.quote("batch size", bar, "bs"))
    lower = lowered(case, told, oom.lacking, CAPTURE_SPARE)
    smaller = case.remedy("cuda_graph_max_bs", Move.LOWER, "fewer and smaller graphs", value=_half(case))
    prefill = _of_prefill(case)
    eager = case.remedy("disable_cuda_graph", Move.SET, "") or case.remedy("enforce_eager", Move.SET, "")
    off = [f"{eager.flag}: it fits then, and decode is much slower for good"] if eager is not None else []
    off += fragmentation(oom)
    if compiled:
        return case.finding(
            "torch-compile-memory",
            "Inductor benchmarks kernels while graphs are captured, and its buffers do not fit into what the fraction"
            " leaves.",
            evidence=facts,
            remedies=[
                case.remedy("enable_torch_compile", Move.UNSET, "nothing is compiled or tuned during capture"),
                case.remedy("torch_compile_max_bs", Move.LOWER, "only small batches are compiled"),
                lower,
            ],
            confidence=Confidence.MEDIUM,
            wrong_advice=off,
            refuted_by="the same failure without torch.compile",
        )
    words = (
        f"The weights and the pool fit; capture asked for {oom.sign.fields.get('tried')} with"
        f" {oom.sign.fields.get('free')} free. The fraction leaves too little beside the static share."
    )
    if oom.outside_torch is not None and oom.outside_torch > 4:
        words += f" {oom.outside_torch:.1f} GiB of this process are not torch's: communication buffers and context."
    none = case.remedy("cuda_graph_backend_prefill", Move.SET, "prompts wait longer then", value="disabled")
    fewer = case.remedy("cuda_graph_max_bs_prefill", Move.LOWER, "graphs for fewer tokens of a prompt")
    remedies = [lower, *([none, fewer] if prefill else [smaller])]
    if lower is None and told is not None:
        words += " A lower fraction would leave no pool: no fraction works with these graphs."
    return case.finding(
        "mem-fraction-too-high-graph-capture",
        words,
        evidence=facts,
        remedies=remedies,
        wrong_advice=off,
        refuted_by="the same failure with graphs switched off",
    )


def _of_prefill(case: Case) -> bool:
    """Return whether the failed capture was of prefill graphs, not of decode graphs."""
    said = "prefill CUDA graph failed" in case.message or "prefill runner" in case.message
    return said or case.on_stack(*case.engine.behaviour().frames.prefill_capture)


def _half(case: Case) -> int | None:
    known = case.setting("cuda_graph_max_bs_decode", "cuda_graph_max_bs")
    return max(1, known // 2) if isinstance(known, int) else None


def sampler(case: Case) -> Finding | None:
    """Diagnose vLLM's sampler warm-up running out of memory, by vLLM's own message."""
    sign = case.root_sign("sampler-warmup-oom")
    if sign is None:
        return None
    oom, told = oom_of(case), asked_of(case)
    return case.finding(
        "sampler-warmup-oom",
        "KV cache and graphs took everything the utilisation allows; 32-bit logits of so many sequences no longer fit.",
        evidence=[
            case.quote("dummy requests", sign, "requests"),
            *(evidence_of(case, oom) if oom is not None else ()),
        ],
        remedies=[
            lowered(case, told, oom.lacking if oom is not None else 0.3, FORWARD_SPARE),
            case.remedy("max_num_seqs", Move.LOWER, "the warm-up runs this many sequences"),
        ],
        refuted_by="the same failure with few sequences",
    )


def _warmup(case: Case, oom: Oom) -> Finding:
    if case.on_stack(*case.engine.behaviour().frames.sampler_warmup):
        told = asked_of(case)
        return case.finding(
            "sampler-warmup-oom",
            "KV cache and graphs took everything the utilisation allows; logits of the dummy requests do not fit.",
            evidence=evidence_of(case, oom),
            remedies=[
                lowered(case, told, oom.lacking, FORWARD_SPARE),
                case.remedy("max_num_seqs", Move.LOWER, "the warm-up runs this many sequences"),
            ],
            wrong_advice=fragmentation(oom),
            refuted_by="the same failure with few sequences",
        )
    return activation(case, oom)


def _unplaced(case: Case, oom: Oom) -> Finding:
    return case.finding(
        "mem-fraction-too-high-activation",
        "An allocation failed, and the log does not tell in which phase: which way the fraction should go cannot"
        " be said.",
        evidence=evidence_of(case, oom),
        remedies=[case.advice("log", "collect the log from its beginning")],
        confidence=Confidence.LOW,
        wrong_advice=fragmentation(oom),
        refuted_by="the part of the log before the failure",
    )


def driver_oom(case: Case) -> Finding | None:
    """Diagnose an out-of-memory error of the driver, or a CUDA library's failure to initialise that amounts to one."""
    sign = case.root_sign("cuda-oom-driver", "cublas-alloc-failed", "cublas-not-initialized", "cudnn-not-initialized")
    last = case.story.last_available if case.story is not None else None
    if sign is None or (last is None and sign.id != "cuda-oom-driver"):
        return None
    if last is not None and sign.id != "cuda-oom-driver" and last.value >= 1.0:
        return None
    if case.phase in _NOTHING_YET:
        return _full_before(case, sign)
    if case.on_stack(*case.engine.behaviour().frames.host_pool):
        return _pinned(case, sign)
    if last is None and case.phase == "none":
        return None
    told = asked_of(case)
    cause = {
        "graph-capture": "mem-fraction-too-high-graph-capture",
        "weight-load": "weights-do-not-fit",
        "draft-init": "draft-model-unbudgeted",
    }.get(case.phase, "mem-fraction-too-high-activation")
    return case.finding(
        cause,
        "The driver has no memory left: this is no allocation of torch's, so no numbers are printed."
        + (f" The last free memory this rank printed was {last.value:.2f} GB." if last is not None else ""),
        evidence=[
            case.figure("last avail mem", last),
            error_of(case, sign),
            case.arg("mem_fraction_static", "gpu_memory_utilization"),
        ],
        remedies=[lowered(case, told, 0.5, CAPTURE_SPARE)] if cause != "weights-do-not-fit" else smaller_weights(case),
        confidence=Confidence.MEDIUM,
        refuted_by="free memory on that GPU at the moment of the failure",
    )


def _pinned(case: Case, sign: Sign) -> Finding:
    """Build the finding for host memory that could not be pinned, which CUDA also calls `out of memory`."""
    return case.finding(
        "hicache-host-memory",
        "The driver could not pin the host pool of the hierarchical cache. It calls that `out of memory`, and means"
        " memory of the host, or the limit on what may be locked: the GPU and the fraction play no part.",
        evidence=[
            error_of(case, sign),
            case.arg("hicache_size"),
            case.arg("hicache_ratio"),
        ],
        remedies=[
            case.remedy("hicache_size" if case.setting("hicache_size") else "hicache_ratio", Move.LOWER,
                        "a smaller pool per rank"),
            container("--ulimit", "memlock=-1", "where what may be locked is limited: ulimit -l"),
            case.advice("host-memory", "free -g: page cache does not count, HugePages do; more memory for the"
                        " container"),
        ],
        confidence=Confidence.MEDIUM,
        refuted_by="the same failure without the hierarchical cache",
    )  # fmt: skip


def _full_before(case: Case, sign: Sign) -> Finding:
    """Build the finding for a GPU that was full before this server put anything large on it."""
    met = case.phase == "dist-init"
    return case.finding(
        "foreign-process-on-gpu",
        "CUDA has no memory left while the ranks meet. By then this server has contexts and buffers of NCCL on the GPU,"
        " as a rule no more than some GiB, and no weights: another process may hold the rest, often ranks that an"
        " earlier server left behind. The fraction plays no part."
        if met
        else "CUDA has no memory to begin with, and this server has nothing on the GPU yet: another process holds it,"
        " often ranks that an earlier server left behind. The fraction plays no part.",
        evidence=[error_of(case, sign)],
        remedies=[
            case.advice("gpu-processes", "nvidia-smi: whose processes are on this GPU"),
            variable(case, "CUDA_VISIBLE_DEVICES", Move.SET, "GPUs that are free"),
        ],
        confidence=Confidence.LOW if met else Confidence.MEDIUM,
        refuted_by="nvidia-smi showing a free GPU at that moment",
    )


JUDGES = (sampler, out_of_memory, driver_oom)
"""Judges of memory failures, in the order in which they run."""
