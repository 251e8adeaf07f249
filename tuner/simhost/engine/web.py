"""The HTTP interface of the simulated server: the routes that each version has, and their answers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tuner.simhost.engine import info, metrics, text
from tuner.simhost.engine.traffic import Request

if TYPE_CHECKING:
    from tuner.simhost.engine.server import Server

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
            500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip
_OPEN = ("/health", "/health_generate", "/metrics")
_WORDS = [
    "the",
    "a",
    "of",
    "to",
    "in",
    "and",
    "it",
    "is",
    "that",
    "for",
    "on",
    "with",
    "as",
    "this",
    "are",
    "be",
    "at",
    "from",
    "or",
    "have",
    "by",
    "not",
    "we",
    "can",
    "if",
    "one",
    "all",
]
_MAX_BODY = 16 << 20

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


class Web:
    """Serves the port of one simulated server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, with keep-alive."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await self._one(reader, writer):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        request, *rest = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3:
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return False
        method, target, _ = words
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in rest if line)}
        length = int(headers.get("content-length", "0"))
        if length > _MAX_BODY:
            return False
        body = await reader.readexactly(length) if length else b""
        path = urlsplit(target).path
        peer = writer.get_extra_info("peername")[1]
        server = self.server
        server.requests[path, method] = server.requests.get((path, method), 0) + 1
        if method == "POST" and path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            refusal = self._refuse(path, headers)
            if refusal is None:
                await self._generate(writer, path, body, peer)
                return headers.get("connection", "").lower() != "close"
            answer = refusal
        else:
            answer = await self._answer(method, path, headers)
        status, kind, content = answer
        self._count(path, method, status, peer)
        writer.write(_head(status, kind, len(content)) + (b"" if method == "HEAD" else content))
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    def _count(self, path: str, method: str, status: int, port: int) -> None:
        server = self.server
        key = (path, method, str(status))
        server.responses[key] = server.responses.get(key, 0) + 1
        server.log.line(text.access(port, method, path, f"{status} {_REASONS[status]}"))

    def _refuse(self, path: str, headers: dict[str, str]) -> Answer | None:
        key = self.server.config.args["api_key"]
        if key and path not in _OPEN and headers.get("authorization") != f"Bearer {key}":
            return 401, "application/json", b'{"error":"Unauthorized"}'
        return None

    async def _answer(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        refusal = self._refuse(path, headers)
        if refusal is not None:
            return refusal
        server, new = self.server, self.server.config.new
        match path:
            case "/health" | "/health_generate":
                return await self._health()
            case "/ready" if new:
                return (200 if server.ready and not server.ends.draining else 503), "text/plain", b""
            case "/metrics" if server.config.args["enable_metrics"]:
                return 200, "text/plain; version=0.0.4; charset=utf-8", metrics.render(server).encode()
            case "/server_info" | "/get_server_info":
                self._deprecated(path)
                return _json(info.server_info(server))
            case "/model_info" | "/get_model_info":
                self._deprecated(path)
                return _json(info.model_info(server))
            case "/v1/models":
                return _json(info.models(server))
            case "/v1/loads":
                # 0.5.9 has this route, but fails in it.
                return _json(info.loads(server)) if new else (500, "text/plain", b"Internal Server Error")
            case "/get_load" if not new:
                return _json(info.get_load(server))
            case "/flush_cache":
                return self._flush()
            case "/generate" | "/v1/completions" | "/v1/chat/completions":
                return 405, "application/json", b'{"detail":"Method Not Allowed"}'
        return 404, "application/json", b'{"detail":"Not Found"}'

    def _deprecated(self, path: str) -> None:
        if path.startswith("/get_"):
            self.server.log.line(
                f"Endpoint '{path}' is deprecated and will be removed in a future version. "
                f"Please use '/{path.removeprefix('/get_')}' instead."
            )

    async def _health(self) -> Answer:
        """Answer a health check by generating one token when idle, by the heartbeat when busy; a second either way."""
        server = self.server
        if server.ends.draining:
            server.log.line("Health check request received during shutdown. Returning 503.")
        if not server.ready or server.ends.draining:
            return 503, "text/plain", b""
        assert server.serving is not None
        if not server.serving.active:
            server.submit(Request(rid="HEALTH_CHECK", prompt=1, cached=0, output=1, arrived=time.time(), stream=False,
                                  health=True))  # fmt: skip
        await asyncio.sleep(1.0)
        return 200, "text/plain", b""

    def _flush(self) -> Answer:
        serving = self.server.serving
        if serving is None or serving.active:
            queued, running = (len(serving.waiting), len(serving.running)) if serving else (0, 0)
            self.server.log.line("Cache not flushed because there are pending requests. "
                                 f"#queue-req: {queued}, #running-req: {running}", 0)  # fmt: skip
            return 400, "text/plain", b"Flush cache failed.\n"
        serving.prefix.clear()
        self.server.log.line("Cache flushed successfully!", 0)
        return 200, "text/plain", b"Cache flushed.\n"

    async def _generate(self, writer: asyncio.StreamWriter, path: str, body: bytes, port: int) -> None:
        server = self.server
        try:
            asked = json.loads(body)
            prompt, wanted = _prompt(path, asked)
        except (ValueError, TypeError, AttributeError):
            self._count(path, "POST", 400, port)
            content = b'{"object":"error","message":"The request body is not valid.","code":400}'
            writer.write(_head(400, "application/json", len(content)) + content)
            return
        limit = min(server.config.context_length, server.machine.tokens) - 1
        if not server.ready or server.ends.draining or server.serving is None or _count_tokens(prompt) + wanted > limit:
            status = 400 if server.ready and not server.ends.draining else 503
            self._count(path, "POST", status, port)
            content = b'{"object":"error","message":"The input and output are longer than the model\'s context."}'
            writer.write(_head(status, "application/json", len(content)) + content)
            return
        stream = bool(asked.get("stream"))
        known = server.prompts.get(prompt, 0)
        queue: asyncio.Queue[tuple[int, bool, float]] = asyncio.Queue()
        request = Request(
            rid=f"{server.machine.rng.getrandbits(128):032x}", prompt=_count_tokens(prompt), cached=known,
            output=wanted, arrived=time.time(), user=f"text-{hash(prompt)}", path=path, stream=False,
            emit=lambda count, end: queue.put_nowait((count, end, time.time())),
        )  # fmt: skip
        server.prompts[prompt] = request.prompt
        server.outside += 1
        try:
            server.submit(request)
            chunks = _chunks(queue, request)
            if stream:
                self._count(path, "POST", 200, port)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                             b"transfer-encoding: chunked\r\n\r\n")  # fmt: skip
                async for data in info.stream(server, path, asked, request, chunks):
                    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
            else:
                words = [word async for part in chunks for word in part]
                self._count(path, "POST", 200, port)
                content = json.dumps(info.completion(server, path, request, "".join(words))).encode()
                writer.write(_head(200, "application/json", len(content)) + content)
            await writer.drain()
        finally:
            server.outside -= 1


