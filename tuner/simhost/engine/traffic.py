"""The simulated users, who read, think, and continue long conversations."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Emit = Callable[[int, bool], None]
"""Called with the number of new tokens for a client, and whether they were the last."""


@dataclass(eq=False)
class Request:
    """One request in the server; sizes are tokens."""

    rid: str
    prompt: int
    cached: int
    output: int
    arrived: float
    user: str = ""
    path: str = "/generate"
    port: int = 0
    stream: bool = True
    emit: Emit | None = None
    prefilled: int = 0
    generated: int = 0
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None
    health: bool = False

    @property
    def context(self) -> int:
        """Return the KV tokens that the request holds."""
        return self.cached + self.prefilled + self.generated


@dataclass
class Profile:
    """The shape of the traffic; ranges are (least, most), sizes are tokens."""

    users: tuple[int, int]
    running: float
    """Average number of running requests, from which the thinking time follows."""
    document: tuple[int, int]
    """Tokens of a new conversation's first prompt."""
    turn: tuple[int, int]
    answer: tuple[int, int]
    fresh: float
    """Share of turns that begin a new conversation."""
    longest: int = 30_000


PROFILES = {
    "office": Profile((4, 16), 4.0, (5_000, 13_000), (60, 900), (160, 760), 0.17, 24_000),
    "solo": Profile((1, 1), 0.9, (200, 900), (40, 300), (400, 900), 0.7, 3_600),
    "none": Profile((0, 0), 0.0, (1, 1), (1, 1), (1, 1), 1.0),
}


@dataclass
class _User:
    name: str
    context: int = 0
    """Tokens of the conversation so far; 0 for none."""


@dataclass
class Traffic:
    """Arrivals of requests, in order of time."""

    profile: Profile
    rng: random.Random
    now: float
    ramp_s: float = 0.0
    """Seconds over which the first users arrive."""
    waiting: list[tuple[float, int, _User]] = field(default_factory=list)
    count: int = 0
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.now
        for number in range(self.profile.users[1]):
            user = _User(f"user-{number}")
            # One user tries the new server first; the others come later.
            first = self.ramp_s * (0.55 if number == 0 else self.rng.uniform(0.9, 1.0))
            spread = 1 + self.rng.random() * 0.8 * self.profile.users[1]
            heapq.heappush(self.waiting, (self.now + first + spread, number, user))

    @property
    def next_at(self) -> float:
        """Return the time of the next arrival, in seconds since the epoch."""
        return self.waiting[0][0] if self.waiting else math.inf

    def present(self, at: float) -> int:
        """Return the number of users present, which swings slowly between the least and the most."""
        least, most = self.profile.users
        since = at - self.began
        swing = 0.5 + 0.32 * math.sin(since / 410.0) + 0.18 * math.sin(since / 97.0 + 1.0)
        return round(least + (most - least) * min(1.0, max(0.0, swing)))

    def take(self) -> Request | None:
        """Take the next arrival; None if that user is away at present, and returns later."""
        at, number, user = heapq.heappop(self.waiting)
        if number >= max(1, self.present(at)):
            heapq.heappush(self.waiting, (at + 20 + 40 * self.rng.random(), number, user))
            return None
        shape = self.profile
        if user.context == 0 or user.context > shape.longest or self.rng.random() < shape.fresh:
            user.context, user.name = 0, f"user-{number}-{self.count}"
            prompt = self.rng.randint(*shape.document)
        else:
            prompt = user.context + self.rng.randint(*shape.turn)
        self.count += 1
        request = Request(
            rid=f"{self.rng.getrandbits(128):032x}",
            prompt=prompt,
            cached=user.context,
            output=self.rng.randint(*shape.answer),
            arrived=at,
            user=user.name,
            path="/v1/chat/completions",
            port=self.rng.randint(32_768, 60_999),
        )
        return request

    def answered(self, request: Request, at: float) -> None:
        """Schedule the user's next request after a time for reading and thinking."""
        number = int(request.user.split("-")[1])
        user = _User(request.user, request.prompt + request.output)
        busy = max(1.0, at - request.arrived)
        ratio = max(0.05, self.present(at) / self.profile.running - 1) if self.profile.running else 1.0
        think = self.rng.expovariate(1 / (busy * ratio))
        heapq.heappush(self.waiting, (at + 0.5 + think, number, user))
