"""Server phases as a fold over log facts, HTTP readings and the process table.

Readiness is tied to the server at hand. A start whose port still belongs to an older server prints "fired up" all
the same, after its warm-up request reached the old one (seen with SGLang 0.5.23), so the line counts only when the
port is not known to be somebody else's.
"""

from __future__ import annotations

import msgspec

from tuner.core import facts as f
from tuner.core.log_clock import clocked, wall_time
from tuner.core.memory import terms_from_fact
from tuner.domain.logs import LogFact
from tuner.domain.readings import MemoryTerms
from tuner.domain.server import Phase, ServerIdentity
from tuner.domain.starts import named_model
from tuner.domain.state import ErrorLine, PhaseRecord, RankMemory, RankState, ServerState

KEEP_FACTS = 600
KEEP_ERRORS = 20
KEEP_PHASES = 40
"""Most phase records that are kept: a start has ten, more is a log that begins the same phases over and over."""
_BATCHES = frozenset({f.DECODE, f.PREFILL, f.STATS})
BACKLOG_PATIENCE_S = 10.0
"""Seconds after which a server that answers counts as ready though its log is not read up to the present."""


def apply_fact(server: ServerState, fact: LogFact, *, unsure: bool = False) -> ServerState:
    """Fold a log fact into the server. A batch line can only end the start here; its numbers are for `core.metrics`.

    Args:
        server: State so far.
        fact: What the line says.
        unsure: An earlier process may have printed it: it proves that the server serves only once that has its port.
    """
    unproven = unsure and server.identity.port is not None and server.identity.port not in server.identity.ports
    if fact.kind in _BATCHES:
        if unproven:
            return server
        # An engine that decodes has ended its start, even if lines of that were missed.
        if server.phase.starting and server.phase is not Phase.WARMUP and fact.kind != f.PREFILL:
            return _enter(server, Phase.READY, fact, "batches are running")
        return server
    if fact.kind == f.ARGS and fact.rank is None and _begins_anew(server):
        server = _forget_start(server)
    server = clocked(server, fact)
    server = msgspec.structs.replace(server, facts=(*server.facts, fact)[-KEEP_FACTS:])
    server = _rank_fact(server, fact)
    match fact.kind:
        case f.ARGS:
            settings = fact.fields.get("settings") or {}
            model = server.model or named_model(settings)
            server = msgspec.structs.replace(server, settings={**server.settings, **settings}, model=model)
            return _enter(server, Phase.ARGS, fact) if not server.phases else server
        case f.VERSION:
            return msgspec.structs.replace(
                server,
                version=fact.fields.get("version") or server.version,
                model=server.model or fact.fields.get("model"),
            )
        case f.PHASE_BEGIN | f.PHASE_END | f.PROGRESS | f.WEIGHTS | f.KV_POOL | f.GRAPHS:
            return _progress(server, fact)
        case f.POOL_END | f.MEMORY:
            return server
        case f.LIMITS:
            tokens = fact.fields.get("kv_tokens")
            return msgspec.structs.replace(server, kv_tokens=tokens if tokens is not None else server.kv_tokens)
        case f.HTTP_UP:
            return _enter(server, Phase.WARMUP, fact) if server.phase.starting else server
        case f.READY:
            if server.phase.ended or server.phase is Phase.STOPPING or unproven or not owns_port(server.identity):
                return server
            return _enter(server, Phase.READY, fact)
        case f.STOP_ASKED | f.STOPPING:
            return _enter(server, Phase.STOPPING, fact) if server.phase is not Phase.FAILED else server
        case f.STOPPED:
            return _enter(server, Phase.STOPPED, fact) if server.phase is not Phase.FAILED else server
        case f.ERROR:
            return _error(server, fact)
        case f.DIED:
            if server.phase in (Phase.STOPPING, Phase.STOPPED):
                return server
            return _enter(_note_error(server, fact), Phase.FAILED, fact)
    return server


def owns_port(identity: ServerIdentity) -> bool:
    """Return False only if it is known that the server's processes do not listen on its port."""
    return identity.port is None or not identity.ports or identity.port in identity.ports


