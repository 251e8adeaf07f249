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
    WORDS = "words"
    """A list of words."""


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


class Harm(enum.StrEnum):
    """What a hazardous value does."""

    HANG = "hang"
    CORRUPT = "corrupt"
    """Wrong results without an error."""
    CRASH = "crash"
    """The start ends with an error."""
    SLOW = "slow"
    IGNORED = "ignored"
    """The value has no effect."""
    SILENT = "silent"
    """The log no longer says what gputuner reads."""
    CONFLICT = "conflict"
    """Two knobs of one change contradict each other."""

    @property
    def words(self) -> str:
        """What the value does, to follow it in a sentence."""
        return _HARM_WORDS[self]


_HARM_WORDS = {
    Harm.HANG: "can hang",
    Harm.CORRUPT: "can corrupt",
    Harm.CRASH: "can crash",
    Harm.SLOW: "can be slow",
    Harm.IGNORED: "has no effect",
    Harm.SILENT: "hides the start",
    Harm.CONFLICT: "contradicts another value",
}


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hosts on which a value does harm; what is left out does not matter."""

    iommu: bool | None = None
    """True: only where IOMMU or ACS redirects traffic between GPUs."""
    nvlink: bool | None = None
    """True: only where every pair of GPUs has NVLink; False: only where a pair has none."""
    compute: tuple[str, ...] = ()
    """Compute capabilities on which it does harm: `12.0`, or `12` for all of that major version."""
    compute_not: tuple[str, ...] = ()
    """Compute capabilities on which it does no harm; it does on all others."""


class Hazard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values of a knob that are known to do harm: those that one of `value` to `below` describes."""

    outcome: Harm
    why: str
    """The reason, one sentence without full stop."""
    way_out: str = ""
    """What to do instead, one sentence without full stop; empty: leave it out."""
    value: Any = None
    """This value."""
    pattern: str = ""
    """Every value whose text this regular expression matches as a whole, in any case; one word of a list is enough."""
    no_power_of_two: bool = False
    """Every number that is not a power of two."""
    above: str = ""
    """Every number above the value of the knob with this name."""
    below: str = ""
    """Every number below the value of the knob with this name."""
    given: dict[str, Any] = {}
    """Values that other knobs must have for it to do harm, by name; `*`: any value that is set."""
    where: Where = Where()
    versions: str = ""


class SpelledAs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a range of versions spells a knob."""

    versions: str = ""
    """`0.4.6 - 0.5.13`, `0.5.14 -`; empty: all. For a variable: the versions that read it."""
    text: str
    """`--cuda-graph-max-bs`, `NCCL_BUFFSIZE`."""
    off: str = ""
    """Flag that switches it off, `--no-enable-prefix-caching`; empty: there is none."""
    inverted: bool = False
    """True: what these versions read means the contrary, so that on is written as 0."""
    setting: str | None = None
    """Key in the engine's dump of resolved settings, where it is not the flag's own name."""
    default: Any = None
    """The default value, if it is fixed; None: not set, or chosen by the engine."""
    by_memory: tuple[tuple[int, int], ...] = ()
    """The default where it goes by the memory of the smallest GPU of the host: pairs of MiB (`memory.total`) and the
    value from there on, beginning with 0 MiB."""
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
    aliases: tuple[str, ...] = ()
    """Other flags or variables that set the same in some version: `--tp`, `-tp`, `NCCL_MAX_CTAS`."""
    unlike: tuple[str, ...] = ()
    """Names among `also` of something near that is not the same: a preset that uses one is refused."""
    opposite: str = ""
    """For a switch that is named for what it takes away: the name of that, by which it can be set as well.
    `disable_custom_all_reduce` has `custom_all_reduce`."""
    reader: str = ""
    """For a variable that a library reads: its name and versions, `NCCL 2.22 -`; empty: all, or the engine reads it."""
    spellings: tuple[SpelledAs, ...] = ()
    """Its spellings, oldest first; a version in none of them does not have the knob."""
    hazards: tuple[Hazard, ...] = ()
    forecast: bool = False
    """True: the memory forecast knows what it does."""
    turning: Turning | None = None
    """None: the plan does not offer it."""
    left_out: str = ""
    """What the engine does where nothing sets it and no default is fixed, in words; empty: not worth a word."""
    smaller: str = ""
    """The value that a diagnosis proposes where less memory is wanted and the size is a matter of choice, not of
    amount; empty: none."""


class Spelling(Struct, frozen=True, kw_only=True):
    """How one version spells a knob."""

    knob: str
    kind: KnobKind
    text: str
    setting: str
    off: str = ""
    inverted: bool = False
    default: Any = None
    by_memory: tuple[tuple[int, int], ...] = ()
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
