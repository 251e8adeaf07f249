"""Lines of a log with their prefix taken apart: what `core.failures` and `core.story` read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from tuner.core.engine import Engine, LinePrefix
from tuner.domain.logs import Level

_TORCH_RANK = re.compile(r"\[rank(\d+)\]:")
"""torch's C++ code names the global rank and nothing else."""
_ENOUGH = 200
"""So many lines of an engine's own settle which engine it is."""
_LONG = 400
"""Characters of a line that are looked at for it: arguments run on for thousands."""


class Record(Struct, frozen=True, gc=False):
    """One line."""

    at: int
    """Its place, as `LogLine.offset`."""
    text: str
    message: str
    """Without prefix; for a line that continues another, all of it."""
    prefix: LinePrefix
    rank: str | None
    level: Level

    @property
    def prefixed(self) -> bool:
        """It begins a record, or repeats the record's prefix."""
        return self.prefix.prefixed

    @property
    def time(self) -> float | None:
        """Log time, seconds."""
        return self.prefix.at

    @property
    def actor(self) -> str:
        """The process that printed it, where the engine names it."""
        return self.prefix.actor

    @property
    def source(self) -> str:
        """Where in the engine's code it was written, where lines repeat that."""
        return self.prefix.source


def record_of(engine: Engine, at: int, text: str) -> Record:
    """Take a line apart; one without prefix gets the rank of torch's own prefix, else none.

    Args:
        engine: Whose log it is.
        at: Its place.
        text: The line, cleaned.
    """
    prefix = engine.prefix(text)
    message = engine.message(text, prefix)
    rank = prefix.rank
    if rank is None and text.startswith("[rank") and (found := _TORCH_RANK.match(text)) is not None:
        rank = f"TP{found[1]}"
        if text.startswith(" ", found.end()):
            message = text[found.end() + 1 :]  # a traceback's line: torch puts the rank before each of them
    return Record(at, text, message, prefix, rank, prefix.level or engine.level(message))


def engine_of(lines: Iterable[tuple[int, str]], engines: Mapping[str, Engine]) -> Engine | None:
    """The engine that printed most of some lines; None when nothing tells.

    Old SGLang imports vLLM, and prints lines of its too, so that no single line decides.
    """
    scores = dict.fromkeys(engines, 0)
    for _, line in lines:
        text = line[:_LONG]
        for name, engine in engines.items():
            if engine.interesting(text):
                found = engine.facts(text, engine.prefix(text), 0)
                scores[name] += 3 * sum(not fact.fields.get("general") for fact in found)
            if engine.plan().package in text:
                scores[name] += 1
        if max(scores.values(), default=0) > _ENOUGH:
            break
    best = max(scores, key=lambda name: scores[name], default=None)
    return engines[best] if best is not None and scores[best] > 0 else None
