"""The start that a wish asks for: a recipe with a preset and overrides laid over it, or that of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core import runs
from tuner.core.base_recipe import base_of, engine_of_run, without_run
from tuner.core.engine import Engine
from tuner.core.gates import hardware_of
from tuner.core.helptext import parse_help
from tuner.core.knobs import read_value
from tuner.core.presets import overlay, resolve, unmet
from tuner.core.recipe_faults import value_faults
from tuner.core.recipes import lay_over, without_rest
from tuner.core.switching import log_folder_of, settings_of
from tuner.domain.knobs import KnobKind
from tuner.domain.presets import Overlay, Preset
from tuner.domain.recipe import MASK, Launch, Recipe
from tuner.domain.runs import ProcessId, RunRecord
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Wish
from tuner.errors import CatalogError, TunerError, sentences

BARE = Preset(id="", title="", why="")
"""Stands for no preset: overrides alone are laid over it."""


class Known(Struct, frozen=True, kw_only=True):
    """What is known beside the state; the fields are arguments of `tuner.core.tuning.tune`."""

    engines: Mapping[str, Engine]
    presets: Mapping[str, Preset]
    broken: Sequence[CatalogError]
    facts: Mapping[str, Any] | None
    flags: frozenset[str] | None


class Composed(Struct, frozen=True, kw_only=True):
    """A start as far as it can be put together, and what it was made of."""

    engine: Engine | None = None
    version: str | None = None
    recipe: Recipe | None = None
    """What preset and overrides are laid over; None: it is that of an earlier run."""
    kept: Recipe | None = None
    """The recipe without any preset, over which the next one is laid."""
    preset: Preset | None = None
    """The preset with its bases composed; None: there is none."""
    overlay: Overlay | None = None
    launch: Launch | None = None
    """None: it cannot be put together, or nothing is started."""
    unmet: tuple[str, ...] = ()
    """What the preset needs and the host lacks, each in words."""
    flags: frozenset[str] | None = None
    """Flags that the installed engine knows; None: not known."""


def composed(state: HostState, wish: Wish, server: ServerState | None, known: Known) -> Composed:
    """Return the start that a wish asks for.

    Args:
        state: State of the host.
        wish: The wish; it asks for a start.
        server: The server that it names; None: none is known.
        known: What is known beside the state.

    Raises:
        TunerError: There is no such recipe, engine, preset or run, or the preset cannot be composed.
    """
    return _again(state, wish, server, known) if wish.again else _laid_over(state, wish, server, known)


def _laid_over(state: HostState, wish: Wish, server: ServerState | None, known: Known) -> Composed:
    """Return the start that a recipe, a preset and overrides make.

    Raises:
        TunerError: There is no recipe, engine or preset, or it cannot be composed.
    """
    base = base_of(state, wish, server, known.engines)
    recipe = base.recipe
    engine = _engine(recipe.engine, known)
    preset = resolve(known.presets, wish.preset, known.broken) if wish.preset else None
    version = _installed(known.facts) or _version(recipe, server)
    flags = known.flags or _flags(known.facts, engine)
    hardware = hardware_of(state, server) if server is not None else None
    laid = overlay(
        preset or BARE,
        engine.knobs(),
        engine.name,
        version,
        wish.overrides,
        base=_base_values(recipe, engine, version),
        hardware=hardware,
    )
    launch = lay_over(recipe, laid, preset, engine, known=flags or (), server=server)
    like = _like(state, launch, server)
    launch = without_run(msgspec.structs.replace(launch, like=like, preset=launch.preset or base.preset), base)
    launch = without_rest(launch, server) if server is not None else launch
    if wish.recipe is not None:
        written = msgspec.structs.replace(wish.recipe, command=(), args=launch.argv, env=launch.env)
        faults = (sentences(f"{wish.recipe.name}: {each.what}", each.way_out) for each in value_faults(written, engine))
        launch = msgspec.structs.replace(launch, problems=(*launch.problems, *faults))
    if wish.recipe is not None and _machine(wish.recipe.host) != _machine(state.name):
        note = f"the recipe {wish.recipe.name} is of {wish.recipe.host}, another host"
        launch = msgspec.structs.replace(launch, notes=(*launch.notes, note))
    lacking = unmet(preset, state, engine.name, version) if preset is not None else ()
    return Composed(
        engine=engine,
        version=version,
        recipe=recipe,
        kept=base.kept,
        preset=preset,
        overlay=laid,
        launch=launch,
        unmet=lacking,
        flags=flags,
    )


def _machine(host: str) -> str:
    """Return a host's name without the login."""
    return host.rpartition("@")[2].lower()


