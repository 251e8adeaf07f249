"""Judges of settings without the intended effect: ignored, refused, or known to do harm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import first_line, variable
from tuner.core.ignored import Ignored, ignored
from tuner.core.talk import transports
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy, Severity
from tuner.domain.gates import PathState
from tuner.domain.starts import Sign

_MODE = re.compile(r"""cudagraph_mode['"]?\s*[:=]\s*<?['"]?(?:CUDAGraphMode\.)?(?!None)([A-Za-z_]+)""")
_NO_GRAPHS = ("graphs-off", "graphs-off-for", "prefill-graphs-off")
_ASKED_GRAPHS = (
    ("enable_piecewise_cuda_graph", (True,)),
    ("enforce_piecewise_cuda_graph", (True,)),
    ("cuda_graph_backend_prefill", ("breakable", "tc_piecewise", "full")),
)
"""Server args of SGLang that request prefill graphs, with the values that do (from 0.5.4, 0.5.10 and 0.5.14 on)."""


def without_effect(case: Case) -> Finding | None:
    """Diagnose environment variables and server args that this version, or NCCL, ignored."""
    start = case.start
    found = [*ignored(case.held, case.all_reduce), *_refused_graphs(case)]
    if not found:
        return None
    first = next((each.at for each in found if each.at is not None), None)
    patched = case.sign("custom-all-reduce-forced")
    title = None if len(found) == 1 else f"{len(found)} settings did not take effect"
    words = "; ".join(f"{each.name}={each.value}: {each.why}" for each in found) + "."
    if patched is not None and len(found) == 1:
        title = f"{found[0].name} is read by a local patch only"
    if patched is not None:
        words += _of_the_patch(patched)
    return case.finding(
        "setting-ignored",
        words,
        title=title,
        severity=Severity.INFO,
        phase="dist-init" if found[0].name.startswith(("NCCL", *case.engine.behaviour().variables)) else "args",
        ranks=None,
        evidence=[part for each in found for part in _shown(each)],
        remedies=[_instead(case, each, patched) for each in found],
        confidence=Confidence.HIGH if all(each.sure for each in found) else Confidence.MEDIUM,
        refuted_by="a line in which the engine or NCCL repeats the value as its own",
        at=first if first is not None else start.settings_at,
    )


def _of_the_patch(sign: Sign) -> str:
    return (
        f" The line is the patch's: it lets {sign.fields.get('gpus', 'the')} GPUs without NVLink past the check at the"
        " start. A release asks for NVLink, or two GPUs, once more before each tensor, and there NCCL takes it; and"
        " where a patch skips that too, the released kernels launch nothing for more than two GPUs without NVLink, and"
        " what is there is garbage. Compare the answers with those of a server without it."
    )


def _shown(each: Ignored) -> Iterator[Evidence]:
    yield Evidence(what=each.name, value=each.value, at=each.at)
    if each.became:
        yield Evidence(what=f"{each.name} in effect", value=each.became)


def _instead(case: Case, each: Ignored, patched: Sign | None) -> Remedy | None:
    if each.name.islower():
        return None  # an argument of the engine: the engine has said what it takes instead
    if each.remedy:
        return variable(case, each.name, Move.SET, f"it takes {each.remedy}")
    by_patch = patched is not None and patched.fields.get("variable") == each.name
    why = "as a test: the answers must stay the same" if by_patch else "it does nothing here"
    return variable(case, each.name, Move.UNSET, why)


def _refused_graphs(case: Case) -> Iterator[Ignored]:
    """Yield requests for CUDA graphs that the engine refused or downgraded."""
    for name, values in _ASKED_GRAPHS:
        value = case.setting(name)
        sign = next((s for s in case.signs(*_NO_GRAPHS) if _of_prefill(s)), None)
        if value in values and sign is not None:
            yield Ignored(name=name, value=str(value), why=first_line(sign.text).partition(". ")[0], at=sign.at)
            return
    asked = _asked_mode(case.start.given)
    lowered = case.sign("cudagraph-downgraded")
    if asked and lowered is not None and lowered.fields["becomes"] != asked:
        yield Ignored(
            name="cudagraph_mode",
            value=asked,
            why=first_line(lowered.text),
            at=lowered.at,
            became=str(lowered.fields["becomes"]),
        )


def _of_prefill(sign: Sign) -> bool:
    return any(word in sign.text for word in ("piecewise", "Piecewise", "prefill"))


