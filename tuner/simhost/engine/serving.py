"""The simulated scheduler: one batch, prefill before decode, a KV pool with a prefix cache.

`advance(until)` runs it event by event (a prefill chunk, some decode steps, an arrival), each at its exact time, so
that hours of the past and seconds of the present use the same code.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.simhost.engine import memory, speed
from tuner.simhost.engine.config import Config
from tuner.simhost.engine.memory import MIB
from tuner.simhost.engine.start import Load, Machine
from tuner.simhost.engine.text import Lines, access
from tuner.simhost.engine.traffic import Request, Traffic

STEP_S = 0.01117
"""Seconds of a decode step with one short request: 89.5 tokens a second."""
STEP_PER_REQUEST_S = 0.00045
STEP_PER_TOKEN_S = 0.00000056
"""Seconds of attention per token of the batch's KV beyond what split kernels hide; slow on this architecture."""
PREFILL_TOKENS_S = 7_500.0
LOG_STEPS = 40


class Histogram:
    """Counts of a Prometheus histogram, per bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.number = 0

    def add(self, value: float, count: int = 1) -> None:
        """Add a value, `count` times."""
        self.counts[bisect.bisect_left(self.bounds, value)] += count
        self.total += value * count
        self.number += count


_LATENCY = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
_ITL = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
        1.0, 2.0, 4.0, 6.0, 8.0)  # fmt: skip
_QUEUE = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0,
          100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0, 1800.0,
          2000.0, 2500.0, 3000.0)  # fmt: skip


@dataclass
class Counters:
    """The counters of /metrics."""

    prompt: int = 0
    generated: int = 0
    cached: int = 0
    requests: int = 0
    realtime_prefill: int = 0
    realtime_cache: int = 0
    realtime_decode: int = 0
    graph_passes: int = 0
    eager_passes: int = 0
    retracted: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    e2e: Histogram = field(default_factory=lambda: Histogram((*_LATENCY, 600.0, 1200.0, 1800.0, 2400.0)))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL))
    queue: Histogram = field(default_factory=lambda: Histogram(_QUEUE))


class Serving:
    """The scheduler of a server that is ready.

    Args:
        machine: The started server.
        traffic: Its users.
        write: Writes one log line with its time, text and rank.
        now: Time at which it begins, in seconds since the epoch.
    """

    def __init__(self, machine: Machine, traffic: Traffic, write: Callable[[float, str, int | None], None],
                 now: float) -> None:  # fmt: skip
        self.machine = machine
        self.config: Config = machine.config
        self.traffic = traffic
        self.lines = Lines(machine.config.new, machine.config.speculative)
        self.write = write
        self.rng = random.Random(machine.spec.seed + 1)  # noqa: S311 - a seeded play, no secret
        self.now = now
        self.used = 0
        """KV tokens in use by requests: the sum of their contexts, updated as they change."""
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefilling: list[Request] = []
        self.prefill_end = 0.0
        self.prefix: OrderedDict[str, int] = OrderedDict()
        """Evictable tokens of the prefix cache by conversation, oldest first."""
        self.counters = Counters()
        self.throughput = 0.0
        self.hit_rate = 0.0
        self.accept: float | None = None
        self.draining = False
        self._steps = 0
        self._tokens_since = 0
        self._logged_at = now
        self._prefill_at = now
        self._jitter = 1.0
        self.speed = speed.speed(machine.config, machine.spec.seed if machine.spec.launched else None)
        self.busy_s = 0.0
        self.on_memory: Callable[[int, int], None] = lambda rank, tried: None
        self.failed = False
        for number, rank in enumerate(machine.box.ranks):
            # What the warm-up left reserved; the first rank also handles images.
            rank.activations = int(212 * MIB * machine.config.model.scale)
            rank.workspace += 0 if number else int(184 * MIB * machine.config.model.scale)

    @property
    def usage(self) -> float:
        """Return the share of the pool in use."""
        return self.used / self.machine.tokens

    @property
    def evictable(self) -> int:
        """Return the KV tokens that only the prefix cache holds."""
        return sum(self.prefix.values())

    @property
    def active(self) -> int:
        """Return the number of requests in the server."""
        return len(self.waiting) + len(self.running) + len(self.prefilling)

    def submit(self, request: Request) -> None:
        """Queue a request from outside."""
        self.waiting.append(request)

    def advance(self, until: float) -> None:
        """Run all events that end by `until`."""
        while not self.failed:
            if not self.draining:
                while self.traffic.next_at <= self.now:
                    request = self.traffic.take()
                    if request is not None:
                        self.waiting.append(request)
            if self.prefilling:
                if self.prefill_end > until:
                    return
                self._end_prefill()
            elif self.waiting and self._admit():
                continue
            elif self.running:
                if not self._decode(until):
                    return
            else:
                upcoming = math.inf if self.draining else self.traffic.next_at
                if upcoming > until:
                    self.now = until
                    return
                self.now = max(self.now, upcoming)

    def step_s(self) -> float:
        """Return the seconds of one decode step of the present batch."""
        batch = len(self.running)
        tokens = max(0, self.used - 4096)
        pace = self.speed
        step = STEP_S * pace.step + STEP_PER_REQUEST_S * pace.per_request * (batch - 1)
        step += STEP_PER_TOKEN_S * pace.per_token * tokens
        if batch > self.config.graph_max_bs:
            step *= speed.EAGER
        return step * (1.45 if self.config.speculative else 1.0) * self._jitter

    def _decode(self, until: float) -> bool:
        step = self.step_s()
        accept = self._accept_length()
        fit = int((until - self.now) / step)
        if not self.waiting and not self.draining:
            gap = min(self.traffic.next_at - self.now, 3_600.0)
            fit = min(fit, max(1, math.ceil(gap / step)))
        ends = math.ceil(min((r.output - r.generated) / accept for r in self.running))
        count = min(fit, LOG_STEPS - self._steps, max(1, ends))
        if count < 1:
            return False
        if self._full(count, accept):
            return True
        self.now += count * step
        self.busy_s += count * step
        self._steps += count
        given = 0
        for request in self.running:
            more = min(request.output - request.generated, round(count * accept) if accept > 1 else count)
            request.generated += more
            given += more
            self.counters.itl.add(step / accept, more)
            if request.emit is not None:
                request.emit(more, request.generated >= request.output)
        self.used += given
        self._tokens_since += given
        self.counters.realtime_decode += given
        if len(self.running) <= self.config.graph_max_bs:
            self.counters.graph_passes += count
        else:
            self.counters.eager_passes += count
        if self._steps >= LOG_STEPS:
            self._log_decode(accept)
        done = [request for request in self.running if request.generated >= request.output]
        for request in done:
            self._finish(request)
        return True

    def _accept_length(self) -> float:
        if not self.config.speculative:
            return 1.0
        self.accept = min(3.4, max(1.8, (self.accept or 2.6) + self.rng.gauss(0, 0.03)))
        return self.accept

    def _log_decode(self, accept: float) -> None:
        span = max(1e-6, self.now - self._logged_at)
        self.throughput = self._tokens_since / span
        self._logged_at, self._tokens_since, self._steps = self.now, 0, 0
        self._jitter = self.rng.uniform(0.9965, 1.0035) * self.speed.drift(self.now)
        self.write(
            self.now,
            self.lines.decode(
                running=len(self.running),
                tokens=self.used,
                usage=self.usage,
                queued=len(self.waiting),
                graph=len(self.running) <= self.config.graph_max_bs,
                rate=self.throughput,
                accept=accept if self.config.speculative else None,
            ),
            0,
        )

    def _full(self, count: int, accept: float) -> bool:
        """Retract the youngest request if the next steps would not fit. Returns whether one was retracted."""
        if self.used + count * accept * len(self.running) <= self.machine.tokens or len(self.running) < 2:
            self._evict(int(count * accept * len(self.running)))
            return False
        victim = self.running.pop()
        gained = victim.context
        self.used -= gained
        victim.output -= victim.generated
        victim.prompt += victim.generated
        victim.cached = victim.prefilled = victim.generated = 0
        self.waiting.appendleft(victim)
        self.counters.retracted += 1
        for rank in self.machine.everyone():
            self.write(self.now, self.lines.retract(1, gained, 0.6442, 0.9179), rank)
        return True

    def _evict(self, need: int) -> None:
        room = self.machine.tokens - self.used - self.evictable
        while room < need and self.prefix:
            room += self.prefix.popitem(last=False)[1]

    def _admit(self) -> bool:
        """Form a prefill batch from the head of the queue. Returns False when nothing fits."""
        chunk = self.config.chunk
        batch: list[Request] = []
        new = cached = 0
        while self.waiting and len(self.running) + len(batch) < self.machine.max_running:
            request = self.waiting[0]
            if request.started is None:
                request.started = self.now
                self.counters.queue.add(max(0.0, self.now - request.arrived))
            if request.prefilled == 0:
                have = self.prefix.pop(request.user, 0) if request.user else 0
                request.cached = min(request.cached, have, request.prompt - 1)
            left = request.prompt - request.cached - request.prefilled
            reserve = min(request.output, 512)
            if self.used + new + cached + left + reserve > self.machine.tokens and (self.running or batch):
                if request.prefilled == 0 and request.cached:
                    self.prefix[request.user] = request.cached
                break
            take = min(left, chunk - new)
            if take <= 0:
                break
            new += take
            cached += request.cached if request.prefilled == 0 else 0
            batch.append(self.waiting.popleft())
            request.prefilled += take
            if take < left:
                break
        if not batch:
            return False
        self._evict(new + cached)
        self.prefilling = batch
        self.used += new + cached
        prefix = max(0, max(request.cached + request.prefilled for request in batch) - chunk)
        took = 0.045 + self.speed.prefill * new / PREFILL_TOKENS_S + new * prefix / 9.0e9
        self.prefill_end = self.now + took
        self.busy_s += took
        since = max(0.05, self.now - self._prefill_at)
        self._prefill_at = self.now
        self.counters.realtime_prefill += new
        self.counters.realtime_cache += cached
        self.counters.eager_passes += 1
        self.hit_rate = cached / (cached + new)
        self.write(
            self.now,
            self.lines.prefill(
                seqs=len(batch),
                new=new,
                cached=cached,
                usage=self.usage,
                running=len(self.running),
                queued=len(self.waiting),
                pending=sum(r.prompt - r.cached - r.prefilled for r in (*batch, *self.waiting)),
                graph=self.config.prefill_graphs,
                rate=new / since,
            ),
            0,
        )
        self._activate(new, prefix)
        return not self.failed

    def _activate(self, new: int, prefix: int) -> None:
        """Reserve the memory of a prefill; PyTorch keeps the greatest amount so far."""
        need = int(memory.activation_bytes(new, prefix) * self.config.model.scale)
        self.machine.refresh()
        box = self.machine.box
        short = [n for n, rank in enumerate(box.ranks) if box.free(n) < need - rank.activations]
        if short:
            # The rank with least memory raises first; the others wait for it in their collective.
            poorest = min(short, key=box.free)
            self.failed = True
            self.on_memory(poorest, need - box.ranks[poorest].activations)
            return
        for rank in box.ranks:
            rank.activations = max(rank.activations, need)

    def _end_prefill(self) -> None:
        self.now = self.prefill_end
        batch, self.prefilling = self.prefilling, []
        for request in batch:
            if request.cached + request.prefilled < request.prompt:
                self.waiting.appendleft(request)
                continue
            request.first_token = self.now
            request.generated = 1
            self.used += 1
            self._tokens_since += 1
            self.counters.realtime_decode += 1
            if not request.health:
                self.counters.ttft.add(self.now - request.arrived)
            if request.stream and request.port:
                self.write(self.now, access(request.port, "POST", request.path, "200 OK"), None)
            self.running.append(request)
            if request.emit is not None:
                request.emit(1, request.output <= 1)
            if request.output <= 1:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        request.finished = self.now
        self.used -= request.context
        counters = self.counters
        counters.prompt += request.prompt
        counters.generated += request.generated
        counters.cached += request.cached
        counters.requests += 1
        counters.e2e.add(self.now - request.arrived)
        if request.user:
            self.prefix[request.user] = request.prompt + request.generated
            if request.user.startswith("user-"):
                self.traffic.answered(request, self.now)

    def loads(self) -> Load:
        """Return what the GPUs do at this moment."""
        if self.prefilling:
            return Load(utilization=0.99, watts=0.80, pcie_rx=7.6, pcie_tx=7.2, mem_utilization=0.46)
        if self.running:
            depth = min(1.0, 0.35 + 0.1 * len(self.running))
            return Load(
                utilization=0.94 + 0.03 * depth,
                watts=0.55 + 0.18 * depth,
                pcie_rx=2.2 + 1.2 * depth,
                pcie_tx=2.0 + 1.2 * depth,
                mem_utilization=0.22 + 0.3 * depth,
            )
        return Load(utilization=0.0, watts=0.15)
