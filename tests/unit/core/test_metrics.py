"""Live numbers from counters, gauges and batch lines."""

import pytest

from tuner.core import facts as f
from tuner.core import metrics
from tuner.domain.logs import LogFact
from tuner.domain.server import ServerIdentity
from tuner.domain.state import ServerState


def server(engine: str = "sglang") -> ServerState:
    return ServerState(identity=ServerIdentity(key="1:1", engine=engine, pid=1, start_ticks=1))


def feed(state: ServerState, *answers: tuple[float, dict[str, float]], source: str = "metrics") -> ServerState:
    for mono, values in answers:
        state = metrics.from_reading(state, source, values, mono)
    return state


def decode(rank: str | None = None, **fields: float) -> LogFact:
    return LogFact(kind=f.DECODE, rank=rank, fields=fields)


def seen(state: ServerState, line: LogFact, mono: float) -> ServerState:
    """A line that is not the first: the first divides by a time that nobody knows."""
    return metrics.from_batch(metrics.from_batch(state, line, mono), line, mono)


def test_a_live_counter_beats_the_gauge() -> None:
    name = "realtime_decode_tokens_total"
    state = feed(server(), (0, {name: 0, "tok_s": 7}), (1, {name: 90, "tok_s": 7}), (2, {name: 180, "tok_s": 7}))
    assert state.metrics.tok_s == 90


def test_the_gauge_is_used_where_the_counter_grows_only_at_the_end_of_requests() -> None:
    name = "generation_tokens_total"
    state = feed(server(), (0, {name: 0, "tok_s": 88.5}), (1, {name: 5000, "tok_s": 88.5}))
    assert state.metrics.tok_s == 88.5


@pytest.mark.parametrize(("name", "tok_s"), [("realtime_decode_tokens_total", 200), ("generation_tokens_total", 40)])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_how_far_back_a_counter_is_looked_at_depends_on_what_it_counts(name: str, tok_s: float, engine: str) -> None:
    state = feed(server(engine), (0, {name: 0}), (17, {name: 200}), (20, {name: 800}))
    assert state.metrics.tok_s == tok_s


def test_missing_is_missing_not_zero() -> None:
    state = feed(server(), (0, {"running": 3}))
    assert (state.metrics.running, state.metrics.tok_s, state.metrics.queued) == (3, None, None)
    assert "tok_s" not in state.series
    assert state.series["running"][-1].value == 3


def test_mean_ttft_is_over_the_requests_of_the_window_and_stays_when_none_came() -> None:
    state = feed(
        server(),
        (0, {"ttft_sum": 100.0, "ttft_count": 10}),
        (10, {"ttft_sum": 100.6, "ttft_count": 12}),
        (50, {"ttft_sum": 100.6, "ttft_count": 12}),
        (85, {"ttft_sum": 100.6, "ttft_count": 12}),
    )
    assert state.metrics.ttft_s == pytest.approx(0.3)


def test_acceptance_length_zero_means_no_speculation() -> None:
    assert feed(server(), (0, {"accept_length": 0.0})).metrics.accept_length is None
    drafts = {"spec_drafts_total": 0.0, "spec_accepted_total": 0.0}
    later = {"spec_drafts_total": 100.0, "spec_accepted_total": 161.0}
    assert feed(server("vllm"), (0, drafts), (1, later)).metrics.accept_length == pytest.approx(2.61)


def test_batch_lines_alone_give_the_same_numbers() -> None:
    line = decode(None, tok_s=89.51, running=4, queued=0, token_usage=0.37, used_tokens=58211, cuda_graph=1)
    state = seen(server(), line, 10.0)
    m = state.metrics
    assert (m.source, m.tok_s, m.running, m.token_usage_ratio, m.cuda_graph) == ("log", 89.51, 4, 0.37, True)
    assert state.series["tok_s"][-1].t == 10.0


def test_replicas_add_up_and_the_fullest_counts() -> None:
    state = seen(server(), decode("DP0 TP0", tok_s=50, running=2, token_usage=0.1), 1)
    state = seen(state, decode("DP1 TP1", tok_s=70, running=3, token_usage=0.6), 2)
    assert (state.metrics.tok_s, state.metrics.running, state.metrics.token_usage_ratio) == (120, 5, 0.6)


def test_batch_lines_do_not_override_fresh_metrics() -> None:
    state = feed(server(), (0, {"tok_s": 88.0, "running": 4}))
    state = metrics.from_batch(state, decode("TP0", tok_s=12.0, cuda_graph=0), 1)
    assert (state.metrics.tok_s, state.metrics.source, state.metrics.cuda_graph) == (88.0, "metrics", False)
    state = metrics.from_batch(state, decode("TP0", tok_s=12.0), 20)
    assert (state.metrics.tok_s, state.metrics.source) == (12.0, "log")


def test_a_quiet_log_decays_to_no_tokens() -> None:
    state = seen(server(), decode(None, tok_s=89.0, running=4), 10.0)
    assert metrics.decay(state, 15.0) is state
    quiet = metrics.decay(state, 30.0)
    assert (quiet.metrics.tok_s, quiet.metrics.running) == (0.0, None)
    assert quiet.series["tok_s"][-1].value == 0


