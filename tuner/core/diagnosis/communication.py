"""Judges of causes in communication: shared memory, NCCL, peer access, custom all-reduce, hanging captures."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from tuner.core import facts as f
from tuner.core.diagnosis import meeting
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, lowered
from tuner.core.diagnosis.proposals import container, no_memory_advice, option, variable, without_custom_all_reduce
from tuner.core.forecast import CAPTURE_SPARE
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Figure, Sign

_NCCL = (
    "nccl-error", "nccl-cuda-failure", "nccl-ib-failure", "nccl-socket-failure", "nccl-no-interface",
    "nccl-duplicate-gpu", "nccl-no-algorithm", "nccl-mismatch",
)  # fmt: skip
_SHM = ("shm-full", "shm-short")
_BEFORE_POOL = frozenset({"args", "cuda-init", "dist-init", "weight-load", "none"})
"""Phases before the KV pool is allocated."""
_STARTING = frozenset({*_BEFORE_POOL, "kv-alloc", "draft-init", "autotune", "graph-capture", "warmup"})
_IPC_ERRORS = ("invalid argument", "invalid device context", "invalid resource handle", "mapping of buffer")
"""CUDA error texts of memory that cannot be shared between processes."""


def shm_too_small(case: Case) -> Finding | None:
    """Diagnose a shared-memory segment that did not fit into /dev/shm; only if a log line says so."""
    sign = case.root_sign(*_SHM)
    if sign is None and case.root_sign(*_NCCL) is not None:
        sign = next(iter(case.signs(*_SHM)), None)
    if sign is None:
        return None
    size = sign.fields.get("size_bytes")
    wanted = f" of {size} bytes" if size is not None else ""
    return case.finding(
        "shm-too-small",
        f"A shared-memory segment{wanted} does not fit into /dev/shm. In a container that is 64 MB unless it is asked"
        " to be larger, and each pair of ranks without peer access needs segments of tens of MB. GPU memory, the"
        " network and the fraction play no part.",
        evidence=[
            case.quote("segment size", sign, "size_bytes", "bytes"),
            case.quote("errno", sign, "errno"),
            case.quote("segment", sign, "segment_path"),
            case.quote("required", sign, "required"),
            case.quote("free in /dev/shm", sign, "free"),
        ],
        remedies=[
            container("--shm-size", "32g", "the size of /dev/shm in the container", Move.RAISE),
            container("--ipc", "host", "or the host's /dev/shm instead of the container's own"),
            case.advice("/dev/shm", "df -h /dev/shm; segments of ended servers (/dev/shm/nccl-*) can be removed"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="df -h /dev/shm inside the container showing gigabytes free at the moment of the failure",
    )


def nccl_out_of_memory(case: Case) -> Finding | None:
    """Diagnose NCCL failing to allocate its own buffers on the GPU."""
    sign = _cuda_out_of_memory(case)
    if sign is None:
        return None
    early = case.phase in _BEFORE_POOL
    story = case.story
    last = story.last_available if story is not None else None
    words = (
        "Nothing of this server is on the GPU yet, so somebody else's memory is: the fraction plays no part."
        if early
        else "What the fraction leaves outside the static share is used up, and NCCL's buffers come out of that."
    )
    own = asked_of(case)
    return case.finding(
        "nccl-out-of-memory",
        f"NCCL asked CUDA for buffers, and CUDA was out of memory. {words} The network is not the cause.",
        evidence=[
            case.quote("Cuda failure", sign, "code"),
            case.quote("error", sign, "error") or case.quote("last error", sign, "last_error"),
            case.figure("last avail mem", last),
            case.arg("mem_fraction_static", "gpu_memory_utilization"),
        ],
        remedies=[
            case.advice("gpu-processes", "nvidia-smi: what else is on these GPUs") if early else
            lowered(case, own, 0.0, CAPTURE_SPARE),
            variable(case, "NCCL_BUFFSIZE", Move.LOWER, "smaller buffers per channel and peer"),
            variable(case, "NCCL_MAX_NCHANNELS", Move.LOWER, "fewer channels have fewer buffers"),
        ],
        wrong_advice=["interfaces, InfiniBand and firewalls: NCCL did not come so far"],
        refuted_by="gigabytes of GPU memory free on that GPU at the moment of the failure",
    )  # fmt: skip


def _cuda_out_of_memory(case: Case) -> Sign | None:
    if case.root_sign(*_NCCL) is None:
        return None
    said = [s for s in case.signs("nccl-cuda-failure") if "out of memory" in str(s.fields.get("error", ""))]
    own = case.root_sign("nccl-error")
    if own is not None and "out of memory" in str(own.fields.get("last_error", "")):
        return own
    return said[0] if said else None


def p2p_unsupported(case: Case) -> Finding | None:
    """Diagnose two GPUs that cannot map each other's memory (no peer access)."""
    sign = case.root_sign("peer-access-unsupported")
    if sign is None and case.root_sign(*_NCCL) is not None:
        sign = next(iter(case.signs("peer-access-unsupported")), None)
    if sign is None:
        return None
    nccl = case.root_sign(*_NCCL) is not None
    gpus = case.arg("tp_size", "tensor_parallel_size") or Evidence(what="tp_size", value=case.layout.tp)
    return case.finding(
        "p2p-unsupported",
        "Custom all-reduce maps buffers of one GPU into the other, and the driver refuses: these two devices have no"
        " peer access (consumer cards, virtual machines, or ACS and IOMMU between them). Without it NCCL goes through"
        " host memory, which is slower and works.",
        evidence=[
            Evidence(what="GPUs in the TP group", value=gpus.value, at=gpus.at),
            Evidence(what="error", value="peer access is not supported between these two devices", at=sign.at),
        ],
        remedies=[
            without_custom_all_reduce(case, "NCCL takes over, and needs no peer access"),
            variable(case, "NCCL_P2P_DISABLE", Move.SET, "NCCL goes through host memory", "1") if nccl else None,
            case.remedy("enable_p2p_check", Move.SET, "tests peer access at the start instead of assuming it",
                        value=True),
            case.advice("topology", "shows which pairs have peer access", "nvidia-smi topo -p2p r"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="nvidia-smi topo -p2p r showing OK for every pair of these GPUs",
    )  # fmt: skip


def custom_all_reduce(case: Case) -> Finding | None:
    """Diagnose custom all-reduce failing to exchange buffers between processes by CUDA IPC."""
    raw = case.sign("custom-all-reduce-cuda-error")
    if raw is not None and not any(error in str(raw.fields.get("error", "")) for error in _IPC_ERRORS):
        raw = None
    # Lines of native code bypass Python's logging and may appear after the line about the end of their process.
    ended = case.root_sign("worker-died", "child-died", "rank-dead", "engine-core-died") is not None
    if raw is not None and case.root is not None and case.root.at < raw.at and not ended:
        raw = None
    on_stack = case.on_stack("register_graph_buffers", "custom_all_reduce", "register_buffer")
    said = any(error in case.message for error in _IPC_ERRORS)
    capture = case.root_sign("graph-capture-failed")
    guessed = capture is not None and case.root_sign("invalid-argument") is not None and not on_stack
    addresses = case.sign("graph-addresses")
    shared = addresses is not None or (case.layout.tp > 1 and case.setting("disable_custom_all_reduce") is not True)
    if raw is None and not (on_stack and said) and not (guessed and shared):
        return None
    unsure = Confidence.MEDIUM if addresses is not None else Confidence.LOW
    shown = case.signs("custom-all-reduce-cuda-error") if raw is not None else []
    return case.finding(
        "custom-ar-ipc-failure",
        "After the capture each rank shares the addresses its graphs use with the other ranks, and CUDA calls one of"
        " them an invalid argument: memory from virtual mappings (expandable_segments, a memory saver) cannot be"
        " shared so, nor can memory across containers that do not share IPC. The GPUs have memory left.",
        evidence=[
            _free_at_capture(case),
            case.quote("registered addresses", addresses, "addresses") if addresses is not None else None,
            case.figure("Available KV cache memory", _pool(case), "GiB"),
            *(case.quote("error", sign, "error") for sign in shown[:1]),
            *(Evidence(what="in", value=f"{s.fields.get('file')}:{s.fields.get('line')}", at=s.at) for s in shown[:1]),
        ],
        remedies=[
            without_custom_all_reduce(case, "NCCL takes over, and shares no graph buffers"),
            variable(case, "PYTORCH_CUDA_ALLOC_CONF", Move.UNSET, "expandable_segments:True makes mappings that"
                     " cannot be shared (PYTORCH_ALLOC_CONF in new versions of torch)"),
            container("--ipc", "host", "where the ranks are in different containers"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="the same failure with --disable-custom-all-reduce",
        phase="graph-capture" if raw is not None and case.start.ready_at is None else None,
        ranks=None if raw is not None else UNSET,
        at=raw.at if raw is not None else None,
        confidence=unsure if guessed and raw is None else Confidence.HIGH,
    )  # fmt: skip


def _pool(case: Case) -> Figure | None:
    return next((rank.kv_gib for rank in case.start.ranks if rank.kv_gib is not None), None)


def capture_hangs(case: Case) -> Finding | None:
    """Diagnose a collective that began during graph capture and that torch's watchdog timed out."""
    sign = case.root_sign("nccl-watchdog", "gloo-timeout")
    if sign is None or not capturing(case, sign.at):
        return None
    hung = sorted({rank for s in case.signs("nccl-watchdog") if isinstance(rank := s.fields.get("rank"), int)})
    work = next((s for s in case.signs("nccl-work") if s.fields.get("rank") == sign.fields.get("rank")), None)
    nodes = case.setting("nnodes")
    many = (isinstance(nodes, int) and nodes > 1) or any(
        "across nodes" in str(s.fields.get("why", "")) for s in case.signs("custom-all-reduce-off")
    )
    where = " between the nodes" if many else ""
    return case.finding(
        "graph-capture-hang",
        f"A collective that was started during graph capture did not finish within {sign.fields.get('timeout_ms')} ms:"
        f" another rank never joined it, or the way{where} is broken. That ranks without a line of their own wait for"
        " the others is normal; the one that stopped first matters, and it may have printed nothing.",
        evidence=[
            progress(case, sign.at),
            case.quote("collective timeout", sign, "timeout_ms", "ms"),
            case.quote("ran for", sign, "ran_ms", "ms"),
            case.quote("collective", sign, "op"),
            case.quote("last completed NCCL work", work, "last_completed") if work is not None else None,
            case.quote("last enqueued NCCL work", work, "last_enqueued") if work is not None else None,
            case.arg("nnodes"),
        ],
        remedies=[
            case.advice("nccl-tests", f"all_reduce_perf over the same GPUs tells whether NCCL works{where}"),
            variable(case, "NCCL_DEBUG", Move.SET, "shows which transport and interface it took", "INFO"),
            None if many else without_custom_all_reduce(case, "as a test: it can hide the error of a rank in capture"),
            option(case, "disable_cuda_graph", "--disable-cuda-graph", Move.SET,
                   "as a work-around: no capture, and a slower decode", True),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="an error of another rank before this line, in this log or in another node's",
        ranks=tuple(hung) or case.ranks,
        phase="graph-capture",  # the server's phase, since the rank's own lines may be missing
        confidence=Confidence.MEDIUM,
    )  # fmt: skip


def capturing(case: Case, at: int) -> bool:
    """Return whether any rank was capturing graphs and no request had been served yet.

    All ranks count, since the line of the rank that failed may be missing.
    """
    if case.phase == "graph-capture":
        return True
    served = case.start.ready_at is not None or any(batch.at < at for batch in case.start.batches)
    begun = any(span.phase == "graph-capture" for rank in case.start.ranks for span in rank.phases)
    return begun and not served


def progress(case: Case, before: int) -> Evidence | None:
    """Cite the last step that a progress bar showed before log position `before`; None without a bar."""
    bar = case.sign_before(before, "bar")
    if bar is not None:
        return Evidence(what="progress", value=f"{bar.fields.get('done')}/{bar.fields.get('total')}", at=bar.at)
    steps = [fact for fact in case.start.facts if fact.kind == f.PROGRESS and fact.offset < before]
    if not steps or steps[-1].fields.get("total") is None:
        return None
    last = steps[-1]
    return Evidence(what="progress", value=f"{last.fields.get('done')}/{last.fields['total']}", at=last.offset)


def _free_at_capture(case: Case) -> Evidence | None:
    """Cite the newest free GPU memory before the failure: from the capture's progress bar or the rank's last line."""
    story = case.story
    last = story.last_available if story is not None else None
    bar = case.sign_before(case.root.at, "bar") if case.root is not None else None
    if bar is not None and "available" in bar.fields and (last is None or bar.at > last.at):
        return case.quote("avail after capture", bar, "available")
    return case.figure("avail after capture", last)


def nccl_failed(case: Case) -> Finding | None:
    """Diagnose any other NCCL failure during the start; NCCL often does not print the reason."""
    sign = case.root_sign(*_NCCL)
    if sign is None and case.root_sign("nccl-remote-exited") is not None:
        sign = next(iter(case.signs("nccl-ib-failure", "nccl-socket-failure")), None)
    if sign is None or case.phase not in _STARTING or case.root_sign("illegal-memory-access") is not None:
        return None
    reason, words, remedies = _nccl_reason(case)
    last = case.root_sign("nccl-error")
    return case.finding(
        "nccl-init-failure",
        words,
        evidence=[
            case.quote("NCCL error", last, "error") if last is not None else None,
            case.quote("last error", last, "last_error") if last is not None else None,
            case.quote("NCCL version", last, "nccl_version") if last is not None else None,
            reason,
        ],
        remedies=[
            *remedies,
            variable(case, "NCCL_DEBUG", Move.SET, "run again: NCCL then says which call failed, and why", "INFO"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="NCCL's own lines naming shared memory or GPU memory",
        confidence=Confidence.LOW if reason is None else Confidence.HIGH,
    )


def _nccl_reason(case: Case) -> tuple[Evidence | None, str, list[Remedy | None]]:
    """Return NCCL's own line as evidence (None if there is none), the explanation and the remedies."""
    lock = case.sign("memlock", "nccl-ib-failure")
    if lock is not None and "memory" not in lock.text and lock.id != "memlock":
        return (
            Evidence(what="NCCL", value=str(lock.fields.get("error") or lock.fields.get("call") or ""), at=lock.at),
            "A network card of InfiniBand or RoCE, or the way to the other node, failed a transfer of NCCL's.",
            [variable(case, "NCCL_IB_HCA", Move.SET, "the cards that lead to the other nodes, and no others"),
             variable(case, "NCCL_IB_DISABLE", Move.SET, "as a test: over sockets instead", "1"),
             case.advice("ib", "ibstat and ib_write_bw between the nodes; for RoCE also NCCL_IB_GID_INDEX")],
        )  # fmt: skip
    if lock is not None:
        return (
            Evidence(what="NCCL", value=str(lock.fields.get("call") or lock.fields.get("error") or ""), at=lock.at),
            "NCCL could not register memory with the network card. Memory that may be locked is limited, in a"
            " container to 64 KiB as a rule; with more allowed, the card itself is the next suspect.",
            [container("--ulimit", "memlock=-1", "lets the process lock memory"),
             container("--cap-add", "IPC_LOCK", "or lets it ignore the limit"),
             variable(case, "NCCL_IB_DISABLE", Move.SET, "as a test: over sockets instead", "1")],
        )  # fmt: skip
    twice = case.sign("nccl-duplicate-gpu")
    if twice is not None:
        ranks = f"ranks {twice.fields.get('other_rank')} and {twice.fields.get('rank')}"
        return (
            Evidence(what="both on", value=str(twice.fields.get("bus", "")), at=twice.at),
            f"Two ranks got the same GPU: {ranks}. More ranks than visible GPUs, or two servers that count from 0.",
            [variable(case, "CUDA_VISIBLE_DEVICES", Move.SET, "as many GPUs as ranks"),
             case.remedy("base_gpu_id", Move.SET, "the first GPU of this server")],
        )  # fmt: skip
    interface = case.sign("nccl-no-interface", "nccl-socket-failure")
    if interface is not None:
        asked = case.start.env.get("NCCL_SOCKET_IFNAME")
        words = "NCCL found no network interface that leads to the other ranks."
        if asked is not None:
            words += f" It was told to use `{asked}` and no other (NCCL_SOCKET_IFNAME)."
        return (
            Evidence(what="NCCL", value=str(interface.fields.get("error") or ""), at=interface.at),
            words,
            [variable(case, "NCCL_SOCKET_IFNAME", Move.UNSET, "lets NCCL look at all interfaces of the host")
             if asked is not None else
             variable(case, "NCCL_SOCKET_IFNAME", Move.SET, "the interface that leads to the other ranks"),
             case.advice("firewall", "ports between the nodes open")],
        )  # fmt: skip
    wrong = case.sign("nccl-no-algorithm", "nccl-mismatch")
    if wrong is not None:
        return (
            Evidence(what="NCCL", value=str(wrong.fields.get("error") or wrong.fields.get("function") or ""),
                     at=wrong.at),
            "NCCL refused what it was asked for: its settings exclude every algorithm, or versions differ.",
            [variable(case, "NCCL_ALGO", Move.UNSET, "lets NCCL choose"),
             variable(case, "NCCL_PROTO", Move.UNSET, "lets NCCL choose"),
             case.advice("version", "one version of NCCL in every process")],
        )  # fmt: skip
    own = case.root_sign("nccl-error")
    if own is not None and "invalid usage" in str(own.fields.get("error")):
        return (
            None,
            "NCCL refused how it was called: ranks with different versions or arguments, or two ranks on one GPU.",
            [case.advice("version", "one version of NCCL in every process"),
             case.advice("gpus", "the same arguments everywhere, and one GPU for each rank: CUDA_VISIBLE_DEVICES")],
        )  # fmt: skip
    return (
        None,
        "A call of NCCL failed, and without NCCL's own lines the log does not tell which: sockets, InfiniBand, shared"
        " memory and the driver all look like this. The next step is to make NCCL say it.",
        [],
    )


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (
    shm_too_small,
    p2p_unsupported,
    custom_all_reduce,
    nccl_out_of_memory,
    capture_hangs,
    *meeting.JUDGES,
    nccl_failed,
)
