"""Advice from the numbers of a server and its host.

Advice on throughput needs queued requests: with one request at a time queue and pool usage are low, and rightly so.
"""

from __future__ import annotations

from tuner.core import hang
from tuner.core.diagnosis.case import Case
from tuner.core.engine import Engine
from tuner.core.scene import tenant_amount, tenant_words
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Severity
from tuner.domain.server import Phase
from tuner.domain.starts import Start
from tuner.domain.state import HostState, Series, ServerState
from tuner.units import GIB

WINDOW_S = 60.0
"""Seconds of history that advice is based on."""
_POINTS = 5
"""Fewest readings in that time that advice is based on."""
_FULL = 0.9
"""Share of the KV pool's tokens in use from which the pool counts as full."""
_HITS = 0.3
"""Least cache hit ratio for advice on the order of the queue."""
TENANT_BYTES = 1 << 30
"""Least bytes of a foreign process that are reported: a display or a monitor holds less."""


def advise(state: HostState, server: ServerState, engine: Engine) -> tuple[Finding, ...]:
    """Return the findings that follow from the live numbers of a server and its host.

    Args:
        state: State of its host.
        server: The server.
        engine: Its engine.
    """
    case = Case(server.start or Start(engine=engine.name), None, engine)
    judges = STARTING if server.phase.starting else SERVING if server.phase is Phase.READY else ()
    return tuple(found for judge in judges if (found := judge(state, server, case)) is not None)


def _recent(series: Series, now: float) -> list[float]:
    """Return the values of the last `WINDOW_S`; empty if they are too few or span less than half of it."""
    values = [point.value for point in series if now - WINDOW_S <= point.t <= now]
    spans = len(values) >= _POINTS and now - next(p.t for p in series if p.t >= now - WINDOW_S) >= WINDOW_S / 2
    return values if spans else []


def _waiting(state: HostState, server: ServerState) -> tuple[float, float, float] | None:
    """Return the least queue, least running and greatest pool usage of the window.

    None unless requests waited all the time and the pool was never full.
    """
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


def _limit(server: ServerState, case: Case) -> int | None:
    start = server.start
    told = start.limits.get("max_running_requests") if start is not None else None
    name = case.named("max_running_requests")
    value = told.value if told is not None else server.settings.get(name)
    return int(value) if isinstance(value, int | float) else None


def _capped(state: HostState, server: ServerState, case: Case) -> Finding | None:
    seen, limit = _waiting(state, server), _limit(server, case)
    if seen is None or limit is None or seen[1] < limit:
        return None
    knob = case.named("max_running_requests")
    return case.finding(
        "requests-capped",
        f"For a minute {limit} requests ran, as many as are allowed, and others waited, with {seen[2]:.0%} of the"
        " KV pool in use at most.",
        severity=Severity.INFO,
        phase="decode",
        ranks=None,
        confidence=Confidence.HIGH,
        evidence=[*_numbers(server, seen[2]), case.derived(knob, limit, "requests")],
        remedies=[case.remedy(knob, Move.RAISE, "the pool has room for more")],
        refuted_by="a full pool in the same minute",
    )


def _conservative(state: HostState, server: ServerState, case: Case) -> Finding | None:
    seen, limit = _waiting(state, server), _limit(server, case)
    knob = "schedule_conservativeness"
    if seen is None or knob not in case.engine.knobs() or (limit is not None and seen[1] >= limit) or seen[1] < 2:
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
        remedies=[case.remedy(knob, Move.LOWER, "admits more at once; more may be put back", value=0.3)],
        refuted_by="prefill being the bottleneck: long prompts that arrive faster than they are computed",
    )


def _order(state: HostState, server: ServerState, case: Case) -> Finding | None:
    hits, queued = server.metrics.cache_hit_ratio, _recent(server.series.get("queued", ()), state.mono)
    known = "schedule_policy" in case.engine.knobs()
    if not known or hits is None or hits < _HITS or not queued or min(queued) < 2:
        return None
    if server.settings.get("schedule_policy") not in ("fcfs", None):
        return None
    return case.finding(
        "prefix-order",
        f"{hits:.0%} of the prompt tokens come from the prefix cache, and requests wait: served by longest shared"
        " prefix, more would.",
        severity=Severity.INFO,
        phase="prefill",
        ranks=None,
        confidence=Confidence.LOW,
        evidence=[Evidence(what="cache hit rate", value=round(hits, 2))],
        remedies=[case.remedy("schedule_policy", Move.SET, "orders the queue by longest shared prefix", value="lpm")],
        refuted_by="prefixes that all requests share alike",
    )


def _tenant(state: HostState, server: ServerState, case: Case) -> Finding | None:
    """Report foreign processes that hold memory of the server's GPUs before anything fails of it."""
    used = {rank.gpu for rank in server.ranks if rank.gpu is not None}
    tenants = [each for each in state.foreign if each.gpu in used and (each.memory_bytes or 0) >= TENANT_BYTES]
    if not tenants:
        return None
    gpus = {each.gpu for each in tenants}
    totals = {gpu.index: gpu.memory_total_bytes for gpu in state.gpu_table.gpus} if state.gpu_table else {}
    free = [
        case.derived(f"free on GPU {sample.index}", round((total - sample.memory_used_bytes) / GIB, 2), "GiB")
        for sample in state.samples
        if sample.index in gpus and (total := totals.get(sample.index)) and sample.memory_used_bytes is not None
    ]
    return case.finding(
        "foreign-process-on-gpu",
        f"{'; '.join(tenant_words(each) for each in tenants[:4])}. What it takes more is missing to this server.",
        severity=Severity.INFO,
        phase="none",
        ranks=tuple(sorted(case.layout.number(rank.tag) for rank in server.ranks if rank.gpu in gpus)),
        confidence=Confidence.HIGH,
        evidence=[*(amount for each in tenants[:4] if (amount := tenant_amount(each)) is not None), *free],
        remedies=[case.advice("gpu-processes", "ask its owner, or keep it off the GPUs of this server")],
        refuted_by="the driver's list of processes without it",
    )


STARTING = (hang.start, _tenant)
SERVING = (hang.serving, _tenant, _capped, _conservative, _order)
