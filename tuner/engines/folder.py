"""The part of an engine that comes from the data files in its folder; the rest is code, one class for each engine."""

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

INHERITED = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_CUMEM_ENABLE",
    "NCCL_DEBUG", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_GRAPH_REGISTER", "NCCL_IB_DISABLE", "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
)  # fmt: skip
"""Variables that an engine, or a file behind the scenes, may set after the process began: its ranks inherit them."""


class EngineFolder:
    """Base class of engines: the methods of `core.engine.Engine` that data files answer, read at first use."""

    def __init__(
        self,
        folder: Path,
        traits: Sequence[Trait],
        split: Callable[[str], LinePrefix],
        torn: Callable[[str, int], int],
    ) -> None:
        """Store where the data is; nothing is read yet.

        Args:
            folder: Folder with `logs.toml`, `signs.toml`, `gates.toml`, `knobs.toml` and `behaviour.toml`.
            traits: Wordings from which the version of a log is inferred.
            split: Function that splits a line into prefix and message; the engine's `prefix`.
            torn: Function of a text and a start index that returns the index at which another record begins inside
                the text, or -1.
        """
        self._folder = folder
        self._traits = traits
        self._reader = LogReader(folder / "logs.toml", split, torn)

    @functools.cached_property
    def _signs(self) -> SignSet:
        return read_signs(COMMON, self._folder / "signs.toml", self._folder / "gates.toml")

    def facts(self, text: str, prefix: LinePrefix, offset: int) -> Sequence[LogFact]:
        """Return the facts that a line states."""
        return self._reader.facts(text, prefix, offset)

    def signs(self, message: str, *, prefixed: bool) -> Sequence[Sign]:
        """Return the signs of a message, for the diagnosis."""
        return self._signs.match(message, prefixed)

    def knobs(self) -> KnobTable:
        """Return all knobs of the engine."""
        return load_knobs(self._folder / "knobs.toml")

    def knob(self, name: str, version: str | None) -> Spelling | None:
        """Return a version's spelling of a knob; None if the version does not have it."""
        return self.knobs().spelling(name, version)

    def gates(self) -> GateRules:
        """Return the engine's all-reduce implementations and the gates of each."""
        return load_gates(self._folder / "gates.toml")

    def behaviour(self) -> Behaviour:
        """Return the properties of the engine that no line of its log states."""
        return load_behaviour(self._folder / "behaviour.toml")

    def infer_version(self, start: Start) -> tuple[str | None, bool]:
        """Return the version, and whether it was inferred from the wording because the log does not state it."""
        if start.version is not None:
            return start.version, False
        return infer(self._traits, [line.text for line in start.lines if not self._signs.of_client(line.text)]), True