def apply_ready(
    server: ServerState, ready: bool | None, evidence: str, mono: float, at: float | None = None
) -> ServerState:
    """Fold an HTTP answer that says whether the server serves; only its own port is asked.

    Args:
        server: State so far.
        ready: What the answer says; None: nothing.
        evidence: The answer in words.
        mono: Host monotonic seconds of the answer.
        at: Host wall clock of the answer, if the phase that ends with it was watched from its beginning.
    """
    if not ready or not (server.phase.starting or server.phase is Phase.UNKNOWN):
        return server
    first = server.answered_at
    if server.log.behind and (first is None or mono - first < BACKLOG_PATIENCE_S):
        # The start is in what is still being read, and phases that come after READY would be a later start's.
        return server if first is not None else msgspec.structs.replace(
            server, answers_ready=evidence, answered_at=mono
        )  # fmt: skip
    return _enter(server, Phase.READY, _said_ready(server), evidence, at)


def caught_up(server: ServerState) -> ServerState:
    """Apply an answer that came while the log was behind, as soon as it no longer is."""
    if server.answered_at is None or server.log.behind:
        return server
    evidence, answered_at = server.answers_ready, server.answered_at
    server = msgspec.structs.replace(server, answers_ready="", answered_at=None)
    return apply_ready(server, True, evidence, answered_at)


def _said_ready(server: ServerState) -> LogFact | None:
    """Return the newest line that says ready, which may not have counted yet; None if there is none."""
    return next((fact for fact in reversed(server.facts) if fact.kind == f.READY), None)


def apply_members(server: ServerState, identity: ServerIdentity) -> ServerState:
    """Fold a changed process table: ranks that were seen and are gone are dead."""
    alive = {*identity.living, identity.pid}
    ranks = tuple(
        r if r.pid is None or r.alive == (r.pid in alive) else _after_death(r, r.pid in alive) for r in server.ranks
    )
    server = msgspec.structs.replace(server, identity=identity, ranks=ranks)
    if identity.orphaned:
        return left_over(server)
    if server.phase.starting and identity.port in identity.ports and (said := _said_ready(server)) is not None:
        server = _enter(server, Phase.READY, said)
    dead = [r for r in ranks if not r.alive]
    if not dead or server.phase in (Phase.STOPPING, Phase.STOPPED):
        return server
    told = {tag for error in server.errors for tag in error.ranks}
    silent = [r for r in dead if r.tag not in told]
    explained = any(error.silent or not (error.secondary or error.header) for error in server.errors)
    # A rank that only the log knows may have died before the process table showed it: it is no survivor.
    others = any(r.alive and r.pid is not None for r in ranks)
    if silent and others and not explained:
        # What the others print (a connection closed by its peer) is the consequence; the silence came first.
        names = ", ".join(f"{r.tag} (pid {r.pid})" for r in silent)
        entry = ErrorLine(
            text=f"{names} died without an error of its own: killed from outside, or crashed in native code",
            ranks=tuple(r.tag for r in silent),
            offset=server.log.end,
            at=server.errors[0].at if server.errors else None,
            phase=server.errors[0].phase if server.errors else server.phase,
            silent=True,
        )
        server = msgspec.structs.replace(server, errors=(entry, *server.errors), phase_evidence=entry.text)
    if server.phase.ended:
        return server
    names = ", ".join(f"{r.tag} (pid {r.pid})" for r in dead)
    return _enter(server, Phase.FAILED, None, server.errors[0].text if server.errors else f"rank died: {names}")


def left_over(server: ServerState) -> ServerState:
    """Mark a server as failed whose leader has ended and left ranks behind, whatever its log says."""
    server = msgspec.structs.replace(server, left_pids=server.identity.living)
    return _enter(server, Phase.FAILED, None, "its leader has ended; ranks are left over")


