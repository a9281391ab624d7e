"""HTTP/1.1 as uvicorn speaks it towards clients: one thread a connection, keep-alive, chunked streams, access log."""

import select
import socket
import time
from collections.abc import Callable, Mapping

from vllm_supervisor.simulator.lines import OUT, plain

_MAX_HEAD = 1 << 16
_MAX_BODY = 1 << 26
_CHUNK = 1 << 16

REASONS = {
    100: "Continue",
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


class ClientGoneError(Exception):
    """The client hung up: there is nobody to answer."""


class Exchange:
    """One request, complete, and the answer to it."""

    def __init__(self, sock: socket.socket, peer: str, head: str, body: bytes, *, access_log: bool) -> None:
        first, *lines = head.split("\r\n")
        self.method, target, self._version = [*first.split(" ", 2), "", ""][:3]
        self.path = target.partition("?")[0]
        self.headers: Mapping[str, str] = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        self.body = body
        self._sock = sock
        self._target = target
        self._peer = peer
        self._access_log = access_log
        self.status: int | None = None
        """What was answered; None when nothing was."""

    @property
    def keeps_alive(self) -> bool:
        """Whether the client may send another request on this connection."""
        return self._version == "HTTP/1.1" and self.headers.get("connection", "").lower() != "close"

    def reply(self, status: int, body: bytes = b"", content_type: str = JSON, *, allow: str = "") -> None:
        """Answer in one piece. Raises ClientGoneError."""
        head = f"content-length: {len(body)}\r\n"
        if allow:
            head = f"allow: {allow}\r\n{head}"
        if body:
            head += f"content-type: {content_type}\r\n"
        self._start(status, head, b"" if self.method == "HEAD" else body)

    def stream(self) -> None:
        """Begin a stream of server-sent events. Raises ClientGoneError."""
        self._start(200, f"content-type: {EVENTS}\r\ntransfer-encoding: chunked\r\n", b"")

    def event(self, data: str) -> None:
        """Send one event of the stream. Raises ClientGoneError."""
        payload = f"data: {data}\n\n".encode()
        self._send(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end_stream(self) -> None:
        """Send the last chunk. Raises ClientGoneError."""
        self._send(b"0\r\n\r\n")

    def gone(self) -> bool:
        """Say whether the client hung up meanwhile."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | select.POLLRDHUP)
        ready = poller.poll(0)
        return bool(ready and ready[0][1] & (select.POLLRDHUP | select.POLLHUP | select.POLLERR))

    def _start(self, status: int, head: str, body: bytes) -> None:
        reason = REASONS.get(status, "Unknown")
        self.status = status
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        # The line is there before the client can act on the answer, as a test that reads both expects.
        if self._access_log:
            plain(f'INFO:     {self._peer} - "{self.method} {self._target} {self._version}" {status} {reason}', OUT)
        self._send(f"HTTP/1.1 {status} {reason}\r\ndate: {date}\r\nserver: uvicorn\r\n{head}\r\n".encode() + body)

    def _send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise ClientGoneError from error


def serve_connection(
    sock: socket.socket, peer: str, handle: Callable[[Exchange], None], *, keep_alive: float, access_log: bool
) -> None:
    """Read requests and have them handled until either side has enough. `keep_alive` in seconds, between requests."""
    with sock:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rest = b""
        while True:
            try:
                request = _read_request(sock, rest)
            except (OSError, ValueError):
                return
            if request is None:
                return
            head, body, rest = request
            exchange = Exchange(sock, peer, head, body, access_log=access_log)
            sock.settimeout(None)
            try:
                handle(exchange)
            except ClientGoneError:
                return
            if exchange.status is None or not exchange.keeps_alive:
                return
            sock.settimeout(keep_alive)


def _read_request(sock: socket.socket, data: bytes) -> tuple[str, bytes, bytes] | None:
    """Return head, body and what follows; None when the client closed. Raises OSError, ValueError."""
    while b"\r\n\r\n" not in data:
        more = sock.recv(_CHUNK)
        if not more or len(data) > _MAX_HEAD:
            return None
        data += more
    raw, _, rest = data.partition(b"\r\n\r\n")
    head = raw.decode("latin-1")
    length = 0
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
        elif name.strip().lower() == "expect":
            sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if length > _MAX_BODY:
        return None
    while len(rest) < length:
        more = sock.recv(_CHUNK)
        if not more:
            return None
        rest += more
    return head, rest[:length], rest[length:]
