"""The one order by which a host stops a server, starts another and can go back: composed here, carried out there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tuner.core import runs
from tuner.core.engine import Engine, engine_by_program
from tuner.core.recipes import log_folder, ready_in_s
from tuner.core.respawn import Keeper
from tuner.domain.behaviour import Behaviour, Stopping
from tuner.domain.recipe import MASK, Launch, Recipe
from tuner.domain.runs import LaunchOrder, Operator, ProcessId, RunRecord, StopOrder, StopStep, SwitchOrder
from tuner.domain.server import Phase, ServerIdentity
from tuner.domain.state import HostState, ServerState

DEADLINE_S = 3_600.0
"""Least seconds after which a start that is not ready has failed: the largest LLMs load for half an hour."""
DEADLINE_TIMES = 4.0
"""A start may take so many times as long as it usually does before it has failed."""
UNKNOWN: tuple[StopStep, ...] = (
    StopStep(signal="TERM", wait_s=30.0),
    StopStep(signal="TERM", to="orphans", wait_s=5.0),
    StopStep(signal="KILL", to="tree", wait_s=10.0),
)
"""Ladder for a server whose engine this version does not know."""
MOST_TITLE = 120
"""Most characters of a process's title in an order."""


def switch_order(
    state: HostState,
    server: ServerState | None,
    launch: Launch | None,
    engines: Mapping[str, Engine],
    *,
    run: str,
    operator: Operator,
    engine: str = "",
    drain_s: float = 0.0,
    auto_back: bool = False,
    keeper: Keeper | None = None,
    usual_s: float | None = None,
    recipe: Recipe | None = None,
    manager: tuple[str, ...] = (),
) -> SwitchOrder:
    """Compose the order for a run.

    Args:
        state: State of the host.
        server: Server to be stopped; None: none is.
        launch: What is to be started; None: nothing is. With empty `argv` it is exactly what it is `like`.
        engines: Engines by name.
        run: Id of the run.
        operator: Who orders it.
        engine: Name of the engine of `launch`; empty: that of `server`.
        drain_s: Longest wait for the requests in flight, seconds; 0: none.
        auto_back: Whether to go back without being asked when the start fails.
        keeper: What stands above the server and would start it again; None: nothing.
        usual_s: Seconds that a start like this usually takes; None: as the server's earlier ones.
        recipe: The recipe over which the preset of `launch` is laid; None: none.
        manager: Command of the service manager that starts `launch`; empty: its command line does.
    """
    keeper = keeper or Keeper()
    stop = None
    if server is not None:
        stop = stop_order(state, server, engines.get(server.identity.engine), drain_s=drain_s, keeper=keeper)
    start = back = None
    if launch is not None:
        brain = engines.get(engine or (server.identity.engine if server is not None else ""))
        usual = usual_s if usual_s is not None else ready_in_s(server)
        start = msgspec.structs.replace(launch_order(launch, brain, usual_s=usual), recipe=recipe, manager=manager)
        back = way_back(state, server, launch, engines, brain, run=run, keeper=keeper)
    elif server is not None and _may_come_back(state, server):
        back = way_back(state, server, None, engines, None, run=run, keeper=keeper)
    return SwitchOrder(
        run=run,
        operator=operator,
        stop=stop,
        start=start,
        back=back,
        auto_back=auto_back and back is not None,
    )


def stop_order(
    state: HostState,
    server: ServerState,
    engine: Engine | None,
    *,
    drain_s: float = 0.0,
    keeper: Keeper | None = None,
) -> StopOrder:
    """Return how a server is stopped: the ladder for its phase, its processes and GPUs by identity."""
    identity, keeper = server.identity, keeper or Keeper()
    serves = _serves(server)
    stopping = engine.behaviour().stopping if engine is not None else Stopping(serving=UNKNOWN, loading=UNKNOWN)
    steps = stopping.serving if serves else stopping.loading
    if not serves:
        drain_s = 0.0
    if drain_s > 0 and stopping.term_drains and not keeper.stop:
        # It finishes its requests by itself after the first TERM, so that wait is the drain.
        first = msgspec.structs.replace(steps[0], wait_s=max(steps[0].wait_s, drain_s))
        steps, drain_s = (first, *steps[1:]), 0.0
    members = tuple(
        ProcessId(pid=member.pid, start_ticks=member.start_ticks, title=member.title[:MOST_TITLE])
        for member in identity.members
        if member.pid != identity.pid and member.state != "Z"
    )
    title = next((member.title for member in identity.members if member.pid == identity.pid), "")
    return StopOrder(
        boot_id=(state.hello.boot_id if state.hello is not None else None) or "",
        leader=ProcessId(
            pid=identity.pid, start_ticks=identity.start_ticks, uid=identity.uid, title=title[:MOST_TITLE]
        ),
        members=members,
        steps=steps,
        drain_s=drain_s,
        drain=stopping.drain if drain_s > 0 else (),
        manager=keeper.stop,
        manager_wait_s=keeper.wait_s,
        port=identity.port,
        gpus=gpus_of(state, server),
        claimed=claimed(state, server),
        lingers=stopping.lingers,
    )


