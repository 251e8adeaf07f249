"""HTTP as the probe asks it on the host: gently, only the server itself, and only what changed is sent."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.running import pythons, running, toy_plan, until
from tests.fixtures.proc.tree import ProcTree, toy_server
from tuner.domain import events as e
from tuner.domain.plan import EndpointPlan

KEY = "100:500100"
METRICS = Path(__file__).parents[1] / "fixtures/proc/sglang-0.5.23-metrics.txt"


class Web:
    """A server whose answers the test decides: path to (status, type, body) or a function that writes them."""

    def __init__(self) -> None:
        web = self
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.asked.append((self.path, self.headers.get("Authorization")))
                answer = web.answers.get(self.path, (404, b"{}"))
                if callable(answer):
                    answer(self)
                    return
                status, body = answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.close()


@pytest.fixture
def tree(tmp_path: Path, web: Web) -> ProcTree:
    tree = ProcTree(tmp_path / "root")
    toy_server(tree, flags=["--port", str(web.port), "--api-key", "sesame"])
    tree.listen(100, web.port)
    return tree


def plan(*endpoints: EndpointPlan, **changes: Any) -> dict[str, Any]:
    return toy_plan(endpoints=endpoints, **changes)


def endpoint(ident: str, *paths: str, **changes: Any) -> EndpointPlan:
    return EndpointPlan(**{"id": ident, "paths": paths or (f"/{ident}",), "every_s": 0.1, "timeout_s": 1.0, **changes})


@pytest.mark.parametrize("python", pythons())
def test_metrics_are_reduced_to_what_changed(tree: ProcTree, web: Web, python: str) -> None:
    text = METRICS.read_bytes()
    assert len(text) > 100_000
    web.answers["/metrics"] = (200, text)
    names = ("sglang:num_running_reqs", "sglang:token_usage", "sglang:absent")
    with running(tree.root, plan(endpoint("metrics", parse="prometheus", series=names)), python=python) as probe:
        first = probe.first(e.HttpAnswer)
        assert (first.key, first.endpoint, first.status) == (KEY, "metrics", 200)
        assert first.series
        assert {name.split("{")[0] for name in first.series} == {"sglang:num_running_reqs", "sglang:token_usage"}
        assert first.latency_s is not None
        assert first.latency_s > 0
        assert probe.first(e.HttpAnswer, after=probe.count()).series == {}
        line = next(x for x in text.split(b"\n") if x.startswith(b"sglang:num_running_reqs{"))
        web.answers["/metrics"] = (200, text.replace(line, line.rpartition(b" ")[0] + b" 17.0"))
        changed = probe.first(e.HttpAnswer, lambda x: bool(x.series), after=probe.count())
        assert list(changed.series.values()) == [17.0]  # type: ignore[union-attr]
        assert probe.problem("no-gpu")


def test_json_is_sent_once_and_without_what_is_dropped(tree: ProcTree, web: Web) -> None:
    web.answers["/info"] = (200, json.dumps({"a": 1, "noise": 1, "odd": float("nan")}).encode())
    with running(tree.root, plan(endpoint("info", drop=("noise",)))) as probe:
        assert probe.first(e.HttpAnswer).body == {"a": 1, "odd": None}
        web.answers["/info"] = (200, b'{"a": 1, "noise": 2, "odd": NaN}')
        assert probe.first(e.HttpAnswer, after=probe.count() + 3).body is None
        web.answers["/info"] = (200, b'{"a": 2}')
        assert probe.first(e.HttpAnswer, lambda x: x.body is not None, after=probe.count()).body == {"a": 2}


def test_what_json_can_say_and_the_wire_cannot(tree: ProcTree, web: Web) -> None:
    web.answers["/info"] = (200, b'{"big": 1e999, "half": "\\ud800", "fine": 1.5}')
    with running(tree.root, plan(endpoint("info"))) as probe:
        assert probe.first(e.HttpAnswer).body == {"big": None, "half": "?", "fine": 1.5}


def test_paths_are_tried_and_the_winner_is_kept(tree: ProcTree, web: Web) -> None:
    web.answers["/new"] = (500, b"")
    web.answers["/old"] = (200, b"{}")
    with running(tree.root, plan(endpoint("info", "/newest", "/new", "/old"))) as probe:
        assert probe.first(e.HttpAnswer).status == 200
        until(lambda: len(web.asked) >= 6)
        assert web.paths()[:6] == ["/newest", "/new", "/old", "/old", "/old", "/old"]


def test_a_status_that_tells_something_is_reported(tree: ProcTree, web: Web) -> None:
    web.answers["/health"] = (503, b"")
    with running(tree.root, plan(endpoint("ready", "/ready", "/health", parse="status"))) as probe:
        assert probe.first(e.HttpAnswer).status == 503
        web.answers["/health"] = (200, b"not json")
        assert probe.first(e.HttpAnswer, lambda x: x.status == 200).body is None
        assert not [p for p in probe.of(e.ProblemSeen) if p.code.startswith("http")]


def test_unless_another_answers(tree: ProcTree, web: Web) -> None:
    web.answers["/metrics"] = (200, b"up 1\n")
    web.answers["/loads"] = (200, b"{}")
    endpoints = (endpoint("metrics", parse="prometheus", series=("up",)), endpoint("loads", unless="metrics"))
    with running(tree.root, plan(*endpoints)) as probe:
        until(lambda: web.paths().count("/metrics") > 5)
        assert "/loads" not in web.paths()
        web.answers["/metrics"] = (404, b"")
        probe.first(e.HttpAnswer, lambda x: x.endpoint == "loads")


def test_the_key_goes_only_where_it_is_wanted(tree: ProcTree, web: Web) -> None:
    web.answers["/a"] = web.answers["/b"] = (200, b"{}")
    with running(tree.root, plan(endpoint("a", auth=True), endpoint("b"))) as probe:
        until(lambda: {"/a", "/b"} <= set(web.paths()))
        assert set(web.asked) == {("/a", "Bearer sesame"), ("/b", None)}
        assert "sesame" not in repr(probe.events)


def test_a_missing_key_is_said_and_not_pressed(tree: ProcTree, web: Web) -> None:
    web.answers["/a"] = (401, b'{"error":"Unauthorized"}')
    with running(tree.root, plan(endpoint("a"))) as probe:
        problem = probe.problem("http-auth")
        assert problem.subject == KEY
        assert "/a" in problem.detail
        assert probe.first(e.HttpAnswer).status == 401
        probe.first(e.HostSample, lambda x: x.mono > probe.events[0].mono + 2)
        assert len(web.asked) == 1


def test_a_wrong_key_is_another_matter(tree: ProcTree, web: Web) -> None:
    web.answers["/a"] = (403, b"")
    with running(tree.root, plan(endpoint("a", auth=True))) as probe:
        assert "refuses" in probe.problem("http-auth").detail


NONSENSE: dict[str, bytes] = {
    "banner": b"SSH-2.0-OpenSSH_9.6\r\n",
    "binary": b"\x15\x03\x01\x00\x02\x02",
    "nothing": b"",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
    "no json": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunks backwards": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-6\r\n",
    "chunks without measure": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
    "nested": b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
}


class Raw(socketserver.ThreadingTCPServer):
    """Answers the same bytes to everyone."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: bytes) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(4096)
                self.request.sendall(answer)

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Callable[[bytes], ProcTree]]:
    servers: list[tuple[Raw, threading.Thread]] = []

    def make(answer: bytes) -> ProcTree:
        server = Raw(answer)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        tree = ProcTree(tmp_path / "raw")
        toy_server(tree, flags=["--port", str(server.server_address[1])])
        tree.listen(100, server.server_address[1])
        return tree

    yield make
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_said(raw: Callable[[bytes], ProcTree], answer: bytes) -> None:
    with running(raw(answer).root, plan(endpoint("info"))) as probe:
        problem = probe.problem("http-nonsense")
        assert problem.subject == KEY
        event = probe.first(e.HttpAnswer)
        assert event.error
        assert event.body is None


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n4;x=y\r\n: 1}\r\n0\r\n\r\n',
        b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\n{"a": 1}',
    ],
)
def test_ways_to_send_a_body(raw: Callable[[bytes], ProcTree], answer: bytes) -> None:
    with running(raw(answer).root, plan(endpoint("info"))) as probe:
        assert probe.first(e.HttpAnswer, lambda x: x.body is not None).body == {"a": 1}


