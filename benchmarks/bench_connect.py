"""Time from the TCP connect to the first complete frame, through a real sshd on loopback, beside `ssh host true`.

`python benchmarks/bench_connect.py [RUNS]` runs `gputuner connect` in a real terminal on a recorded host with eight
GPUs and a serving SGLang. The time is from the TCP connection until the screen shows every rank's memory and the tokens
per second. Each run also measures `ssh host true`, from its TCP connection to its exit, and a session without a screen,
until its first complete state.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_start import SIZE, live
from common import GPUTUNER, Report, Wire
from recorded_host import recorded_host

from tests.e2e.terminal import Terminal
from tuner.core.snapshot import missing
from tuner.domain.link import Question, Target
from tuner.session.session import open_session
from tuner.session.tasks import spawn

BAR_S = 1.0


def screen(wire: Wire) -> float:
    """Return the seconds from the TCP connect to a complete frame."""
    calls = len(wire.called)
    with Terminal(GPUTUNER, "connect", f"127.0.0.1:{wire.port}", **SIZE) as terminal:
        terminal.wait(live)
        took = time.monotonic() - wire.called[calls]
        terminal.send("q")
        terminal.end()
    return took


def bare(wire: Wire) -> float:
    """Return the seconds from the TCP connect of `ssh host true` to its exit."""
    calls = len(wire.called)
    ours = Path(os.environ["HOME"]) / ".ssh"  # ssh itself takes the home folder from the user's account
    files = ["-F", "none", "-i", str(ours / "id_ed25519"), "-o", f"UserKnownHostsFile={ours / 'known_hosts'}"]
    command = ["ssh", *files, "-p", str(wire.port), "127.0.0.1", "true"]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    return time.monotonic() - wire.called[calls]


def state(wire: Wire) -> float:
    """Return the seconds from the TCP connect to a complete state, without a screen."""

    async def reach() -> float:
        session = open_session(Target(name="box", host="127.0.0.1", port=wire.port), ask=nobody)
        calls = len(wire.called)
        work = spawn(session.run(), name="session")
        async for seen in session.snapshots():
            if not missing(seen):
                break
        took = time.monotonic() - wire.called[calls]
        await session.aclose()
        await work
        return took

    return asyncio.run(reach())


async def nobody(question: Question) -> str | None:
    """Fail: the keys are known, so no question may be asked."""
    raise AssertionError(question)


def main() -> int:
    """Run the benchmark; return 1 when its bar was missed."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    report = Report()
    with tempfile.TemporaryDirectory() as folder, recorded_host(Path(folder)) as (_, wire):
        bare(wire)  # fills the file cache
        took = [(screen(wire), state(wire), bare(wire)) for _ in range(runs)]
    frame_s = report.times("TCP connect to the first complete frame", [run[0] for run in took], "s", BAR_S)
    report.times("TCP connect to the first complete state", [run[1] for run in took], "s")
    bare_s = report.times("ssh host true", [run[2] for run in took], "s")
    print(f"the frame takes {frame_s / bare_s:.1f} times a bare `ssh host true`")
    return report.code


if __name__ == "__main__":
    sys.exit(main())