def gpus_of(state: HostState, server: ServerState) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs on which a server's ranks are, or its processes hold memory, in NVML order."""
    if state.gpu_table is None:
        return ()
    own = {member.pid for member in server.identity.members} | {server.identity.pid}
    used = {rank.gpu for rank in server.ranks if rank.gpu is not None}
    used |= {process.gpu for process in state.processes if process.pid in own}
    return tuple(info.uuid for info in state.gpu_table.gpus if info.index in used)


def claimed(state: HostState, server: ServerState) -> dict[str, int]:
    """Return the bytes that a server's ranks say they allocated, by UUID of the GPU, where all ranks there say it."""
    out: dict[str, int] = {}
    for info in state.gpu_table.gpus if state.gpu_table is not None else ():
        said = [(rank.memory.weights_bytes, rank.memory.kv_bytes) for rank in server.ranks if rank.gpu == info.index]
        known = [weights + kv for weights, kv in said if weights is not None and kv is not None]
        if known and len(known) == len(said):
            out[info.uuid] = sum(known)
    return out


def launch_order(launch: Launch, engine: Engine | None, *, usual_s: float | None = None) -> LaunchOrder:
    """Return the order to start what a launch describes, with how one learns that it serves."""
    settings = settings_of(launch.argv, engine)
    return msgspec.structs.replace(
        _described(engine, settings, launch.port, usual_s),
        argv=launch.argv,
        env=launch.env,
        unset=launch.unset,
        cwd=launch.cwd,
        like=launch.like,
        secret_flags=_secret_flags(launch.argv, engine),
        secret_env=_secret_env(launch.env, engine),
        log_dir=launch.log_dir,
        preset=launch.preset,
        title=launch.title,
    )


def way_back(
    state: HostState,
    server: ServerState | None,
    launch: Launch | None,
    engines: Mapping[str, Engine],
    engine: Engine | None,
    *,
    run: str,
    keeper: Keeper | None = None,
) -> LaunchOrder | None:
    """Return what is started again if a start fails: the stopped server if it served, else the last good run.

    A server that never became ready is gone back to only if no run is known to have been good, and never one that
    failed. None: there is nothing to go back to.

    Where a server is only stopped (no `launch`), this is how it can be had again later. Its log goes where it went
    before only if the log of `launch` goes there too: the host refuses an order with a log folder that cannot be
    written, and no way back may be the reason why a start is refused.
    """
    proven = launch.log_dir if launch is not None else None
    keeper = keeper or Keeper()
    port = server.identity.port if server is not None else launch.port if launch is not None else None
    good = runs.last_good(state, port)
    own = None
    if server is not None and not server.gone and not server.identity.orphaned:
        preset, title = runs.preset_of(state, server)
        brain = engines.get(server.identity.engine)
        settings = {**settings_of(server.identity.argv, brain), **server.settings}
        own = msgspec.structs.replace(
            _described(brain, settings, server.identity.port, ready_in_s(server)),
            like=f"server:{server.identity.key}",
            manager=keeper.start,
            log_dir=proven if proven == _log_folder(server) else None,
            log_name=run,
            preset=preset,
            recipe=runs.recipe_of(state, server),
            title=title or f"the server as it was (pid {server.identity.pid})",
        )
        if _serves(server) or (good is None and server.phase is not Phase.FAILED):
            return own
    if good is None or launch is None or _repeats(launch, good):
        return None
    order = again_order(good, engine_by_program(good.argv, engines) or engine)
    return msgspec.structs.replace(order, log_dir=proven if proven == log_folder_of(good) else None, log_name=run)


