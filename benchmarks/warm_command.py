"""gputuner's command in forks of a process that has imported all it needs, so that hundreds of them cost little.

Each runs in a session of its own, as behind a terminal that may be closed, and what it prints goes to a file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1]))


class Command:
    """One running command.

    Args:
        pid: Its PID.
        out: File with what it printed.
    """

    def __init__(self, pid: int, out: Path) -> None:
        self.pid = pid
        self.out = out

    @property
    def code(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.out.with_suffix(".code").read_text())
        return None

    def wait(self, limit_s: float) -> int | None:
        """Return its exit code; None if it still runs after `limit_s` seconds."""
        until = time.monotonic() + limit_s
        while self.code is None and time.monotonic() < until:
            time.sleep(0.01)
        return self.code

    def send(self, number: int) -> None:
        """Send it a signal, if it runs. Its PID is not used again before `code` is known to its parent."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def said(self) -> str:
        """Return what it printed."""
        with contextlib.suppress(OSError):
            return self.out.read_text(errors="replace")
        return ""


class Commands:
    """Starts commands.

    Args:
        folder: Folder for what they print.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, *arguments: str) -> Command:
        """Start `gputuner ARGUMENTS`."""
        self._number += 1
        out = self._folder / f"command-{self._number}.out"
        told, answer = self._process.stdin, self._process.stdout
        assert told is not None
        assert answer is not None
        told.write(json.dumps({"argv": arguments, "out": str(out)}) + "\n")
        told.flush()
        return Command(int(answer.readline()), out)

    def close(self) -> None:
        """Kill what still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _serve(orders: IO[str]) -> None:
    """Fork a command for each line; write down how they end."""
    import tuner.cli
    import tuner.cli.apply
    import tuner.cli.change_commands
    import tuner.cli.headless  # noqa: F401
    from tuner.engines import load_engines
    from tuner.transports import ssh

    for module in pkgutil.walk_packages(ssh.__path__, "tuner.transports.ssh."):
        importlib.import_module(module.name)

    for engine in load_engines().values():
        engine.knobs()
    running: dict[int, str] = {}
    while True:
        ready, _, _ = select.select([orders], [], [], 0.02)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _note(running.pop(pid), str(os.waitstatus_to_exitcode(status)))
        if not ready:
            continue
        line = orders.readline()
        if not line:
            break
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(order["argv"], order["out"])
        running[pid] = order["out"]
        print(pid, flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _note(out: str, code: str) -> None:
    path = Path(out).with_suffix(".code")
    temporary = path.with_suffix(".tmp")
    temporary.write_text(code)
    temporary.rename(path)


def _become(argv: list[str], out: str) -> None:
    """Turn the forked child into the command. Never returns."""
    from tuner.cli import main

    code = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number, source in ((0, null), (1, file), (2, file)):
            os.dup2(source, number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
        sys.argv = ["gputuner", *argv]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.stdin)
