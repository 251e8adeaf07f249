"""What runs say of a host's servers: who started one, what was good last, what was interrupted, who may act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from tuner.domain import events as e
from tuner.domain.acts import AnyAct, EndLeftovers, ResumeRun
from tuner.domain.commands import AnyCommand
from tuner.domain.recipe import Recipe
from tuner.domain.runs import Lease, ProcessId, RunOutcome, RunRecord, RunStep
from tuner.domain.server import Phase
from tuner.domain.state import HostState, ServerState

KEEP_RUNS = 20
"""Most runs that are kept: as many as the probe sends."""
RUN_VARIABLE = "GPUTUNER_RUN"
"""Variable in the environment of a launched server that holds the id of its run."""
SERVED = frozenset({RunOutcome.READY, RunOutcome.BACK})
"""Outcomes with a server that answered."""
_LEASE = "lease"
"""Name of the lease in `HostState.seen`."""
ENDED_WITHOUT = frozenset({RunOutcome.FAILED, RunOutcome.STOPPED, RunOutcome.STUCK})
"""Outcomes after which what ran before does not run any more."""
UNTOUCHED = frozenset({RunStep.CHECK, RunStep.DRAIN})
"""Steps in which no process was signalled yet."""
_LET_LIVE = frozenset({RunOutcome.REFUSED, RunOutcome.CANCELLED})
"""Outcomes of runs that left the server as it was."""

Handler = Callable[[HostState, Any, Any], tuple[HostState, tuple[AnyCommand, ...]]]


class Option(Struct, frozen=True, kw_only=True):
    """One way to deal with an interrupted run."""

    id: str
    """`finish`, `back` or `clean`."""
    title: str
    """What it does, in one line."""
    act: AnyAct


class Interrupted(Struct, frozen=True, kw_only=True):
    """A run that has not ended, and whose supervisor is dead."""

    run: RunRecord
    options: tuple[Option, ...] = ()
    """The best one first."""


# The fold.


def _run_changed(state: HostState, event: e.RunChanged, engines: Any) -> tuple[HostState, tuple[AnyCommand, ...]]:
    others = [run for run in state.runs if run.id != event.run.id]
    runs = sorted((event.run, *others), key=lambda run: (run.began_at, run.id), reverse=True)[:KEEP_RUNS]
    return msgspec.structs.replace(state, runs=tuple(runs), seen=state.seen | {_mark(event.run)}), ()


def _lease_changed(state: HostState, event: e.LeaseChanged, engines: Any) -> tuple[HostState, tuple[AnyCommand, ...]]:
    return msgspec.structs.replace(state, lease=event.lease, seen=state.seen | {_LEASE}), ()


def _cleaned(state: HostState, event: e.HostCleaned, engines: Any) -> tuple[HostState, tuple[AnyCommand, ...]]:
    return msgspec.structs.replace(state, runs=()), ()


def confirmed(state: HostState) -> HostState:
    """Return the state after a probe's first look, without runs and lease that only an earlier probe has told."""
    runs = tuple(run for run in state.runs if _mark(run) in state.seen)
    lease = state.lease if _LEASE in state.seen else Lease()
    if len(runs) == len(state.runs) and lease == state.lease:
        return state
    return msgspec.structs.replace(state, runs=runs, lease=lease)


def _mark(run: RunRecord) -> str:
    """Return the name of a run in `HostState.seen`."""
    return f"run:{run.id}"


HANDLERS: Mapping[type, Handler] = {
    e.RunChanged: _run_changed,
    e.LeaseChanged: _lease_changed,
    e.HostCleaned: _cleaned,
}
"""Handlers of `core.reduce` for the events of runs and of the lease."""


# Who started a server.


def run_of(state: HostState, server: ServerState) -> RunRecord | None:
    """Return the run that started a server; None if gputuner did not.

    The leader that a run recorded tells it, by PID and start. Where another process of the command line leads (a
    wrapper was launched), the id of the run in its environment does; of processes that a leader left behind, also the
    record of what was left.
    """
    identity = server.identity
    own = {(identity.pid, identity.start_ticks)}
    own.update((member.pid, member.start_ticks) for member in identity.members)
    found = next((run for run in state.runs if _is(run.new, own) or _is(run.failed, own)), None)
    if found is not None:
        return found
    token = (identity.env or {}).get(RUN_VARIABLE)
    found = next((run for run in state.runs if token and run.id == token), None)
    if found is None and identity.orphaned:
        left = ((run, one) for run in state.runs for one in run.leftovers if one.ours)
        found = next((run for run, one in left if (one.pid, one.start_ticks) in own), None)
    return found


