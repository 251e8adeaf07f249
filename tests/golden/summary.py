"""What an engine reads out of a whole log, in a few numbers that a person can check against the log.

Run as a script, it rewrites the expectations: `python tests/golden/summary.py`. Look at the difference before you
commit it; a number that changed without a reason is a fault.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.core import facts as f
from tuner.core.engine import Engine
from tuner.core.logtext import clean, segments
from tuner.domain.logs import LogFact

LOGS = Path(__file__).parent / "logs"


def cases() -> list[Path]:
    """Every golden log: `logs/ENGINE/VERSION/CASE.log`."""
    return sorted(LOGS.glob("*/*/*.log"))


def lines(path: Path) -> Iterator[str]:
    """A log's lines as the product splits and cleans them."""
    for line in path.read_text("utf-8", "replace").split("\n"):
        for part in segments(line):
            yield clean(part)


def summarise(engine: Engine, path: Path) -> dict[str, Any]:
    """Counts of facts and of lines, and the numbers that matter."""
    facts: list[LogFact] = []
    prefixed = unknown = 0
    for line in lines(path):
        prefix = engine.prefix(line)
        found = engine.facts(line, prefix, 0)
        facts.extend(found)
        # Uvicorn's lines carry a level of their own; an access line is nobody's format.
        if prefix.prefixed and " HTTP/1." not in line:
            prefixed += 1
            unknown += not found
    return {
        "facts": dict(sorted(collections.Counter(fact.kind for fact in facts).items())),
        "prefixed_lines": prefixed,
        "unknown_lines": unknown,
        "ranks": sorted({fact.rank for fact in facts if fact.rank is not None}),
        "settings": next((len(fact.fields["settings"]) for fact in facts if fact.kind == f.ARGS), 0),
        "phases": _in_order(fact.fields["phase"] for fact in facts if "phase" in fact.fields),
        "weights_gib": _by_rank(facts, f.WEIGHTS, "used_gib"),
        "kv_gib": _by_rank(facts, f.KV_POOL, "kv_gib") or _by_rank(facts, f.MEMORY, "kv_gib"),
        "kv_tokens": _by_rank(facts, f.KV_POOL, "tokens"),
        "limits": next((fact.fields for fact in facts if fact.kind == f.LIMITS), {}),
        "graphs": [
            [fact.rank or "", fact.fields.get("what", ""), fact.fields.get("used_gib"), fact.fields.get("elapsed_s")]
            for fact in facts
            if fact.kind == f.GRAPHS
        ],
        "ready": sum(fact.kind == f.READY for fact in facts),
        "best_tok_s": max((fact.fields.get("tok_s", 0.0) for fact in facts), default=0.0),
        "retracted": sum(fact.fields.get("retracted", 0) for fact in facts),
        "errors": _in_order(
            fact.fields["summary"] for fact in facts if fact.kind == f.ERROR and not fact.fields.get("secondary")
        ),
        "consequences": _in_order(
            fact.fields["summary"] for fact in facts if fact.kind == f.ERROR and fact.fields.get("secondary")
        ),
        "died": [[fact.fields["what"], fact.fields.get("exit_code")] for fact in facts if fact.kind == f.DIED],
        "stop_asked": sum(fact.kind == f.STOP_ASKED for fact in facts),
        "stopped": sum(fact.kind == f.STOPPED for fact in facts),
    }


def _by_rank(facts: list[LogFact], kind: str, field: str) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for fact in facts:
        if fact.kind == kind and fact.fields.get(field) is not None:
            values.setdefault(fact.rank or "", []).append(fact.fields[field])
    return dict(sorted(values.items()))


def _in_order(values: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _rewrite() -> None:
    from tuner.engines import load_engines

    engines = load_engines()
    for path in cases():
        summary = summarise(engines[path.parts[-3]], path)
        text = json.dumps(summary, indent=1, ensure_ascii=False, sort_keys=True)
        path.with_suffix(".expected.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    _rewrite()
