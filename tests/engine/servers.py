"""Real inference servers on this machine's CPU, on loopback, each in a process session of its own.

They are started as an operator starts them (output to a file, the shell gone) and ended only by PID: the processes of a
server are those in the session that it was started with.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODEL_NAME = "tiny"


class Server:
    """One server, which ends with the context."""

    engine = ""
    path_ready = ""
    """Path that answers 200 once requests are served, at no cost."""

    def __init__(self, folder: Path, log: Path, *options: str) -> None:
        self.folder = folder
        self.log = log
        self.port = free_port()
        self.options = options
        self.process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Return the leader's PID."""
        return self.process.pid

    @property
    def model(self) -> Path:
        return self.folder / "tiny-llm"

    def argv(self) -> list[str]:
        """Return the command line."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return variables to add to the environment."""
        raise NotImplementedError

    def __enter__(self) -> Server:
        """Start the server without waiting for it."""
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.argv(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.log.parent,
                env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"} | self.environment(),
            )
        return self

    def __exit__(self, *exception: object) -> None:
        """Kill every process of its session, by PID, and wait until all are gone."""
        deadline = time.monotonic() + 30
        while (left := members(self.pid)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not members(self.pid), 2, must=False)
        self.process.wait(5)
        assert not members(self.pid)

    def wait_ready(self, limit_s: float = 120) -> None:
        """Wait until the server serves; fail with the end of its log otherwise."""
        url = f"http://127.0.0.1:{self.port}{self.path_ready}"

        def ready() -> bool:
            assert self.process.poll() is None, self.tail()
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
            return False

        wait_until(ready, limit_s, message=self.tail)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def complete(self, tokens: int) -> int:
        """Send one request; return the number of tokens in the answer."""
        question = {
            "model": MODEL_NAME,
            "prompt": "a server answers",
            "max_tokens": tokens,
            "temperature": 1.0,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    def trouble(self) -> None:
        """Send requests that are refused, and one whose client leaves before the answer ends."""
        long = json.dumps({"model": MODEL_NAME, "prompt": "a " * 6000, "max_tokens": 20})
        wrong = json.dumps({"model": MODEL_NAME, "prompt": "x", "max_tokens": -5})
        quoted = json.dumps(
            {"model": MODEL_NAME, "prompt": "Traceback (most recent call last): CUDA out of memory", "temperature": -3}
        )
        for body in ("{not json", wrong, long, quoted):
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/v1/completions", body.encode(), {"Content-Type": "application/json"}
            )
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
        body = json.dumps({"model": MODEL_NAME, "prompt": "x y", "max_tokens": 400, "stream": True, "ignore_eos": True})
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            head = f"Host: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            client.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
            client.recv(200)

    @contextlib.contextmanager
    def load(self, clients: int = 2, tokens: int = 100) -> Iterator[list[int]]:
        """Send requests from a few clients, one after the other, until the context is left; yields the token counts."""
        done = threading.Event()
        received: list[int] = []

        def client() -> None:
            while not done.is_set():
                try:
                    received.append(self.complete(tokens))
                except OSError:
                    return  # the server was ended meanwhile, as some tests do

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield received
        finally:
            done.set()
            for thread in threads:
                thread.join()

    def send(self, number: signal.Signals, pid: int | None = None) -> None:
        """Send a signal to the leader, or to another process of this server."""
        target = self.pid if pid is None else pid
        assert target in members(self.pid)
        os.kill(target, number)


class Sglang(Server):
    """SGLang 0.5.23 with TP 2."""

    engine = "sglang"
    path_ready = "/ready"

    def argv(self) -> list[str]:
        return [
            *(str(self.folder / "bin/python"), "-m", "sglang.launch_server"),
            *("--model-path", str(self.model), "--served-model-name", MODEL_NAME, "--tp-size", "2"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"),
            *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-cuda-graph"),
            *("--max-total-tokens", "32768", "--max-running-requests", "16"),
            "--sleep-on-idle",  # without it an idle scheduler spins on a core
            *self.options,
        ]

    def environment(self) -> dict[str, str]:
        return {
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "tiny_models",
            "SGLANG_CPU_OMP_THREADS_BIND": "0|1",  # one entry per rank, or TP 2 is refused
        }


class Vllm(Server):
    """vLLM 0.32.0 with TP 2."""

    engine = "vllm"
    path_ready = "/health"

    def argv(self) -> list[str]:
        return [
            *(str(self.folder / "bin/vllm"), "serve", str(self.model), "--served-model-name", MODEL_NAME),
            *("--host", "127.0.0.1", "--port", str(self.port), "--tensor-parallel-size", "2"),
            *("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8"),
            *self.options,
        ]

    def environment(self) -> dict[str, str]:
        # Both ranks on one core: they spin while they wait for each other, which on all cores of a small machine keeps
        # everybody else waiting for seconds.
        core = max(os.sched_getaffinity(0))
        return {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": f"{core}|{core}",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def members(session: int) -> list[int]:
    """Return the living processes in a session; zombies do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z" and int(fields[3]) == session:
                    found.append(int(entry.name))
    return found


def titles(session: int) -> dict[str, int]:
    """Return the PIDs of a server's living processes, by command line."""
    return {
        Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip(): pid
        for pid in members(session)
    }


def wait_until(
    true: Callable[[], Any], limit_s: float, *, must: bool = True, message: Callable[[], str] = lambda: ""
) -> None:
    """Poll `true` until it holds; fail, or return unless `must`, after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not true():
        if time.monotonic() > deadline:
            assert not must, f"not within {limit_s} s. {message()}"
            return
        pause.wait(0.1)