async def _chunks(queue: asyncio.Queue[tuple[int, bool, float]], request: Request) -> AsyncIterator[list[str]]:
    """Yield words as tokens come."""
    number = 0
    while True:
        count, end, _ = await queue.get()
        yield [" " + _WORDS[(number + i) * 7 % len(_WORDS)] for i in range(count)]
        number += count
        if end:
            return


def _prompt(path: str, asked: dict[str, Any]) -> tuple[str, int]:
    """Return the prompt and the number of requested tokens."""
    if path == "/generate":
        params = asked.get("sampling_params") or {}
        prompt = asked.get("text", asked.get("input_ids"))
        wanted = params.get("max_new_tokens", 128)
    elif path == "/v1/completions":
        prompt, wanted = asked.get("prompt"), asked.get("max_tokens") or 16
    else:
        prompt = "\n".join(str(message.get("content", "")) for message in asked["messages"])
        wanted = asked.get("max_completion_tokens") or asked.get("max_tokens") or 256
    if prompt is None:
        raise ValueError("no prompt")
    shown = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return shown, max(1, int(wanted))


def _count_tokens(prompt: str) -> int:
    """Return roughly the number of tokens in a text; for a list of ids the number of its items."""
    return prompt.count(",") + 1 if prompt.startswith("[") else max(1, len(prompt) // 4)


def _json(value: object) -> Answer:
    return 200, "application/json", json.dumps(value, separators=(",", ":")).encode()


def _head(status: int, kind: str, length: int) -> bytes:
    date = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    return (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\ndate: {date}\r\nserver: uvicorn\r\ncontent-length: {length}\r\n"
        f"content-type: {kind}\r\n\r\n"
    ).encode()
