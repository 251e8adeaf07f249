"""Judges of GPU faults: hardware errors, illegal memory accesses, forward passes that do not return."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import UNSET, UnsetType

from tuner.core import facts as f
from tuner.core.diagnosis import processes
from tuner.core.diagnosis.backends import backend_of, other_attention
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import (
    engine_variable,
    error_of,
    no_memory_advice,
    option,
    variable,
    without_custom_all_reduce,
)
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy, Severity
from tuner.domain.starts import Sign

_FAULTS = ("unspecified launch failure", "misaligned address", "illegal instruction was encountered",
           "illegal address", "unknown error")  # fmt: skip
"""CUDA error texts that follow an illegal operation of a kernel."""
_SPOILED = ("EXECUTION_FAILED", "INTERNAL_ERROR")
"""Suffixes of cuBLAS and cuDNN status codes that follow from an earlier fault in the same CUDA context."""
HARDWARE_XIDS = frozenset({48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})
"""Xid codes caused by the GPU, its memory or its links, and never by a kernel."""


def hardware(case: Case) -> Finding | None:
    """Diagnose a failure of the GPU itself, of its memory or of its links."""
    sign = case.root_sign("gpu-hardware")
    xid = next((s for s in case.signs("xid") if s.fields.get("code") in HARDWARE_XIDS), None)
    if sign is None and xid is not None and (_fault(case) or case.root_sign("illegal-memory-access", "xid")):
        sign = xid
    if sign is None:
        return None
    return broken_card(
        case,
        "The GPU reports a fault of its own: its memory, its links, or that it no longer answers.",
        evidence=[
            case.quote("error", sign, "error"),
            case.quote("Xid", xid, "code") if xid is not None else None,
            case.quote("bus", xid, "bus") if xid is not None else None,
            error_of(case, sign, "line"),
        ],
        refuted_by="no Xid in the kernel's log at that time",
        confidence=Confidence.HIGH if xid is not None or sign.id == "gpu-hardware" else Confidence.MEDIUM,
    )


def broken_card(
    case: Case,
    words: str,
    *,
    evidence: Iterable[Evidence | None],
    refuted_by: str,
    confidence: Confidence = Confidence.HIGH,
    phase: str | None = None,
    ranks: tuple[int, ...] | UnsetType | None = UNSET,
    at: int | None = None,
) -> Finding:
    """Build the finding for a broken GPU, whether the log or the kernel of the host reported it.

    Args:
        case: The start.
        words: First sentence of the explanation: who reported the fault, and what it is.
        evidence: Evidence to cite; None entries are left out.
        refuted_by: Observation that would refute the finding.
        confidence: Confidence of the finding.
        phase: Phase of the finding; None: that of the root failure.
        ranks: Global ranks of the finding; UNSET: those of the root failure.
        at: Log position of the finding; None: that of the root failure.
    """
    return case.finding(
        "gpu-hardware",
        f"{words} No setting of the engine causes or mends that; what ranks print about their peers is a consequence.",
        evidence=evidence,
        remedies=[
            case.advice("dmesg", "which card, and which Xid", "dmesg -T | grep -i xid"),
            case.advice("nvidia-smi", "errors of that card's memory", "nvidia-smi -q -d ECC,ROW_REMAPPER"),
            variable(case, "CUDA_VISIBLE_DEVICES", Move.SET, "leave that card out until it was reset or replaced"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by=refuted_by,
        confidence=confidence,
        phase=phase,
        ranks=ranks,
        at=at,
    )


def _fault(case: Case) -> Sign | None:
    """Return the sign of a CUDA error that an earlier fault left behind in the context; None if there is none."""
    error = case.root_sign("cuda-error")
    if error is not None and any(text in str(error.fields.get("error", "")) for text in _FAULTS):
        return error
    library = case.root_sign("library-not-initialised")
    if library is not None and str(library.fields.get("status_text", "")).endswith(_SPOILED):
        return library
    return None


def _thrown(case: Case) -> Sign | None:
    """Return the sign of an illegal access that directly follows a crash in native code; None if none does."""
    crash = case.root_sign("native-crash")
    if crash is None:
        return None
    after = next((s for s in case.start.signs if s.at > crash.at and s.kind in ("failure", "secondary")), None)
    return (
        after
        if after is not None
        and after.id in ("illegal-memory-access", "cuda-error")
        and any(s.id == "illegal-memory-access" and s.at == after.at for s in case.start.signs)
        else None
    )


def _warmup_timeout(case: Case) -> Sign | None:
    """Return the sign of the engine's own warm-up request timing out; None if it did not."""
    root = case.root
    if root is None or not ("Read timed out" in case.message or "ReadTimeout" in case.message):
        return None
    own = case.root_sign("warmup-failed")
    if own is not None:
        return own
    header = root.failure.header if root.failure is not None else ""
    if "warmup error" not in header:
        return None
    return Sign(id="warmup-failed", at=root.at, text=header)


