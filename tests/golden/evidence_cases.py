"""Real starts with what was done to each: cases read from their folders, and complaints where a diagnosis differs."""

from __future__ import annotations

import functools
import math
import tomllib
from pathlib import Path
from typing import Any

from tests.golden import diagnoses
from tuner.domain.findings import Finding, Move, Remedy
from tuner.domain.starts import RankStory, Start

EVIDENCE = Path(__file__).parent / "evidence"
_ALIKE = (
    {"foreign process", "gpu-processes"},
    {"ulimit -n", "ulimit", "--ulimit"},
    {"--shm-size", "shm-size"},
    {"cuda_graph_max_bs", "cuda_graph_max_bs_decode"},
    {"fraction", "mem_fraction_static", "gpu_memory_utilization"},
)


def names() -> list[str]:
    """Folders of the cases that are complete, below the folder of all."""
    found = (path for path in EVIDENCE.glob("*/*") if (path / "case.toml").exists() and (path / "server.log").exists())
    return sorted(str(path.relative_to(EVIDENCE)) for path in found)


@functools.cache
def label(name: str) -> dict[str, Any]:
    """What was done, and what a diagnosis owes."""
    return tomllib.loads((EVIDENCE / name / "case.toml").read_text("utf-8"))


@functools.cache
def judged(name: str) -> tuple[Start, tuple[Finding, ...]]:
    """Its last start and what is found in it."""
    return diagnoses.judged(EVIDENCE / name / "server.log")


def lines(name: str) -> list[str]:
    """Its log."""
    return (EVIDENCE / name / "server.log").read_bytes().decode("utf-8", "replace").split("\n")


def causes(name: str) -> set[str]:
    """All that may be named as its root cause; an empty one for silence."""
    told = label(name)
    return {told["cause"], *told.get("also_acceptable", ())}


def complaints(name: str, allowed: dict[str, str]) -> list[str]:
    """What differs from its label.

    Args:
        name: Of the case.
        allowed: Findings beside the label, by cause, and how severe each may be at most.
    """
    told, (start, findings) = label(name), judged(name)
    wrong = []
    outcomes = [told["outcome"], *told.get("outcome_also", ())]
    if start.outcome not in outcomes:
        wrong.append(f"outcome {start.outcome}, not {' or '.join(outcomes)}")
    accepted = causes(name)
    failed = bool(told["cause"]) and (bool(findings) or "" not in accepted)
    if failed:
        wrong += _of_root(told, accepted, start, findings)
    for finding in findings[1:] if failed else findings:
        may = dict.fromkeys(told.get("may", ()), "performance") | allowed
        most = may.get(finding.cause, "" if not failed else "info")
        if _ORDER.index(str(finding.severity)) < _ORDER.index(most):
            wrong.append(f"tells of {finding.cause} ({finding.severity}): {finding.explanation}")
    return wrong


_ORDER = ("fatal", "error", "performance", "info", "")


def _of_root(told: dict[str, Any], accepted: set[str], start: Start, findings: tuple[Finding, ...]) -> list[str]:
    if not findings:
        return ["silent"]
    found, wrong = findings[0], []
    if found.cause not in accepted:
        wrong.append(f"cause {found.cause} ({found.confidence}), not {' or '.join(sorted(accepted))}")
    phases = [told["phase"], *told.get("phase_also", ())]
    if found.phase not in phases:
        wrong.append(f"phase {found.phase}, not {' or '.join(phases)}")
    numbers = sorted({rank.number for rank in start.ranks})
    wanted = {"all": numbers, "none": None}.get(told["ranks"]) if isinstance(told["ranks"], str) else told["ranks"]
    ranks = None if found.ranks is None else list(found.ranks)
    if ranks != wanted:
        wrong.append(f"ranks {ranks}, not {wanted}")
    if str(found.severity) not in ("fatal", "error"):
        wrong.append(f"severity {found.severity}")
    if found.cause == told["cause"]:
        wrong += [f"no remedy {each}" for each in told["right"] if not any(_is(r, each) for r in found.remedies)]
    wrong += [f"no number {each}" for each in told.get("numbers", ()) if not _cited(found, each["value"])]
    return wrong + [f"suggests {text}" for text in told["wrong"] if any(_does(r, text) for r in found.remedies)]


def _named(remedy: Remedy) -> set[str]:
    known = {name for name in (remedy.knob, remedy.flag, remedy.env) if name}
    known |= {(remedy.flag or "").lstrip("-").replace("-", "_")}
    return known.union(*(alike for alike in _ALIKE if alike & known))


_MEANT = {"other": tuple(Move), "set": (Move.SET, Move.RAISE, Move.LOWER), "raise": (Move.RAISE,),
          "lower": (Move.LOWER,), "unset": (Move.UNSET,)}  # fmt: skip
"""Moves that do what a label asks for: to set a knob is to give it another value, be it larger or smaller."""


def _is(remedy: Remedy, wanted: dict[str, str]) -> bool:
    return wanted["knob"] in _named(remedy) and remedy.move in _MEANT[wanted["move"]]


def _does(remedy: Remedy, text: str) -> bool:
    move, _, knob = text.rpartition(" ")
    if move in tuple(Move):
        return knob in _named(remedy) and remedy.move == move
    return text in f"{remedy.knob} {remedy.why}"


def _cited(found: Finding, value: float) -> bool:
    digits = len(str(value).partition(".")[2]) if isinstance(value, float) else 0
    near = 0.51 * 10**-digits if digits < 4 else 1.1e-4
    return any(
        isinstance(each.value, int | float) and math.isclose(each.value, value, rel_tol=0, abs_tol=near)
        for each in found.evidence
    )


_GRAPHS = {"decode": "decode_graphs_gib", "prefill": "prefill_graphs_gib", "verify": "verify_graphs_gib",
           "draft decode": "draft_graphs_gib", "draft extend": "draft_extend_graphs_gib"}  # fmt: skip


def measured(rank: RankStory, start: Start) -> dict[str, float]:
    """Numbers of a rank's story under the names of `[measured]`."""
    figures = {
        "before_weights_gib": rank.before_weights, "after_weights_gib": rank.after_weights,
        "weights_gib": rank.weights_gib, "kv_tokens": rank.kv_tokens, "kv_gib": rank.kv_gib,
        "free_when_ready_gib": rank.available_at_ready,
        "max_total_num_tokens": start.limits.get("max_total_num_tokens"),
    }  # fmt: skip
    told = {name: figure.value for name, figure in figures.items() if figure is not None}
    if rank.after_pool is not None:
        # The label's is behind the draft's pool too.
        draft = rank.draft_kv_gib.value if rank.draft_kv_gib is not None else 0.0
        told["after_pools_gib"] = rank.after_pool.value - draft
    for graph in rank.graphs:
        if graph.used_gib is not None and (name := _GRAPHS.get(graph.what)) is not None:
            told[name] = told.get(name, 0.0) + graph.used_gib
    fraction = start.setting("mem_fraction_static")
    return told if fraction is None else told | {"fraction": fraction}


def printed(value: float, line: str) -> bool:
    """Whether a line shows a number, in whatever digits."""
    shown = {f"{value:.{digits}f}" for digits in range(5)} | {repr(value)}
    return any(f"{text} " in f"{line} " or f"{text}," in line or f"{text}." in line for text in shown)