def apply_gone(server: ServerState, left: tuple[int, ...], at: float | None) -> ServerState:
    """Fold the end of the leader. The log decides whether it was wanted, not an exit code: vLLM's is 0 either way."""
    wanted = server.phase in (Phase.STOPPING, Phase.STOPPED)
    ranks = tuple(_after_death(r, r.pid in left) if r.pid is not None else r for r in server.ranks)
    server = msgspec.structs.replace(server, gone=True, left_pids=left, ranks=ranks)
    if server.identity.orphaned and not left:
        return msgspec.structs.replace(server, phase_evidence="what its leader left over has ended too")
    if server.phase is Phase.FAILED:
        return _close_last(server, at)
    if wanted:
        return _enter(server, Phase.STOPPED, None, server.phase_evidence or "stopped by its operator", at)
    if server.errors:
        return _enter(server, Phase.FAILED, None, server.errors[0].text, at)
    return _enter(
        server, Phase.FAILED, None, "ended without a word: killed from outside, or its log is not readable", at
    )


def still_left(server: ServerState, left: tuple[int, ...]) -> ServerState:
    """Update the left-over pids and mark ended ranks dead."""
    if left == server.left_pids:
        return server
    ranks = tuple(
        r if r.pid is None or r.alive == (r.pid in left) else _after_death(r, r.pid in left) for r in server.ranks
    )
    return msgspec.structs.replace(server, left_pids=left, ranks=ranks)


def dead(rank: RankState) -> RankState:
    """Return a rank as dead: it holds no memory, whatever the driver's last list said; what it held before is kept."""
    last = rank.memory if rank.memory != RankMemory() else rank.last_memory
    return msgspec.structs.replace(rank, alive=False, memory=RankMemory(), last_memory=last)


def _after_death(rank: RankState, alive: bool) -> RankState:
    return msgspec.structs.replace(rank, alive=True) if alive else dead(rank)


def start_seconds(server: ServerState) -> float | None:
    """Return seconds from the first phase to ready; None while it starts or if its beginning was not seen."""
    if server.phases and server.phases[0].phase is Phase.ARGS and server.phases[-1].ended is not None:
        return server.phases[-1].ended - server.phases[0].started
    return None


def _begins_anew(server: ServerState) -> bool:
    early = {Phase.ARGS, Phase.CUDA_INIT, Phase.DIST_INIT}
    return any(record.phase not in early for record in server.phases) or server.phase.ended


def _forget_start(server: ServerState) -> ServerState:
    """Reset what an earlier start in the same log said about itself."""
    ranks = tuple(
        msgspec.structs.replace(r, log_terms=MemoryTerms(), phase=Phase.UNKNOWN, available_gib=None)
        for r in server.ranks
    )
    phase = server.phase if server.identity.orphaned else Phase.UNKNOWN
    return msgspec.structs.replace(
        server, phase=phase, phases=(), started_in_s=None, errors=(), facts=(), kv_tokens=None, ranks=ranks,
        settings={}, batches={}, prefills={}, log_clock=None,
    )  # fmt: skip


def _rank_fact(server: ServerState, fact: LogFact) -> ServerState:
    """Fold what a line says about the rank that printed it (the only rank, when lines carry no tag).

    While the process table has shown no ranks yet, the log may name them; afterwards a tag that no process has is a
    part of the engine that is no rank (vLLM's engine core).
    """
    tag = fact.rank
    if tag is None:
        about_memory = fact.kind in (f.WEIGHTS, f.KV_POOL, f.GRAPHS, f.MEMORY, f.POOL_END)
        if len(server.ranks) > 1 or not (server.ranks or about_memory):
            return server
        tag = server.ranks[0].tag if server.ranks else "TP0"
    elif any(r.pid is not None for r in server.ranks) and all(r.tag != tag for r in server.ranks):
        return server
    rank = next((r for r in server.ranks if r.tag == tag), None) or RankState(tag=tag)
    available = fact.fields.get("available_gib")
    phase = fact.fields.get("phase") if fact.kind in (f.PHASE_BEGIN, f.PHASE_END, f.PROGRESS) else None
    if fact.kind in (f.KV_POOL, f.POOL_END) and rank.phase is not Phase.GRAPH_CAPTURE:
        phase = Phase.KV_ALLOC  # a pool that is sized after the graphs is printed while they are captured
    if server.phase is Phase.WARMUP:
        phase = None  # warm-up is the server's: no rank has a phase of its own any more
    changed = msgspec.structs.replace(
        rank,
        log_terms=terms_from_fact(rank.log_terms, fact),
        last_line_at=wall_time(server, fact.at) or rank.last_line_at,
        available_gib=available if available is not None else rank.available_gib,
        phase=Phase(phase) if phase else rank.phase,
    )
    if changed == rank and rank in server.ranks:
        return server
    others = [r for r in server.ranks if r.tag != tag]
    return msgspec.structs.replace(server, ranks=tuple(sorted([*others, changed], key=lambda r: rank_order(r.tag))))


