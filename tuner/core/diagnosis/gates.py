"""Judges of closed gates: faster code paths of the engine that this start did not take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median_low

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, lowered
from tuner.core.diagnosis.proposals import engine_variable, quoted
from tuner.core.gates import words
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy, Severity
from tuner.domain.forecast import Fit
from tuner.domain.gates import PathState
from tuner.domain.starts import Sign

_READ_GIB_PER_S = 1e12 / 2**30
"""Typical memory bandwidth of a GPU with PCIe alone, GiB/s: 0.7 to 2 TB/s (A6000, L40S, RTX 4090, RTX PRO 6000)."""
_SLOW = 2.5
"""Decode steps that take this many times longer than reading the weights count as slow. With few requests a step reads
each weight at most once, so the rest of the time is spent waiting."""
_FEW = 4
"""Largest number of running requests for which a decode step counts as bound by reading the weights."""
_MOST_WEIGHTS = 0.9
"""Largest useful share of a GPU's free memory for weights: beyond it too little is left for the KV pool."""


def prefill_graphs(case: Case) -> Finding | None:
    """Diagnose prefill graphs that SGLang switched off because the fraction leaves too little memory."""
    sign = case.sign("prefill-graphs-off")
    free, wanted = (sign.fields.get(n) if sign is not None else None for n in ("free_gib", "required_gib"))
    if sign is None or not isinstance(free, int | float) or not isinstance(wanted, int | float):
        return None
    told = asked_of(case)
    lower = lowered(case, told, wanted - free, 0.0, f"leaves {wanted:g} GiB for them") if case.share else None
    return case.finding(
        "prefill-graphs-off",
        f"The fraction leaves {free:g} GiB, and prefill graphs are only captured with {wanted:g} or more: every"
        " prefill runs without them, and the time to the first token grows (doubled where it was measured).",
        severity=Severity.PERFORMANCE,
        phase="graph-capture",
        ranks=tuple(sorted({case.layout.number(s.rank) for s in case.signs(sign.id)})),
        evidence=[
            Evidence(what="free", value=free, unit="GiB", at=sign.at),
            Evidence(what="required", value=wanted, unit="GiB", at=sign.at),
            case.arg("mem_fraction_static"),
        ],
        remedies=[lower],
        wrong_advice=[
            "an explicit prefill graph backend, as the line advises: it captures into what is left, and the largest"
            " prefill has to fit there too"
        ],
        refuted_by="the same time to the first token with prefill graphs",
        at=sign.at,
    )


def custom_all_reduce(case: Case) -> Finding | None:
    """Diagnose custom all-reduce being off, by a closed gate or by a flag."""
    told = case.all_reduce
    ways = [path for path in told.paths if path.id.startswith("custom")] if told is not None else []
    if told is None or not ways or any(path.state is not PathState.CLOSED for path in ways):
        return None
    sign = case.sign("custom-all-reduce-off", "custom-collectives-off", "custom-all-reduce-fell-back")
    if sign is None:
        return _by_flag(case, told.world)
    if "PCIe" in sign.text:
        return _for_want_of_nvlink(case, told.world, sign)
    return case.finding(
        "custom-ar-disabled",
        f"{words(sign)}. NCCL adds up every tensor instead, also the small ones of decode, and takes longer for them.",
        severity=Severity.INFO,
        phase="dist-init",
        ranks=None,
        evidence=[
            case.derived("GPUs in the TP group", told.world),
            Evidence(what="gate", value=words(sign), at=sign.at),
        ],
        remedies=[_fitting_size(case, told.world, sign)],
        confidence=Confidence.HIGH,
        refuted_by="a later line that says it is set up",
        at=sign.at,
    )


def _for_want_of_nvlink(case: Case, world: int, sign: Sign) -> Finding:
    step = _slow_step(case)
    fewer, checked = _two_gpus(case, world)
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
            quoted("gate", sign.text.partition(". ")[0], sign.at, 160),
        ],
        remedies=[
            fewer if checked else None,
            _for_pcie(case),
            case.remedy(
                "nccl_p2p_level",
                Move.SET,
                "NCCL may copy directly across sockets; not where IOMMU or ACS is on, it hangs there",
                value="SYS",
            ),
            None if checked else fewer,
        ],
        confidence=Confidence.MEDIUM,
        refuted_by="the same decode step with two GPUs",
        at=sign.at,
    )


def _two_gpus(case: Case, world: int) -> tuple[Remedy | None, bool]:
    """Propose two ranks as `_fewer_ranks` does; None if there are two already."""
    if world <= 2:
        return None, False
    remedy = case.remedy("tp_size", Move.LOWER, "two GPUs may use it without NVLink", value=2)
    return _fewer_ranks(case, world, 2, remedy)


