"""What differed between two starts of a server, and which of it matters.

`core.compare` makes it from two `Start` values. Of the two, `good` is the baseline (the one that worked, or the first
one named) and `bad` the one that is judged. Sizes are GiB and times seconds, as the logs print them.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from tuner.domain.findings import Outcome
from tuner.domain.server import START_PHASES, Phase
from tuner.units import real

Value = int | float | str | bool | tuple[int, ...] | None


_READ = ("NCCL", "SGL", "VLLM", "CUDA", "TORCH", "PYTORCH", "FLASHINFER", "TRITON", "NVSHMEM")
"""First letters of the environment variables that engines and their libraries read."""


class Group(enum.StrEnum):
    """What kind of thing differs."""

    ARGUMENT = "argument"
    """A server arg, by canonical name."""
    ENVIRONMENT = "environment"
    """An environment variable that a log proves or a process showed."""
    VERSION = "version"
    """Version of a part: engine, torch, cuda, nccl, flashinfer, commit, ..."""
    PHASE = "phase"
    """Seconds of a phase of the start."""
    MEMORY = "memory"
    """GiB of a rank for one purpose."""
    POOL = "pool"
    """The KV pool: tokens, GiB, bytes per token."""
    GRAPHS = "graphs"
    """CUDA graphs: sizes, GiB, seconds."""
    LIMIT = "limit"
    """What the capacity line at the end of a start grants, and the channels that NCCL set up."""


class Role(enum.StrEnum):
    """What a difference has to do with the outcome."""

    EXPLAINS = "explains"
    """It turned one outcome into the other, by arithmetic or by a finding's remedy."""
    POSSIBLE = "possible"
    """It may matter, and no number proves or refutes it."""
    FOLLOWS = "follows"
    """A consequence of another difference."""
    ACQUITTED = "acquitted"
    """It changed and does not matter; `note` has the number that shows it."""
    NOISE = "noise"
    """It differs between any two starts: ports, random seeds, log paths."""


class Origin(enum.StrEnum):
    """Where a value of one side comes from."""

    GIVEN = "given"
    """Its operator asked for it."""
    RESOLVED = "resolved"
    """The engine prints it, with its defaults and overrides applied."""
    EFFECTIVE = "effective"
    """It follows from what the start did: the fraction from the size of the KV pool."""
    MEASURED = "measured"
    """A line of the log states it as seen."""
    UNKNOWN = "unknown"
    """This log does not tell; the value is None."""


class RankPair(Struct, frozen=True):
    """One number of one global rank in both starts; None where a log does not tell it."""

    rank: int
    good: float | None
    bad: float | None


class Difference(Struct, frozen=True, kw_only=True):
    """One thing that is not the same in two starts."""

    group: Group
    name: str
    """Canonical name: a server arg, a variable, a part, a phase, or a purpose of memory."""
    good: Value = None
    bad: Value = None
    """None: not told, or not set; `*_origin` says which."""
    good_origin: Origin = Origin.UNKNOWN
    bad_origin: Origin = Origin.UNKNOWN
    unit: str = ""
    good_at: int | None = None
    bad_at: int | None = None
    """Place of the line in either log that tells it, as `Evidence.at` counts in that log."""
    role: Role = Role.POSSIBLE
    weight: float = 0.0
    """How much of the outcome it can explain, 0 to 1; orders the differences of one role."""
    effect_gib: float | None = None
    """What it did to the memory of the weakest rank's KV pool, bad minus good; None: not computable."""
    pairs: tuple[RankPair, ...] = ()
    """The values rank by rank, if ranks have numbers of their own; `good` and `bad` are then the worst rank's."""
    note: str = ""
    """One sentence with the numbers."""

    @property
    def explains(self) -> bool:
        """Whether it turned one outcome into the other."""
        return self.role is Role.EXPLAINS

    @property
    def half_known(self) -> bool:
        """Whether only one log mentions it, so that nobody knows if it changed."""
        sides = ((self.good, self.good_origin), (self.bad, self.bad_origin))
        return any(value is None and origin is Origin.UNKNOWN for value, origin in sides)

    @property
    def untold(self) -> bool:
        """Whether only one log mentions it, and no number or remedy gives it a meaning."""
        if Origin.UNKNOWN not in (self.good_origin, self.bad_origin) or self.role is Role.EXPLAINS:
            return False
        if self.group is not Group.ENVIRONMENT:
            return self.role is Role.NOISE
        weighed = self.role is not Role.NOISE and (self.role is Role.ACQUITTED or bool(self.note))
        return not (weighed and self.name.startswith(_READ))

    @property
    def ratio(self) -> float | None:
        """`bad / good`; None unless both are numbers above zero."""
        return ratio(self.good, self.bad)


