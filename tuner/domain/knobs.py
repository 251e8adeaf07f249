"""The knobs of an inference server: one name for each, and how each version spells it."""

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
    """Effect of a higher value, or of switching it on: `up`, `down`, `either`; empty if it is not worth a word."""

    memory: str = ""
    """Effect on GPU memory, outside or inside the static share."""
    throughput: str = ""
    latency: str = ""
    parts: tuple[Part, ...] = ()
    """The numbers of a start in which it shows."""


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
    """The default value, if it is fixed; None: not set, or chosen by the engine."""
    choices: tuple[str, ...] = ()
    note: str = ""


class Turning(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the Plan screen shows a knob and changes it."""

    place: int
    """Position among the knobs of the plan."""
    first: int = 128
    """First value when it is changed from what the engine chooses."""
    least: int = 1
    """Least value that makes sense."""
    powers: bool = False
    """True: only powers of two make sense."""
    negates: str = ""
    """For a switch that is named for what it takes away: the name of that."""
    unset: str = "auto"
    """Word that is shown while it is not set."""


class Knob(Struct, frozen=True, kw_only=True):
    """One thing that can be changed on a server: a flag or an environment variable."""

    name: str
    """Canonical name: the same for every engine and version that has it."""
    kind: KnobKind
    type: KnobType
    title: str
    """What it is, in a few words."""
    min: float | None = None
    max: float | None = None
    """Least and greatest value that is accepted; None: no bound."""
    unit: str = ""
    effects: Effects = Effects()
    also: tuple[str, ...] = ()
    """Other names that people and the other engine use for it."""
    spellings: tuple[SpelledAs, ...] = ()
    """Its spellings, oldest first; a version in none of them does not have the knob."""
    hazards: tuple[Hazard, ...] = ()
    forecast: bool = False
    """True: the memory forecast knows what it does."""
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
    """True: the version is not known, or newer than all that are, and this is the newest spelling."""

    @property
    def flag(self) -> str | None:
        """The flag; None if the knob is a variable."""
        return self.text if self.kind is KnobKind.FLAG else None

    @property
    def env(self) -> str | None:
        """The environment variable; None if the knob is a flag."""
        return self.text if self.kind is KnobKind.ENV else None
