"""What Compare and Plan offer: starts to compare with, knobs to change, and the forecast."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tuner.domain.findings import Outcome
from tuner.domain.forecast import Forecast
from tuner.domain.knobs import Knob
from tuner.domain.starts import Start


class StartChoice(Struct, frozen=True, kw_only=True):
    """A known start that another can be compared with."""

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
    """The value in the start that the plan begins with; None: left to the engine."""
    assumed: bool = False
    """True: the log does not tell the value, and this is the default."""
    choices: tuple[str, ...] = ()
    left_out: str = ""
    """What the engine takes where nothing sets it, in words; empty: not known."""


class Planned(Struct, frozen=True, kw_only=True):
    """The forecast of a changed start beside the one of the unchanged start."""

    base: Start
    knobs: tuple[PlanKnob, ...]
    now: Forecast
    """Forecast of the unchanged start."""
    then: Forecast
    """Forecast with the changes."""
    title: str = ""
    """The engine's name for people."""
    past: int = 0
    """Number of earlier starts that made the forecast better."""
