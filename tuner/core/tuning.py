"""The one place where a change of a server is put together: for `gputuner apply`, the Tune screen and remedies alike.

From a wish follow the recipe, the preset spelled for the installed version, the complete start, what it changes, the
memory it would take, the checks, and the order for the host. Nothing here asks or changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core import planned as plans
from tuner.core import runs
from tuner.core.base_recipe import base_of, without_run
from tuner.core.differences import llm
from tuner.core.drift import changes as changes_of
from tuner.core.engine import Engine
from tuner.core.gates import hardware_of
from tuner.core.helptext import flag_problems, parse_help
from tuner.core.knobs import read_value
from tuner.core.planned import forecast_changes, planned
from tuner.core.preflight import ask as asked_of
from tuner.core.preflight import judge
from tuner.core.presets import overlay, resolve, unmet
from tuner.core.recipes import lay_over, without_rest
from tuner.core.respawn import keeper
from tuner.core.run_words import aim, way_on
from tuner.core.switching import settings_of, switch_order
from tuner.domain.gates import Hardware
from tuner.domain.knobs import KnobKind
from tuner.domain.planning import Planned
from tuner.domain.preflight import Check, Verdict
from tuner.domain.presets import Preset
from tuner.domain.recipe import MASK, Launch, Recipe
from tuner.domain.runs import Operator, RunRecord
from tuner.domain.starts import Start, named_model
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Change, Tuning, Wish
from tuner.errors import TunerError

BARE = Preset(id="", title="", why="")
"""Stands for no preset: overrides alone are laid over it."""
UNSEEN = "the command line is kept on the host"
"""Why there is no forecast of what a run would have gone back to."""


class _Known(Struct, frozen=True, kw_only=True):
    """What is known beside the state: the arguments of `tune`."""

    engines: Mapping[str, Engine]
    presets: Mapping[str, Preset]
    facts: Mapping[str, Any] | None
    flags: frozenset[str] | None
    past: Sequence[Start]


class _Start(Struct, frozen=True, kw_only=True):
    """A start as far as it can be put together."""

    engine: Engine | None = None
    version: str | None = None
    recipe: Recipe | None = None
    kept: Recipe | None = None
    preset: Preset | None = None
    overlay: Any = None
    launch: Launch | None = None
    unmet: tuple[str, ...] = ()
    flags: frozenset[str] | None = None


def tune(
    state: HostState,
    wish: Wish,
    engines: Mapping[str, Engine],
    presets: Mapping[str, Preset],
    *,
    run: str,
    operator: Operator,
    flags: frozenset[str] | None = None,
    facts: Mapping[str, Any] | None = None,
    past: Sequence[Start] = (),
) -> Tuning:
    """Put a wish together. Nothing is raised: what cannot be is a check that refuses.

    Takes 10 to 50 ms, most of it the forecast.

    Args:
        state: State of the host.
        wish: What the operator wants. A server that has ended is started as it was, and nothing is stopped.
        engines: Engines by name.
        presets: Presets by id, not yet composed.
        run: Id for the run.
        operator: Who wants it.
        flags: Flags that the installed engine knows; None: those of the help text in `facts`, if there is one.
        facts: What the probe answered to `Tuning.ask`; None: it was not asked, and most checks are unknown.
        past: Earlier starts on this host, newest first, for a start without a server to be stopped.
    """
    known = _Known(engines=engines, presets=presets, facts=facts, flags=flags, past=past)
    server = next((each for each in state.servers if each.identity.key == wish.server), None)
    alive = server if server is not None and not server.gone else None
    troubles = [*_server_troubles(wish, server), *_run_troubles(state)]
    start = _Start(engine=engines.get(server.identity.engine) if server is not None else None)
    changes: tuple[Change, ...] = ()
    plan: Planned | str = ""
    if wish.start:
        try:
            start = _again(state, wish, server, known) if wish.again else _composed(state, wish, server, known)
        except TunerError as error:
            troubles.append(_refusal("preset", "Start", f"{error.title}: {error.detail}".rstrip(": "), error.hint))
        else:
            troubles += _secret_troubles(start.launch)
            changes = _changes(state, server, start, facts)
            plan = UNSEEN
            if start.launch is not None and start.launch.argv:
                past = _of_the_llm(past, start)
                base = plans.base_of(state, server, past)
                plan = planned(
                    state, server, forecast_changes(start.launch, changes, start.engine, base), engines, past
                )
    made = plan if isinstance(plan, Planned) else None
    checks = (*troubles, *_judged(state, alive, start, made, facts))
    if wish.ignore_forecast:
        checks = tuple(_softened(each) for each in checks)
    tuning = Tuning(
        wish=wish,
        engine=start.engine.name if start.engine is not None else "",
        version=start.version,
        recipe=start.recipe,
        preset=start.preset,
        overlay=start.overlay,
        launch=start.launch,
        changes=changes,
        planned=made,
        planned_error=plan if isinstance(plan, str) else "",
        ask=_ask(alive, start),
        checks=checks,
    )
    if tuning.refused:
        return tuning
    order = switch_order(
        state,
        alive,
        start.launch,
        engines,
        run=run,
        operator=operator,
        engine=tuning.engine,
        drain_s=wish.drain_s,
        auto_back=wish.auto_back,
        keeper=keeper(facts or {}, alive.identity.manager) if alive is not None else None,
        usual_s=start.recipe.ready_s if start.recipe is not None else None,
        recipe=start.kept,
    )
    return msgspec.structs.replace(tuning, order=order)


# The start.


def _composed(state: HostState, wish: Wish, server: ServerState | None, known: _Known) -> _Start:
    """Return the start that a recipe, a preset and overrides make.

    Raises:
        TunerError: There is no recipe, engine or preset, or it cannot be composed.
    """
    base = base_of(state, wish, server, known.engines)
    recipe = base.recipe
    engine = _engine(recipe.engine, known)
    preset = resolve(known.presets, wish.preset) if wish.preset else None
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
    lacking = unmet(preset, state, engine.name, version) if preset is not None else ()
    return _Start(
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


def _again(state: HostState, wish: Wish, server: ServerState | None, known: _Known) -> _Start:
    """Return the start of what an earlier run started, or would have gone back to, exactly as it was.

    Raises:
        TunerError: No such run is known.
    """
    name = wish.again.removeprefix("back:")
    run = next((each for each in state.runs if each.id == name), None)
    if run is None:
        raise TunerError("There is no such run on the host", name)
    to_back = wish.again.startswith("back:") or run.going_back
    started = run if run.argv else runs.starter_of(state, run.old)
    engine = next((each for each in known.engines.values() if started and _runs_with(started, each)), None)
    if engine is None and server is not None:
        engine = known.engines.get(server.identity.engine)
    if to_back and not run.going_back:
        # Its command line is on the host only.
        launch = Launch(argv=(), like=f"back:{run.id}", port=run.port, title=run.back)
    else:
        preset, title = ("", run.back) if run.going_back else (run.preset, run.title)
        launch = Launch(
            argv=run.argv, env=run.env, cwd=run.cwd, like=runs.like(run), port=run.port, preset=preset, title=title
        )
    return _Start(
        engine=engine,
        version=_installed(known.facts) or (server.version if server is not None else None),
        kept=None if to_back else run.recipe,
        launch=launch,
        flags=known.flags or (_flags(known.facts, engine) if engine is not None else None),
    )


def _runs_with(run: RunRecord, engine: Engine) -> bool:
    """Return whether a run's command line is one of an engine: it takes settings from it."""
    return bool(settings_of(run.argv, engine))


