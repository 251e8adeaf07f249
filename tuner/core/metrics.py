"""Live numbers of a server, folded from metrics, load endpoints or batch lines into one shape.

Sources in order of trust: a counter that grows while requests run (`realtime_decode_tokens_total`), a gauge of the
engine's last interval, a log line. Counters that grow only when a request ends (`generation_tokens_total`) are right
over minutes and useless over seconds, so their rate is used only where nothing else exists. Engines know which of
theirs is which.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.core import facts as f
from tuner.core import series as s
from tuner.domain.logs import LogFact
from tuner.domain.plan import NUMBERS_EVERY_S
from tuner.domain.state import Series, ServerMetrics, ServerState
from tuner.units import whole

NAMES = frozenset(
    {
        "tok_s", "prompt_tok_s", "running", "queued", "token_usage", "used_tokens", "max_total_tokens",
        "accept_length", "cache_hit", "retracted_total", "generation_tokens_total", "prompt_tokens_total",
        "realtime_decode_tokens_total", "realtime_prefill_tokens_total", "ttft_sum", "ttft_count", "itl_sum",
        "itl_count", "spec_drafts_total", "spec_accepted_total", "requests_total",
    }
)  # fmt: skip
"""What `Reading.metrics` may hold. Ratios are 0 to 1, times are seconds, `_total` are counters."""

RATE_WINDOW_S = 3.0
"""Seconds over which rates are taken: long enough to smooth the steps of a decode batch, short enough to feel live."""
LATENCY_WINDOW_S = 30.0
"""Seconds over which latencies and acceptance are averaged."""
FINISHED_WINDOW_S = 60.0
"""Seconds over which rates of counters are taken that grow only when a request ends."""
LATE_S = 3.0
"""Seconds after which a reading that was due counts as missing."""
LOG_SILENCE_S = 12.0
"""Seconds without a batch line after which a server is idle: longer than vLLM's statistics interval of 10 s and
SGLang's 40 decode steps of a slow model."""
REPLICA_SILENCE_S = 30.0
"""Seconds of log time without a batch line after which one replica of several is idle."""
PREFILL_SILENCE_S = 5.0
"""Seconds after which a prefill speed is no longer added to that of other ranks: it is the speed of one moment."""
CHARTED = ("tok_s", "running", "queued", "token_usage", "accept_length")

_COUNTERS = (
    "realtime_decode_tokens_total", "realtime_prefill_tokens_total", "generation_tokens_total",
    "prompt_tokens_total", "ttft_sum", "ttft_count", "itl_sum", "itl_count", "spec_drafts_total",
    "spec_accepted_total",
)  # fmt: skip


def from_reading(
    server: ServerState, source: str, values: dict[str, float], mono: float, next_s: float | None = None
) -> ServerState:
    """Fold one metrics or loads answer into the server's numbers and series.

    Args:
        server: State so far.
        source: `metrics` or `loads`.
        values: Numbers by their name in `NAMES`.
        mono: The host's monotonic clock at the answer, seconds.
        next_s: Seconds until the next answer, where it is asked for less often than usual.
    """
    counters = dict(server.counters)
    for name in _COUNTERS:
        if name in values:
            counters[name] = s.append(counters.get(name, ()), mono, values[name], keep_s=90.0)
    tok_s = s.rate(counters.get("realtime_decode_tokens_total", ()), RATE_WINDOW_S)
    if tok_s is None:
        tok_s = values.get("tok_s")
    if tok_s is None:
        tok_s = s.rate(counters.get("generation_tokens_total", ()), FINISHED_WINDOW_S)
    if tok_s is None and values.get("running"):
        tok_s = _sum([batch.fields for batch in server.batches.values()], "tok_s")
    prompt = s.rate(counters.get("realtime_prefill_tokens_total", ()), RATE_WINDOW_S)
    if prompt is None:
        prompt = values.get("prompt_tok_s", s.rate(counters.get("prompt_tokens_total", ()), FINISHED_WINDOW_S))
    old = server.metrics
    metrics = ServerMetrics(
        source=source,
        at=mono,
        next_s=next_s or NUMBERS_EVERY_S,
        tok_s=tok_s,
        prompt_tok_s=prompt,
        running=whole(values.get("running")),
        queued=whole(values.get("queued")),
        token_usage_ratio=values.get("token_usage"),
        used_tokens=whole(values.get("used_tokens")),
        accept_length=_accept_length(values, counters),
        cache_hit_ratio=values.get("cache_hit"),
        retracted_total=whole(values.get("retracted_total")),
        ttft_s=_mean(counters, "ttft") if _moved(counters, "ttft_count") else old.ttft_s,
        itl_s=_mean(counters, "itl") if _moved(counters, "itl_count") else old.itl_s,
        cuda_graph=old.cuda_graph,
    )
    return msgspec.structs.replace(server, counters=counters, metrics=metrics, series=_chart(server, metrics, mono))


