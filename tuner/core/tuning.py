"""The one place where a change of a server is put together: for `gputuner apply`, the Tune screen and remedies alike.

From a wish follow the recipe, the preset spelled for the installed version, the complete start, what it changes, the
memory it would take, the checks, and the order for the host. Nothing here asks or changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tuner.core import runs
from tuner.core.composing import Composed, Known, composed
from tuner.core.differences import llm
from tuner.core.drift import changes as changes_of
from tuner.core.engine import Engine
from tuner.core.gates import hardware_of
from tuner.core.helptext import flag_problems
from tuner.core.planned import base_of, forecast_changes, planned
from tuner.core.preflight import ask as asked_of
from tuner.core.preflight import judge
from tuner.core.remains import remains
from tuner.core.respawn import keeper
from tuner.core.run_words import aim, way_on, way_words
from tuner.core.switching import settings_of, switch_order
from tuner.domain.gates import Hardware
from tuner.domain.planning import Planned
from tuner.domain.preflight import Check, PreflightAsk, Verdict
from tuner.domain.presets import Preset
from tuner.domain.recipe import MASK, Launch
from tuner.domain.runs import Operator
from tuner.domain.starts import Start, named_model
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Change, Tuning, Wish
from tuner.errors import CatalogError, TunerError, sentences

UNSEEN = "the command line is kept on the host"
"""Why there is no forecast of what a run would have gone back to."""
HAZARD = "hazard"
"""Id of the checks that tell which harm a value can do; a note among them is one that the host cannot rule out."""
RUNS_CODE = frozenset(
    {
        "BASH_ENV",
        "CUDA_INJECTION64_PATH",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "NCCL_NET_PLUGIN",
        "NCCL_PROFILER_PLUGIN",
        "NCCL_TUNER_PLUGIN",
        "PATH",
        "PYTHONHOME",
        "PYTHONPATH",
    }
)
"""Variables that choose which programs, modules and libraries a process loads."""


def tune(
    state: HostState,
    wish: Wish,
    engines: Mapping[str, Engine],
    presets: Mapping[str, Preset],
    *,
    run: str,
    operator: Operator,
    broken: Sequence[CatalogError] = (),
    flags: frozenset[str] | None = None,
    facts: Mapping[str, Any] | None = None,
    past: Sequence[Start] = (),
) -> Tuning:
    """Put a wish together. Nothing is raised: what cannot be is a check that refuses.

    Takes 10 to 50 ms, most of it the forecast.

    Args:
        state: State of the host.
        wish: What the operator wants. A server that has ended is started as it was; nothing is stopped but what a dead
            leader left behind.
        engines: Engines by name.
        presets: Presets by id, not yet composed.
        run: Id for the run.
        operator: Who wants it.
        broken: Errors of the files that are no preset.
        flags: Flags that the installed engine knows; None: those of the help text in `facts`, if there is one.
        facts: What the probe answered to `Tuning.ask`; None: it was not asked, and most checks are unknown.
        past: Earlier starts on this host, newest first, for a start without a server to be stopped.
    """
    known = Known(engines=engines, presets=presets, broken=broken, facts=facts, flags=flags)
    server = state.server(wish.server)
    # What a dead leader left behind is stopped as a server is, before another one starts.
    alive = server if server is not None and not server.gone else remains(state)
    troubles = [*_server_troubles(wish, server, alive), *_run_troubles(state)]
    if server is not None and server.identity.orphaned:
        server = None  # it has no command line: the run that started it has
    start = Composed(engine=engines.get(server.identity.engine) if server is not None else None)
    if wish.start:
        try:
            start = composed(state, wish, server, known)
        except TunerError as error:
            troubles.append(_refusal("preset", "Start", f"{error.title}: {error.detail}".rstrip(": "), error.hint))
        else:
            troubles += _secret_troubles(start.launch)
            troubles += _local_troubles(start.preset, start.launch)
            troubles += _hazards(start)
    changes = _changes(state, server, start, facts)
    plan = _forecast(state, server, start, changes, engines, past)
    made = plan if isinstance(plan, Planned) else None
    judged = _judged(state, alive, start, made, facts, operator)
    if any(each.id == "secrets" for each in troubles):
        # The host refuses the start for the same secrets: one reason, one way out.
        judged = tuple(each for each in judged if each.id != "start")
    checks = (*troubles, *judged)
    if wish.ignore_forecast or wish.again:
        # What has served counts for more than a forecast, which is made from another start.
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
        ask=_ask(alive, start, server.identity.key if server is not None and server.gone else ""),
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
        manager=_manager(start.launch, facts),
    )
    return msgspec.structs.replace(tuning, order=order)


def _manager(launch: Launch | None, facts: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the command of the service manager that starts again exactly what a run had stopped; empty without one."""
    fact = (facts or {}).get("start")
    told = fact.get("manager") if isinstance(fact, Mapping) and launch is not None and not launch.argv else None
    return tuple(str(word) for word in told) if isinstance(told, Sequence) and not isinstance(told, str) else ()


