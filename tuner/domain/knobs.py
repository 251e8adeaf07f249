"""What can be turned on an inference server: one name for each knob, and how each version spells it."""

from __future__ import annotations

import enum
from typing import Any

from msgspec import Struct


class KnobKind(enum.StrEnum):
    """How a knob reaches the server."""

    FLAG = "flag"
    """An argument of the command line."""
    ENV = "env"
    """A variable in the environment of the command."""


class KnobType(enum.StrEnum):
    """What a knob's value is."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TEXT = "text"
    INTS = "ints"
    """A list of whole numbers."""


class Part(enum.StrEnum):
    """A number of a start that tells what a knob did."""

    WEIGHTS = "weights"
    """What each GPU loads of the LLM, and of a draft."""
    GRAPHS = "graphs"
    """CUDA graphs: their memory, how many there are, and how long they take."""
    CELL = "cell"
    """Bytes of one token in the KV pool."""
    CAP = "cap"
    """A bound of the pool's tokens, whatever room there is."""


class Effects(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a higher value, or switching it on, does: `up`, `down`, `either`; empty for nothing worth a word."""

    memory: str = ""
    """Of the GPU, outside or inside the static share."""
    throughput: str = ""
    latency: str = ""
    parts: tuple[Part, ...] = ()
    """Where it shows."""


class Hazard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that is known to do harm."""

    value: Any
    outcome: str
    """hang, corrupt, crash, slow or ignored."""
    why: str
    versions: str = ""


class SpelledAs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a range of versions spells a knob."""

    versions: str = ""
    """`0.4.6 - 0.5.13`, `0.5.14 -`; empty: all. For a variable: the versions that read it."""
    text: str
    """`--cuda-graph-max-bs`, `NCCL_BUFFSIZE`."""
    setting: str | None = None
    """Key in the engine's dump of resolved settings, where it is not the flag's own name."""
    default: Any = None
    """Where it is fixed; None: not set, or chosen by the engine."""
    choices: tuple[str, ...] = ()
    note: str = ""


class Turning(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a plan shows a knob and turns it."""

    place: int
    """Its place among the knobs of the plan."""
    first: int = 128
    """Where one begins who leaves what the engine chooses."""
    least: int = 1
    """Numbers below make no sense."""
    powers: bool = False
    """Only powers of two are sensible."""
    negates: str = ""
    """Of a switch that is named for what it takes away: the name of that."""
    unset: str = "auto"
    """What it is where it is not set."""


class Knob(Struct, frozen=True, kw_only=True):
    """One thing that can be turned."""

    name: str
    """Canonical: the same for every engine and version that has it."""
    kind: KnobKind
    type: KnobType
    title: str
    """What it is, in a few words."""
    min: float | None = None
    max: float | None = None
    unit: str = ""
    effects: Effects = Effects()
    also: tuple[str, ...] = ()
    """Other names that people and the other engine use for it."""
    spellings: tuple[SpelledAs, ...] = ()
    """Oldest first. Versions in none of them do not have it."""
    hazards: tuple[Hazard, ...] = ()
    forecast: bool = False
    """The memory forecast knows what it does."""
    turning: Turning | None = None
    """None: the plan does not offer it."""
    smaller: str = ""
    """The value that a diagnosis proposes where less memory is wanted and the size is a matter of choice, not of
    amount; empty: none."""


class Spelling(Struct, frozen=True, kw_only=True):
    """How one version spells a knob."""

    knob: str
    kind: KnobKind
    text: str
    setting: str
    default: Any = None
    choices: tuple[str, ...] = ()
    note: str = ""
    assumed: bool = False
    """The version is not known, or newer than all that are: this is the newest spelling."""

    @property
    def flag(self) -> str | None:
        """The argument, when it is one."""
        return self.text if self.kind is KnobKind.FLAG else None

    @property
    def env(self) -> str | None:
        """The variable, when it is one."""
        return self.text if self.kind is KnobKind.ENV else None
