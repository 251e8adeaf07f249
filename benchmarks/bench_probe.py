"""What the probe costs a host with eight GPUs and a serving SGLang, and what it sends.

`python benchmarks/bench_probe.py [SECONDS]` starts a real sshd on loopback and a real session through it, with the
recorded host of `recorded_host.py` behind it. It prints CPU time per second at one reading per second, memory, and
bytes on the TCP connection in both directions, keep-alive included: first with a silent log, then with one that grows
by two lines per second.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from common import Report, Wire, cpu_s, status_kb
from recorded_host import LOG_LINES_S, RecordedHost, recorded_host

from tuner.core.snapshot import missing
from tuner.domain.link import Question, Target
from tuner.session.session import Session, open_session
from tuner.session.tasks import spawn

CPU_BAR_MS = 5.0
RSS_BAR_MB = 40.0
LINK_BAR_KB_S = 3.0
SETTLE_S = 8.0


async def nobody(question: Question) -> str | None:
    """Fail: the keys are known, so no question may be asked."""
    raise AssertionError(question)


async def measure(report: Report, wire: Wire, host: RecordedHost, seconds: float) -> None:
    """Run one session: let it settle, then count."""
    session = open_session(Target(name="box", host="127.0.0.1", port=wire.port), ask=nobody)
    work = spawn(session.run(), name="session")
    async for state in session.snapshots():
        if not missing(state):
            break
    await asyncio.sleep(SETTLE_S)
    assert session.state.hello is not None
    assert len(session.state.samples) == 8
    assert session.state.servers[0].metrics.tok_s is not None
    print(f"probe: Python {session.state.hello.python}; {seconds:.0f} s each")
    await count(report, wire, session, seconds, "silent log")
    host.write_log()
    await asyncio.sleep(1.0)
    await count(report, wire, session, seconds, f"log of {LOG_LINES_S:g} lines/s")
    await session.aclose()
    await work


async def count(report: Report, wire: Wire, session: Session, seconds: float, what: str) -> None:
    """Print the figures of some seconds."""
    assert session.state.hello is not None
    pid = session.state.hello.pid
    loop = asyncio.get_running_loop()
    at, cpu, received, sent = loop.time(), cpu_s(pid), wire.received_bytes, wire.sent_bytes
    await asyncio.sleep(seconds)
    took = loop.time() - at
    report.row(f"CPU per cycle, {what}", (cpu_s(pid) - cpu) / took * 1000, "ms", CPU_BAR_MS)
    report.row(f"memory (VmRSS), {what}", status_kb(pid, "VmRSS") * 1024 / 1e6, "MB", RSS_BAR_MB)
    both = (wire.received_bytes + wire.sent_bytes - received - sent) / took / 1000
    part = f"({(wire.received_bytes - received) / took / 1000:.2f} from the host)"
    report.row(f"link, {what}", both, "kB/s", LINK_BAR_KB_S, part)


def main() -> int:
    """Run the benchmark; return 1 when a bar was missed."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    report = Report()
    with tempfile.TemporaryDirectory() as folder, recorded_host(Path(folder)) as (host, wire):
        asyncio.run(measure(report, wire, host, seconds))
    return report.code


if __name__ == "__main__":
    sys.exit(main())