def starter_of(state: HostState, process: ProcessId | None) -> RunRecord | None:
    """Return the run that started a server which may have ended since, by its leader; None if that is not known."""
    return next((run for run in state.runs if process is not None and _same(run.new, process)), None)


def launched(run: RunRecord) -> tuple[str, str, Recipe | None]:
    """Return preset, title and recipe of what a run started last: if it went back, of what it went back to."""
    if run.going_back:
        return run.back_preset, run.back, run.back_recipe
    return run.preset, run.title, run.recipe


def preset_of(state: HostState, server: ServerState) -> tuple[str, str]:
    """Return the id and the title of the preset that a server was started with.

    Both are empty where gputuner did not start it. The id is empty for the bare recipe.
    """
    run = run_of(state, server)
    if run is None:
        return "", ""
    if _failed(run, server):
        return run.preset, run.title
    preset, title, _ = launched(_first(state, run))
    return preset, title


def recipe_of(state: HostState, server: ServerState) -> Recipe | None:
    """Return the recipe over which the preset of a server was laid; None if gputuner did not start it with one."""
    run = run_of(state, server)
    if run is None:
        return None
    if _failed(run, server):
        return run.recipe
    return launched(_first(state, run))[2]


def server_of(state: HostState, run: RunRecord) -> ServerState | None:
    """Return the server that a run started last; None if it is not known (any more)."""
    return next((x for x in state.servers if run_of(state, x) is run and not _failed(run, x)), None)


def successor(before: HostState, state: HostState, key: str | None) -> str | None:
    """Return the key of the server that the newest run has started just now, where the one looked at has ended.

    Args:
        before: State before.
        state: State of the same host now.
        key: Key of the server that is looked at; None: none was chosen.
    """
    run = next(iter(state.runs), None)
    new = server_of(state, run) if run is not None else None
    looked_at = state.server(key) if key is not None else None
    if run is None or new is None or new.gone or (looked_at is not None and not looked_at.gone):
        return None
    earlier_run = next((each for each in before.runs if each.id == run.id), None)
    known = server_of(before, earlier_run) if earlier_run is not None else None
    return None if known is not None and known.identity.key == new.identity.key else new.identity.key


def failed_server(state: HostState, run: RunRecord) -> ServerState | None:
    """Return the server whose start failed in a run, as far as it was seen; None if none failed."""
    if run.outcome not in (RunOutcome.FAILED, RunOutcome.BACK):
        return None
    leader = run.failed or (run.new if run.outcome is RunOutcome.FAILED else None)
    if leader is None:
        return None
    own = (leader.pid, leader.start_ticks)
    ended = (each for each in state.servers if each.gone)
    return next((each for each in ended if (each.identity.pid, each.identity.start_ticks) == own), None)


# What can be gone back to.


def last_good(state: HostState, port: int | None = None, *, before: RunRecord | None = None) -> RunRecord | None:
    """Return the newest run whose server became ready.

    Args:
        state: State of the host.
        port: Only runs of this port; None: of any.
        before: Only runs that began before this one.
    """
    for run in state.runs:
        if before is not None and (run.began_at, run.id) >= (before.began_at, before.id):
            continue
        if run.outcome in SERVED and (port is None or run.port is None or run.port == port):
            return run
    return None


class Earlier(Struct, frozen=True, kw_only=True):
    """What ran before, and can be started again."""

    again: str
    """As `Wish.again`."""
    title: str