def _asked_mode(given: dict[str, Any]) -> str:
    """Return the CUDA graph mode that the operator of vLLM requested, in capitals; empty if none."""
    found = _MODE.search(str(given.get("compilation_config") or ""))
    return found[1].upper() if found is not None else ""


def known_to_harm(case: Case) -> Finding | None:
    """Diagnose environment variables known to hang, crash or corrupt on some hosts, unless this start rules it out."""
    found = list(_risks(case))
    if not found:
        return None
    return case.finding(
        "risky-setting",
        " ".join(f"{name}={value}: {why}." for name, value, why, _ in found),
        severity=Severity.INFO,
        phase="dist-init",
        ranks=None,
        evidence=[Evidence(what=name, value=value, at=at) for name, value, _, at in found],
        remedies=[variable(case, name, Move.UNSET, "as a test") for name, _, _, _ in found],
        confidence=Confidence.LOW,
        refuted_by="the same failure without it" if case.root is not None else "the same answers without it",
        at=next((at for *_, at in found if at is not None), case.start.settings_at),
    )


def _risks(case: Case) -> Iterator[tuple[str, str, str, int | None]]:
    """Yield each risky variable: name, value, what it does, and the log position that shows it (None: no line)."""
    start, table = case.start, case.engine.knobs()
    if case.all_reduce is None:
        return
    for name, value in case.held.env.items():
        parts = dict.fromkeys((value, *value.split(",")))
        for hazard in (each for part in parts for each in table.hazards(name, part.strip(), start.version)):
            # A server that became ready did not hang or crash from it; corrupt results leave no trace in a log.
            if start.ready_at is not None and hazard.outcome in ("hang", "crash"):
                continue
            if hazard.outcome not in ("hang", "crash", "corrupt") or _ruled_out(case, name):
                continue
            yield name, value, hazard.why, case.held.shown(name)


def _ruled_out(case: Case, name: str) -> bool:
    """Return whether the log shows that what the variable needs to do harm is absent."""
    told = case.all_reduce
    if name.startswith("PYTORCH"):
        ways = [path for path in told.paths if path.id.startswith("custom")] if told is not None else []
        return all(path.state is PathState.CLOSED for path in ways)
    if name == "NCCL_PROTO":
        kinds = transports(case.start)
        return any(sign.fields.get("nvls_channels") for sign in case.signs("nccl-channels")) and "SHM" not in str(kinds)
    return False


def through_the_host(case: Case) -> Finding | None:
    """Diagnose NCCL copying between GPUs of one host through host memory although no variable asks for it."""
    kinds = transports(case.start)
    shared = sum(count for kind, count in kinds.items() if kind.startswith("SHM"))
    env = case.held.env
    if not shared or env.get("NCCL_P2P_DISABLE") == "1" or env.get("NCCL_P2P_LEVEL") in ("LOC", "0"):
        return None
    line = next(sign for sign in case.signs("nccl-transport") if str(sign.fields["transport"]).startswith("SHM"))
    refused = next((sign for sign in case.signs("nccl-p2p") if sign.fields.get("off")), None)
    return case.finding(
        "nccl-through-host",
        f"{shared} of NCCL's {sum(kinds.values())} connections go through the host's memory: between these GPUs there"
        " is no direct way that NCCL trusts, for they hang on different sockets, or IOMMU, ACS or the container keep"
        " them apart. It is slower than a direct copy, and safe.",
        severity=Severity.INFO,
        phase="dist-init",
        ranks=None,
        evidence=[
            Evidence(what="connection", value=first_line(line.text, 160).partition("NCCL INFO ")[2], at=line.at),
            case.derived("connections through the host", shared),
            None if refused is None else Evidence(what="NCCL", value=first_line(refused.text, 160), at=refused.at),
        ],
        remedies=[
            case.advice("topology", "tells which pairs reach each other", "nvidia-smi topo -p2p r"),
            None
            if env.get("NCCL_P2P_LEVEL")
            else variable(
                case,
                "NCCL_P2P_LEVEL",
                Move.SET,
                "direct copies across sockets; only where IOMMU and ACS are off, else they hang or corrupt",
                "SYS",
            ),
        ],
        confidence=Confidence.HIGH,
        refuted_by="connections by P2P between the same two ranks",
        at=line.at,
    )


JUDGES = (without_effect, known_to_harm, through_the_host)
"""Judges of settings; all of them run."""
