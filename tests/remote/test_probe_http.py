"""HTTP as the probe asks it on the host: gently, only the server itself, and only what changed is sent."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.fixtures.proc.running import RunningProbe, pythons, running, toy_plan, until
from tests.fixtures.proc.tree import ProcTree, make_venv, toy_server
from tuner.domain import events as e
from tuner.domain.plan import EndpointPlan

KEY = "100:500100"
METRICS = Path(__file__).parents[1] / "fixtures/proc/sglang-0.5.23-metrics.txt"


class Web:
    """A server whose answers the test decides: path to (status, type, body) or a function that writes them."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        web = self
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.access: Callable[[str], None] = lambda path: None
        """Called for each request with its path, as an access log is."""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.asked.append((self.path, self.headers.get("Authorization")))
                web.access(self.path)
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
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
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
        web.answers["/slow"] = (200, b"{}")
        probe.problem("http-timeout", cleared=True)
        release.set()


def test_a_slow_answer_is_waited_for_while_others_are_asked(tree: ProcTree, web: Web) -> None:
    enough = threading.Event()
    web.access = lambda path: enough.set() if web.paths().count("/fast") >= 15 else None

    def slow(handler: BaseHTTPRequestHandler) -> None:
        enough.wait(20.0)
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    web.answers["/slow"] = slow
    web.answers["/fast"] = (200, b"{}")
    with running(tree.root, plan(endpoint("slow", timeout_s=30.0), endpoint("fast"))) as probe:
        answer = probe.first(e.HttpAnswer, lambda x: x.endpoint == "slow")
        assert (answer.status, answer.error) == (200, None)
        assert len([x for x in probe.of(e.HttpAnswer) if x.endpoint == "fast"]) >= 10


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


# How often


def waits(probe: RunningProbe) -> list[float | None]:
    return [x.next_s for x in probe.of(e.HttpAnswer)]


def test_an_endpoint_that_answers_the_same_is_asked_more_seldom(tree: ProcTree, web: Web) -> None:
    web.answers["/metrics"] = (200, b"up 1\n")
    asked = endpoint("metrics", parse="prometheus", series=("up",), idle_s=0.8)
    with running(tree.root, plan(asked)) as probe:
        probe.wait(lambda _: len(waits(probe)) >= 6)
        assert waits(probe)[:6] == [None, 0.2, 0.4, 0.8, 0.8, 0.8]
        apart = [x.mono for x in probe.of(e.HttpAnswer)][4:6]
        assert apart[1] - apart[0] > 0.5
        web.answers["/metrics"] = (200, b"up 2\n")
        assert probe.first(e.HttpAnswer, lambda x: bool(x.series), after=probe.count()).next_s is None
        assert probe.first(e.HttpAnswer, after=probe.count()).next_s == 0.2
        assert len(probe.of(e.HttpAnswer)) == len(web.asked)


@pytest.mark.parametrize(("status", "slower"), [(404, True), (503, False)])
def test_what_is_not_there_is_asked_seldom_and_what_is_not_ready_often(
    tree: ProcTree, web: Web, status: int, slower: bool
) -> None:
    web.answers["/ready"] = (status, b"")
    with running(tree.root, plan(endpoint("ready", parse="status", idle_s=0.4))) as probe:
        probe.wait(lambda _: len(waits(probe)) >= 4)
        assert waits(probe)[:4] == ([None, 0.2, 0.4, 0.4] if slower else [None] * 4)


def test_a_line_in_the_log_ends_the_waiting_and_our_own_lines_do_not(tree: ProcTree, web: Web, tmp_path: Path) -> None:
    path = tmp_path / "log"
    toy_server(tree, flags=["--port", str(web.port)], log=path)
    tree.listen(100, web.port)
    web.answers["/info"] = (200, b"{}")
    with path.open("w", buffering=1) as log:
        web.access = lambda asked: print(f'INFO: 127.0.0.1:1 - "GET {asked} HTTP/1.1" 200 OK', file=log)
        with running(tree.root, plan(endpoint("info", every_s=0.5, idle_s=60.0))) as probe:
            slow = probe.first(e.HttpAnswer, lambda x: x.next_s == 8.0)
            assert waits(probe) == [None, 1.0, 2.0, 4.0, 8.0]
            print("Prefill batch, #new-seq: 1", file=log)
            soon = probe.first(e.HttpAnswer, lambda x: x.mono > slow.mono)
            assert soon.mono - slow.mono < 4.0
            assert soon.next_s is None