def log_folder_of(run: RunRecord) -> str | None:
    """Return the folder of the logs of a run's servers; None where it is the folder of the run, or not known."""
    return log_folder(run.log) or log_folder(run.failed_log)


def _log_folder(server: ServerState) -> str | None:
    """Return the folder of a server's log; None where its log is no file, or in the folder of a run."""
    source = server.log.source or server.identity.log
    return log_folder(source.path) if source is not None and source.kind == "file" else None


def _repeats(launch: Launch, good: RunRecord) -> bool:
    """Return whether a start is that of an earlier run once more, or of what a later run had as its way back to it."""
    if launch.argv:
        return False
    back = launch.like.startswith("back:") and (launch.preset, launch.title) == runs.launched(good)[:2]
    return back or launch.like == runs.like(good)


def _may_come_back(state: HostState, server: ServerState) -> bool:
    """Return whether the probe can read what a server needs to be started again; else it would refuse the order."""
    probe = state.hello.uid if state.hello is not None else None
    return server.identity.uid == probe and bool(server.identity.env) and server.identity.cwd is not None


def again_order(run: RunRecord, engine: Engine | None, *, like: str = "") -> LaunchOrder:
    """Return the order to start again exactly what a run started last."""
    order = _described(engine, settings_of(run.argv, engine), run.port, None)
    preset, title, recipe = runs.launched(run)
    return msgspec.structs.replace(order, like=like or runs.like(run), preset=preset, title=title, recipe=recipe)


def settings_of(argv: Iterable[str], engine: Engine | None) -> dict[str, Any]:
    """Return the server args that a command line sets, by canonical name."""
    if engine is None:
        return {}
    return engine.settings_from_argv(ServerIdentity(key="", engine=engine.name, pid=0, start_ticks=0, argv=tuple(argv)))


def _described(
    engine: Engine | None, settings: Mapping[str, Any], port: int | None, usual_s: float | None
) -> LaunchOrder:
    """Return an order without a command: how an engine's server with such settings is known to serve."""
    deadline = max(DEADLINE_S, DEADLINE_TIMES * usual_s) if usual_s is not None else DEADLINE_S
    if engine is None:
        return LaunchOrder(port=port, usual_s=usual_s, deadline_s=deadline)
    plan, behaviour = engine.plan(), engine.behaviour()
    asked = settings.get("port")
    if port is None:
        port = asked if isinstance(asked, int) and not isinstance(asked, bool) else plan.default_port
    spans = settings.get("nnodes")
    alone = not (isinstance(spans, int) and spans > 1)
    return LaunchOrder(
        port=port,
        titles=behaviour.starting.rank_titles or plan.titles,
        ranks=engine.layout(dict(settings)).world if alone else None,
        parts=plan.titles,
        health=behaviour.starting.health,
        first_token=behaviour.starting.first_token if _generates(settings, behaviour) else None,
        api_key_flags=plan.api_key_flags,
        api_key_env=plan.api_key_env,
        tls_flags=plan.tls_flags,
        deadline_s=deadline,
        usual_s=usual_s,
        stop=behaviour.stopping.loading,
    )


def _generates(settings: Mapping[str, Any], behaviour: Behaviour) -> bool:
    """Return whether a server with these server args generates tokens."""
    return not any(
        str(settings[name]) in values if values else settings[name]
        for name, values in behaviour.starting.no_tokens.items()
        if name in settings
    )


def _serves(server: ServerState) -> bool:
    """Return whether a server serves, or did so before it began to stop: its own port listens."""
    listens = server.identity.port is not None and server.identity.port in server.identity.ports
    return server.phase is Phase.READY or (listens and server.phase in (Phase.UNKNOWN, Phase.STOPPING))


def _secret_flags(argv: tuple[str, ...], engine: Engine | None) -> tuple[str, ...]:
    """Return the flags whose values are masked, with those of the engine's API key."""
    found = list(engine.plan().api_key_flags) if engine is not None else []
    for index, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if equals and MASK in value:
            found.append(name)
        elif MASK in argument and index and argv[index - 1].startswith("-"):
            found.append(argv[index - 1])
    return tuple(dict.fromkeys(found))


def _secret_env(env: Mapping[str, str], engine: Engine | None) -> tuple[str, ...]:
    found = [*(engine.plan().api_key_env if engine is not None else ()), *(n for n, v in env.items() if MASK in v)]
    return tuple(dict.fromkeys(found))