def _again(state: HostState, wish: Wish, server: ServerState | None, known: Known) -> Composed:
    """Return the start of what an earlier run started, or would have gone back to, exactly as it was.

    Raises:
        TunerError: No such run is known.
    """
    name = wish.again.removeprefix("back:")
    run = next((each for each in state.runs if each.id == name), None)
    if run is None:
        raise TunerError("There is no such run on the host", name)
    to_back = wish.again.startswith("back:") or run.going_back
    untried = to_back and not run.going_back
    engine = _engine_of_old(state, run, known) if untried else engine_of_run(run, known.engines)
    if engine is None and server is not None:
        engine = known.engines.get(server.identity.engine)
    if untried:
        # Its command line is on the host only.
        recipe = run.back_recipe
        launch = Launch(
            argv=(),
            like=f"back:{run.id}",
            log_dir=log_folder_of(run),
            port=run.port,
            preset=run.back_preset,
            title=run.back,
        )
    else:
        preset, title, recipe = runs.launched(run)
        launch = Launch(
            argv=run.argv,
            env=run.env,
            cwd=run.cwd,
            log_dir=log_folder_of(run),
            like=runs.like(run),
            port=run.port,
            preset=preset,
            title=title,
        )
    return Composed(
        engine=engine,
        version=_installed(known.facts) or (server.version if server is not None else None),
        kept=recipe,
        launch=launch,
        flags=known.flags or (_flags(known.facts, engine) if engine is not None else None),
    )


def _engine_of_old(state: HostState, run: RunRecord, known: Known) -> Engine | None:
    """Return the engine of the server that a run stopped; that of the one it started where nothing tells it."""
    old = next((each for each in state.servers if run.old is not None and _leads(each, run.old)), None)
    if old is not None:
        return known.engines.get(old.identity.engine)
    starter = runs.starter_of(state, run.old)
    return engine_of_run(starter or run, known.engines)


def _leads(server: ServerState, process: ProcessId) -> bool:
    return (server.identity.pid, server.identity.start_ticks) == (process.pid, process.start_ticks)


def _engine(name: str, known: Known) -> Engine:
    engine = known.engines.get(name)
    if engine is None:
        raise TunerError(f"The engine {name} is not known", "", f"There are {', '.join(known.engines)}")
    return engine


def _like(state: HostState, launch: Launch, server: ServerState | None) -> str:
    """Return what a launch shares secrets and environment with, as far as that is still there."""
    kind, _, name = launch.like.partition(":")
    ended = next((each for each in state.servers if each.gone and f"server:{each.identity.key}" == launch.like), None)
    if ended is not None and (run := runs.run_of(state, ended)) is not None:
        return runs.like(run)
    # A probe remembers what it has seen of a server, so that one that ended since can be started again.
    lives = {each.identity.key for each in state.servers if not each.gone or each.identity.key in state.seen}
    if (kind == "server" and name in lives) or (kind in ("run", "back") and any(x.id == name for x in state.runs)):
        return launch.like
    masked = MASK in " ".join((*launch.argv, *launch.env.values()))
    if not masked:
        return ""
    if server is not None and server.identity.key in lives:
        return f"server:{server.identity.key}"
    good = runs.last_good(state, launch.port)
    return "" if good is None else runs.like(good)


def _version(recipe: Recipe, server: ServerState | None) -> str | None:
    running = server.version if server is not None and server.identity.engine == recipe.engine else None
    return running or recipe.version


def _installed(facts: Mapping[str, Any] | None) -> str | None:
    fact = (facts or {}).get("version")
    told = fact.get("version") if isinstance(fact, Mapping) else None
    return told if isinstance(told, str) and told else None


def _flags(facts: Mapping[str, Any] | None, engine: Engine) -> frozenset[str] | None:
    fact = (facts or {}).get("help")
    text = fact.get("text") if isinstance(fact, Mapping) and not fact.get("problem") else None
    return (parse_help(text) or None) if isinstance(text, str) else None


def _base_values(recipe: Recipe, engine: Engine, version: str | None) -> dict[str, Any]:
    """Return what a recipe sets, by canonical name of the knob."""
    table = engine.knobs()
    settings = settings_of((*recipe.command, *recipe.args), engine)
    found: dict[str, Any] = {}
    for name, knob in table.items():
        if knob.kind is KnobKind.FLAG:
            value = table.value(settings, name, version)
        else:
            spelling = table.spelling(name, version)
            text = recipe.env.get(spelling.text) if spelling is not None else None
            try:
                value = read_value(knob, text) if text is not None else None
            except ValueError:
                value = text
        if value is not None:
            found[name] = value
    return found