# What it changes, and whether it fits.


def _changes(
    state: HostState, server: ServerState | None, start: Composed, facts: Mapping[str, Any] | None
) -> tuple[Change, ...]:
    if start.launch is None or start.engine is None or not start.launch.argv:
        return ()
    files = (facts or {}).get("env_files")
    settings = files.get("settings") if isinstance(files, Mapping) else None
    known = [each for each in settings if isinstance(each, Mapping)] if isinstance(settings, Sequence) else []
    same = server if server is not None and server.identity.engine == start.engine.name else None
    hardware = hardware_of(state, server) if server is not None else Hardware()
    return changes_of(start.launch, same, start.engine, known, hardware)


def _forecast(
    state: HostState,
    server: ServerState | None,
    start: Composed,
    changes: Sequence[Change],
    engines: Mapping[str, Engine],
    past: Sequence[Start],
) -> Planned | str:
    """Return the memory of a start; why it is not forecast, in words, where it is not; empty if nothing is started."""
    if start.launch is None:
        return ""
    if not start.launch.argv:
        return UNSEEN
    past = _of_the_llm(past, start)
    base = base_of(state, server, past)
    return planned(state, server, forecast_changes(start.launch, changes, start.engine, base), engines, past)


def _of_the_llm(past: Sequence[Start], start: Composed) -> tuple[Start, ...]:
    """Return the earlier starts of the LLM that a launch serves."""
    if start.launch is None or start.engine is None:
        return ()
    named = named_model(settings_of(start.launch.argv, start.engine))
    return tuple(
        each
        for each in past
        if each.engine == start.engine.name and named and each.model and llm(each.model) == llm(named)
    )


# What speaks against it.


def _judged(
    state: HostState,
    server: ServerState | None,
    start: Composed,
    plan: Planned | None,
    facts: Mapping[str, Any] | None,
    operator: Operator,
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
        operator=operator,
    )


def _taken(server: ServerState | None, start: Composed) -> frozenset[str]:
    """Return the flags that a running server of the same version was started with: some are hidden from the help."""
    engine = start.engine
    if server is None or engine is None or server.identity.engine != engine.name or server.version != start.version:
        return frozenset()
    return frozenset(each.flag for each in engine.command_line(server.identity.argv).arguments if each.flag)


def _ask(server: ServerState | None, start: Composed, ended: str) -> PreflightAsk:
    launch, engine = start.launch, start.engine
    command: tuple[str, ...] = ()
    model = ""
    if launch is not None and engine is not None and launch.argv:
        command = engine.command_line(launch.argv).command
        model = named_model(settings_of(launch.argv, engine)) or ""
        model = model or (start.recipe.model if start.recipe is not None else None) or ""
    known = start.flags is not None
    return asked_of(launch, server, engine, command=command, llm=model, flags_known=known, ended=ended)


def _server_troubles(wish: Wish, server: ServerState | None, alive: ServerState | None) -> list[Check]:
    if wish.server and server is None:
        return [_refusal("server", "Server", "it is not there (any more)", "Look which server runs now")]
    if not wish.start and alive is None:
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
            detail=f"{aim(each.run)} was interrupted: {way_on(state, each.run)}",
            way_out=sentences(*way_words(state, each.run)) or "finish it or go back first",
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


def _local_troubles(preset: Preset | None, launch: Launch | None) -> list[Check]:
    """Return a warning for each variable of a preset of the working folder that makes a server run other code."""
    found: list[Check] = []
    if preset is None or launch is None:
        return found
    for name in preset.env:
        path, line = preset.paths.get(f"env.{name}", preset.path), preset.lines.get(f"env.{name}")
        if name in RUNS_CODE and name in launch.env and path in preset.local:
            where = f"{path}:{line}" if line else path
            detail = f"{where} sets {name}, so the server runs code that this preset names"
            out = "Look who wrote that file: it is of the working folder, not one of yours"
            found.append(Check(id="preset", title="Preset", verdict=Verdict.WARN, detail=detail, way_out=out))
    return found


def _hazards(start: Composed) -> list[Check]:
    """Return a check for each harm that a value can do without being refused."""
    return [
        Check(
            id=HAZARD,
            title=each.title,
            verdict=Verdict.WARN if each.sure else Verdict.NOTE,
            detail=each.words,
            way_out=each.way_out,
        )
        for each in (start.overlay.doubts if start.overlay is not None else ())
    ]


def _refusal(name: str, title: str, detail: str, way_out: str = "") -> Check:
    return Check(id=name, title=title, verdict=Verdict.FAIL, detail=detail, way_out=way_out)


def _softened(check: Check) -> Check:
    """Return the check of the memory as a warning where it refuses: the operator has decided."""
    if check.id != "memory" or check.verdict is not Verdict.FAIL:
        return check
    return msgspec.structs.replace(check, verdict=Verdict.WARN)