def earlier(state: HostState, server: ServerState | None) -> Earlier | None:
    """Return what can be gone back to from what runs, or ran last; None if nothing is known.

    From a server that a run started, and that serves, it is the last good run before that one, or what that one had
    replaced; also where the newest run's server became ready and has ended by itself since, in the same boot. From any
    other it is what served before the newest run, if that failed or only stopped it; else the last good run.

    Args:
        state: State of the host.
        server: The server; None: none is known. One that has ended counts as none.
    """
    port = server.identity.port if server is not None else None
    newest = next((run for run in state.runs if port is None or run.port in (None, port)), None)
    serves = server is not None and not server.gone
    own = run_of(state, server) if server is not None and serves else _that_served(state, newest)
    if own is None or own.outcome not in SERVED:
        if newest is not None and newest.back and newest.outcome in ENDED_WITHOUT:
            return Earlier(again=f"back:{newest.id}", title=newest.back)
        good = last_good(state, port)
        return None if good is None else Earlier(again=good.id, title=_title(good))
    first = _first(state, own)
    good = last_good(state, first.port, before=first)
    if good is not None and first.back and first.old is not None and not _same(good.new, first.old):
        good = None  # somebody else had started what it replaced
    if good is not None:
        return Earlier(again=good.id, title=_title(good))
    if first.back:
        return Earlier(again=f"back:{first.id}", title=first.back)
    return None if serves else Earlier(again=own.id, title=_title(own))


def _that_served(state: HostState, run: RunRecord | None) -> RunRecord | None:
    """Return a run whose server became ready in this boot; None for any other."""
    boot = state.hello.boot_id if state.hello is not None else None
    same = run is not None and (boot is None or run.boot_id == boot)
    return run if same and run is not None and run.outcome in SERVED else None


def _title(run: RunRecord) -> str:
    return run.back if run.going_back else run.title or run.preset


def _first(state: HostState, run: RunRecord) -> RunRecord:
    """Return the run that first started what a run went back to; the run itself if that is not known."""
    for _ in state.runs:
        if not run.going_back or run.old is None:
            return run
        found = next((x for x in state.runs if x is not run and _same(x.new, run.old)), None)
        if found is None:
            return run
        run = found
    return run


def like(run: RunRecord) -> str:
    """Return what a launch is `like` that starts again what a run started last."""
    return f"back:{run.id}" if run.going_back else f"run:{run.id}"


# Runs that go on, and runs that were left.


def stopped_by_run(state: HostState, server: ServerState) -> bool:
    """Return whether a run signalled a server to stop it: that it ended then is no failure."""
    own = {(server.identity.pid, server.identity.start_ticks)}
    return any(_is(run.old, own) and run.step not in UNTOUCHED and run.outcome not in _LET_LIVE for run in state.runs)


def ended_at(run: RunRecord) -> float:
    """Return the host wall clock at which a run ended; while it goes on, that of its last line.

    `updated_at` is later: the record is written once more when the server that the run started ends.
    """
    last = run.steps[-1].ended if run.steps and run.outcome is not RunOutcome.RUNNING else None
    return run.updated_at if last is None else last


def with_cancelled(state: HostState) -> HostState:
    """Return the state in which no server counts as failed whose start was cancelled before it had failed."""
    servers = list(state.servers)
    for run in state.runs:
        if run.cancelled_by is None or run.failure:
            continue
        ended = (run.failed, run.new if not run.going_back or run.outcome is RunOutcome.STOPPED else None)
        for at, server in enumerate(servers):
            if any(_is(process, {(server.identity.pid, server.identity.start_ticks)}) for process in ended):
                servers[at] = _cancelled(server, run)
    if all(new is old for new, old in zip(servers, state.servers, strict=True)):
        return state
    return msgspec.structs.replace(state, servers=tuple(servers))


def _cancelled(server: ServerState, run: RunRecord) -> ServerState:
    """Return a server whose start was cancelled; as it is while it lives on, and where an error came before that."""
    launched = next((at for at, step in enumerate(run.steps) if step.step is RunStep.LAUNCH), len(run.steps))
    begun = next((step.at for step in run.steps[launched:] if step.step is RunStep.STOP), None)
    first = server.errors[0] if server.errors else None
    early = first is not None and first.at is not None and begun is not None and first.at < begun
    phase = Phase.STOPPED if server.gone else Phase.STOPPING
    if begun is None or early or server.phase in (Phase.STOPPED, phase):
        return server
    assert run.cancelled_by is not None
    by = f"{run.cancelled_by.name}@{run.cancelled_by.machine}" if run.cancelled_by.machine else run.cancelled_by.name
    phases = server.phases
    if phases and phases[-1].ended is None:
        phases = (*phases[:-1], msgspec.structs.replace(phases[-1], ended=max(begun, phases[-1].started)))
    return msgspec.structs.replace(
        server,
        phase=phase,
        phase_evidence=f"cancelled by {by}",
        phases=phases,
    )


