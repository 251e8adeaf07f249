"""What `apply` is asked for: its options, and the preset, recipe, knobs and server that they name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.catalog import load_presets
from tuner.cli.presets import found as preset_named
from tuner.cli.recipe import listed
from tuner.cli.recipe import named as recipe_named
from tuner.cli.tables import plain
from tuner.core import runs
from tuner.core.base_recipe import base_of
from tuner.core.engine import Engine
from tuner.core.knobs import read_value
from tuner.core.remains import remains
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Wish
from tuner.engines import load_engines
from tuner.errors import TunerError, UsageProblem
from tuner.paths import history_file
from tuner.session.session import Session
from tuner.store.history import History
from tuner.store.recipes import load_recipe


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the commands have in common, and what is asked of `apply`."""

    preset: str = ""
    overrides: Sequence[str] = ()
    recipe: str = ""
    pid: int | None = None
    back: bool = False
    bare: bool = False
    start: bool = True
    yes: bool = False
    auto_back: bool = False
    drain_s: float = 0.0
    dry_run: bool = False
    as_json: bool = False
    take_over: bool = False
    ignore_forecast: bool = False


def named(options: Options) -> tuple[Mapping[str, Preset], Recipe | None]:
    """Return the presets and the recipe that the command names.

    Raises:
        UsageProblem: There is no such preset, recipe or engine, or no engine has such a knob.
        CatalogError: Its file is wrong.
    """
    engines = load_engines()
    tables = [engine.knobs() for engine in engines.values()]
    for text in options.overrides:
        name, _ = _taken_apart(text)
        if not any(table.named(name) for table in tables):
            raise _no_knob("No engine has a knob", name, {each for table in tables for each in table})
    presets = load_presets()
    if options.preset:
        preset_named(presets, options.preset)
    if not options.recipe:
        return presets.found, None
    name = options.recipe
    recipe = load_recipe(Path(name)) if name.endswith(".toml") else recipe_named(name)
    _engine_of(recipe, engines)
    return presets.found, recipe


def _engine_of(recipe: Recipe, engines: Mapping[str, Engine]) -> Engine:
    """Return the engine that a recipe names. Raises UsageProblem."""
    if recipe.engine in engines:
        return engines[recipe.engine]
    what = f"There is no engine {plain(recipe.engine, 40)}"
    raise UsageProblem(what, f"recipe {plain(recipe.name, 60)}", f"Engines are {', '.join(engines)}")


def server_meant(state: HostState, options: Options, recipe: Recipe | None) -> ServerState | None:
    """Return the server that is meant: the named one, or the only one that runs; else the newest that ended.

    Raises:
        UsageProblem: No server has that PID, or several run; or there is no server, and no recipe.
    """
    alive = [each for each in state.servers if not each.gone and not each.identity.orphaned]
    if options.pid is not None:
        found = next((each for each in alive if each.identity.pid == options.pid), None)
        if found is None:
            raise UsageProblem(f"No server has the PID {options.pid}", listed(alive), "Name one of those that run")
        return found
    if recipe is not None and recipe.port is not None:
        return next((each for each in alive if each.identity.port == recipe.port), None)
    if options.back and state.runs:
        # Of a server that has nothing to do with what was changed, nothing can be gone back to.
        alive = [each for each in alive if runs.run_of(state, each) or each.identity.port == state.runs[0].port]
        if not alive:
            return None
    if len(alive) > 1:
        raise UsageProblem("Several servers run there", listed(alive), "Name one with --server PID")
    if alive:
        return alive[0]
    if recipe is not None:
        return None
    if not options.start:
        if remains(state) is None:
            raise UsageProblem("No server runs there", state.name)
        return None  # what a dead leader left behind is stopped
    ended = next((each for each in state.servers if each.identity.argv), None)
    if ended is None and not options.back and not state.runs:
        raise UsageProblem("No server runs there", state.name, "Name a recipe with --recipe, or go back with --back")
    return ended


def past_of(session: Session) -> tuple[Start, ...]:
    """Return the starts that were watched on the host, newest first."""
    file = Path(session.target.options.get("history") or history_file())
    return tuple(record.start for record in History(file).memories(session.state.name))


def wish_of(
    state: HostState,
    server: ServerState | None,
    options: Options,
    recipe: Recipe | None,
    engines: Mapping[str, Engine],
) -> Wish:
    """Return what the options ask for.

    Raises:
        UsageProblem: There is no such knob or value.
        TunerError: There is nothing to go back to.
    """
    key = server.identity.key if server is not None else ""
    again = ""
    if options.back:
        before = runs.earlier(state, server)
        if before is None:
            raise TunerError(
                "There is nothing to go back to", state.name, "No earlier start of gputuner there became ready"
            )
        again = before.again
    overrides: dict[str, Any] = {}
    if options.start and not again:
        base = base_of(state, Wish(recipe=recipe, preset=options.preset, bare=options.bare), server, engines).recipe
        engine = _engine_of(base, engines)
        same = server is not None and server.identity.engine == base.engine
        version = (server.version if server is not None and same else None) or base.version
        for text in options.overrides:
            name, value = override(engine, version, text)
            if name in overrides and overrides[name] != value:
                raise UsageProblem(f"{name} is set twice", "", "Give one value of each knob")
            overrides[name] = value
    return Wish(
        server=key,
        start=options.start,
        recipe=recipe,
        preset=options.preset,
        bare=options.bare,
        overrides=overrides,
        again=again,
        drain_s=options.drain_s,
        auto_back=options.auto_back,
        ignore_forecast=options.ignore_forecast,
    )


def _taken_apart(text: str) -> tuple[str, str]:
    """Return name and value of `KNOB=VALUE`. Raises UsageProblem."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageProblem("A change is knob=value", repr(text), "For example --set mem_fraction_static=0.9, or =auto")
    return name, value


def _no_knob(words: str, name: str, known: Iterable[str]) -> UsageProblem:
    close = difflib.get_close_matches(name.strip().lstrip("-").replace("-", "_"), list(known), 3, 0.6)
    hint = f"Did you mean {' or '.join(close)}?" if close else "`gputuner plan --knobs` lists them"
    return UsageProblem(f"{words} {plain(name, 60)}", "", hint)


def override(engine: Engine, version: str | None, text: str) -> tuple[str, Any]:
    """Parse one `--set KNOB=VALUE` into a canonical name and a value; None lets the engine choose.

    Raises:
        UsageProblem: The engine has no such knob in this version, or the knob no such value.
    """
    table = engine.knobs()
    name, value = _taken_apart(text)
    named = table.named(name)
    if named is None:
        raise _no_knob(f"{engine.title} has no knob", name, table)
    knob = named.knob
    if absent := table.absent(knob.name, version):
        raise UsageProblem(f"{engine.title} {version} has no {knob.name}", absent)
    try:
        read = named.turned(read_value(knob, value))
    except ValueError as error:
        raise UsageProblem(f"{knob.name} cannot be {plain(value, 60)}", str(error)) from error
    spelling = table.spelling(knob.name, version)
    if read is not None and spelling is not None and spelling.choices and str(read) not in spelling.choices:
        raise UsageProblem(f"{knob.name} cannot be {plain(value, 60)}", f"it is one of {', '.join(spelling.choices)}")
    return knob.name, read
