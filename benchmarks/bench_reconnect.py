"""Cut a real SSH link at random moments while a log grows, and count lost and repeated lines.

`python benchmarks/bench_reconnect.py [CUTS]` starts an sshd on loopback, a process that writes a log, and a session
with the real probe. It prints how many lines were written, lost and repeated, and how long the link was down, beside
the time of a first connection. Then the host itself goes away and comes back several times, with the default back-off:
the bar is 5 s from its return.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.growing_log import GrowingServer
from tests.support.sshd import Sshd, world
from tuner import transports
from tuner.core.engine import Engine
from tuner.domain import events as e
from tuner.domain.link import LinkPhase, Question, Target
from tuner.session.link import Timing
from tuner.session.plans import plan_for
from tuner.session.session import Session
from tuner.session.tasks import spawn
from tuner.store.journal import Journal, read_events

SEED = 20_261_129
RETURNS = 5
BAR_S = 5.0


async def nobody(question: Question) -> str | None:
    """Fail: the keys are known, so no question may be asked."""
    raise AssertionError(question)


async def when(true: Callable[[], object]) -> float:
    """Wait until `true()` holds; return the seconds that took."""
    began = time.monotonic()
    while not true():  # noqa: ASYNC110 - other processes set no event
        await asyncio.sleep(0.005)
    return time.monotonic() - began


def opened(server: Sshd, engines: dict[str, Engine], journal: Path, timing: Timing) -> Session:
    """Return a session with the server that reads the log from its beginning."""
    target = Target(name="box", host="127.0.0.1", port=server.port)
    plan = replace(plan_for(engines), tail_bytes=1 << 40)
    return Session(
        target,
        transports.opener(target),
        engines,
        ask=nobody,
        journal=Journal(journal, "box", time.time()),
        plan=plan,
        timing=timing,
    )


async def cuts(server: Sshd, growing: GrowingServer, journal: Path, count: int) -> bool:
    """Cut the link at random; return whether no line was lost or repeated."""
    chance = random.Random(SEED)
    session = opened(server, {"plain": growing.engine}, journal, Timing(backoff=(0.05,), steady=0.0))
    work = spawn(session.run(), name="session")

    def up() -> bool:
        return session.state.link.phase is LinkPhase.UP

    growing.grow(200)
    first = await when(up)
    away = []
    for _ in range(count):
        growing.grow(500, 0.0002)
        await asyncio.sleep(chance.uniform(0.0, 0.4))
        before = session.state.hello
        server.cut()
        away.append(await when(lambda was=before: up() and session.state.hello is not was))  # type: ignore[misc]
    await when(growing.all_written)
    written = growing.log.read_bytes()
    await when(lambda: session.state.servers and session.state.servers[0].log.end >= len(written))
    await session.aclose()
    await work
    events = [event for _, event in read_events(journal) if isinstance(event, e.LogBytes) and not event.head]
    shown = "".join(event.data for event in events).splitlines()
    expected = written.decode().splitlines()
    lost = len(set(expected) - set(shown))
    repeated = len(shown) - len(set(shown))
    print(f"cuts {count}  lines {len(expected)}  lost {lost}  repeated {repeated}  same bytes {shown == expected}")
    print(
        f"link away: median {statistics.median(away):.2f} s, longest {max(away):.2f} s; "
        f"{statistics.median(away) / first:.2f} of the first connection's {first:.2f} s"
    )
    return shown == expected


async def returns(server: Sshd, journal: Path) -> bool:
    """Stop and start the host; return whether the link was back in time."""
    session = opened(server, {}, journal, Timing())
    work = spawn(session.run(), name="session")

    def up() -> bool:
        return session.state.link.phase is LinkPhase.UP

    await when(up)
    took = []
    for number in range(RETURNS):
        server.stop()
        await when(lambda: not up())
        # Longer absences meet longer back-offs.
        await asyncio.sleep(1.5 * number)
        server.start()
        took.append(await when(up))
    await session.aclose()
    await work
    print(f"host back: link up after {', '.join(f'{t:.1f}' for t in took)} s; bar {BAR_S:.0f} s")
    return max(took) <= BAR_S


def main() -> int:
    """Run both parts; return 1 when a bar was missed."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, seed {SEED}")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with world(home) as made:
            os.environ["HOME"] = str(home)
            os.environ.pop("SSH_AUTH_SOCK", None)
            server = made.server()
            growing = GrowingServer(Path(folder))
            try:
                good = asyncio.run(cuts(server, growing, Path(folder) / "cuts", count))
                good &= asyncio.run(returns(server, Path(folder) / "returns"))
            finally:
                growing.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
