"""What a diagnosis says: causes with their evidence, remedies, and what would refute them.

The ids of causes and phases are those of `core.causes`; `docs/findings.md` lists them. `core.report` turns these
values into the JSON that `gputuner diagnose --json` promises.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct

Number = int | float


class Severity(enum.StrEnum):
    """How bad a finding is. Only the first two make `diagnose` exit with 1."""

    FATAL = "fatal"
    """The start failed or the server died of it."""
    ERROR = "error"
    """Something is broken, and the server lives."""
    PERFORMANCE = "performance"
    """A proven slowdown."""
    INFO = "info"
    """Worth knowing: no failure and no proven slowdown."""


MOST_EVIDENCE = 12
"""Most pieces of evidence that a finding cites; more are left out."""


class Confidence(enum.StrEnum):
    """How sure a finding is."""

    HIGH = "high"
    """The log says so itself, or the arithmetic leaves nothing else."""
    MEDIUM = "medium"
    """The likeliest of few explanations."""
    LOW = "low"
    """A guess that something to collect would settle."""


class Outcome(enum.StrEnum):
    """How a start ended, by its log."""

    READY = "ready"
    """Readiness was seen, and it was alive at the end."""
    RUNNING = "running"
    """The start is unfinished, without an error."""
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended by its operator, cleanly or not."""
    UNKNOWN = "unknown"


class Move(enum.StrEnum):
    """What a remedy does to its knob."""

    RAISE = "raise"
    LOWER = "lower"
    SET = "set"
    UNSET = "unset"
    OTHER = "other"


class Meaning(enum.StrEnum):
    """What the code concludes from a piece of evidence, whatever words name it for the reader."""

    FAILED_ALLOCATION = "failed-allocation"
    """The size of an allocation that failed."""
    MULTIPLIED_FRACTION = "multiplied-fraction"
    """The requested memory fraction of a start whose engine multiplies it."""


class Evidence(Struct, frozen=True, kw_only=True):
    """One number or word that a finding rests on."""

    what: str
    value: Number | str | None
    """As printed, in the log's unit; derived ones in GiB where they are sizes."""
    unit: str = ""
    at: int | None = None
    """Where the log says it, as `LogLine.offset` counts: a line number of a file read whole, a byte of a live log.
    None: derived."""
    file: str | None = None
    line: int | None = None
    """Line number from 1; None if lines are not counted."""
    meaning: Meaning | None = None
    """What the code concludes from it; None for evidence that only the reader weighs."""
    cut: bool = False
    """Whether the value is only the beginning of a longer text: screens add an ellipsis to it."""

    @property
    def derived(self) -> bool:
        """Whether it was computed, so that no line has it."""
        return self.at is None


class Remedy(Struct, frozen=True, kw_only=True):
    """A proposed change, checked against the memory forecast where it moves memory."""

    knob: str
    """Canonical name of `engines/NAME/knobs.toml`, or a word for what is no knob: `gpu-processes`, `version`."""
    flag: str | None = None
    env: str | None = None
    """How the version at hand spells it: a command line flag or an environment variable."""
    move: Move = Move.OTHER
    value: Number | str | bool | None = None
    min: Number | None = None
    max: Number | None = None
    """The safe interval of the value, where one is known."""
    serves: Number | None = None
    """Least value, above `min`, at which a request of full length fits; None if it is unknown or no more than `min`."""
    why: str = ""


class Finding(Struct, frozen=True, kw_only=True):
    """One cause, with everything that is needed to believe it or not."""

    cause: str
    severity: Severity
    phase: str = "none"
    """One of `core.causes.PHASES`."""
    ranks: tuple[int, ...] | None = None
    """Global ranks that show the root failure themselves; None: not rank specific."""
    confidence: Confidence = Confidence.MEDIUM
    title: str = ""
    explanation: str = ""
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    wrong_advice: tuple[str, ...] = ()
    """What the log itself advises, and why it would not help."""
    refuted_by: str = ""
    at: int | None = None
    """The line under which it is shown, as `Evidence.at` counts."""


def failed_phase(findings: Sequence[Finding]) -> str:
    """Return the phase in which a start failed by its root cause; empty where no finding tells.

    Args:
        findings: Those about the start, the root cause first.
    """
    cause = next(iter(findings), None)
    if cause is None or cause.phase == "none" or cause.severity not in (Severity.FATAL, Severity.ERROR):
        return ""
    return cause.phase