def from_batch(server: ServerState, fact: LogFact, mono: float) -> ServerState:
    """Fold a decode, prefill or statistics line: the only source when a server exports no metrics.

    With data parallelism each replica prints its own lines, so counts and rates are summed over the newest line of
    each, and usage is the fullest replica's.
    """
    key = fact.rank or ""
    if fact.kind == f.STATS and key in server.batches:
        # vLLM prints what it knows of speculation on a line of its own behind the statistics.
        fact = msgspec.structs.replace(fact, fields={**server.batches[key].fields, **fact.fields})
    if fact.kind == f.DECODE and _after_idle(server.batches.get(key), fact):
        # The engine divides the tokens by the time since its last decode line, idle time included.
        fact = msgspec.structs.replace(fact, fields={**fact.fields, "tok_s": None})
    server = _with_line(server, key, fact)
    graph = fact.fields.get("cuda_graph")
    old = server.metrics
    if old.source in ("metrics", "loads") and not is_late(old, mono):
        # While the metrics answer, batch lines add only what metrics do not tell.
        if graph is None:
            return server
        return msgspec.structs.replace(server, metrics=msgspec.structs.replace(old, cuda_graph=bool(graph)))
    newest = [line.fields for line in server.batches.values()]
    prefills = [line.fields for line in server.prefills.values() if not _silent(line, fact, PREFILL_SILENCE_S)]
    told = [*newest, *(line.fields for line in server.prefills.values())]
    queued = whole(_sum(told, "queued"))
    if fact.kind == f.PREFILL:
        metrics = msgspec.structs.replace(
            server.metrics,
            source="log",
            at=mono,
            prompt_tok_s=_sum(prefills, "prompt_tok_s"),
            queued=queued,
            cache_hit_ratio=_hit(prefills),
        )
        return msgspec.structs.replace(server, metrics=metrics)
    metrics = ServerMetrics(
        source="log",
        at=mono,
        tok_s=_sum(newest, "tok_s"),
        prompt_tok_s=_sum(newest, "prompt_tok_s") if fact.kind == f.STATS else server.metrics.prompt_tok_s,
        running=whole(_sum(newest, "running")),
        queued=queued,
        token_usage_ratio=_max(newest, "token_usage"),
        used_tokens=whole(_sum(newest, "used_tokens")),
        accept_length=_average(newest, "accept_length"),
        cache_hit_ratio=_float(fact.fields.get("cache_hit", server.metrics.cache_hit_ratio)),
        retracted_total=server.metrics.retracted_total,
        cuda_graph=bool(graph) if graph is not None else server.metrics.cuda_graph,
    )
    return msgspec.structs.replace(server, metrics=metrics, series=_chart(server, metrics, mono))


def _with_line(server: ServerState, key: str, fact: LogFact) -> ServerState:
    """Remember the newest line of a rank, and forget ranks that have printed none for long.

    Only the newest line of a rank tells its queue, whichever kind it is.
    """
    batches, prefills = server.batches, server.prefills
    if fact.kind == f.PREFILL:
        prefills = {**_recent(prefills, fact), key: fact}
        batches = _without_queue(batches, key)
    else:
        batches = {**_recent(batches, fact), key: fact}
        prefills = _without_queue(prefills, key)
    return msgspec.structs.replace(server, batches=batches, prefills=prefills)


