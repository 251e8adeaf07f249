"""A change of a server as it is put together and checked before anything is done."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tuner.domain.knobs import KnobKind
from tuner.domain.planning import Planned
from tuner.domain.preflight import Check, PreflightAsk, Verdict
from tuner.domain.presets import Overlay, Preset
from tuner.domain.recipe import Launch, Recipe
from tuner.domain.runs import SwitchOrder
from tuner.errors import sentences


class Change(Struct, frozen=True, kw_only=True):
    """One value that a launch changes, or a value of the running server that is not what it seems."""

    name: str
    """Canonical name of the knob; for what is no knob, the flag or variable itself."""
    kind: KnobKind
    text: str = ""
    """How the version spells it: flag or variable."""
    now: Any = None
    """Value that the running server has; None: not set, and the engine chose none that is known."""
    then: Any = None
    """Value after the change; None: left to the engine."""
    default: Any = None
    """Value that the engine takes where `then` is left to it; None: not known, or nothing is left to it."""
    source: str = ""
    """Where `now` comes from: `argv`, `environment`, `settings` (which the engine resolved), `file` (one that sets it
    behind the scenes), `log` (which says so), or `default`; empty: no server runs."""
    drift: str = ""
    """What of it is not as set, in words: set but ignored, set elsewhere. Empty: nothing."""

    @property
    def changed(self) -> bool:
        """Whether the launch changes it; False: it is listed for its drift only."""
        return bool(self.now != self.then)


class PresetChoice(Struct, frozen=True, kw_only=True):
    """A preset as the Tune screen lists it for one server."""

    id: str
    title: str = ""
    why: str = ""
    unmet: str = ""
    """Why it is not for this engine, version or host, in one line; empty: it is."""
    knobs: tuple[str, ...] = ()
    """Names of the knobs, flags and variables that it sets, for the filter."""
    path: str = ""
    """The file that it comes from."""


class Wish(Struct, frozen=True, kw_only=True):
    """What an operator wants of a host."""

    server: str = ""
    """Key of the server that is to be stopped; empty: none."""
    start: bool = True
    """False: only stop it."""
    recipe: Recipe | None = None
    """How the new server is started; None: as `server` is."""
    preset: str = ""
    """Id of a preset, laid over the recipe; empty: none, and the server starts as it runs, with the preset it has."""
    bare: bool = False
    """True: without a preset, the one that the server was started with is taken away."""
    overrides: dict[str, Any] = {}
    """Canonical knob name to value, over the preset's; None: left to the engine."""
    again: str = ""
    """Id of an earlier run whose server is to be started again, exactly as it was; recipe, preset and overrides then
    do not count. With `back:` before it: what that run would have gone back to. Empty: none."""
    drain_s: float = 0.0
    """Longest wait for the requests in flight, seconds; 0: none."""
    auto_back: bool = False
    """True: go back without being asked when the start fails."""
    ignore_forecast: bool = False
    """True: a memory forecast that does not fit is a warning; the operator wants to see it tried."""


class Tuning(Struct, frozen=True, kw_only=True):
    """A wish put together: what would change, whether it fits, what speaks against it, and the order."""

    wish: Wish
    engine: str = ""
    """Name of the engine; empty: not known."""
    version: str | None = None
    recipe: Recipe | None = None
    preset: Preset | None = None
    """The preset with its bases composed; None: the bare recipe, or there is no such preset."""
    overlay: Overlay | None = None
    launch: Launch | None = None
    """None: nothing is to be started, or it cannot be put together."""
    changes: tuple[Change, ...] = ()
    planned: Planned | None = None
    """The memory of the running server's start and of the new one."""
    planned_error: str = ""
    """Why there is no forecast, in words."""
    ask: PreflightAsk | None = None
    """What the probe is to be asked, so that the checks are complete; None: nothing can be put together."""
    checks: tuple[Check, ...] = ()
    order: SwitchOrder | None = None
    """What the host would be ordered; None while anything refuses it."""

    @property
    def refused(self) -> tuple[str, ...]:
        """Why it must not be done, one line each; empty: nothing speaks against it."""
        return tuple(
            sentences(f"{each.title}: {each.detail}", each.way_out)
            for each in self.checks
            if each.verdict is Verdict.FAIL
        )