def test_a_log_that_tells_of_our_asking_in_its_own_way_is_no_reason_to_ask_more(
    tree: ProcTree, web: Web, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    toy_server(tree, flags=["--port", str(web.port)], log=path)
    tree.listen(100, web.port)
    web.answers["/info"] = (200, b"{}")
    with path.open("w", buffering=1) as log:
        web.access = lambda asked: print("somebody wants to know something", file=log)
        with running(tree.root, plan(endpoint("info", every_s=0.8, idle_s=60.0))) as probe:
            probe.wait(lambda _: len(waits(probe)) >= 6)
            times = [x.mono for x in probe.of(e.HttpAnswer)]
            assert times[5] - times[0] > 5 * 0.4


def test_gpus_that_work_end_the_waiting(tree: ProcTree, web: Web, tmp_path: Path) -> None:
    binding = (Path(__file__).parents[1] / "fixtures/proc/fake_pynvml.py").read_text()
    control = tmp_path / "nvml.json"

    def gpus(utilization: int, pid: int) -> None:
        fresh = control.with_suffix(".new")
        fresh.write_text(json.dumps({"utilization": utilization, "processes": [[0, pid, 1 << 30]]}))
        fresh.replace(control)

    gpus(80, 4711)  # another one's work
    toy_server(tree, flags=["--port", str(web.port)], python=make_venv(tmp_path / "venv", binding=binding))
    tree.listen(100, web.port)
    web.answers["/info"] = (200, b"{}")
    asked = endpoint("info", every_s=0.5, idle_s=60.0)
    with running(tree.root, plan(asked), FAKE_NVML=str(control)) as probe:
        probe.first(e.HttpAnswer, lambda x: x.next_s == 2.0)
        gpus(0, 101)
        probe.first(e.GpuProcesses, lambda x: x.processes[0].pid == 101)
        slow = probe.wait(lambda _: next((x for x in probe.of(e.HttpAnswer) if (x.next_s or 0.0) >= 8.0), None))
        gpus(80, 101)
        soon = probe.first(e.HttpAnswer, lambda x: x.mono > slow.mono)
        assert soon.mono - slow.mono < 6.0


def test_of_what_lies_deeper_only_the_wanted_is_sent(tree: ProcTree, web: Web) -> None:
    body = {"a": 1, "states": [{"memory": 5, "load": 1}, {"memory": 6}, 7], "one": {"x": 1, "y": 2}}
    web.answers["/info"] = (200, json.dumps(body).encode())
    with running(tree.root, plan(endpoint("info", keep={"states": ("memory",), "one": ("y",), "none": ()}))) as probe:
        first = probe.first(e.HttpAnswer)
        assert first.body == {"a": 1, "states": [{"memory": 5}, {"memory": 6}, 7], "one": {"y": 2}}
        body["states"][0]["load"] = 2  # type: ignore[index]
        web.answers["/info"] = (200, json.dumps(body).encode())
        until(lambda: len(web.asked) > 4)
        assert all(x.body is None for x in probe.of(e.HttpAnswer)[1:])


def test_in_a_list_what_is_dropped_is_dropped_of_each(tree: ProcTree, web: Web) -> None:
    web.answers["/info"] = (200, b'[{"a": 1, "clock": 5}, {"a": 2}, 3]')
    with running(tree.root, plan(endpoint("info", drop=("clock",)))) as probe:
        assert probe.first(e.HttpAnswer).body == [{"a": 1}, {"a": 2}, 3]


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for a name that is not ours, which has expired, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llm.example")])
    day = datetime(2020, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), day, day + timedelta(1))
    ).sign(key, hashes.SHA256())
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + made.public_bytes(Encoding.PEM))
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def tls_plan(*endpoints: EndpointPlan) -> dict[str, Any]:
    made = plan(*endpoints)
    made["engines"][0]["tls_flags"] = ["--cert"]
    return made


@contextmanager
def tls_web(tree: ProcTree, context: ssl.SSLContext | None, *flags: str) -> Iterator[Web]:
    web = Web(context)
    toy_server(tree, flags=["--port", str(web.port), "--api-key", "sesame", *flags])
    tree.listen(100, web.port)
    try:
        yield web
    finally:
        web.close()


@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("flags", [("--cert", "server.pem"), ("--cert=server.pem",)])
def test_a_server_with_a_certificate_is_asked_over_tls(
    tmp_path: Path, tls: ssl.SSLContext, python: str, flags: tuple[str, ...]
) -> None:
    tree = ProcTree(tmp_path / "root")
    big = json.dumps({"text": "x" * 300_000}).encode()
    with tls_web(tree, tls, *flags) as web:
        web.answers["/info"] = (200, big)
        with running(tree.root, tls_plan(endpoint("info", auth=True)), python=python) as probe:
            assert probe.first(e.HttpAnswer).body == json.loads(big)
            until(lambda: len(web.asked) > 3)  # over the kept connection
            assert set(web.asked) == {("/info", "Bearer sesame")}
            assert all(x.status == 200 for x in probe.of(e.HttpAnswer))
            assert not [p for p in probe.of(e.ProblemSeen) if p.code.startswith("http")]


def test_a_tls_connection_that_the_server_closed_is_opened_anew(tmp_path: Path, tls: ssl.SSLContext) -> None:
    tree = ProcTree(tmp_path / "root")

    def answer_and_hang_up(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        handler.close_connection = True  # without saying so

    with tls_web(tree, tls, "--cert", "x") as web:
        web.answers["/info"] = answer_and_hang_up
        with running(tree.root, tls_plan(endpoint("info"))) as probe:
            probe.wait(lambda _: len(probe.of(e.HttpAnswer)) >= 4)
            assert all(x.status == 200 for x in probe.of(e.HttpAnswer))


def test_what_should_speak_tls_and_does_not_is_a_problem(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "root")
    with tls_web(tree, None, "--cert", "x") as web, running(tree.root, tls_plan(endpoint("info"))) as probe:
        assert "SSL" in (probe.first(e.HttpAnswer).error or "")
        assert web.asked == []
