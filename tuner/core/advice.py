"""Advice from the numbers of a running server, and what tells a start that hangs from one that is slow.

Nothing here is flagged at one request at a time: queue and pool are always low then, and rightly so.
"""

from __future__ import annotations

from tuner.core.diagnosis.case import Case
from tuner.core.engine import Engine
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Severity
from tuner.domain.server import Phase
from tuner.domain.starts import Start
from tuner.domain.state import HostState, Series, ServerState

WINDOW_S = 60.0
"""Numbers are judged by what they were for so long."""
_POINTS = 5
"""And by no fewer readings."""
_FULL = 0.9
_HITS = 0.3
_SILENT_S = {Phase.DIST_INIT: 120.0, Phase.GRAPH_CAPTURE: 300.0, Phase.KV_ALLOC: 180.0}
"""Longest silence of a phase that is common. Others print progress, or compile for a long time."""
_SLOWER = 3.0
"""So many times what a phase took in earlier starts is no longer a matter of luck."""
_IDLE = 0.05


def advise(state: HostState, server: ServerState, engine: Engine) -> tuple[Finding, ...]:
    """What the numbers of a server say.

    Args:
        state: Its host.
        server: The server.
        engine: Its engine.
    """
    case = Case(server.start or Start(engine=engine.name), None, engine)
    judges = (
        (_hang,) if server.phase.starting else (_capped, _conservative, _order) if server.phase is Phase.READY else ()
    )
    return tuple(found for judge in judges if (found := judge(state, server, case)) is not None)


def _recent(series: Series, now: float) -> list[float]:
    """What a number was in the window; empty where that is too little to judge by."""
    values = [point.value for point in series if now - WINDOW_S <= point.t <= now]
    spans = len(values) >= _POINTS and now - next(p.t for p in series if p.t >= now - WINDOW_S) >= WINDOW_S / 2
    return values if spans else []


def _waiting(state: HostState, server: ServerState) -> tuple[float, float, float] | None:
    """Least queue, least running and most pool usage of the window, where requests waited all the time."""
    queued, running, usage = (
        _recent(server.series.get(name, ()), state.mono) for name in ("queued", "running", "token_usage")
    )
    if not queued or not running or not usage or min(queued) < 1 or max(usage) >= _FULL:
        return None
    return min(queued), min(running), max(usage)


def _numbers(server: ServerState, most: float) -> tuple[Evidence, ...]:
    live = server.metrics
    return (
        Evidence(what="#queue-req", value=live.queued, unit="requests"),
        Evidence(what="#running-req", value=live.running, unit="requests"),
        Evidence(what="token usage, most of the last minute", value=round(most, 2)),
    )


def _limit(server: ServerState) -> int | None:
    start = server.start
    told = start.limits.get("max_running_requests") if start is not None else None
    value = (
        told.value
        if told is not None
        else server.settings.get("max_running_requests", server.settings.get("max_num_seqs"))
    )
    return int(value) if isinstance(value, int | float) else None


def _capped(state: HostState, server: ServerState, case: Case) -> Finding | None:
    seen, limit = _waiting(state, server), _limit(server)
    if seen is None or limit is None or seen[1] < limit:
        return None
    knob = "max_num_seqs" if case.start.engine == "vllm" else "max_running_requests"
    return case.finding(
        "requests-capped",
        f"For a minute {limit} requests ran, as many as are allowed, and others waited, with {seen[2]:.0%} of the"
        " KV pool"
        " in use at most.",
        severity=Severity.INFO,
        phase="decode",
        ranks=None,
        confidence=Confidence.HIGH,
        evidence=[*_numbers(server, seen[2]), case.derived(knob, limit, "requests")],
        remedies=[case.remedy(knob, Move.RAISE, "the pool has room for more")],
        refuted_by="a full pool in the same minute",
    )