def _recent(lines: dict[str, LogFact], newest: LogFact) -> dict[str, LogFact]:
    return {rank: line for rank, line in lines.items() if not _silent(line, newest, REPLICA_SILENCE_S)}


def _without_queue(lines: dict[str, LogFact], rank: str) -> dict[str, LogFact]:
    line = lines.get(rank)
    if line is None or "queued" not in line.fields:
        return lines
    known = {name: value for name, value in line.fields.items() if name != "queued"}
    return {**lines, rank: msgspec.structs.replace(line, fields=known)}


def is_late(metrics: ServerMetrics, mono: float) -> bool:
    """Return whether the next answer is overdue: the server no longer answers."""
    return metrics.at is None or mono - metrics.at > metrics.next_s + LATE_S


def _after_idle(last: LogFact | None, fact: LogFact) -> bool:
    if last is None:
        return True  # what came before it was not seen
    return last.at is not None and fact.at is not None and fact.at - last.at > LOG_SILENCE_S


def _silent(batch: LogFact, newest: LogFact, limit_s: float) -> bool:
    """Return whether a replica's last line is so old that it has nothing to do."""
    return batch.at is not None and newest.at is not None and newest.at - batch.at > limit_s


def decay(server: ServerState, mono: float) -> ServerState:
    """Set the speed to 0 when the log has gone quiet: engines print nothing while idle.

    How many requests run is then unknown: a scheduler that hangs is as quiet as one without work.
    """
    metrics = server.metrics
    if metrics.source != "log" or metrics.at is None or mono - metrics.at < LOG_SILENCE_S:
        return server
    if not (metrics.tok_s or metrics.running):
        return server
    quiet = msgspec.structs.replace(metrics, tok_s=0.0, prompt_tok_s=0.0, running=None, queued=None)
    return msgspec.structs.replace(server, metrics=quiet, series=_chart(server, quiet, mono))


def _chart(server: ServerState, metrics: ServerMetrics, mono: float) -> dict[str, Series]:
    values = (metrics.tok_s, metrics.running, metrics.queued, metrics.token_usage_ratio, metrics.accept_length)
    series = dict(server.series)
    for name, value in zip(CHARTED, values, strict=True):
        if value is not None:
            series[name] = s.append(series.get(name, ()), mono, float(value))
    return series


def _accept_length(values: dict[str, float], counters: dict[str, Series]) -> float | None:
    """Return the mean tokens per verification step; None for 0, which engines print that do not speculate."""
    drafts = s.rate(counters.get("spec_drafts_total", ()), LATENCY_WINDOW_S)
    accepted = s.rate(counters.get("spec_accepted_total", ()), LATENCY_WINDOW_S)
    if drafts and accepted is not None:
        return 1.0 + accepted / drafts
    return values.get("accept_length") or None


def _moved(counters: dict[str, Series], name: str) -> bool:
    return bool(s.rate(counters.get(name, ()), LATENCY_WINDOW_S))


def _mean(counters: dict[str, Series], name: str) -> float | None:
    total = s.rate(counters.get(f"{name}_sum", ()), LATENCY_WINDOW_S)
    count = s.rate(counters.get(f"{name}_count", ()), LATENCY_WINDOW_S)
    return total / count if total is not None and count else None


def _hit(prefills: list[dict[str, Any]]) -> float | None:
    """Return the share of prompt tokens that were cached, over the newest prefill of each rank."""
    told = [row for row in prefills if row.get("new_tokens") is not None and row.get("cached_tokens") is not None]
    cached = sum(row["cached_tokens"] for row in told)
    tokens = cached + sum(row["new_tokens"] for row in told)
    return cached / tokens if tokens > 0 else None


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _sum(rows: list[dict[str, Any]], name: str) -> float | None:
    found = [float(row[name]) for row in rows if row.get(name) is not None]
    return sum(found) if found else None


def _average(rows: list[dict[str, Any]], name: str) -> float | None:
    found = [float(row[name]) for row in rows if row.get(name) is not None]
    return sum(found) / len(found) if found else None


def _max(rows: list[dict[str, Any]], name: str) -> float | None:
    found = [float(row[name]) for row in rows if row.get(name) is not None]
    return max(found, default=None)
