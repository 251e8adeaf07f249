"""A host made of recorded input for the real probe: eight GPUs, and an SGLang or vLLM on all of them.

/proc is a tree of files, NVML a Python module in the server's virtual environment, the log a file that grows, and HTTP
a small server that gives a real server's answers with other numbers each second.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from common import ROOT, Wire, line, own_home

from tests.fixtures.proc.tree import ProcTree, make_venv
from tests.support.sshd import public_key, world

RANKS = 8
OTHERS = 300
"""Number of unrelated processes; real hosts have some hundreds."""
LEADER = 4000
LOG_LINES_S = 2.0
HTTP = ROOT / "tests/golden/http"
NVML = ROOT / "tests/fixtures/proc/fake_pynvml.py"
DECODE = (
    "[2026-11-29 16:24:{s:02d} TP0] Decode batch, #running-req: 32, #token: {n}, token usage: 0.41, cuda graph: True, "
    "gen throughput (token/s): 1505.78, #queue-req: 3\n"
)
READY = "[2026-11-29 16:20:00] The server is fired up and ready to roll!\n"
_MOVING = re.compile(
    rb"(?m)^((?:sglang|vllm):(?:\w+_(?:total|sum|count)|num_\w+|gen_throughput|cache_hit_rate|token_usage)\{.*\} )"
    rb"(\d+\.\d+)$"
)
"""Matches series that change while a server serves: counters, and gauges of its batches."""


class RecordedHost:
    """The folder for HOST_ROOT, and the log and HTTP server outside of it.

    Args:
        folder: Folder for all files.
        engine: `sglang` or `vllm`.
    """

    def __init__(self, folder: Path, engine: str = "sglang") -> None:
        self._engine = engine
        self.root = folder / "root"
        self.log = folder / "server.log"
        self.log.write_text(READY + "".join(DECODE.format(s=i % 60, n=i) for i in range(2000)))
        recorded = HTTP / ("sglang/0.5.23" if engine == "sglang" else "vllm/0.32.0")
        self._metrics = (recorded / ("metrics-tp2.txt" if engine == "sglang" else "metrics.txt")).read_bytes()
        self._info = (recorded / "server_info-tp2.json").read_bytes() if engine == "sglang" else b"{}"
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._web = self._serve()
        port = self._web.server_address[1]
        tree = ProcTree(self.root)
        self._fill(tree, folder, port)
        tree.listen(LEADER, int(port))
        self._writer: threading.Thread | None = None

    def _fill(self, tree: ProcTree, folder: Path, port: int | str) -> None:
        users = [[gpu, LEADER + 1 + gpu, 85 << 30] for gpu in range(RANKS)]
        control = {"gpus": RANKS, "counters": True, "links": 0, "processes": users}
        # What the module would read from its control file at each call is part of its source, since that cost is the
        # fake's.
        binding = f"{NVML.read_text()}\n\ndef _control():\n    return CONTROL\n\n\nCONTROL = {control!r}\n"
        sglang = self._engine == "sglang"
        version = "0.5.23" if sglang else "0.32.0"
        python = str(make_venv(folder / "venv", package=self._engine, version=version, binding=binding))
        start = ["-m", "sglang.launch_server", "--model-path", "/models/llm", "--enable-metrics", "--tp"]
        serve = [f"{Path(python).parent}/vllm", "serve", "/models/llm", "--tensor-parallel-size"]
        env = {"PATH": "/usr/bin", "HOME": "/root", **{f"SETTING_{i}": "x" * 40 for i in range(60)}}
        output = {1: self.log, 2: self.log}
        argv = [python, *(start if sglang else serve), str(RANKS), "--port", str(port)]
        tree.add(LEADER, argv, ticks=1000, env=env, fds=output)
        for rank in range(RANKS):
            title = [f"sglang::scheduler_TP{rank}" if sglang else f"VLLM::Worker_TP{rank}"]
            tree.add(LEADER + 1 + rank, title, ppid=LEADER, ticks=1000, env=env, fds=output)
        tree.add(
            LEADER + 20,
            ["sglang::detokenizer" if sglang else "VLLM::EngineCore"],
            ppid=LEADER,
            ticks=1000,
            env=env,
            fds=output,
        )
        for i in range(OTHERS):
            tree.add(10_000 + i, ["/usr/bin/something", str(i)], ticks=900)

    def _serve(self) -> ThreadingHTTPServer:
        answers = {"/metrics": self.metrics, "/server_info": lambda: self._info, "/ready": bytes, "/health": bytes}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                make = answers.get(self.path)
                body = make() if make else b"{}"
                self.send_response(200 if make else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def metrics(self) -> bytes:
        """Return the recorded answer, with changing series increased by the seconds since the start."""
        grown = time.monotonic() - self._began
        return _MOVING.sub(lambda found: b"%s%.6f" % (found[1], float(found[2]) + grown), self._metrics)

    def write_log(self) -> None:
        """Let the log grow from now on."""
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _write(self) -> None:
        number = 0
        with self.log.open("a") as log:
            while not self._stop.wait(1 / LOG_LINES_S):
                number += 1
                log.write(DECODE.format(s=number % 60, n=100_000 + number * 37))
                log.flush()

    def close(self) -> None:
        """End the threads and the HTTP server."""
        self._stop.set()
        if self._writer is not None:
            self._writer.join()
        self._web.shutdown()
        self._web.server_close()


@contextmanager
def recorded_host(folder: Path) -> Iterator[tuple[RecordedHost, Wire]]:
    """Yield a recorded host behind a real sshd, and the port to reach it by; its host key is known."""
    home = folder / "home"
    host = RecordedHost(folder)
    try:
        with world(home) as made:
            sshd = made.server(options=f"SetEnv HOST_ROOT={host.root}", known=False)
            with line(sshd.port) as wire:
                own_home(home)
                made.known_hosts.write_text(f"[127.0.0.1]:{wire.port} {public_key(sshd.host_key)}\n")
                yield host, wire
    finally:
        host.close()