def _engine(name: str, known: _Known) -> Engine:
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


def _of_the_llm(past: Sequence[Start], start: _Start) -> tuple[Start, ...]:
    """Return the earlier starts of the LLM that a launch serves."""
    if start.launch is None or start.engine is None:
        return ()
    named = named_model(settings_of(start.launch.argv, start.engine))
    return tuple(
        each
        for each in past
        if each.engine == start.engine.name and named and each.model and llm(each.model) == llm(named)
    )


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


# What it changes, and what speaks against it.


def _changes(
    state: HostState, server: ServerState | None, start: _Start, facts: Mapping[str, Any] | None
) -> tuple[Change, ...]:
    if start.launch is None or start.engine is None or not start.launch.argv:
        return ()
    files = (facts or {}).get("env_files")
    settings = files.get("settings") if isinstance(files, Mapping) else None
    known = [each for each in settings if isinstance(each, Mapping)] if isinstance(settings, Sequence) else []
    same = server if server is not None and server.identity.engine == start.engine.name else None
    hardware = hardware_of(state, server) if server is not None else Hardware()
    return changes_of(start.launch, same, start.engine, known, hardware)


def _judged(
    state: HostState,
    server: ServerState | None,
    start: _Start,
    plan: Planned | None,
    facts: Mapping[str, Any] | None,
) -> tuple[Check, ...]:
    problems = None
    if start.launch is not None and start.engine is not None and start.flags and start.launch.argv:
        arguments = start.launch.argv[len(start.engine.command_line(start.launch.argv).command) :]
        problems = flag_problems(arguments, start.flags | _taken(server, start), start.engine)
    return judge(
        state,
        server,
        start.launch,
        start.engine,
        facts,
        flag_problems=problems,
        unmet=start.unmet,
        forecast=plan.then if plan is not None else None,
        version=start.version,
    )