class Measure(Struct, frozen=True, kw_only=True):
    """One number of two starts, the same or not: a row of the tables side by side.

    None on a side whose log does not tell it.
    """

    group: Group
    name: str
    unit: str = ""
    good: float | None = None
    bad: float | None = None
    """Values of the rank that is worst off: the slowest phase, the least memory free, the most memory used."""
    pairs: tuple[RankPair, ...] = ()

    @property
    def ratio(self) -> float | None:
        """`bad / good`; None unless both are numbers above zero."""
        return ratio(self.good, self.bad)


class Side(Struct, frozen=True, kw_only=True):
    """One of the two starts, in short."""

    engine: str = ""
    version: str | None = None
    model: str | None = None
    """The LLM as its arguments name it."""
    outcome: Outcome = Outcome.UNKNOWN
    phase: str = "unknown"
    """The furthest phase that was reached."""
    failed_in: str = ""
    """The phase in which its root cause shows; empty: no finding names one."""
    ranks: int = 0
    files: tuple[str, ...] = ()
    shows_arguments: bool = False
    """Whether its log prints its arguments."""
    fraction: float | None = None
    """The memory fraction that was in effect."""
    fraction_origin: Origin = Origin.UNKNOWN
    fraction_note: str = ""
    """How an effective fraction was found: `1 - (21.71 - 10.42) / 94.04`."""
    pool_gib: float | None = None
    """The KV pool of the weakest rank; negative: what the fraction would have left for it."""
    f_min: float | None = None
    """1 - A/T of the weakest rank, to four digits: at or below it there is no pool."""

    @property
    def where(self) -> str:
        """Where it failed, as the end of a sentence: ` in kv-alloc`, ` while serving`; empty if not known."""
        return f" in {self.failed_in}" if self.failed_in else where(self.phase)


def where(phase: str) -> str:
    """Return where a start failed that came as far as a phase, as `Side.where`."""
    if phase == Phase.READY:
        return " while serving"
    return f" in {phase}" if phase in set(START_PHASES) else ""


class Comparison(Struct, frozen=True, kw_only=True):
    """Two starts side by side."""

    good: Side
    bad: Side
    obstacles: tuple[str, ...] = ()
    """Why the two do not compare: other LLM, other engine, other hardware. What can be is compared all the same."""
    summary: str = ""
    """One or two sentences: what made the difference, or that nothing told does."""
    differences: tuple[Difference, ...] = ()
    """Ranked: what explains the outcome first, noise last."""
    measures: tuple[Measure, ...] = ()
    """Phase times, memory, pool, graphs and limits of both, in the order of a start."""

    def of(self, *roles: Role) -> tuple[Difference, ...]:
        """The differences that have one of these roles, in order."""
        return tuple(each for each in self.differences if each.role in roles)

    @property
    def explaining(self) -> tuple[Difference, ...]:
        """The differences that turned one outcome into the other."""
        return self.of(Role.EXPLAINS)

    @property
    def acquitted(self) -> tuple[Difference, ...]:
        """The differences that changed and do not matter."""
        return self.of(Role.ACQUITTED)


def ratio(good: Value, bad: Value) -> float | None:
    """Return `bad / good`; None unless both are numbers above zero."""
    before, after = real(good), real(bad)
    return after / before if before is not None and after is not None and before > 0 and after > 0 else None