def rank_order(tag: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key of a tag: `TP2` before `TP10`, and `DP0 TP1` before `DP1 TP0`."""
    order = []
    for part in tag.split():
        digits = part.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
        order.append((int(digits) if digits.isdigit() else 0, part.rstrip("0123456789")))
    return tuple(order)


_FACT_PHASE = {f.WEIGHTS: Phase.WEIGHT_LOAD, f.KV_POOL: Phase.KV_ALLOC, f.GRAPHS: Phase.GRAPH_CAPTURE}


def _progress(server: ServerState, fact: LogFact) -> ServerState:
    if fact.kind == f.KV_POOL and fact.fields.get("tokens") is not None and server.kv_tokens is None:
        server = msgspec.structs.replace(server, kv_tokens=fact.fields["tokens"])
    named = fact.fields.get("phase")
    phase = Phase(named) if named else _FACT_PHASE.get(fact.kind, Phase.UNKNOWN)
    if phase is Phase.UNKNOWN or not (server.phase.starting or server.phase is Phase.UNKNOWN):
        return server
    # A progress bar has no prefix, so it seems to be of the rank whose line came before; only one rank draws it.
    if fact.kind != f.PROGRESS and not _speaks_for_server(server, fact.rank):
        return server
    if phase is Phase.WEIGHT_LOAD and fact.kind == f.PHASE_BEGIN and _has_weights(server, fact.rank):
        phase = Phase.DRAFT_INIT
        if server.phases[-1].phase is Phase.KV_ALLOC and server.kv_tokens is None:
            # SGLang 0.5.14 and later load the draft before they size any pool.
            server = msgspec.structs.replace(server, phases=server.phases[:-1])
    seen = [record.phase for record in server.phases]
    if phase not in seen or (fact.kind == f.PHASE_BEGIN and phase is not server.phase):
        server = _enter(server, phase, fact)
    if fact.kind == f.WEIGHTS and server.phase in (Phase.WEIGHT_LOAD, Phase.DRAFT_INIT):
        # Engines size the KV pool next and say so only when it is allocated; a start that fails in between fails there.
        server = _enter(server, Phase.KV_ALLOC, fact)
    if fact.kind == f.PROGRESS and server.phases and server.phases[-1].phase is phase:
        last = msgspec.structs.replace(
            server.phases[-1],
            done=fact.fields.get("done"),
            total=fact.fields.get("total"),
            detail=fact.fields.get("detail"),
        )
        server = msgspec.structs.replace(server, phases=(*server.phases[:-1], last))
    return server


def _has_weights(server: ServerState, rank: str | None) -> bool:
    """Return whether a rank has loaded weights before: what it loads now is the draft model."""
    return any(r.log_terms.weights_bytes is not None for r in server.ranks if rank in (None, r.tag))


def _speaks_for_server(server: ServerState, rank: str | None) -> bool:
    """Return whether a rank is the first, whose lines alone move the server's phase: several would make it flap."""
    if rank is None:
        return True
    return rank == min((r.tag for r in server.ranks), key=rank_order, default=rank)


def _enter(
    server: ServerState, phase: Phase, fact: LogFact | None, evidence: str | None = None, at: float | None = None
) -> ServerState:
    """Move to a phase: end the running record, and begin one if it is a start-up phase."""
    when = wall_time(server, fact.at) if fact is not None else at
    text = evidence or (fact.text if fact is not None else "")
    if phase is server.phase or (server.identity.orphaned and phase is not Phase.FAILED):
        return server
    phases = server.phases
    if when is None and phases:
        when = phases[-1].started if phases[-1].ended is None else phases[-1].ended
    if phases and phases[-1].ended is None:
        phases = (*phases[:-1], msgspec.structs.replace(phases[-1], ended=when))
    if phase.starting:
        started = when if when is not None else (server.identity.started_at or 0.0)
        if phase is Phase.ARGS and server.identity.started_at is not None:
            # Imports run before the first line: they are part of the start its operator waits for.
            started = min(started, server.identity.started_at)
        phases = (*phases, PhaseRecord(phase=phase, started=started))[-KEEP_PHASES:]
    server = msgspec.structs.replace(server, phase=phase, phase_evidence=text, phases=phases)
    if phase is Phase.WARMUP:
        quiet = tuple(msgspec.structs.replace(rank, phase=Phase.UNKNOWN) for rank in server.ranks)
        server = msgspec.structs.replace(server, ranks=quiet)
    if phase is Phase.READY:
        server = msgspec.structs.replace(server, started_in_s=start_seconds(server))
    return server


def _close_last(server: ServerState, at: float | None) -> ServerState:
    if server.phases and server.phases[-1].ended is None and at is not None:
        last = msgspec.structs.replace(server.phases[-1], ended=at)
        return msgspec.structs.replace(server, phases=(*server.phases[:-1], last))
    return server


def _error(server: ServerState, fact: LogFact) -> ServerState:
    secondary, header = bool(fact.fields.get("secondary")), bool(fact.fields.get("header"))
    if not (secondary or header) and any(error.silent for error in server.errors):
        # The log comes after the process table: this line says why ranks died that seemed to have died in silence.
        server = msgspec.structs.replace(server, errors=tuple(error for error in server.errors if not error.silent))
    noted = _note_error(server, fact)
    if server.phase in (Phase.STOPPING, Phase.STOPPED) or secondary or server.identity.orphaned:
        return noted
    if server.phase is Phase.FAILED and noted.errors and noted.errors[0] is not _first(server.errors):
        # "Scheduler hit an exception" said that, the exception that follows says why.
        return msgspec.structs.replace(noted, phase_evidence=noted.errors[0].text)
    if server.phase.starting or fact.fields.get("fatal"):
        return _enter(noted, Phase.FAILED, fact, fact.fields.get("summary"))
    return noted


def _note_error(server: ServerState, fact: LogFact) -> ServerState:
    """Note an error; the same one of several ranks is one entry, first rank first.

    A header ("Scheduler hit an exception") gives way to the exception that it announces.
    """
    text = str(fact.fields.get("summary") or fact.text)
    rank = fact.rank
    header = bool(fact.fields.get("header"))
    secondary = bool(fact.fields.get("secondary")) or fact.kind == f.DIED
    if not header and server.errors and server.errors[-1].header:
        announced = server.errors[-1]
        known = next((x for x in server.errors[:-1] if x.text == text), None)
        if known is None:
            named = msgspec.structs.replace(announced, text=text, header=False, secondary=secondary)
            return msgspec.structs.replace(server, errors=(*server.errors[:-1], named))
        server = msgspec.structs.replace(server, errors=server.errors[:-1])
    for index, known in enumerate(server.errors):
        if known.text == text and not header:
            ranks = known.ranks if rank is None or rank in known.ranks else (*known.ranks, rank)
            merged = msgspec.structs.replace(known, ranks=ranks, count=known.count + 1)
            return msgspec.structs.replace(server, errors=(*server.errors[:index], merged, *server.errors[index + 1 :]))
    if len(server.errors) >= KEEP_ERRORS:
        return server
    phase = server.phase
    if phase is Phase.FAILED and server.phases:
        phase = server.phases[-1].phase
    entry = ErrorLine(
        text=text,
        ranks=() if rank is None else (rank,),
        offset=fact.offset,
        at=wall_time(server, fact.at),
        phase=phase,
        header=header,
        secondary=secondary,
    )
    return msgspec.structs.replace(server, errors=(*server.errors, entry))


def _first(errors: tuple[ErrorLine, ...]) -> ErrorLine | None:
    return errors[0] if errors else None
