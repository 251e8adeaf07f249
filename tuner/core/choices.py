"""The presets in the order in which a host lists them, by which each gets its number key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.core.engine import Engine
from tuner.core.presets import overlay, resolve, unmet
from tuner.domain.presets import Preset
from tuner.domain.state import HostState
from tuner.domain.tuning import PresetChoice
from tuner.errors import TunerError

KEYS = 9
"""Number of the presets that a number key chooses."""


def choices(
    presets: Mapping[str, Preset], order: Sequence[str], state: HostState, engine: Engine | None, version: str | None
) -> tuple[PresetChoice, ...]:
    """Return the presets as they are listed: in the operator's order, then those for this server, then the others."""
    listed = {name: _choice(presets, name, state, engine, version) for name in presets}
    known = [name for name in order if name in listed]
    rest = sorted((name for name in listed if name not in known), key=lambda name: bool(listed[name].unmet))
    return tuple(listed[name] for name in (*known, *rest))


def _choice(
    presets: Mapping[str, Preset], name: str, state: HostState, engine: Engine | None, version: str | None
) -> PresetChoice:
    own = presets[name]
    try:
        whole = resolve(presets, name)
        lacks: Sequence[str] = ()
        if engine is not None:
            lacks = unmet(whole, state, engine.name, version)
            lacks = lacks or overlay(whole, engine.knobs(), engine.name, version).problems
    except TunerError as error:
        return PresetChoice(id=name, title=own.title, why=own.why, unmet=str(error), path=own.path)
    return PresetChoice(
        id=name,
        title=whole.title,
        why=whole.why,
        unmet="; ".join(lacks),
        knobs=(*whole.args, *whole.env, *whole.flags),
        path=own.path,
    )