def test_quiet_endpoints_make_no_problems(raw: Callable[[bytes], ProcTree]) -> None:
    with running(raw(b"nonsense").root, plan(endpoint("info", quiet=True))) as probe:
        assert probe.first(e.HttpAnswer).error
        probe.settle()
        assert not [p for p in probe.of(e.ProblemSeen) if p.code.startswith("http")]


def test_a_slow_endpoint_delays_no_other(tree: ProcTree, web: Web) -> None:
    release = threading.Event()
    web.answers["/slow"] = lambda handler: release.wait(20.0)
    web.answers["/fast"] = (200, b"{}")
    with running(tree.root, plan(endpoint("slow", timeout_s=0.4), endpoint("fast"))) as probe:
        problem = probe.problem("http-timeout")
        assert "/slow" in problem.detail
        slow = [x for x in probe.of(e.HttpAnswer) if x.endpoint == "slow"]
        fast = [x for x in probe.of(e.HttpAnswer) if x.endpoint == "fast"]
        assert all(x.error and x.status is None for x in slow)
        assert len(fast) > 2 * len(slow)
        assert all(x.latency_s and x.latency_s < 0.3 for x in fast)
        web.answers["/slow"] = (200, b"{}")
        probe.problem("http-timeout", cleared=True)
        release.set()