def _fewer_ranks(case: Case, world: int, fewer: int, remedy: Remedy | None) -> tuple[Remedy | None, bool]:
    """Return a remedy that lowers the number of ranks if the weights surely fit, and whether the forecast confirms it.

    None if the log does not show weights and free memory of every rank, or if weights or forecast leave no room.
    """
    sizes = [(r.weights_gib, r.before_weights) for r in case.start.ranks]
    known = [(weights.value, free.value) for weights, free in sizes if weights is not None and free is not None]
    if not known or len(known) < len(sizes):
        return None, False
    if any(weights * world / fewer > _MOST_WEIGHTS * free for weights, free in known):
        return None, False
    fit = case.engine.forecast(case.start, {"tp_size": fewer}, case.past).fit
    return (remedy, fit is Fit.FITS) if fit in (Fit.FITS, Fit.UNKNOWN) else (None, False)


def _for_pcie(case: Case) -> Remedy | None:
    """Propose FlashInfer's all-reduce for hosts without NVLink; None if this version does not have it."""
    why = "FlashInfer's all-reduce for hosts without NVLink: decode batches of 2, 4 or 8 ranks"
    return engine_variable(case, "pcie_ipc_all_reduce", Move.SET, why, "1")


def _by_flag(case: Case, world: int) -> Finding | None:
    if not _switched_off(case) or not _would_run(case, world):
        return None
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


def _fitting_size(case: Case, world: int, sign: Sign) -> Remedy | None:
    """Propose a smaller TP size that custom all-reduce supports.

    None if the size is not why it is off, or if the weights may not fit on fewer GPUs.
    """
    if "unsupported world size" not in sign.text:
        return None
    listed = re.search(r"Supported world sizes: \[([\d, ]+)\]", sign.text)
    sizes = [int(size) for size in listed[1].split(",") if size.strip()] if listed is not None else [2, 4, 6, 8]
    smaller = max((size for size in sizes if size < world), default=None)
    if smaller is None:
        return None
    words = ", ".join(map(str, sizes))
    why = f"it is made for {words} ranks" if len(sizes) == 1 else f"{world} ranks are none of {words}"
    remedy = case.remedy("tp_size", Move.SET, why, value=smaller)
    return _fewer_ranks(case, world, smaller, remedy)[0]


def _switched_off(case: Case) -> bool:
    """Return whether the operator switched custom all-reduce off.

    For vLLM only the operator's own args count: its resolved configuration also says so on platforms without it.
    """
    asked = case.start.given if case.engine.behaviour().overwrites_settings else case.start.settings
    return asked.get("disable_custom_all_reduce") is True


def _would_run(case: Case, world: int) -> bool:
    """Return whether custom all-reduce would run without the flag, as far as the log tells; two GPUs need no NVLink."""
    return world == 2 or (world in (4, 6, 8) and _has_switch(case))


def _has_switch(case: Case) -> bool:
    """Return whether NCCL found an NVSwitch: it set up NVLink SHARP channels, or an NVLS algorithm ran."""
    return any(sign.fields.get("nvls_channels") for sign in case.signs("nccl-channels")) or any(
        str(sign.fields.get("algorithm", "")).startswith("NVLS") for sign in case.signs("nccl-algorithm")
    )


def _slow_step(case: Case) -> tuple[float, Sequence[Evidence]] | None:
    """Return the median decode step with few requests in seconds, with evidence; None if it is not slow.

    A step is slow if reading the weights does not account for its duration. None too if the log has too few batch
    lines or no weights.
    """
    weights = [
        r.weights_gib.value + (r.draft_weights_gib.value if r.draft_weights_gib else 0)
        for r in case.start.ranks
        if r.weights_gib
    ]
    few = [
        (b.fields["running"] * (b.fields.get("accept_length") or 1) / b.fields["tok_s"], b)
        for b in case.start.batches
        if b.kind == "decode" and 0 < (b.fields.get("running") or 0) <= _FEW and (b.fields.get("tok_s") or 0) > 0
    ]
    if len(few) < 3 or not weights:
        return None
    usual, read = median_low(seconds for seconds, _ in few), max(weights) / _READ_GIB_PER_S
    if usual < _SLOW * read:
        return None
    shown = next(b for seconds, b in few if abs(seconds - usual) < 0.1 * usual)
    return usual, (
        Evidence(what="gen throughput", value=shown.fields["tok_s"], unit="token/s", at=shown.at),
        Evidence(what="#running-req", value=shown.fields["running"], unit="requests", at=shown.at),
        case.derived("reading the weights once, about", round(read * 1000), "ms"),
    )


JUDGES = (prefill_graphs, custom_all_reduce)
"""Judges of closed gates; all of them run."""
