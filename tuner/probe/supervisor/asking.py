"""Questions to a server over HTTP: is it healthy, does it make a token, how many requests are in flight.

They are asked by a helper, one at a time, and only of a socket that a member of the server listens on.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional

from ..agent.arguments import flag_value
from ..agent.base import Json
from ..agent.http_client import HttpClient, HttpProblem
from ..agent.sockets import Listener, listeners_of, sockets_of
from .members import Members

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - addresses that are compared, none is bound
_SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^\n]*\})?\s+(\S+)", re.M)


class Door:
    """How a server is reached: key and TLS as its command line and environment have them.

    Args:
        argv: Its command line.
        env: Its environment.
        key_flags: Flags whose value is the API key.
        key_env: Variables whose value is the API key.
        tls_flags: With one of these it serves TLS only.
    """

    def __init__(
        self, argv: List[str], env: Dict[str, str], key_flags: List[str], key_env: List[str], tls_flags: List[str]
    ) -> None:
        keys = [flag_value(argv, key_flags)] + [env.get(name) for name in key_env]
        self.key = next((key for key in keys if key), None)
        self.tls = flag_value(argv, tls_flags) is not None
        self.host = ""
        self.port = 0

    def question(self, kind: str, ask: Json) -> Json:
        """Return what a helper is to be asked. `kind`: `health`, `token` or `drain`."""
        return {"kind": kind, "ask": ask, "host": self.host, "port": self.port, "tls": self.tls, "key": self.key}


class PortOwner:
    """Who listens on a port.

    `ours`: a member does; `other`: the first listener that is no member's; `beside`: one that is no member's and to
    which the kernel may give connections that are meant for a member (SO_REUSEPORT).
    """

    def __init__(self, members: Optional[Members], pid: int, port: int, host: Optional[str] = None) -> None:
        self.ours: Optional[Listener] = None
        self.other: Optional[Listener] = None
        found = [item for item in listeners_of(pid) if item.port == port]
        mine = set()
        if found and members is not None:
            for member in members.living:
                mine |= sockets_of(member.id.pid) or set()
        for item in found:
            if item.inode in mine:
                # IPv4 first: a server on all addresses of both kinds is asked there.
                if self.ours is None or ":" in self.ours.address:
                    self.ours = item
            elif self.other is None and _in_the_way(item.address, host):
                self.other = item
        own = [item.address for item in found if item.inode in mine]
        theirs = [item for item in found if item.inode not in mine]
        self.beside = next((item for item in theirs if any(_overlap(item.address, each) for each in own)), None)

    @property
    def address(self) -> str:
        """Return the address at which the members' socket is reached from here."""
        return _LOOPBACK.get(self.ours.address, self.ours.address) if self.ours is not None else ""


def _in_the_way(address: str, host: Optional[str]) -> bool:
    """Return whether a listener on an address keeps a server from listening on `host` (None: not known)."""
    wild = ("0.0.0.0", "::", "")  # noqa: S104 - see above
    if address in wild or host in wild:
        return True
    if host is None or host == "localhost":
        return address.startswith("127.") or address == "::1"
    return address == host or not re.match(r"[\d.]+$|[0-9a-f:]+$", host)


def _overlap(one: str, other: str) -> bool:
    """Return whether sockets on two addresses and the same port get connections of each other."""
    if (":" in one) != (":" in other):
        return False  # the kernel prefers a socket of the connection's own kind
    return one == other or one in _LOOPBACK or other in _LOOPBACK


def work(question: Json) -> Json:
    """Ask a server, in the helper; return `status`, `text` for people, and `count` where requests were counted."""
    ask = question["ask"]
    client = HttpClient(bool(question["tls"]))
    headers = {"Authorization": "Bearer " + question["key"]} if question["key"] else {}
    host, port = question["host"], int(question["port"])
    timeout_s = float(ask.get("timeout_s", 10.0))
    try:
        if question["kind"] == "drain":
            return _count(client, host, port, headers, ask)
        body = ask.get("body")
        if body is not None and "{model}" in json.dumps(body):
            status, data = client.get(host, port, "/v1/models", headers, timeout_s)
            if status != 200:
                return {"status": status, "text": "/v1/models answers %d" % status}
            body = _filled(body, str(json.loads(data)["data"][0]["id"]))
        out: Json = {}
        for path in ask["paths"]:
            packed = None if body is None else json.dumps(body).encode()
            status, data = client.request(host, port, path, headers, timeout_s, packed)
            out = {"status": status, "text": "%s answers %d" % (path, status)}
            # SGLang asks for a key also on paths that it does not have.
            if status not in (401, 403, 404):
                break
        return out
    except HttpProblem as e:
        return {"status": None, "text": str(e)}
    except (ValueError, KeyError, IndexError, TypeError) as e:
        return {"status": None, "text": "no usable answer: %s" % e}
    finally:
        client.close()


def _filled(value: Any, model: str) -> Any:
    """Return a body with the LLM's name in place of `{model}`."""
    if isinstance(value, str):
        return value.replace("{model}", model)
    if isinstance(value, list):
        return [_filled(each, model) for each in value]
    if isinstance(value, dict):
        return {name: _filled(each, model) for name, each in value.items()}
    return value


def _count(client: HttpClient, host: str, port: int, headers: Dict[str, str], ask: Json) -> Json:
    """Return the number of requests in flight as `count`; without it where the answer does not tell."""
    status, data = client.get(host, port, ask["path"], headers, 5.0)
    out: Json = {"status": status, "text": "%s answers %d" % (ask["path"], status)}
    if status == 200:
        names = set(ask.get("series") or ())
        text = data.decode("utf-8", "replace")
        try:
            numbers = list(_numbers(json.loads(text), names))
        except ValueError:
            numbers = [float(value) for name, value in _SERIES.findall(text) if name in names and _is_number(value)]
        if numbers:
            out["count"] = sum(numbers)
    return out


def _numbers(value: Any, names: Any) -> Any:
    """Yield the numbers that have one of these names, at any depth."""
    if isinstance(value, list):
        for each in value:
            yield from _numbers(each, names)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name in names and isinstance(each, (int, float)) and not isinstance(each, bool):
                yield float(each)
            else:
                yield from _numbers(each, names)


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0  # NaN is not
    except ValueError:
        return False
