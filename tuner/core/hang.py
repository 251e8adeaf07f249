"""Tells a server that hangs from one that is slow.

A slow server prints, computes or fills memory. One that hangs is silent for longer than is usual, its memory does
not grow, and its GPUs do one of three things: all spin in a collective that never completes, some spin and wait for
others that do nothing, or none works.
"""

from __future__ import annotations

from msgspec import Struct

from tuner.core.diagnosis.case import Case
from tuner.core.finding_words import value_text
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy, Severity
from tuner.domain.gates import PathState
from tuner.domain.server import Phase
from tuner.domain.state import HostState, PhaseRecord, RankState, ServerState

HANGS = ("graph-capture-hang", "start-hang", "watchdog-hang")
"""Causes of the findings that are made here."""
SILENT_S = {Phase.DIST_INIT: 120.0, Phase.GRAPH_CAPTURE: 300.0, Phase.KV_ALLOC: 180.0}
"""Seconds of silence that are still usual, by phase."""
SILENT_ELSE_S = 600.0
"""Seconds of silence that are still usual in other phases, which print progress or may compile for a long time."""
STUCK_S, STEPS = 45.0, 20.0
"""A phase that printed progress is stuck after a silence of more than both: seconds, and times its mean step."""
LATE_S, LATE_TIMES = 60.0, 3.0
"""A phase is late that takes longer than both: seconds, and times the longest it took in earlier starts."""
STOPPED_S = 10.0
"""Seconds of silence, or of being stopped, before a stopped process is reported."""
SERVING_S = 60.0
"""Seconds without a token before a server with running requests is reported."""
WATCHED_S = 20.0
"""Seconds of GPU utilisation that are looked at."""
_FEW = 5
"""Fewest readings, or steps of progress, to conclude from."""
_IDLE, _BUSY = 0.05, 0.95
"""Utilisation ratio up to which a GPU is idle, and from which it spins."""


class Work(Struct, frozen=True):
    """Ranks whose GPUs were idle, and ranks whose GPUs spun, during the last `WATCHED_S`."""

    idle: tuple[RankState, ...]
    busy: tuple[RankState, ...]

    @property
    def mixed(self) -> bool:
        """Whether some ranks spin while others are idle: the idle ones are waited for."""
        return bool(self.idle) and bool(self.busy)

    @property
    def words(self) -> str:
        """What the GPUs do, as the end of a sentence."""
        if self.mixed:
            return f"{_tags(self.idle)} {_do(self.idle)} nothing while {_tags(self.busy)} {_spin(self.busy)}"
        if self.busy:
            return "all of its GPUs spin as in a collective that never completes"
        return "none of its GPUs works"


class Halted(Struct, frozen=True):
    """A process of a server that is stopped (process state T)."""

    name: str
    pid: int
    rank: RankState | None = None


def late(state: HostState, server: ServerState, record: PhaseRecord) -> bool:
    """Return whether the running phase takes longer, by far, than in any earlier start."""
    usual = server.usual.phases_s.get(record.phase)
    took = 0.0 if state.now is None else state.now - record.started
    return usual is not None and took > max(LATE_S, LATE_TIMES * usual[1])


def start(state: HostState, server: ServerState, case: Case) -> Finding | None:
    """Report a start that hangs; None if it does not."""
    silent = _silence(state, server)
    if silent is None or not server.phases:
        return None
    stopped = stopped_parts(server)
    work = _work(state, server)
    if not (stopped and silent > STOPPED_S) and (work is None or not _too_long(state, server, silent, work)):
        return None
    record, usual = server.phases[-1], server.usual.phases_s.get(server.phase)
    words = f"No line for {silent:.0f} s in {server.phase}, no memory that grows"
    words += f", and {work.words}." if work is not None else "."
    words += _stopped_words(stopped)
    if usual is not None:
        words += f" Earlier starts were through it in {_span(*usual)}."
    capture = server.phase is Phase.GRAPH_CAPTURE
    sure = bool(stopped)
    likely = usual is not None or (work is not None and bool(work.busy))
    return case.finding(
        "graph-capture-hang" if capture else "start-hang",
        words,
        severity=Severity.ERROR,
        phase=str(server.phase),
        ranks=_blamed(case, stopped, work),
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM if likely else Confidence.LOW,
        evidence=[
            case.derived("silence", round(silent), "s"),
            case.derived("progress", f"{record.done} of {record.total}") if record.total else None,
            *_shares(case, work),
        ],
        remedies=[
            _continue(case, stopped),
            case.remedy("disable_custom_all_reduce", Move.SET, "an exception may hide behind its exchange", value=True)
            if capture and not stopped and _exchanges(case) else None,
            _look(case, server, stopped, work),
            case.remedy("nccl_debug", Move.SET, "NCCL then says what it does", value="INFO") if not stopped else None,
        ],
        refuted_by="a line, memory that grows, or GPUs that begin to work",
        at=case.start.last or None,
    )  # fmt: skip


