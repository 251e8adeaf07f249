"""The simulated scheduler keeps its books: tokens, time, cache, and what it prints."""

from __future__ import annotations

import contextlib
import re
import statistics

import pytest

from tests.unit.simhost.played import T0, log_of, server
from tuner.simhost.engine.port import SPARE_PORTS, reserve, spare_ports
from tuner.simhost.engine.server import Server
from tuner.simhost.engine.traffic import Request


def _served(
    version: str = "0.5.9", traffic: str = "office", hours: float = 1.0, *flags: str, **options: object
) -> Server:
    played = server(version, 0.88, *flags, traffic=traffic, **options)
    played.replay(T0, T0 + 700 + hours * 3600)
    return played


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_books_balance(seed: int) -> None:
    serving = _served(seed=seed).serving
    assert serving is not None
    held = [*serving.running, *serving.prefilling, *serving.waiting]
    assert serving.used == sum(request.context for request in held)
    assert 0 <= serving.used <= serving.machine.tokens
    assert serving.used + serving.evictable <= serving.machine.tokens
    counters = serving.counters
    finished = counters.requests
    assert finished == counters.e2e.number > 100
    assert counters.realtime_decode >= counters.generated
    assert counters.itl.number == counters.realtime_decode - counters.ttft.number
    assert counters.graph_passes > 0


def test_office_runs_at_some_ninety_tokens_a_second() -> None:
    log = log_of(_served(hours=2.0))
    rates = [float(rate) for rate in re.findall(r"gen throughput \(token/s\): ([\d.]+)", log)][-800:]
    running = [int(count) for count in re.findall(r"Decode batch, #running-req: (\d+)", log)][-800:]
    usage = [float(share) for share in re.findall(r"Decode batch.*token usage: ([\d.]+)", log)][-800:]
    assert 70 < statistics.median(rates) < 105
    assert 2 < statistics.mean(running) < 6
    assert max(running) > min(running)
    assert 0.15 < statistics.mean(usage) < 0.6


def test_one_short_request_decodes_at_the_speed_of_the_story() -> None:
    log = log_of(_served(traffic="solo"))
    rates = [float(rate) for rate in re.findall(r"#running-req: 1, .*gen throughput \(token/s\): ([\d.]+)", log)]
    assert statistics.median(rates) == pytest.approx(89.5, abs=0.3)


def test_the_same_seed_says_the_same() -> None:
    assert log_of(_served(seed=9)) == log_of(_served(seed=9))
    assert log_of(_served(seed=9)) != log_of(_served(seed=10))


def test_a_pool_that_is_too_small_retracts_and_goes_on() -> None:
    played = _served("0.5.9", "office", 1.0, "--max-total-tokens", "30000")
    serving = played.serving
    assert serving is not None
    assert serving.counters.retracted > 0
    assert "KV cache pool is full. Retract requests. #retracted_reqs: 1" in log_of(played)
    assert serving.used <= 30_000
    assert serving.counters.requests > 50


def test_acceptance_length_is_shown_when_it_speculates() -> None:
    plain, spec = _served(), _served("0.5.9", "office", 1.0, "--speculative-algorithm", "EAGLE")
    assert "accept len" not in log_of(plain)
    lengths = [float(v) for v in re.findall(r"accept len: ([\d.]+), accept rate: ", log_of(spec))]
    assert 1.8 <= statistics.mean(lengths) <= 3.4


def test_a_request_streams_its_tokens_in_time() -> None:
    played = _served(traffic="none", hours=0.0)
    serving = played.serving
    assert serving is not None
    seen: list[tuple[float, int, bool]] = []
    start = serving.now
    serving.submit(Request("r", 512, 0, 200, start, emit=lambda count, end: seen.append((serving.now, count, end))))
    serving.advance(start + 60)

    assert sum(count for _, count, _ in seen) == 200
    assert [end for *_, end in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1][0] - seen[0][0] == pytest.approx(199 / 89.5, rel=0.02)


def test_a_prefix_that_is_known_is_not_computed_again() -> None:
    played = _served(traffic="none", hours=0.0)
    serving = played.serving
    assert serving is not None
    for prompt in (6_000, 6_400):
        serving.submit(Request("r", prompt, prompt, 50, serving.now, user="me"))
        serving.advance(serving.now + 60)
    assert serving.counters.realtime_prefill == 16 * 0 + 6_000 + (6_400 - 6_050)
    assert serving.counters.realtime_cache == 6_050


def test_two_that_start_together_hold_two_ports() -> None:
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(2):
            played = server("0.5.9", 0.88, "--port", "30907")
            played.hold_port()
            held.callback(played.held.close)
            ports.append(played.port)
    assert len(set(ports)) == 2
    again = server("0.5.9", 0.88, "--port", str(ports[0]))
    again.hold_port()
    with contextlib.closing(again.held):
        assert again.port == ports[0], "its port is free again"


def test_a_port_stays_its_hosts_while_no_server_of_it_runs() -> None:
    with contextlib.ExitStack() as kept:
        ports = []
        for _ in range(2):
            number, claim = reserve(30_907)
            assert claim is not None
            kept.enter_context(contextlib.closing(claim))
            ports.append(number)
        assert len(set(ports)) == 2
        again = server("0.5.9", 0.88, "--port", str(ports[1]))
        again.hold_port()
        kept.enter_context(contextlib.closing(again.held))
        assert again.port == ports[1], "its own server has it"
    number, claim = reserve(30_907)
    assert claim is not None
    claim.close()
    assert number == 30_907, "it is free again"


def test_a_server_without_a_port_takes_none_that_is_another_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.simhost.engine.port.spare_ports", lambda _: iter((30_911, 30_912)))
    with contextlib.ExitStack() as kept:
        for wanted in (30_910, 30_911):
            number, claim = reserve(wanted)
            assert claim is not None
            assert number == wanted
            kept.enter_context(contextlib.closing(claim))
        first, second = (server("0.5.9", 0.88, "--port", "30910") for _ in range(2))
        for each in (first, second):
            each.hold_port()
            kept.enter_context(contextlib.closing(each.held))
    assert (first.port, second.port) == (30_910, 30_912)


def test_demos_do_not_begin_their_search_for_a_port_with_the_same_one() -> None:
    firsts = {next(spare_ports(pid)) for pid in range(4_000, 4_100)}
    assert len(firsts) == 100
    assert set(spare_ports(4_000)) == set(SPARE_PORTS)
