"""What an engine has from the data files of its folder; the rest of it is code, one class for each engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.core.engine import LinePrefix
from tuner.core.knobs import KnobTable
from tuner.core.versions import Trait, infer
from tuner.domain.behaviour import Behaviour
from tuner.domain.gates import GateRules
from tuner.domain.knobs import Spelling
from tuner.domain.logs import LogFact
from tuner.domain.starts import Sign, Start
from tuner.engines.behaviour import load_behaviour
from tuner.engines.gates import load_gates
from tuner.engines.knobs import load_knobs
from tuner.engines.reader import LogReader
from tuner.engines.signs import COMMON, SignSet, read_signs


class EngineFolder:
    """An engine as far as data tells it; see `core.engine.Engine`. Files are read when they are first needed."""

    def __init__(
        self,
        folder: Path,
        traits: Sequence[Trait],
        split: Callable[[str], LinePrefix],
        torn: Callable[[str, int], int],
    ) -> None:
        """Keep where things are.

        Args:
            folder: With `logs.toml`, `signs.toml`, `gates.toml`, `knobs.toml` and `behaviour.toml`.
            traits: What tells a version by the wording of its log.
            split: The engine's `prefix`.
            torn: Index at or after a given one where another record begins inside the text, or -1.
        """
        self._folder = folder
        self._traits = traits
        self._reader = LogReader(folder / "logs.toml", split, torn)

    @functools.cached_property
    def _signs(self) -> SignSet:
        return read_signs(COMMON, self._folder / "signs.toml", self._folder / "gates.toml")

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> Sequence[LogFact]:
        """What a line states."""
        return self._reader.facts(text, prefix, offset)

    def signs(self, message: str, *, prefixed: bool) -> Sequence[Sign]:
        """What a message says that a diagnosis needs."""
        return self._signs.match(message, prefixed)

    def knobs(self) -> KnobTable:
        """Everything that can be turned."""
        return load_knobs(self._folder / "knobs.toml")

    def knob(self, name: str, version: str | None) -> Spelling | None:
        """How a version spells a knob."""
        return self.knobs().spelling(name, version)

    def gates(self) -> GateRules:
        """Its ways to add up a tensor, and the gates before each."""
        return load_gates(self._folder / "gates.toml")

    def behaviour(self) -> Behaviour:
        """How it behaves where no line of its log tells."""
        return load_behaviour(self._folder / "behaviour.toml")

    def infer_version(self, start: Start) -> tuple[str | None, bool]:
        """The version as the log states it, else by its wording."""
        if start.version is not None:
            return start.version, False
        return infer(self._traits, [line.text for line in start.lines if not self._signs.of_client(line.text)]), True