def illegal_access(case: Case) -> Finding | None:
    """Diagnose a kernel that accessed memory illegally or failed an assertion on the device."""
    sign = case.root_sign("illegal-memory-access", "device-assert") or _fault(case) or _thrown(case)
    if sign is None:
        return None
    story = case.story
    speculative = case.setting("speculative_algorithm", "speculative_config") is not None or case.on_stack(
        "speculative", "eagle", "mtp"
    )
    xid = case.sign("xid")
    end = processes.end_of(case, sign)
    asserted = sign.id == "device-assert"
    where = "a check inside a kernel failed, as with an index out of range" if asserted else \
        "a kernel accessed memory that is not its own"  # fmt: skip
    return case.finding(
        "illegal-memory-access",
        f"On this rank {where}. CUDA reports it later than it happens, at another call: the frame that is shown is"
        " not the cause. Other ranks then lose their peer; their errors are consequences. It is not a lack of memory.",
        evidence=[
            case.figure("avail after capture", story.last_available if story is not None else None),
            error_of(case, sign),
            case.quote("assertion", sign, "assertion"),
            case.quote("Xid", xid, "code") if xid is not None else None,
            case.arg("attention_backend"),
            case.arg("speculative_algorithm"),
        ],
        remedies=[
            variable(case, "CUDA_LAUNCH_BLOCKING", Move.SET, "run again: it fails where it happens, and slowly", "1"),
            case.advice("version", "update: such faults are mended in kernels, not by settings"),
            option(case, "speculative_algorithm", "--speculative-algorithm", Move.UNSET,
                   "the pass belongs to speculation: without it this kernel does not run") if speculative else None,
            None if speculative else other_attention(case, backend_of(case)),
            without_custom_all_reduce(case, "as a test") if case.phase == "graph-capture" else None,
            case.advice("dmesg", "Xid 31 is software, 48, 63, 79 and 94 are the card", "dmesg -T | grep -i xid") ,
        ],
        wrong_advice=no_memory_advice(case),
        ranks=case.ranks or (processes.numbers(case, end) if end is not None else None),
        refuted_by="an Xid of the hardware in dmesg at that time, or the same request passing on another card",
        confidence=Confidence.HIGH if sign.id == "illegal-memory-access" else Confidence.MEDIUM,
    )  # fmt: skip


def hanging_pass(case: Case) -> Finding | None:
    """Diagnose a forward pass that did not return in time, as reported by a watchdog or a timeout."""
    root = case.root
    sign = case.root_sign("watchdog-timeout", "rpc-timeout") or _warmup_timeout(case)
    if sign is None and root is not None and case.phase not in ("graph-capture", "dist-init"):
        served = case.start.ready_at is not None
        sign = case.root_sign("nccl-watchdog") or (case.root_sign("gloo-timeout") if served else None)
    if sign is None or root is None:
        return None
    last = next((b for b in reversed(case.start.batches) if b.at < root.at and b.kind == f.PREFILL), None)
    newest = next((b for b in reversed(case.start.batches) if b.at < root.at), None)
    last = last if newest is not None and last is newest else None
    timeout = sign.fields.get("timeout_s")
    waits = case.signs("broadcast-wait")
    soft = sign.fields.get("soft") is True
    ranks = case.ranks
    if sign.id == "nccl-watchdog":
        ranks = tuple(sorted({r for s in case.signs("nccl-watchdog") if isinstance(r := s.fields.get("rank"), int)}))
    several = case.layout.world > 1 or len(ranks or ()) > 1
    size = last.fields.get("new_tokens") if last is not None else None
    after = f" after a prefill of {size} tokens" if size is not None else ""
    return case.finding(
        "watchdog-hang",
        f"A forward pass{after} did not return{f' within {timeout:g} s' if timeout else ''}: a kernel"
        + (" or a collective hangs. Where several ranks say so at the same time each of them waits, and the log does"
           " not tell for whom." if several else " hangs, or is still being compiled."),
        evidence=[
            case.quote("watchdog_timeout", sign, "timeout_s", "s"),
            case.quote("collective timeout", sign, "timeout_ms", "ms"),
            case.quote("collective", sign, "op"),
            case.quote("call", sign, "call"),
            Evidence(what="#new-token of the last prefill", value=size, unit="tokens", at=last.at)
            if last is not None and size is not None else None,
            Evidence(what="waits for a worker", value=len(waits), at=waits[0].at) if waits else None,
        ],
        remedies=[
            case.advice("py-spy", "py-spy dump --pid PID of each rank while it hangs shows in which call"),
            without_custom_all_reduce(case, "as a test: if it no longer hangs, that was the collective")
            if several else None,
            variable(case, "NCCL_DEBUG", Move.SET, "shows which transport the ranks use", "INFO") if several else None,
            _longer(case, sign),
            case.advice("dmesg", "a GPU that fell out hangs its peers", "dmesg -T | grep -i xid"),
        ],
        wrong_advice=["the kill behind it is the watchdog's own work, not a lack of memory"]
        if sign.id == "watchdog-timeout" and not soft else [],
        refuted_by="GPU power and clocks showing work all the while: then it is slow and not hung",
        severity=Severity.ERROR if soft else Severity.FATAL,
        ranks=ranks or None,
        phase="warmup" if sign.id == "warmup-failed" else None,
        confidence=Confidence.MEDIUM,
    )  # fmt: skip


def _longer(case: Case, sign: Sign) -> Remedy | None:
    """Propose a longer time limit at the component whose limit ran out; None if this version has no knob for it."""
    why = "only if the pass is slow and not hung (compilation, a very long prefill)"
    if sign.id in ("nccl-watchdog", "gloo-timeout"):
        return case.remedy("dist_timeout", Move.RAISE, why)
    if sign.id == "warmup-failed":
        return engine_variable(case, "warmup_timeout", Move.RAISE, why)
    watchdog = case.remedy("watchdog_timeout", Move.RAISE, why)
    return watchdog or engine_variable(case, "step_timeout", Move.RAISE, why)


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (hardware, illegal_access, hanging_pass)
