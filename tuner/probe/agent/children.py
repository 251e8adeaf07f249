"""Programs that the probe runs."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .base import which


class Children:
    """Starts programs (journalctl, nvidia-smi) and ends them with the probe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Set[Any] = set()
        self._closed = False
        self._guard: Optional[List[str]] = None

    def start(
        self,
        argv: Sequence[str],
        *,
        apart: bool = False,
        env: Optional[Dict[str, str]] = None,
        cwd: Optional[str] = None,
    ) -> Any:
        """Start a program with stdout in a pipe.

        Args:
            argv: Command line.
            apart: True: stderr goes to a pipe of its own, not to that of stdout.
            env: Its environment; None: the probe's.
            cwd: Its working folder; None: the probe's.

        Raises:
            OSError: It cannot be started.
        """
        import subprocess

        if self._guard is None:
            # Where setpriv can do that, the kernel ends the children even if the probe is killed outright.
            guard = [which("setpriv") or "setpriv", "--pdeathsig", "TERM", "--"]
            try:
                null = subprocess.DEVNULL
                able = subprocess.call([*guard, "true"], stdin=null, stdout=null, stderr=null, timeout=2.0) == 0
            except (OSError, subprocess.SubprocessError):
                able = False
            self._guard = guard if able else []
        with self._lock:
            if self._closed:
                raise OSError("the probe is ending")
            child = subprocess.Popen(
                [*self._guard, *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if apart else subprocess.STDOUT,
                env=dict(os.environ, LC_ALL="C") if env is None else env,
                cwd=cwd,
            )
            self._running.add(child)
        return child

    def end(self, child: Any) -> None:
        """Kill a program if it still runs, and reap it."""
        with self._lock:
            self._running.discard(child)
        if child.poll() is None:
            child.kill()
        with contextlib.suppress(Exception):
            child.wait(1.0)

    def output(self, argv: Sequence[str], timeout_s: float, env: Optional[Dict[str, str]] = None) -> Tuple[int, str]:
        """Return exit status and output of a short program. Raises OSError, and TimeoutError when it took too long."""
        import subprocess

        child = self.start(argv, env=env)
        try:
            data, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError("%s did not answer within %g s" % (argv[0], timeout_s)) from None
        finally:
            self.end(child)
            if child.stdout is not None:
                child.stdout.close()
        return child.returncode, data.decode("utf-8", "replace")

    def end_all(self) -> None:
        """Kill all programs; none can be started after this."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for child in running:
            self.end(child)
