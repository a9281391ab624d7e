"""A real server in a thread of its own, and clients made of plain sockets."""

import asyncio
import contextlib
import functools
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import uvloop

from vllm_supervisor.adapters import http1
from vllm_supervisor.ports import Handler, Peer, Request, Response

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@dataclass
class Lab:
    """A running server, and what it reported."""

    path: str
    started: threading.Event = field(default_factory=threading.Event)
    answered: list[tuple[Request, int, float]] = field(default_factory=list)
    failed: list[tuple[Request | None, BaseException]] = field(default_factory=list)
    stop: Callable[[], None] = lambda: None

    def connect(self) -> socket.socket:
        """Return a blocking connection that fails a test rather than hang it."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(20)
        sock.connect(self.path)
        return sock

    def exchange(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Send `data` on a new connection and return all that comes back until the server closes."""
        with self.connect() as sock:
            # A server that refuses may close before everything was sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    def get(self, path: str = "/", version: str = "1.1") -> "Answer":
        """Ask for `path` on a new connection."""
        return Answer.parse(
            self.exchange(f"GET {path} HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        )


@dataclass
class Answer:
    """A response, taken apart by hand so that the server's own library is not its judge."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def parse(cls, raw: bytes) -> "Answer":
        """Take one response apart, everything after its head being the body."""
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        return cls(int(lines[0].split(" ")[1]), headers, body)

    @property
    def error_code(self) -> str:
        """Return the code of an error object."""
        return str(json.loads(self.body)["error"]["code"])


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            data += piece
    return data


def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        piece = sock.recv(65536)
        if not piece:
            raise AssertionError(f"closed after {data!r}, before {end!r}")
        data += piece
    return data


async def echo(request: Request) -> Response:
    """Tell what arrived."""
    peer = request.peer and [request.peer.pid, request.peer.uid, request.peer.gid]
    said = {
        "method": request.method,
        "path": request.path,
        "query": dict(request.query),
        "body": request.body.decode("latin-1"),
        "peer": peer,
    }
    return Response(200, json.dumps(said).encode())


def streaming(pieces: Callable[[], AsyncIterator[bytes]]) -> Handler:
    """Answer `/stream` with what `pieces` yields, and everything else as `echo` does."""

    async def handler(request: Request) -> Response:
        if request.path == "/stream":
            return Response(200, pieces(), "text/plain")
        return await echo(request)

    return handler


@contextlib.contextmanager
def running(
    directory: Path,
    handler: Handler = echo,
    *,
    loop: str = "uvloop",
    limits: http1.Limits = http1.DEFAULT_LIMITS,
    peer_of: Callable[[socket.socket], Peer | None] | None = None,
) -> Iterator[Lab]:
    """Run a server for as long as the block lasts; fail if its thread does not end."""
    path = str(directory / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1024)
    lab = Lab(path)
    stop: list[Callable[[], object]] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:
            here = asyncio.get_running_loop()
            # What a callback raises ends there, loudly in a log and unseen by a test.
            here.set_exception_handler(lambda _, context: lab.failed.append((None, AssertionError(repr(context)))))
            stop.append(lambda: here.call_soon_threadsafe(scope.cancel))
            async with anyio.create_task_group() as tasks:
                await tasks.start(
                    functools.partial(
                        http1.serve,
                        [listener],
                        handler,
                        limits=limits,
                        peer_of=peer_of,
                        on_request=lambda *report: lab.answered.append(report),
                        on_error=lambda *report: lab.failed.append(report),
                    )
                )
                lab.started.set()

    def work() -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(main())

    thread = threading.Thread(target=work)

    def end() -> None:
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):
                stop[0]()
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"

    lab.stop = end
    thread.start()
    try:
        assert lab.started.wait(20)
        yield lab
    finally:
        end()
        listener.close()