def test_a_slow_drip_meets_its_deadline(tree: ProcTree, web: Web) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        stop = time.monotonic() + 10
        try:
            while time.monotonic() < stop:
                handler.wfile.write(b" ")
                handler.wfile.flush()
                threading.Event().wait(0.05)
        except OSError:
            pass

    web.answers["/drip"] = drip
    with running(tree.root, plan(endpoint("drip", timeout_s=0.3))) as probe:
        event = probe.first(e.HttpAnswer)
        assert event.error == "no answer within 0.3 s"


def test_nothing_is_asked_before_it_listens(tree: ProcTree, web: Web) -> None:
    web.answers["/info"] = (200, b"{}")
    tree.unlisten(web.port)
    with running(tree.root, plan(endpoint("info"))) as probe:
        probe.first(e.HostSample)
        probe.settle()
        assert web.asked == []
        tree.listen(100, web.port)
        probe.first(e.HttpAnswer)


def test_an_older_server_on_the_port_is_not_asked(tree: ProcTree, web: Web) -> None:
    """The new server's warm-up would be answered by the old one: readiness must not come from there."""
    web.answers["/info"] = (200, b"{}")
    tree.unlisten(web.port)
    tree.add(400, ["something"])
    tree.listen(400, web.port)
    with running(tree.root, plan(endpoint("info"))) as probe:
        probe.first(e.HostSample, lambda x: x.mono > probe.events[0].mono + 2)
        assert web.asked == []


def test_a_server_that_stops_listening_is_left_alone(tree: ProcTree, web: Web) -> None:
    web.answers["/info"] = (200, b"{}")
    with running(tree.root, plan(endpoint("info"))) as probe:
        probe.first(e.HttpAnswer)
        tree.unlisten(web.port)
        probe.server(lambda s: not s.ports)
        probe.settle()
        count = len(web.asked)
        probe.first(e.HostSample, after=probe.count())
        assert len(web.asked) <= count + 1


@pytest.mark.parametrize("flags", [["--host", "0.0.0.0"], ["--host", "127.0.0.1"], []])
def test_the_address_is_where_it_listens(tree: ProcTree, web: Web, flags: list[str]) -> None:
    web.answers["/info"] = (200, b"{}")
    toy_server(tree, flags=["--port", str(web.port), *flags])
    tree.unlisten(web.port)
    tree.listen(100, web.port, address="0.0.0.0" if "0.0.0.0" in flags else "127.0.0.1")
    with running(tree.root, plan(endpoint("info"))) as probe:
        assert probe.first(e.HttpAnswer).status == 200