def _span(least: float, most: float) -> str:
    if most < 1.0:
        return "less than a second"
    low, high = f"{least:.0f}", f"{most:.0f}"
    return f"{high} s" if low == high else f"{low} to {high} s"


def _exchanges(case: Case) -> bool:
    """Return whether custom all-reduce may run, as far as is known."""
    ways = [path for path in case.all_reduce.paths if path.id.startswith("custom")] if case.all_reduce else []
    return not ways or any(path.state is not PathState.CLOSED for path in ways)


def serving(state: HostState, server: ServerState, case: Case) -> Finding | None:
    """Report a serving engine whose requests make no token, or of which a process is stopped; None otherwise."""
    stopped = stopped_parts(server)
    idle = _without_work(state, server)
    work = _work(state, server)
    running: float | None = None
    if idle is not None and idle >= (STOPPED_S if stopped else SERVING_S):
        running = _waiting(state, server, idle, answers=not stopped)
    if running is None or idle is None:
        return _halted(state, server, case, stopped)
    if not stopped and (work is None or not work.busy):
        return None
    words = f"{value_text(running, 'requests')} {'runs' if running == 1 else 'run'}"
    words += f", and for {idle:.0f} s no token came and no batch was logged"
    words += f"; {work.words}." if work is not None else "."
    words += _stopped_words(stopped)
    return case.finding(
        "watchdog-hang",
        words,
        severity=Severity.ERROR,
        phase="decode",
        ranks=_blamed(case, stopped, work),
        confidence=Confidence.HIGH if stopped else Confidence.MEDIUM,
        evidence=[
            case.derived("without a token", round(idle), "s"),
            Evidence(what="#running-req", value=running, unit="requests"),
            *_shares(case, work),
        ],
        remedies=[_continue(case, stopped), _look(case, server, stopped, work)],
        refuted_by="a token, or a line of the engine",
        at=case.start.last or None,
    )


def _halted(state: HostState, server: ServerState, case: Case, stopped: tuple[Halted, ...]) -> Finding | None:
    """Report processes stopped for at least `STOPPED_S`, longer than a debugger looks, even if no request waits."""
    since = server.explain.halted_since
    if not stopped or since is None or state.mono - since < STOPPED_S:
        return None
    return case.finding(
        "watchdog-hang",
        f"{_stopped_words(stopped).strip()} Whatever needs {'it' if len(stopped) == 1 else 'them'} waits.",
        severity=Severity.ERROR,
        phase="decode",
        ranks=_blamed(case, stopped, None),
        confidence=Confidence.HIGH,
        evidence=[case.derived("stopped for at least", round(state.mono - since), "s")],
        remedies=[_continue(case, stopped)],
        refuted_by="a process that goes on",
        at=case.start.last or None,
    )


def _silence(state: HostState, server: ServerState) -> float | None:
    """Return seconds without a log line and without memory that grew; None if neither can be seen.

    Access-log lines do not count: our own polling causes them.
    """
    return _since(state, server, server.log.said_at)


def _without_work(state: HostState, server: ServerState) -> float | None:
    """Return seconds of requests without a token, a batch in the log or memory that grew; None if unknown.

    The HTTP server prints refusals and complaints even while the engine hangs, so once work was seen other lines do
    not count.
    """
    made = [point.t for point in server.series.get("tok_s", ()) if point.value > 0]
    known = [at for at in (server.log.worked_at, *made[-1:]) if at is not None]
    if not known and server.log.said_at is not None:
        known.append(server.log.said_at)
    known += [point.t for point in server.series.get("running", ()) if point.value < 1][-1:]
    return _since(state, server, max(known, default=server.metrics.at))


def _since(state: HostState, server: ServerState, at: float | None) -> float | None:
    if at is None or server.log.behind:
        return None
    still = server.explain.still_since
    return state.mono - max(at, still if still is not None else at)


def _waiting(state: HostState, server: ServerState, idle: float, *, answers: bool) -> float | None:
    """Return how many requests run without progress; None if none do, or it is not known."""
    since = state.mono - idle
    told = server.series.get("running", ())
    running = [point.value for point in told if point.t > since]
    if len(running) < _FEW:
        # A server that was stopped as a whole no longer answers: the requests it last told are those that wait.
        running = [] if answers else [point.value for point in told[-1:]]
    usage = {point.value for point in server.series.get("token_usage", ()) if point.t >= since + STOPPED_S / 2}
    # Usage that changes is progress: a long prompt fills the pool before its first token.
    return running[-1] if running and running[-1] >= 1 and len(usage) <= 1 else None


