"""The fold that makes all state: `reduce(state, event) -> (state, commands)`.

Nothing else creates a `HostState`. Time comes with the events (the host's own clocks), so a journal replayed at any
speed gives the same states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tuner.core import explaining, kernel_lines, lifecycle, metrics, ranks, remembered, runs, serverlog
from tuner.core import series as s
from tuner.core.engine import Engine
from tuner.core.measured import measured
from tuner.core.predecessor import doubt_about
from tuner.domain import events as e
from tuner.domain.commands import AnyCommand
from tuner.domain.link import LinkPhase
from tuner.domain.readings import Reading
from tuner.domain.server import ServerIdentity
from tuner.domain.state import HostState, LinkState, ServerState

KEEP_ENDED = 8
"""Most ended servers that are kept."""

Engines = Mapping[str, Engine]
Result = tuple[HostState, tuple[AnyCommand, ...]]


def initial(name: str) -> HostState:
    """Return the state before anything is known.

    Args:
        name: The host as the operator named it.
    """
    return HostState(name=name)


def reduce(state: HostState, event: e.AnyEvent, engines: Engines) -> Result:
    """Fold one event into the state.

    Args:
        state: What was known before; never changed.
        event: What happened.
        engines: Engines by name; a server of an unknown engine is shown as far as the process table tells.

    Returns:
        The new state, sharing every part that did not change, and what the shell is asked to do.
    """
    lost = 0
    if event.seq and state.last_seq and not isinstance(event, e.ProbeHello):
        lost = max(0, event.seq - state.last_seq - 1)
    if event.seq:
        now = state.now
        if state.hello is not None:
            now = state.hello.at + event.mono - state.hello.mono
        state = msgspec.structs.replace(
            state, mono=max(state.mono, event.mono), now=now, last_seq=event.seq, lost_lines=state.lost_lines + lost
        )
    handler = _HANDLERS.get(type(event))
    if handler is None:
        return state, ()
    after, commands = handler(state, event, engines)
    if isinstance(event, e.RunChanged | e.ServerGone | e.ScanEnded):
        after = runs.with_cancelled(after)
    return after, (*commands, *measured(state, after, engines))


def _link_changed(state: HostState, event: e.LinkChanged, engines: Engines) -> Result:
    old = state.link
    up = event.phase is LinkPhase.UP
    link = LinkState(
        phase=event.phase,
        reason=event.reason,
        attempt=event.attempt,
        retry_in_s=event.retry_in_s,
        final=event.final,
        notes=event.notes or old.notes,
        rtt_s=old.rtt_s if up else None,
        received_bytes_s=old.received_bytes_s if up else None,
        sent_bytes_s=old.sent_bytes_s if up else None,
    )
    return msgspec.structs.replace(state, link=link), ()


def _link_measured(state: HostState, event: e.LinkMeasured, engines: Engines) -> Result:
    link = msgspec.structs.replace(
        state.link,
        rtt_s=event.rtt_s,
        received_bytes_s=event.received_bytes_s,
        sent_bytes_s=event.sent_bytes_s,
    )
    return msgspec.structs.replace(state, link=link), ()


def _hello(state: HostState, event: e.ProbeHello, engines: Engines) -> Result:
    """A new probe: its clock and its problem list begin anew. After a reboot every server seen before is gone."""
    rebooted = state.hello is not None and state.hello.boot_id != event.boot_id
    servers = state.servers
    if rebooted:
        # Monotonic time began anew with the boot; old points would lie in the future.
        gone = (x if x.gone else lifecycle.apply_gone(x, (), state.now) for x in servers)
        servers = tuple(msgspec.structs.replace(x, series={}, counters={}) for x in gone)
    # A new probe sends every series once; one that went meanwhile must not live on.
    servers = tuple(
        msgspec.structs.replace(x, http_series={}, http_numbers={}) if x.http_series or x.http_numbers else x
        for x in servers
    )
    state = msgspec.structs.replace(
        state,
        hello=event,
        mono=event.mono,
        now=event.at,
        problems=(),
        scanned=False,
        seen=frozenset(),
        servers=servers,
        gpu_series={} if rebooted else state.gpu_series,
    )
    return state, ()


def _host(state: HostState, event: e.HostSample, engines: Engines) -> Result:
    return msgspec.structs.replace(state, host=event, servers=_all_looked_at(state, event.mono, engines)), ()


def _gpu_table(state: HostState, event: e.GpuTable, engines: Engines) -> Result:
    return ranks.placed(msgspec.structs.replace(state, gpu_table=event), engines), ()


def _gpu_samples(state: HostState, event: e.GpuSamples, engines: Engines) -> Result:
    series = dict(state.gpu_series)
    for sample in event.samples:
        if sample.utilization_ratio is not None:
            series[sample.index] = s.append(series.get(sample.index, ()), event.mono, sample.utilization_ratio)
    servers = _all_looked_at(state, event.mono, engines)
    changes = {"samples": event.samples, "samples_at": event.mono, "gpu_series": series, "servers": servers}
    return msgspec.structs.replace(state, **changes), ()


def _all_looked_at(state: HostState, mono: float, engines: Engines) -> tuple[ServerState, ...]:
    """Re-evaluate all servers on each host or GPU sample, since either may be missing."""
    seen = tuple(_looked_at(state, metrics.decay(server, mono), engines) for server in state.servers)
    return state.servers if all(a is b for a, b in zip(seen, state.servers, strict=True)) else seen


def _looked_at(state: HostState, server: ServerState, engines: Engines) -> ServerState:
    """Diagnose a server if that is due, and renew the advice from its numbers."""
    engine = engines.get(server.identity.engine)
    if engine is None:
        return server
    return explaining.advised(state, explaining.explained(state, server, engine), engine)


def _diagnosed(state: HostState, server: ServerState, engines: Engines) -> ServerState:
    engine = engines.get(server.identity.engine)
    return server if engine is None else explaining.explained(state, server, engine)


def _gpu_processes(state: HostState, event: e.GpuProcesses, engines: Engines) -> Result:
    infos = state.infos
    if event.infos:
        infos = {**infos, **{info.pid: info for info in event.infos}}
    held = {p.pid for p in event.processes}
    if any(pid not in held for pid in infos):
        infos = {pid: info for pid, info in infos.items() if pid in held}
    state = msgspec.structs.replace(state, processes=event.processes, processes_at=event.mono, infos=infos)
    return ranks.placed(state, engines), ()


def _server_seen(state: HostState, event: e.ServerSeen, engines: Engines) -> Result:
    identity = event.server
    engine = engines.get(identity.engine)
    known = state.server(identity.key)
    if known is None and identity.orphaned and (ended := _leader_of(state, identity)) is not None:
        return _left_over(state, ended, identity, engines)
    commands: tuple[AnyCommand, ...] = ()
    if known is None:
        server = _adopted(identity, engine)
        commands = (remembered.look_up(server),)
        servers = (server, *state.servers)
    else:
        # argv and environment are kept from the first sight, so that a server that dies can still be described.
        kept = msgspec.structs.replace(
            identity,
            argv=identity.argv or known.identity.argv,
            env=identity.env if identity.env is not None else known.identity.env,
        )
        server = lifecycle.apply_members(msgspec.structs.replace(known, gone=False), kept)
        if server.version is None and identity.version is not None:
            server = msgspec.structs.replace(server, version=identity.version)
        server = _diagnosed(state, server, engines)
        commands = remembered.ended_start(state, known, server)
        servers = tuple(server if x is known else x for x in state.servers)
    state = msgspec.structs.replace(state, servers=_ordered(servers), seen=state.seen | {identity.key})
    return ranks.placed(state, engines), commands


def _leader_of(state: HostState, identity: ServerIdentity) -> ServerState | None:
    """Return the ended server that these processes are left over from; None if they are a server of their own."""
    left = {(member.pid, member.start_ticks) for member in identity.members}
    for server in state.servers:
        ended = server.gone or server.identity.key not in state.seen
        if ended and any((member.pid, member.start_ticks) in left for member in server.identity.members):
            return server
    return None


def _left_over(state: HostState, server: ServerState, identity: ServerIdentity, engines: Engines) -> Result:
    left = identity.living
    new = lifecycle.still_left(server, left) if server.gone else lifecycle.apply_gone(server, left, state.now)
    new = _diagnosed(state, msgspec.structs.replace(new, left_key=identity.key), engines)
    return _finish(msgspec.structs.replace(state, seen=state.seen | {identity.key}), server, new, engines)


def _adopted(identity: ServerIdentity, engine: Engine | None) -> ServerState:
    server = ServerState(identity=identity, version=identity.version, engine_title=identity.engine)
    if identity.log is not None:
        server = msgspec.structs.replace(server, log=msgspec.structs.replace(server.log, source=identity.log))
    if identity.orphaned:
        server = lifecycle.left_over(server)
    if engine is None:
        return server
    return msgspec.structs.replace(
        server,
        engine_title=engine.title,
        model=engine.model(identity),
        settings=engine.settings_from_argv(identity),
    )


def _server_gone(state: HostState, event: e.ServerGone, engines: Engines) -> Result:
    """Fold the end of a leader, or of processes that it left over."""
    server = state.server(event.key) or next((x for x in state.servers if x.left_key == event.key), None)
    if server is None:
        return state, ()
    if server.gone:
        gone = lifecycle.still_left(server, event.left)
    else:
        gone = lifecycle.apply_gone(server, event.left, event.at if event.at is not None else state.now)
    gone = _diagnosed(state, gone, engines)
    return _finish(state, server, gone, engines)


def _scanned(state: HostState, event: e.ScanEnded, engines: Engines) -> Result:
    """Fold the end of the first look: servers known from before and not found again ended while nobody watched."""
    servers = tuple(
        server if server.gone or server.identity.key in state.seen else lifecycle.apply_gone(server, (), state.now)
        for server in state.servers
    )
    state = runs.confirmed(msgspec.structs.replace(state, scanned=True, servers=_ordered(servers)))
    return ranks.placed(state, engines), ()


def _log_opened(state: HostState, event: e.LogOpened, engines: Engines) -> Result:
    return _with(state, event.key, lambda server: serverlog.opened(server, event)), ()


def _log_gap(state: HostState, event: e.LogGap, engines: Engines) -> Result:
    return _with(state, event.key, lambda server: serverlog.gap(server, event)), ()


def _log_bytes(state: HostState, event: e.LogBytes, engines: Engines) -> Result:
    server = state.server(event.key)
    if server is None:
        return state, ()
    live = not event.head and event.offset >= server.log.backlog_end
    doubt = None if live else doubt_about(server.identity, state.now, state.hello)
    new = serverlog.received(server, event, engines.get(server.identity.engine), live=live, doubt=doubt)
    new = _diagnosed(state, new, engines)
    return _finish(state, server, new, engines)


def _http(state: HostState, event: e.HttpAnswer, engines: Engines) -> Result:
    server = state.server(event.key)
    engine = engines.get(server.identity.engine) if server is not None else None
    if server is None or engine is None:
        return state, ()
    new = server
    if event.series is not None:
        known = {**server.http_series.get(event.endpoint, {}), **event.series}
        merged = {name: value for name, value in known.items() if value is not None}
        new = msgspec.structs.replace(new, http_series={**server.http_series, event.endpoint: merged})
        event = msgspec.structs.replace(event, series={**merged})
    reading = engine.read(event)
    new = _apply_reading(new, reading, event)
    # The line that says ready may come later. When a phase ended whose beginning nobody watched is not known.
    watched = new.phases and state.hello is not None and new.phases[-1].started >= state.hello.at
    words = f"/{event.endpoint} answers {event.status}"
    new = lifecycle.apply_ready(new, reading.ready, words, event.mono, state.now if watched else None)
    return _finish(state, server, new, engines)


def _apply_reading(server: ServerState, reading: Reading, event: e.HttpAnswer) -> ServerState:
    changes: dict[str, Any] = {}
    if reading.version and reading.version != server.version:
        changes["version"] = reading.version
    if reading.model and server.model is None:
        changes["model"] = reading.model
    if reading.settings:
        changes["settings"] = {**server.settings, **reading.settings}
    if reading.kv_tokens is not None and reading.kv_tokens != server.kv_tokens:
        changes["kv_tokens"] = reading.kv_tokens
    if reading.problem != server.http_problem and (reading.problem or event.status == 200):
        changes["http_problem"] = reading.problem
    if changes:
        server = msgspec.structs.replace(server, **changes)
    if reading.memory:
        server = msgspec.structs.replace(server, ranks=ranks.with_terms(server.ranks, reading.memory))
    values = reading.metrics
    if event.series is None and event.status == 200:
        if event.body is None:
            values = server.http_numbers.get(event.endpoint)  # the same as last time
        else:
            numbers = {**server.http_numbers, event.endpoint: values or {}}
            server = msgspec.structs.replace(server, http_numbers=numbers)
    if values:
        source = "metrics" if event.series is not None else "loads"
        server = metrics.from_reading(server, source, values, event.mono, event.next_s)
    return server


def _old_log(state: HostState, event: e.OldLog, engines: Engines) -> Result:
    server = state.server(event.key)
    engine = engines.get(server.identity.engine) if server is not None else None
    if server is None or engine is None:
        return state, ()
    return state, remembered.old_log(state, server, event, engine)


def _history(state: HostState, event: e.HistoryFound, engines: Engines) -> Result:
    return _with(
        state, event.key, lambda server: msgspec.structs.replace(server, usual=event.usual, past=event.starts)
    ), ()


def _problem(state: HostState, event: e.ProblemSeen, engines: Engines) -> Result:
    others = tuple(p for p in state.problems if (p.code, p.subject) != (event.code, event.subject))
    return msgspec.structs.replace(state, problems=others if event.cleared else (*others, event)), ()


def _finish(state: HostState, old: ServerState, new: ServerState, engines: Engines) -> Result:
    """Put a changed server back, redo placements, ask the history once the LLM is known, and keep an ended start."""
    if new is old:
        return state, ()
    servers = tuple(new if x is old else x for x in state.servers)
    if old.gone is not new.gone or old.phase.ended is not new.phase.ended:
        servers = _ordered(servers)
    state = msgspec.structs.replace(state, servers=servers)
    if new.ranks is not old.ranks or new.settings is not old.settings:
        state = ranks.placed(state, engines)
    # The history can be asked for starts of the same LLM once it is known which that is.
    asked = (remembered.look_up(new),) if new.model is not None and old.model is None else ()
    return state, (*asked, *remembered.ended_start(state, old, new))


def _ordered(servers: tuple[ServerState, ...]) -> tuple[ServerState, ...]:
    running = [x for x in servers if not x.gone]
    ended = [x for x in servers if x.gone]
    return (*running, *ended[:KEEP_ENDED])


def _with(state: HostState, key: str, change: Callable[[ServerState], ServerState]) -> HostState:
    server = state.server(key)
    if server is None:
        return state
    new = change(server)
    if new is server:
        return state
    return msgspec.structs.replace(state, servers=tuple(new if x is server else x for x in state.servers))


_HANDLERS: dict[type, Callable[[HostState, Any, Engines], Result]] = {
    e.LinkChanged: _link_changed,
    e.LinkMeasured: _link_measured,
    e.ProbeHello: _hello,
    e.HostSample: _host,
    e.GpuTable: _gpu_table,
    e.GpuSamples: _gpu_samples,
    e.GpuProcesses: _gpu_processes,
    e.ServerSeen: _server_seen,
    e.ServerGone: _server_gone,
    e.ScanEnded: _scanned,
    e.LogOpened: _log_opened,
    e.LogGap: _log_gap,
    e.LogBytes: _log_bytes,
    e.HttpAnswer: _http,
    e.OldLog: _old_log,
    e.HistoryFound: _history,
    e.ProblemSeen: _problem,
    **kernel_lines.HANDLERS,
    **runs.HANDLERS,
}