def _conservative(state: HostState, server: ServerState, case: Case) -> Finding | None:
    seen, limit = _waiting(state, server), _limit(server)
    if seen is None or case.start.engine != "sglang" or (limit is not None and seen[1] >= limit) or seen[1] < 2:
        return None
    return case.finding(
        "scheduler-conservative",
        f"Requests waited for a minute although the pool was at most {seen[2]:.0%} full: the scheduler keeps room for"
        " tokens that requests might still generate.",
        severity=Severity.INFO,
        phase="decode",
        ranks=None,
        confidence=Confidence.MEDIUM,
        evidence=_numbers(server, seen[2]),
        remedies=[
            case.remedy("schedule_conservativeness", Move.LOWER, "admits more at once; more may be put back", value=0.3)
        ],
        refuted_by="prefill being the bottleneck: long prompts that arrive faster than they are computed",
    )


def _order(state: HostState, server: ServerState, case: Case) -> Finding | None:
    hits, queued = server.metrics.cache_hit_ratio, _recent(server.series.get("queued", ()), state.mono)
    if case.start.engine != "sglang" or hits is None or hits < _HITS or not queued or min(queued) < 2:
        return None
    if server.settings.get("schedule_policy") not in ("fcfs", None):
        return None
    return case.finding(
        "prefix-order",
        f"{hits:.0%} of the prompt tokens come from the prefix cache, and requests wait: served by longest shared"
        " prefix,"
        " more would.",
        severity=Severity.INFO,
        phase="prefill",
        ranks=None,
        confidence=Confidence.LOW,
        evidence=[Evidence(what="cache hit rate", value=round(hits, 2))],
        remedies=[case.remedy("schedule_policy", Move.SET, "orders the queue by longest shared prefix", value="lpm")],
        refuted_by="prefixes that all requests share alike",
    )


def _hang(state: HostState, server: ServerState, case: Case) -> Finding | None:
    """No line, no work on the GPUs and no growing memory, for longer than this phase ever takes."""
    grown, phase = server.log.grown_at, server.phase
    if grown is None or server.log.behind or not server.phases:
        return None
    silent = state.mono - grown
    usual = server.usual.phases_s.get(phase)
    limit = max(_SILENT_S.get(phase, 600.0), usual[1] * _SLOWER if usual is not None else 0.0)
    gpus = {rank.gpu for rank in server.ranks if rank.gpu is not None}
    busy = [s.utilization_ratio for s in state.samples if s.index in gpus and s.utilization_ratio is not None]
    if silent < limit or not busy:
        return None
    spinning = min(busy) > 1 - _IDLE
    if not spinning and max(busy) > _IDLE:
        return None
    capture = phase is Phase.GRAPH_CAPTURE
    quiet = [rank for rank in server.ranks if rank.last_line_at is not None]
    behind = min(quiet, key=lambda rank: rank.last_line_at or 0.0, default=None)
    doing = "all of them wait in a collective" if spinning else "none of them computes"
    words = f"No line for {silent:.0f} s in {phase}, and of its GPUs {doing}."
    if usual is not None:
        words += f" Earlier starts were through it in {usual[0]:.0f} to {usual[1]:.0f} s."
    if behind is not None and len(quiet) > 1:
        words += f" {behind.tag} printed its last line before the others."
    return case.finding(
        "graph-capture-hang" if capture else "start-hang",
        words,
        severity=Severity.ERROR,
        phase=str(phase),
        ranks=None,
        confidence=Confidence.MEDIUM if usual is not None or spinning else Confidence.LOW,
        evidence=[
            case.derived("silence", round(silent), "s"),
            case.derived("GPU utilisation", f"{min(busy):.0%} to {max(busy):.0%}"),
        ],
        remedies=[
            case.remedy("disable_custom_all_reduce", Move.SET, "an exception may hide behind its exchange", value=True)
            if capture else None,
            case.advice("py-spy", "py-spy dump --pid of each rank shows where it waits"),
            case.remedy("nccl_debug", Move.SET, "NCCL then says what it does", value="INFO"),
        ],
        refuted_by="a line, or GPUs that begin to work",
    )  # fmt: skip
