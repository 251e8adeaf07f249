"""Poll the HTTP endpoints of a server."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from .base import HOST_ROOT, PROC, Json, until_beat
from .http_client import HttpClient, HttpProblem
from .series import SeriesFilter, finite
from .sockets import same_network

if TYPE_CHECKING:
    from .server import Server


class Poller:
    """Polls one endpoint of one server in a thread of its own, so that a slow endpoint delays no other."""

    FAULT_S = 30.0
    """Seconds until the next attempt after an error of ours."""

    def __init__(self, server: Server, plan: Json) -> None:
        self.server = server
        self.probe = server.probe
        self.id: str = plan["id"]
        self._paths: List[str] = list(plan["paths"])
        self._every_s = float(plan.get("every_s", 1.0))
        self._idle_s = float(plan.get("idle_s", 0.0))
        self._wait_s = self._every_s
        self._asked_at = 0.0
        self._timeout_s = float(plan.get("timeout_s", 2.0))
        self._parse: str = plan.get("parse", "json")
        self._series = SeriesFilter(plan.get("series", ()))
        self._numbers: Dict[str, int] = {}
        self._drop = set(plan.get("drop", ()))
        self._keep: Dict[str, List[str]] = plan.get("keep") or {}
        self._unless: Optional[str] = plan.get("unless")
        self._auth = bool(plan.get("auth", False))
        self._quiet = bool(plan.get("quiet", False))
        self._client = HttpClient(server.tls)
        self._winner: Optional[str] = None
        self._body: Optional[bytes] = None
        self._status: Optional[int] = None
        self._failures = 0
        self._entered = False
        self.good_until = 0.0
        """Monotonic time until which the endpoint counts as answering 200."""
        self.asked = threading.Event()
        """Set when it was asked once, or there turned out to be nothing to ask."""
        self.wake = threading.Event()
        """Set to end the wait for the next turn."""

    def run(self) -> None:
        """Poll until the server has ended."""
        ended = self.server.ended
        hurried = False
        while not ended.is_set():
            try:
                delay = self._turn()
            except Exception as e:
                self.probe.fault("endpoint " + self.id, e)
                self._client.close()
                delay = self.FAULT_S
            self.asked.set()
            if hurried and self._parse == "prometheus":
                delay = min(delay, self._every_s / 2)  # a rate takes two readings
            hurried = self.wake.wait(delay)
            if hurried:
                self.wake.clear()
                # Keeps the shortest interval whatever happens; the new lines may be about our own requests, in an
                # unknown format.
                ended.wait(self._asked_at + self._every_s - time.monotonic())
        self._client.close()
        self.asked.set()

    def hurry(self) -> None:
        """Poll soon because something happens in the server, unless its turn is near anyway."""
        if self._wait_s > self._every_s and self._status == 200:
            self.wake.set()

    def _turn(self) -> float:
        """Poll if it is due; return the seconds until the next turn."""
        server = self.server
        if not server.listening:
            self._client.close()
            return 0.5
        other = server.pollers.get(self._unless) if self._unless else None
        if other is not None:
            if not other.asked.is_set():
                return 0.05
            left = other.good_until - time.monotonic()
            if left > 0:
                return left
        if self.probe.out.congested:
            return 0.25
        if self._wait_s > 4.0:
            self._client.close()  # servers close idle connections after a few seconds
        quiet = server.busy_at < self._asked_at
        self._asked_at = time.monotonic()
        event: Json = {"t": "http", "key": server.key, "endpoint": self.id}
        try:
            status, body = self._ask()
            event["status"] = status
            self._read(status, body, event)
        except HttpProblem as e:
            self._wait_s = self._every_s
            self._status = None
            event["error"] = str(e)
            server.look_at_ports_soon()
            self._failed(e)
            self.probe.out.put(event)
            # A port that does not speak HTTP is not likely to do so soon.
            return max(self._every_s, 5.0) if e.code == "http-nonsense" else self._every_s
        self._pace(status, event, quiet=quiet)
        self.probe.out.put(event)
        # Keeps in step with all that is polled often, also when turns are skipped.
        delay = self._wait_s - self._every_s + until_beat(self._every_s)
        if status == 200:
            self.good_until = time.monotonic() + 2 * self._wait_s + self._timeout_s
            self._recovered()
            return delay
        self.good_until = 0.0
        if status in (401, 403):
            if not self._quiet:
                text = "%s needs an API key, and none was found in the server's command line or environment"
                if self._auth and server.api_key:
                    text = "%s refuses the API key in the server's command line or environment"
                self.probe.problems.note("http-auth", server.key, text % self._paths[0], self.id)
            return max(delay, 10.0)
        return delay

    def _pace(self, status: int, event: Json, *, quiet: bool) -> None:
        """Poll less often where nothing happens: each request is a line in the server's access log."""
        same = status == self._status and not any(event.get(name) for name in ("series", "again", "body"))
        self._status = status
        if same and status < 500 and (quiet or status != 200):
            self._wait_s = max(self._every_s, min(2.0 * self._wait_s, self._idle_s))
            if self._wait_s > self._every_s:
                event["next_s"] = self._wait_s
        else:
            self._wait_s = self._every_s

    def _ask(self) -> Tuple[int, bytes]:
        self._enter()
        headers = {"Authorization": "Bearer " + self.server.api_key} if self._auth and self.server.api_key else {}
        host, port = self.server.address
        paths = [self._winner] if self._winner else self._paths
        best: Optional[Tuple[int, bytes]] = None
        for path in paths:
            status, body = self._client.get(host, port, path, headers, self._timeout_s)
            if status != 404 and status < 500:
                if status < 400:
                    self._winner = path
                return status, body
            if best is None or best[0] == 404:
                best = (status, body)
        self._winner = None
        return best or (404, b"")

    def _enter(self) -> None:
        """Join the server's network namespace: a container's loopback is not the host's."""
        if self._entered:
            return
        if HOST_ROOT or same_network(self.server.leader.pid):
            self._entered = True
            return
        import ctypes

        path = "%s/%d/ns/net" % (PROC, self.server.leader.pid)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise HttpProblem("http-refused", "the server's network namespace: %s" % e.strerror) from None
        try:
            # Namespaces belong to threads, and this thread polls only this server.
            if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) != 0:
                text = os.strerror(ctypes.get_errno())
                raise HttpProblem("http-refused", "the server's network namespace: %s" % text)
        finally:
            os.close(fd)
        self._entered = True  # only now: another process on that port, in our own namespace, must not get the key

    def _read(self, status: int, body: bytes, event: Json) -> None:
        if status != 200 or self._parse == "status":
            return
        if self._parse == "prometheus":
            series = self._series.changed(body)
            if series is None:
                raise HttpProblem("http-nonsense", "no metrics: %r" % body[:40])
            # Names are long and rarely change: from the second time on a number stands for each.
            again = [[self._numbers[name], value] for name, value in series.items() if name in self._numbers]
            event["series"] = {name: value for name, value in series.items() if name not in self._numbers}
            for name in event["series"]:
                self._numbers[name] = len(self._numbers)
            if again:
                event["again"] = again
            return
        try:
            text = body.decode("utf-8", "replace")
            value = json.loads(text, parse_constant=lambda _: None, parse_float=finite)
            value = self._wanted(value)
            packed = json.dumps(value, sort_keys=True).encode()
        except (ValueError, RecursionError):
            raise HttpProblem("http-nonsense", "no JSON: %r" % body[:40]) from None
        if packed != self._body:
            self._body = packed
            event["body"] = value

    def _wanted(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wanted(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {name: part for name, part in value.items() if name not in self._drop}
        found.update({name: _only(found[name], keys) for name, keys in self._keep.items() if name in found})
        return found

    def _failed(self, problem: HttpProblem) -> None:
        self.good_until = 0.0
        self._failures += 1
        # A server that has just begun to listen, or is about to end, may fail once or twice.
        sure = problem.code == "http-nonsense" and not problem.passing
        young = problem.code != "http-nonsense" and self.server.age_s < 60.0
        if self._quiet or young or not (sure or self._failures >= 3):
            return
        host, port = self.server.address
        detail = "%s:%d%s: %s" % (host, port, self._winner or self._paths[0], problem)
        self.probe.problems.note(problem.code, self.server.key, detail, self.id)

    def _recovered(self) -> None:
        if self._failures or not self._quiet:
            for code in ("http-refused", "http-nonsense", "http-timeout", "http-auth"):
                self.probe.problems.clear(code, self.server.key, self.id)
        self._failures = 0


def _only(part: Any, keys: Sequence[str]) -> Any:
    """Return only the named keys of an object, or of each object in a list."""
    if isinstance(part, list):
        return [_only(each, keys) for each in part]
    return {key: value for key, value in part.items() if key in keys} if isinstance(part, dict) else part
