"""What one can compare a start with, and what one can turn before the next one."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tuner.domain.findings import Outcome
from tuner.domain.forecast import Forecast
from tuner.domain.knobs import Knob
from tuner.domain.starts import Start


class StartChoice(Struct, frozen=True, kw_only=True):
    """A start that is known, to compare with."""

    id: str
    """`server:KEY` of this host, `past:TIME` of its history, or `file:PATH` of this machine."""
    title: str
    outcome: Outcome = Outcome.UNKNOWN
    same_llm: bool = True


class PlanKnob(Struct, frozen=True, kw_only=True):
    """A knob whose effect on memory can be forecast, as the version at hand has it."""

    knob: Knob
    flag: str | None = None
    env: str | None = None
    value: Any = None
    """What the start that is planned from has; None: left to the engine."""
    assumed: bool = False
    """The log does not tell the value: it is the default."""
    choices: tuple[str, ...] = ()


class Planned(Struct, frozen=True, kw_only=True):
    """A start that has not happened beside the one that it is made from."""

    base: Start
    knobs: tuple[PlanKnob, ...]
    now: Forecast
    """Of the same start once more."""
    then: Forecast
    title: str = ""
    """The engine's name for people."""
    past: int = 0
    """So many earlier starts made it better."""