def _taken(server: ServerState | None, start: _Start) -> frozenset[str]:
    """Return the flags that a running server of the same version was started with: some are hidden from the help."""
    engine = start.engine
    if server is None or engine is None or server.identity.engine != engine.name or server.version != start.version:
        return frozenset()
    return frozenset(each.flag for each in engine.command_line(server.identity.argv).arguments if each.flag)


def _ask(server: ServerState | None, start: _Start) -> Any:
    launch, engine = start.launch, start.engine
    command: tuple[str, ...] = ()
    model = ""
    if launch is not None and engine is not None and launch.argv:
        command = engine.command_line(launch.argv).command
        model = named_model(settings_of(launch.argv, engine)) or ""
        model = model or (start.recipe.model if start.recipe is not None else None) or ""
    return asked_of(launch, server, engine, command=command, llm=model, flags_known=start.flags is not None)


def _server_troubles(wish: Wish, server: ServerState | None) -> list[Check]:
    if wish.server and server is None:
        return [_refusal("server", "Server", "it is not there (any more)", "Look which server runs now")]
    if not wish.start and (server is None or server.gone):
        ended = f"pid {server.identity.pid} has ended" if server is not None else "none is named"
        return [_refusal("server", "Server", f"there is nothing to stop: {ended}")]
    return []


def _run_troubles(state: HostState) -> list[Check]:
    going_on = runs.active_run(state)
    if going_on is not None:
        return [_refusal("run", "Run", f"{aim(going_on)} goes on", "Wait for it, or cancel it")]
    return [
        Check(
            id="run",
            title="Run",
            verdict=Verdict.WARN,
            detail=f"{aim(each.run)} was interrupted: {way_on(each.run)}",
            way_out="finish it or go back first",
        )
        for each in runs.interrupted(state)
    ]


def _secret_troubles(launch: Launch | None) -> list[Check]:
    if launch is None or launch.like or MASK not in " ".join((*launch.argv, *launch.env.values())):
        return []
    return [
        _refusal(
            "secrets",
            "Secrets",
            "the recipe holds ***, and neither a server nor a run is there to take the secret from",
            "Write where it is read from (a file, a variable of the login) into the recipe",
        )
    ]


def _refusal(name: str, title: str, detail: str, way_out: str = "") -> Check:
    return Check(id=name, title=title, verdict=Verdict.FAIL, detail=detail, way_out=way_out)


def _softened(check: Check) -> Check:
    """Return the check of the memory as a warning where it refuses: the operator has decided."""
    if check.id != "memory" or check.verdict is not Verdict.FAIL:
        return check
    return msgspec.structs.replace(check, verdict=Verdict.WARN)
