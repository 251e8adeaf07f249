"""Which recipe a preset is laid over: presets replace each other, and do not add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core import runs
from tuner.core.engine import Engine, engine_by_program
from tuner.core.recipes import of_session, read_recipe
from tuner.core.switching import log_folder_of, settings_of
from tuner.domain.recipe import Launch, Recipe
from tuner.domain.runs import RunRecord
from tuner.domain.starts import named_model
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Wish
from tuner.errors import TunerError


class Base(Struct, frozen=True, kw_only=True):
    """What a change begins with."""

    recipe: Recipe
    """What preset and overrides are laid over."""
    kept: Recipe
    """The recipe without any preset, over which the next one is laid as well."""
    preset: str = ""
    """Id of the preset that is in `recipe` already; empty: none."""
    run: RunRecord | None = None
    """The run that `recipe` is like; None: it is like a server, or nothing."""


def base_of(state: HostState, wish: Wish, server: ServerState | None, engines: Mapping[str, Engine]) -> Base:
    """Return what a wish begins with.

    A named recipe counts. Else a preset is laid over the recipe of the run that started the server; without a preset,
    overrides are laid over the server as it runs, or over that recipe where its preset is to go. Where no server is
    known, the newest run takes its place.

    Raises:
        TunerError: Nothing tells how a server is started there.
    """
    if wish.recipe is not None:
        return Base(recipe=wish.recipe, kept=wish.recipe)
    if server is None:
        return _of_runs(state, wish, engines)
    run, kept = runs.run_of(state, server), runs.recipe_of(state, server)
    if (wish.preset or wish.bare) and kept is not None:
        like = f"server:{server.identity.key}" if not server.gone or run is None else runs.like(run)
        recipe = msgspec.structs.replace(kept, like=like)
        return Base(recipe=recipe, kept=kept, run=run if server.gone else None)
    engine = engines.get(server.identity.engine)
    if engine is None:
        raise TunerError(f"The engine {server.identity.engine} is not known", "", f"There are {', '.join(engines)}")
    recipe = read_recipe(state, server, engine)
    preset, title = runs.preset_of(state, server)
    if server.gone and run is not None:
        recipe = msgspec.structs.replace(recipe, like=runs.like(run))
    named = msgspec.structs.replace(recipe, name=title) if preset else recipe
    return Base(recipe=named, kept=kept or recipe, preset=preset, run=run if server.gone else None)


def _of_runs(state: HostState, wish: Wish, engines: Mapping[str, Engine]) -> Base:
    for run in state.runs:
        engine = engine_of_run(run, engines)
        if engine is None:
            continue
        ran = _as_it_ran(state, run, engine)
        preset, title, laid_over = runs.launched(run)
        kept = laid_over or ran
        if (wish.preset or wish.bare) and kept is not ran:
            return Base(recipe=msgspec.structs.replace(kept, like=runs.like(run)), kept=kept, run=run)
        named = msgspec.structs.replace(ran, name=title) if preset else ran
        return Base(recipe=named, kept=kept, preset=preset, run=run)
    raise TunerError("It is not known how to start a server here", "", "Name a recipe, or go back to an earlier run")


def engine_of_run(run: RunRecord, engines: Mapping[str, Engine]) -> Engine | None:
    """Return the engine of what a run started last; None if neither its program nor its recipe tells it."""
    if found := engine_by_program(run.argv, engines):
        return found
    _, _, recipe = runs.launched(run)
    return engines.get(recipe.engine) if recipe is not None else None


def _as_it_ran(state: HostState, run: RunRecord, engine: Engine) -> Recipe:
    """Return how a run started its server."""
    line = engine.command_line(run.argv)
    settings: Mapping[str, Any] = settings_of(run.argv, engine)
    return Recipe(
        name=run.recipe.name if run.recipe is not None else run.title or run.id,
        host=state.name,
        engine=engine.name,
        version=run.recipe.version if run.recipe is not None else None,
        command=line.command,
        args=tuple(word for each in line.arguments for word in each.words),
        env={name: value for name, value in run.env.items() if not of_session(name)},
        cwd=run.cwd,
        log_dir=log_folder_of(run),
        model=named_model(settings),
        port=run.port,
        ready_s=run.recipe.ready_s if run.recipe is not None else None,
        origin=f"run {run.id}",
        like=runs.like(run),
    )


def without_run(launch: Launch, base: Base) -> Launch:
    """Return a launch that is like a run without the variables that the run had set and the launch does not."""
    if base.run is None or not launch.like.endswith(base.run.id):
        return launch
    rest = [name for name in base.run.env if name not in launch.env and not of_session(name)]
    return msgspec.structs.replace(launch, unset=tuple(dict.fromkeys((*launch.unset, *rest))))
