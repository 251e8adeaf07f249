"""An HTTP client that does without the standard library's."""

from __future__ import annotations

import re
import socket
import time
from typing import Any, Callable, Dict, Optional, Tuple

BODY_LIMIT = 8_388_608


class HttpProblem(Exception):
    """There was no usable answer; `code` is a problem code. `passing`: may also happen while a server shuts down."""

    def __init__(self, code: str, text: str, passing: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.passing = passing


class HttpClient:
    """A small HTTP/1.1 client with a deadline for the whole answer.

    The standard library's client would import ssl and email (a third of the probe's memory), and its timeout is per
    read. With `tls` ssl alone is imported, on the hosts that need it.
    """

    def __init__(self, tls: bool = False) -> None:
        self._context = _unverified() if tls else None
        self._sock: Optional[socket.socket] = None
        self._peer: Tuple[str, int] = ("", 0)

    def close(self) -> None:
        """Close the kept connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _connect(self, timeout_s: float) -> socket.socket:
        sock = socket.create_connection(self._peer, timeout_s)
        if self._context is None:
            return sock
        try:
            wrapped: socket.socket = self._context.wrap_socket(sock)
        except BaseException:
            sock.close()
            raise
        return wrapped

    def get(self, host: str, port: int, path: str, headers: Dict[str, str], timeout_s: float) -> Tuple[int, bytes]:
        """Return status and body of a GET. Raises HttpProblem."""
        return self.request(host, port, path, headers, timeout_s)

    def request(
        self, host: str, port: int, path: str, headers: Dict[str, str], timeout_s: float, body: Optional[bytes] = None
    ) -> Tuple[int, bytes]:
        """Return status and body of a GET, or of a POST of JSON where there is a `body`. Raises HttpProblem."""
        end = time.monotonic() + timeout_s
        if self._peer != (host, port):
            self.close()
            self._peer = (host, port)
        method = "GET" if body is None else "POST"
        lines = ["%s %s HTTP/1.1" % (method, path), "Host: %s:%d" % ("[%s]" % host if ":" in host else host, port)]
        lines += ["User-Agent: gputuner", "Accept: */*", "Connection: keep-alive"]
        lines += ["%s: %s" % item for item in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", "Content-Length: %d" % len(body)]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + (body or b"")
        while True:
            kept = self._sock is not None
            try:
                sock = self._sock
                if sock is None:
                    sock = self._sock = self._connect(timeout_s)
                sock.settimeout(max(0.01, end - time.monotonic()))
                sock.sendall(request)
                return self._answer(sock, end)
            except (EOFError, ConnectionResetError, BrokenPipeError):
                self.close()
                if kept:
                    continue  # the server had closed the kept connection: ask again on a new one
                raise HttpProblem("http-nonsense", "closed the connection without an answer", passing=True) from None
            except socket.timeout:
                self.close()
                raise HttpProblem("http-timeout", "no answer within %g s" % timeout_s) from None
            except ConnectionRefusedError:
                self.close()
                raise HttpProblem("http-refused", "connection refused") from None
            except OSError as e:
                self.close()
                if kept:
                    continue  # TLS reports a closed connection by errors of its own
                raise HttpProblem("http-refused", e.strerror or str(e)) from None
            except HttpProblem:
                self.close()
                raise

    def _answer(self, sock: socket.socket, end: float) -> Tuple[int, bytes]:
        data = bytearray()

        def more() -> bool:
            left = end - time.monotonic()
            if left <= 0:
                raise socket.timeout
            sock.settimeout(left)
            block = sock.recv(131_072)
            data.extend(block)
            if len(data) > BODY_LIMIT:
                raise HttpProblem("http-nonsense", "an answer of more than %d MiB" % (BODY_LIMIT >> 20))
            return bool(block)

        while b"\r\n\r\n" not in data:
            if not more():
                if data:
                    raise HttpProblem("http-nonsense", "not HTTP: %r" % bytes(data[:40]))
                raise EOFError
            if not b"HTTP/".startswith(bytes(data[:5])):
                raise HttpProblem("http-nonsense", "not HTTP: %r" % bytes(data[:40]))
        head, _, rest = bytes(data).partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        if not found:
            raise HttpProblem("http-nonsense", "not HTTP: %r" % head[:40])
        status = int(found.group(1))
        fields = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip()
        data = bytearray(rest)
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            body = self._chunks(data, more)
        elif fields.get(b"content-length", b"").isdigit():
            length = int(fields[b"content-length"])
            while len(data) < length:
                if not more():
                    raise HttpProblem("http-nonsense", "the answer was cut off")
            body = bytes(data[:length])
        elif status in (204, 304) or status < 200:
            body = b""
        else:
            while more():
                pass
            fields[b"connection"] = b"close"
            body = bytes(data)
        if b"close" in fields.get(b"connection", b"").lower() or head.startswith(b"HTTP/1.0"):
            self.close()
        return status, body

    @staticmethod
    def _chunks(data: bytearray, more: Callable[[], bool]) -> bytes:
        body = bytearray()
        at = 0
        while True:
            newline = data.find(b"\r\n", at)
            while newline < 0:
                if not more():
                    raise HttpProblem("http-nonsense", "the answer was cut off")
                newline = data.find(b"\r\n", at)
            length = re.match(rb" *([0-9a-fA-F]{1,8})\s*(?:;|$)", bytes(data[at:newline]))
            if not length:
                raise HttpProblem("http-nonsense", "a broken chunked answer")
            size = int(length.group(1), 16)
            if size > BODY_LIMIT:
                raise HttpProblem("http-nonsense", "an answer of more than %d MiB" % (BODY_LIMIT >> 20))
            while len(data) < newline + 4 + size:
                if not more():
                    raise HttpProblem("http-nonsense", "the answer was cut off")
            if size == 0:
                return bytes(body)
            body += data[newline + 2 : newline + 2 + size]
            at = newline + 4 + size


def _unverified() -> Any:
    """Return a TLS context that accepts any certificate.

    Names and issuers would prove nothing here: the socket belongs to the server's own processes on this host, which is
    checked before each connection, and the only secret sent there is the key from their own command line.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