def active_run(state: HostState) -> RunRecord | None:
    """Return the run that goes on; None if there is none. There is never more than one on a host."""
    return next((run for run in state.runs if run.outcome is RunOutcome.RUNNING and run.supervised), None)


def interrupted(state: HostState) -> tuple[Interrupted, ...]:
    """Return the runs that have not ended and whose supervisor is dead, newest first, and what can be done.

    One after which another run has changed the same port is left out: there is nothing of it to finish or to undo.
    """
    running = (run for run in state.runs if run.outcome is RunOutcome.RUNNING)
    left = (run for run in running if not run.supervised and not overtaken(state, run))
    return tuple(Interrupted(run=run, options=_options(state, run)) for run in left)


def overtaken(state: HostState, run: RunRecord) -> bool:
    """Return whether a run was interrupted, and a later one has changed what it was about."""
    if run.outcome is not RunOutcome.RUNNING or run.supervised:
        return False
    later = (each for each in state.runs if (each.began_at, each.id) > (run.began_at, run.id))
    changed = (each for each in later if each.outcome not in (RunOutcome.REFUSED, RunOutcome.CANCELLED))
    return any(run.port is None or each.port in (None, run.port) for each in changed)


def in_the_way(state: HostState, run: RunRecord) -> ServerState | None:
    """Return a server that came after a run was interrupted, on a GPU on which the run would start its own; else None.

    Nobody has checked what fits beside it. A server of the run's own that lives is adopted, and nothing is started.
    """
    if run.alive:
        return None
    known = [server_of(state, run), *(each for each in state.servers if _leads(each, run.old))]
    gpus = {each.gpu for each in run.memory} | {rank.gpu for each in known if each is not None for rank in each.ranks}
    gpus -= {None}
    later = (x for x in state.servers if not x.gone and (x.identity.started_at or 0.0) > run.began_at)
    held = ((x, {rank.gpu for rank in x.ranks} - {None}) for x in later)
    # Which GPUs a run would use that stopped nothing is not known: any may be one of them.
    there = (x for x, its in held if its & gpus or (its and not gpus))
    return next((x for x in there if run_of(state, x) is not run), None)


def _options(state: HostState, run: RunRecord) -> tuple[Option, ...]:
    found: list[Option] = []
    if run.alive:
        found.append(_finish(run, "adopt the new server and watch it until it is ready"))
    elif run.step in UNTOUCHED:
        found.append(_finish(run, "begin it again: stop the old server, start the new one"))
    else:
        found.append(_finish(run, "finish it: what is not stopped is stopped, what is not started is started"))
    if run.back and not run.going_back and (run.alive or run.step not in UNTOUCHED):
        act = ResumeRun(run=run.id, back=True)
        found.append(Option(id="back", title=f"go back to {run.back}", act=act))
    ours = tuple(
        ProcessId(pid=each.pid, start_ticks=each.start_ticks, uid=each.uid, title=each.title)
        for each in run.leftovers
        if each.ours
    )
    if ours:
        words = "end the process" if len(ours) == 1 else f"end the {len(ours)} processes"
        title = f"{words} that the stopped server left behind"
        found.append(Option(id="clean", title=title, act=EndLeftovers(run=run.id, processes=ours)))
    return tuple(found)


def _finish(run: RunRecord, title: str) -> Option:
    return Option(id="finish", title=title, act=ResumeRun(run=run.id))


def lives(state: HostState, process: ProcessId | None) -> bool:
    """Return whether a process leads a server that runs, as far as is known."""
    return any(not each.gone and _leads(each, process) for each in state.servers)


def _leads(server: ServerState, process: ProcessId | None) -> bool:
    return _is(process, {(server.identity.pid, server.identity.start_ticks)})


def _failed(run: RunRecord, server: ServerState) -> bool:
    """Return whether a server is the one that a run started, that failed, and that was gone back from."""
    return _is(run.failed, {(server.identity.pid, server.identity.start_ticks)})


def _is(process: ProcessId | None, own: set[tuple[int, int]]) -> bool:
    return process is not None and (process.pid, process.start_ticks) in own


def _same(one: ProcessId | None, other: ProcessId) -> bool:
    return one is not None and (one.pid, one.start_ticks) == (other.pid, other.start_ticks)