def test_a_prefill_line_tells_prompt_speed_and_cache_hits() -> None:
    line = LogFact(kind=f.PREFILL, fields={"new_tokens": 300, "cached_tokens": 700, "prompt_tok_s": 2000.0})
    m = metrics.from_batch(server(), line, 1.0).metrics
    assert (m.prompt_tok_s, m.cache_hit_ratio) == (2000.0, 0.7)


def prefill(rank: str, seconds: float, **fields: float) -> LogFact:
    return LogFact(kind=f.PREFILL, rank=rank, at=seconds, fields=fields)


def test_a_prefill_of_one_replica_leaves_the_others_in_the_queue() -> None:
    state = seen(server(), at(decode("DP0 TP0", queued=5, running=1), 0), 0)
    state = seen(state, at(decode("DP1 TP1", queued=7, running=1), 1), 1)
    state = metrics.from_batch(
        state, prefill("DP0 TP0", 2, queued=4, prompt_tok_s=1000, new_tokens=10, cached_tokens=0), 2
    )
    assert (state.metrics.queued, state.metrics.prompt_tok_s) == (11, 1000)
    state = metrics.from_batch(
        state, prefill("DP1 TP1", 3, queued=6, prompt_tok_s=500, new_tokens=10, cached_tokens=20), 3
    )
    assert (state.metrics.queued, state.metrics.prompt_tok_s, state.metrics.cache_hit_ratio) == (10, 1500, 0.5)
    state = metrics.from_batch(state, at(decode("DP0 TP0", queued=0, running=3), 4), 4)
    assert state.metrics.queued == 6, "the newest line of each replica tells its queue"
    state = metrics.from_batch(state, prefill("DP1 TP1", 20, queued=0, prompt_tok_s=300), 20)
    assert (state.metrics.prompt_tok_s, state.metrics.queued) == (300, 0), "the prefill of DP0 is long over"
    for second in (30, 60, 300):
        state = metrics.from_batch(state, prefill("DP0 TP0", second, queued=0, prompt_tok_s=9), second)
        assert state.metrics.queued == 0, "no older line tells a queue again"


def test_a_queue_that_a_prefill_line_emptied_stays_empty() -> None:
    state = seen(server(), at(decode("DP1 TP1", queued=5, running=1), 0), 0)
    state = metrics.from_batch(state, prefill("DP1 TP1", 1, queued=0), 1)
    for second in (10, 300):
        state = metrics.from_batch(state, prefill("DP0 TP0", second, queued=0), second)
        assert state.metrics.queued == 0


def test_the_acceptance_length_is_the_mean_of_the_replicas() -> None:
    state = seen(server(), at(decode("DP0 TP0", accept_length=2.0), 0), 0)
    state = seen(state, at(decode("DP1 TP1", accept_length=3.0), 1), 1)
    assert state.metrics.accept_length == 2.5


def test_a_line_about_speculation_alone_keeps_the_other_numbers() -> None:
    state = metrics.from_batch(server("vllm"), LogFact(kind=f.STATS, fields={"tok_s": 70.0, "running": 2}), 1.0)
    state = metrics.from_batch(state, LogFact(kind=f.STATS, fields={"accept_length": 2.6}), 1.1)
    assert (state.metrics.tok_s, state.metrics.running, state.metrics.accept_length) == (70.0, 2, 2.6)


def at(fact: LogFact, seconds: float) -> LogFact:
    return LogFact(kind=fact.kind, rank=fact.rank, at=seconds, fields=fact.fields)


def test_a_replica_that_has_gone_quiet_no_longer_counts() -> None:
    state = seen(server(), at(decode("DP1 TP1", tok_s=2000, running=50), 0), 0)
    state = seen(state, at(decode("DP0 TP0", tok_s=100, running=2), 600), 600)
    assert (state.metrics.tok_s, state.metrics.running) == (100, 2)


def test_of_the_first_line_that_is_seen_nobody_knows_how_long_it_was_idle_before() -> None:
    state = metrics.from_batch(server(), at(decode(None, tok_s=0.7, running=4), 0), 0)
    assert (state.metrics.tok_s, state.metrics.running) == (None, 4)
    quiet = metrics.decay(state, 30.0)
    assert (quiet.metrics.tok_s, quiet.metrics.running) == (0.0, None)
    state = metrics.from_batch(state, at(decode(None, tok_s=89.0, running=4), 1), 1)
    assert state.metrics.tok_s == 89


def test_the_first_line_after_idle_divides_by_the_idle_time_and_is_left_out() -> None:
    state = metrics.from_batch(server(), at(decode(None, tok_s=89.0, running=4), 0), 0)
    state = metrics.from_batch(state, at(decode(None, tok_s=0.7, running=4), 120), 120)
    assert (state.metrics.tok_s, state.metrics.running) == (None, 4)
    state = metrics.from_batch(state, at(decode(None, tok_s=90.0, running=4), 122), 122)
    assert state.metrics.tok_s == 90.0


def test_metrics_that_an_idle_server_is_asked_for_seldom_do_not_give_way_to_its_log() -> None:
    state = metrics.from_reading(server(), "metrics", {"running": 0, "tok_s": 0.0}, 10.0, 10.0)
    line = decode("TP0", tok_s=12.0)
    assert metrics.from_batch(state, line, 22.0).metrics.source == "metrics"
    assert metrics.from_batch(state, line, 23.5).metrics.source == "log"
    busy = metrics.from_reading(state, "metrics", {"running": 1}, 30.0)
    assert metrics.from_batch(busy, line, 35.5).metrics.source == "log"
