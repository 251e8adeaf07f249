"""Log lines split into prefix and message, for `core.reading` and `core.failures`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from tuner.core.engine import Engine, LinePrefix
from tuner.domain.logs import Level

_TORCH_RANK = re.compile(r"\[rank(\d+)\]:")
"""Prefix of torch's C++ code, which names the global rank and nothing else."""
_ENOUGH = 200
"""Score that settles which engine it is: a recognised line counts 3, the name of its package 1."""
_LONG = 400
"""First characters of a line in which the engine is looked for: arguments run on for thousands."""
_FRAME = re.compile(r'File \\?"[^"]+", line \d')
"""A frame of a traceback; in JSON that nobody unpacked its quotes are escaped."""


class Record(Struct, frozen=True, gc=False):
    """One log line, split into prefix and message."""

    at: int
    """Its place, as `LogLine.offset`."""
    text: str
    message: str
    """The text without prefix; for a line that continues another, all of it."""
    prefix: LinePrefix
    rank: str | None
    level: Level

    @property
    def prefixed(self) -> bool:
        """Whether the line has a prefix: it begins a record or repeats the record's prefix."""
        return self.prefix.prefixed

    @property
    def time(self) -> float | None:
        """Log time in seconds; None if the line has none."""
        return self.prefix.at

    @property
    def actor(self) -> str:
        """The process that printed it, where the engine names it."""
        return self.prefix.actor

    @property
    def source(self) -> str:
        """Source position in the engine's code, if lines repeat it; else empty."""
        return self.prefix.source


def record_of(engine: Engine, at: int, text: str) -> Record:
    """Split a line into prefix and message; one without prefix gets the rank of torch's own prefix, else none.

    Args:
        engine: Engine that printed it.
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
    """Return the engine that printed most of some lines; None where no line is one that an engine prints.

    Old SGLang imports vLLM and prints lines of its too, so no single line decides. A text that only mentions an engine
    is no log of it: a letter, a README.
    """
    scores = dict.fromkeys(engines, 0)
    printed: set[str] = set()
    for _, line in lines:
        text = line[:_LONG]
        for name, engine in engines.items():
            if engine.interesting(text):
                found = engine.facts(text, engine.prefix(text), 0)
                own = sum(not fact.fields.get("general") for fact in found)
                scores[name] += 3 * own
                if own:
                    printed.add(name)
            if engine.plan().package in text:
                scores[name] += 1
            if name not in printed and _printed(text, engine):
                printed.add(name)
        if max((scores[name] for name in printed), default=0) > _ENOUGH:
            break
    best = max((name for name in scores if name in printed), key=lambda name: scores[name], default=None)
    return engines[best] if best is not None and scores[best] > 0 else None


def _printed(text: str, engine: Engine) -> bool:
    """Whether a line is of a kind that an engine prints: a record, a place in its code, a frame of a traceback."""
    if engine.prefix(text).prefixed or _FRAME.search(text) is not None:
        return True
    package = engine.plan().package
    if package not in text.lower():
        return False
    if text.startswith("{") and f'"logger":"{package}.' in text.replace(" ", ""):
        return True
    # Where Python warns, and what torch calls a process in a stack of C++ frames.
    return re.search(rf"[/\\]{package}[/\\]\S*\.py:\d|\b{package}::\w", text, re.IGNORECASE) is not None
