"""Gates that closed: a faster way that an engine has, and that this start does not take."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.fraction import asked_of, down
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Severity

_SLOW_STEP_S = 0.010
"""A decode step of a few requests that takes longer than this on more than two PCIe GPUs is mostly communication."""
_FEW = 4


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


JUDGES = (prefill_graphs, custom_all_reduce)
"""All are asked."""
