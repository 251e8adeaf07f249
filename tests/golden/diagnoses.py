"""What a diagnosis owes a labelled log, as complaints in words; none when it is right."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.core import logtext, wrapping
from tuner.core.diagnosis import diagnose
from tuner.core.reading import starts_of
from tuner.domain.findings import Finding, Move, Remedy
from tuner.domain.starts import Start
from tuner.engines import load_engines
from tuner.store import logfiles

GOLDEN = Path(__file__).parent
CORPUS = GOLDEN / "corpus"
ENGINES = load_engines()
_MOVES = {"increase": Move.RAISE, "decrease": Move.LOWER}
_ACTIONS = {"remove": (Move.UNSET, Move.LOWER), "add": (Move.SET,)}


def corpus() -> list[Path]:
    """Every log of the corpus."""
    return sorted(CORPUS.glob("*.log"))


def expected(path: Path) -> dict[str, Any]:
    """Its label."""
    label: dict[str, Any] = json.loads(path.with_suffix(".expect.json").read_text("utf-8"))
    return label


def judged(path: Path) -> tuple[Start, tuple[Finding, ...]]:
    """The last start of a log, as `gputuner diagnose` reads it, and its findings."""
    routines = [engine.routine() for engine in ENGINES.values()]
    read = logfiles.read([str(path)], routines)
    start = starts_of(read, ENGINES)[-1]
    return start, diagnose(start, ENGINES[start.engine])


def judged_lines(lines: Sequence[str]) -> tuple[Start | None, tuple[Finding, ...]]:
    """As `judged`, of lines that are no file."""
    unwrap = wrapping.find(lines).unwrap
    cleaned = [
        (number, logtext.clean(part))
        for number, line in enumerate(lines, 1)
        for part in logtext.segments(unwrap(line)[0])
    ]
    starts = starts_of(cleaned, ENGINES)
    return (starts[-1], diagnose(starts[-1], ENGINES[starts[-1].engine])) if starts else (None, ())


def complaints(start: Start, findings: tuple[Finding, ...], label: dict[str, Any]) -> list[str]:
    """What differs from a label."""
    if label["root_cause"] is None:
        return [f"not silent: {finding.cause}" for finding in findings]
    if not findings:
        return ["silent"]
    found, wrong = findings[0], []
    causes = [label["root_cause"], *(label.get("also_acceptable") or [])]
    if found.cause not in causes:
        wrong.append(f"cause {found.cause}, not {' or '.join(causes)}")
    if found.phase != label["phase"]:
        wrong.append(f"phase {found.phase}, not {label['phase']}")
    ranks = None if found.ranks is None else list(found.ranks)
    wanted = sorted({rank.number for rank in start.ranks}) if label["ranks"] == "all" else label["ranks"]
    if ranks != wanted:
        wrong.append(f"ranks {ranks}, not {wanted}")
    if found.confidence != label["confidence"]:
        wrong.append(f"confidence {found.confidence}, not {label['confidence']}")
    if str(found.severity) not in (label.get("severity") or "fatal error performance"):
        wrong.append(f"severity {found.severity}")
    wrong += [f"no evidence {each}" for each in label["evidence"] if not _cited(found, each)]
    for each in label["fix"]:
        if ("flag" in each or "env" in each) and not any(_same(remedy, each) for remedy in found.remedies):
            wrong.append(f"no remedy {each}")
    wrong += [f"suggests {text!r}" for text in label.get("must_not_suggest") or () if _suggested(found, text)]
    return wrong


def _cited(found: Finding, wanted: dict[str, Any]) -> bool:
    """Whether a number of a label is among the evidence, under its name."""
    value = wanted["value"]
    for each in found.evidence:
        if each.what != wanted["what"]:
            continue
        if isinstance(value, str):
            if str(each.value) == value:
                return True
        elif isinstance(each.value, int | float):
            # The labels are rounded as a person would; computed ones once more than those that are printed, and a pool
            # that is full is 1.0 whatever the line before said.
            near = max(abs(value) * 0.011, 0.006) if wanted["derived"] or value != int(value) else 0.5
            near = 0.021 if wanted["what"] == "token usage" else near
            if math.isclose(each.value, value, rel_tol=0.011, abs_tol=near):
                return True
    return False


def _same(remedy: Remedy, fix: dict[str, Any]) -> bool:
    name = fix.get("flag") or fix["env"]
    if name not in _names(remedy):
        return False
    if "direction" in fix and remedy.move is not _MOVES[fix["direction"]]:
        return False
    if "min" in fix and isinstance(fix["min"], int | float):
        least = remedy.value if isinstance(remedy.value, int | float) else remedy.min
        return least is not None and least >= fix["min"] - 0.006
    if "max" in fix and isinstance(fix["max"], int | float):
        most = remedy.value if isinstance(remedy.value, int | float) else remedy.max
        return most is not None and most <= fix["max"] + 0.006
    return True


_ALIKE = (
    {"--tp", "--tp-size", "--tensor-parallel-size"},
    {"--mem-fraction-static", "--gpu-memory-utilization"},
    {"--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"},
    {"SGLANG_FLASHINFER_WORKSPACE_SIZE", "FLASHINFER_WORKSPACE_SIZE"},
    {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"},
)


def _names(remedy: Remedy) -> set[str]:
    names = {name for name in (remedy.flag, remedy.env) if name}
    return names.union(*(alike for alike in _ALIKE if alike & names))


def _suggested(found: Finding, text: str) -> bool:
    """Whether a remedy does what the label forbids; a bare name forbids to touch it at all."""
    move = next((move for word, move in _MOVES.items() if word in text), None)
    names = re.findall(r"--[\w-]+|[A-Z][A-Z_]{5,}|gpu_memory_utilization", text)
    limit = re.search(r"below ([\d.]+)", text)
    for remedy in found.remedies:
        touched = {remedy.knob, *_names(remedy)}
        if not names and any(word in f"{remedy.knob} {remedy.why}" for word in (text,)):
            return True
        if not touched & set(names) or (move is not None and remedy.move is not move):
            continue
        if limit is not None:
            value = remedy.value if isinstance(remedy.value, int | float) else remedy.max
            if value is not None and value >= float(limit[1]):
                continue
        if "only" in text and len(found.remedies) > 1:
            continue
        return True
    return False