def _too_long(state: HostState, server: ServerState, silent: float, work: Work) -> bool:
    """Return whether a start is silent for longer than is usual in its phase."""
    record = server.phases[-1]
    stuck = False
    if record.done is not None and record.done >= _FEW and state.now is not None:
        step = (state.now - silent - record.started) / record.done
        stuck = silent > max(STUCK_S, STEPS * step)
    if server.phase in server.usual.phases_s:
        return (stuck and work.mixed) or (late(state, server, record) and silent > LATE_S)
    return (stuck and bool(work.busy)) or silent > SILENT_S.get(server.phase, SILENT_ELSE_S)


def _work(state: HostState, server: ServerState) -> Work | None:
    """Return which ranks are idle and which spin; None if a GPU does neither or has too few readings."""
    idle, busy = [], []
    for rank in server.ranks:
        points = state.gpu_series.get(rank.gpu, ()) if rank.gpu is not None else ()
        values = [point.value for point in points if point.t >= state.mono - WATCHED_S]
        if len(values) < _FEW:
            return None
        if max(values) <= _IDLE:
            idle.append(rank)
        elif min(values) >= _BUSY:
            busy.append(rank)
        else:
            return None
    return Work(tuple(idle), tuple(busy)) if idle or busy else None


def stopped_parts(server: ServerState) -> tuple[Halted, ...]:
    """Return ranks, leader and titled parts of a server that a signal or a debugger stopped, ranks first."""
    halted = {member.pid: member.title for member in server.identity.members if member.state in ("T", "t")}
    ranks = tuple(
        Halted(rank.tag, rank.pid, rank)
        for rank in server.ranks
        if rank.alive and rank.pid is not None and rank.pid in halted
    )
    known = {each.pid for each in ranks}
    leader = server.identity.pid
    parts = {pid: "its leader" if pid == leader else title for pid, title in halted.items() if pid not in known}
    return (*ranks, *(Halted(name, pid) for pid, name in parts.items() if pid == leader or "::" in name))


def _blamed(case: Case, stopped: tuple[Halted, ...], work: Work | None) -> tuple[int, ...] | None:
    """Return the numbers of the ranks that the others wait for; None if not known."""
    halted = tuple(each.rank for each in stopped if each.rank is not None)
    ranks = halted or (work.idle if work is not None and work.mixed and not stopped else ())
    return tuple(sorted(case.layout.number(rank.tag) for rank in ranks)) or None


def _shares(case: Case, work: Work | None) -> list[Evidence]:
    if work is None:
        return []
    return [
        case.derived(f"utilisation of {_tags(ranks)}", told)
        for ranks, told in ((work.idle, f"{_IDLE:.0%} or less"), (work.busy, f"{_BUSY:.0%} or more"))
        if ranks
    ]


def _continue(case: Case, stopped: tuple[Halted, ...]) -> Remedy | None:
    if not stopped:
        return None
    return case.advice("process", "it goes on", f"kill -CONT {' '.join(str(each.pid) for each in stopped)}")


def _look(case: Case, server: ServerState, stopped: tuple[Halted, ...], work: Work | None) -> Remedy | None:
    """Advise to dump the stacks of ranks that wait; None if a process is stopped."""
    if stopped:
        return None
    asked = work.idle if work is not None and work.mixed else server.ranks
    known = [rank for rank in asked if rank.pid is not None][:4]
    if not known:
        return case.advice("py-spy", "py-spy dump --pid of each rank shows where it waits")
    others = ", ".join(f"{rank.pid} ({rank.tag})" for rank in known[1:])
    where = f"where {known[0].tag} waits" + (f"; then {others}" if others else "")
    return case.advice("py-spy", where, f"py-spy dump --pid {known[0].pid}")


def _tags(ranks: tuple[RankState, ...]) -> str:
    names = [rank.tag for rank in ranks]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"


def _stopped_words(stopped: tuple[Halted, ...]) -> str:
    """Return the stopped processes as a sentence, with a space before it; empty if there are none."""
    if not stopped:
        return ""
    named = ", ".join(f"{each.name} (pid {each.pid})" for each in stopped)
    if named.startswith("its "):
        named = f"I{named[1:]}"  # a title is written as the process has it
    return f" {named} {'is' if len(stopped) == 1 else 'are'} stopped, as by SIGSTOP or a debugger."


def _do(ranks: tuple[RankState, ...]) -> str:
    return "does" if len(ranks) == 1 else "do"


def _spin(ranks: tuple[RankState, ...]) -> str:
    return "spins in a collective" if len(ranks) == 1 else "spin in a collective"
